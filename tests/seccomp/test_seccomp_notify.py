"""A dialogue between a child under both programs and its supervisor; and bubblewrap between the two."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from belljar.backends.seccomp.filters import BUILDING, REPORTED, syscall_name
from belljar.backends.seccomp.notify import Notification, NotifyListener

PROBE = Path(__file__).with_name("seccomp_probe.py")
PATIENCE_SECONDS = 30


@contextmanager
def supervised(
    paths: list[str], directory: Path, pass_fds: tuple[int, ...] = (), **job: Any
) -> Iterator[tuple[subprocess.Popen[bytes], NotifyListener, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        job |= {"programs": paths, "listener": theirs.fileno()}
        child = subprocess.Popen(
            [sys.executable, PROBE, json.dumps(job)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(), *pass_fds),
        )
        try:
            theirs.close()
            _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
            listener = NotifyListener(descriptor)
            try:
                yield child, listener, ours
            finally:
                listener.close()
        finally:
            child.kill()
            child.communicate()


def wait_for(listener: NotifyListener) -> int:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    ready = poll.poll(PATIENCE_SECONDS * 1000)
    assert ready, "no notification came"
    return ready[0][1]


def serve(listener: NotifyListener, decide: Callable[[Notification], int]) -> list[str]:
    """Answer until every process under the filter is gone; the names of the calls, in order."""
    heard = []
    while not wait_for(listener) & select.POLLHUP:
        notification = listener.receive()
        if notification is None:
            continue
        heard.append(syscall_name(notification.nr))
        number = decide(notification)
        listener.answer_errno(notification, number) if number else listener.answer_continue(notification)
    return heard


def refuse_reported(notification: Notification) -> int:
    return errno.EPERM if syscall_name(notification.nr) in REPORTED else 0


def said(child: subprocess.Popen[bytes]) -> dict[str, int]:
    output, errors = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0, errors.decode()
    return json.loads(output)


@pytest.mark.parametrize("jar", ["jar-reported", None])
def test_a_reported_call(jar: str | None, programs: dict[str, str], number, tmp_path: Path) -> None:
    """The supervisor sees who asked and for what, while it waits, and its answer is the call's."""
    paths = [programs["notify"], *([programs[jar]] if jar else [])]
    with supervised(paths, tmp_path, call=[number("ptrace"), 0x4206, 1, 2, 3]) as (child, listener, _):
        assert wait_for(listener) == select.POLLIN
        notification = listener.receive()
        assert notification is not None
        assert notification.pid == child.pid
        assert syscall_name(notification.nr) == "ptrace"
        assert notification.args[:4] == (0x4206, 1, 2, 3)
        assert listener.still_valid(notification)
        assert listener.answer_errno(notification, errno.EPERM)
        assert not listener.answer_errno(notification, errno.EPERM)
        assert said(child)["errno"] == errno.EPERM
        assert not listener.still_valid(notification)
        assert wait_for(listener) & select.POLLHUP


def test_a_call_refused_in_the_kernel_is_not_heard(programs: dict[str, str], number, tmp_path: Path) -> None:
    """Why `jar_filter(reported=True)` exists: ERRNO outranks the notification."""
    paths = [programs["notify"], programs["jar"]]
    with supervised(paths, tmp_path, call=[number("ptrace"), 0, 0, 0, 0]) as (child, listener, _):
        assert serve(listener, refuse_reported) == []
        assert said(child)["errno"] == errno.EPERM


def test_connect_is_heard_and_goes_on(programs: dict[str, str], number, tmp_path: Path) -> None:
    """CONTINUE: the kernel answers as it would have."""
    paths = [programs["notify-all"], programs["jar-reported"]]
    with supervised(paths, tmp_path, call=[number("connect"), 999, 0, 0]) as (child, listener, _):
        assert "connect" in serve(listener, refuse_reported)
        assert said(child)["errno"] == errno.EBADF


def test_a_dead_supervisor_is_closed(programs: dict[str, str], number, tmp_path: Path) -> None:
    """ENOSYS from the kernel when the listener is gone."""
    paths = [programs["notify"], programs["jar-reported"]]
    job = {"call": [number("ptrace"), 0, 0, 0, 0], "wait": True}
    with supervised(paths, tmp_path, **job) as (child, listener, channel):
        listener.close()
        channel.send(b"!")
        assert said(child)["errno"] == errno.ENOSYS


def test_a_supervisor_that_dies_while_asked(programs: dict[str, str], number, tmp_path: Path) -> None:
    """The call that waits is closed too."""
    paths = [programs["notify"], programs["jar-reported"]]
    with supervised(paths, tmp_path, call=[number("ptrace"), 0, 0, 0, 0]) as (child, listener, _):
        wait_for(listener)
        assert listener.receive() is not None
        listener.close()
        assert said(child)["errno"] == errno.ENOSYS


def test_a_caller_that_dies_while_it_waits(programs: dict[str, str], number, tmp_path: Path) -> None:
    """Nothing is raised: it is the guest's right to die."""
    paths = [programs["notify"], programs["jar-reported"]]
    with supervised(paths, tmp_path, call=[number("ptrace"), 0, 0, 0, 0]) as (child, listener, _):
        wait_for(listener)
        notification = listener.receive()
        assert notification is not None
        child.kill()
        child.wait()
        assert not listener.still_valid(notification)
        assert not listener.answer_errno(notification, errno.EPERM)
        assert not listener.answer_continue(notification)


def test_no_second_listener(programs: dict[str, str], number, tmp_path: Path) -> None:
    """The guest can't have one of its own."""
    paths = [programs["notify"], programs["jar-reported"]]
    with supervised(paths, tmp_path, call=[number("seccomp"), 1, 8, 1]) as (child, _, _):
        assert said(child)["errno"] == errno.EPERM


GATE = 'read -r g <&0 || exec "$@"; exit 125'
GUEST = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall({ptrace}, 0, 0, 0, 0)
print(ctypes.get_errno())
"""


@pytest.mark.host
@pytest.mark.parametrize("notify", ["notify", "notify-all"])
def test_bubblewrap_between_the_two(notify: str, programs: dict[str, str], number, tmp_path: Path) -> None:
    """Bwrap and the shell at the gate use no reported call; the guest's one is heard and refused.

    Of the calls by which it builds the jar few are asked about: each takes the supervisor some microseconds.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("bwrap is not installed")
    with open(programs["jar-reported"], "rb") as program:
        os.set_inheritable(program.fileno(), True)
        jar = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        jar += ["--ro-bind", "/", "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--hostname", "jar"]
        jar += ["--seccomp", str(program.fileno()), "--", "/bin/sh", "-c", GATE, "sh"]
        jar += ["/usr/bin/python3", "-I", "-c", GUEST.format(ptrace=number("ptrace"))]
        if not os.path.exists("/usr/bin/python3"):
            pytest.skip("no /usr/bin/python3 to be the guest")
        with supervised([programs[notify]], tmp_path, (program.fileno(),), execute=jar) as (child, listener, _):
            heard = serve(listener, refuse_reported)
            output, errors = child.communicate(timeout=PATIENCE_SECONDS)
    assert [name for name in heard if name in REPORTED] == ["ptrace"], errors.decode()
    assert output.decode().strip() == str(errno.EPERM)
    assert ("execve" in heard) is (notify == "notify-all")
    building = [name for name in heard if name in BUILDING]
    assert building
    assert len(building) <= 16, building
