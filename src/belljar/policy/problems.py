"""Gathers all that is wrong with a policy, so that its author hears of everything at once."""

from __future__ import annotations

from collections.abc import Iterable

from belljar.errors import PolicyError
from belljar.policy.models import Origin

_SHOWN = 50


def place(origin: Origin) -> str:
    """`file:line:column`, as far as it is known."""
    return f"{origin.file}:{origin.line}:{origin.column}" if origin.line else origin.file


def found(value: object) -> str:
    """A value as an error shows it: on one line, printable, and short whatever its author sent."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return ascii(value) if len(value) <= 60 else ascii(value[:57]) + "…"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known word most like `word`, or nothing."""
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(word[:80], list(known), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


class Problems:
    """A growing list of what is wrong; `check` raises it as one error."""

    def __init__(self) -> None:
        self._found: list[tuple[Origin, str]] = []
        self._hints: list[str] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, origin: Origin, text: str, *, hint: str = "") -> None:
        """Note one problem at its place."""
        self._found.append((origin, text))
        if hint and hint not in self._hints:
            self._hints.append(hint)

    def take(self, others: Problems, at: Origin) -> None:
        """Note the problems of `others`, all at one place."""
        for _, text in others._found:
            self.add(at, text)

    def check(self) -> None:
        """Raise what was gathered, if anything was.

        Raises:
            PolicyError: with every problem, in the order of the files' lines.

        """
        if not self._found:
            return
        ordered = sorted(self._found, key=lambda item: (item[0].file, item[0].line, item[0].column))
        lines = tuple(f"{place(origin)}: {text}" for origin, text in ordered)
        shown = lines[:_SHOWN]
        if len(lines) > _SHOWN:
            shown += (f"… and {len(lines) - _SHOWN} more",)
        raise PolicyError("\n".join(shown), hint="; ".join(self._hints), problems=lines)
