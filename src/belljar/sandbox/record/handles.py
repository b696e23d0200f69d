"""Names of outputs, `RUN/stdout` or `RUN/STEP/stderr`, and what they stand for.

An output that was cut for a model is kept in this process, as long as there is room. What is not kept here is asked of
the process that runs it, or read from where it was stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from belljar.errors import UsageError
from belljar.sandbox.record.kept_outputs import OUTPUTS

if TYPE_CHECKING:
    from belljar.sandbox.record.following import Piece

STREAMS = ("stdout", "stderr")


class Name(NamedTuple):
    """A handle, taken apart."""

    run: str
    step: int | None
    """Of a session; None is all of them, and every other run."""
    stream: str | None
    """None is both."""

    def fits(self, piece: Piece) -> bool:
        """Whether a piece of output is meant."""
        return self.stream in (None, piece.stream) and self.step in (None, piece.part)


def parse(handle: str) -> Name:
    """Take a handle apart; a run's name is one, too. Raises UsageError."""
    run, *rest = handle.split("/")
    stream = rest.pop() if rest and rest[-1] in STREAMS else None
    step = rest.pop() if rest and rest[-1].isascii() and rest[-1].isdigit() and len(rest[-1]) < 10 else None
    if not run or rest:
        raise UsageError(f"{handle!r} is no name of an output", hint="wanted RUN/stdout, or RUN/STEP/stdout")
    return Name(run, None if step is None else int(step), stream)


def output(handle: str, start: int = 0, characters: int | None = None) -> str:
    """The output that a handle stands for, or a part of it.

    Args:
        handle: `RUN/stdout`, as it stands in a `Slice`.
        start: How many characters to leave out.
        characters: How many to return at most; None is all.

    Raises:
        UsageError: it is not kept here, the run is not in progress, and it was not stored.
    """
    text = OUTPUTS.get(handle, 0, None)
    if text is None:
        text = _elsewhere(parse(handle))
    return text[start : None if characters is None else start + characters]


def _elsewhere(name: Name) -> str:
    from belljar.sandbox.record.following import LiveOutput
    from belljar.sandbox.record.stored_output import find

    live = LiveOutput(name.run)
    pieces = list(live.now())
    if live.gone:
        stored = find(name.run)
        if stored.missing:
            raise UsageError(f"{name.run}: {stored.missing}", hint=stored.hint)
        pieces = list(stored.pieces)
    return b"".join(piece.data for piece in pieces if name.fits(piece)).decode(errors="replace")
