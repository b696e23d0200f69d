"""How far each clause of a policy holds on this backend, on this host. Pure."""

from __future__ import annotations

from belljar.backends.bubblewrap.host.facts import Host
from belljar.backends.bubblewrap.shared.stage_plan import NOT_FROZEN
from belljar.backends.clauses import COVERED_IN_LIVE, lost_in_live, redaction_clauses, session_clauses
from belljar.backends.contract import Clause, EnforcementReport, Status
from belljar.backends.machine import GAPS
from belljar.backends.network.clauses import network_clauses
from belljar.limits.detect import Mechanism
from belljar.policy.models import ContainerPolicy, Policy

_GROUPS = {
    Mechanism.V1: "cgroup v1",
    Mechanism.V2_DELEGATED: "cgroup v2",
    Mechanism.V2_SYSTEMD: "cgroup v2 (a systemd scope)",
}


def report(policy: Policy, host: Host) -> EnforcementReport:
    """Every clause, accounted for."""
    return EnforcementReport(
        (
            _enforced("fs.mounts", "mount namespace (bubblewrap)"),
            _deny_globs(policy, host),
            *_size(policy),
            _enforced("fs.snapshot", "a copy in the jar's own tmpfs" if policy.fs.snapshot else "not asked for"),
            *network_clauses(policy),
            _enforced("proc.uid", "user namespace" + (", a kernel uid of the jar's own" if host.root else "")),
            _memory(host),
            _cpu(host),
            _pids(host),
            _enforced("proc.timeout_ms", "the stage's clock, SIGKILL to every process of the jar"),
            _enforced("proc.open_files", "RLIMIT_NOFILE"),
            _enforced("proc.file_size_mb", "RLIMIT_FSIZE"),
            _enforced("proc.output_mb", "belljar's reader, SIGKILL"),
            _host_info(policy),
            _enforced("env.set", "an environment made from nothing"),
            _enforced("env.pass", "an environment made from nothing"),
            _enforced("python.venv", "a read-only mount"),
            _enforced("python.interpreter", "a read-only mount"),
            _enforced("logging.sample_ratio", "belljar itself, which stores what it read"),
            *redaction_clauses(),
            *session_clauses(),
            *_container(policy),
            _enforced("syscalls", "seccomp allow list"),
        )
    )


def _enforced(key: str, by: str) -> Clause:
    return Clause(key, Status.ENFORCED, by)


def _deny_globs(policy: Policy, host: Host) -> Clause:
    key = "fs.deny_globs"
    live = [mount for mount in policy.fs.mounts if mount.source and mount.rw and not mount.cow]
    if live:
        return Clause(key, Status.DEGRADED, COVERED_IN_LIVE, lost_in_live([mount.path for mount in live]))
    with_source = [mount for mount in policy.fs.mounts if mount.source]
    interpreters = _hidden_in_interpreters(policy, host)
    if not with_source and not policy.python.venv:
        shown = "nothing of the host is mounted but its system directories and interpreters"
        return _enforced(key, shown + interpreters)
    if policy.fs.snapshot and not policy.python.venv:
        return _enforced(key, "what is denied is not copied" + interpreters)
    if host.freezes:
        by = "overlayfs, with the names that were there when it was opened, and no others"
        return _enforced(key, by + interpreters)
    by = "overlayfs whiteouts, and a watch for what the host makes later"
    return Clause(key, Status.DEGRADED, by, NOT_FROZEN)


def _hidden_in_interpreters(policy: Policy, host: Host) -> str:
    """Say how old the search may be by which denied names in interpreters' directories are hidden."""
    searched = [shown for runtime in host.runtimes for shown in runtime.installations if not shown.searched]
    if not searched or not policy.fs.deny_globs:
        return ""
    seconds = max(shown.search_seconds for shown in searched)
    since = f"by a search at most {seconds // 60} minutes old" if seconds else "when the Sandbox was opened"
    return (
        f"; in {', '.join(dict.fromkeys(shown.path for shown in searched))}, names that were found {since} are hidden"
    )


