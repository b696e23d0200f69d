"""The labelled corpus: templates in corpus/, filled with made-up values from a seed.

    python tests/redaction/redaction_corpus.py FILE       writes it as JSON lines: text, and spans of (start, end, kind)

The filled text is not in the repository, because what looks like a key to belljar looks like one to every scanner.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from redaction_values import Values

HERE = Path(__file__).resolve().parent / "corpus"
SEED = 20260301
ROUNDS = 16
SLOT = re.compile(r"\{\{(~?)(\w+)(?:([:=])(.*?))?\}\}")


class Example(NamedTuple):
    """A text and what is to be found in it."""

    text: str
    spans: tuple[tuple[int, int, str], ...]


def corpus(seed: int = SEED, rounds: int = ROUNDS) -> Iterator[Example]:
    """Every template `rounds` times, each time with other values."""
    values = Values(seed)
    for name in ("positives", "negatives"):
        for template in templates(name):
            for _ in range(rounds if "{{" in template else 1):
                yield filled(template, values)


def templates(name: str) -> list[str]:
    """The examples of one file."""
    lines = (HERE / f"{name}.txt").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("# "))
    return [template for template in text.split("---\n") if template.strip("-\n")]


def filled(template: str, values: Values) -> Example:
    """A template with its values, and where those that are labelled are."""
    text, place = "", 0
    spans = []
    for slot in SLOT.finditer(template):
        text += template[place : slot.start()]
        plain, kind, sign, what = slot.groups()
        if not plain and sign != "=" and not hasattr(values, what or kind):
            text += slot[0]  # another language's braces
        else:
            value = what if sign == "=" else values.make(what or kind)
            if not plain:
                spans.append((len(text), len(text) + len(value), kind))
            text += value
        place = slot.end()
    return Example(text + template[place:], tuple(spans))


Form = Callable[[str, tuple[int, int]], list[str]]
"""What becomes of each character of a text, given where the value is that it is about."""


def _coloured(text: str, value: tuple[int, int]) -> list[str]:
    """As `grep --color` prints a match."""
    start, end = value
    pieces = list(text)
    pieces[start] = f"\x1b[01;31m\x1b[K{pieces[start]}"
    pieces[end - 1] += "\x1b[m\x1b[K"
    return pieces


def _half_coloured(text: str, value: tuple[int, int]) -> list[str]:
    """As `grep --color` prints a match within it."""
    middle = (value[0] + value[1]) // 2
    return _coloured(text, (value[0], middle)) if middle > value[0] else list(text)


def _in_json(text: str, _value: tuple[int, int]) -> list[str]:
    return [json.dumps(character)[1:-1] for character in text]


def _in_json_twice(text: str, _value: tuple[int, int]) -> list[str]:
    return [json.dumps(json.dumps(character)[1:-1])[1:-1] for character in text]


def _escaped_signs(text: str, _value: tuple[int, int]) -> list[str]:
    """As careful encoders write JSON for a page: signs by their number."""
    return [f"\\u{ord(character):04x}" if character in "<>&'\"/=+@:" else character for character in text]


def _percent(text: str, _value: tuple[int, int]) -> list[str]:
    return [quote(character, safe="") for character in text]


def _numbered(text: str, _value: tuple[int, int]) -> list[str]:
    """As `cat -n` prints it."""
    number = 1
    pieces = list(text)
    for place, character in enumerate(text):
        if character == "\n":
            number += 1
            pieces[place] = f"\n{number:6}\t"
    return pieces


FORMS: dict[str, Form] = {
    "coloured": _coloured,
    "half coloured": _half_coloured,
    "in JSON": _in_json,
    "in JSON twice": _in_json_twice,
    "signs by number": _escaped_signs,
    "percent": _percent,
    "numbered": _numbered,
}
"""How tools print a text, and what a reader undoes."""


def escaped(example: Example, form: str) -> Example:
    """An example as a tool prints it. Values of several lines are keys, which have a form of their own for that."""
    first = min(example.spans, default=(0, min(1, len(example.text)), ""))
    pieces = FORMS[form](example.text, first[:2])
    places = [0, *accumulate(map(len, pieces))]
    spans = tuple((places[start], places[end], kind) for start, end, kind in example.spans)
    return Example("".join(pieces), spans)


def main() -> None:
    """Write the corpus to a file."""
    with Path(sys.argv[1]).open("w") as file:
        for example in corpus():
            file.write(json.dumps({"text": example.text, "spans": example.spans}) + "\n")


if __name__ == "__main__":
    main()
