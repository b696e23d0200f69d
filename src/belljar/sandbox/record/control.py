"""What runs in this process, for others: a socket in the state directory that lists runs, tells what they print, ends
them, and the kill switch.

One thread for the process, started with its first run. It looks at the kill switch four times a second while anything
runs, so that a file that some other program made is enough.
"""

from __future__ import annotations

import atexit
import errno
import os
import select
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable

from belljar._startup import json_text
from belljar._startup import sockets as socket
from belljar.audit import killswitch
from belljar.sandbox.record.stream import Handle
from belljar.state import private_directory, state_directory

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

    from belljar.sandbox.record.sampling import Samples

TICK_MS = 250
_PATIENCE_MS = 200
"""For someone who has connected and says nothing: meanwhile nobody looks at the kill switch."""
_PAUSE_SECONDS = 0.02
_STARTING_SECONDS = 0.05
"""Longer than a process takes from having a socket to listening at it."""
_LONG_SECONDS = 1.0
"""Of runs that live longer, it is known what they use over time."""
_LONGEST = 1 << 20
_PEER_BYTES = 12
_SLOW = ("pools", "snapshot", "quarantine")
"""Orders that are carried out beside the others."""
_KEPT_SECONDS = 5.0
"""How long the output of a run that has ended is there for those who read it while it ran."""
_QUIET_SECONDS, _PATIENCE_SECONDS, _LINGER_SECONDS = 0.5, 2.0, 5.0
"""At its end the process waits for those who follow a run: when one was told its end, until nobody has asked for so
long; before that, for longer; and no longer than that in all."""


def control_directory() -> str:
    """Where the sockets are."""
    return f"{state_directory()}/control"


def started_at(pid: int) -> str:
    """When a process began, as the kernel counts: with it a number means one process, and none later.

    Empty if it is gone; one that has ended and that nobody has asked for is.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in (b"Z", b"X") else words[19].decode()


def living(directory: str) -> list[str]:
    """Return the names of the sockets whose processes live, and remove those of the dead.

    A process that starts has its socket under a name that says which process it is, so it is never taken for a dead
    one. A name alone is no proof of death: a process of another pid namespace may share the directory, and answers. It
    refuses while it starts, for the moment between two calls, so whoever refuses is asked again.
    """
    found, silent = [], []
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(opened):
            pid = name.partition("-")[0]
            if pid.isdigit() and name == f"{pid}-{started_at(int(pid))}.sock":
                found.append(name)
            elif _refuses(f"/proc/self/fd/{opened}/{name}"):
                silent.append(name)
        if silent:
            time.sleep(_STARTING_SECONDS)
        for name in silent:
            if _refuses(f"/proc/self/fd/{opened}/{name}"):
                try:
                    os.unlink(name, dir_fd=opened)
                except OSError:  # another did it, or it is a directory
                    pass
    finally:
        os.close(opened)
    return found


def _refuses(path: str) -> bool:
    """Return True if no process listens at a socket."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.settimeout(0)
        end.connect(path)
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    finally:
        end.close()
    return False


