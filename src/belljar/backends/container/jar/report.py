"""How far each clause of a policy holds in a container of this engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.backends.clauses import COVERED_IN_LIVE, lost_in_live, redaction_clauses, session_clauses
from belljar.backends.container.jar.machine_files import host_info_clause
from belljar.backends.contract import Clause, EnforcementReport, Status
from belljar.backends.network.clauses import NETWORK_CLAUSES, network_clauses
from belljar.policy.models import Policy

if TYPE_CHECKING:
    from belljar.backends.container.jar.compile import ContainerHost


def report(policy: Policy, place: ContainerHost) -> EnforcementReport:
    """Every clause, accounted for."""
    return EnforcementReport(
        (
            _enforced("fs.mounts", f"the container's mounts ({place.engine})"),
            _deny_globs(policy),
            *_size(policy, place),
            _enforced("fs.snapshot", "every directory of the host is copied when the jar is opened"),
            *_net(policy, place),
            _uid(policy, place),
            *_groups(place),
            _enforced("proc.timeout_ms", "the gate's clock, SIGKILL to everything in the container"),
            _enforced("proc.open_files", "RLIMIT_NOFILE"),
            _enforced("proc.file_size_mb", "RLIMIT_FSIZE"),
            _enforced("proc.output_mb", "belljar's reader, SIGKILL"),
            host_info_clause(policy, place),
            _enforced("env.set", "an environment made from nothing"),
            _enforced("env.pass", "an environment made from nothing"),
            *_python(policy),
            _enforced("logging.sample_ratio", "belljar itself, which stores what it read"),
            *redaction_clauses(),
            *session_clauses(),
            _syscalls(policy, place),
            *_container(policy, place),
        ),
        unseen=_unseen(policy, place),
    )


def observes(policy: Policy, place: ContainerHost) -> bool:
    """Whether the gate hears of refused calls: by seccomp's notifications, through a filter that belljar made."""
    return not _unseen(policy, place)


def _unseen(policy: Policy, place: ContainerHost) -> str:
    what = "refused files, connections and system calls"
    if place.gvisor:
        return f"{what}: gVisor's kernel tells nobody of them (it has no seccomp notification)"
    if policy.container.privileged:
        return f"{what}: a privileged container has no filter"
    return "" if place.filters else f"{what}: this host has no libseccomp"


def _enforced(key: str, by: str) -> Clause:
    return Clause(key, Status.ENFORCED, by)


def _live(policy: Policy) -> list[str]:
    return [mount.path for mount in policy.fs.mounts if mount.source and mount.rw and not mount.cow]


def _uid(policy: Policy, place: ContainerHost) -> Clause:
    """Who else is counted as the container's user, where the kernel counts by user."""
    counted = "descriptors in flight, inotify instances and queued signals count"
    if place.gvisor:
        return _enforced("proc.uid", "the container's user, in gVisor's kernel, which counts for this container alone")
    if place.facts.rootless:
        mine = "as those of whoever started the engine"
        return _enforced("proc.uid", f"the container's user, in a user namespace; its {counted} {mine}")
    if place.own_user(policy):
        return _enforced("proc.uid", f"a user id of the Sandbox's own in place of {policy.proc.uid}")
    return _enforced("proc.uid", f"the container's user; its {counted} together with others of this user")


def _deny_globs(policy: Policy) -> Clause:
    live = _live(policy)
    if live:
        return Clause("fs.deny_globs", Status.DEGRADED, COVERED_IN_LIVE, lost_in_live(live))
    return _enforced("fs.deny_globs", "what is denied is not copied into the container's volume")


def _size(policy: Policy, place: ContainerHost) -> tuple[Clause, ...]:
    keys = ("fs.size_mb", "fs.inodes")
    if live := _live(policy):
        lost = f"{', '.join(live)} is the host's own directory: only proc.file_size_mb holds there"
        return tuple(Clause(key, Status.DEGRADED, "tmpfs for all but the live mounts", lost) for key in keys)
    volume = "a tmpfs volume, one for all that is writable"
    if place.gvisor:
        shared = f"{volume} but /dev/shm; that is memory of gVisor's kernel, and counts as proc.mem_mb"
        return _enforced(keys[0], f"{shared}, with as much again at most"), _enforced(keys[1], shared)
    return tuple(_enforced(key, volume) for key in keys)


def _net(policy: Policy, place: ContainerHost) -> tuple[Clause, ...]:
    asked = policy.container.network
    if asked != "none":
        lost = f"the container is on the network {asked!r}, and nothing stands in between"
        return tuple(Clause(key, Status.UNSUPPORTED, f"--network {asked}", lost) for key in NETWORK_CLAUSES)
    if policy.net.publish and not place.enters:
        return tuple(Clause(key, Status.UNSUPPORTED, "--network none", _NO_DOOR) for key in NETWORK_CLAUSES)
    if policy.net.enabled and not place.facts.local:
        return tuple(Clause(key, Status.UNSUPPORTED, "--network none", _FAR) for key in NETWORK_CLAUSES)
    if policy.net.enabled and not place.enters:
        enabled, *others = network_clauses(policy, _BY_RELAY)
        return _enforced(enabled.key, enabled.by + _ON_LOOPBACK), *others
    if policy.net.enabled and place.gvisor:
        return network_clauses(policy, _BY_GVISOR)
    return network_clauses(policy)


