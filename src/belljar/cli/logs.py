"""`belljar logs`: what a run printed, or prints."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import Command, Option, Parsed, expect_words
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.sandbox.following import LiveOutput, Piece


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.following import LiveOutput
    from belljar.sandbox.remote import one_running

    (name,) = expect_words(COMMAND, parsed, 1, 1)
    wanted = tuple(stream for stream in ("stdout", "stderr") if parsed.flag(f"--{stream}")) or ("stdout", "stderr")
    live = one_running(name)
    if live is None:
        raise UsageError(f"no run of the name {name!r} is in progress", hint="`belljar ps` lists them")
    output = LiveOutput(live)
    pieces = (piece for piece in _pieces(parsed, output) if piece.stream in wanted)
    if parsed.flag("--json"):
        return _tell(parsed, output, pieces)
    _show(pieces, raw=parsed.flag("--raw"))
    if output.forgotten:
        sys.stderr.write("belljar: what the first steps of the session printed is not kept any more\n")
    if output.gone:
        sys.stderr.write("belljar: its process is gone, and the end of its output with it\n")
    return 0


def _pieces(parsed: Parsed, output: LiveOutput) -> Iterable[Piece]:
    return output.follow() if parsed.flag("--follow") else output.now()


def _show(pieces: Iterable[Piece], *, raw: bool) -> None:
    from belljar.cli.sink import Sink

    sinks = {"stdout": Sink(1, raw=raw), "stderr": Sink(2, raw=raw)}
    for piece in pieces:
        sinks[piece.stream].write(piece.data)
    for sink in sinks.values():
        sink.finish()


def _tell(parsed: Parsed, output: LiveOutput, pieces: Iterable[Piece]) -> int:
    """One document; with --follow, one line for each piece as it comes, and one for the end."""
    from belljar.cli.document import print_json

    if parsed.flag("--follow"):
        _tell_as_it_comes(output, pieces)
        return 0
    texts = {"stdout": bytearray(), "stderr": bytearray()}
    for piece in pieces:
        texts[piece.stream] += piece.data
    found = {stream: text.decode(errors="replace") for stream, text in texts.items()}
    print_json({"run": output.run_id, "running": not output.ended, **found})
    return 0


def _tell_as_it_comes(output: LiveOutput, pieces: Iterable[Piece]) -> None:
    import codecs
    import json

    def say(**told: object) -> None:
        sys.stdout.write(json.dumps({"run": output.run_id, **told}) + "\n")
        sys.stdout.flush()

    decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in ("stdout", "stderr")}
    for piece in pieces:
        say(stream=piece.stream, step=piece.part or None, text=decoders[piece.stream].decode(piece.data))
    say(ended=output.ended)


COMMAND = Command(
    "logs",
    "Show what a run printed, or prints.",
    usage="logs [OPTIONS] RUN",
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
Secrets and personal data are tokens, as in the audit log (`logging.redact`). Of a session it is what its last steps
printed.
""",
    examples=(
        ("logs 01a1e4e2ffbe-8c01c265", "what it has printed so far"),
        ("logs -f 8c01c265", "and what follows, until it ends"),
    ),
)
