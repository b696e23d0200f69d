"""What code learns about the machine it runs on: `proc.host_info`."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from jars import OpenJar, is_enforced, sh, told

from belljar import Sandbox
from belljar.backends.contract import Status

KEY = "proc.host_info"
MEMORY = 200
GRANT = {"mem_mb": MEMORY, "cpu_quota": 0.5}

TELL = r"""
import ctypes, json, os, time

def read(name):
    try:
        with open(f"/proc/{name}", errors="replace") as file:
            return file.read()
    except OSError:
        return None

class SysInfo(ctypes.Structure):
    _fields_ = [("uptime", ctypes.c_long), ("loads", ctypes.c_ulong * 3), ("memory", ctypes.c_ulong * 6),
                ("procs", ctypes.c_ushort), ("pad", ctypes.c_ushort), ("high", ctypes.c_ulong * 2),
                ("unit", ctypes.c_uint), ("room", ctypes.c_char * 64)]

info = SysInfo()
result = ctypes.CDLL(None).sysinfo(ctypes.byref(info))
print(json.dumps({
    "files": {name: read(name) for name in NAMES},
    "names": sorted(name for name in os.listdir("/proc") if not name.isdecimal()),
    "count": os.cpu_count(),
    "affinity": [len(os.sched_getaffinity(pid)) for pid in (0, os.getpid())],
    "pages": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    "sysinfo": [result, info.uptime, info.memory[0] * info.unit, list(info.loads)],
    "clocks": [time.clock_gettime(clock) for clock in (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)],
    "started": int(read("self/stat").rpartition(") ")[2].split()[19]) / os.sysconf("SC_CLK_TCK"),
}))
"""
OF_THE_HOST = (
    "cmdline", "config.gz", "interrupts", "diskstats", "partitions", "kallsyms", "modules", "keys", "key-users",
    "vmstat", "zoneinfo", "devices", "crypto", "softirqs", "swaps", "cgroups", "buddyinfo", "fs/ext4", "tty/drivers",
    "bus/pci/devices", "sys/fs/file-nr", "sys/kernel/core_uses_pid", "sys/kernel/threads-max",
)  # fmt: skip
OF_THE_POLICY = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime")
STAYING = (
    "filesystems", "version", "mounts", "net/dev", "self/status", "sys/kernel/ostype", "sys/kernel/random/uuid",
    "sys/kernel/random/boot_id", "sys/kernel/cap_last_cap", "sys/vm/overcommit_memory", "sys/net/core/somaxconn",
)  # fmt: skip


def jar_that(open_jar: OpenJar, shows: str, **proc: Any) -> Sandbox:
    """A jar with this much of the machine."""
    return open_jar({"on_degraded": "allow", "proc": {**GRANT, "host_info": shows, **proc}})


def tells(jar: Sandbox) -> dict[str, Any]:
    """What Python code finds out."""
    names = (*OF_THE_HOST, *OF_THE_POLICY, *STAYING)
    found: dict[str, Any] = json.loads(told(jar.run(f"NAMES = {names!r}{TELL}")))
    return found


def processors(files: dict[str, str]) -> set[int]:
    """The numbers of processors that the files name."""
    described = files["cpuinfo"].count("processor") - files["cpuinfo"].count(": processor")
    return {described, sum(line[:3] == "cpu" and line[3].isdigit() for line in files["stat"].splitlines())}


def is_promised(jar: Sandbox) -> bool:
    """Whether the backend hides the machine here; gVisor and containers show parts of it, and say which."""
    return is_enforced(jar, KEY)


def test_memory_and_processors_are_the_policys(open_jar: OpenJar) -> None:
    """In every file and call from which a program learns of them."""
    jar = jar_that(open_jar, "limits")
    seen = tells(jar)
    lost = jar.plan(argv=["true"]).report.clause(KEY).lost
    files = seen["files"]
    assert int(files["meminfo"].split()[1]) == MEMORY << 10
    if "processors as the host" not in lost:
        assert processors(files) == {1}
    if is_promised(jar):
        assert (seen["count"], seen["affinity"]) == (1, [1, 1])
        assert seen["pages"] == MEMORY << 20
        assert seen["sysinfo"][0] == 0
        assert seen["sysinfo"][2:] == [MEMORY << 20, [0, 0, 0]]
        assert files["loadavg"].startswith("0.00 0.00 0.00")
    else:
        assert lost


def test_uptime_is_the_jars(open_jar: OpenJar) -> None:
    """Clocks, processes and calls count from when the jar was opened."""
    opened = time.monotonic()
    jar = jar_that(open_jar, "limits")
    seen = tells(jar)
    clauses = sh(jar, "true").enforcement.clauses
    if any(clause.key == KEY and clause.status is not Status.ENFORCED for clause in clauses):
        pytest.skip("this backend, or this kernel, has no clocks of a jar's own, and says so")
    most = time.monotonic() - opened + 2
    told_times = {"sysinfo": seen["sysinfo"][1], "started": seen["started"], "monotonic": seen["clocks"][0]}
    assert {name: value for name, value in told_times.items() if not 0 <= value <= most} == {}
    assert abs(int(seen["files"]["stat"].partition("btime ")[2].split()[0]) - time.time()) <= most


@pytest.mark.parametrize("shows", ["limits", "hidden"])
def test_nothing_else_of_the_host_is_in_proc(open_jar: OpenJar, shows: str) -> None:
    """Only what programs need is found there, however it is asked for."""
    jar = jar_that(open_jar, shows)
    if not is_promised(jar):
        pytest.skip("a container engine lets only a few files be covered, and says so")
    seen = tells(jar)
    assert {name for name in OF_THE_HOST if seen["files"][name] is not None} == set()
    assert {name for name in STAYING if not seen["files"][name]} == set()
    assert {name for name in OF_THE_POLICY if seen["files"][name] is None} == (
        set(OF_THE_POLICY) if shows == "hidden" else set()
    )
    assert seen["names"] == ["self", "thread-self"]
    assert (seen["count"], seen["affinity"], seen["sysinfo"][2]) == (1, [1, 1], MEMORY << 20)


def test_what_tells_of_the_host_all_the_same_is_named(open_jar: OpenJar) -> None:
    """Files of a process that nothing can be mounted over: the report says which."""
    jar = jar_that(open_jar, "limits")
    if not is_promised(jar):
        pytest.skip("a container engine lets only a few files be covered, and says so")
    told_by = {"timens_offsets": "self/timens_offsets", "softnet_stat": "net/softnet_stat", "sched": "self/sched"}
    reading = "import os, sys; print([path for path in sys.argv[1:] if os.path.exists(f'/proc/{path}')])"
    shown = told(jar.run(reading, args=[*told_by.values()]))
    named = jar.plan(argv=["true"]).report.clause(KEY).by
    assert [name for name, path in told_by.items() if path in shown and name not in named] == []


def test_the_host_is_shown_if_asked(open_jar: OpenJar) -> None:
    """The control: the same questions have the host's own answers."""
    jar = jar_that(open_jar, "host")
    assert is_enforced(jar, KEY)
    seen = tells(jar)
    if "gvisor" in jar.plan(argv=["true"]).backend:
        return  # whose kernel has answers of its own
    assert {name for name in ("cmdline", "diskstats", "vmstat") if seen["files"][name] is None} == set()
    assert processors(seen["files"]) == {os.cpu_count()}
    with open("/proc/meminfo") as file:
        assert seen["files"]["meminfo"].split()[1] == file.read().split()[1]
    assert seen["clocks"][0] > MEMORY or time.monotonic() < MEMORY


