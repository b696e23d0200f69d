"""What the audit log gets of a run: before it starts, and when it has ended."""

from __future__ import annotations

import atexit
import os
import time

from belljar._startup import json_text
from belljar.audit import killswitch, stored
from belljar.audit.log import audit_log
from belljar.backends.contract import EnforcementReport, LaunchPlan
from belljar.errors import AuditError, BelljarError
from belljar.policy.mapping import to_mapping
from belljar.policy.models import Policy
from belljar.sandbox.record import redacting
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.inputs import MOST_KEPT
from belljar.sandbox.record.result import Fault, Outcome, RunResult

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

    from belljar.sandbox.record.inputs import Fed, Input
    from belljar.sandbox.session.step import StepResult

    Captured = dict[str, bytearray]

_MOST_WORDS = 50
"""Of a command that are in the log."""
_LONGEST_NAME = 255
_INTERPRETERS = ("python", "node", "bash", "sh")
_MOST_TOLD = 100
"""Denials and artifacts of a run that are in the log; how many there were is, too."""
_LONGEST_NAME, _LOOKED_AT = 500, 2000
"""Characters of a name that the code chose, such as a path: in the log, and looked at for secrets before it is cut."""
_POLICIES: set[tuple[str, str]] = set()
_LONGEST_REASON = 2000
PATIENCE_SECONDS = 2.0
"""How long the end of a run that nobody waits for waits for others who write."""
_OPEN: dict[str, tuple[float, str, str]] = {}
"""The runs of this process whose end is not in the log yet: since when, on which backend, under which policy."""
_ENDING: set[str] = set()
"""Those whose end a thread is writing now."""
_UNRECORDED: dict[str, str] = {}
"""Those whose end could not be recorded, and why."""


class Begun:
    """What of a run's records is the same for every run of its plan."""

    __slots__ = ("made", "plan", "policy", "resolved")

    def __init__(self, policy: Policy, plan: LaunchPlan, run_id: str = "", given: tuple[str, ...] = ()) -> None:
        """`given` are the words of the plan's command that are the caller's, and may hold anything."""
        self.resolved = policy
        text = json_text.dumps(to_mapping(policy), sort_keys=True)
        self.policy = "sha256:" + stored.store(stored.policies(), text.encode("ascii"), ".json")
        words = set(given)
        argv = [redacting.for_log(word, run_id, policy) if word in words else word for word in plan.argv]
        self.plan = "sha256:" + stored.store(stored.plans(), _plan_text(plan, argv, policy), ".json")
        self.made = json_text.dumps({"backend": plan.backend, "policy": self.policy})[1:-1]
        """Members of a record, as JSON: what is the same in every run is written as such once."""


def begin(run_id: str, kind: str, same: Begun, plan: LaunchPlan, *, starts: bool = True, **details: Any) -> None:
    """A run is about to start. Before anything of it happens.

    `starts` is false if it is refused, or if something has to be made for it first: then `started` follows.

    Raises:
        KillSwitchError: nothing may run.
        AuditError: it can't be recorded, so it must not start.
    """
    killswitch.check()
    for name in ("command", "arguments", "script"):
        if name in details:
            details[name] = redacting.for_log(details[name], run_id, same.resolved)
    # A run's name is hexadecimal, and a kind is a word of ours: nobody has to write them as JSON, in every run.
    told = [
        f'"event":"created","run":"{run_id}","kind":"{kind}",{same.made},"owner":{os.getpid()}{_more(details)}',
        f'"event":"plan","run":"{run_id}","plan":"{same.plan}"',
    ]
    if starts:
        told.append(f'"event":"started","run":"{run_id}"')
    log = audit_log()
    known = log.path, same.policy
    if known not in _POLICIES:
        told.insert(0, f'"event":"policy","policy":"{same.policy}"')
    _OPEN[run_id] = time.monotonic(), plan.backend, same.policy
    try:
        log.append(*told)
    except AuditError:
        del _OPEN[run_id]
        raise
    _POLICIES.add(known)


def _more(members: dict[str, Any]) -> str:
    """JSON of members that follow others."""
    return f",{json_text.dumps(members)[1:-1]}" if members else ""


def started(run_id: str) -> None:
    """What a run needs is there, and its code is about to start. Raises KillSwitchError, AuditError."""
    killswitch.check()
    audit_log().append(f'"event":"started","run":"{run_id}"')


