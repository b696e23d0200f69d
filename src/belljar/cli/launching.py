"""Starts the launcher as early as it can be, while this process is small and has one thread."""

from __future__ import annotations

import sys


def start_launcher(backend: str | None) -> None:
    """Fork it, if the run may be on bubblewrap. Otherwise the backend starts what it needs, in its own time."""
    if sys.platform != "linux" or backend not in (None, "auto", "bubblewrap"):
        return
    from belljar.backends.bubblewrap.host import cgroup_support, find_bwrap
    from belljar.limits.detect import Mechanism

    if find_bwrap() is None or cgroup_support().mechanism is Mechanism.V2_SYSTEMD:
        return  # a launcher that needs a scope of its own is started by systemd-run, not forked
    from belljar.backends.bubblewrap.client import LAUNCHER

    LAUNCHER.start_by_fork()
