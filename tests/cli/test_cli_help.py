"""Help: what it says, what it costs, and the reference page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import Ran

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = (
    "argparse",
    "yaml",
    "dataclasses",
    "asyncio",
    "json",
    "inspect",
    "click",
    "rich",
    "pydantic",
    "subprocess",
    "ctypes",
)
WATCH = """
import sys
from belljar.cli.main import main
code = main({words!r})
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["policy", "--help"], ["run", "--help"], ["exec", "--help"]]
)
def test_help_imports_little(words: list[str]) -> None:
    """Start-up time is a feature: none of what is expensive is imported to say what belljar can do."""
    command = [sys.executable, "-I", "-c", WATCH.format(words=words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stderr.split())
    assert not [name for name in done.stderr.split() if name.startswith(("belljar.policy", "belljar.sandbox"))]


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_top_level(belljar: Callable[..., Ran], words: list[str]) -> None:
    """Three ways to ask."""
    ran = belljar(*words)
    assert ran.code == 0
    assert "usage: belljar COMMAND [OPTIONS]" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize("words", [["run", "--help"], ["help", "run"], ["run", "x.py", "-h"]])
def test_of_a_command(belljar: Callable[..., Ran], words: list[str]) -> None:
    """Wherever `--help` stands among belljar's own words."""
    ran = belljar(*words)
    assert ran.code == 0
    assert ran.out.startswith("usage: belljar run [OPTIONS] FILE|-|-c CODE")


def test_nothing_said(belljar: Callable[..., Ran]) -> None:
    """Without a word the help is a complaint: on standard error, with the code of one."""
    ran = belljar()
    assert (ran.code, ran.out) == (2, "")
    assert "usage: belljar" in ran.err


def test_the_reference_page_is_current() -> None:
    """docs/reference/cli.md is generated from the same tables."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/generate_cli.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
