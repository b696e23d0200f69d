"""llm-sandbox, which is a library: a process in its own virtual environment times it, as often as it is asked to.

A fresh sandbox is a session: opened, one run, closed. Closing waits ten seconds for a container whose first process
ignores SIGTERM, as a shell does; so the container is told to end by SIGKILL, which flatters it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

LLM_SANDBOX = "llm-sandbox"
HOW = 'with SandboxSession(lang="python", image=IMAGE, skip_environment_setup=True, …) as session: session.run("pass")'


class LlmSandbox:
    """The process; ended at the end of the `with`."""

    def __init__(self, python: Path, venv: Path, image: str, mounted: Iterable[str]) -> None:
        volumes = {path: {"bind": path, "mode": "ro"} for path in mounted}
        settings = json.dumps({"venv": str(venv), "image": image, "volumes": volumes})
        self._process = subprocess.Popen(
            [python, "-I", __file__, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.version = self._answer() or "unknown"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.communicate()

    def once(self) -> float:
        """The seconds of one session. Raises ValueError with what went wrong."""
        assert self._process.stdin is not None
        self._process.stdin.write("pass\n")
        self._process.stdin.flush()
        return float(self._answer() or "it ended")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def serve(settings: dict[str, Any]) -> None:
    """In that process: a line of code comes, a line with the seconds goes."""
    from importlib.metadata import version

    from llm_sandbox import SandboxSession  # type: ignore[import-not-found]

    print(version("llm-sandbox"), flush=True)
    container = {
        "network_mode": "none",
        "user": "0:0",
        "stop_signal": "SIGKILL",
        "volumes": settings["volumes"],
        "environment": {"PATH": f"{settings['venv']}/bin:/usr/bin:/bin"},
    }
    how = {"lang": "python", "image": settings["image"], "skip_environment_setup": True, "runtime_configs": container}
    for line in sys.stdin:
        started = time.perf_counter()
        with SandboxSession(**how) as session:
            result = session.run(line.strip())
        taken = time.perf_counter() - started
        print(taken if result.exit_code == 0 else f"it failed: {result.stdout.strip()[:80]}", flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
