"""The files of /proc that a container has from belljar: those that its runtime lets anybody mount over. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.backends import machine
from belljar.backends.contract import Clause, Status
from belljar.policy.models import Policy

if TYPE_CHECKING:
    from belljar.backends.container.jar.compile import ContainerHost

_RUNTIMES = ("runc", "crun")
_COVERED = ("cpuinfo", "diskstats", "loadavg", "meminfo", "stat", "swaps")
"""Out of the list that runc allows. /proc/uptime stays: the clocks, which nothing here hides, tell the same."""
_EMPTY = {"diskstats": "", "swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"}
_CALLS = "sysinfo, the processors that a process may use, clocks and uptime are the host's"


@dataclass(frozen=True, slots=True)
class HostMachine:
    """What this host is, as far as the files of a container depend on it."""

    mem_bytes: int
    processors: tuple[int, ...]
    cpuinfo: str
    booted: int


def machine_files(policy: Policy, place: ContainerHost) -> dict[str, bytes]:
    """Return what is mounted over files of a container's /proc: by path, the content."""
    host, proc = place.machine, policy.proc
    if proc.host_info == "host" or host is None or place.facts.runtime not in _RUNTIMES or policy.container.privileged:
        return {}
    numbers = machine.processors(proc.cpu_quota, host.processors)
    memory = machine.memory(proc.mem_bytes, host.mem_bytes)
    texts = {**machine.files(memory, numbers, cpuinfo=host.cpuinfo, booted=host.booted), **_EMPTY}
    shows = proc.host_info == "limits"
    return {f"/proc/{name}": (texts[name] if shows else "").encode() for name in _COVERED}


def host_info_clause(policy: Policy, place: ContainerHost) -> Clause:
    """How far `proc.host_info` holds in a container."""
    key = "proc.host_info"
    if policy.proc.host_info == "host":
        return Clause(key, Status.ENFORCED, "nothing is hidden: asked for")
    if place.gvisor:
        lost = "the code sees as many processors as the host has"
        return Clause(key, Status.DEGRADED, "gVisor's kernel, which has a /proc, clocks and memory of its own", lost)
    files = machine_files(policy, place)
    if not files:
        return Clause(key, Status.DEGRADED, "what the engine hides", f"most of /proc is the host's, and {_CALLS}")
    lost = f"a runtime lets no other file of /proc be covered: cmdline, interrupts and others are the host's; {_CALLS}"
    return Clause(key, Status.DEGRADED, f"belljar's own {', '.join(files)}", lost)
