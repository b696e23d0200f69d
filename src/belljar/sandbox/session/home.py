"""What a session and the forks of its interpreter share: the Sandbox, the run in it, and how both end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from belljar.errors import BelljarError, SandboxUnavailableError, UsageError
from belljar.sandbox.files import snapshots
from belljar.sandbox.files.snapshots import Snapshot
from belljar.sandbox.record import recording
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.result import Artifact, Outcome, RunResult
from belljar.sandbox.record.stream import new_run_id
from belljar.sandbox.run.sandbox import MAX_ARTIFACTS, PolicyLike, Sandbox, resolved
from belljar.sandbox.session import open_sessions, wire
from belljar.sandbox.session.clock import Clock
from belljar.sandbox.session.interpreter import SessionRun

if TYPE_CHECKING:
    from belljar.egress.events import Event
    from belljar.sandbox.files.workspace_files import Files

_EVICTED = {
    "idle": "it was idle for longer than {0.idle_seconds:g} s (session.idle_s)",
    "old": "it was older than {0.max_age_seconds:g} s (session.max_age_s)",
    "room": "another session needed its place (session.max_sessions is {0.max_sessions})",
}
"""Why a session is ended that nobody closed."""
_MOST_FORKS = 63
_FILLING_SECONDS = 600.0
"""How long it may take to put files into a jar. That is no step: what was kept must not be lost for being much."""
_LONGEST_WAIT_SECONDS = 24 * 3600.0
"""Then a timer looks at the clock again: no number of a policy is too large for it."""
_HOMES: weakref.WeakSet[Home] = weakref.WeakSet()


class Home:
    """One jar, its files, and the run that keeps the interpreters."""

    def __init__(
        self,
        session_id: str,
        policy: PolicyLike,
        options: Mapping[str, Any],
        *,
        files: Snapshot | str | None = None,
        on_egress: Callable[[Event], None] | None = None,
    ) -> None:
        self.id = session_id
        self.policy = resolved(policy, **options)
        self._on_egress = on_egress
        self._lock = threading.RLock()
        self._changing = threading.Lock()
        """Held by whoever makes another jar for it, and not `_lock`: to make room, other sessions are asked, and one of
        them may be asking this one."""
        self._live: SessionRun | None = None
        self._evicted = ""
        self._unkept = ""
        """Why the files of a session that was ended are not kept."""
        self._closed = False
        self._steps = 0
        self._forks = 0
        self._known: dict[str, int] = {}
        self._timer: threading.Timer | None = None
        open_sessions.sweep()
        self._place: open_sessions.SessionPlace | None
        self._place, self.sandbox = self._settled(files)
        session = self.policy.session
        self._clock = Clock(idle_seconds=session.idle_seconds, age_seconds=session.max_age_seconds)
        try:
            if files is not None:
                self.new_files()
        except BaseException:
            self.close()
            raise
        _HOMES.add(self)
        self._wait_for_end()
        CONTROL.open_session(self.id, weakref.ref(self))

    def _settled(self, files: Snapshot | str | None) -> tuple[open_sessions.SessionPlace, Sandbox]:
        """A place among the sessions, and a jar with these files. Both, or an error and neither."""
        place = open_sessions.SessionPlace(self.id, self.policy.session.max_sessions, evict_one)
        try:
            return place, self._filled(files)
        except BaseException:
            place.leave()
            raise

    def _filled(self, files: Snapshot | str | None) -> Sandbox:
        """A new jar, with the files of a snapshot if there is one."""
        sandbox = Sandbox(self.policy, one_shot=True, on_egress=self._on_egress)
        try:
            if files is not None:
                _fill(sandbox, _path(files))
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    # --- the interpreter ---

    def enter(self, number: int, *, restart: bool) -> SessionRun:
        """The run, for a step of an interpreter; `leave` follows.

        Raises:
            UsageError: the interpreter has ended, and `restart` does not say to start another.
        """
        while True:
            with self._lock:
                self._check_open()
                if not (why := self._lost(number)):
                    return self._entered()
            if not restart or number:
                raise UsageError(why, hint="session.restart() starts another; Session(restart=True) does so itself")
            self.restart()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this session is closed")

    def _check_there(self) -> None:
        self._check_open()
        if self._evicted:
            raise UsageError(self._lost(0), hint="session.restart() takes it up again")

    def _entered(self) -> SessionRun:
        self._clock.enter()
        try:
            if self._live is None:
                self._live = SessionRun(self.sandbox, session=self.id, clock=self._clock, on_end=self._on_end)
                self._live.inbox(0)
        except BaseException:
            self._clock.leave()
            raise
        return self._live

    def leave(self) -> None:
        """The step is over."""
        self._clock.leave()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Sandbox]:
        """The Sandbox, for what is done beside the interpreter: the session is not idle meanwhile."""
        with self._lock:
            self._check_there()
            self._clock.enter()
        try:
            yield self.sandbox
        finally:
            self._clock.leave()

    @property
    def files(self) -> Files:
        """The files of the workspace."""
        with self._lock:
            self._check_there()
            self._clock.touch()
            return self.sandbox.files

    def _lost(self, number: int) -> str:
        """Why there is no interpreter any more; empty if there is, or if there was none yet."""
        if self._evicted:
            words = _EVICTED[self._evicted].format(self.policy.session)
            files = f"its files could not be kept ({self._unkept})" if self._unkept else self._kept_words()
            return f"the session was ended: {words}; {files}, and its variables are gone"
        if self._live is None:
            return "its session was started again" if number else ""
        if number in self._live.gone or self._live.ended:
            return f"the interpreter has ended: {self.ending(number)}"
        return ""

    def _kept_words(self) -> str:
        keeps = self.policy.session.keep_seconds and self.sandbox.keeps_files
        return "its files are kept" if keeps else "no files of it are kept"

    def ending(self, number: int) -> str:
        """How an interpreter ended, in words."""
        live = self._live
        if live is not None and live.result is not None and live.result.reason:
            return live.result.reason
        status = None if live is None else live.gone.get(number)
        if status is None:
            return "nobody knows how"
        if status < 0:
            import signal

            names = {one.value: one.name for one in signal.Signals}
            return f"{names.get(-status, f'signal {-status}')} ended it"
        return f"it ended itself, with status {status}"

    def state(self, number: int) -> str:
        """As `Session.state`, as far as it is not about a step."""
        with self._lock:
            if self._closed:
                return "closed"
            if self._evicted:
                return "evicted"
            if self._lost(number):
                return "crashed"
            return "new" if self._live is None else "idle"

    def next_step(self) -> int:
        """The number of the next step, counted over all interpreters."""
        with self._lock:
            self._steps += 1
            return self._steps

    def fork_state(self, number: int, deadline: float) -> int:
        """Have an interpreter fork; the number of the other. Raises SandboxUnavailableError."""
        live = self.enter(number, restart=False)
        try:
            with self._lock:
                if self._forks == _MOST_FORKS:
                    raise UsageError(f"a session has at most {_MOST_FORKS} forks of its state")
                self._forks += 1
                made = self._forks
            inbox = live.inbox(made)
            if live.send(wire.FORK, number, b"%d" % made, deadline):
                with live.changed:
                    while not live.ended and made not in live.gone and time.monotonic() < deadline:
                        if (frame := inbox.take()) and frame[0] == wire.UP:
                            return made
                        live.changed.wait(max(0.0, deadline - time.monotonic()))
            raise SandboxUnavailableError(
                "the interpreter could not be forked", hint="is there room in proc.pids?", fault="code"
            )
        finally:
            self.leave()

    def end_branch(self, number: int) -> None:
        """End one of the forks."""
        with self._lock:
            live = self._live
        if live is not None and not live.ended:
            live.send(wire.END, number, b"", time.monotonic() + 1)

    # --- the end ---

    def restart(self) -> None:
        """End the interpreters. If the session was ended for being idle, take it up again, with its files."""
        self._end_live("restarted")
        with self._changing:
            self._check_open()
            if self._evicted:
                kept = open_sessions.kept_path(self.id)
                self._take_up(kept if os.path.exists(kept) else None)
        self._wait_for_end()

    def _take_up(self, files: str | None) -> None:
        """It was ended, and begins again with these files. If they can't be had, nothing has changed."""
        place, fresh = self._settled(files)
        with self._lock:
            if self._closed:
                fresh.close()
                place.leave()
            self._check_open()
            self._place, self.sandbox, self._evicted = place, fresh, ""
            self._clock.begin()
            self.new_files()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(open_sessions.kept_path(self.id))

    def _end_live(self, why: str) -> RunResult | None:
        with self._lock:
            live, self._live = self._live, None
        if live is None:
            return None
        live.finish(why)  # not with the lock: its thread may want it
        return live.result

    def _on_end(self, live: SessionRun, why: str) -> None:
        """In the thread of the run, which has ended."""
        if why == "" and live.result is not None and live.result.outcome is Outcome.TIMEOUT:
            why = "old"
        with self._lock:
            if why in _EVICTED and self._live is live and not self._closed:
                self._evict(why)
            else:
                self._wait_for_end()

    def _runs(self) -> bool:
        return self._live is not None and not self._live.ended

    def _wait_for_end(self) -> None:
        """While there is no run, whose own thread would do it: end the session when it is idle for long, or old."""
        with self._lock:
            self._stop_waiting()
            if self._closed or self._evicted or self._runs():
                return
            seconds = min(self._clock.idle_left(), self._clock.age_left(), _LONGEST_WAIT_SECONDS)
            self._timer = threading.Timer(seconds, self._look_at_clock)
            self._timer.daemon = True  # as that of a run: a program that forgets to close a session must be able to end
            self._timer.start()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at_clock(self) -> None:
        with self._lock:
            if self._closed or self._evicted or self._runs():
                return
            if why := self._clock.over():
                self._evict(why)
            else:
                self._wait_for_end()

    def _evict(self, why: str) -> None:
        self._evicted, self._unkept = why, ""
        self._live = None
        self._stop_waiting()
        keep = self.policy.session.keep_seconds
        try:
            if keep and self.sandbox.keeps_files:
                path = open_sessions.kept_path(self.id)
                self._save(path)
                open_sessions.keep_until(path, time.time() + keep)
        except (BelljarError, OSError) as error:  # it is gone with the jar, which whoever comes back is told
            self._unkept = str(error).partition("\n")[0]
        finally:
            self.sandbox.close()
            self._leave_place()

    def evict_if_idle(self) -> bool:
        """End it, to make room, if nobody uses it. False if it has its place still, or had none."""
        with self._lock:
            if self._closed or self._evicted or self._clock.busy:
                return False
            live = self._live
            if live is not None and self._runs():
                live.kill("room")
        if live is not None:
            live.join()
        with self._lock:
            if not (self._closed or self._evicted or self._clock.busy or self._runs()):
                self._evict("room")
            return self._place is None

    @property
    def used(self) -> float:
        """When it was used last."""
        return self._clock.used

    def _leave_place(self) -> None:
        if self._place is not None:
            self._place.leave()
            self._place = None

    def close(self) -> RunResult | None:
        """End everything."""
        with self._lock:
            if self._closed:
                return None
            self._closed = True
        CONTROL.close_session(self.id)
        result = self._end_live("closed")
        with self._lock:
            self._stop_waiting()
        if not self._evicted:
            self.sandbox.close()
        self._leave_place()
        return result

    # --- files ---

    def new_files(self) -> tuple[Artifact, ...]:
        """The files that were made or changed since this was asked last; the first thousand."""
        with self._lock:
            files = {entry.path: entry for entry in self.sandbox.made_files()} if not self._evicted else {}
            self.sandbox.step_ended()
            made = [entry for entry in files.values() if self._known.get(entry.path) != entry.changed_ns]
            self._known = {path: entry.changed_ns for path, entry in files.items()}
        return tuple(
            Artifact(entry.path, entry.size) for entry in sorted(made, key=lambda one: one.path)[:MAX_ARTIFACTS]
        )

    def snapshot(self, name: str | None) -> Snapshot:
        """Keep the files as they are."""
        with self._lock:
            self._check_there()
            path = snapshots.path_of(name or new_run_id())
            if os.path.exists(path):
                raise UsageError(f"there is a snapshot called {name} already", hint="remove it, or use another name")
            return self._save(path)

    def _save(self, path: str) -> Snapshot:
        held = self.sandbox.held_files()
        try:
            return snapshots.keep(held, most_bytes=self.policy.fs.size_bytes, path=path, session=self.id)
        finally:
            os.close(held.tree.descriptor)

    def restore(self, snapshot: Snapshot | str) -> None:
        """A new jar, with those files. If they can't be had, everything is as it was."""
        path = _path(snapshot)
        _check_base(self.sandbox, path)
        recording.files("restore", session=self.id, path=path)
        with self._changing:
            self._check_open()
            if self._evicted:
                self._take_up(path)
            else:
                with self.in_use():
                    self._replace(path)
        self._wait_for_end()

    def _replace(self, path: str) -> None:
        if self.policy.net.publish:
            self._end_live("restarted")  # the new jar wants its ports
        fresh = self._filled(path)
        with self._lock:
            if self._closed or self._evicted:
                fresh.close()
            self._check_there()
            live, self._live = self._live, None
            old, self.sandbox = self.sandbox, fresh
            self.new_files()
        if live is not None:
            live.finish("restarted")
        old.close()

    def fork(self) -> Home:
        """Another, with a copy of the files."""
        session_id = new_run_id()
        path = f"{open_sessions.kept_path(session_id)}.fork"
        with self._lock:
            self._check_there()
            self._save(path)
        try:
            return Home(session_id, self.policy, _NO_OPTIONS, files=path, on_egress=self._on_egress)
        finally:
            os.unlink(path)


