"""What was found, as a table, as a page, as JSON and as a picture."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from cases import (
    AGAIN,
    BASELINE,
    CODEX_PRINT,
    COMMAND,
    COMMAND_PRINT,
    EGRESS,
    FIRST_OUTPUT,
    FLOOR,
    HELP,
    INSIDE,
    OUTSIDE,
    PANDAS,
    PANDAS_BARE,
    POOLED,
    RECORDED,
    SRT_PRINT,
    WARM,
)
from judging import Found, Verdict
from llm_sandbox_peer import LLM_SANDBOX
from peers import BWRAP, CODEX, CODEX_NPM, DOCKER, GVISOR, SRT
from plot import logarithmic_bars
from rates import POOL
from timing import percentile

PEERS = (BWRAP, SRT, CODEX, CODEX_NPM, DOCKER, GVISOR, LLM_SANDBOX)
GROUPS = {
    "a fresh sandbox": (BASELINE, *PEERS, COMMAND, WARM, AGAIN, POOLED, FIRST_OUTPUT, EGRESS, RECORDED, HELP),
    "print(1), whole commands": (COMMAND_PRINT, SRT_PRINT, CODEX_PRINT),
    "import pandas": (PANDAS_BARE, PANDAS),
    "work": (OUTSIDE, INSIDE),
    "the floor": (FLOOR,),
}
AGAINST = {PANDAS_BARE: PANDAS_BARE, PANDAS: PANDAS_BARE, OUTSIDE: OUTSIDE, INSIDE: OUTSIDE}
"""What a case's ratio is to, where that is not the baseline."""
OURS = (COMMAND, WARM, AGAIN, POOLED, FIRST_OUTPUT, EGRESS, RECORDED, HELP, POOL)

Cells = tuple[str, ...]


# --- the tables' rows ------------------------------------------------------------------------------------------------


def time_rows(found: Found) -> Iterable[Cells]:
    """(case, median, 95th percentile, ratio, how often, median when cold), in the order of the groups."""
    for names in GROUPS.values():
        for name in names:
            if name in found.times:
                taken = found.times[name]
                ratio = found.ratio(name, AGAINST.get(name, BASELINE))
                middle, slow = milliseconds(statistics.median(taken)), milliseconds(percentile(taken, 95))
                cold = milliseconds(statistics.median(found.cold[name])) if found.cold.get(name) else ""
                yield name, middle, slow, f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}", str(len(taken)), cold


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:.1f} ms"


def rate_rows(found: Found) -> Iterable[Cells]:
    """(what, how many a second, as many as of the pool's)."""
    for name in sorted(found.rates, key=found.rate, reverse=True):
        yield name, f"{found.rate(name):.1f}", f"{found.rate(POOL) / found.rate(name):.1f}"


def verdict_rows(judged: Sequence[Verdict]) -> Iterable[Cells]:
    for verdict in judged:
        value = "" if verdict.found is None else f"{verdict.found:.3f}"
        yield verdict.what, verdict.wanted, value, verdict.word


def floor_rows(found: Found) -> Iterable[Cells]:
    """What a run in a pool is made of, from the kernel's part upwards."""
    if FLOOR in found.times:
        yield FLOOR, milliseconds(found.median(FLOOR)), "in every run, before the code comes"
    yield "to the first output", milliseconds(found.median(FIRST_OUTPUT)), "what a caller waits for"
    yield "the whole call", milliseconds(found.median(POOLED)), "with the end of the jar"
    if found.footprint:
        used = found.footprint["run_processor_ms"] / 1000
        yield (
            "processor time of one run",
            milliseconds(used),
            "its making and end included, in the kernel too",
        )
        for part, taken in found.footprint["parts_ms"].items():
            yield f"- {part}", milliseconds(taken / 1000), ""
    share = (os.cpu_count() or 1) / found.rate(POOL)
    yield "processors, divided by runs a second", milliseconds(share), "the same, with all processors busy"


def table(heads: Cells, rows: Iterable[Cells]) -> list[str]:
    """In a form that Markdown and a terminal both show: columns are as wide as their widest cell."""
    lines = [heads, *rows]
    widths = [max(len(cells[at]) for cells in lines) for at in range(len(heads))]

    def line(cells: Cells) -> str:
        return f"| {' | '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))} |"

    return [line(heads), f"|{'|'.join('-' * (width + 2) for width in widths)}|", *map(line, lines[1:])]


# --- the forms -------------------------------------------------------------------------------------------------------


