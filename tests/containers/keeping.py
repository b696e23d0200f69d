"""A program for the keeper's tests: makes a volume and containers as belljar does, says so, and waits for its end.

python keeping.py HOW-IT-ENDS BACKEND RUNTIME PREFIX COUNT IMAGE
"""

from __future__ import annotations

import os
import signal
import sys

from belljar.backends.container.engine.cleanup_process import CLEANUP_PROCESS, labels
from belljar.backends.container.engine.engine import find_engine


def main() -> None:
    """Names are PREFIX-v, PREFIX-0, PREFIX-1…"""
    how, backend, runtime, prefix, count, image = sys.argv[1:]
    engine = find_engine(backend, "auto", runtime)
    names = [f"{prefix}-{number}" for number in range(int(count))]
    CLEANUP_PROCESS.add(engine.command(), "volume", f"{prefix}-v")
    engine.run("volume", "create", *labels(prefix), f"{prefix}-v")
    for name in names:
        CLEANUP_PROCESS.add(engine.command(), "container", name)
        volume = f"{prefix}-v:/kept"
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
        options = ("--pull", "never", "--network", "none", "--volume", volume, *limits, *engine.run_options())
        engine.run("run", "-d", "--name", name, *labels(prefix), *options, "--entrypoint", "sleep", image, "1000")
    if how == "done":
        for name in (*names, f"{prefix}-v"):
            CLEANUP_PROCESS.done(name)
    if how == "keeper killed":
        os.kill(CLEANUP_PROCESS._pid, signal.SIGKILL)
        os.waitid(os.P_PID, CLEANUP_PROCESS._pid, os.WEXITED | os.WNOWAIT)
        CLEANUP_PROCESS.add(engine.command(), "container", f"{prefix}-never-made")
    if how == "forked" and os.fork() == 0:
        sys.exit()
    print("ready", CLEANUP_PROCESS._pid, flush=True)
    sys.stdin.read()
    if how == "raises":
        raise SystemExit(3)


main()
