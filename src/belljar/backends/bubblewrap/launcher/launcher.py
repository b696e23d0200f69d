"""The launcher: one small process beside belljar that starts every jar and outlives belljar by a moment.

A jar must die when belljar does, but not when the *thread* that asked for it ends, and nobody is left to clean up after
a SIGKILL. So jars are started from here: one thread, no user code, nothing open but a socket to belljar. When that
socket closes, for whatever reason, every stage is killed, every control group is removed, and the launcher ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from belljar._startup import signals as signal
from belljar._startup import sockets as socket
from belljar._startup.records import NamedTuple
from belljar.backends import kernel
from belljar.backends.bubblewrap.shared import wire
from belljar.backends.bubblewrap.shared.loop import Loop
from belljar.backends.bubblewrap.shared.orphans import end_abandoned, end_orphans
from belljar.backends.bubblewrap.shared.stage_plan import StagePlan
from belljar.backends.bubblewrap.stage import stage
from belljar.backends.bubblewrap.stage.jar_run import COMMAND
from belljar.backends.kernel_uid import FIRST_UID, spare_uid
from belljar.backends.seccomp import filters
from belljar.errors import BelljarError
from belljar.limits.clone_into import fork_into
from belljar.limits.detect import CgroupSupport, Mechanism
from belljar.limits.groups import JarGroup, create_jar_group, import_groups
from belljar.limits.sweep import sweep_stale

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import NoReturn

_GRACE_SECONDS = 5.0


class _Child(NamedTuple):
    """A stage, and what has to be removed after it."""

    pid: int
    pidfd: int
    kernel_uid: int
    group: JarGroup | None
    control: socket.socket
    """Its own end of what belljar asks it by: if that is shut down, it ends."""


def main(descriptor: int) -> NoReturn:
    """Be a launcher on the socket `descriptor` until belljar is gone."""
    try:
        _detach(descriptor)
        _prepare()
        Launcher(socket.socket(fileno=descriptor)).serve()
    finally:
        os._exit(0)


def _detach(keep: int) -> None:
    """Hold nothing of the caller's: no terminal, no pipe that someone waits on, no working directory."""
    with contextlib.suppress(OSError):
        os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, keep)
    os.closerange(keep + 1, 1 << 20)
    os.chdir("/")
    os.umask(0o022)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.set_name("belljar-launch")


def _refuse(control: socket.socket, message: wire.Message) -> None:
    with control, contextlib.suppress(OSError):  # whoever asked has given up
        wire.send(control, message)


def _prepare() -> None:
    """Have ready what the first request needs, while the host makes its plan: every stage and every run inherits it."""
    import_groups()
    with contextlib.suppress(BelljarError):  # told by the stage that needs them
        filters.jar_filter(reported=True)
        filters.notify_filter(connects=True, files=False, machine=True)
        filters.supervised()


class Launcher:
    """Forks stages and buries them."""

    def __init__(self, host: socket.socket) -> None:
        self._host = host
        self._loop = Loop()
        self._children: dict[int, _Child] = {}
        self._count = 0
        self._prepared: CgroupSupport | None = None
        self._host_pid = os.getppid()

    def serve(self) -> None:
        """Until belljar's end of the socket closes; then end everything."""
        self._loop.register(self._host)
        while self._host.fileno() >= 0:
            for watched in self._loop.wait():
                if watched.what is self._host:
                    self._on_host()
                else:
                    self._bury(watched.fd)
        for child in self._children.values():  # belljar may go on for a moment, and hold the other end
            with contextlib.suppress(OSError):
                child.control.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._children and (left := deadline - time.monotonic()) > 0:
            for watched in self._loop.wait(left):
                self._bury(watched.fd)
        for pidfd in list(self._children):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pidfd in list(self._children):
            self._bury(pidfd)

    def _on_host(self) -> None:
        received = wire.receive(self._host)
        if received is None:
            self._loop.unregister(self._host)
            self._host.close()
            return
        message, (control_fd,) = received
        control = socket.socket(fileno=control_fd)
        try:
            self._start(message, control)
        except BelljarError as error:
            _refuse(control, {"error": "unavailable", "message": error.message, "hint": error.hint})
        except OSError as error:
            _refuse(control, {"error": "unavailable", "message": f"can't start a stage: {error}", "hint": ""})

    def _start(self, message: wire.Message, control: socket.socket) -> None:
        root = os.geteuid() == 0
        kernel_uid = spare_uid({child.kernel_uid for child in self._children.values()}) if root else os.geteuid()
        support = self._support(CgroupSupport.from_json(message["cgroup"]))
        group = create_jar_group(support, self._count, owner_uid=kernel_uid if root else None)
        self._count += 1
        plan = StagePlan.from_json(message["plan"])
        launcher = os.getpid()
        pid = fork_into(group.stage_cgroup_fd() if group else None)
        if pid == 0:
            self._become_stage(control, plan, group, kernel_uid, launcher)
        child = _Child(pid, os.pidfd_open(pid), kernel_uid, group, control)
        self._children[child.pidfd] = child
        self._loop.register(child.pidfd)
        if self._count == 1:
            with contextlib.suppress(BelljarError, OSError):
                sweep_stale(support)  # of launchers that were killed
            with contextlib.suppress(OSError):
                end_abandoned(COMMAND, first_uid=FIRST_UID)

    def _support(self, support: CgroupSupport) -> CgroupSupport:
        """What the host found, and on cgroup v2 what it is after we made room for groups in it, once."""
        if support.mechanism in (Mechanism.V2_DELEGATED, Mechanism.V2_SYSTEMD):
            if self._prepared is None:
                from belljar.limits.systemd import prepare_delegated

                self._prepared = prepare_delegated(also_move=(self._host_pid,))
            return self._prepared
        return support

    def _become_stage(
        self, control: socket.socket, plan: StagePlan, group: JarGroup | None, kernel_uid: int, launcher: int
    ) -> NoReturn:
        """In the child: drop what is the launcher's."""
        try:
            self._loop.close()
            self._host.close()
            for other in self._children.values():
                os.close(other.pidfd)
                other.control.close()
                if other.group:
                    other.group.close()
            stage.main(control, plan, group, kernel_uid, launcher=launcher)
        finally:
            os._exit(1)

    def _bury(self, pidfd: int) -> None:
        """A stage has ended, so its jars have too. Remove what only we can remove."""
        child = self._children.pop(pidfd)
        with contextlib.suppress(KeyError):
            self._loop.unregister(pidfd)
        os.waitpid(child.pid, 0)
        os.close(pidfd)
        child.control.close()
        if child.group:
            with contextlib.suppress(BelljarError):
                child.group.thaw()
        end_orphans({other.pid for other in self._children.values()})
        if child.group:
            try:
                child.group.remove()
            except BelljarError as error:
                print(f"belljar: {error}", file=sys.stderr)
