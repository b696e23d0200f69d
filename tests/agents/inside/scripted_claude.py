"""A `claude` that is a shell script: what Claude Code itself does is not needed to see what belljar does with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_runs import BELLJAR, SECRET, Home, Ran


@dataclass
class Calls:
    """A user whose `claude` is a shell script, given in each call."""

    home: Home

    def environment(self) -> dict[str, str]:
        path = self.home.directory / "bin"
        program = path / "claude"
        if not path.exists():
            path.mkdir()
            program.write_text('#!/bin/sh\nshift 2\ncd ~/.claude && eval "$1"\n')  # --dangerously-skip-permissions -p
            program.chmod(0o755)
        return {"PATH": f"{path}:{os.environ['PATH']}", "ANTHROPIC_API_KEY": SECRET}

    def __call__(self, script: str, *options: str, cwd: Path | None = None) -> Ran:
        ran = self.home.belljar("claude", *options, "-p", script, cwd=cwd, **self.environment())
        assert ran.code == 0, ran.err
        return ran

    @contextmanager
    def waiting(self, script: str, *options: str) -> Iterator[subprocess.Popen[str]]:
        """A call that has run the script, and ends when its standard input does."""
        process = subprocess.Popen(
            [*BELLJAR, "claude", *options, "-p", f"{script}; echo ready; cat"],
            cwd=self.home.project,
            env=self.home.environment(**self.environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
