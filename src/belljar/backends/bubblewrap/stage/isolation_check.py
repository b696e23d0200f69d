"""Canaries: while the code waits at the gate, look into the finished jar from outside and try what must fail.

Runs in the stage, with the host's view of the kernel. It trusts nothing that the jar says about itself, only what the
kernel says about the waiting process. Paths are resolved inside the jar's root (RESOLVE_IN_ROOT), because an absolute
link there would otherwise lead to the host's files.

The kernel is asked anew about every jar. What its answer means is remembered with the answer itself, to the byte: the
jars of a pool are all alike, and a different answer is judged by itself.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache

from belljar._startup.records import dataclass
from belljar.backends import kernel
from belljar.backends.bubblewrap.stage.jar_root import DEVICES
from belljar.backends.bubblewrap.stage.own_proc import ONLY_PROCESSES

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

_SETTLE_SECONDS = 10.0
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_FILTERS = b"\nSeccomp_filters:\t"
_READ_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class WaitingJar:
    """A waiting jar, held by descriptors so that a recycled process id can't stand in for it."""

    pid: int
    init_fd: int
    init_pid: int
    root_fd: int
    status: bytes
    """Of the code's process, as it was first."""
    expect: Mapping[str, Any]
    meanwhile: Callable[[], object]
    """Called while we wait for the jar: what it asks the stage about is answered, or it would wait for us."""

    @classmethod
    def of(cls, pid: int, expect: Mapping[str, Any], meanwhile: Callable[[], object]) -> WaitingJar:
        """The jar whose gate is process `pid`."""
        status = _status(pid)
        init = int(_field(status, b"PPid"))
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return cls(pid, os.pidfd_open(init), init, root, status, expect, meanwhile)

    def open_proc(self) -> int:
        """The jar's own /proc, in which there is nobody else."""
        return kernel.openat2(self.root_fd, "proc", os.O_RDONLY | os.O_DIRECTORY, resolve=kernel.RESOLVE_IN_ROOT)


def failures(jar: WaitingJar) -> list[str]:
    """What is wrong with the jar, in words; empty when it holds."""
    return [problem for canary in CANARIES for problem in canary(jar)]


def _text(path: str) -> bytes:
    """All that a file of /proc says: most give no more than a page at a time."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while part := os.read(descriptor, _READ_BYTES):
            text += part
        return text
    finally:
        os.close(descriptor)


def _status(pid: int) -> bytes:
    return _text(f"/proc/{pid}/status")


def _field(status: bytes, name: bytes) -> bytes:
    """What one line of a status says. No process can feign one: a newline in its name is told as two characters.

    Raises KeyError if there is none.
    """
    start = status.find(b"\n%b:\t" % name)
    if start < 0:
        raise KeyError(name.decode())
    start += len(name) + 3
    return status[start : status.index(b"\n", start)]


def _filters(status: bytes) -> int:
    """How many seccomp filters it has on; kernels before 5.9 don't tell."""
    start = status.find(_FILTERS)
    return int(status[start + len(_FILTERS) : status.index(b"\n", start + 1)]) if start >= 0 else 0


def _rights(status: bytes) -> bytes:
    """Those lines that say what a process may do, from its capabilities to its filters, and between them nothing else.

    Raises ValueError if there are none.
    """
    start = status.index(b"\nCapInh:\t")
    last = status.find(_FILTERS, start)
    return status[start : status.index(b"\n", last + 1) if last >= 0 else len(status)]


def _settled(pid: int, status: bytes, meanwhile: Callable[[], object]) -> bytes:
    """The status of a process that has put on its filter. Pid 1 does so beside the gate, and may be a moment later."""
    if _filters(status) >= 2:
        return status
    deadline = time.monotonic() + _SETTLE_SECONDS
    while _filters(status) < 2 and time.monotonic() <= deadline:
        if _field(status, b"State")[:1] in b"ZX":  # it was killed, and its filters are gone
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        meanwhile()
        time.sleep(0.0005)
        status = _status(pid)
    return status


def _namespaces(jar: WaitingJar) -> Iterator[str]:
    """Every namespace is the jar's own."""
    for name, ours in _our_namespaces(os.getpid()):
        if os.readlink(f"/proc/{jar.pid}/ns/{name}") == ours:
            yield f"the {name} namespace is the host's"
    clocks = _children_clocks(os.getpid())
    if clocks and os.readlink(f"/proc/{jar.pid}/ns/time") != clocks:
        yield "the clocks are the host's"


@cache
def _children_clocks(pid: int) -> str:
    """The time namespace that this process has made for its children; empty if it has made none."""
    try:
        own, children = (os.readlink(f"/proc/{pid}/ns/{name}") for name in ("time", "time_for_children"))
    except FileNotFoundError:  # a kernel without time namespaces
        return ""
    return children if children != own else ""


@cache
def _our_namespaces(pid: int) -> list[tuple[str, str]]:
    """Those of this process, which keeps them. (What the link says is the kind and the number: `net:[4026531840]`.)"""
    return [(name, os.readlink(f"/proc/{pid}/ns/{name}")) for name in _NAMESPACES]


