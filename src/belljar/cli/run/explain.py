"""`belljar explain`: the plan of a run and how far its policy would hold, without running anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli import jar_options
from belljar.cli.jar_options import JAR, JSON
from belljar.cli.main import FAULT
from belljar.cli.parsing import CliCommand, Parsed
from belljar.cli.run.request import CODE, LANG, CommandLineRequest, of_code, of_command
from belljar.cli.terminal.safe_text import visible

if TYPE_CHECKING:
    from belljar.backends.contract import Clause, LaunchPlan
    from belljar.sandbox.run.sandbox import Sandbox


def run(parsed: Parsed) -> int:
    """Compile the plan and show it; 125 if the run would be refused."""
    jar_options.check(parsed)
    with jar_options.make_sandbox(parsed) as jar:
        plan = jar.plan(**_request(parsed, jar).keywords())
        refused = plan.report.refused_by(jar.policy)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"plan": plan, "refused_by": [clause.key for clause in refused]})
    else:
        sys.stdout.write(describe(plan, refused))
    return FAULT if refused else 0


def _request(parsed: Parsed, jar: Sandbox) -> CommandLineRequest:
    if parsed.words or parsed.text("-c") is not None:
        return of_code(parsed, jar)
    return of_command(parsed.after) if parsed.after else CommandLineRequest(code=b"")


def describe(plan: LaunchPlan, refused: tuple[Clause, ...]) -> str:
    """Return the plan as text: what is started, how each clause holds, and what that comes to."""
    from belljar.cli.terminal.table import aligned

    facts = [("backend", plan.backend), ("policy", plan.policy_digest), ("directory", plan.workdir)]
    facts += [("command", _shell(plan.argv))]
    facts += [("environment", _shell([f"{name}={value}" for name, value in sorted(plan.env.items())]))]
    if started_by := _started_by(plan):
        facts += [("started by", _shell(started_by))]
    clauses = [("clause", "status", "held by"), *(row for clause in plan.report.clauses for row in _rows(clause))]
    verdict = "Every clause of the policy that is not enforced is accepted by it."
    if refused:
        verdict = "This run would be refused: the policy does not accept less for " + _keys(refused) + "."
    elif not plan.report.shortfalls():
        verdict = "Every clause of the policy is enforced."
    unseen = f"Not recorded: {visible(plan.report.unseen)}.\n" if plan.report.unseen else ""
    return f"{aligned(facts)}\n{aligned(clauses)}\n{verdict}\n{unseen}"


def _started_by(plan: LaunchPlan) -> list[str]:
    """What makes the jar; of a container, without the text of the program that waits in it (`boot`, with --json)."""
    stage = plan.stage
    if "bwrap" in stage:
        return [stage["bwrap"], *stage["arguments"]]
    return [stage["program"], *("…" if word == stage["boot"] else word for word in stage["run"])] if stage else []


def _rows(clause: Clause) -> list[tuple[str, str, str]]:
    """One for what holds it, one for what is lost."""
    held = (clause.key, str(clause.status), visible(clause.by))
    return [held, ("", "", f"lost: {visible(clause.lost)}")] if clause.lost else [held]


def _keys(clauses: tuple[Clause, ...]) -> str:
    return ", ".join(clause.key for clause in clauses)


def _shell(words: list[str] | tuple[str, ...]) -> str:
    import shlex

    return visible(shlex.join(words))


COMMAND = CliCommand(
    "explain",
    "Show what a run would do, and how far each clause of its policy holds.",
    usage="explain [OPTIONS] [FILE|-|-c CODE [WORDS…]] [-- ARGS…|COMMAND…]",
    run=run,
    options=(CODE, LANG, *JAR, JSON),
    details="""
Nothing is started. Without FILE or CODE, what stands after `--` is a command, as for `belljar exec`. Each clause is
enforced, degraded (and what is lost) or unsupported. Exit code: 0 if the run would start, 125 if it would be refused.
""",
    examples=(
        ("explain", "the default policy, on this host"),
        ("explain --policy strict script.py", "for this run"),
        ("explain --workspace . --live -- make", "for a command that changes this directory itself"),
    ),
)
