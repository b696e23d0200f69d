"""What the canaries remember is what an answer of the kernel's means, never that a jar was like another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.backends import kernel
from belljar.backends.bubblewrap.stage import isolation_check

_HEAD = b"Inter-|   Receive\n face |bytes\n"
_LOOPBACK = _HEAD + b"    lo:       0       0\n"
_ROUTES = b"Iface\tDestination\n"
_NO_RIGHTS = b"""
CapInh:\t0000000000000000
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t0000000000000000
CapAmb:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
Seccomp_filters:\t2"""
_UID = b"7\t7\t7\t7"
_MOUNTS = ((b"/", b"ro,nosuid,nodev"), (b"/tmp", b"rw,nosuid,nodev"))


@pytest.mark.parametrize(
    ("devices", "routes", "found"),
    [
        (_LOOPBACK, _ROUTES, []),
        (_LOOPBACK + b"  eth0:       0       0\n", _ROUTES, ["the jar has network interfaces: eth0, lo"]),
        (_LOOPBACK + b"  eth0:       0       0", _ROUTES, ["the jar has network interfaces: eth0, lo"]),
        (_LOOPBACK, _ROUTES + b"lo\t00000000\n", ["the jar has a route to a network"]),
        (_HEAD, _ROUTES, ["the jar has network interfaces: "]),
    ],
)
def test_a_network(devices: bytes, routes: bytes, found: list[str]) -> None:
    """After one that holds, another that does not is refused; each time that it is seen."""
    for _ in range(2):
        assert isolation_check._reachable(_LOOPBACK, _ROUTES, ("lo",), ()) == []
        assert isolation_check._reachable(devices, routes, ("lo",), ()) == found


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ((b"/", b"rw,nosuid,nodev"), "/ is writable"),
        ((b"/", b"ro,nodev"), "/ honours setuid programs"),
        ((b"/home\\040x", b"ro,nosuid"), "/home x is mounted and is not in the plan"),
        ((b"/caf\xc3\xa9\r", b"ro,nosuid"), "/café\r is mounted and is not in the plan"),
        ((b"/root",), "values to unpack"),
    ],
)
def test_mounts(changed: tuple[bytes, ...], found: str) -> None:
    """One mount more, or another way: judged by itself. What can't be read holds for nothing."""
    for _ in range(2):
        assert isolation_check._mounted(_MOUNTS, ("/tmp",), ("/",)) == []
        try:
            problems = isolation_check._mounted((*_MOUNTS, changed), ("/tmp",), ("/",))
        except ValueError as error:
            problems = [str(error)]
        assert found in problems[0]


@pytest.mark.parametrize(
    ("line", "uid", "who", "found"),
    [
        (b"CapEff:\t0000000000000400", _UID, "the code", "the code has capabilities: CapEff 0000000000000400"),
        (b"CapBnd:\t0000000000000400", _UID, "the code", "the code has capabilities: CapBnd 0000000000000400"),
        (b"CapBnd:\t0000000000000400", _UID, "the jar's pid 1", ""),
        (b"NoNewPrivs:\t0", _UID, "the code", "the code may gain privileges by executing a program"),
        (b"Seccomp:\t0", _UID, "the code", "the code has no seccomp filter"),
        (b"Seccomp_filters:\t1", _UID, "the jar's pid 1", "the jar's pid 1 has no seccomp filter"),
        (b"Seccomp:\t2", b"7\t7\t0\t7", "the code", "the kernel uid of the code is "),
    ],
)
def test_rights(line: bytes, uid: bytes, who: str, found: str) -> None:
    """A single right more than the last one had is told."""
    name = line.split(b":")[0]
    rights = b"\n".join(line if one.startswith(name + b":") else one for one in _NO_RIGHTS.split(b"\n"))
    for _ in range(2):
        assert isolation_check._excess(_NO_RIGHTS, _UID, 7, who) == []
        assert "".join(isolation_check._excess(rights, uid, 7, who)).startswith(found)
        assert bool(isolation_check._excess(rights, uid, 7, who)) == bool(found)


def test_a_status_without_its_filters() -> None:
    """A kernel that does not tell how many there are: then there are none, and the rest is judged as ever."""
    status = b"Name:\tx" + _NO_RIGHTS.rpartition(b"\n")[0] + b"\nCpus_allowed:\t3\n"
    assert isolation_check._filters(status) == 0
    assert isolation_check._excess(isolation_check._rights(status), _UID, 7, "the code") == [
        "the code has no seccomp filter"
    ]
    with pytest.raises(ValueError, match="not found"):
        isolation_check._rights(b"Name:\tx\nState:\tS\n")


def test_the_namespaces_of_the_host() -> None:
    """A process that has them all is told of all."""
    jar = isolation_check.WaitingJar(os.getpid(), -1, os.getpid(), -1, b"", {}, lambda: None)
    assert list(isolation_check._namespaces(jar)) == [
        f"the {name} namespace is the host's" for name in isolation_check._NAMESPACES
    ]


def test_files_that_must_be_absent(tmp_path: Path) -> None:
    """What is there is told, also behind an absolute link, which leads into the jar; what can't be tried is told."""
    (tmp_path / "there").write_text("")
    (tmp_path / "link").symlink_to("/there")
    (tmp_path / "away").symlink_to("/etc/passwd")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = os.listdir("/proc/self/fd")
    paths = ["/there", "/link", "/away", "/none/at/all", "/" + "x" * 300]
    found = list(
        isolation_check._denied_files(isolation_check.WaitingJar(0, -1, 0, root, b"", {"absent": paths}, lambda: None))
    )
    assert os.listdir("/proc/self/fd") == opened
    os.close(root)
    assert found == [
        "/there can be opened",
        "/link can be opened",
        f"{paths[-1]} could not be tried: File name too long",
    ]


def test_a_name_is_no_line() -> None:
    """A process that names itself after a line of its status does not thereby have one."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.set_name("x\nUid:\t7\nPPid")
        os.write(writer, isolation_check._status(os.getpid()))
        os._exit(0)
    os.waitpid(pid, 0)
    status = os.read(reader, 1 << 14)
    os.close(reader)
    os.close(writer)
    assert status.startswith(b"Name:\tx\\nUid:")
    assert isolation_check._field(status, b"Uid").split() == [str(os.getuid()).encode()] * 4
    assert int(isolation_check._field(status, b"PPid")) == os.getpid()
    assert isolation_check._rights(status).startswith(b"\nCapInh:\t")
    assert isolation_check._rights(status).split(b"\n")[-1] == b"Seccomp_filters:\t%d" % isolation_check._filters(
        status
    )
    with pytest.raises(KeyError):
        isolation_check._field(status, b"Name")  # the first line is the process's own word


@pytest.mark.parametrize(
    ("lines", "holds"),
    [
        ([b"/ ro - tmpfs belljar rw", b"/proc rw - proc proc rw,subset=pid"], True),
        ([b"/proc rw - proc proc rw", b"/proc rw shared:1 - proc proc rw,subset=pid"], True),
        ([b"/proc rw - proc proc rw,subset=pid", b"/proc rw - proc proc rw"], False),
        ([b"/proc rw - proc proc rw"], False),
        ([b"/ ro - tmpfs belljar rw,subset=pid"], False),
    ],
)
def test_a_proc_of_processes_only(lines: list[bytes], holds: bool) -> None:
    """Only what is mounted last at /proc counts."""
    assert isolation_check._shows_only_processes([(b"1 0 0:1 / " + line).split(b" ", 6) for line in lines]) is holds