def code_details(
    code: bytes | None,
    argv: tuple[str, ...],
    language: str,
    arguments: tuple[str, ...],
    name: str = "",
    *,
    explains: bool = False,
) -> dict[str, Any]:
    """What is run, by digest: code may hold anything, and the log goes to others.

    So may its arguments: the log has the first of them, with tokens, and `given` is where all are, as they were.
    """
    told: dict[str, Any] = {"language": language if code is not None else ""}
    if code is not None:
        told |= {"code": stored.keep_input(code), "code_bytes": len(code)}
    if argv or arguments or name or explains:
        given = {"argv": list(argv), "arguments": list(arguments), "name": name, "explain_denials": explains}
        told["given"] = stored.keep_input(json_text.dumps(given).encode("ascii"))
    if shown := script_name(name, argv):
        told["script"] = shown
    if argv:
        told["command"] = list(argv[:_MOST_WORDS])
    if arguments:
        told["arguments"] = list(arguments[:_MOST_WORDS])
    return told


def script_name(name: str, argv: tuple[str, ...]) -> str:
    """Return the name to list a run by: that of its script, else that of its program; empty if it has neither."""
    if not name and argv:
        program = os.path.basename(argv[0])
        words = [word for word in argv[1:] if not word.startswith("-")]
        runs_a_script = program.startswith(_INTERPRETERS) and words and not {"-c", "-m", "-e"}.intersection(argv)
        name = os.path.basename(words[0]) if runs_a_script else program
    return name[:_LONGEST_NAME]


def input_details(stdin: Input, files: int) -> dict[str, Any]:
    """What it is given beside code: standard input by digest, or that it has some; how many files were written."""
    told: dict[str, Any] = {"files": files} if files else {}
    if isinstance(stdin, bytes | str):
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        told["stdin_bytes"] = len(data)
        told["stdin"] = stored.keep_input(data) if len(data) <= MOST_KEPT else True
    elif stdin is not None:
        told["stdin"] = True
    return told


def fed(run_id: str, stdin: Fed, *, patience: float | None = None) -> None:
    """What went into a pipe while the run ran. Raises AuditError."""
    if stdin.whole:
        data = bytes(stdin.copy)
        told = {"event": "input", "run": run_id, "stdin": stored.keep_input(data), "stdin_bytes": len(data)}
        audit_log().append(told, patience=patience)


def finish(
    result: RunResult,
    policy: Policy,
    captured: Captured | None = None,
    *,
    start: float | None = None,
    canaries: tuple[str, ...] | None = None,
    egress: dict[str, int] | None = None,
    patience: float | None = None,
) -> RunResult:
    """A run has ended, and its result is about to be returned. Raises AuditError.

    `start` is how long it took, from the call until the code was let go; `canaries` what they found, if they were
    tried; `egress` how many decisions its network took; `patience` that of `AuditLog.append`.
    """
    run = result.run_id
    told = _of_canaries(run, canaries, policy)
    more: dict[str, Any] = {}
    if result.denials or result.artifacts or result.truncated or result.duration > 1 or not result.ok:
        told += _on_the_way(result, policy)
    if captured and (captured["stdout"] or captured["stderr"]):
        more |= _digests(captured)
        if output := _stored(run, 0, captured, policy, ok=result.ok):
            more["output"] = output
    if start is not None:
        more["start_seconds"] = round(start, 6)
    if egress is not None:
        more["egress"] = egress
    _end(run, *told, _finished(result, policy) + _more(more), patience=patience)
    redacting.forget(run)
    return result


def _on_the_way(result: RunResult, policy: Policy) -> list[dict[str, Any] | str]:
    """What happened before its end."""
    run = result.run_id

    def clean(value: Any) -> Any:
        return redacting.for_log(value, run, policy)

    told: list[dict[str, Any] | str] = [
        {
            "event": "denied",
            "run": run,
            "kind": denial.kind,
            "target": _short(clean(denial.target[:_LOOKED_AT])),
            "rule": denial.rule,
            "where": denial.where,
            "count": denial.count,
        }
        for denial in result.denials[:_MOST_TOLD]
        if denial.kind != "network"  # those were told when they happened
    ]
    if result.outcome in (Outcome.TIMEOUT, Outcome.OOM) or result.truncated:
        told.append({"event": "limit", "run": run, "reason": clean(result.reason)})
    elif result.outcome is Outcome.KILLED:
        told.append({"event": "killed", "run": run, "reason": clean(result.reason)})
    if result.artifacts:
        paths = clean([artifact.path[:_LOOKED_AT] for artifact in result.artifacts[:_MOST_TOLD]])
        told.append(
            {"event": "artifacts", "run": run, "paths": list(map(_short, paths)), "count": len(result.artifacts)}
        )
    if result.duration > 1 and (samples := CONTROL.samples(run)) is not None:
        told.append({"event": "usage", "run": run, "every": samples.every, "samples": list(samples.taken)})
    return told


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _of_canaries(run: str, found: tuple[str, ...] | None, policy: Policy) -> list[dict[str, Any] | str]:
    """Whether they held, if they were tried."""
    if found is None:
        return []
    if not found:
        return [f'"event":"canaries","run":"{run}","held":true']
    problems = redacting.for_log(list(found[:_MOST_TOLD]), run, policy)
    return [{"event": "canaries", "run": run, "held": False, "problems": problems}]


