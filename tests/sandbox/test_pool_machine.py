"""What code in a pool learns about the machine: the same as in a jar of its own, which the zygote's clones see to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belljar import Pool, Sandbox

LOOK = r"""
import json, os, time

def read(name):
    try:
        with open(f"/proc/{name}", errors="replace") as file:
            return file.read()
    except OSError as error:
        return error.strerror

print(json.dumps({
    "files": {name: read(name) for name in (
        "meminfo", "cpuinfo", "stat", "uptime", "loadavg", "cmdline", "kallsyms", "keys", "interrupts", "vmstat",
        "sys/kernel/hostname", "sys/kernel/core_pattern", "sys/fs/file-nr", "version", "filesystems", "1/status")},
    "links": [len(read(name)) > 40 for name in ("mounts", "net/dev")],
    "names": sorted(name for name in os.listdir("/proc") if not name.isdecimal()),
    "processors": [os.cpu_count(), len(os.sched_getaffinity(0))],
    "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    "young": time.clock_gettime(time.CLOCK_BOOTTIME) < 600,
    "descriptors": sorted(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                          if os.path.exists(f"/proc/self/fd/{name}") and int(name) > 2),
}))
"""


def seen_by(result: Any) -> dict[str, Any]:
    assert result.ok, result
    found: dict[str, Any] = json.loads(result.stdout)
    found["files"].pop("stat")  # has the moment at which the jars were made
    return found


@pytest.mark.parametrize("shows", ["hidden", "limits"])
def test_as_in_a_jar_of_its_own(shows: str) -> None:
    """Every answer, in two runs of a pool and in a Sandbox."""
    policy = {"proc": {"host_info": shows, "mem_mb": 300, "cpu_quota": 1}, "backend": "bubblewrap"}
    with Sandbox(policy) as jar, Pool(policy, size=2) as pool:
        alone, *pooled = (seen_by(result) for result in (jar.run(LOOK), pool.run(LOOK), pool.run(LOOK)))
    assert pooled == [alone, alone]
    assert alone["links"] == [True, True]
    assert alone["files"]["cmdline"] == "No such file or directory"
    assert (alone["files"]["meminfo"] == "No such file or directory") == (shows == "hidden")


def test_the_control_sees_the_host() -> None:
    """What the test above finds hidden is there to be found."""
    with Pool({"proc": {"host_info": "host"}, "backend": "bubblewrap"}, size=1) as pool:
        found = seen_by(pool.run(LOOK))
    with open("/proc/cmdline", errors="replace") as file:
        assert found["files"]["cmdline"] == file.read()
    assert {"self", "thread-self", "kallsyms"} < set(found["names"])


def test_links_stay_when_memory_is_short() -> None:
    """The kernel drops names that nobody holds when a jar's memory is full; those that stay, pid 1 holds."""
    code = """
import os
for round in range(3):
    for index in range(20000):
        try: os.stat(f"/usr/{round}-{index}")  # names that are not there fill the memory for names
        except OSError: pass
    held = bytearray(60 << 20)
    del held
print([len(open(f"/proc/{name}").read()) > 10 for name in ("mounts", "net/dev", "version", "filesystems", "meminfo")])
"""
    with Pool({"proc": {"mem_mb": 96}, "backend": "bubblewrap"}, size=1) as pool:
        result = pool.run(code)
    assert result.stdout.strip() == str([True] * 5), result
