"""The programs of the guide, as they stand, with the real command and the scripted model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_model import Model, Records, say, use

pytestmark = pytest.mark.backend("bubblewrap")

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/agents.md"
PROGRAMS = dict(re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL))


def run(name: str, tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAMS[name])
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_program_is_run_here() -> None:
    assert list(PROGRAMS) == ["query", "options", "mcp", "bash"]
    assert GUIDE.read_text().count("```python") == len(PROGRAMS)


def test_query(model: Model, tmp_path: Path) -> None:
    code = "a, b = 0, 1\nfor _ in range(100): a, b = b, a + b\nprint(a)"
    model.any_script = [[use("mcp__sandboxed_code__run", code=code)], [say("It is large.")]]

    assert "It is large." in run("query", tmp_path)
    assert model.text_of("any") == "354224848179261915075"


def test_options(model: Model, tmp_path: Path, records: Records) -> None:
    model.any_script = [
        [use("mcp__sandboxed_code__run", code="import socket")],
        [use("mcp__sandboxed_code__exec", command=["sleep", "60"])],
        [use("mcp__sandboxed_code__run", code="x = 78498")],
        [use("mcp__sandboxed_code__run", code="x")],
        [say("ok")],
    ]

    run("options", tmp_path)

    assert "work with the files that you have" in model.text_of("any", 0)
    assert "timeout" in model.text_of("any", 1)
    assert model.text_of("any", 3) == "78498"
    assert [record["allowed"] for record in records("tool")] == [False, True, True, True]


def test_mcp(tmp_path: Path) -> None:
    assert run("mcp", tmp_path) == "42\n\n"


def test_bash(tmp_path: Path) -> None:
    told = run("bash", tmp_path).splitlines()

    assert told[0] == "Bash"
    assert told[1].startswith("6 a.txt")
    assert told[-1] == "hello"
