"""`belljar logs`: what a run printed, or prints."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.sandbox.record.following import Piece


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.record.handles import STREAMS, parse
    from belljar.sandbox.record.remote import one_running

    (word,) = expect_words(COMMAND, parsed, 1, 1)
    name = parse(word)
    wanted = tuple(stream for stream in STREAMS if parsed.flag(f"--{stream}")) or STREAMS
    live = one_running(name.run)
    output = _Live(live, follow=parsed.flag("--follow")) if live else _Ended(name.run)
    pieces = (piece for piece in output.pieces() if piece.stream in wanted and name.fits(piece))
    if parsed.flag("--json"):
        tell = _tell_as_it_comes if parsed.flag("--follow") else _tell
        tell(output, pieces)
        return 0
    _show(pieces, raw=parsed.flag("--raw"))
    if output.missing:
        sys.stderr.write(f"belljar: {output.missing}\n")
    return 0


class _Ended:
    """What was stored of a run that has ended."""

    running = False

    def __init__(self, name: str) -> None:
        from belljar.sandbox.record.stored_output import find

        self._stored = find(name)
        if self._stored.nothing:
            raise UsageError(f"{self._stored.run_id}: {self._stored.missing}", hint=self._stored.hint)
        self.run_id = self._stored.run_id
        self.missing = self._stored.missing

    def pieces(self) -> Iterator[Piece]:
        yield from self._stored.pieces


class _Live:
    """What a run in progress prints. If its process goes before it has told the end, what was stored comes after it."""

    def __init__(self, run_id: str, *, follow: bool) -> None:
        from belljar.sandbox.record.following import LiveOutput

        self.run_id = run_id
        self._output = LiveOutput(run_id)
        self._follow = follow
        self.missing = ""

    @property
    def running(self) -> bool:
        return not (self._output.ended or self._output.gone)

    def pieces(self) -> Iterator[Piece]:
        yield from self._output.follow() if self._follow else self._output.now()
        if self._output.forgotten:
            self.missing = "what the first steps of the session printed is not kept any more"
        if self._output.gone:
            yield from self._rest()

    def _rest(self) -> Iterator[Piece]:
        from belljar.sandbox.record.stored_output import find

        stored = find(self.run_id)
        self.missing = f"its process is gone; {stored.missing}" if stored.missing else self.missing
        for piece in stored.pieces:
            part, offset = self._output.offset(piece.stream)
            if piece.part >= part and not stored.missing:
                yield piece._replace(data=piece.data[offset if piece.part == part else 0 :])


def _show(pieces: Iterable[Piece], *, raw: bool) -> None:
    from belljar.cli.terminal.sink import Sink

    sinks = {"stdout": Sink(1, raw=raw), "stderr": Sink(2, raw=raw)}
    for piece in pieces:
        sinks[piece.stream].write(piece.data)
    for sink in sinks.values():
        sink.finish()


def _tell(output: _Ended | _Live, pieces: Iterable[Piece]) -> None:
    from belljar.cli.terminal.document import print_json

    texts = {"stdout": bytearray(), "stderr": bytearray()}
    for piece in pieces:
        texts[piece.stream] += piece.data
    found = {stream: text.decode(errors="replace") for stream, text in texts.items()}
    print_json({"run": output.run_id, "running": output.running, **found, "missing": output.missing})


def _tell_as_it_comes(output: _Ended | _Live, pieces: Iterable[Piece]) -> None:
    """One line for each piece, and one for the end."""
    import codecs
    import json

    def say(**told: object) -> None:
        sys.stdout.write(json.dumps({"run": output.run_id, **told}) + "\n")
        sys.stdout.flush()

    decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in ("stdout", "stderr")}
    for piece in pieces:
        say(stream=piece.stream, step=piece.part or None, text=decoders[piece.stream].decode(piece.data))
    say(ended=not output.running, missing=output.missing)


COMMAND = CliCommand(
    "logs",
    "Show what a run printed, or prints.",
    usage="logs [OPTIONS] RUN[/STEP][/stdout|/stderr]",
    run=run,
    options=(
        Option("-f --follow", "", "go on with what it prints, until it ends"),
        Option("--stdout", "", "its standard output only"),
        Option("--stderr", "", "its standard error only"),
        Option("--raw", "", "let the code's escape sequences reach the terminal"),
        JSON,
    ),
    details="""
RUN may be the beginning or the end of its name, if no other has the same. Any belljar process of this user may have it.
Secrets and personal data are tokens, as in the audit log (`logging.redact`). Of a session that is open it is what its
last steps printed. What a run printed that has ended is there if it was stored: `logging.sample_ratio` says for which
share of the runs it is.
""",
    examples=(
        ("logs 01a1e4e2ffbe-8c01c265", "what it has printed so far"),
        ("logs -f 8c01c265", "and what follows, until it ends"),
        ("logs 8c01c265/3/stdout", "what a handle stands for: step 3 of a session"),
    ),
)