def as_text(found: Found, judged: Sequence[Verdict], rounds: int) -> str:
    """For a terminal, and the beginning of the page."""
    processors = os.cpu_count() or 1
    shares = {share: milliseconds(percentile(found.two_callers, share)) for share in (50, 95, 99)}
    callers = ", ".join(f"p{share} {taken}" for share, taken in shares.items())
    lines = [f"{found.machine}, {rounds} rounds.", ""]
    lines += table(("case", "median", "p95", "ratio", "times", "cold"), time_rows(found))
    lines += ["", f"Fresh sandboxes a second, {processors} at a time:", ""]
    lines += table(("what", "a second", f"{POOL} makes so many times as many"), rate_rows(found))
    lines += ["", f"Pool.run with two callers: {callers}, of {len(found.two_callers)} calls."]
    lines += ["", *table(("limit", "wanted", "found", ""), verdict_rows(judged))]
    if found.missing:
        lines += ["", "Not measured here:", *(f"- {name}: {why}" for name, why in found.missing.items())]
    return "\n".join(lines) + "\n"


def as_page(found: Found, judged: Sequence[Verdict], rounds: int) -> str:
    """The page that --record writes; the README's numbers are from it."""
    lines = ["# What a jar costs", "", "Written by `make bench BENCH_ARGS=--record`: " + as_text(found, judged, rounds)]
    lines += ["![A fresh sandbox, as a ratio to the baseline, logarithmic](results.svg)", ""]
    lines += ["## How it was measured", "", *NOTES.strip().splitlines(), ""]
    lines += [f"- {name} {found.versions.get(name, '')}: `{how}`" for name, how in found.how.items()]
    lines += ["", "## The floor", "", *FLOOR_NOTES.strip().splitlines(), ""]
    lines += table(("part", "median", ""), floor_rows(found))
    return "\n".join(lines) + "\n"


NOTES = """
Every case in its turn in each round, in another order each time, after a round that does not count. A turn is four
goes, of which three count: of the baseline and of pools 12 ms apart, as something in use; of commands and Sandboxes,
which leave something to be done in the background, 50 ms.
`cold` is the median of the first goes, 50 ms after some other case: with whatever that one has left in the processor's
caches, and processors that are asleep, and that a virtual machine has to wake. What takes a second is measured once in
every third round. The baseline is `python -I -c pass`
in a clean virtual environment, and everything runs that interpreter with that code: containers see it through a
mount. Ratios are to the baseline; those of `import pandas` and of work are to the same without a jar. A Sandbox makes
its next jar while it is idle; `at once again` leaves it no time for that. What the audit log costs is the median
difference of calls with and without it; the time that is spent on it is more, because a jar makes itself ready
meanwhile. belljar is installed as its users install it. The others do not promise the same: srt and Codex's sandbox
let the code read almost the whole host, and neither they nor `docker run` have limits unless they are told. Sessions
of llm-sandbox are opened, used once and closed.
"""
FLOOR_NOTES = """
`floor.c` makes the namespaces of a jar (user, mount, pid, network, ipc, uts) with a tmpfs and a proc, forks, and ends
all of it: what the kernel itself takes. A pool does its part of this before the code comes.
"""


def as_json(found: Found, judged: Sequence[Verdict], rounds: int) -> str:
    """Everything that the page says, and each single time."""
    cases = {
        name: {
            "median_ms": found.median(name) * 1000,
            "p95_ms": percentile(taken, 95) * 1000,
            "ratio": found.ratio(name, AGAINST.get(name, BASELINE)),
            "against": AGAINST.get(name, BASELINE),
            "seconds": taken,
            "cold_seconds": found.cold.get(name, []),
        }
        for name, taken in found.times.items()
    }
    callers = {f"p{share}_ms": percentile(found.two_callers, share) * 1000 for share in (50, 95, 99)}
    answer = {
        "machine": found.machine,
        "rounds": rounds,
        "versions": found.versions,
        "cases": cases,
        "a_second": {name: {"median": found.rate(name), "each": each} for name, each in found.rates.items()},
        "two_callers": callers | {"calls": len(found.two_callers)},
        "recorded_ms": [seconds * 1000 for seconds in found.recorded],
        "footprint": found.footprint,
        "limits": [asdict(verdict) for verdict in judged],
        "missing": found.missing,
    }
    return json.dumps(answer, indent=1) + "\n"


def as_svg(found: Found) -> str:
    """A fresh sandbox, as a ratio to the baseline; and how many there are a second."""
    names = [
        name for name in GROUPS["a fresh sandbox"] if name in found.times and name not in (BASELINE, RECORDED, HELP)
    ]
    bars = [("a fresh sandbox: time", name, found.ratio(name, BASELINE)) for name in names]
    rated = [name for name in sorted(found.rates, key=found.rate) if name != BASELINE]
    bars += [("sandboxes a second", name, found.rate(name) / found.rate(BASELINE)) for name in rated]
    colours = {name: "#2a7f62" if name in OURS else "#3066be" for _group, name, _value in bars}
    return logarithmic_bars(bars, colours, f"{BASELINE} = 1")
