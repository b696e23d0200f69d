"""What the egress proxy costs, beside no proxy, squid and mitmproxy: small requests, and bytes that are carried unseen.

    python benchmarks/egress.py              tables
    python benchmarks/egress.py --json       the same as JSON
    python benchmarks/egress.py --record     also writes benchmarks/egress.md and benchmarks/egress.svg
    python benchmarks/egress.py --check      exits with 1 if a limit is missed

Every case once a round, in another order each time; ratios are those within a round. All on one host: the proxy has a
processor for itself, and the client and the server share the others.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from egress_origin import BODY
from egress_proxies import (
    BELLJAR,
    DIRECT,
    JAR,
    MITMPROXY,
    SQUID,
    Origin,
    Processors,
    Route,
    belljar,
    belljar_jar,
    mitmproxy,
    origin,
    outside,
    pin,
    processor_seconds,
    squid,
)
from machine import machine
from plot import bars

HERE = Path(__file__).resolve().parent
CONNECTIONS = 16
PLAIN, OPENED, TUNNEL = "plain HTTP", "TLS, opened", "a tunnel of 1 GB"
WORK = (PLAIN, OPENED, TUNNEL)
SECONDS = {PLAIN: 2.0, OPENED: 2.0}
SIZE = 1 << 30

Found = dict[str, dict[str, list[dict[str, float]]]]
"""What was found each round, by work and route."""


@dataclass(frozen=True)
class Limit:
    """A ratio that has to be reached, or a time that must not be."""

    what: str
    work: str
    wanted: float
    found: float
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


# --- measuring -------------------------------------------------------------------------------------------------------


def settings(work: str, route: Route, server: Origin, processors: Processors) -> dict[str, Any]:
    """For the client."""
    port = {PLAIN: server.plain, OPENED: server.secure, TUNNEL: server.raw}[work]
    place = ["127.0.0.1", route.port] if route.port else [route.host, port]
    way = ("absolute" if work == PLAIN else "connect") if route.port else "direct"
    common = {"place": place, "way": way, "host": route.host, "port": port, "processors": list(processors.others)}
    if work == TUNNEL:
        return common | {"kind": "bytes", "size": SIZE}
    return common | {"kind": "requests", "tls": work == OPENED, "body": len(BODY), "seconds": SECONDS[work]}


def measure_one(work: str, route: Route, server: Origin, processors: Processors) -> dict[str, float]:
    """Bytes a second; or requests a second with many connections, and the time of one with a single connection."""
    how = settings(work, route, server, processors)
    if work == TUNNEL:
        return route.client(how)
    used = processor_seconds(route.pid) if route.pid else 0.0
    many = route.client(how | {"connections": CONNECTIONS})
    used = (processor_seconds(route.pid) if route.pid else 0.0) - used
    single = route.client(how | {"connections": 1, "seconds": how["seconds"] / 2})
    busy = {"busy_p50": many["p50"], "busy_p99": many["p99"], "used": used / many["count"]}
    return {"rate": many["rate"], "p50": single["p50"], **busy}


def measure(routes: list[Route], server: Origin, processors: Processors, rounds: int) -> Found:
    """Every case once a round; the first round warms up and is not counted."""
    cases = [(work, route) for work in WORK for route in routes if work != OPENED or route.opens_tls]
    found: Found = {work: {route.name: [] for each, route in cases if each == work} for work in WORK}
    order = random.Random(1)
    for number in range(rounds + 1):
        for at, (work, route) in enumerate(order.sample(cases, len(cases)), 1):
            if sys.stderr.isatty():
                print(f"\r\033[Kround {number} of {rounds}: {at} of {len(cases)}", end="", file=sys.stderr)
            one = measure_one(work, route, server, processors)
            if number:
                found[work][route.name].append(one)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return found


@contextmanager
def prepared() -> Iterator[tuple[list[Route], Origin, Processors]]:
    """The server and all routes to it; nothing is left of them."""
    processors = Processors.found()
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="belljar-bench-")))
        top.chmod(0o755)
        for name in ("origin", SQUID, MITMPROXY, BELLJAR):
            (top / name).mkdir()
        server = stack.enter_context(origin(top / "origin", processors))
        routes = [
            Route(DIRECT, "localhost", 0, outside),
            stack.enter_context(squid(top / SQUID, server, processors)),
            stack.enter_context(mitmproxy(top / MITMPROXY, server, processors)),
            stack.enter_context(belljar(top / BELLJAR, server, processors)),
            stack.enter_context(belljar_jar(server)),
        ]
        yield [route for route in routes if route is not None], server, processors


# --- telling ---------------------------------------------------------------------------------------------------------


def median(found: Found, work: str, route: str, what: str) -> float:
    return statistics.median(one[what] for one in found[work][route])


def ratio(found: Found, work: str, route: str, against: str, what: str = "rate") -> float:
    """The median of what it was in each round."""
    pairs = zip(found[work][route], found[work][against], strict=True)
    return statistics.median(one[what] / other[what] for one, other in pairs)


def added(found: Found, work: str, route: str) -> float:
    """Milliseconds that a request takes longer than without a proxy."""
    pairs = zip(found[work][route], found[work][DIRECT], strict=True)
    return statistics.median(one["p50"] - other["p50"] for one, other in pairs) * 1000


def limits(found: Found) -> list[Limit]:
    """What has to hold, as far as there is something to compare with."""
    judged = []
    for work in (PLAIN, OPENED):
        if MITMPROXY in found[work]:
            judged.append(Limit("requests a second, to mitmproxy", work, 5, ratio(found, work, BELLJAR, MITMPROXY)))
        if SQUID in found[work]:
            judged.append(Limit("requests a second, to squid", work, 1 / 3, ratio(found, work, BELLJAR, SQUID)))
        judged += [
            Limit(f"added milliseconds, {route}", work, 1, added(found, work, route), at_most=True)
            for route in (BELLJAR, JAR)
        ]
    if SQUID in found[TUNNEL]:
        judged.append(Limit("bytes a second, to squid", TUNNEL, 0.5, ratio(found, TUNNEL, BELLJAR, SQUID)))
    return judged


def tables(found: Found, judged: list[Limit]) -> list[str]:
    """In a form that Markdown and a terminal both show."""
    lines = []
    for work in (PLAIN, OPENED):
        heads = (work, "requests a second", "of direct", "p50, one at a time", "added", f"p50, {CONNECTIONS} at once")
        lines += [f"| {' | '.join(heads)} | processor time of the proxy |", "|---|---|---|---|---|---|---|"]
        for name in found[work]:
            cells = [
                f"{median(found, work, name, 'rate'):,.0f}",
                f"{ratio(found, work, name, DIRECT):.2f}",
                f"{median(found, work, name, 'p50') * 1000:.3f} ms",
                f"{added(found, work, name):.3f} ms",
                f"{median(found, work, name, 'busy_p50') * 1000:.2f} ms",
                f"{median(found, work, name, 'used') * 1e6:.0f} µs" if name != DIRECT else "",
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    lines += [f"| {TUNNEL} | MB a second | of direct |", "|---|---|---|"]
    for name in found[TUNNEL]:
        rate = median(found, TUNNEL, name, "rate") / 1e6
        lines.append(f"| {name} | {rate:,.0f} | {ratio(found, TUNNEL, name, DIRECT):.2f} |")
    lines += ["", "| limit | | wanted | found | |", "|---|---|---|---|---|"]
    for limit in judged:
        wanted = f"{'at most' if limit.at_most else 'at least'} {limit.wanted:.2f}"
        word = "ok" if limit.ok else "MISSED"
        lines.append(f"| {limit.what} | {limit.work} | {wanted} | {limit.found:.2f} | {word} |")
    return lines


def as_text(found: Found, judged: list[Limit], routes: list[Route], rounds: int) -> str:
    """All that is to say."""
    versions = ", ".join(f"{route.name} {route.version}" for route in routes if route.version)
    lines = [f"{machine()}, {rounds} rounds; {versions or 'no other proxy'}."]
    missing = {SQUID, MITMPROXY} - {route.name for route in routes}
    lines += [f"{name} is not installed here, and left out." for name in sorted(missing)]
    return "\n".join([*lines, "", *tables(found, judged)]) + "\n"


NOTES = f"""
The proxy has a processor for itself; the client and the server share the others. A request is a GET of {len(BODY)}
bytes over a kept connection; requests a second are counted with {CONNECTIONS} connections, each of which asks again
when it is answered, and the proxy's processor time is what one of these took. Squid and mitmproxy cache nothing and
log nothing; belljar tells of every decision. All three verify the server's certificate. `{JAR}` is the
transparent route: a program in a bubblewrap jar that knows of no proxy.