def _size(policy: Policy) -> tuple[Clause, ...]:
    live = [mount.path for mount in policy.fs.mounts if mount.source and mount.rw and not mount.cow]
    if live:
        lost = f"{', '.join(live)} is the host's own directory: only proc.file_size_mb holds there"
        return tuple(
            Clause(key, Status.DEGRADED, "tmpfs for all but the live mounts", lost)
            for key in ("fs.size_mb", "fs.inodes")
        )
    return (
        _enforced("fs.size_mb", "tmpfs size, one for all that is writable"),
        _enforced("fs.inodes", "tmpfs nr_inodes"),
    )


_NO_CONTAINER = "not a container: nothing to do"
_KEPT = {
    "network": "an empty network namespace",
    "pid": "a pid namespace of its own",
    "privileged": "no capabilities, no_new_privs",
    "read_only": "the system directories are mounted read-only",
    "auto_remove": "nothing of a jar outlives it",
}
_WITHOUT = {
    "image": "there is no image here: the code sees the host's system directories",
    "engine": "there is no engine here",
    "runtime": "there is no such runtime here: the code has the host's kernel",
    "name": "there is no container here that could have a name",
    "network": "the network stays closed",
    "pid": "the host's processes stay hidden",
    "privileged": "nothing is privileged here",
    "read_only": "the system directories stay read-only",
    "auto_remove": "a jar can't be kept",
    "entrypoint": "the command is run without it",
    "ports": "no port is published",
}


def _container(policy: Policy) -> tuple[Clause, ...]:
    """What a container would be asked for. The default asks for nothing that a jar does not have anyway."""
    asked, default = policy.container, ContainerPolicy()
    clauses = [_enforced("container.pull", _NO_CONTAINER)]
    for name, lost in _WITHOUT.items():
        key, by = f"container.{name}", _KEPT.get(name, _NO_CONTAINER)
        if getattr(asked, name) == getattr(default, name):
            clauses.append(_enforced(key, by))
        else:
            clauses.append(Clause(key, Status.UNSUPPORTED, "not a container", lost))
    return tuple(clauses)


def _group(host: Host, controller: str) -> str | None:
    return _GROUPS[host.cgroup.mechanism] if controller in host.cgroup.controllers else None


def _why(host: Host, controller: str) -> str:
    return host.cgroup.missing.get(controller, "no control group")


def _memory(host: Host) -> Clause:
    if group := _group(host, "memory"):
        return _enforced("proc.mem_mb", f"{group}: memory")
    lost = f"memory is watched, not capped: shared memory is not seen, a fast burst may pass ({_why(host, 'memory')})"
    return Clause("proc.mem_mb", Status.DEGRADED, "RLIMIT_DATA of each process, and a monitor that kills", lost)


def _cpu(host: Host) -> Clause:
    if group := _group(host, "cpu"):
        return _enforced("proc.cpu_quota", f"{group}: cpu")
    lost = f"the code may use every processor until its time is up ({_why(host, 'cpu')})"
    return Clause("proc.cpu_quota", Status.DEGRADED, "proc.timeout_ms only", lost)


def _host_info(policy: Policy) -> Clause:
    key, asked = "proc.host_info", policy.proc.host_info
    if asked == "host":
        return _enforced(key, "nothing is hidden: asked for")
    files = "belljar's own files in it" if asked == "limits" else "no file about the machine in it"
    calls = "sysinfo and sched_getaffinity answered by the stage, a time namespace"
    return _enforced(key, f"a /proc of the jar's processes only, with {files}; {calls} ({GAPS})")


def _pids(host: Host) -> Clause:
    group = _group(host, "pids")
    return _enforced(
        "proc.pids", "RLIMIT_NPROC in the run's own user namespace" + (f", {group}: pids" if group else "")
    )
