"""One run seen from outside: reads its output as it comes, holds the output limit, and makes the result."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

from belljar.backends.contract import LOOK_UP_SECONDS, Clause, End, EnforcementReport, LaunchPlan, Process
from belljar.policy.models import Policy
from belljar.sandbox.record import recording
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Artifact, Denial, Fault, Outcome, RunResult, Usage, fault_of

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Literal

    from belljar.redaction import Redactor
    from belljar.redaction.stream import ByteStreamRedactor
    from belljar.sandbox.network.egress import Traffic

_CHUNK = 1 << 16


class Watch:
    """Reads a process to its end, and keeps what it wrote, up to the limit."""

    def __init__(self, process: Process, limit: int, redactor: Redactor | None = None) -> None:
        self.process = process
        self.limit = limit
        self._taken = 0
        self._redacting: dict[Literal["stdout", "stderr"], ByteStreamRedactor] = {}
        if redactor is not None:
            self._redacting = {"stdout": redactor.byte_stream(), "stderr": redactor.byte_stream()}
        self.captured = {"stdout": bytearray(), "stderr": bytearray()}
        self.truncated = False

    def events(self) -> Iterator[Output]:
        """Output as it is produced, until every process is gone and every byte is read."""
        streams: dict[int, Literal["stdout", "stderr"]] = {self.process.stdout: "stdout", self.process.stderr: "stderr"}
        poll = select.poll()
        for descriptor in streams:
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        end = self.process.fileno()
        poll.register(end, select.POLLIN)
        patience = 1000 * LOOK_UP_SECONDS
        while (ready := poll.poll(patience)) or patience:
            for descriptor, _events in ready:
                if descriptor == end:
                    # Every process is gone, so all that was written is in the pipes. They need not be closed: the
                    # code may have handed them to another run of the Sandbox.
                    poll.unregister(end)
                    patience = 0
                elif (data := _read(descriptor)) is None:
                    continue
                elif not data:
                    poll.unregister(descriptor)
                    del streams[descriptor]
                elif kept := self._keep(streams[descriptor], data):
                    yield Output(streams[descriptor], kept)
            if patience == 0 and (self.truncated or not streams):
                break
        if self._redacting:
            yield from self._held_back()

    def _held_back(self) -> Iterator[Output]:
        """What could have been the beginning of something that must not be told."""
        for name in self._redacting:
            if rest := self._redacting[name].finish():
                self.captured[name] += rest
                yield Output(name, rest)

    def _keep(self, stream: Literal["stdout", "stderr"], data: bytes) -> bytes:
        room = self.limit - self._taken
        if len(data) > room:
            data = data[: max(0, room)]
            if not self.truncated:
                self.truncated = True
                self.process.kill("output")
        self._taken += len(data)
        if stream in self._redacting:
            data = self._redacting[stream].feed(data)
        self.captured[stream] += data
        return data


def _read(descriptor: int) -> bytes | None:
    """What is there to read; nothing at all is None, the end is empty."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def make_result(
    policy: Policy,
    plan: LaunchPlan,
    watch: Watch,
    end: End,
    *,
    run_id: str,
    report: EnforcementReport,
    duration: float,
    artifacts: tuple[Artifact, ...],
    fallback_from: tuple[str, ...],
    traffic: Traffic | None = None,
    quarantined: str = "",
) -> RunResult:
    """Make the result of a run that has ended. Nothing else happens: the same arguments make the same result."""
    outcome = _outcome(end)
    printed = {name: data.decode(errors="replace") for name, data in watch.captured.items()}
    if outcome is Outcome.FAILED and not end.signal:
        from belljar.sandbox.run.full_limits import spoken_of

        reason = spoken_of(policy, printed["stdout"], printed["stderr"])
    else:
        reason = _reason(policy, outcome, end)
    return RunResult(
        run_id=run_id,
        outcome=outcome,
        exit_code=end.exit_code if end.started else None,
        signal=_signal_name(end.signal) if end.started and end.signal else None,
        stdout=printed["stdout"],
        stderr=printed["stderr"],
        truncated=watch.truncated,
        duration=duration,
        usage=Usage(end.cpu_seconds, end.peak_memory_bytes, end.processes, end.bytes_read, end.bytes_written),
        denials=_denials(policy, end) + (traffic.denials if traffic else ()),
        artifacts=artifacts,
        policy_digest=plan.policy_digest,
        enforcement=report,
        backend=plan.backend,
        reason=reason + quarantined,
        fallback_from=fallback_from,
        image=plan.image,
        container=end.kept,
        egress=traffic.records if traffic else (),
        fault=fault_of(outcome, end.ended_by),
    )


