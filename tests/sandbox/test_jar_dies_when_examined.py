"""A jar that is killed while the stage looks into it: nobody waits for what it can no longer do."""

from __future__ import annotations

import os
import select
import time

import pytest

from belljar.backends.bubblewrap.stage import isolation_check


def test_pid_1_is_dead() -> None:
    """It has no filter any more, and will not put one on: that is told at once."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    ended = os.pidfd_open(pid)
    try:
        select.select([ended], [], [], 10)
        jar = isolation_check.WaitingJar(
            pid, -1, pid, -1, isolation_check._status(pid), {"kernel_uid": os.getuid()}, lambda: None
        )
        started = time.monotonic()
        with pytest.raises(ProcessLookupError):
            list(isolation_check._privileges(jar))
        assert time.monotonic() - started < isolation_check._SETTLE_SECONDS / 2
    finally:
        os.close(ended)
        os.waitpid(pid, 0)
