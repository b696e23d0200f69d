"""The life of a run, the same for every way to run code.

    begin → open the jar → acquire a process → record the start → watch → settle → make the result → record the end

A kind of run is a `RunSource`: it says what is recorded of the run, and acquires a process. `Life.events` does the
rest. A session's run lasts for many steps and has a thread of its own: it takes the same steps one by one.

The record always comes first. A pool may hand its code to a jar before that, and lets it start after.
"""

from __future__ import annotations

import select
import time
from collections.abc import Generator

from belljar._startup.records import Protocol
from belljar.backends.contract import Clause, End, EnforcementReport, JarGoneError, LaunchPlan, Process
from belljar.errors import SandboxUnavailableError
from belljar.policy.models import Policy
from belljar.sandbox.record import recording, redacting, tracing
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.result import Artifact, RunResult
from belljar.sandbox.run.watch import Watch, make_result, refused_result

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from belljar.sandbox.network.egress import Traffic
    from belljar.sandbox.record.inputs import Fed
    from belljar.sandbox.record.stream import Handle

_NOTHING: Process = None  # type: ignore[assignment]
"""What is watched of a run that never began."""
_GIVEN_UP = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""The exceptions that reach a run whose caller does not wait for it any more."""
_LAST_SECONDS = 5.0
"""How long a run whose caller left may take to end, and still have its end recorded."""
_CANARIES = ("canary", "canary-token")
"""Why a run was ended, or not started: something was possible that must not be, or it sent a planted token."""


class ServedNetwork(Protocol):
    """The network of one run."""

    @property
    def traffic(self) -> Traffic | None:
        """What the proxy decided."""

    def end(self) -> None:
        """Tell the proxy that the code has ended."""

    def close(self) -> None:
        """Wait until every decision has been told."""

    def judged(self, end: End) -> End:
        """Return the run's end, as the network knows it."""


class Acquired:
    """A process for one run, with its network."""

    __slots__ = ("fed", "network", "process")

    def __init__(self, process: Process, network: ServedNetwork | None, fed: Fed | None = None) -> None:
        self.process = process
        self.network = network
        self.fed = fed
        """Its standard input, if that comes through a pipe while it runs."""

    def end(self) -> End:
        """Wait for the end of the process, and of its network."""
        if self.network is None:
            return self.process.end()
        self.network.end()
        end = self.process.end()
        self.network.close()
        return self.network.judged(end)


class RunSource(Protocol):
    """What differs between one way to run code and another."""

    policy: Policy
    plan: LaunchPlan
    fallback_from: tuple[str, ...]

    def record(self, run_id: str) -> bool:
        """Record that the run is about to begin. Return True if the record also says that its code starts."""

    def open(self) -> tuple[EnforcementReport, tuple[Clause, ...]]:
        """Open the jar, if that has not been done. Return how far each clause holds, and those that refuse the run."""

    def acquire(self, life: Life) -> AbstractContextManager[Acquired | End]:
        """Acquire a process; or an end, for a run that comes to none. Leaving the context closes the process."""

    def made(self, acquired: Acquired) -> tuple[Artifact, ...]:
        """Return the files that the run made."""

    def settled(self, acquired: Acquired, result: RunResult) -> RunResult:
        """Do what is left to do while the jar's files are there. Return the result."""


