"""Spans for OpenTelemetry, where the program has it configured: run, and in it plan, launch, execute, collect.

A program that does not import OpenTelemetry has none, at the price of one look into a dictionary. One that does gets
them in its own trace: the run's span is a child of the span in which it was asked for.
"""

from __future__ import annotations

import sys
import time

from belljar.sandbox.record.result import Outcome, RunResult

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

_API = "opentelemetry.trace"


class Spans:
    """Those of one run."""

    def __init__(self, api: Any, name: str, started_ns: int, attributes: dict[str, Any]) -> None:
        self._tracer = api.get_tracer("belljar")
        self._api = api
        self._run = self._tracer.start_span(name, attributes=attributes, start_time=started_ns)
        self._within = api.set_span_in_context(self._run)
        self._phase: Any = None

    def phase(self, name: str, started_ns: int | None = None) -> None:
        """The next part begins, and the one before has ended."""
        if self._phase is not None:
            self._phase.end()
        self._phase = self._tracer.start_span(f"belljar.{name}", context=self._within, start_time=started_ns)

    def result(self, result: RunResult) -> None:
        """How it went."""
        self._run.set_attributes(
            {
                "belljar.outcome": str(result.outcome),
                "belljar.backend": result.backend,
                "belljar.policy": result.policy_digest,
                "belljar.denials": len(result.denials),
                "belljar.cpu_seconds": result.usage.cpu_seconds,
            }
        )
        if result.outcome is not Outcome.OK:
            self._run.set_status(self._api.Status(self._api.StatusCode.ERROR, result.reason or str(result.outcome)))

    def end(self) -> None:
        """All is over, however it went."""
        if self._phase is not None:
            self._phase.end()
            self._phase = None
        self._run.end()


class _NoSpans:
    """Where nobody traces."""

    def phase(self, name: str, started_ns: int | None = None) -> None:
        """Nothing."""

    def result(self, result: RunResult) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


NONE = _NoSpans()
AnySpans = Spans | _NoSpans


def start(name: str, run_id: str, *, since: float | None = None) -> AnySpans:
    """The spans of a run that begins now, or began then, by the clock of `time.monotonic`."""
    api = sys.modules.get(_API)
    if api is None:
        return NONE
    ago_ns = 0 if since is None else round(1e9 * (time.monotonic() - since))
    return Spans(api, name, time.time_ns() - ago_ns, {"belljar.run": run_id})
