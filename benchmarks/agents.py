"""What belljar adds to a run of a pool, from a model's tool call to its result. All in one run, one after the other.

    python benchmarks/agents.py              a table
    python benchmarks/agents.py --json       the same as JSON
    python benchmarks/agents.py --record     also writes benchmarks/agents.md
    python benchmarks/agents.py --check      exits with 1 if the limit is missed

The real Claude Code command runs against a scripted model on loopback. The model's clock counts: from the answer that
calls a tool to the request that brings its result. That is done for a tool of the SDK that does nothing, for one that
runs code in a `Pool` and does nothing else, and for belljar's own. Conversations of each kind take turns, so that other
work on the machine meets all of them; one call in ten is faster than what is told, for the same reason.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
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
from belljar.agents.calls import Call  # noqa: E402
from belljar.agents.claude import sandboxed_options  # noqa: E402
from belljar.agents.toolbox import Toolbox  # noqa: E402

LIMIT_MS = 15.0
CODE = "print(6 * 7)"
PLAIN, POOLED, OURS = "a tool that does nothing", "a tool that is a pool's run", "sandboxed_code.run"


class Timed(Model):
    """A model that looks at its clock: `times` has what passed from an answer to the next request, in milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, list[float]] = {}
        self._answered = 0.0
        self.kind = ""

    def answer(self, request: dict[str, Any]) -> Any:
        now = time.perf_counter()
        turn = super().answer(request)
        if self._answered and request.get("tools") and len(request["messages"]) > 1:
            self.times.setdefault(self.kind, []).append(1000 * (now - self._answered))
        self._answered = 0.0
        if any(block["type"] == "tool_use" for block in turn):
            self._answered = time.perf_counter()
        return turn


def tenth(times: list[float]) -> float:
    """What a tenth of them stays below."""
    return statistics.quantiles(times, n=10)[0]


def direct(rounds: int, box: Toolbox, pool: Pool) -> dict[str, float]:
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
            time.sleep(0.02)  # the pool makes the next jar
    return {name: tenth(found) for name, found in times.items()}


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


async def converse(model: Timed, kind: str, options: sdk.ClaudeAgentOptions, name: str, calls: int) -> None:
    model.kind = kind
    model.scripts["bench"] = [*([use(name, code=CODE)] for _ in range(calls)), [say("ok")]]
    async for _message in sdk.query(prompt="script:bench go", options=options):
        pass


def measure(rounds: int, calls: int) -> dict[str, float]:
    """What a tenth of the calls stays below, in milliseconds."""
    model = Timed()
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
            for _ in range(rounds):
                for kind in (PLAIN, POOLED, OURS):
                    anyio.run(converse, model, kind, *options_of(kind, box, pool), calls)
        finally:
            model.close()
    results |= {kind: tenth(times) for kind, times in model.times.items()}
    results["added"] = results[OURS] - results[POOLED]
    return results


def report(results: dict[str, float]) -> str:
    rows = [
        ("`Pool.run`, by itself", results["Pool.run"]),
        ("`Toolbox.call`, by itself: checked, recorded, redacted", results["Toolbox.call"]),
        (f"through the command: {PLAIN}", results[PLAIN]),
        (f"through the command: {POOLED}", results[POOLED]),
        (f"through the command: `{OURS}`", results[OURS]),
        (f"what belljar adds to the pool's run (limit: {LIMIT_MS:g} ms)", results["added"]),
    ]
    lines = ["| from the tool call to its result | one in ten is faster than |", "|---|---:|"]
    return "\n".join([*lines, *(f"| {name} | {value:.1f} ms |" for name, value in rows)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="conversations of each kind")
    parser.add_argument("--calls", type=int, default=15, help="tool calls in each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    results = measure(options.rounds, options.calls)
    print(json.dumps(results, indent=2) if options.json else report(results))
    if options.record:
        count = options.rounds * options.calls
        how = f"{count} calls of each kind, by the real Claude Code command and a scripted model."
        written = f"Written by `make bench-agents BENCH_ARGS=--record`: {machine()}.\n{how}"
        (HERE / "agents.md").write_text(f"# What a tool call costs\n\n{written}\n\n{report(results)}")
    if options.check and results["added"] > LIMIT_MS:
        sys.exit(f"belljar adds {results['added']:.1f} ms, {LIMIT_MS:g} are allowed")


if __name__ == "__main__":
    main()