_BY_GVISOR = (
    "a gateway namespace whose only sockets are the egress proxy's; in it gVisor uses the host's network stack, "
    "for IPv4"
)
_BY_RELAY = "the container's loopback, from which connections reach the egress proxy through the gate's own channel"
_ON_LOOPBACK = (
    ": the code's servers can't have the policy's ports, attempts on other ports are refused without a record, and "
    "addresses that are dialled without a name, and IPv6, have no route (root can lay a cable to the container)"
)
_NO_DOOR = "nothing in the container can be reached from here: that takes root, or an engine of your own (podman)"
_MOST_NAMED = 5
_FAR = "the engine is on another machine: use --backend bubblewrap there"


def unheard(found: Mapping[str, Any]) -> tuple[Clause, ...]:
    """What a container found that it can't listen on, where programs that know of no proxy would arrive."""
    ports = found["unheard"]
    if not ports:
        return ()
    lost = f"{_deaf(ports)}: only programs that heed HTTP(S)_PROXY get there"
    return (Clause("net.enabled", Status.DEGRADED, "the gate's listeners on loopback", lost),)


def newly_unheard(found: Mapping[str, Any], known: Sequence[int]) -> list[str]:
    """What of that was not known, and reported, when the jar was opened: a run there is refused."""
    ports = [port for port in found["unheard"] if port not in known]
    return [f"{_deaf(ports)}, as it could in another"] if ports else []


def _deaf(ports: Sequence[int]) -> str:
    named = ", ".join(map(str, ports[:_MOST_NAMED])) + (", …" if len(ports) > _MOST_NAMED else "")
    return f"the gate can't listen on port {named} of the container"


def _groups(place: ContainerHost) -> tuple[Clause, ...]:
    group = f"cgroup v{place.facts.cgroup_version} ({place.engine})"
    if not place.groups:
        why = "an ordinary user's containers have no control group with cgroup v1"
        return (
            Clause("proc.mem_mb", Status.DEGRADED, "RLIMIT_DATA of each process", f"not the sum of them: {why}"),
            Clause("proc.cpu_quota", Status.DEGRADED, "proc.timeout_ms only", f"every processor may be used: {why}"),
            _enforced("proc.pids", "RLIMIT_NPROC in the container's own user namespace"),
        )
    if place.gvisor:
        return (
            _enforced("proc.mem_mb", f"{group}: memory, gVisor's own kernel included"),
            _enforced("proc.cpu_quota", f"{group}: cpu"),
            _enforced("proc.pids", "RLIMIT_NPROC in gVisor's kernel, which has no other user"),
        )
    return (
        _enforced("proc.mem_mb", f"{group}: memory, no swap"),
        _enforced("proc.cpu_quota", f"{group}: cpu"),
        _enforced("proc.pids", f"{group}: pids"),
    )


def _python(policy: Policy) -> tuple[Clause, ...]:
    """The interpreter is the image's."""
    named = {"python.venv": policy.python.venv, "python.interpreter": policy.python.interpreter}
    lost = "the code runs with the image's Python: build an image with the packages (belljar image build --pip …)"
    return tuple(
        Clause(key, Status.UNSUPPORTED, "nothing", lost) if value else _enforced(key, "the image's Python")
        for key, value in named.items()
    )


def _syscalls(policy: Policy, place: ContainerHost) -> Clause:
    if policy.container.privileged:
        return Clause("syscalls", Status.UNSUPPORTED, "nothing", "a privileged container may make every call")
    inner = "a filter that the gate puts on the code" if place.filters else ""
    outer = "gVisor's kernel" if place.gvisor else "the engine's seccomp profile" if place.profile else ""
    if not (inner or outer):
        return Clause("syscalls", Status.UNSUPPORTED, "nothing", f"{place.engine} has no seccomp here")
    return _enforced("syscalls", " and ".join(filter(None, (outer, inner))))


def _container(policy: Policy, place: ContainerHost) -> tuple[Clause, ...]:
    asked = policy.container
    weaker = {
        "container.privileged": (asked.privileged, "the code has every privilege of the host"),
        "container.network": (asked.network != "none", f"the code is on the network {asked.network!r}"),
        "container.pid": (asked.pid == "host", "the code sees and may end the host's processes"),
        "container.read_only": (not asked.read_only, "the code may change its image, without a limit of size"),
    }
    clauses = [
        Clause(key, Status.DEGRADED, "the policy", lost) if given else _enforced(key, "the container's configuration")
        for key, (given, lost) in weaker.items()
    ]
    clauses += [
        _enforced("container.image", f"{place.image_name} ({place.image_id[:19]})"),
        _enforced("container.engine", place.engine),
        _enforced("container.runtime", place.facts.runtime),
        _enforced("container.name", "the container's name"),
        _enforced("container.auto_remove", "removed when the run has ended" if asked.auto_remove else "kept"),
        _enforced("container.entrypoint", "put before the command"),
        _ports(policy),
        _enforced("container.pull", asked.pull),
    ]
    return tuple(clauses)


def _ports(policy: Policy) -> Clause:
    if policy.container.ports and policy.container.network == "none":
        lost = "a container without a network can publish nothing"
        return Clause("container.ports", Status.UNSUPPORTED, "nothing", lost)
    return _enforced("container.ports", "published on loopback by the engine" if policy.container.ports else "none")
