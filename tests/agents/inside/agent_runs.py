"""`belljar claude` and `belljar agent` as people call them: in a process of their own, in a repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BELLJAR = [sys.executable, "-m", "belljar"]
SECRET = "sk-ant-api03-s3cret-of-the-host-4711"
"""The key that no jar may hold."""


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Home:
    """A user with a home that holds what an agent must not see, and a project."""

    directory: Path
    project: Path

    def environment(self, **extra: str) -> dict[str, str]:
        """With no key, and nothing else of the environment of the tests but what leads to programs."""
        names = ("PATH", "BELLJAR_STATE_DIR", "BELLJAR_CGROUP", "XDG_RUNTIME_DIR", "PYTHONPATH", "BELLJAR_MUST_WORK")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        return {**kept, "HOME": str(self.directory), **extra}

    def belljar(self, *words: str, cwd: Path | None = None, **extra: str) -> Ran:
        """Run `belljar WORDS…` in the project, with nothing on standard input."""
        done = subprocess.run(
            [*BELLJAR, *words],
            cwd=cwd or self.project,
            env=self.environment(**extra),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=150,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def agent(self, script: str, *options: str, **extra: Any) -> Ran:
        """An agent that is a shell script: what it does needs no model."""
        return self.belljar("agent", *options, "--", "sh", "-c", script, **extra)

    def kept(self, told: str = "") -> str:
        """The only run whose work is kept, or the one that this text names."""
        names = re.findall(r"`belljar review (\S+)`", told)
        return names[-1] if told else self.belljar("review", "--json").json[0]["run"]

    def patch(self, run: str, *options: str) -> str:
        """The patch of a run, as a file."""
        file = self.directory / f"{run}.patch"
        file.write_bytes(self.raw("review", run, "--patch", *options))
        return str(file)

    def raw(self, *words: str) -> bytes:
        """What `belljar WORDS…` writes to its standard output."""
        environment = self.environment()
        done = subprocess.run([*BELLJAR, *words], cwd=self.project, env=environment, capture_output=True, check=False)
        return done.stdout

    def files(self) -> dict[str, str]:
        """All of the project but the data of its repository."""
        found = {}
        for path in sorted(self.project.rglob("*")):
            name = str(path.relative_to(self.project))
            if path.is_file() and not name.startswith(".git/objects"):
                found[name] = path.read_text(errors="replace")
        return found


def git(directory: Path, *words: str) -> str:
    """Git on the host, as someone who has no settings."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=Host", "-c", "user.email=host@example.com", "-c", "safe.directory=*"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=directory, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def make_home(directory: Path) -> Home:
    """The user's home, and a project in it with one commit."""
    home = Home(directory, directory / "project")
    (directory / ".ssh").mkdir(parents=True)
    (directory / ".ssh/id_ed25519").write_text("PRIVATE-KEY-OF-THE-USER\n")
    (directory / ".gitconfig").write_text('[user]\n\tname = "Ada \\"the first\\" L; # 1"\n\temail = ada@example.com\n')
    home.project.mkdir()
    git(home.project, "init", "-q", "-b", "main")
    (home.project / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    (home.project / ".env").write_text("TOKEN=of-the-project\n")
    git(home.project, "add", "sums.py")
    git(home.project, "commit", "-q", "-m", "first")
    return home
