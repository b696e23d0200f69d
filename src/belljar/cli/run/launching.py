"""The start of `run` and `exec`: the launcher is forked first, and imports what it needs beside us, not after us."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` wraps, which takes a millisecond to import
import os
import sys
from collections.abc import Callable

from belljar.cli import jar_options
from belljar.cli.parsing import Parsed

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from belljar.cli.run.request import CommandLineRequest
    from belljar.sandbox.run.sandbox import Sandbox


_UNIFIED = "/sys/fs/cgroup/cgroup.controllers"
"""Where cgroup v2 has it all."""


def execute(parsed: Parsed, make_request: Callable[[Sandbox], CommandLineRequest]) -> int:
    """Run what `make_request` says in the jar that the options describe; returns the exit code."""
    jar_options.check(parsed)
    start_launcher(parsed.text("--backend"))
    end_in_order()
    jar_options.note_project_file(parsed)
    jar_options.note_home(parsed)
    from belljar.cli.run.run_to_exit_code import run_once

    return run_once(parsed, make_request)


def start_launcher(backend: str | None) -> None:
    """Fork it, while this process is small and has one thread, if the run may be on bubblewrap."""
    if sys.platform != "linux" or backend not in (None, "auto", "bubblewrap"):
        return
    if os.path.exists(_UNIFIED) and _needs_scope():
        return  # such a launcher is started by systemd-run, not forked
    import_shared()
    from belljar.backends.bubblewrap.host.client import LAUNCHER

    LAUNCHER.start_by_fork()


def import_shared() -> None:
    """What both of them need, while there is one: imported later, it would be imported twice."""
    import fcntl  # noqa: F401
    import select  # noqa: F401

    import belljar.backends.bubblewrap.shared.stage_plan
    import belljar.guest.tree
    import belljar.limits.detect
    import belljar.limits.values  # noqa: F401


def end_in_order() -> None:
    """Have SIGTERM and SIGHUP end the command as an exception does, so that the end of its run is recorded.

    After the launcher was forked, which does not end by signals at all. Who ignores one, as `nohup` does, goes on.
    """
    for number in (_signal.SIGTERM, _signal.SIGHUP):
        if _signal.getsignal(number) == _signal.SIG_DFL:
            _signal.signal(number, _told_to_end)


def _told_to_end(number: int, _frame: object) -> None:
    for other in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(other, _signal.SIG_IGN)  # a second one must not interrupt the cleaning up
    sys.exit(128 + number)


def _needs_scope() -> bool:
    from belljar.backends.bubblewrap.host.facts import cgroup_support
    from belljar.limits.detect import Mechanism

    return cgroup_support().mechanism is Mechanism.V2_SYSTEMD
