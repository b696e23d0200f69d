"""The process from which a pool's jars are cloned, from the stage's side: `guest/pool/zygote.py`, in an outer jar."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Any, NoReturn

from belljar.backends.bubblewrap.shared import layout
from belljar.backends.bubblewrap.shared.parent_death import die_with
from belljar.backends.bubblewrap.stage.jar_run import JarSpec, default_signals, memory_file, place
from belljar.backends.seccomp import filters
from belljar.errors import SandboxUnavailableError
from belljar.limits import rlimits

NATIVE = "jar.so"
"""What is executed of what lies beside it."""
_SECONDS = 60.0
_MOST_SAID = 1 << 16
_LEAVE_OUT = "leave it out of `preload`: each run can import it for itself"


def zygote_files(pool: Mapping[str, Any], spec: JarSpec, *, counted: bool) -> dict[str, bytes]:
    """What lies beside it: its programs, its settings, and the filters of the jars."""
    limits = rlimits.rlimits_for(spec.limits, has_memory_group=spec.memory_group)
    settings = {
        **pool["settings"],
        "rlimits": [(which, soft) for which, soft, _hard in limits],
        "counted": counted,
    }
    native = {NATIVE: a2b_base64(pool["native"])} if pool["native"] else {}
    return {
        **native,
        **{name: program.encode() for name, program in pool["programs"].items()},
        "settings": ascii(settings).encode(),
        "notify.bpf": filters.notify_filter(
            connects=spec.observe_network, files=False, machine=spec.host_info != "host"
        ),
        "jar.bpf": filters.narrowing_filter(),
    }


class Zygote:
    """One that is up. Whatever can be read from it says that it is dead."""

    def __init__(self, name: str, pool: Mapping[str, Any], bwrap: str) -> None:
        """Start it; its files are in the directory `name`. Raises SandboxUnavailableError with why it does not."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        faults, faults_inside = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        own = (layout.RUNS, layout.CODE)
        words = [word.replace(layout.RUN, name) if word.startswith(own) else word for word in pool["arguments"]]
        arguments = memory_file("arguments", b"".join(os.fsencode(word) + b"\0" for word in words))
        program = memory_file("seccomp", filters.jar_filter(reported=True, makes_jars=True))
        inside = [null, null, faults_inside, program, theirs.fileno(), arguments]
        stage = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_bubblewrap(bwrap, inside, pool["command"], stage)
        for descriptor in (null, faults_inside, program, arguments):
            os.close(descriptor)
        theirs.close()
        self.socket = ours
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.pidfd = os.pidfd_open(self.pid)
        self._signs = polled(self.socket.fileno(), self.pidfd)
        self.inner_fd = -1
        """Of the interpreter itself; the other one is bubblewrap, which ends a moment later."""
        self._greet(faults)

    def _greet(self, faults: int) -> None:
        """Wait until it is up. What it can't import is the caller's business, and told in its words."""
        self.socket.settimeout(_SECONDS)
        word, importing, why = "", "", ""
        try:
            while True:
                said, ancillary, _flags, _address = self.socket.recvmsg(_MOST_SAID, socket.CMSG_SPACE(12))
                word, _, told = said.decode(errors="replace").partition(" ")
                if word != "importing":
                    break
                importing = told
        except TimeoutError:
            word, why = "", f"it takes longer than {_SECONDS:.0f} s"
        finally:
            self.socket.settimeout(None)
        problem = _last_words(faults)
        if not word:  # it has ended
            why = ": ".join(filter(None, (why or "it ends the interpreter", problem)))
            if importing:
                raise SandboxUnavailableError(f"{importing} can't be preloaded: {why}", hint=_LEAVE_OUT)
            raise SandboxUnavailableError(f"the pool's interpreter did not start: {problem or 'it said nothing'}")
        if word == "error":
            raise SandboxUnavailableError(told, hint=_LEAVE_OUT)
        pid = next(struct.unpack("3i", data)[0] for _level, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)
        self.inner_fd = os.pidfd_open(pid)

    def is_gone(self) -> bool:
        """Whether it has died, which may not have been heard of yet. It says nothing once it is up, but its end."""
        return bool(self._signs.poll(0))

    def bury(self) -> None:
        """It has died."""
        os.close(self.pidfd)
        os.close(self.inner_fd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.socket.close()


def _last_words(faults: int) -> str:
    """What it wrote to its errors."""
    os.set_blocking(faults, False)
    with contextlib.suppress(OSError), contextlib.closing(os.fdopen(faults, "rb", buffering=0)) as file:
        return (file.read(2000) or b"").decode(errors="replace").strip()
    return ""


def polled(*descriptors: int) -> select.poll:
    """To ask whether there is something to read from one of them, or its end. (`select` knows only the first 1024.)"""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll


def _become_bubblewrap(bwrap: str, inside: list[int], command: list[str], stage: int) -> NoReturn:
    """In the child: nothing here may return."""
    try:
        place(inside)
        rlimits.volunteer_for_oom()
        rlimits.forbid_cores()  # here: under the filter no jar's steps can set it any more
        default_signals()
        die_with(stage)
        os.execve(bwrap, ["bwrap", "--args", str(layout.ARGS_FD), "--", *command], {})  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not live on as a second stage
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}".encode()[:500])
    finally:
        os._exit(126)
