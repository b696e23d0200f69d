"""The stage of a pool: one zygote in an outer jar, jars that wait, and runs, each of which takes one and uses it up.

A jar is made when nobody waits for it: after a run has been answered, or when too few are left. What looks into it and
what ends it is as for every other jar (`running.Run`); only its birth is the zygote's, its end its pid 1's to tell.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import NoReturn

from belljar.backends.bubblewrap import layout, wire
from belljar.backends.bubblewrap.lifeline import die_with
from belljar.backends.bubblewrap.orphans import end_orphans
from belljar.backends.bubblewrap.pool_run import PoolRun, close_all
from belljar.backends.bubblewrap.running import JarSpec, Run, default_signals, memory_file, place
from belljar.backends.bubblewrap.stage import LAUNCHER_DIED, Stage
from belljar.backends.seccomp import filters
from belljar.errors import SandboxUnavailableError
from belljar.limits import rlimits
from belljar.limits.groups import RunGroup

_ZYGOTE = "zygote"
_ZYGOTE_SECONDS = 60.0
_MADE_AT_ONCE = 3
_PAUSE_SECONDS = 0.2
"""After a jar that came to nothing."""
_FAILING_SECONDS = 20.0
"""When nothing but failures came for so long, the pool gives up."""
_DESCRIPTORS = 18
"""More than the stage needs for one jar."""
_LISTENERS = 12
"""And for its gateway, beside two for each port."""


class PoolStage(Stage):
    """Serves runs from jars that wait."""

    def serve(self) -> None:
        """As every stage; and nothing of its zygote outlasts it, in whatever state that one is."""
        super().serve()
        end_orphans(set())

    def _prepare_first(self) -> None:
        assert self._plan.pool is not None
        self._pool = self._plan.pool
        self._spec = JarSpec.of(self._pool["jar"])
        self._ready: deque[PoolRun] = deque()
        self._making = 0
        self._failing_since = self._pause_until = 0.0
        self._why = ""
        self._asking: deque[tuple[wire.Message, list[int]]] = deque()
        self._zygote: socket.socket | None = None
        self._zygote_fd = -1
        self._zygote_pid = 0
        self._zygotes = 0
        ports = self._spec.gateway_ports
        each = _DESCRIPTORS + (0 if ports is None else 2 * len(ports) + _LISTENERS)
        self._most = min(self._pool["most"], _room_for_descriptors() // each)
        if self._most <= self._pool["size"]:
            raise SandboxUnavailableError(
                f"{self._pool['size']} jars can't wait at once: this process may have too few files open",
                hint=f"ulimit -n {(self._pool['size'] + 8) * each}, or a smaller size",
            )
        self._start_zygote()
        self._refill()

    # --- time ---

    def _patience(self) -> float | None:
        patience = super()._patience()
        if not self._pause_until:
            return patience
        pause = max(0.0, self._pause_until - time.monotonic())
        return pause if patience is None else min(patience, pause)

    def _on_time(self) -> None:
        super()._on_time()
        if self._pause_until and time.monotonic() >= self._pause_until:
            self._pause_until = 0.0
            self._refill()

    # --- the zygote ---

    def _start_zygote(self) -> None:
        self._zygotes += 1
        name = f"{_ZYGOTE}-{self._zygotes}"
        self._make_directories(name)
        for file, content in self._zygote_files().items():
            self._write_file(f"{name}/{file}", content)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        faults, faults_inside = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        own = (layout.RUNS, layout.CODE)
        words = [word.replace(layout.RUN, name) if word.startswith(own) else word for word in self._pool["arguments"]]
        arguments = memory_file("arguments", b"".join(os.fsencode(word) + b"\0" for word in words))
        program = memory_file("seccomp", filters.jar_filter(reported=True, makes_jars=True))
        inside = [null, null, faults_inside, program, theirs.fileno(), arguments]
        stage = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_bubblewrap(self._spec.bwrap, inside, self._pool["command"], stage)
        for descriptor in (null, faults_inside, program, arguments):
            os.close(descriptor)
        theirs.close()
        self._zygote_pid, self._zygote_fd, self._zygote = pid, os.pidfd_open(pid), ours
        self._greet(faults)
        self._watch(self._zygote_fd, self._on_zygote_end)

    def _zygote_files(self) -> dict[str, bytes]:
        limits = rlimits.rlimits_for(self._spec.limits, has_memory_group=self._spec.memory_group)
        settings = {
            **self._pool["settings"],
            "rlimits": [(which, soft) for which, soft, _hard in limits],
            "counted": self._group is not None and self._spec.memory_group,
        }
        return {
            "zygote.py": self._pool["program"].encode(),
            "zygote.json": json.dumps(settings).encode(),
            "notify.bpf": filters.notify_filter(connects=self._spec.observe_network, files=False),
            "jar.bpf": filters.jar_filter(reported=True),
        }

    def _greet(self, faults: int) -> None:
        """Wait until it is up. What it can't import is the caller's business, and told in its words."""
        assert self._zygote is not None
        self._zygote.settimeout(_ZYGOTE_SECONDS)
        try:
            said = self._zygote.recv(4096)
        except TimeoutError:
            said = b""
        finally:
            self._zygote.settimeout(None)
        os.set_blocking(faults, False)
        with contextlib.suppress(OSError), contextlib.closing(os.fdopen(faults, "rb", buffering=0)) as file:
            problem = (file.read(2000) or b"").decode(errors="replace").strip()
        if not said:
            raise SandboxUnavailableError(f"the pool's interpreter did not start: {problem or 'it said nothing'}")
        if error := json.loads(said).get("error"):
            raise SandboxUnavailableError(error, hint="leave it out of `preload`: each run can import it for itself")

    def _zygote_is_gone(self) -> bool:
        """Whether it has died, which may not have been heard of yet. It says nothing once it is up, but its end."""
        return self._zygote is None or _is_readable(self._zygote.fileno(), self._zygote_fd)

    def _on_zygote_end(self) -> None:
        """With it went every jar that was cloned from it. Those that run are lost; who waits gets another."""
        self._forget(self._zygote_fd)
        os.close(self._zygote_fd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._zygote_pid, 0)
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        self._ready.clear()
        end_orphans(set())  # bubblewrap's own pid 1, which may outlast it
        if self._control.fileno() < 0:
            return
        try:
            self._start_zygote()
        except (SandboxUnavailableError, OSError) as error:
            self._give_up(str(error))
            return
        self._refill()

    # --- jars ---

    def _refill(self) -> None:
        wanted = min(self._pool["size"] + len(self._asking) - len(self._ready), _MADE_AT_ONCE)
        while self._zygote is not None and not self._why and not self._pause_until and self._making < wanted:
            if len(self._runs) >= self._most:  # the others wait until one has ended
                return
            try:
                self._make_one()
            except (BrokenPipeError, ConnectionResetError):  # the zygote has died: that is heard of by itself
                return
            except (OSError, SandboxUnavailableError) as error:
                self._failed(f"a jar could not be made: {error}")

    def _failed(self, why: str) -> None:
        """Try again in a moment: a run may hold what is missing, and it ends. But not for ever."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        self._pause_until = now + _PAUSE_SECONDS
        if now - self._failing_since > _FAILING_SECONDS:
            self._give_up(why)

    def _make_one(self) -> None:
        assert self._zygote is not None
        self._count += 1
        name = f"run-{self._count}"
        group = self._group.run_group(name, self._spec.limits) if self._group else None
        run = PoolRun(name, self._spec, group, self._covered)
        try:
            with _entrance(group) as enter:
                run.clone(self._zygote, enter)
        except BaseException:
            run.close()
            self._remove_traces(name, group)
            raise
        self._runs[name] = run
        self._making += 1
        self._watch_run(run, run.gate, lambda: self._on_word(run))
        self._watch_memory(run)

    def _on_word(self, run: PoolRun) -> None:
        word = run.hear()
        if word == "made":
            observer = run.observer
            assert observer is not None
            self._watch_run(run, observer, lambda: None if observer.on_readable() else self._forget(observer))
        elif word == "ready":
            self._making -= 1
            self._failing_since = 0.0
            self._watch(run.init_fd, lambda: self._finish(run))
            self._ready.append(run)
            self._serve_waiting()
            self._refill()
        elif word == "end":
            self._answer(run)
            self._refill()
        elif run.ready:  # its pid 1 is gone, or going: that is heard of by itself
            self._forget(run.gate)
        else:
            self._miscarried(run, word)

    def _miscarried(self, run: PoolRun, why: str) -> None:
        """A jar that does not hold, or was never one."""
        self._making -= 1
        refused = bool(run.problems)
        run.kill("canary" if refused else "gate")
        if refused and self._asking:
            _message, descriptors = self._next_asking()
            self._hosts[run.name] = socket.socket(fileno=descriptors[0])
            close_all(descriptors[1:])
            self._answer(run)
        self._forget(run.gate)
        if run.init_fd >= 0:
            self._watch(run.init_fd, lambda: self._finish(run))
        else:
            self._finish(run)
        if refused:
            self._give_up(f"a jar of this pool does not hold: {why}")
        elif not self._zygote_is_gone():
            self._failed(f"no jar can be made any more: {why}")

    def _give_up(self, why: str) -> None:
        self._why = why
        while self._asking:
            _message, descriptors = self._next_asking()
            self._tell_fault(descriptors, why)

    def _tell_fault(self, descriptors: list[int], why: str) -> None:
        with socket.socket(fileno=descriptors[0]) as host, contextlib.suppress(OSError):
            wire.send(host, {"error": "unavailable", "message": why, "hint": "close the Pool, and open another"})
        close_all(descriptors[1:])

    # --- runs ---

    def _do_run(self, message: wire.Message, descriptors: list[int]) -> None:
        if self._why and not self._ready:
            self._tell_fault(descriptors, self._why)
        else:
            self._ask_for_one(message, descriptors)
            self._serve_waiting()
            if self._asking or len(self._ready) < self._pool["size"] // 2:
                self._refill()

    def _ask_for_one(self, message: wire.Message, descriptors: list[int], *, first: bool = False) -> None:
        """Put a run among those that wait for a jar; if nobody wants it any more meanwhile, it is over."""
        entry = (message, descriptors)
        self._asking.insert(0 if first else len(self._asking), entry)
        self._watch(descriptors[0], lambda: self._call_off(entry))

    def _call_off(self, entry: tuple[wire.Message, list[int]]) -> None:
        self._asking.remove(entry)
        self._forget(entry[1][0])
        _call_off(entry[1])

    def _next_asking(self) -> tuple[wire.Message, list[int]]:
        message, descriptors = self._asking.popleft()
        self._forget(descriptors[0])
        return message, descriptors

    def _serve_waiting(self) -> None:
        while self._asking and self._ready and not self._zygote_is_gone():
            message, descriptors = self._next_asking()
            if _is_readable(descriptors[0]):
                _call_off(descriptors)
            else:
                self._begin(self._ready.popleft(), message, descriptors)

    def _do_statistics(self, _message: wire.Message, _descriptors: list[int]) -> None:
        waiting, running = len(self._ready), sum(1 for run in self._runs.values() if run.started)
        self._reply({"waiting": waiting, "running": running, "queued": len(self._asking), "zygotes": self._zygotes})

    def _begin(self, run: PoolRun, message: wire.Message, descriptors: list[int]) -> None:
        """Give a jar that waits its run. If that one has died meanwhile, nothing has run: another one gets it."""
        try:
            if not run.listeners:
                run.begin(message, descriptors[1:])
        except (BrokenPipeError, ConnectionResetError):
            run.started = 0.0
            run.kill("unused")
            self._ask_for_one(message, descriptors, first=True)
            return
        except OSError as error:
            run.started = 0.0
            run.problems = [f"the run could not start: {error.strerror or error}"]
            run.kill("gate")
        host = socket.socket(fileno=descriptors[0])
        self._hosts[run.name] = host
        self._watch_run(run, host, lambda: self._on_host(run, host))
        if not run.listeners:
            close_all(descriptors[1:])
            return
        run.pending = (message, descriptors[1:])
        try:
            self._go(run, host)
        except OSError:  # nobody waits for it any more
            run.kill("abandoned")

    def _answer(self, run: PoolRun) -> None:
        """The code has ended, and nothing of it is left but the jar's pid 1."""
        host = self._hosts.pop(run.name, None)
        run.deadline = float("inf")
        if host is None or run.answered:
            return
        run.answered = True
        self._forget(host)
        if run.ended_by == LAUNCHER_DIED:  # then the end of the file says it: the run has no result
            host.close()
            return
        with host, contextlib.suppress(OSError):
            wire.send(host, run.collect(), (run.workspace,) if run.workspace >= 0 else ())

    def _finish(self, run: Run) -> None:
        """Its pid 1 is gone, and with that one everything."""
        assert isinstance(run, PoolRun)
        del self._runs[run.name]
        if run in self._ready:
            self._ready.remove(run)
        if run.started and run.told is None and not run.ended_by and not (run.group and run.group.oom_kills()):
            run.kill("internal")
            run.problems = ["the jar's first process was killed, or the interpreter that it came from"]
        self._answer(run)
        oom = run.group.oom_fd() if run.group else None
        for watched in (run.init_fd, run.gate, run.observer, oom):
            if watched is not None and watched != -1:
                self._forget(watched)
        run.close()
        self._remove_traces(run.name, run.group)
        self._refill()

    def _end(self, reason: str) -> None:
        super()._end(reason)
        while self._asking:
            _message, descriptors = self._next_asking()
            self._tell_fault(descriptors, "the pool was closed before the run had begun")
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


