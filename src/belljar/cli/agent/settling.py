"""After an agent's run: what it did, what comes back, and the exit code.

Imported while the jar is made and the agent starts: nothing before that needs it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from belljar.audit import killswitch
from belljar.cli.agent.approval import NOT_ALL_APPLIED, Decided, Moves, ask, tell_decided
from belljar.cli.agent.options import applying
from belljar.cli.agent.work_listing import listing
from belljar.cli.parsing import Parsed
from belljar.cli.run.outcome import exit_code, report
from belljar.cli.run.workspace import print_marked_diff, write_diff
from belljar.cli.terminal.safe_text import visible
from belljar.cli.terminal.stopping import ignore_further
from belljar.cli.terminal.style import is_terminal, supports_colour
from belljar.coding_agents import transcript
from belljar.coding_agents.inside import Agent
from belljar.coding_agents.review import Review
from belljar.coding_agents.summary import as_lines, as_mapping
from belljar.errors import BelljarError
from belljar.sandbox.record.result import Outcome, RunResult
from belljar.sandbox.run.sandbox import Sandbox


def interrupted(jar: Sandbox, agent: Agent, why: str, code: int) -> int:
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


def settle(jar: Sandbox, agent: Agent, result: RunResult, parsed: Parsed) -> int:
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
            from belljar.cli.terminal.document import print_json

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
