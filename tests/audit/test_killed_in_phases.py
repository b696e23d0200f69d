"""SIGKILL of belljar in each phase of a run: what the log says then, what `ps` says, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from belljar.audit.log import audit_log, directory
from belljar.audit.reading import records
from belljar.audit.verify import verify
from belljar.sandbox.record.remote import running

# Each phase is a method that is wrapped, so that the process kills itself before or after it: no clock decides.
PROGRAM = """
import os, signal, sys
from belljar import Sandbox
from belljar.sandbox.run import lifecycle
from belljar.sandbox.record import recording
from belljar.sandbox.record.events import Output
phase, marker = sys.argv[1:]
def die(*_):
    print(phase, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
def wrap(owner, name, *, before):
    inner = getattr(owner, name)
    def outer(*arguments, **named):
        if before: die()
        inner(*arguments, **named)
        die()
    setattr(owner, name, outer)
jar = Sandbox()
if phase == "compile": wrap(type(jar._backend), "compile", before=False)
if phase == "recorded": wrap(recording, "begin", before=False)
if phase == "launch": wrap(type(jar._open()), "launch", before=True)
if phase == "gate": wrap(type(jar._open()), "launch", before=False)
if phase == "collecting": wrap(lifecycle, "settle", before=True)
if phase == "ending": wrap(recording, "finish", before=False)
code = "import time; print(1, flush=True)" + ("; time.sleep(1000)" if phase == "executing" else "")
for event in jar.stream(code, args=[marker]):
    if phase == "executing" and isinstance(event, Output): die()
"""
BEGUN = ["created", "plan", "started"]
PHASES: dict[str, tuple[list[str], str]] = {
    # What the log has of the run, and what `ps --all` says of it.
    "compile": ([], ""),
    "recorded": (BEGUN[:2], "unfinished"),
    "launch": (BEGUN, "unfinished"),
    "gate": (BEGUN, "unfinished"),
    "executing": (BEGUN, "unfinished"),
    "collecting": (BEGUN, "unfinished"),
    "ending": ([*BEGUN, "canaries", "finished"], "ok"),
}


def processes(marker: str) -> list[str]:
    """Those that have the marker among their arguments."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_killed(phase: str) -> None:
    """The log is in order and goes on, the run has no end in it, and no process of it lives."""
    marker = f"marker-{os.urandom(8).hex()}"
    done = subprocess.run([sys.executable, "-c", PROGRAM, phase, marker], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, f"{phase}\n"), done.stderr
    deadline = time.monotonic() + 30
    while processes(marker):
        assert time.monotonic() < deadline, processes(marker)
        time.sleep(0.02)
    assert running() == []
    events, state = PHASES[phase]
    assert [one["event"] for one in records(directory()) if "run" in one] == events
    listed = subprocess.run([sys.executable, "-m", "belljar", "ps", "-a", "--json"], capture_output=True, check=True)
    assert [row["state"] for row in json.loads(listed.stdout)] == ([state] if state else [])
    assert verify(directory()).ok
    audit_log().append({"event": "after"})
    assert verify(directory()).ok


FULL = """
import os, subprocess, sys
state = os.environ["BELLJAR_STATE_DIR"]
run = [sys.executable, "-m", "belljar", "run", "-c", "print('ran')"]
first = subprocess.run(run, capture_output=True, text=True)
assert first.stdout == "ran\\n", first
with open(f"{state}/ballast", "wb", buffering=0) as file:
    try:
        while True: file.write(b"x" * 4096)
    except OSError:
        pass
for _ in range(20):  # what is left of the last block is used up; a run whose end does not fit has run
    full = subprocess.run(run, capture_output=True, text=True)
    if full.returncode and not full.stdout: break
os.unlink(f"{state}/ballast")
again = subprocess.run(run, capture_output=True, text=True)
verified = subprocess.run([sys.executable, "-m", "belljar", "audit", "verify"], capture_output=True, text=True)
assert verified.returncode == 0, verified
print(full.returncode, repr(full.stdout), again.stdout, full.stderr)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk has to be mounted, which only root may do")
def test_nothing_runs_on_a_full_disk(tmp_path: Path) -> None:
    """The command says why, and what to do; no record is harmed, and with room it goes on."""
    inside = f'mount -t tmpfs -o size=512k none {tmp_path} && exec {sys.executable} -c "$0"'
    environment = {**os.environ, "BELLJAR_STATE_DIR": str(tmp_path)}
    command = ["unshare", "--mount", "sh", "-c", inside, FULL]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    code, *_ = done.stdout.split(" ")
    assert int(code) not in (0, 1)
    assert " '' ran\n" in done.stdout
    assert "No space left on device" in done.stdout
    assert "hint: nothing runs unrecorded: make room on that disk" in done.stdout
    assert "Traceback" not in done.stdout