![Requests a second and bytes a second, as a ratio to direct](egress.svg)
"""


def as_svg(found: Found) -> str:
    """A bar for each route and kind of work, as a ratio to direct."""
    shares = [(work, name, ratio(found, work, name, DIRECT)) for work in WORK for name in found[work] if name != DIRECT]
    colours = {SQUID: "#3066be", MITMPROXY: "#b4552d", BELLJAR: "#2a7f62", JAR: "#6bb39a"}
    return bars(shares, colours, "direct = 1", digits=3)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often each case is measured (default: 7)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--record", action="store_true", help="write benchmarks/egress.md and .svg")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    options = parser.parse_args()
    with prepared() as (routes, server, processors):
        pin(0, processors.others)
        found = measure(routes, server, processors, options.rounds)
    judged = limits(found)
    if options.json:
        plain = {"machine": machine(), "found": found, "limits": [asdict(limit) | {"ok": limit.ok} for limit in judged]}
        print(json.dumps(plain, indent=2))
    else:
        print(as_text(found, judged, routes, options.rounds), end="")
    if options.record:
        head = "# What the egress proxy costs\n\nWritten by `make bench-egress BENCH_ARGS=--record`: "
        (HERE / "egress.md").write_text(head + as_text(found, judged, routes, options.rounds) + NOTES)
        (HERE / "egress.svg").write_text(as_svg(found))
    return 1 if options.check and not all(limit.ok for limit in judged) else 0


if __name__ == "__main__":
    raise SystemExit(main())