class Life:
    """One run."""

    __slots__ = ("handle", "report", "run_id", "source", "spans", "started")

    def __init__(
        self,
        source: RunSource,
        handle: Handle,
        run_id: str,
        *,
        started: float = 0.0,
        spans: tracing.AnySpans = tracing.NONE,
    ) -> None:
        self.source = source
        self.handle = handle
        self.run_id = run_id
        self.started = started
        """When it was asked for, by the clock of `time.monotonic`; when `events` or `begin` is called, unless given."""
        self.spans = spans
        self.report: EnforcementReport | None = None

    def events(self) -> Generator[Output | Finished, None, None]:
        """Live the run: yield its output as it comes, and its result at the end."""
        self.spans.phase("launch")
        try:
            if (refused := self.begin()) is not None:
                yield self._finished(refused)
                return
            while not (yield from self._attempt()):
                pass  # a process that dies before the code has begun is replaced
        except BaseException as error:  # whatever it is: a run that has begun has an end
            recording.broke_off(self.run_id, error, self.source.policy)
            raise
        finally:
            self.spans.end()

    def begin(self) -> RunResult | None:
        """Record the run and open its jar. Return a result if the policy refuses the run, which then has ended.

        Raises:
            AuditError: it can't be recorded, so nothing happens.
            KillSwitchError: nothing may run.
            SandboxUnavailableError: the jar can't be opened.
        """
        source = self.source
        self.started = self.started or time.monotonic()
        starts = source.record(self.run_id)
        self.report, refused = source.open()
        if refused:
            return refused_result(source.policy, source.plan, self.run_id, self.report, refused)
        if not starts:
            recording.started(self.run_id)
        return None

    def _finished(self, result: RunResult) -> Finished:
        self.spans.result(result)
        return Finished(result)

    def _attempt(self) -> Generator[Output | Finished, None, bool]:
        """Acquire a process and watch it to its end. Return False if it died before the code had begun.

        The result does not wait for the process to be closed: somebody may still look into the jar.
        """
        source, policy = self.source, self.source.policy
        with source.acquire(self) as acquired:
            if isinstance(acquired, End):
                yield self._finished(self.settle(Watch(_NOTHING, 0), acquired))
                return True
            self.spans.phase("execute")
            watch = Watch(acquired.process, policy.proc.output_bytes, redacting.of_result(self.run_id, policy))
            self.handle.prints(watch.captured, policy)
            try:
                yield from watch.events()
            except _GIVEN_UP as error:
                self._give_up(acquired, watch, error)
                raise
            self.spans.phase("collect")
            try:
                end = acquired.end()
            except JarGoneError:
                return False
            result = self.settle(watch, end, acquired, source.made(acquired))
            yield self._finished(source.settled(acquired, result))
            return True

    def _give_up(self, acquired: Acquired, watch: Watch, error: BaseException) -> None:
        """Kill a run whose caller has left, and record its end if it comes soon."""
        acquired.process.kill(recording.given_up_for(error))
        poll = select.poll()
        poll.register(acquired.process.fileno(), select.POLLIN)
        if poll.poll(1000 * _LAST_SECONDS):
            try:
                end, made = acquired.end(), self.source.made(acquired)
                self.settle(watch, end, acquired, made, patience=recording.PATIENCE_SECONDS)
            except Exception:  # noqa: BLE001, S110 - its stage is gone, or it can't be recorded: told by `broke_off`
                pass

    def settle(
        self,
        watch: Watch,
        end: End,
        acquired: Acquired | None = None,
        artifacts: tuple[Artifact, ...] = (),
        *,
        patience: float | None = None,
    ) -> RunResult:
        """Settle a run that has ended: quarantine it if a canary ended it, make its result, record the end.

        Raises:
            SandboxUnavailableError: the jar was lost, or could not be made. That is recorded.
            AuditError: the end can't be recorded.
        """
        source, network = self.source, acquired.network if acquired else None
        assert self.report is not None
        if acquired and acquired.fed is not None:
            recording.fed(self.run_id, acquired.fed, patience=patience)
        return settle(
            source.policy,
            source.plan,
            watch,
            end,
            run_id=self.run_id,
            report=self.report,
            started=self.started,
            artifacts=artifacts,
            fallback_from=source.fallback_from,
            traffic=network.traffic if network else None,
            handle=self.handle,
            patience=patience,
        )


def settle(
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
    """Settle a run that has ended: put it into quarantine if a canary ended it, make its result, record the end.

    Raises:
        SandboxUnavailableError: the jar was lost, or could not be made. That is recorded.
        AuditError: the end can't be recorded.
    """
    if handle is not None:
        handle.over = True
    if end.ended_by == "internal" or (not end.started and end.ended_by in ("", "gate")):
        detail = watch.captured["stderr"].decode(errors="replace").strip() or "; ".join(end.problems)
        what = "the jar was lost" if end.started else "the jar could not be made"
        lost = SandboxUnavailableError(f"{what}: {detail}", hint="run `belljar doctor`")
        recording.lost(run_id, lost.message, policy, lost.fault)
        raise lost
    where = ""
    if policy.logging.quarantine and end.ended_by in _CANARIES:
        from belljar.sandbox.incident.ending import quarantined

        where = quarantined(run_id, handle, policy, plan, watch, end)
    result = make_result(
        policy,
        plan,
        watch,
        end,
        run_id=run_id,
        report=report,
        duration=time.monotonic() - started,
        artifacts=artifacts,
        fallback_from=fallback_from,
        traffic=traffic,
        quarantined=where,
    )
    return recording.finish(
        result,
        policy,
        watch.captured,
        start=max(0.0, end.began - started) if end.began else None,
        canaries=_canaries(plan, end),
        egress=traffic.totals if traffic else None,
        patience=patience,
    )


def _canaries(plan: LaunchPlan, end: End) -> tuple[str, ...] | None:
    """What the canaries found; None if they were not tried."""
    if end.ended_by == "canary":
        return end.problems or ("what was found is not known",)
    return () if end.started and plan.backend != "unconfined" else None


__all__ = ["Acquired", "Life", "RunSource", "ServedNetwork", "settle"]