def _privileges(jar: WaitingJar) -> Iterator[str]:
    """No capability, no root, no way to gain either, a seccomp filter: for the code, and for the jar's pid 1."""
    of_init = _status(jar.init_pid)
    for pid, first, who in ((jar.pid, jar.status, "the code"), (jar.init_pid, of_init, "the jar's pid 1")):
        status = _settled(pid, first, jar.meanwhile)
        yield from _excess(_rights(status), _field(status, b"Uid"), jar.expect["kernel_uid"], who)


@lru_cache(maxsize=16)
def _excess(rights: bytes, uid: bytes, kernel_uid: int, who: str) -> list[str]:
    """What a process may do beyond what it should, judged once for each of its kind."""
    status = dict(line.split(":\t", 1) for line in rights.decode().split("\n") if line)
    found = [
        f"{who} has capabilities: {kind} {status[kind]}"
        for kind in _CAPABILITIES
        if int(status[kind], 16) and not (kind == "CapBnd" and who == "the jar's pid 1")
    ]
    if status["NoNewPrivs"] != "1":
        found.append(f"{who} may gain privileges by executing a program")
    if status["Seccomp"] != "2" or int(status.get("Seccomp_filters", "0")) < 2:
        found.append(f"{who} has no seccomp filter")
    uids = set(uid.decode().split())
    if uids != {str(kernel_uid)} or "0" in uids:
        found.append(f"the kernel uid of {who} is {uids}, not {kernel_uid}")
    return found


def _mounts(jar: WaitingJar) -> Iterator[str]:
    """Nothing is mounted but what the plan says, and read-only is read-only."""
    lines = [line.split(b" ", 6) for line in _text(f"/proc/{jar.pid}/mountinfo").split(b"\n") if line]
    mounts = tuple([tuple(words[4:6]) for words in lines])  # where and how: the rest is each one's
    if jar.expect["only_processes"] and not _shows_only_processes(lines):
        yield "/proc shows more of the host than its processes"
    yield from _mounted(mounts, tuple(jar.expect["writable"]), tuple(jar.expect["readonly"]))


def _shows_only_processes(lines: list[list[bytes]]) -> bool:
    """Return True if the uppermost file system at /proc has that among its options."""
    options = [words[6].rpartition(b" ")[2] for words in lines if words[4] == b"/proc"]
    return bool(options) and ONLY_PROCESSES.encode() in options[-1].split(b",")


@lru_cache(maxsize=16)
def _mounted(mounts: tuple[tuple[bytes, ...], ...], may_write: tuple[str, ...], read: tuple[str, ...]) -> list[str]:
    """What is wrong with them, judged once: the jars of a pool have all the same."""
    return list(_judged(mounts, set(may_write), set(read)))


def _judged(mounts: tuple[tuple[bytes, ...], ...], writable: set[str], readonly: set[str]) -> Iterator[str]:
    seen = set()
    for escaped, words in mounts:
        point, options = _unescape(os.fsdecode(escaped)), words.split(b",")
        seen.add(point)
        if b"nosuid" not in options:
            yield f"{point} honours setuid programs"
        if (point in writable and point not in readonly) or _is_device(point):
            continue
        if not any(point == known or point.startswith(f"{known}/") for known in (*readonly, "/etc")):
            yield f"{point} is mounted and is not in the plan"
        elif b"ro" not in options:
            yield f"{point} is writable"
    yield from (f"{missing} is not mounted" for missing in (readonly | writable) - seen)


def _is_device(point: str) -> bool:
    return point.removeprefix("/dev/") in (*DEVICES, "pts") and point.startswith("/dev/")


def _unescape(text: str) -> str:
    """Mount points have space, tab, newline and backslash as octal."""
    first, *rest = text.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def _network(jar: WaitingJar) -> Iterator[str]:
    """No interface but loopback and the cable to its gateway, if it has one, and no route but through that."""
    devices, routes = _text(f"/proc/{jar.pid}/net/dev"), _text(f"/proc/{jar.pid}/net/route")
    yield from _reachable(devices, routes, tuple(jar.expect["interfaces"]), tuple(jar.expect["routes"]))


@lru_cache(maxsize=16)
def _reachable(devices: bytes, routes: bytes, expected: tuple[str, ...], through: tuple[str, ...]) -> list[str]:
    """What there is too much of, judged once: the jars without a network have all the same."""
    found = []
    interfaces = {line.split(":")[0].strip() for line in os.fsdecode(devices).split("\n")[2:] if line}
    if interfaces != set(expected):
        found.append(f"the jar has network interfaces: {', '.join(sorted(interfaces))}")
    if {line.split()[0] for line in os.fsdecode(routes).split("\n")[1:] if line} - set(through):
        found.append("the jar has a route to a network")
    return found


def _denied_files(jar: WaitingJar) -> Iterator[str]:
    """Files that must not be there are not there."""
    for path in jar.expect["absent"]:
        found = kernel.try_openat2(jar.root_fd, path, os.O_RDONLY | os.O_NONBLOCK, resolve=kernel.RESOLVE_IN_ROOT)
        if found >= 0:
            os.close(found)
            yield f"{path} can be opened"
        elif -found not in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP):
            yield f"{path} could not be tried: {os.strerror(-found)}"


CANARIES: tuple[Callable[[WaitingJar], Iterator[str]], ...] = (
    _namespaces,
    _privileges,
    _mounts,
    _network,
    _denied_files,
)
