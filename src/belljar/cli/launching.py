"""The start of `run` and `exec`: the launcher is forked first, and imports what it needs beside us, not after us."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from belljar.cli import jar_options
from belljar.cli.parsing import Parsed

TYPE_CHECKING = False  # see policy/records.py
if TYPE_CHECKING:
    from belljar.cli.request import Request
    from belljar.sandbox.sandbox import Sandbox


_UNIFIED = "/sys/fs/cgroup/cgroup.controllers"
"""Where cgroup v2 has it all."""


def execute(parsed: Parsed, make_request: Callable[[Sandbox], Request]) -> int:
    """Run what `make_request` says in the jar that the options describe; returns the exit code."""
    jar_options.check(parsed)
    start_launcher(parsed.text("--backend"))
    jar_options.note_project_file(parsed)
    from belljar.cli.running import run_once

    return run_once(parsed, make_request)


def start_launcher(backend: str | None) -> None:
    """Fork it, while this process is small and has one thread, if the run may be on bubblewrap."""
    if sys.platform != "linux" or backend not in (None, "auto", "bubblewrap"):
        return
    if os.path.exists(_UNIFIED) and _needs_scope():
        return  # such a launcher is started by systemd-run, not forked
    from belljar.backends.bubblewrap.client import LAUNCHER

    LAUNCHER.start_by_fork()


def _needs_scope() -> bool:
    from belljar.backends.bubblewrap.host import cgroup_support
    from belljar.limits.detect import Mechanism

    return cgroup_support().mechanism is Mechanism.V2_SYSTEMD
