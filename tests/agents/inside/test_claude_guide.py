"""docs/guides/claude-code.md says what is so: its program runs, its commands and its profile are real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from agent_runs import SECRET, Home
from model_endpoint import ModelEndpoint, bash, say

from belljar.cli.main import find
from belljar.cli.parsing import parse
from belljar.coding_agents.profile import profile_names, read_profile, with_keys_of

GUIDE = (Path(__file__).resolve().parents[3] / "docs/guides/claude-code.md").read_text()


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.usefixtures("claude")
def test_the_program_runs(home: Home, tmp_path: Path) -> None:
    """As it is pasted."""
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "task.py").write_text(program)
    turns = [
        bash("echo text > notes.md; echo x > CLAUDE.md; curl -sS https://example.org; true"),
        say("Notes are there."),
    ]
    with ModelEndpoint(turns) as model:
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, str(tmp_path / "task.py"), "take notes"],
            cwd=home.project,
            env=home.environment(ANTHROPIC_API_KEY=SECRET, ANTHROPIC_BASE_URL=model.url) | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    assert done.returncode == 3, done.stderr  # CLAUDE.md was left out
    assert lines[:2] == ["Notes are there.", "added notes.md"]
    assert lines[2].startswith("added CLAUDE.md left out: Claude Code on the host would act on it: it takes ")
    assert "reached model.belljar.internal 2 requests" in lines
    assert "denied look up example.org to allow: net.allowlist: [example.org]" in lines
    assert (home.project / "notes.md").read_text() == "text\n"
    assert not (home.project / "CLAUDE.md").exists()


def test_commands_are_real() -> None:
    """Their options, too."""
    lines = re.findall(r"^\$ belljar (\w+)(.*?)(?:  +#.*)?$", GUIDE, re.MULTILINE)
    assert len(lines) == 21
    for name, rest in lines:
        parse(find(name), rest.split())


def test_the_profile_is_one(tmp_path: Path) -> None:
    """And the guide names all that come with belljar."""
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(text)
    found = with_keys_of({"EXAMPLE_API_KEY": "key"}, "mine", read_profile(str(tmp_path / "mine.yaml")))
    assert list(found["credentials"]) == ["example"]
    assert all(f"`{name}`" in GUIDE for name in profile_names() if name != "none")