_NO_OPTIONS: Mapping[str, Any] = {"backend": None, "workspace": None, "live": False, "overrides": (), "timeout": None}


def evict_one() -> bool:
    """End the session of this process that was idle for longest. False if all are busy."""
    return any(home.evict_if_idle() for home in sorted(_HOMES, key=lambda home: home.used))


def _path(snapshot: Snapshot | str) -> str:
    if isinstance(snapshot, Snapshot):
        return snapshot.path
    return snapshot if os.sep in snapshot else snapshots.path_of(snapshot)


def _check_base(sandbox: Sandbox, path: str) -> None:
    """Raises UsageError if there is no snapshot, or one that was taken on another workspace."""
    held, wanted = snapshots.opened(path).base, sandbox.workspace_base
    if held != wanted:
        raise UsageError(
            f"the snapshot holds {_words(held)}, and this session wants {_words(wanted)}",
            hint="give both the same workspace",
        )


def _fill(sandbox: Sandbox, path: str) -> None:
    """Put the files of a snapshot into a jar that is new, by a run inside of it."""
    _check_base(sandbox, path)
    policy = sandbox.policy
    patient = replace(policy.proc, timeout_seconds=max(policy.proc.timeout_seconds, _FILLING_SECONDS))
    sandbox.policy = replace(policy, proc=patient)  # nobody else has this Sandbox yet
    try:
        with snapshots.source(path) as file:
            done = sandbox.run(snapshots.RESTORE, name="restore.py", args=[policy.fs.workdir], stdin=file.fileno())
    finally:
        sandbox.policy = policy
    if not done.ok:
        raise SandboxUnavailableError(
            f"the files could not be restored: {done.reason or done.stderr.strip().rpartition(chr(10))[2]}"
        )


def _words(base: str | None) -> str:
    return "all its files" if base is None else f"changes of {base}"


__all__ = ["Home"]
