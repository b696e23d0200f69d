"""One run, from the options to the exit code: what `run` and `exec` share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from belljar.cli import jar_options
from belljar.cli.parsing import Parsed
from belljar.cli.run.request import CommandLineRequest
from belljar.cli.terminal.sink import Sink, break_line
from belljar.errors import InternalError

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

    from belljar.cli.run.workspace import Workspace
    from belljar.sandbox.record.result import RunResult
    from belljar.sandbox.run.sandbox import Sandbox


def run_once(parsed: Parsed, make_request: Callable[[Sandbox], CommandLineRequest]) -> int:
    """Make the jar, run in it, tell what happened; returns the exit code."""
    with jar_options.make_sandbox(parsed) as jar:
        request = make_request(jar)
        if jar.backend_name == "unconfined":
            _warn(jar, request)
        result, in_a_line = _run(jar, request, parsed)
        brought = _settle(jar, result, parsed)
    if parsed.flag("--json"):
        _print_json(result, brought)
    elif brought:
        brought.print_diff(in_a_line=in_a_line)
        brought.tell(quiet=parsed.flag("--quiet"))
    if result.ok:
        return 3 if brought and brought.incomplete else 0
    from belljar.cli.run.outcome import exit_code

    return exit_code(result)


def _warn(jar: Sandbox, request: CommandLineRequest) -> None:
    """Say on standard error, before each run and whatever is asked to be quiet, that nothing confines it."""
    if not jar.plan(**request.keywords()).report.refused_by(jar.policy):
        sys.stderr.write("belljar: NO SANDBOX: the code runs as you, with your files and your network\n")
        sys.stderr.flush()


def _run(jar: Sandbox, request: CommandLineRequest, parsed: Parsed) -> tuple[RunResult, bool]:
    """The result, and whether standard output ended in the middle of a line."""
    try:
        return (_collect if parsed.flag("--json") else _stream)(jar, request, parsed)
    except KeyboardInterrupt:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one must not interrupt the cleaning up
        jar.kill("interrupted")
        raise


def _settle(jar: Sandbox, result: RunResult, parsed: Parsed) -> Workspace | None:
    """What comes back from the workspace, if anything was asked for."""
    if not any(name in parsed.options for name in ("--diff", "--diff-file", "--apply", "--artifacts")):
        return None
    from belljar.cli.run.workspace import settle

    return settle(jar, result, parsed)


def _keywords(request: CommandLineRequest, parsed: Parsed) -> dict[str, Any]:
    from belljar.cli.terminal.standard_input import give

    stdin = give() if request.takes_stdin else None
    return {**request.keywords(), "stdin": stdin, "explain_denials": parsed.flag("--explain-denials")}


def _stream(jar: Sandbox, request: CommandLineRequest, parsed: Parsed) -> tuple[RunResult, bool]:
    """Pass the output on as it arrives, then say what there is to say about the run."""
    from belljar.sandbox.record.events import Finished

    raw = parsed.flag("--raw")
    sinks = {"stdout": Sink(1, raw=raw), "stderr": Sink(2, raw=raw)}
    with jar.stream(
        **_keywords(request, parsed)
    ) as events:  # whoever reads the output may go: then the run ends, and that is recorded
        for event in events:
            if isinstance(event, Finished):
                _finish(list(sinks.values()), event.result, parsed, lambda result: _hints(result, request, parsed))
                return event.result, sinks["stdout"].in_a_line
            sinks[event.stream].write(event.data)
    raise InternalError("the run ended without a result")


def _hints(result: RunResult, request: CommandLineRequest, parsed: Parsed) -> list[str]:
    if result.ok or parsed.flag("--quiet"):
        return []
    from belljar.cli.run.hints import hints

    return hints(result, request, parsed)


def _finish(sinks: list[Sink], result: RunResult, parsed: Parsed, hints: Callable[[RunResult], Sequence[str]]) -> None:
    for sink in sinks:
        sink.finish()
    if _speaks_for_itself(result) and not parsed.flag("--explain-denials"):
        return
    from belljar.cli.run.outcome import report

    quiet, explained = parsed.flag("--quiet"), parsed.flag("--explain-denials")
    text = report(result, quiet=quiet, explained=explained, hints=hints(result))
    if text and break_line(sinks):
        text = f"\n{text}"
    sys.stderr.write(text)
    sys.stderr.flush()


def _speaks_for_itself(result: RunResult) -> bool:
    """Whether belljar has nothing to add."""
    remarkable = result.denials or result.truncated or result.fallback_from or result.container
    return result.ok and not remarkable and not result.enforcement.shortfalls()


def _collect(jar: Sandbox, request: CommandLineRequest, parsed: Parsed) -> tuple[RunResult, bool]:
    from belljar.sandbox.record.events import Finished

    with jar.stream(**_keywords(request, parsed)) as events:
        for event in events:
            if isinstance(event, Finished):
                return event.result, False
    raise InternalError("the run ended without a result")


def _print_json(result: RunResult, brought: Workspace | None) -> None:
    from belljar.cli.terminal.document import print_json

    print_json({**result.to_dict(), **(brought.to_dict() if brought else {})})
