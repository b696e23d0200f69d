"""A result for people at a terminal: the exit code, why it ended, what was refused and how to allow it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from belljar.cli.terminal.safe_text import visible, visible_lines
from belljar.cli.terminal.style import BOLD, DIM, RED, YELLOW, paint, supports_colour
from belljar.sandbox.record.result import Outcome

if TYPE_CHECKING:
    from belljar.sandbox.record.result import Denial, RunResult

_CODES = {Outcome.TIMEOUT: 124, Outcome.REFUSED: 125, Outcome.OOM: 137, Outcome.KILLED: 137}
_MOST_UNREACHED = 10
_WORDS = {
    Outcome.TIMEOUT: "out of time",
    Outcome.REFUSED: "refused",
    Outcome.OOM: "out of memory",
    Outcome.KILLED: "killed",
}


def exit_code(result: RunResult) -> int:
    """What belljar exits with after this run."""
    if result.outcome in _CODES or result.exit_code is not None or not result.signal:
        return step_exit_code(result.outcome, 125 if result.exit_code is None else result.exit_code)
    import signal

    return 128 + signal.Signals[result.signal]


def step_exit_code(outcome: Outcome, code: int) -> int:
    """The same, for what ended by no signal."""
    return _CODES.get(outcome, code & 0xFF)


def report(result: RunResult, *, quiet: bool, explained: bool, hints: Sequence[str] = ()) -> str:
    """Return what belljar writes to standard error after a run; empty if all went as it should."""
    colour = supports_colour(2)
    parts = [_why(result, colour=colour)]
    parts += [_denial(denial, result, colour=colour) for denial in result.denials]
    if result.egress:
        parts.append(_unreached(result, colour=colour))
    if explained and result.enforcement.unseen:
        parts.append(_unseen(result, colour=colour))
    if not quiet:
        parts += [_weaker(result, colour=colour), _truncated(result)]
        parts += [paint(f"belljar: hint: {visible(hint)}", DIM, on=colour) + "\n" for hint in hints]
    return "".join(parts)


def _why(result: RunResult, *, colour: bool) -> str:
    if result.outcome is Outcome.FAILED and result.signal:
        return f"{paint('belljar: crashed:', RED, on=colour)} the program was ended by {result.signal}\n"
    if result.outcome not in _WORDS:
        return ""
    label = paint(f"belljar: {_WORDS[result.outcome]}:", RED, on=colour)
    return f"{label} {visible_lines(result.reason or 'no reason is known')}\n"


def _denial(denial: Denial, result: RunResult, *, colour: bool) -> str:
    """Three lines: what was tried, which rule, the smallest change. The target is the guest's own text."""
    if denial.kind == "limit" and result.outcome in _WORDS:
        return f"  to allow: {visible(denial.allow)}\n"  # the line above has said the rest
    label = paint("belljar: denied:", BOLD, on=colour)
    times = f" ({denial.count} times)" if denial.count > 1 else ""
    return (
        f"{label} {visible(denial.target)}{times}\n"
        f"{_reason(denial)}"
        f"  rule:     {visible(denial.rule)} ({visible(denial.where)})\n"
        f"  to allow: {visible(denial.allow)}\n"
    )


def _reason(denial: Denial) -> str:
    if not denial.code:
        return ""
    from belljar.egress.decide.reasons import words

    return f"  reason:   {denial.code}: {visible(words(denial.code))}\n"


def _unreached(result: RunResult, *, colour: bool) -> str:
    """Hosts that the policy allows, and that could not be reached: no denial, so no change of the policy helps."""
    failed = {(event.host, event.port, event.detail): None for event in result.egress if event.reason == "upstream"}
    label = paint("belljar: not reached:", YELLOW, on=colour)
    lines = [f"{label} {visible(host)}:{port}: {visible(detail)}\n" for host, port, detail in failed]
    return "".join(lines[:_MOST_UNREACHED])


def _unseen(result: RunResult, *, colour: bool) -> str:
    """Asked for what was refused, on a backend that can't tell: silence would look like "nothing"."""
    label = paint("belljar: not recorded:", YELLOW, on=colour)
    return f"{label} {visible(result.enforcement.unseen)}\n"


def _weaker(result: RunResult, *, colour: bool) -> str:
    keys = ", ".join(dict.fromkeys(clause.key for clause in result.enforcement.shortfalls()))
    text = ""
    if keys and result.outcome is not Outcome.REFUSED:
        text = f"{paint('belljar: degraded:', YELLOW, on=colour)} {keys} (`belljar explain` says what is lost)\n"
    if result.fallback_from:
        names = ", ".join(result.fallback_from)
        text += (
            f"{paint('belljar: fallback:', YELLOW, on=colour)} ran on {result.backend}, {names} does not work here\n"
        )
    if result.container:
        text += f"belljar: kept: the container {result.container} (container.auto_remove is false)\n"
    return text


def _truncated(result: RunResult) -> str:
    return (
        "belljar: the output was cut: proc.output_mb\n"
        if result.truncated and result.outcome in ("ok", "failed")
        else ""
    )