def _signal_name(number: int) -> str | None:
    import signal

    return signal.Signals(number).name if number in set(signal.Signals) else None


def _denials(policy: Policy, end: End) -> tuple[Denial, ...]:
    if not (end.observations or end.ended_by or end.pids_refused or end.oom_kills or end.signal):
        return ()
    from belljar.sandbox.run.denials import explain

    return explain(policy, end)


def _outcome(end: End) -> Outcome:
    if end.ended_by:
        by_limit = {"timeout": Outcome.TIMEOUT, "oom": Outcome.OOM, "canary": Outcome.REFUSED}
        return by_limit.get(end.ended_by, Outcome.KILLED)
    if end.oom_kills and end.exit_code != 0:
        return Outcome.OOM
    return Outcome.OK if end.exit_code == 0 else Outcome.FAILED


def _reason(policy: Policy, outcome: Outcome, end: End) -> str:
    if outcome in (Outcome.OK, Outcome.FAILED):
        return ""
    from belljar.policy.keys.units import show_size

    if outcome is Outcome.TIMEOUT:
        return f"it ran longer than {policy.proc.timeout_seconds:g} s ({_where(policy, 'proc.timeout_ms')})"
    if outcome is Outcome.OOM:
        return f"it used more than {show_size(policy.proc.mem_bytes)} of memory ({_where(policy, 'proc.mem_mb')})"
    if outcome is Outcome.REFUSED:
        return f"the jar does not hold, so the code was not started: {'; '.join(end.problems)}"
    if end.ended_by == "output":
        return (
            f"it wrote more than {show_size(policy.proc.output_bytes)} of output ({_where(policy, 'proc.output_mb')})"
        )
    words = {
        "killed": "it was killed by the caller",
        "unrecorded": "what the egress proxy decided could not be written to the audit log",
        "canary-token": "it sent a planted canary token to the network (net.canary_files)",
        "container": "its container's first process was killed: by the code itself, or from outside",
        "pid1": "the jar's first process was killed: by the code itself, or from outside",
        "forged": "the jar sent a message that only belljar's own program may send",
        **recording.ENDINGS,
    }
    return words.get(end.ended_by, f"it was ended: {end.ended_by}")


def _where(policy: Policy, key: str) -> str:
    return f"{key}, {policy.origin(key) or 'default'}"


def refused_result(
    policy: Policy, plan: LaunchPlan, run_id: str, report: EnforcementReport, clauses: tuple[Clause, ...]
) -> RunResult:
    """The run that never started, because the policy can't be enforced here and does not accept that."""
    accepted = () if isinstance(policy.on_degraded, str) else policy.on_degraded
    lines = [f"{clause.key} is {clause.status}: {clause.lost} (by {clause.by})" for clause in clauses]
    keys = ", ".join(dict.fromkeys((*accepted, *(clause.key for clause in clauses))))
    reason = (
        "the policy can't be enforced here, and does not accept less:\n  "
        + "\n  ".join(lines)
        + f"\nto accept it, add to the policy: on_degraded: [{keys}], or: --set 'on_degraded=[{keys}]'"
    )
    if plan.backend == "unconfined":
        reason = "the backend `unconfined` enforces next to nothing\nto accept that: --policy unrestricted"
    result = RunResult(
        run_id=run_id,
        outcome=Outcome.REFUSED,
        exit_code=None,
        signal=None,
        stdout="",
        stderr="",
        truncated=False,
        duration=0.0,
        usage=Usage(),
        denials=(),
        artifacts=(),
        policy_digest=plan.policy_digest,
        enforcement=report,
        backend=plan.backend,
        reason=reason,
        image=plan.image,
        fault=Fault.POLICY,
    )
    return recording.finish(result, policy)


__all__ = ["Watch", "make_result", "refused_result"]