def _digests(captured: Captured) -> dict[str, str]:
    """Of what was printed, as the caller gets it: so that a replay can tell whether it is the same."""
    return {f"{stream}_digest": stored.secret_digest(bytes(data)) for stream, data in captured.items() if data}


def _end(run_id: str, *told: dict[str, Any] | str, patience: float | None = None) -> None:
    """Write the end of a run. No other end of it is written then. Raises AuditError."""
    _ENDING.add(run_id)
    begun = _OPEN.pop(run_id, None)
    try:
        audit_log().append(*told, patience=patience)
    except BaseException:
        if begun is not None:
            _OPEN[run_id] = begun
        raise
    finally:
        _ENDING.discard(run_id)


def broke_off(run_id: str, error: BaseException, policy: Policy) -> None:
    """A run is over because of this, and has no result. If its end is in the log, nothing happens.

    Raises:
        AuditError: it can't be recorded, and whoever was there is gone without an error: somebody has to hear of it.
    """
    if run_id not in _OPEN:
        return
    try:
        if isinstance(error, Exception):
            lost(run_id, str(error), policy, fault_of_error(error))
        else:
            _killed(run_id, ENDINGS[given_up_for(error)])
    except AuditError as unwritten:
        _OPEN.pop(run_id, None)
        _UNRECORDED[run_id] = unwritten.message
        if isinstance(error, GeneratorExit):
            raise
        error.add_note(f"the end of the run {run_id} is not in the audit log: {unwritten.message}")


ENDINGS = {
    "abandoned": "nobody waited for it any more, or its Sandbox closed",
    "interrupted": "whoever waited for it was interrupted",
    "ended": "the process that ran it ended",
}
"""Why a run was ended for which nobody waits, in words."""


def given_up_for(error: BaseException) -> str:
    """What of that it is."""
    if isinstance(error, GeneratorExit):
        return "abandoned"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "ended"


def _killed(run_id: str, reason: str) -> None:
    """It was ended, and nobody knows what it had used by then."""
    since, backend, policy = _OPEN[run_id]
    _end(
        run_id,
        {"event": "killed", "run": run_id, "reason": reason},
        {
            "event": "finished",
            "run": run_id,
            "outcome": str(Outcome.KILLED),
            "fault": str(Fault.NONE),
            "reason": reason,
            "duration": round(time.monotonic() - since, 6),
            "backend": backend,
            "policy": policy,
        },
        patience=PATIENCE_SECONDS,
    )


def _end_all() -> None:
    """The process ends, and with it what it runs: a stream that was left open, a session that nobody closed.

    What has ended before, and could not be recorded then, may be now.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _ENDING and time.monotonic() < deadline:  # a daemon thread that writes would not live to finish
        time.sleep(0.005)
    for run_id in list(_OPEN):
        try:
            _killed(run_id, ENDINGS["ended"])
        except KeyError:  # another thread had its end meanwhile
            continue
        except AuditError as error:
            os.write(2, f"belljar: the end of the run {run_id} is not in the audit log: {error}\n".encode())
    ends = [
        {
            "event": "lost",
            "run": run_id,
            "fault": str(Fault.INFRA),
            "reason": f"its end could not be recorded when it came: {why}",
        }
        for run_id, why in _UNRECORDED.items()
    ]
    if ends:
        try:
            audit_log().append(*ends, patience=PATIENCE_SECONDS)
        except AuditError:  # which was told when it happened
            pass


def _forget_all() -> None:
    """In a forked process: those are the parent's."""
    _OPEN.clear()
    _ENDING.clear()
    _UNRECORDED.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)


def _stored(run_id: str, part: int, captured: Captured, policy: Policy, *, ok: bool) -> dict[str, Any] | None:
    """What was printed, stored, if that is wanted. The end of a run's name is a random number: it decides."""
    ratio = policy.logging.sample_ratio
    if not ratio or not (captured["stdout"] or captured["stderr"]):
        return None
    whole = int(run_id[-8:], 16) < ratio * (1 << 32)
    if ok and not whole:
        return None
    from belljar.sandbox.record import storing

    return storing.keep(run_id, part, captured, policy, whole=whole)


