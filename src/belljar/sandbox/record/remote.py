"""Runs of every belljar process of this user: what runs, what it prints, and how to end it, from any process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from belljar.audit.log import audit_log
from belljar.errors import AuditError, SandboxUnavailableError, UsageError
from belljar.sandbox.record.control import control_directory, living, started_at

ANSWER_SECONDS = 1.0
"""How long a process may take to answer. All are asked at once."""
_AGAIN_SECONDS = 0.02
_RECORD_SECONDS = 0.3
"""How long whoever stops something waits for others who write to the audit log."""
_GONE_SECONDS = 5.0
_RECORDED_SECONDS = 0.5
"""How long the end of a run is waited for that is over, and is only to be recorded."""
_PATIENCE_SECONDS = 600.0
"""How long keeping the files of a run may take."""
_LONGEST = 8 << 20


@dataclass(frozen=True, slots=True)
class Running:
    """What runs, as far as the processes that run it say so."""

    runs: list[dict[str, Any]]
    """The oldest first."""
    silent: tuple[int, ...]
    """The processes that do not answer: what they run, nobody knows."""


@dataclass(frozen=True, slots=True)
class StoppedRuns:
    """What came of an order to end runs."""

    ended: list[str]
    """The runs that are gone; `process 12` for all those of one that did not answer."""
    remaining: list[str]
    """Those that were told to end and are still there."""
    unrecorded: str
    """Why that is not in the audit log; empty if it is."""


def running() -> list[dict[str, Any]]:
    """Every run in progress, the oldest first."""
    return asked().runs


def asked() -> Running:
    """Every run in progress, and who does not say what it runs."""
    owners = _owners()
    answers = _ask_all([name for _pid, name in owners], {"op": "list"})
    found = [run for answer in answers.values() for run in answer.get("runs", [])]
    silent = [pid for pid, name in owners if name not in answers and _is_owner(pid, name)]
    return Running(sorted(found, key=lambda run: float(run.get("since", 0))), tuple(silent))


def one_running(name: str) -> str | None:
    """Return the run in progress of that name, or of that session; or the only one that begins or ends so.

    Raises:
        UsageError: several runs fit.
    """
    found = running()
    for fits in (_is_called, _may_be_called):
        if chosen := [str(run["run"]) for run in found if fits(run, name)]:
            if len(chosen) > 1:
                from belljar.audit.store import several

                raise several(name, chosen)
            return chosen[0]
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
    answers = _ask_all([name for _pid, name in _owners()], {"op": "pools"})
    return [pool for answer in answers.values() for pool in answer.get("pools", [])]


def usage(run_id: str) -> list[list[float]]:
    """What a run in progress has used over time (`sampling.Sample`), as far as its process knows."""
    for _pid, name in _owners():
        if answer := _ask(name, {"op": "usage", "run": run_id}):
            return list(answer["samples"])
    return []


def kill(
    run_id: str, reason: str, *, also: Iterable[dict[str, Any]] = (), answer_seconds: float = ANSWER_SECONDS
) -> StoppedRuns:
    """End a run, or with `*` all of them, and wait until they are gone. What came of it.

    A process that does not answer is killed itself, and its jars with it: they live only as long as it does. Nothing of
    that waits for the audit log, or for room on its disk. `also` is what is recorded with it.
    """
    owners = _owners()
    answers = _ask_all([name for _pid, name in owners], {"op": "kill", "run": run_id, "reason": reason}, answer_seconds)
    pids = {name: pid for pid, name in owners}
    told = {str(run): pids[name] for name, answer in answers.items() for run in answer.get("killed", [])}
    records = [
        *also,
        {"event": "kill", "run": None if run_id == "*" else run_id, "all": run_id == "*", "reason": reason},
    ]
    processes = []
    if run_id == "*":
        processes = [pid for pid, name in owners if name not in answers and _is_owner(pid, name) and _kill(pid)]
        why = f"its process does not answer: {reason}"
        records += [{"event": "kill", "owner": pid, "reason": why} for pid in processes]
    unrecorded = _record(records)
    remaining = await_end(told)
    ended = [name for name in told if name not in remaining]
    return StoppedRuns([*ended, *(f"process {pid}" for pid in processes)], remaining, unrecorded)


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _record(records: list[dict[str, Any]]) -> str:
    """What was stopped; why that can't be recorded, if it can't."""
    try:
        audit_log().append(*records, patience=_RECORD_SECONDS)
    except AuditError as error:
        return error.message
    return ""


def _owners() -> list[tuple[int, str]]:
    """The processes that run jars, and their sockets; the sockets of those that were killed are removed.

    A number alone is not enough: the process may be gone, and another, which has nothing to do with us, have it now.
    """
    try:
        return [(int(name.partition("-")[0]), name) for name in living(control_directory())]
    except FileNotFoundError:
        return []


def _is_called(run: dict[str, Any], name: str) -> bool:
    return name in (run.get("run"), run.get("session"))


def _may_be_called(run: dict[str, Any], name: str) -> bool:
    names = [str(run[key]) for key in ("run", "session") if key in run]
    return bool(name) and any(one.startswith(name) or one.endswith(name) for one in names)


def sessions() -> list[str]:
    """Every open session."""
    answers = _ask_all([name for _pid, name in _owners()], {"op": "list"})
    return [str(session) for answer in answers.values() for session in answer.get("sessions", [])]


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


def await_end(runs: Mapping[str, int]) -> list[str]:
    """Wait until none of these runs, of these processes, is in progress any more, for some seconds at most.

    Those that still are, for all that is known: their process may not answer any more.
    """
    began = time.monotonic()
    while runs:
        now = asked()
        states = {str(run["run"]): run.get("state") for run in now.runs}
        listed = [run for run, pid in runs.items() if run in states or pid in now.silent]
        remaining = [run for run in listed if states.get(run) != "ended"]
        waited = time.monotonic() - began
        if not listed or waited >= _GONE_SECONDS or (not remaining and waited >= _RECORDED_SECONDS):
            return remaining
        time.sleep(_AGAIN_SECONDS)
    return []


def _is_owner(pid: int, name: str) -> bool:
    """Whether the process that made this socket still lives."""
    return name == f"{pid}-{started_at(pid)}.sock"


def _ask(name: str, order: dict[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any] | None:
    """Its answer; None if there is none."""
    return _ask_all([name], order, seconds).get(name)


def _ask_all(names: Sequence[str], order: dict[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, dict[str, Any]]:
    """The answers of those that give one in time. All are asked before any is waited for."""
    text = json.dumps(order, separators=(",", ":")).encode()
    deadline = time.monotonic() + seconds
    found: dict[str, dict[str, Any]] = {}
    poll, unasked = select.poll(), list(names)
    waiting: dict[int, tuple[str, socket.socket]] = {}
    with contextlib.ExitStack() as stack:
        while (unasked or waiting) and (left := deadline - time.monotonic()) > 0:
            for name in list(unasked):
                with contextlib.suppress(BlockingIOError):  # so many ask at once that it takes no more: in a moment
                    end = _connected(name, text)
                    unasked.remove(name)
                    if end is not None:
                        stack.enter_context(end)
                        poll.register(end, select.POLLIN)
                        waiting[end.fileno()] = name, end
            for descriptor, _events in poll.poll(1000 * min(left, _AGAIN_SECONDS if unasked else left)):
                poll.unregister(descriptor)
                name, end = waiting.pop(descriptor)
                if (answer := _received(end)) is not None:
                    found[name] = answer
    return found


def _connected(name: str, text: bytes) -> socket.socket | None:
    """The socket over which it was asked; None if it is gone. Raises BlockingIOError if it takes no question now."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        directory = os.open(control_directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            end.connect(f"/proc/self/fd/{directory}/{name}")
        finally:
            os.close(directory)
        end.send(text)
    except OSError as error:
        end.close()
        if isinstance(error, BlockingIOError):
            raise
        return None
    return end


def _received(end: socket.socket) -> dict[str, Any] | None:
    try:
        answer = json.loads(end.recv(_LONGEST))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None