@contextlib.contextmanager
def _entrance(group: RunGroup | None) -> Iterator[list[int]]:
    """Descriptors to which the jar's first process writes to be in the group."""
    if group is None:
        yield []
        return
    if (directory := group.cgroup_fd()) is None:
        yield group.enter_fds()
        group.entered()
        return
    opened = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield [opened]
    finally:
        os.close(opened)


def _is_readable(*descriptors: int) -> bool:
    """Whether there is something to read from one of them, or its end. (`select` knows only the first 1024.)"""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _call_off(descriptors: list[int]) -> None:
    """A run that never began: its caller has ended it, or is gone."""
    with socket.socket(fileno=descriptors[0]) as host, contextlib.suppress(OSError):
        if (received := wire.receive(host)) is not None:
            wire.send(host, {**_NOTHING, "ended_by": received[0]["kill"]})
    close_all(descriptors[1:])


def _room_for_descriptors() -> int:
    """How many this process may have, once it has asked for as many as it is allowed."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


_NOTHING: wire.Message = {
    "exit_code": 137,
    "code_status": None,
    "problems": [],
    "started": False,
    "seconds": 0.0,
    "cpu_seconds": 0.0,
    "peak_memory_bytes": 0,
    "processes": None,
    "bytes_read": None,
    "bytes_written": None,
    "oom_kills": 0,
    "pids_refused": 0,
    "observations": [],
}
"""The end of a run that never began."""


def _become_bubblewrap(bwrap: str, inside: list[int], command: list[str], stage: int) -> NoReturn:
    """In the child: nothing here may return."""
    try:
        place(inside)
        rlimits.volunteer_for_oom()
        default_signals()
        die_with(stage)
        os.execve(bwrap, ["bwrap", "--args", str(layout.ARGS_FD), "--", *command], {})  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not live on as a second stage
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}".encode()[:500])
    finally:
        os._exit(126)