def _finished(result: RunResult, policy: Policy) -> str:
    """The members of the record of its end, as JSON: one text with holes, in every run."""
    usage = result.usage
    numbers = [
        result.exit_code,
        round(result.duration, 6),
        round(usage.cpu_seconds, 6),
        usage.peak_memory_bytes,
        usage.processes,
        usage.bytes_read,
        usage.bytes_written,
    ]
    code, duration, cpu, memory, processes, read, written = ["null" if one is None else repr(one) for one in numbers]
    signal = f'"{result.signal}"' if result.signal else "null"
    reason = json_text.dumps(redacting.for_log(result.reason, result.run_id, policy)) if result.reason else '""'
    return (
        f'"event":"{"refused" if result.outcome is Outcome.REFUSED else "finished"}","run":"{result.run_id}",'
        f'"outcome":"{result.outcome.value}","fault":"{result.fault.value}","exit_code":{code},"signal":{signal},"reason":{reason},'
        f'"duration":{duration},"cpu_seconds":{cpu},"peak_memory_bytes":{memory},"processes":{processes},'
        f'"bytes_read":{read},"bytes_written":{written},'
        f'"stdout_bytes":{len(result.stdout)},"stderr_bytes":{len(result.stderr)},'
        f'"truncated":{"true" if result.truncated else "false"},"denials":{len(result.denials)},'
        f"{_of_plan(result)}"
    )


_OF_PLAN: list[tuple[EnforcementReport, tuple[str, str, str], str]] = []
"""What the last run had, which mostly the next one has too, and the text that came of it."""


def _of_plan(result: RunResult) -> str:
    """Members that are the same for all runs of a pool. A report has dozens of clauses to look at."""
    report, plan = result.enforcement, (result.backend, result.policy_digest, result.image)
    for known, same, text in _OF_PLAN:
        if known is report and same == plan:
            return text
    text = json_text.dumps(
        {
            "backend": result.backend,
            "policy": result.policy_digest,
            "image": result.image,
            "weaker": [clause.key for clause in report.shortfalls()],
        }
    )[1:-1]
    _OF_PLAN[:] = [(report, plan, text)]
    return text


def step(run_id: str, session: str, number: int, code: bytes) -> None:
    """A step of a session is about to start. Raises KillSwitchError, AuditError."""
    killswitch.check()
    told = {"event": "step", "run": run_id, "session": session, "step": number, "code": stored.keep_input(code)}
    audit_log().append({**told, "code_bytes": len(code)})


def step_ended(run_id: str, result: StepResult, policy: Policy, captured: Captured) -> None:
    """It has ended, and its result is about to be returned. Raises AuditError."""
    output = _stored(run_id, result.step, captured, policy, ok=result.ok)
    audit_log().append(
        {
            "event": "stepped",
            "run": run_id,
            "session": result.session_id,
            "step": result.step,
            "outcome": str(result.outcome),
            "fault": str(result.fault),
            "reason": result.reason,
            "error": result.error.type if result.error else None,
            "duration": round(result.duration, 6),
            "stdout_bytes": len(result.stdout),
            "stderr_bytes": len(result.stderr),
            "shown": len(result.results),
            "state_lost": result.state_lost,
            **({"output": output} if output else {}),
        }
    )


def files(event: str, *, run: str = "", session: str = "", **details: Any) -> None:
    """Files of a run, or of a session, are about to be written somewhere, or have been. Raises AuditError."""
    whose = {name: value for name, value in (("run", run), ("session", session)) if value}
    audit_log().append({"event": event, **whose, **details})


def fault_of_error(error: BaseException) -> str:
    """Return the class of the cause of an exception that ended a run: what is not belljar's own error is `infra`."""
    return error.fault if isinstance(error, BelljarError) else str(Fault.INFRA)


def lost(run_id: str, reason: str, policy: Policy, fault: str) -> None:
    """A jar broke, or could not be made. The reason may have words of the code's in it. Raises AuditError."""
    told = redacting.for_log(reason, run_id, policy)[:_LONGEST_REASON]
    _end(run_id, {"event": "lost", "run": run_id, "fault": fault, "reason": told}, patience=PATIENCE_SECONDS)
    redacting.forget(run_id)


def _plan_text(plan: LaunchPlan, argv: list[str], policy: Policy) -> bytes:
    """What of a plan is stored: all but the values that come from the caller's environment. They may be anything.

    So may those of the policy's: its own text has them, which nobody needs to read to see what was done.
    """
    clauses = [[clause.key, str(clause.status), clause.by, clause.lost] for clause in plan.report.clauses]
    hidden = dict.fromkeys(policy.env.pass_, "(passed on)")
    if redacting.wanted(policy, "log"):
        hidden |= dict.fromkeys(policy.env.set, "(set by the policy)")
    told = {
        "backend": plan.backend,
        "argv": argv,
        "env": {name: hidden.get(name, value) for name, value in plan.env.items()},
        "workdir": plan.workdir,
        "limits": dict(plan.limits),
        "image": plan.image,
        "enforcement": clauses,
    }
    return json_text.dumps(told, sort_keys=True).encode("ascii")
