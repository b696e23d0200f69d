"""Numbers for Prometheus, made from the run store when somebody asks: while nobody does, they cost nothing.

They are those of every belljar process of this user, whichever it was that ran something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from belljar.audit.printable import printable
from belljar.audit.store import RunStore
from belljar.errors import PrerequisiteError

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_MEMORY = tuple(1 << power for power in range(22, 36, 2))
_DIGEST = len("sha256:") + 12

Told = Callable[[], list[dict[str, Any]]]


def registry(running: Told, pools: Told) -> CollectorRegistry:
    """What Prometheus reads; `running` tells what runs now, `pools` what pools have. Raises PrerequisiteError."""
    try:
        from prometheus_client.registry import CollectorRegistry
    except ImportError as error:
        raise PrerequisiteError("metrics need prometheus-client", hint="pip install 'belljar[metrics]'") from error
    made = CollectorRegistry()
    made.register(Collector(running, pools))
    return made


class Collector:
    """Looks into the store each time it is asked."""

    def __init__(self, running: Told, pools: Told) -> None:
        self._running, self._pools = running, pools

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        with RunStore() as store:
            yield self._runs(store)
            yield self._histogram(store, "belljar_run_seconds", "How long runs took.", "duration", _SECONDS)
            start = ("belljar_run_start_seconds", "From the call until the code was let go.", "start_seconds", _SECONDS)
            yield self._histogram(store, *start, labels=("backend", "kind"))
            yield self._histogram(store, "belljar_run_cpu_seconds", "Processor time.", "cpu_seconds", _SECONDS)
            memory = ("belljar_run_peak_memory_bytes", "The most memory that runs had.", "peak_memory_bytes", _MEMORY)
            yield self._histogram(store, *memory)
            yield self._count(store, "belljar_egress_decisions", "Decisions of the egress proxy.", "egress", _EGRESS)
            yield self._count(store, "belljar_denials", "What jars refused, by rule.", "denied", ("kind", "rule"))
            yield self._count(store, "belljar_limits", "Runs that were ended by a limit.", "limit", ())
            yield self._bytes(store, "belljar_output_bytes", "What runs printed.", "stream", _OUTPUT_BYTES)
            yield self._bytes(store, "belljar_io_bytes", "What runs read and wrote.", "direction", _IO_BYTES)
            yield self._bytes(store, "belljar_egress_bytes", "What went over the network.", "direction", _EGRESS_BYTES)
            yield from self._log(store)
        yield from self._now()
        yield from self._of_pools()

    def _runs(self, store: RunStore) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        found = CounterMetricFamily("belljar_runs", "Runs, by how they ended.", labels=("outcome", "backend", "policy"))
        asked = "select outcome, backend, policy, count(*) from runs where ended is not null group by 1, 2, 3"
        for outcome, backend, policy, count in store.ask(asked):
            found.add_metric((_text(outcome), _text(backend), _text(policy)[:_DIGEST]), count)
        return found

    def _histogram(
        self,
        store: RunStore,
        name: str,
        about: str,
        column: str,
        bounds: Iterable[float],
        *,
        labels: tuple[str, ...] = ("backend",),
        table: str = "runs",
    ) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        found = HistogramMetricFamily(name, about, labels=labels)
        limits = tuple(bounds)
        sums = ", ".join(f"sum({column} <= {limit})" for limit in limits)  # names and numbers of ours
        chosen = "".join(f"{label}, " for label in labels)
        groups = f"group by {', '.join(labels)}" if labels else ""
        asked = (
            f"select {chosen} count({column}), sum({column}), {sums} from {table} where {column} is not null {groups}"  # noqa: S608
        )
        for row in store.ask(asked):
            values = list(row)
            named, (count, total, *below) = values[: len(labels)], values[len(labels) :]
            buckets = [*zip(map(str, limits), (one or 0 for one in below), strict=True), ("+Inf", count)]
            found.add_metric(tuple(map(_text, named)), buckets, total or 0)
        return found

    def _bytes(self, store: RunStore, name: str, about: str, label: str, sums: tuple[tuple[str, str], ...]) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        found = CounterMetricFamily(name, about, labels=(label,))
        for value, asked in sums:
            found.add_metric((value,), store.ask(asked)[0][0] or 0)
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
        about = "From a decision of the egress proxy to its record; all else is recorded before it happens."
        yield self._histogram(store, "belljar_audit_lag_seconds", about, "lag", _SECONDS, labels=(), table=_LAGS)

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

    def _of_pools(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        counts: dict[tuple[str, str], int] = {}
        for pool in self._pools():
            for state in _POOL_STATES:
                key = _text(pool.get("backend")), state
                counts[key] = counts.get(key, 0) + int(pool.get(state) or 0)
        jars = GaugeMetricFamily("belljar_pool_jars", "Jars of pools.", labels=("backend", "state"))
        queued = GaugeMetricFamily("belljar_pool_queued", "Runs that wait for a jar of a pool.", labels=("backend",))
        for (backend, state), count in counts.items():
            if state == "queued":
                queued.add_metric((backend,), count)
            else:
                jars.add_metric((backend, state), count)
        yield jars
        yield queued


_EGRESS = ("allowed", "kind", "reason")
_POOL_STATES = ("waiting", "running", "queued")
_PRINTED = "select sum(json_extract(record, '$.{0}_bytes')) from events where event in ('finished', 'stepped')"
_OUTPUT_BYTES = (("stdout", _PRINTED.format("stdout")), ("stderr", _PRINTED.format("stderr")))
_IO_BYTES = (
    ("read", "select sum(bytes_read) from runs"),
    ("written", "select sum(bytes_written) from runs"),
)
_EGRESS_BYTES = (
    ("in", "select sum(json_extract(record, '$.bytes_in')) from events where event = 'egress'"),
    ("out", "select sum(json_extract(record, '$.bytes_out')) from events where event = 'egress'"),
)
_LAGS = "(select max(0.0, time - json_extract(record, '$.at')) as lag from events where event = 'egress')"


def _text(value: object) -> str:
    return "" if value is None else printable(str(value))