def test_what_is_shown_can_not_be_changed(open_jar: OpenJar) -> None:
    """The files are belljar's, shared by the runs of a Sandbox."""
    jar = jar_that(open_jar, "limits")
    if not is_promised(jar):
        pytest.skip("the container's files, or gVisor's")
    tries = "for name in meminfo sys/kernel/hostname sys/kernel/core_pattern stat; do echo x >> /proc/$name; done; "
    tries += "rm -f /proc/meminfo; umount /proc/meminfo; mount -t proc proc /proc; mount -o remount /proc; true"
    sh(jar, tries)
    assert int(tells(jar)["files"]["meminfo"].split()[1]) == MEMORY << 10


def test_processors_that_code_chooses(open_jar: OpenJar) -> None:
    """What it sets with sched_setaffinity(2) is what it gets, within what it is granted; and mistakes are refused."""
    jar = jar_that(open_jar, "limits", cpu_quota=2)
    if not is_promised(jar) or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a backend that answers as the host does, or a host with one processor")
    code = """
import ctypes, os
granted = os.sched_getaffinity(0)
one = {max(granted)}
os.sched_setaffinity(0, one)
print(len(granted), os.sched_getaffinity(0) == one, os.sched_getaffinity(os.getpid()) == one)
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(1024)
for pid, length, at in ((0, 7, room), (0, 0, room), (0, 1024, None), (-1, 1024, room), (99999, 1024, room)):
    print(libc.syscall(NUMBER, pid, length, at), ctypes.get_errno())
print(libc.syscall(SYSINFO, 8), ctypes.get_errno())
"""
    numbers = {"x86_64": (204, 99), "aarch64": (123, 179)}[os.uname().machine]
    code = code.replace("NUMBER", str(numbers[0])).replace("SYSINFO", str(numbers[1]))
    lines = told(jar.run(code)).splitlines()
    assert lines == ["2 True True", "-1 22", "-1 22", "-1 14", "-1 22", "-1 3", "-1 14"]


PROGRAMS = {
    "nproc": (["nproc"], "1"),
    "free": (["sh", "-c", "free -m | awk '/^Mem:/ {print $2}'"], str(MEMORY)),
    "ps": (["sh", "-c", "ps -e -o pid= | wc -l | tr -d ' '"], None),
    "node": (
        [
            "node",
            "-p",
            "const os = require('os'); [os.cpus().length, os.availableParallelism(), os.totalmem() >> 20] + ''",
        ],
        f"1,1,{MEMORY}",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_agree(open_jar: OpenJar, name: str) -> None:
    """Each finds as much as the policy grants, whichever way it asks."""
    jar = jar_that(open_jar, "limits", mem_mb=MEMORY)
    if not is_promised(jar):
        pytest.skip("a backend that answers as the host does")
    if not sh(jar, 'command -v "$1"', name).ok:
        pytest.skip(f"there is no {name} here")
    command, expected = PROGRAMS[name]
    said = told(jar.exec(command)).strip()
    assert said == expected if expected is not None else int(said) >= 2


def test_java_agrees(open_jar: OpenJar) -> None:
    """It sizes its heap by the memory: a quarter."""
    jar = jar_that(open_jar, "limits", mem_mb=1024)
    if not is_promised(jar) or not sh(jar, "command -v jshell").ok:
        pytest.skip("a backend that answers as the host does, or no Java")
    settings = jar.exec(["java", "-XshowSettings:vm", "-XX:+PrintFlagsFinal", "-version"])
    flags = {line.split()[1]: line.split()[3] for line in settings.stdout.splitlines() if len(line.split()) > 3}
    assert int(flags["MaxHeapSize"]) <= 300 << 20
    assert int(flags.get("ParallelGCThreads", "0")) <= 1
