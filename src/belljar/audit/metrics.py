"""Numbers for Prometheus, made from the run store when somebody asks: while nobody does, they cost nothing.

They are those of every belljar process of this user, whichever it was that ran something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from belljar.audit.store import RunStore
from belljar.errors import PrerequisiteError

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_MEMORY = tuple(1 << power for power in range(22, 36, 2))
_DIGEST = len("sha256:") + 12

Running = Callable[[], list[dict[str, Any]]]


def registry(running: Running) -> CollectorRegistry:
    """What Prometheus reads; `running` tells what runs now. Raises PrerequisiteError."""
    try:
        from prometheus_client.registry import CollectorRegistry
    except ImportError as error:
        raise PrerequisiteError("metrics need prometheus-client", hint="pip install 'belljar[metrics]'") from error
    made = CollectorRegistry()
    made.register(Collector(running))
    return made


class Collector:
    """Looks into the store each time it is asked."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        with RunStore() as store:
            yield self._runs(store)
            yield self._histogram(store, "belljar_run_seconds", "How long runs took.", "duration", _SECONDS)
            yield self._histogram(store, "belljar_run_cpu_seconds", "Processor time.", "cpu_seconds", _SECONDS)
            memory = ("belljar_run_peak_memory_bytes", "The most memory that runs had.", "peak_memory_bytes", _MEMORY)
            yield self._histogram(store, *memory)
            yield self._count(store, "belljar_egress_decisions", "Decisions of the egress proxy.", "egress", _EGRESS)
            yield self._count(store, "belljar_denials", "What jars refused, by rule.", "denied", ("kind", "rule"))
            yield self._count(store, "belljar_limits", "Runs that were ended by a limit.", "limit", ())
            yield from self._log(store)
        yield from self._now()

    def _runs(self, store: RunStore) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        found = CounterMetricFamily("belljar_runs", "Runs, by how they ended.", labels=("outcome", "backend", "policy"))
        asked = "select outcome, backend, policy, count(*) from runs where ended is not null group by 1, 2, 3"
        for outcome, backend, policy, count in store.ask(asked):
            found.add_metric((_text(outcome), _text(backend), _text(policy)[:_DIGEST]), count)
        return found

    def _histogram(self, store: RunStore, name: str, about: str, column: str, bounds: Iterable[float]) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        found = HistogramMetricFamily(name, about, labels=("backend",))
        limits = tuple(bounds)
        sums = ", ".join(f"sum({column} <= {limit})" for limit in limits)  # names and numbers of ours
        asked = (
            f"select backend, count({column}), sum({column}), {sums} from runs where {column} is not null group by 1"  # noqa: S608
        )
        for backend, count, total, *below in store.ask(asked):
            buckets = [*zip(map(str, limits), below, strict=True), ("+Inf", count)]
            found.add_metric((_text(backend),), buckets, total)
        return found

    def _count(self, store: RunStore, name: str, about: str, event: str, labels: tuple[str, ...]) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        found = CounterMetricFamily(name, about, labels=labels)
        members = "".join(f"json_extract(record, '$.{label}'), " for label in labels)
        groups = f"group by {', '.join(str(at + 1) for at in range(len(labels)))}" if labels else ""
        for *values, count in store.ask(f"select {members} count(*) from events where event = ? {groups}", event):  # noqa: S608
            found.add_metric(tuple(map(_text, values)), count)
        return found

    def _log(self, store: RunStore) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        ((last, moment),) = store.ask("select coalesce(max(seq), 0), max(time) from events")
        yield CounterMetricFamily("belljar_audit_records", "Records of the audit log.", value=last)
        lag = max(0.0, time.time() - moment) if moment else 0.0
        yield GaugeMetricFamily("belljar_audit_last_record_age_seconds", "Since the last record.", value=lag)

    def _now(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        found = GaugeMetricFamily("belljar_running", "Runs in progress.", labels=("backend",))
        counts: dict[str, int] = {}
        for run in self._running():
            backend = _text(run.get("backend"))
            counts[backend] = counts.get(backend, 0) + 1
        for backend, count in counts.items():
            found.add_metric((backend,), count)
        yield found


_EGRESS = ("allowed", "kind", "reason")


def _text(value: object) -> str:
    return "" if value is None else str(value)
