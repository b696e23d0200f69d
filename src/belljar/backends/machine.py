"""The machine as a policy grants it: what the files say from which programs learn about it. Pure.

`proc.host_info` chooses how much of it a jar has. Programs size themselves by these files, so the files agree with
each other and with the calls: as much memory and as many processors as the policy grants, and nothing of the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

SHOWN: Mapping[str, tuple[str, ...]] = {
    "hidden": ("sys",),
    "limits": ("sys", "cpuinfo", "loadavg", "meminfo", "stat", "uptime"),
    "host": (),
}
"""The names in a jar's /proc, besides those of its processes, that belljar fills, by `proc.host_info`."""

KEPT = ("filesystems", "mounts", "net", "version")
"""The names that stay as the kernel has them: two tell of the kernel itself, two are links to the reader's own."""

UUID = "kernel/random/uuid"
"""The one setting that the kernel itself must answer: another one each time."""

GAPS = (
    "not hidden: what the processor itself tells (CPUID, its number, its counter), Cpus_allowed in /proc/PID/status, "
    "the host's uptime in /proc/PID/timens_offsets and sched, what its processors have received in "
    "/proc/net/softnet_stat, the sizes of the host's file systems, and in /proc/PID/mountinfo the host's paths of "
    "interpreters and of directories that are mounted as they are"
)
"""What no mechanism here covers, for the report."""

_CPU_FIELDS = (
    "vendor_id", "cpu family", "model", "stepping", "cache size", "fpu", "fpu_exception", "cpuid level", "wp", "flags",
    "clflush size", "cache_alignment", "address sizes",
    "Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
)  # fmt: skip
"""What is kept of a processor's description: libraries choose their code by it, and the processor tells it anyway."""

_COPIED = (
    "crypto/fips_enabled", "fs/nr_open", "fs/pipe-max-size", "fs/protected_hardlinks", "fs/protected_symlinks",
    "kernel/arch", "kernel/cap_last_cap", "kernel/ngroups_max", "kernel/osrelease", "kernel/ostype",
    "kernel/overflowgid", "kernel/overflowuid", "kernel/perf_event_paranoid", "kernel/randomize_va_space",
    "kernel/seccomp/actions_avail", "kernel/version", "kernel/yama/ptrace_scope", "vm/max_map_count",
    "vm/mmap_min_addr", "vm/overcommit_memory", "vm/overcommit_ratio",
)  # fmt: skip
"""Settings of the kernel that programs heed, and that are the same on every host with this kernel, or bind the code."""

_FIXED = {
    "fs/file-max": "9223372036854775807",
    "fs/inotify/max_queued_events": "16384",
    "fs/inotify/max_user_instances": "32",
    "fs/inotify/max_user_watches": "8192",
    "kernel/core_pattern": "core",
    "kernel/domainname": "(none)",
    "kernel/hostname": "jar",
    "kernel/msgmax": "8192",
    "kernel/msgmnb": "16384",
    "kernel/msgmni": "32000",
    "kernel/pid_max": "4194304",
    "kernel/random/entropy_avail": "256",
    "kernel/random/poolsize": "256",
    "kernel/sem": "32000\t1024000000\t500\t32000",
    "kernel/shmall": "18446744073692774399",
    "kernel/shmmax": "18446744073692774399",
    "kernel/shmmni": "4096",
    "net/core/rmem_default": "212992",
    "net/core/rmem_max": "212992",
    "net/core/somaxconn": "4096",
    "net/core/wmem_default": "212992",
    "net/core/wmem_max": "212992",
    "net/ipv4/ip_local_port_range": "32768\t60999",
    "net/ipv4/ip_unprivileged_port_start": "1024",
    "net/ipv6/conf/all/disable_ipv6": "0",
    "net/ipv6/conf/default/disable_ipv6": "0",
    "net/ipv6/conf/lo/disable_ipv6": "0",
    "vm/nr_hugepages": "0",
    "vm/swappiness": "60",
}
"""Settings that would tell of the host (its memory, its tuning, its name): a new kernel's own values instead."""


