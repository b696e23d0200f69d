"""The labelled corpus: templates in corpus/, filled with made-up values from a seed.

    python tests/redaction/redaction_corpus.py FILE       writes it as JSON lines: text, and spans of (start, end, kind)

The filled text is not in the repository, because what looks like a key to belljar looks like one to every scanner.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


def main() -> None:
    """Write the corpus to a file."""
    with Path(sys.argv[1]).open("w") as file:
        for example in corpus():
            file.write(json.dumps({"text": example.text, "spans": example.spans}) + "\n")


if __name__ == "__main__":
    main()