class Control:
    """The runs of this process."""

    carry_out: Callable[[dict[str, Any], Handle | None, Any], dict[str, Any]]
    """Keeps the files of a run or quarantines it, for another process. Set by `sandbox/run`, which knows how."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._runs: dict[str, tuple[Handle, dict[str, Any]]] = {}
        self._ended: dict[str, tuple[Handle, float]] = {}
        """Runs that somebody reads and that are over, and until when they are kept."""
        self._pools: dict[int, Callable[[], Any]] = {}
        self._sampling = False
        self._dropping: set[int] = set()
        """Pools that are letting go of what waits in them."""
        self._asked = 0.0
        """When somebody who follows a run asked for its output last."""
        self._sessions: dict[str, Callable[[], Any]] = {}
        self._orders: set[Any] = set()
        """The sockets of those who wait for an answer that takes long."""
        self._pid = 0
        self._path = ""
        self._directory = ""

    def enter(self, run_id: str, handle: Handle, **details: Any) -> None:
        """A run that others may end, from now until `leave`."""
        with self._lock:
            self._runs[run_id] = (handle, {"run": run_id, "since": time.time(), "owner": os.getpid(), **details})
            if self._pid == 0 or self._directory != control_directory():
                self._start()

    def leave(self, run_id: str) -> None:
        """It has ended."""
        with self._lock:
            left = self._runs.pop(run_id, None)
            if left is not None and left[0].read_along:
                self._ended[run_id] = left[0], time.monotonic() + _KEPT_SECONDS

    def open_pool(self, number: int, pool: Callable[[], Any]) -> None:
        """A pool whose state others may ask for. `pool` is a weak reference."""
        with self._lock:
            self._pools[number] = pool
            if self._pid == 0 or self._directory != control_directory():
                self._start()

    def close_pool(self, number: int) -> None:
        """It is closed."""
        with self._lock:
            self._pools.pop(number, None)

    def open_session(self, session_id: str, home: Callable[[], Any]) -> None:
        """A session whose files others may keep, whether its interpreter runs or not. `home` is a weak reference."""
        with self._lock:
            self._sessions[session_id] = home
            if self._pid == 0 or self._directory != control_directory():
                self._start()

    def close_session(self, session_id: str) -> None:
        """It is closed."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def kill(self, run_id: str, reason: str) -> list[str]:
        """End a run, or with `*` all of them. Which ones."""
        with self._lock:
            chosen = {name: handle for name, (handle, _details) in self._runs.items() if run_id in ("*", name)}
        for handle in chosen.values():
            handle.kill(reason)
        return list(chosen)

    # --- the thread ---

    def _start(self) -> None:
        """Without a socket the kill switch still works: a state directory that can't be written has been told of."""
        self._remove(self._pid)
        self._pid = os.getpid()
        self._directory = control_directory()
        listener = None
        try:
            private_directory(self._directory)
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                name = f"{self._pid}-{started_at(self._pid)}.sock"
                self._path = os.path.join(self._directory, name)
                if os.path.lexists(self._path):
                    os.unlink(self._path)  # of a process that had the same number
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                listener.bind(f"/proc/self/fd/{directory}/{name}")  # a socket's path may have 107 bytes
                listener.listen(16)
            finally:
                os.close(directory)
        except OSError:
            listener = None
        atexit.register(self._linger, self._pid)
        start_new_thread(self._listen, (listener, self._pid, self._directory))

    def _linger(self, pid: int) -> None:
        """Whoever reads along gets the last words, too, and whoever gave an order its answer."""
        until = time.monotonic() + _LINGER_SECONDS
        while pid == os.getpid() and self._ended:
            told = all(handle.end_told for handle, _until in list(self._ended.values()))
            if time.monotonic() >= min(until, self._asked + (_QUIET_SECONDS if told else _PATIENCE_SECONDS)):
                break
            time.sleep(0.01)
        while pid == os.getpid() and self._orders and time.monotonic() < until:
            time.sleep(0.001)
        self._remove(pid)

    def _remove(self, pid: int) -> None:
        if pid == os.getpid() and self._path:
            try:
                os.unlink(self._path)
            except OSError:
                pass

    def _listen(self, listener: Any, pid: int, directory: str) -> None:
        poll = select.poll()
        if listener is not None:
            poll.register(listener.fileno(), select.POLLIN)
            try:
                living(directory)  # whoever was killed has left a socket, and nobody may ever list what runs
            except OSError:
                pass
        while os.getpid() == pid and self._directory == directory:
            try:
                if poll.poll(TICK_MS) and listener is not None:
                    self._answer(listener)
                self._look()
            except Exception:  # noqa: BLE001 - an order or a look that fails must not be the end of the kill switch
                time.sleep(TICK_MS / 1000)
        if listener is not None:
            listener.close()

    def _look(self) -> None:
        if (self._runs or self._pools) and (reason := killswitch.why()):
            self.kill("*", f"the kill switch is on: {reason}")
            with self._lock:
                pools = [(number, pool) for number, pool in self._pools.items() if number not in self._dropping]
                self._dropping.update(number for number, _pool in pools)
            for number, pool in pools:
                try:
                    start_new_thread(self._drop_waiting, (number, pool))
                except RuntimeError:  # there can be no more: the next look tries again
                    self._dropping.discard(number)
        if self._ended:
            self._drop_old()
        if self._runs and not self._sampling:
            self._sample_long_runs()

    def _drop_waiting(self, number: int, pool: Callable[[], Any]) -> None:
        """In a thread of its own: what a pool has waiting goes, too, unless there is a run; then at the next look."""
        try:
            if (found := pool()) is not None:
                found.drop_waiting()
        finally:
            self._dropping.discard(number)

    def _answer(self, listener: Any) -> None:
        try:
            descriptor, _address = listener._accept()  # noqa: SLF001 - what the part of `socket` in C calls it
        except OSError:  # it has gone again; or there is no descriptor left, and there won't be one at once
            time.sleep(_PAUSE_SECONDS)
            return
        end = socket.socket(fileno=descriptor)
        try:
            end.settimeout(_PATIENCE_MS / 1000)
            peer = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_BYTES)
            uid = int.from_bytes(peer[4:8], "little")
            if uid in (0, os.geteuid()):
                order = json_text.loads(end.recv(_LONGEST).decode())
                if order["op"] in _SLOW:
                    self._orders.add(end)
                    start_new_thread(self._take_time, (end, order))
                    return
                end.sendall(json_text.dumps(self._obey(order)).encode())
        except Exception:  # noqa: BLE001, S110 - whoever asked has gone, or asks for what there is not
            pass
        end.close()

    def _take_time(self, end: Any, order: dict[str, Any]) -> None:
        """In a thread of its own: what takes longer than the kill switch may be left alone. A pool asks its stage."""
        with self._lock:
            pools = [pool for reference in self._pools.values() if (pool := reference()) is not None]
            found = self._runs.get(str(order.get("run")))
            session = self._sessions.get(str(order.get("run")))
        try:
            if order["op"] == "pools":
                told = {"pools": [state for pool in pools if (state := pool.state())]}
            else:
                told = self.carry_out(order, found[0] if found else None, session and session())
            end.sendall(json_text.dumps(told).encode())
        except (OSError, ValueError, TypeError, KeyError):
            pass  # as above
        finally:
            end.close()
            self._orders.discard(end)

    def _obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["op"] == "kill":
            return {"killed": self.kill(str(order["run"]), str(order["reason"]))}
        if order["op"] == "usage":
            return self._usage(str(order["run"]))
        if order["op"] == "output":
            return self._output(str(order["run"]), order["place"], follows=bool(order["follows"]))
        with self._lock:
            runs = [{**told, "state": _state(one)} if _state(one) else told for one, told in self._runs.values()]
            return {"runs": runs, "sessions": list(self._sessions)}

    def _output(self, run_id: str, place: dict[str, list[int]], *, follows: bool) -> dict[str, Any]:
        """What a run has printed from that place on, as far as it fits."""
        with self._lock:
            running, ended = self._runs.get(run_id), self._ended.get(run_id)
            handle = running[0] if running else ended[0] if ended else None
            if handle is None:
                return {}
            handle.read_along = True
            self._asked = time.monotonic() if follows else self._asked
        if handle.printed is None:
            if handle.policy is None:  # it has not begun to print, and nobody knows yet what must not be told
                return {"pieces": [], "place": place, "more": False, "ended": running is None, "lost": False}
            from belljar.sandbox.record.printed import Printed

            handle.printed = Printed(run_id, handle, handle.policy)
        told = handle.printed.read(place, over=running is None)
        handle.end_told |= told["ended"]
        return told

    def _usage(self, run_id: str) -> dict[str, Any]:
        with self._lock:
            found = self._runs.get(run_id)
        return {} if found is None or found[0].samples is None else {"samples": list(found[0].samples.taken)}

    def samples(self, run_id: str) -> Samples | None:
        """What a run of this process has used over time."""
        with self._lock:
            found = self._runs.get(run_id)
        return found[0].samples if found else None

    def _long_runs(self) -> list[tuple[Handle, float]]:
        before = time.time() - _LONG_SECONDS
        with self._lock:
            found = [(handle, told["since"]) for handle, told in self._runs.values() if told["since"] <= before]
            self._sampling = bool(found)
        return found

    def _sample_long_runs(self) -> None:
        if self._long_runs():
            from belljar.sandbox.record.sampling import watch

            start_new_thread(watch, (self._long_runs,))

    def _drop_old(self) -> None:
        from belljar.sandbox.record import redacting

        now = time.monotonic()
        with self._lock:
            for run in [run for run, (_handle, until) in self._ended.items() if now >= until]:
                del self._ended[run]
                redacting.forget(run)  # whoever read it last may have had one made

    def forget(self) -> None:
        """In a forked process: what runs is the parent's, and so are the threads that look into it."""
        for handle, _details in self._runs.values():
            handle.looking = allocate_lock()
        self._lock, self._pid, self._sampling, self._dropping = allocate_lock(), 0, False, set()
        self._runs, self._ended, self._pools, self._sessions, self._orders = {}, {}, {}, {}, set()


def _state(handle: Handle) -> str:
    """What there is to say of a run, if it does not simply run."""
    return "ended" if handle.over else "frozen" if handle.kept_still else ""


CONTROL = Control()
os.register_at_fork(after_in_child=CONTROL.forget)
