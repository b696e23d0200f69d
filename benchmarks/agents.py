"""What belljar adds to a run of a pool, from a model's tool call to its result. All in one run, one after the other.

    python benchmarks/agents.py              a table
    python benchmarks/agents.py --json       the same as JSON
    python benchmarks/agents.py --record     also writes benchmarks/agents.md
    python benchmarks/agents.py --check      exits with 1 if the limit is missed

The real Claude Code command runs against a scripted model on loopback. The model's clock counts: from the answer that
calls a tool to the request that brings its result. Three conversations are open at once: one with a tool of the SDK
that does nothing, one with a tool that runs code in a `Pool` and does nothing else, and one with belljar's own. They
take turns, call by call, one at a time and in changing order, so that other work on the machine meets all of them. What
belljar adds is told for each round, belljar's call less the pool's in the same round, and of that the median.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import claude_agent_sdk as sdk
from bench import machine

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "agents"))

from scripted_model import Model, say, use  # noqa: E402

from belljar import Pool  # noqa: E402
from belljar.tools.calls import Call  # noqa: E402
from belljar.tools.claude import sandboxed_options  # noqa: E402
from belljar.tools.toolbox import Toolbox  # noqa: E402

LIMIT_MS = 15.0
CODE = "print(6 * 7)"
PLAIN, POOLED, OURS = "plain", "pooled", "ours"
"""The kinds, by the names of their scripts."""
KINDS = (PLAIN, POOLED, OURS)
WARM_UP = 2
"""Rounds that do not count: the command and the pools have just been started."""
PAUSE_SECONDS = 0.02
"""Before each call: the pools make the jar that takes the place of the last one."""
PATIENCE_SECONDS = 120


class Timed(Model):
    """A model that gives each conversation its turn, and looks at its clock: `rounds` has milliseconds by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[dict[str, float]] = []
        self._order: list[str] = []
        self._asked = 0.0
        self._changed = threading.Condition()

    def begin(self, calls: int) -> None:
        """So many rounds come, each with one call of each kind; nobody is always first."""
        self._order = [KINDS[(number + place) % len(KINDS)] for number in range(calls) for place in range(len(KINDS))]
        self.rounds += [{} for _ in range(calls)]

    def answer(self, request: dict[str, Any]) -> Any:
        now = time.perf_counter()
        turn = super().answer(request)
        found = re.search(r"script:(\w+)", json.dumps(request.get("messages", [])[:1]))
        if found is None or not request.get("tools"):
            return turn
        with self._changed:
            self._note(found[1], now)
            if any(block["type"] == "tool_use" for block in turn):
                mine = self._changed.wait_for(lambda: self._order[0] == found[1] and not self._asked, PATIENCE_SECONDS)
                assert mine, f"it was never the turn of {found[1]}"
                time.sleep(PAUSE_SECONDS)
                self._asked = time.perf_counter()
        return turn

    def _note(self, kind: str, now: float) -> None:
        """The result of the call that is under way, if it is this kind's."""
        if self._asked and self._order[0] == kind:
            self.rounds[-1 - (len(self._order) - 1) // len(KINDS)][kind] = 1000 * (now - self._asked)
            self._asked = 0.0
            del self._order[0]
            self._changed.notify_all()


def quartiles(times: list[float]) -> dict[str, float]:
    """What a quarter of them, half of them and three quarters stay below."""
    first, median, third = statistics.quantiles(times, n=4)
    return {"first_quartile": first, "median": median, "third_quartile": third}


def direct(rounds: int, box: Toolbox, pool: Pool) -> dict[str, dict[str, float]]:
    """The same without a command: the pool's run, and the toolbox's call."""
    times: dict[str, list[float]] = {"Pool.run": [], "Toolbox.call": []}
    ways: dict[str, Callable[[], object]] = {
        "Pool.run": lambda: pool.run(CODE),
        "Toolbox.call": lambda: box.call("run", {"code": CODE}, Call(client="benchmark")),
    }
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            times[name].append(1000 * (time.perf_counter() - started))
            time.sleep(PAUSE_SECONDS)
    return {name: quartiles(found) for name, found in times.items()}


def options_of(kind: str, box: Toolbox, pool: Pool) -> tuple[sdk.ClaudeAgentOptions, str]:
    """The SDK's options for one kind, and the tool's name."""
    if kind == OURS:
        return sandboxed_options(toolbox=box), "mcp__sandboxed_code__run"

    @sdk.tool("run", "Runs code.", {"code": str})
    async def run(given: dict[str, Any]) -> dict[str, Any]:
        text = "42"
        if kind == POOLED:
            text = (await anyio.to_thread.run_sync(pool.run, given["code"])).stdout
        return {"content": [{"type": "text", "text": text}]}

    server = sdk.create_sdk_mcp_server("plain", tools=[run])
    name = "mcp__plain__run"
    options = sdk.ClaudeAgentOptions(
        tools=[], allowed_tools=[name], mcp_servers={"plain": server}, strict_mcp_config=True, setting_sources=[]
    )
    return options, name


async def converse(model: Timed, box: Toolbox, pool: Pool, calls: int) -> None:
    """One conversation of each kind, at once."""
    model.begin(calls)
    async with anyio.create_task_group() as tasks:
        for kind in KINDS:
            options, name = options_of(kind, box, pool)
            model.scripts[kind] = [*([use(name, code=CODE)] for _ in range(calls)), [say("ok")]]
            tasks.start_soon(_ask, kind, options)


async def _ask(kind: str, options: sdk.ClaudeAgentOptions) -> None:
    async for _message in sdk.query(prompt=f"script:{kind} go", options=options):
        pass


def measure(conversations: int, calls: int) -> dict[str, dict[str, float]]:
    """In milliseconds."""
    model = Timed()
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as home, Toolbox(pool_size=4) as box, Pool(size=4) as pool:
        os.environ |= {
            "HOME": home,
            "BELLJAR_STATE_DIR": f"{home}/state",
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "sk-ant-of-the-benchmark",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        try:
            box.warm()
            results = direct(100, box, pool)
            for _ in range(conversations):
                anyio.run(converse, model, box, pool, calls + WARM_UP)
                rounds += model.rounds[-calls:]
        finally:
            model.close()
    results |= {kind: quartiles([times[kind] for times in rounds]) for kind in KINDS}
    results["added"] = quartiles([times[OURS] - times[POOLED] for times in rounds])
    return results


def report(results: dict[str, dict[str, float]]) -> str:
    rows = [
        ("`Pool.run`, by itself", "Pool.run"),
        ("`Toolbox.call`, by itself: checked, recorded, redacted", "Toolbox.call"),
        ("through the command: a tool that does nothing", PLAIN),
        ("through the command: a tool that is a pool's run", POOLED),
        ("through the command: `sandboxed_code.run`", OURS),
        (f"what belljar adds to the pool's run of the same round (limit: {LIMIT_MS:g} ms)", "added"),
    ]
    lines = ["| from the tool call to its result | median | half of them |", "|---|---:|---:|"]
    for words, name in rows:
        found = results[name]
        half = f"{found['first_quartile']:.1f} to {found['third_quartile']:.1f} ms"
        lines.append(f"| {words} | {found['median']:.1f} ms | {half} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=5, help="of each kind")
    parser.add_argument("--calls", type=int, default=20, help="tool calls in each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    results = measure(options.conversations, options.calls)
    print(json.dumps(results, indent=2) if options.json else report(results))
    if options.record:
        count = options.conversations * options.calls
        how = f"{count} rounds with a call of each kind, by the real Claude Code command and a scripted model."
        written = f"Written by `make bench-agents BENCH_ARGS=--record`: {machine()}.\n{how}"
        (HERE / "agents.md").write_text(f"# What a tool call costs\n\n{written}\n\n{report(results)}")
    added = results["added"]["median"]
    if options.check and added > LIMIT_MS:
        sys.exit(f"belljar adds {added:.1f} ms, {LIMIT_MS:g} are allowed")


if __name__ == "__main__":
    main()
