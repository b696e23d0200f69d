"""One run seen from outside: reads its output as it comes, holds the output limit, and makes the result."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator

from belljar.backends.contract import LOOK_UP_SECONDS, Clause, End, EnforcementReport, LaunchPlan, Process
from belljar.errors import SandboxUnavailableError
from belljar.policy.models import Policy
from belljar.sandbox import recording
from belljar.sandbox.events import Finished, Output
from belljar.sandbox.result import Artifact, Denial, Outcome, RunResult, Usage

TYPE_CHECKING = False  # see policy/records.py
if TYPE_CHECKING:
    from typing import Literal

    from belljar.audit.redaction import Redactor
    from belljar.audit.redaction.stream import ByteStreamRedactor
    from belljar.sandbox.egress import Traffic
    from belljar.sandbox.stream import Handle

_CHUNK = 1 << 16
GIVEN_UP = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""What comes when nobody waits for a run any more."""
_LAST_SECONDS = 5.0
"""How long a run that was given up may take to end before nobody listens for it any more."""
_CANARIES = ("canary", "canary-token")
"""Why a run was ended, or not started: what must not be possible was, or it sent what it must not."""


def new_run_id() -> str:
    """Sortable by time, unguessable, short enough to type."""
    return f"{int(time.time() * 1000):012x}-{os.urandom(4).hex()}"


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
    started: float,
    artifacts: tuple[Artifact, ...],
    fallback_from: tuple[str, ...],
    traffic: Traffic | None = None,
    handle: Handle | None = None,
    patience: float | None = None,
) -> RunResult:
    """What the run came to. Raises SandboxUnavailableError when the jar broke before the code could start."""
    if handle is not None:
        handle.over = True
    if end.ended_by == "internal" or (not end.started and end.ended_by in ("", "gate")):
        detail = watch.captured["stderr"].decode(errors="replace").strip() or "; ".join(end.problems)
        what = "the jar was lost" if end.started else "the jar could not be made"
        recording.lost(run_id, f"{what}: {detail}", policy)
        raise SandboxUnavailableError(f"{what}: {detail}", hint="run `belljar doctor`")
    outcome = _outcome(end)
    printed = {name: data.decode(errors="replace") for name, data in watch.captured.items()}
    if outcome is Outcome.FAILED and not end.signal:
        from belljar.sandbox.full_limits import spoken_of

        reason = spoken_of(policy, printed["stdout"], printed["stderr"])
    else:
        reason = _reason(policy, outcome, end)
    if policy.logging.quarantine and end.ended_by in _CANARIES:
        from belljar.sandbox.ending import quarantined

        reason += quarantined(run_id, handle, policy, plan, watch, end)
    result = RunResult(
        run_id=run_id,
        outcome=outcome,
        exit_code=end.exit_code if end.started else None,
        signal=_signal_name(end.signal) if end.started and end.signal else None,
        stdout=printed["stdout"],
        stderr=printed["stderr"],
        truncated=watch.truncated,
        duration=time.monotonic() - started,
        usage=Usage(end.cpu_seconds, end.peak_memory_bytes, end.processes, end.bytes_read, end.bytes_written),
        denials=_denials(policy, end) + (traffic.denials if traffic else ()),
        artifacts=artifacts,
        policy_digest=plan.policy_digest,
        enforcement=report,
        backend=plan.backend,
        reason=reason,
        fallback_from=fallback_from,
        image=plan.image,
        container=end.kept,
        egress=traffic.records if traffic else (),
    )
    start = max(0.0, end.began - started) if end.began else None
    return recording.finish(
        result,
        policy,
        watch.captured,
        start=start,
        canaries=_canaries(plan, end),
        egress=traffic.totals if traffic else None,
        patience=patience,
    )


def _canaries(plan: LaunchPlan, end: End) -> tuple[str, ...] | None:
    """What the canaries found; None if they were not tried."""
    if end.ended_by == "canary":
        return end.problems or ("what was found is not known",)
    return () if end.started and plan.backend != "unconfined" else None


def give_up(process: Process, error: BaseException, result: Callable[[End, float], RunResult]) -> None:
    """End a run for which nobody waits any more, because of this, and have its end told if it can be heard."""
    process.kill(recording.given_up_for(error))
    poll = select.poll()
    poll.register(process.fileno(), select.POLLIN)
    if poll.poll(1000 * _LAST_SECONDS):
        try:
            result(process.end(), recording.PATIENCE_SECONDS)
        except Exception:  # noqa: BLE001, S110 - its stage is gone, or it can't be recorded: told by `broke_off`
            pass


def _signal_name(number: int) -> str | None:
    import signal

    return signal.Signals(number).name if number in set(signal.Signals) else None


def _denials(policy: Policy, end: End) -> tuple[Denial, ...]:
    if not (end.observations or end.ended_by or end.pids_refused or end.oom_kills or end.signal):
        return ()
    from belljar.sandbox.denials import explain

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
    from belljar.policy.units import show_size

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
    )
    return recording.finish(result, policy)


__all__ = ["GIVEN_UP", "Finished", "Watch", "give_up", "make_result", "new_run_id", "refused_result"]
