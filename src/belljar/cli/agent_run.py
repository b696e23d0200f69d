"""An agent's run, from the options to the exit code: what `agent` and `claude` share."""

from __future__ import annotations

import contextlib
import errno
import sys
from typing import Any

from belljar.agents import transcript
from belljar.agents.inside import Agent, Wanted, forget_home, prepare
from belljar.agents.project import project_directory
from belljar.agents.review import Review
from belljar.agents.shims import use_real_node
from belljar.agents.summary import as_lines, as_mapping
from belljar.audit import killswitch
from belljar.cli.agent_approval import NOT_ALL_APPLIED, Decided, Moves, ask, tell_decided
from belljar.cli.agent_options import applying
from belljar.cli.outcome import exit_code, report
from belljar.cli.parsing import Parsed
from belljar.cli.sink import Sink
from belljar.cli.stopping import Stopped, Stopping, ignore_further
from belljar.cli.style import is_terminal, supports_colour
from belljar.cli.terminal import visible
from belljar.cli.work_listing import listing
from belljar.cli.workspace import print_marked_diff, write_diff
from belljar.errors import BelljarError, InternalError
from belljar.sandbox.events import Finished
from belljar.sandbox.result import Outcome, RunResult
from belljar.sandbox.sandbox import Sandbox

_GONE = {errno.EIO: 128 + 1, errno.EPIPE: 128 + 13}
"""What a terminal that was closed, and a pipe that nobody reads, answer to a write; and what the shell calls that."""


def run_agent(parsed: Parsed, wanted: Wanted, *, converses: bool) -> int:
    """Make the jar, run the agent in it, and settle what comes back; returns the exit code.

    Args:
        parsed: the options.
        wanted: the same, as the agents' room wants them.
        converses: whether the program talks with a person, if there is one at a terminal.

    """
    from belljar.cli.launching import start_launcher

    if parsed.flag("--reset"):
        forgotten = forget_home(wanted)
        if len(wanted.words) == 1:
            sys.stderr.write(
                "belljar: its home is forgotten\n" if forgotten else "belljar: there was nothing to forget\n"
            )
            return 0
    start_launcher(wanted.backend)
    use_real_node(project_directory(wanted.project))
    agent = prepare(wanted)
    if not parsed.flag("--quiet"):
        sys.stderr.write("".join(f"belljar: {visible(note)}\n" for note in agent.notes))
    at_terminal = is_terminal(0) and is_terminal(1) and not parsed.flag("--json")
    stopping = Stopping()
    with stopping.heard(), agent.opened() as jar:
        try:
            result = (_converse if converses and at_terminal else _run)(jar, agent, parsed, stopping)
            return _settle(jar, agent, result, parsed)
        except Stopped as stop:
            return _interrupted(jar, agent, str(stop), stop.exit_code)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return _interrupted(jar, agent, "nobody reads its output any more", _GONE[error.errno])


def _run(jar: Sandbox, agent: Agent, parsed: Parsed, stopping: Stopping) -> RunResult:
    """Pass its output on as it arrives; a terminal's input stays for the questions afterwards."""
    from belljar.cli.standard_input import give

    sinks = {"stdout": Sink(1, raw=False), "stderr": Sink(2, raw=False)}
    given = None if is_terminal(0) else give()
    with stopping.following(jar.stream(argv=agent.argv, name=agent.title, stdin=given)) as events:
        for event in events:
            if isinstance(event, Finished):
                for sink in sinks.values():
                    sink.finish()
                return event.result
            if not parsed.flag("--json"):
                sinks[event.stream].write(event.data)
    raise InternalError("the run ended without a result")


def _converse(jar: Sandbox, agent: Agent, _parsed: Parsed, stopping: Stopping) -> RunResult:
    from belljar.cli.conversation import converse

    return converse(jar, agent.argv, stopping, name=agent.title)


def _interrupted(jar: Sandbox, agent: Agent, why: str, code: int) -> int:
    """Whoever stops it ends the agent, not its work: that is kept."""
    ignore_further()
    jar.kill(why)
    if jar.last_run:
        with contextlib.suppress(OSError):  # the terminal may be what has gone
            _account(jar, agent, jar.last_run)
    _keep_home(jar, agent, finished=False)
    with Review(jar, agent) as review:
        review.keep({**_about(agent), "outcome": "stopped", "reason": why})
        if review.work is not None:
            with contextlib.suppress(OSError):  # the terminal may be what has gone
                sys.stderr.write(f"belljar: {why}\n")
                tell_decided(review, Decided(), quiet=False)
    return code


