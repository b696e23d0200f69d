"""What metrics count, as sums over the run store's rows. Pure, but for whoever is asked.

Sums can be added: those of days that were removed are kept in the log, so that no counter falls when `prune` was there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from belljar.audit.printable import printable

Sums = dict[str, dict[tuple[str, ...], list[float]]]
"""For each family, by the values of its labels: a number; of a histogram, count, sum, and how many up to each bound."""
Ask = Callable[[str], Sequence[Any]]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_MEMORY = tuple(1 << power for power in range(22, 36, 2))
_DIGEST = len("sha256:") + 12


@dataclass(frozen=True, slots=True)
class Family:
    """A counter, or with `bounds` a histogram. The statement's rows begin with the values of its labels."""

    name: str
    about: str
    labels: tuple[str, ...]
    statement: str
    bounds: tuple[float, ...] = ()


def _histogram(
    name: str,
    about: str,
    column: str,
    bounds: tuple[float, ...],
    *,
    labels: tuple[str, ...] = ("backend",),
    table: str = "runs",
) -> Family:
    below = ", ".join(f"sum({column} <= {bound})" for bound in bounds)  # names and numbers of ours
    chosen = "".join(f"{label}, " for label in labels)
    groups = f"group by {', '.join(labels)}" if labels else ""
    found = f"select {chosen} count({column}), sum({column}), {below} from {table} where {column} is not null {groups}"  # noqa: S608
    return Family(name, about, labels, found, bounds)


def _events(name: str, about: str, event: str, labels: tuple[str, ...]) -> Family:
    members = "".join(f"json_extract(record, '$.{label}'), " for label in labels)
    groups = f"group by {', '.join(str(at + 1) for at in range(len(labels)))}" if labels else ""
    return Family(name, about, labels, f"select {members} count(*) from events where event = '{event}' {groups}")  # noqa: S608


def _bytes(name: str, about: str, label: str, table: str, columns: Mapping[str, str]) -> Family:
    """A sum for each of the label's values, of the column that it stands for."""
    sums = (f"select '{value}', sum({column}) from {table}" for value, column in columns.items())  # noqa: S608
    return Family(name, about, (label,), " union all ".join(sums))


_LAGS = "(select max(0.0, time - json_extract(record, '$.at')) as lag from events where event = 'egress')"

FAMILIES = (
    Family(
        "belljar_runs",
        "Runs, by how they ended.",
        ("outcome", "backend", "policy"),
        f"select outcome, backend, substr(policy, 1, {_DIGEST}), count(*) from runs"  # noqa: S608
        " where ended is not null group by 1, 2, 3",
    ),
    _histogram("belljar_run_seconds", "How long runs took.", "duration", _SECONDS),
    _histogram(
        "belljar_run_start_seconds",
        "From the call until the code was let go.",
        "start_seconds",
        _SECONDS,
        labels=("backend", "kind"),
    ),
    _histogram("belljar_run_cpu_seconds", "Processor time.", "cpu_seconds", _SECONDS),
    _histogram("belljar_run_peak_memory_bytes", "The most memory that runs had.", "peak_memory_bytes", _MEMORY),
    _events("belljar_egress_decisions", "Decisions of the egress proxy.", "egress", ("allowed", "kind", "reason")),
    _events("belljar_denials", "What jars refused, by rule.", "denied", ("kind", "rule")),
    _events("belljar_limits", "Runs that were ended by a limit.", "limit", ()),
    _bytes(
        "belljar_output_bytes",
        "What runs printed.",
        "stream",
        "events where event in ('finished', 'stepped')",
        {name: f"json_extract(record, '$.{name}_bytes')" for name in ("stdout", "stderr")},
    ),
    _bytes(
        "belljar_io_bytes",
        "What runs read and wrote.",
        "direction",
        "runs",
        {"read": "bytes_read", "written": "bytes_written"},
    ),
    _bytes(
        "belljar_egress_bytes",
        "What went over the network.",
        "direction",
        "events where event = 'egress'",
        {name: f"json_extract(record, '$.bytes_{name}')" for name in ("in", "out")},
    ),
    _histogram(
        "belljar_audit_lag_seconds",
        "From a decision of the egress proxy to its record; all else is recorded before it happens.",
        "lag",
        _SECONDS,
        labels=(),
        table=_LAGS,
    ),
)


def sums(ask: Ask) -> Sums:
    """Of all rows that are there."""
    found: Sums = {}
    for family in FAMILIES:
        rows = found.setdefault(family.name, {})
        for row in map(list, ask(family.statement)):
            count = len(family.labels)
            labels = tuple("" if value is None else printable(str(value)) for value in row[:count])
            rows[labels] = [number or 0 for number in row[count:]]
    return found


def added(some: Sums, more: Sums, *, sign: int = 1) -> Sums:
    """Both together; with `sign=-1` what the first has more. What has other bounds, by another version, is left out."""
    total: Sums = {name: {labels: list(numbers) for labels, numbers in rows.items()} for name, rows in some.items()}
    for name, rows in more.items():
        mine = total.setdefault(name, {})
        for labels, numbers in rows.items():
            others = mine.get(labels, [0] * len(numbers))
            if len(others) == len(numbers):
                pairs = zip(others, numbers, strict=True)
                mine[labels] = [round(one + sign * other, 6) for one, other in pairs]
    return total


def to_record(some: Sums) -> dict[str, list[list[Any]]]:
    """As a record of the log has them: without what is nothing."""
    told = {
        name: [[list(labels), numbers] for labels, numbers in rows.items() if any(numbers)]
        for name, rows in some.items()
    }
    return {name: rows for name, rows in told.items() if rows}


def from_record(told: Any) -> Sums:
    """And back. What is none of it is left out."""
    found: Sums = {}
    try:
        for name, rows in told.items():
            for labels, numbers in rows:
                found.setdefault(str(name), {})[tuple(map(str, labels))] = [one + 0 for one in numbers]
    except (AttributeError, TypeError, ValueError):
        return {}
    return found
