"""The stage of a pool: one zygote in an outer jar, jars that wait, and runs, each of which takes one and uses it up.

A jar is made when nobody waits for it: after a run has ended, or when too few are left. What looks into it and what
ends it is as for every other jar (`running.Run`); only its birth is the zygote's. Some of those that wait are lent to
the host ahead of time, so that a run has no need of the stage to begin.

    stage ── a jar's sockets, its directory, what counts it ──▶ host    (the socket of offers)
    host  ── "begin", or why to end it ──▶ stage                        (a socket for each jar)
    stage ── that something was noted; how it ended ──▶ host
    stage ── that nothing is left of it ──▶ host                        (the socket of offers)
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Collection

from belljar._startup import sockets as socket
from belljar.backends.bubblewrap.shared import layout, wire
from belljar.backends.bubblewrap.shared.orphans import end_orphans
from belljar.backends.bubblewrap.stage.jar_run import JarRun, JarSpec
from belljar.backends.bubblewrap.stage.pool_run import ENDED_SILENTLY, PoolRun
from belljar.backends.bubblewrap.stage.pool_zygote import NATIVE, Zygote, polled, zygote_files
from belljar.backends.bubblewrap.stage.stage import LAUNCHER_DIED, Stage
from belljar.errors import SandboxUnavailableError
from belljar.limits.groups import RunGroup

_MADE_AT_ONCE = 3
_MOST_LENT = 16
"""More runs than these begin at once only when the host has a great many processors."""
_UNHURRIED_SECONDS = 0.02
"""How long a run is left alone before a jar is made in the place of its own, if it lasts and others still wait."""
_HURRY_SECONDS = 0.05
"""How long after a run had to wait for a jar the next ones are thought to be wanted at once."""
_ZYGOTE_ENDS = "the pool's interpreter ends when it makes a jar"
_PAUSE_SECONDS = 0.2
"""After a jar that came to nothing."""
_FAILING_SECONDS = 20.0
"""When nothing but failures came for so long, the pool gives up."""
_FIRST_SECONDS = 3.0
"""The same if there has never been a jar: then no run holds what is missing."""
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
        self._offers: socket.socket | None = None
        self._ready: deque[PoolRun] = deque()
        """Those that wait here."""
        self._lent: set[PoolRun] = set()
        """Those that wait at the host."""
        self._busy: set[JarRun] = set()
        """Those for which there is a clock: in the making, or in use."""
        self._making = 0
        self._asking = 0
        """How many runs wait for a jar at the host."""
        self._failing_since = self._pause_until = self._refill_at = self._hurry_until = 0.0
        self._zygotes_end = False
        """Whether a zygote has ended before it had made a jar."""
        self._has_made = self._has_cloned = False
        """Whether there has been a jar at all; and one of this zygote's."""
        self._why = ""
        self._zygote: Zygote | None = None
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

    def _timed(self) -> Collection[JarRun]:
        return self._busy

    def _due(self) -> float:
        due = super()._due()
        for at in (self._pause_until, self._refill_at):
            due = at if at and at < due else due
        return due

    def _on_time(self) -> None:
        super()._on_time()
        now = time.monotonic()
        if (self._pause_until and now >= self._pause_until) or (self._refill_at and now >= self._refill_at):
            self._pause_until = 0.0 if now >= self._pause_until else self._pause_until
            self._refill()

    # --- the zygote ---

    def _start_zygote(self) -> None:
        self._zygotes += 1
        self._has_cloned = False
        name = f"zygote-{self._zygotes}"
        self._make_directories(name)
        if self._plan.machine is not None:
            os.mkdir(f"{name}/{os.path.basename(layout.ZYGOTE_MACHINE)}", 0o755, dir_fd=self._code_fd)
        counted = self._group is not None and self._spec.memory_group
        for file, content in zygote_files(self._pool, self._spec, counted=counted).items():
            self._write_file(f"{name}/{file}", content, 0o755 if file == NATIVE else 0o644)
        self._zygote = Zygote(name, self._pool, self._spec.bwrap)
        self._watch(self._zygote.pidfd, self._on_zygote_end)
        self._tell_zygote()

    def _tell_zygote(self) -> None:
        """The host has to know from whose death on a jar that it has been lent is none."""
        if self._zygote is not None:
            self._offer({"zygote": self._zygotes}, (self._zygote.inner_fd,))

    def _on_zygote_end(self) -> None:
        """With it went every jar that was cloned from it. Those that run are lost; who waits gets another."""
        assert self._zygote is not None
        self._forget(self._zygote.pidfd)
        self._zygote.bury()
        self._zygote = None
        if not self._has_cloned:
            self._zygotes_end = True
            self._failed(_ZYGOTE_ENDS)
        self._ready.clear()
        self._lent.clear()
        end_orphans(set())  # bubblewrap's own pid 1, which may outlast it
        if self._control.fileno() < 0 or self._why:
            return
        try:
            self._start_zygote()
        except (SandboxUnavailableError, OSError) as error:
            self._give_up(str(error))
            return
        self._refill()

    # --- jars ---

    def _refill(self) -> None:
        self._refill_at = 0.0
        waiting = len(self._ready) + len(self._lent)
        wanted = min(self._pool["size"] + self._asking - waiting, _MADE_AT_ONCE)
        while self._zygote is not None and not self._why and not self._pause_until and self._making < wanted:
            if len(self._runs) >= self._most:  # the others wait until one has ended
                return
            try:
                self._make_one(self._zygote)
            except (BrokenPipeError, ConnectionResetError):  # the zygote has died: that is heard of by itself
                return
            except (OSError, SandboxUnavailableError) as error:
                self._failed(f"a jar could not be made: {error}")

    def _failed(self, why: str) -> None:
        """Try again in a moment: a run may hold what is missing, and it ends. But not for ever."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        self._pause_until = now + _PAUSE_SECONDS
        if now - self._failing_since > (_FAILING_SECONDS if self._has_made else _FIRST_SECONDS):
            # A jar dies with its zygote, and may be heard of first.
            self._give_up(_ZYGOTE_ENDS if self._zygotes_end and not self._has_made else why)

    def _make_one(self, zygote: Zygote) -> None:
        self._count += 1
        name = f"run-{self._count}"
        group = self._group.run_group(name, self._spec.limits) if self._group else None
        run = PoolRun(name, self._spec, group, self._covered, cabled=self._cabled, generation=self._zygotes)
        try:
            if group:
                group.end_as_one(whether=False)  # its first process has the zygote's memory
            _clone_into(group, run, zygote.socket, hurried=time.monotonic() < self._hurry_until)
        except BaseException:
            run.close()
            self._remove_traces(name, group)
            raise
        self._runs[name] = run
        self._busy.add(run)
        self._making += 1
        gate = run.gate
        self._watch_run(run, gate, lambda: self._on_word(run, gate))
        self._watch_memory(run)

    def _on_word(self, run: PoolRun, gate: socket.socket | None) -> None:
        word = run.hear()
        if word == "made":
            observer = run.observer
            assert observer is not None
            self._watch_run(run, observer, lambda: None if observer.on_readable() else self._forget(observer))
        elif word == "ready":
            self._making -= 1
            self._failing_since = 0.0
            self._has_made = self._has_cloned = True
            self._busy.discard(run)
            self._forget(gate)  # what comes now is for whoever uses it
            self._watch(run.init_fd, lambda: self._finish(run))
            self._ready.append(run)
            self._lend()
            self._refill()
        else:
            self._miscarried(run, word)

    def _miscarried(self, run: PoolRun, why: str) -> None:
        """A jar that does not hold, or was never one."""
        self._making -= 1
        refused = bool(run.problems)
        run.kill("canary" if refused else "gate")
        if refused:
            self._offer({"refused": run.collect()})
        self._forget(run.gate)
        if run.init_fd >= 0:
            self._watch(run.init_fd, lambda: self._finish(run))
        else:
            self._finish(run)
        if refused:
            self._give_up(f"a jar of this pool does not hold: {why}")
        elif self._zygote is not None and not self._zygote.is_gone():
            ends = why == ENDED_SILENTLY and not self._has_made  # only the copy died, or the zygote's end comes later
            self._failed(_ZYGOTE_ENDS if ends else f"no jar can be made any more: {why}")

    def _give_up(self, why: str) -> None:
        self._why = self._why or why
        self._offer({"error": "unavailable", "message": self._why, "hint": "close the Pool, and open another"})

    # --- what the host has ---

    def _do_lend(self, _message: wire.Message, descriptors: list[int]) -> None:
        """The host's socket for what it is lent."""
        self._offers = socket.socket(fileno=descriptors[0])
        self._watch(self._offers, self._on_asking)
        self._tell_zygote()
        self._lend()

    def _offer(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        if self._offers is not None:
            with contextlib.suppress(OSError):  # the host is gone: that is heard of by itself
                wire.send(self._offers, message, descriptors)

    def _lend(self) -> None:
        while self._offers is not None and self._ready and len(self._lent) < max(_MOST_LENT, self._asking):
            if self._zygote is None or self._zygote.is_gone():
                return
            run = self._ready.popleft()
            try:
                host = run.lend(self._offers)
            except OSError as error:
                run.problems = [f"it could not be handed over: {error}"]
                run.kill("gate")
                self._failed(run.problems[0])
                return
            self._lent.add(run)
            self._hosts[run.name] = host
            run.tell_first(lambda host=host: _tell(host, {"noted": True}))  # type: ignore[misc]
            self._watch_run(run, host, lambda run=run, host=host: self._on_host(run, host))  # type: ignore[misc]

    def _on_asking(self) -> None:
        """So many runs wait for a jar at the host; or it wants none any more."""
        assert self._offers is not None
        received = wire.receive(self._offers)
        if received is None:
            self._forget(self._offers)
            return
        self._asking = received[0]["asking"]
        if self._asking:
            self._hurry_until = time.monotonic() + _HURRY_SECONDS
        self._lend()
        self._refill()

    def _do_statistics(self, _message: wire.Message, _descriptors: list[int]) -> None:
        self._reply({"waiting": len(self._ready) + len(self._lent), "zygotes": self._zygotes})

    def _on_host(self, run: JarRun, host: socket.socket) -> None:
        assert isinstance(run, PoolRun)
        received = wire.receive(host)
        if received is None:
            self._forget(host)
        self._obey(run, received)

    def _obey(self, run: PoolRun, received: tuple[wire.Message, list[int]] | None) -> None:
        if received is None:
            run.kill("abandoned")
        elif "begin" in received[0]:
            self._begun(run, received[0]["begin"])
        else:
            run.kill(received[0]["kill"])

    def _begun(self, run: PoolRun, timeout_seconds: float) -> None:
        run.begin(timeout_seconds)
        self._lent.discard(run)
        if run.name in self._runs:
            self._busy.add(run)
        self._lend()
        # That one run less waits, the host says in another message: until then the old number makes one too many.
        self._asking = max(0, self._asking - 1)
        if self._asking or len(self._ready) + len(self._lent) < self._pool["size"] // 2:
            self._refill()
        elif not self._refill_at:
            self._refill_at = time.monotonic() + _UNHURRIED_SECONDS

    # --- the end ---

    def _finish(self, run: JarRun) -> None:
        """Its pid 1 is gone, and with that one everything."""
        assert isinstance(run, PoolRun)
        del self._runs[run.name]
        if run in self._ready:
            self._ready.remove(run)
        lent = run.name in self._hosts
        self._answer(run)
        self._lent.discard(run)
        self._busy.discard(run)
        oom = run.group.oom_fd() if run.group else None
        for watched in (run.init_fd, run.gate, run.observer, oom):
            if watched is not None and watched != -1:
                self._forget(watched)
        run.close()
        self._remove_traces(run.name, run.group)
        if lent:
            self._offer({"gone": run.name})
        self._refill()

    def _answer(self, run: PoolRun) -> None:
        """Tell the host, if it still wants to know: most of them heard all from the jar's pid 1."""
        host = self._hosts.pop(run.name, None)
        if host is None:
            return
        self._forget(host)
        try:
            self._answer_at(host, run)
        finally:
            host.close()

    def _answer_at(self, host: socket.socket, run: PoolRun) -> None:
        heard = polled(host.fileno())
        while heard.poll(0):  # that it began, for example
            if (received := wire.receive(host)) is None:
                return
            self._obey(run, received)
        if run.ended_by == LAUNCHER_DIED:  # then the end of the file says it: the run has no result
            return
        briefly = run.quiet
        if run.started and not run.ended_by and not (run.group and run.group.oom_kills()):
            zygote = self._zygote
            is_gone = run.generation != self._zygotes or zygote is None or zygote.is_gone()
            run.lose(with_zygote=is_gone)
        _tell(host, run.collect(briefly=briefly and run.ended_by in wire.LOST))

    def _remove_traces(self, name: str, group: RunGroup | None) -> None:
        """A jar has no files of the stage's; but if its group can't be removed, something of it may be left."""
        if name.startswith("zygote"):
            super()._remove_traces(name, group)
        elif group:
            try:
                group.remove()
            except SandboxUnavailableError as error:
                print(f"belljar: {error}", file=sys.stderr)
                self._give_up(f"something of a run may be left: {error}")

    def _end(self, reason: str) -> None:
        super()._end(reason)
        if self._offers is not None:
            self._forget(self._offers)
            self._offers.close()
            self._offers = None
        self._why = self._why or "the pool was closed"
        if self._zygote is not None:
            self._zygote.socket.close()


def _tell(host: socket.socket, message: wire.Message) -> None:
    with contextlib.suppress(OSError):  # nobody wants to know any more
        wire.send(host, message)


def _clone_into(group: RunGroup | None, run: PoolRun, zygote: socket.socket, *, hurried: bool) -> None:
    """Have it cloned, with descriptors to which its first process writes to be in the group."""
    if group is None:
        run.clone(zygote, [], hurried=hurried)
    elif (directory := group.cgroup_fd()) is None:
        run.clone(zygote, group.enter_fds(), hurried=hurried)
        group.entered()
    else:
        opened = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
        try:
            run.clone(zygote, [opened], hurried=hurried)
        finally:
            os.close(opened)


def _room_for_descriptors() -> int:
    """How many this process may have, once it has asked for as many as it is allowed."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
