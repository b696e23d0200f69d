"""Where it is measured: a clean virtual environment, one with belljar, and the variables of every command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".cache/peers"
"""Where install_peers.py puts what belljar is compared with."""
SYSTEM_PATH = "/usr/bin:/bin:/usr/local/bin"


@dataclass(frozen=True)
class Place:
    """One measurement's own directory, with everything that its commands find or write."""

    top: Path
    venv: Path
    belljar: str
    environment: dict[str, str]

    @property
    def python(self) -> str:
        return str(self.venv / "bin/python")


def prepare(top: Path) -> Place:
    """Makes both environments, and a working directory in which nothing lies."""
    for name in ("home", "temporary", "codex", "empty"):
        (top / name).mkdir()
    os.chdir(top / "empty")
    venv = make_venv(top / "clean")
    return Place(top, venv, install(make_venv(top / "installed")), _environment(top))


def make_venv(path: Path) -> Path:
    """A clean one, from the interpreter beneath this one."""
    subprocess.run([base_python(), "-I", "-m", "venv", "--without-pip", path], check=True)
    return path


def base_python() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def install(venv: Path) -> str:
    """Install belljar as its users do, into a virtual environment of its own. The command's path."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--python"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [*pip, str(venv / "bin/python"), "install", "--quiet", "--quiet", "--compile", str(ROOT)]
    subprocess.run(command, check=True, env=environment)
    return str(venv / "bin/belljar")


def _environment(top: Path) -> dict[str, str]:
    """The same for every command. Codex refuses a home beneath the directory for temporary files."""
    node = shutil.which("node")
    found = {
        "PATH": f"{SYSTEM_PATH}:{os.path.dirname(node)}" if node else SYSTEM_PATH,
        "HOME": str(top / "home"),
        "TMPDIR": str(top / "temporary"),
        "CODEX_HOME": str(top / "codex"),
        "BELLJAR_STATE_DIR": str(top / "state"),
    }
    return found | {name: os.environ[name] for name in ("DOCKER_HOST",) if name in os.environ}
