"""Installs what `make bench` compares belljar with, from npm and PyPI, into .cache/peers; the rest is Debian's.

What can't be had is named, and the benchmark goes without it. Versions are ranges: a newer one is taken the next
time, and the results say which it was.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence

from environments import PEERS, base_python

NPM = {"srt": "@anthropic-ai/sandbox-runtime@>=0.0.70 <0.1", "Codex": "@openai/codex@>=0.160 <0.200"}
PYPI = {"llm-sandbox": "llm-sandbox[docker]>=0.3.40,<0.4", "pandas": "pandas>=2.2,<4"}
INSTALL_SECONDS = 900


def main() -> int:
    """Always zero: that something can't be had is not an error."""
    PEERS.mkdir(parents=True, exist_ok=True)
    (PEERS / "npm").mkdir(exist_ok=True)
    for name, wanted in NPM.items():
        tell(name, wanted, from_npm(wanted))
    for name, wanted in PYPI.items():
        tell(name, wanted, from_pypi(name, wanted))
    return 0


def from_npm(wanted: str) -> str:
    """Why it can't be had, or nothing."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    return why_not([npm, "install", "--prefix", str(PEERS / "npm"), "--no-audit", "--no-fund", wanted])


def from_pypi(name: str, wanted: str) -> str:
    """Into a virtual environment of its own, with the interpreter that is measured."""
    python = PEERS / name / "bin/python"
    if not python.exists() and (why := why_not([base_python(), "-I", "-m", "venv", str(PEERS / name)])):
        return why
    return why_not(
        [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", wanted]
    )


def why_not(command: Sequence[str]) -> str:
    """The last line of what it complained of."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line for line in done.stderr.splitlines() if "rror" in line] or ["it failed"]
    return lines[0].strip() if done.returncode else ""


def tell(name: str, wanted: str, why: str) -> None:
    print(f"{name}: {f'could not be had: {why}' if why else 'installed'} ({wanted})", file=sys.stderr if why else None)


if __name__ == "__main__":
    raise SystemExit(main())