def processors(cpu_quota: float, available: Iterable[int]) -> tuple[int, ...]:
    """The numbers of the processors that the code sees: as many as its share of time needs, and as there are."""
    return tuple(sorted(available)[: max(1, -int(-cpu_quota // 1))])


def memory(mem_bytes: int, host_bytes: int) -> int:
    """The bytes of memory that the code sees. A policy that grants more than there is does not make it more."""
    return min(mem_bytes, host_bytes) if host_bytes > 0 else mem_bytes


def files(mem_bytes: int, numbers: Sequence[int], *, cpuinfo: str, booted: int) -> dict[str, str]:
    """Return the texts of /proc, by name. `cpuinfo` is the host's; `booted` is the time at which the uptime starts."""
    return {
        "cpuinfo": _cpuinfo(cpuinfo, numbers),
        "loadavg": "0.00 0.00 0.00 1/1 1\n",
        "meminfo": _meminfo(mem_bytes >> 10),
        "stat": _stat(numbers, booted),
        "uptime": "0.00 0.00\n",
    }


def settings(read: Callable[[str], str | None], boot_id: str) -> dict[str, str]:
    """Return the texts of /proc/sys, by path. `read` returns the kernel's own, or None if it has no such setting."""
    copied = {path: text for path in _COPIED if (text := read(path)) is not None}
    fixed = {path: f"{value}\n" for path, value in _FIXED.items()}
    return {**copied, **fixed, "kernel/random/boot_id": f"{boot_id}\n"}


def _cpuinfo(host: str, numbers: Sequence[int]) -> str:
    fields = (line.partition(":")[::2] for line in host.partition("\n\n")[0].splitlines())
    found = {name.strip(): value.strip() for name, value in fields}
    kept = {name: found[name] for name in _CPU_FIELDS if name in found}
    blocks = []
    for place, number in enumerate(numbers):
        block = {
            "processor": str(number),
            "model name": "processor",
            "physical id": "0",
            "siblings": str(len(numbers)),
            "core id": str(place),
            "cpu cores": str(len(numbers)),
            **kept,
        }
        blocks.append("".join(f"{name:<15}\t: {value}\n" for name, value in block.items()))
    return "\n".join(blocks) + "\n"


def _meminfo(kilobytes: int) -> str:
    of_all = dict.fromkeys(("MemTotal", "MemFree", "MemAvailable"), kilobytes)
    nothing = (
        "Buffers", "Cached", "SwapCached", "Active", "Inactive", "Active(anon)", "Inactive(anon)", "Active(file)",
        "Inactive(file)", "Unevictable", "Mlocked", "SwapTotal", "SwapFree", "Dirty", "Writeback", "AnonPages",
        "Mapped", "Shmem", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim", "KernelStack", "PageTables", "Bounce",
    )  # fmt: skip
    rest = {"CommitLimit": kilobytes, "Committed_AS": 0, "VmallocTotal": 34359738367, "VmallocUsed": 0}
    lines = [
        f"{name + ':':<16}{value:>8} kB" for name, value in {**of_all, **dict.fromkeys(nothing, 0), **rest}.items()
    ]
    pages = [f"HugePages_{name + ':':<6}{0:>8}" for name in ("Total", "Free", "Rsvd", "Surp")]
    return "\n".join([*lines, *pages, f"{'Hugepagesize:':<16}{2048:>8} kB", f"{'Hugetlb:':<16}{0:>8} kB"]) + "\n"


def _stat(numbers: Sequence[int], booted: int) -> str:
    none = " ".join("0" * 10)
    lines = [f"cpu  {none}", *(f"cpu{number} {none}" for number in numbers)]
    lines += ["intr 0", "ctxt 0", f"btime {booted}", "processes 1", "procs_running 1", "procs_blocked 0"]
    return "\n".join([*lines, f"softirq {' '.join('0' * 11)}"]) + "\n"
