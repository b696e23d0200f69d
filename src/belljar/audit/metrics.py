"""Numbers for Prometheus, made from the run store when somebody asks: while nobody does, they cost nothing.

They are those of every belljar process of this user, whichever it was that ran something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.audit.counters import FAMILIES, Family, added, sums
from belljar.audit.printable import printable
from belljar.audit.store import RunStore
from belljar.errors import PrerequisiteError

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

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
            numbers = added(sums(store.ask), store.past())
            for family in FAMILIES:
                yield _metric(family, numbers.get(family.name, {}))
            yield from self._log(store)
        yield from self._now()
        yield from self._of_pools()

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


_POOL_STATES = ("waiting", "running", "queued")


def _metric(family: Family, rows: Mapping[tuple[str, ...], Sequence[float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    if not family.bounds:
        counter = CounterMetricFamily(family.name, family.about, labels=family.labels)
        for labels, (count,) in rows.items():
            counter.add_metric(labels, count)
        return counter
    histogram = HistogramMetricFamily(family.name, family.about, labels=family.labels)
    for labels, (count, total, *below) in rows.items():
        buckets = [*zip(map(str, family.bounds), below, strict=True), ("+Inf", count)]
        histogram.add_metric(labels, buckets, total)
    return histogram


def _text(value: object) -> str:
    return "" if value is None else printable(str(value))
