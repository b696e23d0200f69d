"""What starts the tests' container engines: it hands the command's exit code on, and takes no engine but its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[1] / "engines/run.py"


def engines(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"BELLJAR_TEST_ENGINES": "here"}
    command = [sys.executable, RUN, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_commands(script: str, code: int) -> None:
    """Also that of a command which was killed, as a shell counts it."""
    assert engines("around", "--", "sh", "-c", script).returncode == code


def test_the_engines_that_are_here() -> None:
    """A command that shall use the engines that are here gets the caller's variables, and hears so."""
    done = engines("around", "--", "sh", "-c", "echo ${DOCKER_HOST:-none}")
    assert done.stdout.strip() == os.environ.get("DOCKER_HOST", "none")
    assert "BELLJAR_TEST_ENGINES=here" in done.stderr


def test_podman_settings(tmp_path: Path) -> None:
    """An ordinary user's podman keeps everything in the directory that was named."""
    done = engines("podman-settings", str(tmp_path))
    assert f"export CONTAINERS_CONF={tmp_path}/containers.conf" in done.stdout
    assert f'graphroot = "{tmp_path}/images"' in (tmp_path / "storage.conf").read_text()
    assert 'runtime = "runc"' in (tmp_path / "containers.conf").read_text()
