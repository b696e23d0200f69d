"""A container that sees the host's processes (`container.pid: host`): ending a run ends its own, and nobody else's."""

from __future__ import annotations

import os
import subprocess

import pytest

from belljar import Sandbox
from belljar.sandbox.record.result import Outcome

_UIDS = {"docker": 54_321, "podman": 54_322}
"""Nobody else's here, the other engine's test included: if what is tested failed, nothing else would be hit."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user's")
@pytest.mark.parametrize("engine", _UIDS)
def test_a_run_that_is_ended(need_backend: object, engine: str) -> None:
    """Its daemon goes with it; a process of the same user's outside of the container stays."""
    need_backend(engine)  # type: ignore[operator]
    uid = _UIDS[engine]
    policy = {
        "extends": "unrestricted",
        "container": {"pid": "host"},
        "proc": {"uid": uid, "timeout_ms": "2s"},
        "on_degraded": "allow",
    }
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
    with subprocess.Popen(["sleep", "600"], user=uid) as bystander, Sandbox(policy, backend=engine) as jar:
        try:
            result = jar.run(f"{daemon}print(os.getpid() > 2, flush=True)\ntime.sleep(600)")
            assert (result.outcome, result.stdout) == (Outcome.TIMEOUT, "True\n"), result
            assert bystander.poll() is None
            mine = [name for name in os.listdir("/proc") if name.isdigit() and _user(name) == uid]
            assert mine == [str(bystander.pid)]
        finally:
            bystander.kill()


def _user(name: str) -> int:
    try:
        return os.stat(f"/proc/{name}").st_uid
    except OSError:
        return -1
