"""Agents in a jar: the real Claude Code, with a model on loopback that says what the test wrote."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from agent_runs import Home, make_home
from scripted_claude import Calls


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A user with a project."""
    return make_home(tmp_path / "home")


@pytest.fixture(scope="session")
def claude() -> str:
    """The Claude Code that the SDK's wheel carries."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    path = os.path.join(os.path.dirname(spec.origin), "_bundled/claude") if spec and spec.origin else ""
    if not os.path.isfile(path):
        pytest.skip("claude-agent-sdk is not installed here, or has no program for this machine")
    return path


@pytest.fixture
def calls(home: Home) -> Calls:
    """Calls of `belljar claude` with a program of the test's own."""
    return Calls(home)
