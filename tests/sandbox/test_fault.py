"""Whose fault the end of a run is; and that code can't make its own failure look like one of the machine's."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belljar import Fault, Pool, RunResult, Sandbox, SandboxUnavailableError, Session
from belljar.audit import killswitch
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.backends.bubblewrap.host.client import LAUNCHER
from belljar.errors import AuditError, BelljarError, KillSwitchError
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.events import Finished

pytestmark = pytest.mark.backend("bubblewrap")

LIMITS: dict[str, Any] = {"proc": {"timeout_ms": 1500, "mem_mb": 64, "output_mb": 1, "pids": 30}}
SLEEPS = "print('up', flush=True); import time; time.sleep(60)"


SECONDS = str(1_000_000 + os.getpid())
CHILD_SLEEPS = f"import subprocess; p = subprocess.Popen(['sleep', '{SECONDS}']); print('up', flush=True); p.wait()"


def in_sandbox(code: str) -> RunResult:
    with Sandbox(LIMITS) as jar:
        return jar.run(code)


def in_pool(code: str) -> RunResult:
    with Pool(LIMITS, size=1) as pool:
        return pool.run(code)


def recorded(run_id: str) -> list[str]:
    """The fault in each record of the run's end."""
    ends = ("finished", "refused", "lost")
    found = [record for record in records(directory()) if record.get("run") == run_id]
    return [record["fault"] for record in found if record["event"] in ends]


# --- each class ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [in_sandbox, in_pool])
@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("print(1)", Fault.NONE),
        ("raise SystemExit(3)", Fault.CODE),
        ("1 / 0", Fault.CODE),
        ("import os; os.abort()", Fault.CODE),
        ("while True: pass", Fault.CODE),
        ("x = bytearray(200 << 20)", Fault.CODE),
        ("while True: print('x' * 1000)", Fault.CODE),
    ],
)
def test_the_class_of_a_result(run: Callable[[str], RunResult], code: str, fault: Fault) -> None:
    result = run(code)
    assert result.fault is fault
    assert result.to_dict()["fault"] == fault
    assert recorded(result.run_id) == [fault]


def test_a_refused_run() -> None:
    with Sandbox({"on_degraded": "refuse", "backend": "unconfined"}) as jar:
        assert jar.run("print(1)").fault is Fault.POLICY


@pytest.mark.parametrize(("reason", "fault"), [("it looks odd", Fault.POLICY), ("abandoned", Fault.NONE)])
def test_a_run_that_is_killed(reason: str, fault: Fault) -> None:
    """An operator's reason is the policy's side; that its caller went away is nobody's fault."""
    with Sandbox() as jar:
        stream = jar.stream(SLEEPS)
        next(iter(stream))
        CONTROL.kill("*", reason)
        result = list(stream)[-1].result  # type: ignore[union-attr]
    assert result.fault is fault
    assert recorded(result.run_id) == [fault]


def test_the_kill_switch() -> None:
    killswitch.turn_on("a test")
    try:
        with Sandbox() as jar, pytest.raises(KillSwitchError) as raised:
            jar.run("print(1)")
    finally:
        killswitch.turn_off()
    assert raised.value.fault == "policy"
    assert not isinstance(raised.value, SandboxUnavailableError)


def test_classes_of_exceptions() -> None:
    assert not issubclass(AuditError, SandboxUnavailableError)
    assert not issubclass(KillSwitchError, SandboxUnavailableError)
    assert (AuditError("x").fault, SandboxUnavailableError("x").fault, BelljarError("x").fault) == (
        "infra",
        "infra",
        "none",
    )


def test_a_launcher_that_is_killed_is_infra() -> None:
    with Sandbox() as jar:
        stream = jar.stream(SLEEPS)
        next(iter(stream))
        run_id = jar.last_run
        os.kill(LAUNCHER._pid, signal.SIGKILL)
        with pytest.raises(SandboxUnavailableError) as raised:
            list(stream)
    assert raised.value.fault == "infra"
    assert recorded(run_id) == ["infra"]


# --- code that would like another try --------------------------------------------------------------------------------

ATTEMPTS = {
    "kills pid 1": "import os\nfor number in range(1, 65):\n    os.kill(1, number)",
    "kills everyone": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "takes pid 1's time": "import resource\nresource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
    "takes pid 1's memory": "import resource\nresource.prlimit(1, resource.RLIMIT_AS, (0, 0))",
    "closes all": "import os\nos.closerange(0, 4096)",
    "writes to all": "import os\nfor fd in range(256):\n    try: os.write(fd, b'F' * 100)\n    except OSError: pass",
    "hangs up all": (
        "import os, socket\nfor fd in range(3, 256):\n"
        "    try: socket.socket(fileno=fd).shutdown(2)\n    except OSError: pass"
    ),
    "stops everyone": "import os, signal\nos.kill(-1, signal.SIGSTOP)",
    "traces pid 1": (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "for request in (16, 0x4206): print(libc.ptrace(request, 1, 0, 0))\nopen('/proc/1/mem', 'wb').write(b'x')"
    ),
    "uses up memory": "import os\nwhile True:\n    if not os.fork():\n        x = bytearray(30 << 20)",
    "uses up processes": "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.1)",
    "is a warning": "import sys\nsys.stderr.write('the jar was lost: the engine is gone')\nsys.exit(125)",
}


@pytest.mark.parametrize("run", [in_sandbox, in_pool])
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_code_does_not_look_like_infra(run: Callable[[str], RunResult], attempt: str) -> None:
    """No exception, and never `infra`. The runs of `test_a_launcher_that_is_killed_is_infra` are the control."""
    assert run(ATTEMPTS[attempt]).fault in (Fault.NONE, Fault.CODE, Fault.POLICY)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_step_does_not_look_like_infra(attempt: str) -> None:
    with Session(LIMITS) as session:
        assert session.run(ATTEMPTS[attempt]).fault in (Fault.NONE, Fault.CODE, Fault.POLICY)


def test_a_full_workspace_is_the_code_s_fault() -> None:
    """Another run can't be started meanwhile, and that is not the machine's fault."""
    fills = (
        "import itertools, time\ntry:\n    for n in itertools.count(): open(f'f{n}', 'w')\n"
        "except OSError: print('full', flush=True)\ntime.sleep(60)"
    )
    with Sandbox({"fs": {"size_mb": 2, "inodes": 64}}, one_shot=True) as jar:
        stream = jar.stream(fills)
        next(iter(stream))
        with pytest.raises(SandboxUnavailableError, match="the workspace is full") as raised:
            jar.run("print(1)")
        stream.kill()
    assert raised.value.fault == "code"


def test_a_first_process_that_is_killed_alone_may_be_the_code_s_doing() -> None:
    """Nobody can tell who did it. So it is a result, and no reason to try again. Its zygote lives on."""
    with Pool(size=1) as pool:
        assert pool.run("print(1)").ok
        stream = pool.stream(CHILD_SLEEPS)
        next(iter(stream))
        os.kill(_first_process(), signal.SIGKILL)
        (last,) = stream
        assert isinstance(last, Finished)
        assert last.result.fault is Fault.CODE
        assert "first process was killed" in last.result.reason
        assert pool.run("print(1)").ok
        assert pool.statistics().zygotes == 1


def _first_process() -> int:
    """The pid 1 of the jar that runs `CHILD_SLEEPS`."""
    (pid,) = [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_the_child(name)]
    while True:
        fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if fields["NSpid"].split()[-1] == "1":
            return pid
        pid = int(fields["PPid"])


def _is_the_child(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{SECONDS}\0".encode()
    return False
