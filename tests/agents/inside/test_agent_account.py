"""What an agent did, as its transcript has it: told at the end, kept for later, and never trusted."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from agent_runs import BELLJAR, SECRET, Home
from model_endpoint import ModelEndpoint, bash, say, use

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]

KEY = "AKIAQ3EGRYDNV7ZK2XWA"
"""Shaped as a key of AWS."""


@pytest.mark.usefixtures("claude")
def test_what_claude_did(home: Home) -> None:
    """Its commands, tools, time and tokens: in the summary, in JSON, by `inspect`, and redacted wherever it is kept."""
    turns = [
        bash(f"echo {KEY}"),
        bash("git status --short\necho more"),
        use("Write", file_path=f"{home.project}/new.txt", content="new\n"),
        say("Done."),
    ]
    for options in ((), ("--json",)):
        with ModelEndpoint(turns) as model:
            ran = home.belljar("claude", *options, "-p", "go", ANTHROPIC_API_KEY=SECRET, ANTHROPIC_BASE_URL=model.url)
        assert ran.code == 0, ran.err
        assert KEY not in ran.err
        if not options:
            (line,) = [line for line in ran.err.splitlines() if line.startswith("belljar: ran ")]
            assert line.startswith("belljar: ran        2 commands: echo <")
            assert line.endswith(", git status --short…")
            assert " s, 40 tokens in, 40 out, 1 other tool call\n" in ran.err
            (listed,) = home.belljar("ps", "--all").out.splitlines()[1:]
            assert "  claude in /" in listed
            assert "/home/project  " in listed
    told = ran.json
    assert told["tools"] == {"Bash": 2, "Write": 1}
    assert told["tokens"] == {"input": 40, "output": 40}
    assert told["commands"][1] == "git status --short\necho more"
    kept = Path(told["transcript"])
    assert kept.stat().st_mode & 0o777 == 0o600
    entries = [json.loads(line) for line in kept.read_text().splitlines()]
    assert KEY not in kept.read_text()
    assert {entry["type"] for entry in entries} == {"user", "assistant"}
    shown = home.belljar("inspect", told["run_id"]).out
    assert KEY not in shown
    assert f"agent claude in {home.project}\n  tokens: 40 in, 40 out; tools: Bash 2, Write 1\n" in shown
    assert f"  transcript: {kept}\n  $ echo <" in shown
    assert "\n  $ git status --short\\x0aecho more\n" in shown
    kept.write_text("something else")
    assert "transcript: it is gone, or is not what it was" in home.belljar("inspect", told["run_id"]).out


HOSTILE = r"""
import json, os
place = os.path.expanduser("~/.claude/projects/p")
os.makedirs(place)
def entry(**more):
    return json.dumps({"type": "assistant", **more}) + "\n"
def ran(command):
    return entry(message={"content": [{"type": "tool_use", "name": "Bash", "input": {"command": command}}]})
lines = [
    "no json\n", "[1]\n", '"text"\n', "[" * 100000 + "\n", "1" * 5000 + "\n", entry(), entry(message=7),
    entry(message={"content": 7, "usage": {"input_tokens": "x", "output_tokens": -5}}),
    entry(message={"content": [7, {"type": "tool_use", "name": ["x"], "input": 7}], "usage": [1]}),
    entry(message={"id": "b", "usage": {"input_tokens": 1 << 90, "output_tokens": True}}),
    entry(message={"content": [{"type": "tool_use", "name": "Bash", "input": {"command": {"a": 1}}}]}),
    entry(timestamp="2001-01-01T00:00:00.000Z", message={"usage": {"input_tokens": 1000}}),
    ran("evil \x1b]52;c;aGk=\x07 \ud800 \u202e"), ran("plain"),
]
deep = "x"
for _ in range(500):
    deep = [deep]
lines.append(entry(deep=deep))
open(f"{place}/one.jsonl", "wb").write("".join(lines).encode() + b"\xff\xfe\n")
os.symlink("/etc/passwd", f"{place}/link.jsonl")
os.mkfifo(f"{place}/pipe.jsonl")
os.mkdir(f"{place}/directory.jsonl")
with open(f"{place}/large.jsonl", "wb") as file:
    file.truncate(1 << 30)
"""


def test_a_transcript_that_lies(home: Home) -> None:
    """Nothing in it breaks the end of the run, or reaches the terminal as it is."""
    (home.project / "hostile.py").write_text(HOSTILE)
    ran = home.belljar("agent", "--", "python3", "hostile.py")
    assert ran.code == 0, ran.err
    (line,) = [line for line in ran.err.splitlines() if line.startswith("belljar: ran ")]
    assert line == "belljar: ran        2 commands: evil \\x1b]52;c;aGk=\\x07 \\ud800 \\u202e, plain"
    assert " s, 0 tokens in, 0 out, " in ran.err
    assert "root:" not in ran.err
    ran = home.belljar("agent", "--json", "--", "python3", "hostile.py")
    assert ran.json["commands"][1] == "plain"
    assert "\\x1b]52" in home.belljar("inspect", ran.json["run_id"]).out


def test_an_agent_without_a_transcript(home: Home) -> None:
    """What it is and where it worked is known all the same."""
    ran = home.agent("mkdir -p ~/.claude; ln -s /proc ~/.claude/projects", "--json")
    assert (ran.code, ran.json["commands"], ran.json["transcript"]) == (0, [], None), ran.err
    assert f"agent sh in {home.project}\n" in home.belljar("inspect", ran.json["run_id"]).out


def test_an_agent_that_is_interrupted(home: Home) -> None:
    """Its account is kept as that of any other."""
    called = r'{"type":"tool_use","name":"Bash","input":{"command":"ma\u006be"}}'
    line = f'{{"type":"assistant","message":{{"content":[{called}]}}}}'
    script = f"mkdir -p ~/.claude/projects/x; echo '{line}' > ~/.claude/projects/x/a.jsonl; echo ready; sleep 600"
    words = [*BELLJAR, "agent", "--", "sh", "-c", script]
    with subprocess.Popen(
        words, cwd=home.project, env=home.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (run,) = json.loads(home.belljar("ps", "--json").out)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert "make" in home.belljar("inspect", run["run"]).out, "in the script it is written otherwise"
