"""Canaries: while the code waits at the gate, look into the finished jar from outside and try what must fail.

Runs in the stage, with the host's view of the kernel. It trusts nothing that the jar says about itself, only what the
kernel says about the waiting process. Paths are resolved inside the jar's root (RESOLVE_IN_ROOT), because an absolute
link there would otherwise lead to the host's files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache

from belljar.backends import kernel
from belljar.backends.bubblewrap.jar_root import DEVICES
from belljar.policy.records import dataclass

TYPE_CHECKING = False  # see policy/records.py
if TYPE_CHECKING:
    from typing import Any

_SETTLE_SECONDS = 10.0
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


@dataclass(frozen=True, slots=True)
class Jar:
    """A waiting jar, held by descriptors so that a recycled process id can't stand in for it."""

    pid: int
    code_fd: int
    init_fd: int
    init_pid: int
    root_fd: int
    proc_fd: int
    status: dict[str, str]
    """Of the code's process, as it was first."""
    expect: Mapping[str, Any]
    meanwhile: Callable[[], object]
    """Called while we wait for the jar: what it asks the stage about is answered, or it would wait for us."""

    @classmethod
    def of(cls, pid: int, expect: Mapping[str, Any], meanwhile: Callable[[], object]) -> Jar:
        """The jar whose gate is process `pid`."""
        code = os.pidfd_open(pid)
        status = _status(pid)
        init = int(status["PPid"])
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        proc = kernel.openat2(root, "proc", os.O_RDONLY | os.O_DIRECTORY, resolve=kernel.RESOLVE_IN_ROOT)
        return cls(pid, code, os.pidfd_open(init), init, root, proc, status, expect, meanwhile)


def failures(jar: Jar) -> list[str]:
    """What is wrong with the jar, in words; empty when it holds."""
    return [problem for canary in CANARIES for problem in canary(jar)]


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", errors="replace") as file:
        lines = file.read().split("\n")
    return {key: value for key, _, value in (line.partition(":\t") for line in lines)}


def _settled(pid: int, status: dict[str, str], meanwhile: Callable[[], object]) -> dict[str, str]:
    """The status of a process that has put on its filter. Pid 1 does so beside the gate, and may be a moment later."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while int(status.get("Seccomp_filters", "0")) < 2 and time.monotonic() <= deadline:
        if status["State"][:1] in "ZX":  # it was killed, and its filters are gone
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        meanwhile()
        time.sleep(0.0005)
        status = _status(pid)
    return status


def _namespaces(jar: Jar) -> Iterator[str]:
    """Every namespace is the jar's own."""
    for name, ours in _our_namespaces(os.getpid()):
        if os.stat(f"/proc/{jar.pid}/ns/{name}").st_ino == ours:
            yield f"the {name} namespace is the host's"


@cache
def _our_namespaces(pid: int) -> list[tuple[str, int]]:
    """Those of this process, which keeps them."""
    return [(name, os.stat(f"/proc/{pid}/ns/{name}").st_ino) for name in _NAMESPACES]


def _privileges(jar: Jar) -> Iterator[str]:
    """No capability, no root, no way to gain either, a seccomp filter: for the code, and for the jar's pid 1."""
    of_init = _status(jar.init_pid)
    for pid, first, who in ((jar.pid, jar.status, "the code"), (jar.init_pid, of_init, "the jar's pid 1")):
        status = _settled(pid, first, jar.meanwhile)
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            if int(status[kind], 16) and not (kind == "CapBnd" and pid == jar.init_pid):
                yield f"{who} has capabilities: {kind} {status[kind]}"
        if status["NoNewPrivs"] != "1":
            yield f"{who} may gain privileges by executing a program"
        if status["Seccomp"] != "2" or int(status.get("Seccomp_filters", "0")) < 2:
            yield f"{who} has no seccomp filter"
        uids = set(status["Uid"].split())
        if uids != {str(jar.expect["kernel_uid"])} or "0" in uids:
            yield f"the kernel uid of {who} is {uids}, not {jar.expect['kernel_uid']}"


def _mounts(jar: Jar) -> Iterator[str]:
    """Nothing is mounted but what the plan says, and read-only is read-only."""
    with open(f"/proc/{jar.pid}/mountinfo", errors="surrogateescape") as file:
        fields = [line.split(" ", 6) for line in file]
    mounts = tuple((field[4], field[5]) for field in fields)
    yield from _mounted(mounts, tuple(jar.expect["writable"]), tuple(jar.expect["readonly"]))


@lru_cache(maxsize=16)
def _mounted(mounts: tuple[tuple[str, str], ...], may_write: tuple[str, ...], read: tuple[str, ...]) -> list[str]:
    """What is wrong with them, judged once: the jars of a pool have all the same."""
    return list(_judged(mounts, set(may_write), set(read)))


def _judged(mounts: tuple[tuple[str, str], ...], writable: set[str], readonly: set[str]) -> Iterator[str]:
    seen = set()
    for escaped, words in mounts:
        point, options = _unescape(escaped), words.split(",")
        seen.add(point)
        if "nosuid" not in options:
            yield f"{point} honours setuid programs"
        if (point in writable and point not in readonly) or _is_device(point):
            continue
        if not any(point == known or point.startswith(f"{known}/") for known in (*readonly, "/etc")):
            yield f"{point} is mounted and is not in the plan"
        elif "ro" not in options:
            yield f"{point} is writable"
    yield from (f"{missing} is not mounted" for missing in (readonly | writable) - seen)


def _is_device(point: str) -> bool:
    return point.removeprefix("/dev/") in (*DEVICES, "pts") and point.startswith("/dev/")


def _unescape(text: str) -> str:
    """Mount points have space, tab, newline and backslash as octal."""
    first, *rest = text.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def _network(jar: Jar) -> Iterator[str]:
    """No interface but loopback and the cable to its gateway, if it has one, and no route but through that."""
    expected = set(jar.expect["interfaces"])
    with open(f"/proc/{jar.pid}/net/dev") as file:
        interfaces = {line.split(":")[0].strip() for line in file.readlines()[2:]}
    if interfaces != expected:
        yield f"the jar has network interfaces: {', '.join(sorted(interfaces))}"
    with open(f"/proc/{jar.pid}/net/route") as file:
        if {line.split()[0] for line in file.readlines()[1:]} - set(jar.expect["routes"]):
            yield "the jar has a route to a network"


def _denied_files(jar: Jar) -> Iterator[str]:
    """Files that must not be there are not there."""
    for path in jar.expect["absent"]:
        try:
            found = kernel.openat2(jar.root_fd, path, os.O_RDONLY | os.O_NONBLOCK, resolve=kernel.RESOLVE_IN_ROOT)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP):
                continue
            yield f"{path} could not be tried: {error.strerror}"
        else:
            with contextlib.closing(os.fdopen(found)):
                yield f"{path} can be opened"


CANARIES: tuple[Callable[[Jar], Iterator[str]], ...] = (
    _namespaces,
    _privileges,
    _mounts,
    _network,
    _denied_files,
)
