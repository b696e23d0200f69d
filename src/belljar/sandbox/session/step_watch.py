"""One step of a session, from outside: its order, its output as it comes, its limits, and its result."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from belljar.backends.contract import LOOK_UP_SECONDS
from belljar.sandbox.record import recording, redacting
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Artifact, Denial, Fault, Outcome, fault_of
from belljar.sandbox.session import wire
from belljar.sandbox.session.interpreter import Frame, SessionRun
from belljar.sandbox.session.step import Rich, Shown, StepError, StepFinished, StepResult

if TYPE_CHECKING:
    from belljar.sandbox.session.home import Home

GRACE_SECONDS = 3.0
"""How long code that was interrupted may take to end before its jar is killed."""
_AGAIN_SECONDS = 1.0
"""How often it is interrupted meanwhile: an exception raised in a destructor, or where all are caught, is lost."""
_MOST_RESULTS = 10_000
"""Forms of what one step shows. Each is an object, however short its text is."""
_LAST_WORDS_SECONDS = 1.0
"""How long to wait, after an interpreter is gone, to hear why from the jar itself."""


class StepWatch:
    """One step."""

    def __init__(self, home: Home, live: SessionRun, session_id: str, *, number: int, seconds: float) -> None:
        self._home = home
        self._live = live
        self._session_id = session_id
        self._number = number
        self._step = home.next_step()
        self._seconds = seconds
        self._inbox = live.inbox(number)
        self._captured = {"stdout": bytearray(), "stderr": bytearray()}
        self._results: list[Rich] = []
        self._shown = 0
        self._done: wire.Done | None = None
        self._lost = False
        self._stopped_by = ""
        """`timeout`, `output` or `abandoned`, if belljar stopped it."""
        self._interrupted = False
        """Whether the caller interrupted it. That is no stop: code that goes on has its limits as before."""
        self._kill_at = self._again_at = 0.0
        self._started = time.monotonic()
        self._sent = self._recorded = False
        """Whether it was ordered, and whether its end is in the audit log."""
        self._redactor = redacting.of_result(live.run_id, home.policy)
        self._redacting = {name: self._redactor.byte_stream() for name in self._captured} if self._redactor else {}
        live.prints(self._captured, self._step)

    # --- running ---

    def events(self, code: str, stdin: str | None) -> Iterator[Output | Shown | StepFinished]:
        """Have it run; what it prints and shows as it comes, and its result."""
        traffic = self._live.network.traffic if self._live.network else None
        before = (len(traffic.records), _counted(traffic.denials)) if traffic else (0, {})
        deadline = self._started + self._seconds
        self._order(code, stdin, deadline)
        while self._done is None and not self._lost:
            frame = self._next(deadline)
            if frame is not None and (event := self._take(*frame)) is not None:
                yield event
        if self._lost:
            self._wait_for_last_words()
        yield from self._held_back()
        if traffic:
            traffic.tell()
        egress = traffic.records[before[0] :] if traffic else ()
        denials = _newer(traffic.denials, before[1]) if traffic else ()
        result = self._result(self._home.new_files(), egress, denials)
        self._record(result)
        yield StepFinished(result)

    def _record(self, result: StepResult) -> None:
        self._recorded = True
        recording.step_ended(self._live.run_id, result, self._home.policy, self._captured)

    def _order(self, code: str, stdin: str | None, deadline: float) -> None:
        with self._live.changed:
            self._inbox.renew()
        recording.step(self._live.run_id, self._session_id, self._step, code.encode())
        order = {"step": self._step, "code": code, **({} if stdin is None else {"stdin": stdin})}
        self._sent = True
        if not self._live.send(wire.STEP, self._number, json.dumps(order).encode(), deadline):
            self._live.kill("broken")

    def _next(self, deadline: float) -> Frame | None:
        """The next frame; None if something else happened, which has been dealt with."""
        live = self._live
        with live.changed:
            if frame := self._inbox.take():
                return frame
            if live.ended or self._number in live.gone:
                self._lost = True
                return None
            now = time.monotonic()
            if self._inbox.over and not self._stopped_by:
                self._stop("output")
            elif now >= deadline and not self._stopped_by:
                self._stop("timeout")
            elif self._kill_at and now >= self._kill_at:
                live.kill(self._stopped_by)
                self._kill_at = 0.0
            elif self._kill_at and now >= self._again_at:
                self._interrupt()
            until = min(self._kill_at, self._again_at) or (deadline if not self._stopped_by else now + 1)
            live.changed.wait(min(max(0.001, until - now), LOOK_UP_SECONDS))
            return None

    def _stop(self, why: str) -> None:
        self._stopped_by = why
        self._kill_at = time.monotonic() + GRACE_SECONDS
        self._interrupt()

    def _interrupt(self) -> bool:
        self._again_at = time.monotonic() + _AGAIN_SECONDS
        return self._live.send(wire.INTERRUPT, self._number, b"%d" % self._step, time.monotonic() + 0.1)

    def interrupt(self) -> bool:
        """As Ctrl-C: from any thread."""
        if self._done is not None or self._lost:
            return False
        self._interrupted = True
        return self._interrupt()

    def leave(self) -> None:
        """Nobody wants to know more: if it still runs, it is stopped. Its end is recorded. Raises AuditError."""
        if self._recorded or not self._sent:
            return
        if self._done is None and not self._lost:
            self._stop("abandoned")
        while self._done is None and not self._lost:
            if frame := self._next(float("inf")):
                self._take(*frame)
        self._record(self._result((), (), ()))

    def _take(self, kind: bytes, payload: bytes) -> Output | Shown | None:
        try:
            return self._understood(kind, payload)
        except wire.BrokenError:
            self._live.kill("broken")
            return None

    def _understood(self, kind: bytes, payload: bytes) -> Output | Shown | None:
        if kind in (wire.STDOUT, wire.STDERR):
            return self._printed("stdout" if kind == wire.STDOUT else "stderr", payload)
        if kind == wire.SHOWN:
            self._shown += 1
            shown = wire.shown(payload, self._shown)
            shown = Shown(self._clean(shown.text), tuple(map(self._clean_form, shown.forms)))
            self._results += shown.forms
            if len(self._results) > _MOST_RESULTS:
                raise wire.BrokenError
            return shown
        if kind == wire.DONE:
            done = wire.done(payload, self._shown + 1)
            if done.step == self._step:
                self._done = done
                self._results += map(self._clean_form, done.forms)
        return None

    def _printed(self, stream: Literal["stdout", "stderr"], data: bytes) -> Output | None:
        if self._redacting:
            data = self._redacting[stream].feed(data)
        self._captured[stream] += data
        return Output(stream, data) if data else None

    def _held_back(self) -> Iterator[Output]:
        """What could have been the beginning of something that must not be told."""
        for name in ("stdout", "stderr") if self._redacting else ():
            if rest := self._redacting[name].finish():
                self._captured[name] += rest
                yield Output(name, rest)

    def _clean(self, text: str) -> str:
        return self._redactor.text(text) if self._redactor else text

    def _clean_form(self, rich: Rich) -> Rich:
        return Rich(rich.mime, self._clean(rich.text).encode(), rich.name) if self._redactor and rich.is_text else rich

    def _clean_error(self, error: StepError | None) -> StepError | None:
        if error is None or self._redactor is None:
            return error
        return StepError(error.type, self._clean(error.message), self._clean(error.traceback))

    def _wait_for_last_words(self) -> None:
        """The jar itself knows more than the supervisor: that memory ran out, for example."""
        live = self._live
        until = time.monotonic() + _LAST_WORDS_SECONDS
        with live.changed:
            while not live.ended and (left := until - time.monotonic()) > 0:
                live.changed.wait(left)
        if live.fault is not None:
            raise live.fault

    # --- the result ---

    def _result(
        self, artifacts: tuple[Artifact, ...], egress: tuple[object, ...], denials: tuple[Denial, ...]
    ) -> StepResult:
        outcome, reason = self._outcome()
        done = self._done
        return StepResult(
            session_id=self._session_id,
            step=self._step,
            outcome=outcome,
            value=None if done is None or done.value is None else self._clean(done.value),
            results=tuple(self._results),
            stdout=self._captured["stdout"].decode(errors="replace"),
            stderr=self._captured["stderr"].decode(errors="replace"),
            error=self._clean_error(done.error) if done else None,
            exit_code=done.exit_code if done else None,
            truncated=self._inbox.over,
            interrupted=self._interrupted or (done is not None and done.interrupted),
            state_lost=self._lost,
            duration=time.monotonic() - self._started,
            artifacts=artifacts,
            denials=denials,
            egress=egress,  # type: ignore[arg-type]
            reason=reason,
            fault=self._fault(outcome),
            run_id=self._live.run_id,
        )

    def _outcome(self) -> tuple[Outcome, str]:
        proc = self._home.policy.proc
        lost = "; its variables are lost" if self._lost else ""
        if self._stopped_by == "timeout":
            return Outcome.TIMEOUT, f"the step took longer than {self._seconds:g} s (proc.timeout_ms){lost}"
        if self._stopped_by == "output":
            from belljar.policy.keys.units import show_size

            return Outcome.KILLED, f"it wrote more than {show_size(proc.output_bytes)} (proc.output_mb){lost}"
        if self._lost:
            result = self._live.result
            if result is not None and result.outcome not in (Outcome.OK, Outcome.FAILED):
                return result.outcome, f"{self._why() or result.reason}{lost}"
            return Outcome.FAILED, f"the interpreter ended: {self._home.ending(self._number)}{lost}"
        assert self._done is not None
        if (self._stopped_by or self._interrupted) and self._done.interrupted:
            return Outcome.KILLED, "it was interrupted"
        if self._done.error is not None or self._done.exit_code:
            return Outcome.FAILED, self._full_limits(self._done)
        return Outcome.OK, ""

    def _fault(self, outcome: Outcome) -> Fault:
        """Return whose fault it is. The interpreter's end is the code's doing, unless the jar's result says another."""
        if self._lost and not self._stopped_by and (result := self._live.result) is not None:
            return fault_of(outcome, self._live.why) if self._live.why else result.fault
        if outcome is Outcome.KILLED and self._interrupted:
            return Fault.NONE
        return fault_of(outcome, self._stopped_by)

    def _full_limits(self, done: wire.Done) -> str:
        from belljar.sandbox.run.full_limits import spoken_of

        error = self._clean_error(done.error)
        stdout, stderr = (self._captured[name].decode(errors="replace") for name in ("stdout", "stderr"))
        return spoken_of(self._home.policy, stdout, stderr + (error.traceback if error else ""))

    def _why(self) -> str:
        """In words, if belljar itself ended the jar."""
        words = {
            "broken": "what came from the jar makes no sense: the code took the supervisor's place",
            "restarted": "the session was started again",
            "closed": "the session was closed",
        }
        return words.get(self._live.why, "")


def _counted(denials: tuple[Denial, ...]) -> dict[Denial, int]:
    from dataclasses import replace

    return {replace(denial, count=0): denial.count for denial in denials}


def _newer(denials: tuple[Denial, ...], before: dict[Denial, int]) -> tuple[Denial, ...]:
    """What was refused since, with how often."""
    from dataclasses import replace

    newer = [(denial, denial.count - before.get(replace(denial, count=0), 0)) for denial in denials]
    return tuple(replace(denial, count=count) for denial, count in newer if count > 0)
