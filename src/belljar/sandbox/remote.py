"""Runs of every belljar process of this user: what runs, and how to end it, from any process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from typing import Any

from belljar.audit.log import record
from belljar.sandbox.control import control_directory

_ANSWER_SECONDS = 1.0
_GONE_SECONDS = 5.0
_LONGEST = 8 << 20


def running() -> list[dict[str, Any]]:
    """Every run in progress, the oldest first."""
    found: list[dict[str, Any]] = []
    for pid in _owners():
        answer = _ask(pid, {"op": "list"})
        found += answer.get("runs", []) if answer else []
    return sorted(found, key=lambda run: float(run.get("since", 0)))


def kill(run_id: str, reason: str) -> list[str]:
    """End a run, or with `*` all of them, and wait until they are gone. Which ones.

    A process that does not answer is killed itself, and its jars with it: they live only as long as it does.
    """
    record("kill", run=None if run_id == "*" else run_id, all=run_id == "*", reason=reason)
    killed: list[str] = []
    for pid in _owners():
        answer = _ask(pid, {"op": "kill", "run": run_id, "reason": reason})
        if answer is not None:
            killed += [str(name) for name in answer.get("killed", [])]
        elif run_id == "*" and _alive(pid):
            record("kill", owner=pid, reason=f"its process does not answer: {reason}")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.append(f"process {pid}")
    deadline = time.monotonic() + _GONE_SECONDS
    while {run["run"] for run in running()} & set(killed) and time.monotonic() < deadline:
        time.sleep(0.02)
    return killed


def _owners() -> list[int]:
    """The processes that run jars; the sockets of those that were killed are removed."""
    try:
        names = os.listdir(control_directory())
    except FileNotFoundError:
        return []
    pids = [int(name.removesuffix(".sock")) for name in names if name.removesuffix(".sock").isdigit()]
    for pid in pids:
        if not _alive(pid):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(control_directory(), f"{pid}.sock"))
    return [pid for pid in pids if _alive(pid)]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _ask(pid: int, order: dict[str, Any]) -> dict[str, Any] | None:
    """Its answer; None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.settimeout(_ANSWER_SECONDS)
        try:
            directory = os.open(control_directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                end.connect(f"/proc/self/fd/{directory}/{pid}.sock")
            finally:
                os.close(directory)
            end.sendall(json.dumps(order, separators=(",", ":")).encode())
            answer = json.loads(end.recv(_LONGEST))
        except (OSError, ValueError):
            return None
    return answer if isinstance(answer, dict) else None
