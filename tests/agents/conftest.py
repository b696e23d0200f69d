"""What the agents' tests share: a model that plays scripts, a home that is empty, and the audit log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scripted_model import Model, Records


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """The scripted model; the Claude Code command of this test speaks to it, and to nothing else."""
    made = Model()
    home = tmp_path / "home"
    home.mkdir()
    for name, value in {
        "ANTHROPIC_BASE_URL": made.url,
        "ANTHROPIC_API_KEY": "sk-ant-of-the-tests",
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("ANTHROPIC_AUTH_TOKEN", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield made
    made.close()


@pytest.fixture
def records(state_directory: str) -> Records:
    """The records of the audit log with this event, or all."""

    def read(*events: str) -> list[dict[str, Any]]:
        days = sorted(Path(state_directory, "audit").glob("*.jsonl"))
        lines = [line for path in days for line in path.read_text().splitlines()]
        return [record for record in map(json.loads, lines) if not events or record["event"] in events]

    return read
