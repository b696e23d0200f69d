"""`belljar inspect`: all that is known of a run."""

from __future__ import annotations

import sys
import time
from typing import Any

from belljar.cli.audit.show import line
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words
from belljar.cli.terminal.progress import waiting
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError

_MOST_LINES = 20
_MOST_CODE = 4000


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.audit.store import RunStore
    from belljar.sandbox.record import remote

    (name,) = expect_words(COMMAND, parsed, 1, 1)
    with waiting("the audit log", "bringing its index up to date"):
        store = RunStore()
    with store:
        row = store.run(name)
        if row is None:
            raise UsageError(f"the audit log knows no run {name!r}", hint="`belljar ps --all` lists them")
        records, samples = list(store.events(row["run"])), store.samples(row["run"])
    if not samples:
        names = ("seconds", "cpu_seconds", "memory_bytes", "processes")
        samples = [dict(zip(names, sample, strict=True)) for sample in remote.usage(row["run"])]
    output = _output(row["run"], records)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({**row, "output": output, "usage": samples, "records": records})
        return 0
    from belljar.cli.terminal.table import aligned

    rows = [(name, visible(_told(name, value))) for name, value in row.items() if value not in (None, "")]
    rows.append(("output", visible(output)))
    sys.stdout.write(aligned(rows) + "\n")
    sys.stdout.write(_code(row.get("code")))
    sys.stdout.write(_account(row["run"], records))
    if samples:
        sys.stdout.write(aligned(_over_time(samples)) + "\n")
    for record in records:
        if record["event"] not in ("usage", "agent"):  # which stand above
            sys.stdout.write(line(record) + "\n")
    return 0


def _told(name: str, value: object) -> str:
    """Return a value for people: local times, seconds, sizes with their unit."""
    from belljar.policy.keys.units import show_size

    if isinstance(value, int | float) and name in ("created", "ended"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, int | float) and (name == "duration" or name.endswith("_seconds")):
        return f"{value:.3f} s"
    if isinstance(value, int) and (name.endswith("_bytes") or name.startswith("bytes_")):
        return show_size(value) if value < 10_000 else f"{value / 1_000_000:.1f} MB"
    return str(value)


def _code(digest: object) -> str:
    """Return the first lines of the code that ran, if it is kept."""
    from belljar.audit.stored import load_input
    from belljar.cli.terminal.safe_text import visible_lines

    code = load_input(digest) if isinstance(digest, str) else None
    if not code:
        return ""
    lines = code[:_MOST_CODE].decode(errors="replace").splitlines()
    more = len(lines) > _MOST_LINES or len(code) > _MOST_CODE
    shown = "".join(f"  {visible_lines(line)}\n" for line in lines[:_MOST_LINES])
    return f"code:\n{shown}{'  …' if more else ''}\n"


def _account(run: str, records: list[dict[str, Any]]) -> str:
    """What an agent did, by its own account: its commands, tools and tokens, and where its transcript is."""
    from belljar.audit import outputs
    from belljar.coding_agents.transcript import STREAM

    found = next((record for record in records if record["event"] == "agent"), None)
    if found is None:
        return ""
    lines = [f"agent {found.get('agent')} in {found.get('project')}"]
    if "transcript" in found:
        tools = ", ".join(f"{name} {count}" for name, count in dict(found.get("tools") or {}).items())
        lines.append(
            f"  tokens: {found.get('input_tokens')} in, {found.get('output_tokens')} out; tools: {tools or 'none'}"
        )
        path = outputs.path_of(run, 0, STREAM)
        known = outputs.load(run, 0, STREAM, str(found["transcript"]).removeprefix("sha256:")) is not None
        lines.append(f"  transcript: {path if known else 'it is gone, or is not what it was'}")
        commands = list(found.get("commands") or ())
        lines += [f"  $ {command}" for command in commands]
        if (more := int(found.get("commands_count") or 0) - len(commands)) > 0:
            lines.append(f"  and {more} more")
    return "".join(f"{visible(line)}\n" for line in lines) + "\n"


def _over_time(samples: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What it used, from its beginning to its end, with the most of each."""
    from belljar.cli.terminal.sparkline import rates, sparkline
    from belljar.policy.keys.units import show_size

    moments = [float(sample["seconds"]) for sample in samples]
    busy = rates(moments, [float(sample["cpu_seconds"]) for sample in samples])
    memory = [int(sample["memory_bytes"]) for sample in samples]
    processes = [int(sample["processes"]) for sample in samples]
    return [
        ("over time", f"{moments[-1]:.0f} s", "at most"),
        ("cpu", sparkline(busy), f"{max(busy):.2f} processors"),
        ("memory", sparkline(memory), show_size(max(memory))),
        ("processes", sparkline(processes), str(max(processes))),
    ]


def _output(run: str, records: list[dict[str, Any]]) -> str:
    """Whether what it printed can be read."""
    from belljar.sandbox.record.remote import one_running
    from belljar.sandbox.record.stored_output import of_records

    if one_running(run):
        return f"it runs: `belljar logs -f {run}`"
    output = of_records(run, records)
    if output.nothing:
        return output.missing
    if not output.pieces:
        return "it printed nothing"
    return f"`belljar logs {run}`" + (f"; {output.missing}" if output.missing else "")


COMMAND = CliCommand(
    "inspect",
    "Show all that is known of a run.",
    usage="inspect [OPTIONS] RUN",
    run=run,
    options=(JSON,),
    details="""
Of a run that took longer than a second, what it used over time: processor, memory and processes, one sample a second,
or fewer if it took long.
""",
    examples=(("inspect 01a1e4e2ffbe-8c01c265", "its policy, plan, end, usage, denials and traffic"),),
)
