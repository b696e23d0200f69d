"""Runs of every belljar process of this user: what runs, what it prints, and how to end it, from any process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Collection
from typing import Any

from belljar.audit.log import record
from belljar.errors import SandboxUnavailableError, UsageError
from belljar.sandbox.control import control_directory, started_at

_ANSWER_SECONDS = 1.0
_GONE_SECONDS = 5.0
_PATIENCE_SECONDS = 600.0
"""How long keeping the files of a run may take."""
_LONGEST = 8 << 20


def running() -> list[dict[str, Any]]:
    """Every run in progress, the oldest first."""
    found: list[dict[str, Any]] = []
    for _pid, name in _owners():
        answer = _ask(name, {"op": "list"})
        found += answer.get("runs", []) if answer else []
    return sorted(found, key=lambda run: float(run.get("since", 0)))


def one_running(name: str) -> str | None:
    """The run in progress of that name, or of the session of that name; or the only one that begins or ends so."""
    found = running()
    for fits in (_is_called, _may_be_called):
        if chosen := [str(run["run"]) for run in found if fits(run, name)]:
            return chosen[0] if len(chosen) == 1 else None
    return None


def output(run_id: str, place: dict[str, list[int]], *, follows: bool = False) -> dict[str, Any] | None:
    """What a run in progress has printed after that place (`Printed.read`); None if no process knows of it.

    `follows` says that the same will be asked again until the end: the run's process waits for that, for a moment.
    """
    for _pid, name in _owners():
        if answer := _ask(name, {"op": "output", "run": run_id, "place": place, "follows": follows}):
            return answer
    return None


def pools() -> list[dict[str, Any]]:
    """The state of every pool (`Pool.state`)."""
    found: list[dict[str, Any]] = []
    for _pid, name in _owners():
        answer = _ask(name, {"op": "pools"})
        found += answer.get("pools", []) if answer else []
    return found


def usage(run_id: str) -> list[list[float]]:
    """What a run in progress has used over time (`sampling.Sample`), as far as its process knows."""
    for _pid, name in _owners():
        if answer := _ask(name, {"op": "usage", "run": run_id}):
            return list(answer["samples"])
    return []


def kill(run_id: str, reason: str) -> list[str]:
    """End a run, or with `*` all of them, and wait until they are gone. Which ones.

    A process that does not answer is killed itself, and its jars with it: they live only as long as it does.
    """
    record("kill", run=None if run_id == "*" else run_id, all=run_id == "*", reason=reason)
    killed: list[str] = []
    for pid, name in _owners():
        answer = _ask(name, {"op": "kill", "run": run_id, "reason": reason})
        if answer is not None:
            killed += [str(name) for name in answer.get("killed", [])]
        elif run_id == "*" and _is_owner(pid, name):
            record("kill", owner=pid, reason=f"its process does not answer: {reason}")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.append(f"process {pid}")
    await_end(killed)
    return killed


def _owners() -> list[tuple[int, str]]:
    """The processes that run jars, and their sockets; the sockets of those that were killed are removed.

    A number alone is not enough: the process may be gone, and another, which has nothing to do with us, have it now.
    """
    try:
        names = os.listdir(control_directory())
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        pid = name.partition("-")[0]
        if name.endswith(".sock") and pid.isdigit() and _is_owner(int(pid), name):
            found.append((int(pid), name))
        else:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(control_directory(), name))
    return found


def _is_called(run: dict[str, Any], name: str) -> bool:
    return name in (run.get("run"), run.get("session"))


def _may_be_called(run: dict[str, Any], name: str) -> bool:
    names = [str(run[key]) for key in ("run", "session") if key in run]
    return len(name) >= 4 and any(one.startswith(name) or one.endswith(name) for one in names)


def sessions() -> list[str]:
    """Every open session."""
    answers = [_ask(name, {"op": "list"}) for _pid, name in _owners()]
    return [str(session) for answer in answers if answer for session in answer.get("sessions", [])]


def order(op: str, target: str, **details: Any) -> dict[str, Any]:
    """Have the process that has a run, or a session, do something that may take long. Its answer.

    Raises:
        UsageError, SandboxUnavailableError: what it says went wrong; or no process has it.
    """
    for _pid, name in _owners():
        told = _ask(name, {"op": "list"}) or {}
        if target in [run.get("run") for run in told.get("runs", [])] + told.get("sessions", []):
            answer = _ask(name, {"op": op, "run": target, **details}, _PATIENCE_SECONDS)
            if answer is None:
                raise SandboxUnavailableError(f"the process that has {target} did not answer, or has ended")
            if "error" in answer:
                fault = UsageError if answer.get("fault") == "usage" else SandboxUnavailableError
                raise fault(str(answer["error"]), hint=str(answer.get("hint", "")))
            return answer
    raise UsageError(f"{target} is not in progress", hint="`belljar ps` lists what is")


def await_end(runs: Collection[str]) -> bool:
    """Wait until none of these runs is in progress any more, for some seconds at most."""
    deadline = time.monotonic() + _GONE_SECONDS
    while {run["run"] for run in running()} & set(runs):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _is_owner(pid: int, name: str) -> bool:
    """Whether the process that made this socket still lives."""
    return name == f"{pid}-{started_at(pid)}.sock"


def _ask(name: str, order: dict[str, Any], seconds: float = _ANSWER_SECONDS) -> dict[str, Any] | None:
    """Its answer; None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.settimeout(seconds)
        try:
            directory = os.open(control_directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                end.connect(f"/proc/self/fd/{directory}/{name}")
            finally:
                os.close(directory)
            end.sendall(json.dumps(order, separators=(",", ":")).encode())
            answer = json.loads(end.recv(_LONGEST))
        except (OSError, ValueError):
            return None
    return answer if isinstance(answer, dict) else None
