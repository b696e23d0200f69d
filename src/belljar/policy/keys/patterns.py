"""Regular expressions that are compiled when they are first used: there are many kinds of values, a run reads few."""

from __future__ import annotations

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    import re


class Pattern:
    """A regular expression, by its text."""

    __slots__ = ("_compiled", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._compiled: re.Pattern[str] | None = None

    def match(self, text: str) -> re.Match[str] | None:
        """As `re.Pattern.match`."""
        if self._compiled is None:
            import re

            self._compiled = re.compile(self._text)
        return self._compiled.match(text)
