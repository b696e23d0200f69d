"""Where the code's output goes as it arrives: through the filter to a terminal, unchanged to anything else."""

from __future__ import annotations

import os

from belljar.cli.terminal.style import is_terminal

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from belljar.cli.terminal.safe_text import TerminalFilter


class Sink:
    """One of belljar's own output descriptors."""

    def __init__(self, descriptor: int, *, raw: bool) -> None:
        self._descriptor = descriptor
        self.terminal = is_terminal(descriptor)
        self._filter = _filter() if self.terminal and not raw else None
        self.in_a_line = False
        """Whether the last byte ended no line."""

    def write(self, data: bytes) -> None:
        """Pass on a piece of output."""
        self._write(self._filter.feed(data) if self._filter else data)

    def finish(self) -> None:
        """Pass on what was held back."""
        if self._filter:
            self._write(self._filter.finish())

    def _write(self, data: bytes) -> None:
        if data:
            self.in_a_line = not data.endswith(b"\n")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


def _filter() -> TerminalFilter:
    from belljar.cli.terminal.safe_text import TerminalFilter, speaks_only_ascii

    return TerminalFilter(ascii_only=speaks_only_ascii(os.environ))


def break_line(sinks: list[Sink]) -> bool:
    """Whether belljar's own words would begin in the middle of the code's last line on a terminal."""
    return any(sink.terminal and sink.in_a_line for sink in sinks)
