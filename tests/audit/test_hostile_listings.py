"""A run id, names and words of an attacker's choice in every listing and every export: nothing moves the cursor."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from belljar.audit.log import audit_log, directory
from belljar.audit.verify import verify

HOSTILE = (
    '=cmd|\'/c x\'!A1\n\r\x1b[2J\x1b]0;title\x07\x9b31m\x00\x7f\u202e\u200f\u2028",;\\ <b>${x}`y` {z="1"} \ud800\udc80é'
)
RUN = f"01a1e4e2ffbe-{HOSTILE}"


@pytest.fixture(autouse=True)
def log() -> None:
    """A log with records of a run in which everything that can be hostile is."""
    common = {"run": RUN, "backend": HOSTILE, "policy": HOSTILE, "language": HOSTILE, "reason": HOSTILE}
    audit_log().append(
        {"event": "created", "kind": HOSTILE, "owner": os.getpid(), "command": [HOSTILE], **common},
        {"event": "egress", "allowed": False, "host": HOSTILE, "path": HOSTILE, "kind": HOSTILE, **common},
        {"event": "denied", "kind": HOSTILE, "target": HOSTILE, "rule": HOSTILE, "where": HOSTILE, **common},
        {"event": "artifacts", "paths": [HOSTILE, "-rf", "../../x"], "count": 3, **common},
        {"event": HOSTILE, HOSTILE: HOSTILE, **common},
        {"event": "finished", "outcome": HOSTILE, "image": HOSTILE, "duration": 1.0, "denials": 1, **common},
    )


def ask(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command."""
    done = subprocess.run([sys.executable, "-m", "belljar", *words], capture_output=True, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def check(data: bytes) -> None:
    """UTF-8, with line ends as the only control characters, and nothing that turns the direction of text."""
    text = data.decode()
    for letter in set(text) - {"\n"}:
        assert unicodedata.category(letter) not in ("Cc", "Cf", "Zl", "Zp", "Cs"), repr(letter)


LISTINGS: list[list[str]] = [
    ["ps", "--all"],
    ["ps", "--all", "--json"],
    ["inspect", RUN[:12]],
    ["inspect", RUN[:12], "--json"],
    ["audit", "tail"],
    ["audit", "tail", "--json"],
    ["audit", "query"],
    ["audit", "query", "--json"],
    ["audit", "export", "--format", "jsonl"],
    ["audit", "export", "--format", "ocsf"],
    ["audit", "verify"],
    ["replay", RUN[:12]],
    ["inspect", "no such \x1b[2J\u202e run"],
    ["kill", "no such \x1b[2J\u202e run"],
    ["metrics"],
    ["metrics", "--json"],
]


@pytest.mark.parametrize("words", LISTINGS, ids=lambda words: ascii(" ".join(words))[1:60])
def test_listings(words: list[str]) -> None:
    """What is shown has nothing hidden in it, and says the name of the run where it is asked for."""
    done = ask(*words)
    check(done.stdout)
    check(done.stderr)
    assert done.stdout or done.stderr
    if words[0] in ("ps", "inspect") and "no such" not in words[1]:
        assert done.returncode == 0
        assert b"01a1e4e2ffbe" in done.stdout
    if "--json" in words or words[-1] in ("jsonl", "ocsf"):
        lines = [done.stdout] if words[0] in ("ps", "inspect", "metrics") else done.stdout.splitlines()
        assert lines
        for line in lines:
            json.loads(line)


def test_csv() -> None:
    """Every cell is what it was, and none begins like a formula. What is in quotes keeps its line ends."""
    done = ask("audit", "export", "--format", "csv")
    rows = list(csv.reader(io.StringIO(done.stdout.decode(), newline="")))
    assert len(rows) == 7
    assert len({len(row) for row in rows}) == 1
    for row in rows[1:]:
        assert not [cell for cell in row if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]
    for letter in ("\x1b", "\x9b", "\x00", "\x07"):
        assert letter not in done.stdout.decode()


def test_syslog(tmp_path: Path) -> None:
    """One message for each record, and no line end in any."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "log"))
        listening.settimeout(10)
        done = ask("audit", "export", "--syslog", str(tmp_path / "log"))
        assert done.returncode == 0, done.stderr
        for _record in range(6):
            message = listening.recv(1 << 20)
            assert message.startswith(b"<")
            check(message)
            assert b"\n" not in message


def test_the_log_itself() -> None:
    """A record is a line, whatever is in it."""
    assert verify(directory()).ok
    (path,) = Path(directory()).glob("*.jsonl")
    lines = path.read_bytes().splitlines()
    assert len(lines) == 6
    for line in lines:
        check(line)