def _about(agent: Agent) -> dict[str, Any]:
    return {"agent": agent.name, "command": list(agent.argv)}


def _keep_home(jar: Sandbox, agent: Agent, *, finished: bool) -> None:
    """Keep what the agent remembers for the next call, and say what can't be."""
    for told in agent.keep_home(jar, finished=finished):
        with contextlib.suppress(OSError):  # the terminal may be what has gone
            sys.stderr.write(f"belljar: {told}\n")


def _settle(jar: Sandbox, agent: Agent, result: RunResult, parsed: Parsed) -> int:
    """Tell what happened, and bring back what is wanted."""
    quiet, as_json, live = parsed.flag("--quiet"), parsed.flag("--json"), parsed.flag("--live")
    did = _account(jar, agent, result.run_id)
    if result.outcome is not Outcome.KILLED:
        _keep_home(jar, agent, finished=result.outcome in (Outcome.OK, Outcome.FAILED))
    with Review(jar, agent) as review:
        shown = None if live else review
        if not live:  # before anything is shown or asked: a terminal may close
            review.keep({**_about(agent), "outcome": str(result.outcome), "reason": result.reason}, result.run_id)
        if not as_json:
            sys.stderr.write(report(result, quiet=quiet, explained=True))
            if not quiet:
                lines = [
                    f"belljar: {visible(line)}"
                    for line in as_lines(result, shown, did, project=parsed.text("--project") or "")
                ]
                if shown is not None:
                    lines += listing(review.shown, colour=supports_colour(2), only_plain=True)
                sys.stderr.write("".join(f"{line}\n" for line in lines))
            if parsed.flag("--diff"):
                print_marked_diff(review.diff())
        if (file := parsed.text("--diff-file")) is not None:
            write_diff(file, review.diff())
        decided = Decided() if live else _decide(review, result, parsed)
        if as_json:
            from belljar.cli.document import print_json

            diff = {"diff": review.diff()} if parsed.flag("--diff") else {}
            kept = None if review.work is None else {"run": review.work.run, "directory": review.work.path}
            told = {**as_mapping(result, shown), **did.to_dict(), **decided.to_dict(), "kept": kept, **diff}
            print_json({**result.to_dict(), **told})
        else:
            tell_decided(review, decided, quiet=quiet)
    if not result.ok:
        return exit_code(result)
    return NOT_ALL_APPLIED if decided.incomplete else 0


def _account(jar: Sandbox, agent: Agent, run_id: str) -> transcript.Did:
    """Read and keep what the agent says it did. That it can't be kept is told, and changes nothing else."""
    did = transcript.read(jar, run_id, agent.policy)
    try:
        transcript.keep(did, run_id, agent=agent.name, project=agent.project.directory)
    except (BelljarError, OSError) as error:
        sys.stderr.write(f"belljar: what the agent did could not be recorded: {visible(str(error))}\n")
    return did


def _decide(review: Review, result: RunResult, parsed: Parsed) -> Decided:
    """What comes back: as `--apply` says, as a person at the terminal says, or nothing."""
    how = applying(parsed)
    if review.work is None:
        return Decided()
    if why := _never(result):
        review.work.set_state("refused", why=why)
        return Decided()
    person = is_terminal(0) and is_terminal(2) and not parsed.flag("--json")
    if how == "all":
        protected = [change.path for change in review.protected] if parsed.flag("--apply-protected") else []
        return Decided.of(
            review,
            None,
            protected=protected,
            ignored=parsed.flag("--apply-ignored"),
            moves=Moves(protected=parsed.flag("--apply-protected")),
            all_of_it=True,
        )
    if how != "none" and person:
        return ask(review)
    return Decided()


def _never(result: RunResult) -> str:
    """Why nothing of a run is applied, whatever the options say: somebody, or the policy, ended it."""
    if result.outcome in (Outcome.KILLED, Outcome.REFUSED) or "quarantined" in result.reason:
        return result.reason or str(result.outcome)
    return killswitch.why()
