"""Policy + request + host facts → a plan. Pure: no file is opened, no process started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from belljar.backends import machine
from belljar.backends.bubblewrap.host.facts import Host
from belljar.backends.bubblewrap.host.report import report
from belljar.backends.bubblewrap.shared import layout
from belljar.backends.bubblewrap.shared.stage_plan import MountView, RuntimeTree, Source, StagePlan, ViewKind
from belljar.backends.contract import LaunchPlan, RunRequest
from belljar.backends.installations import find_shown, merged
from belljar.backends.runtimes import installed_programs
from belljar.errors import PolicyError, UsageError
from belljar.limits.values import Limits
from belljar.policy.models import Mount, Policy
from belljar.policy.paths import PRIVATE_TEMPORARY, beneath

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

HOME = "/tmp/home"
_HELPERS = 2
"""Processes of ours in a run's group: bubblewrap and the jar's pid 1."""

_MOST_LOOKED_FOR = 50
"""Hidden names of an interpreter's directory that the canaries look for."""

_READ_EARLY = ("NODE_", "LD_", "OPENSSL_", "SSL_")
"""Variables that name what an interpreter loads as it starts."""

_KEYRINGS = {"/proc/keys": f"{layout.DEV}/null", "/proc/key-users": f"{layout.DEV}/null"}
_PID_ONE = {"/proc/1": layout.EMPTY}


def covered(policy: Policy) -> dict[str, str]:
    """Return the parts of /proc that something is mounted over first, and what.

    They are the jar's pid 1, whose memory the code could write (they are the same user) to make it forget that it dies
    with bubblewrap; and the user's keyrings, where `proc.host_info` does not hide them with everything else.
    """
    return {**(_KEYRINGS if policy.proc.host_info == "host" else {}), **_PID_ONE}


def compile_plan(policy: Policy, request: RunRequest, host: Host) -> LaunchPlan:
    """The plan for one run. The stage part depends on the policy and the runtime only, so a Sandbox stages once."""
    stage = stage_plan(policy, request, host)
    trees = bound_trees(policy, stage, request)
    environment = _environment(policy, request, host)
    readonly, writable = _mount_points(policy, host, trees)
    return LaunchPlan(
        backend="bubblewrap",
        argv=tuple(_command(policy, request, host)),
        env=environment,
        workdir=policy.fs.workdir,
        limits=_limits(policy),
        stage={
            "plan": stage.to_json(),
            "bwrap": host.bwrap,
            "arguments": arguments_of(policy, trees, covered=covered(policy)),
            "cgroup": host.cgroup.to_json(),
            "expect": {
                "readonly": readonly,
                "writable": writable,
                "absent": _absent(policy, host),
                "only_processes": policy.proc.host_info != "host",
            },
            "host_info": policy.proc.host_info,
            "absent_at_first": _absent_at_first(policy, stage, trees),
            "memory_group": "memory" in host.cgroup.controllers,
            "code_name": _code_name(request, host),
            "warms": _warms(policy, request, environment),
            "publishes": bool(policy.net.publish),
            "gateway_ports": _gateway_ports(policy),
        },
        report=report(policy, host),
        policy_digest=policy.digest,
    )


def _gateway_ports(policy: Policy) -> tuple[int, ...] | None:
    if not policy.net.enabled:
        return None
    from belljar.backends.network import opening

    return opening.ports(policy)


def _limits(policy: Policy) -> dict[str, Any]:
    proc = policy.proc
    limits = Limits(proc.mem_bytes, proc.cpu_quota, proc.pids, proc.open_files, proc.file_size_bytes, _HELPERS)
    return {**limits.to_json(), "timeout_seconds": proc.timeout_seconds, "output_bytes": proc.output_bytes}


# --- what is staged --------------------------------------------------------------------------------------------------


def stage_plan(policy: Policy, request: RunRequest, host: Host) -> StagePlan:
    """What is made once, before the first jar."""
    sources: list[Source] = []
    views = []
    for mount in policy.fs.mounts:
        kind = _kind(mount)
        index = None
        if mount.source is not None:
            index = len(sources)
            sources.append(Source(mount.source, idmap=host.root, recursive=kind is ViewKind.LIVE))
        views.append(MountView(kind, mount.path, mount.rw, index))
    runtimes = []
    for shown, languages in merged(host.runtimes):
        if any(beneath(shown.path, mount.path) for mount in policy.fs.mounts):
            continue  # there the mount decides what is seen
        parts = tuple((name, len(sources) + at) for at, (name, _real) in enumerate(shown.parts))
        sources.extend(Source(real, idmap=host.root, recursive=True) for _name, real in shown.parts)
        runtimes.append(RuntimeTree(shown.path, languages, parts, shown.links, shown.searched, shown.hidden))
    return StagePlan(
        sources=tuple(sources),
        views=tuple(views),
        deny_globs=policy.fs.deny_globs,
        size_bytes=policy.fs.size_bytes,
        inodes=policy.fs.inodes,
        snapshot=policy.fs.snapshot,
        freezes=host.freezes,
        etc_files=_etc(policy, request),
        etc_host=host.etc,
        directories=host.directories,
        links=host.links,
        runtimes=tuple(runtimes),
        network=policy.net.enabled,
        veth=host.veth,
        publishes=bool(policy.net.publish),
        machine=_machine(policy),
    )


def _machine(policy: Policy) -> dict[str, Any] | None:
    proc = policy.proc
    if proc.host_info == "host":
        return None
    return {"host_info": proc.host_info, "mem_bytes": proc.mem_bytes, "cpu_quota": proc.cpu_quota}


def _kind(mount: Mount) -> ViewKind:
    if mount.source is None:
        return ViewKind.EPHEMERAL
    if not mount.rw:
        return ViewKind.READONLY
    return ViewKind.COW if mount.cow else ViewKind.LIVE


def _etc(policy: Policy, request: RunRequest) -> dict[str, str]:
    uid = policy.proc.uid
    return {
        "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\njar:x:{uid}:{uid}:jar:{HOME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\njar:x:{uid}:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost jar\n::1 localhost\n",
        "hostname": "jar\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
        "resolv.conf": "options timeout:1 attempts:1\n",
        "os-release": 'NAME="belljar"\nID=belljar\n',
        **_opened_etc(policy, request),
    }


def _opened_etc(policy: Policy, request: RunRequest) -> dict[str, str]:
    """What a jar with a gateway has in its /etc: the resolver, and certificates."""
    if not policy.net.enabled:
        return {}
    from belljar.backends.network import opening

    trusted = opening.trust_files(request.trust) if request.trust else {}
    files = {f"ssl/certs/{name}": data.decode(errors="surrogateescape") for name, data in trusted.items()}
    return {"resolv.conf": opening.RESOLVER, **files}


# --- bubblewrap's arguments ------------------------------------------------------------------------------------------


def bound_trees(policy: Policy, stage: StagePlan, request: RunRequest) -> list[tuple[int, RuntimeTree]]:
    """The interpreters' directories that a run sees: those of its language. A command or a shell may start any of them.

    Raises:
        PolicyError: a mount of the policy lies in one of them.
    """
    every = request.code is None or request.language == "bash"
    bound = []
    for index, tree in enumerate(stage.runtimes):
        for mount in policy.fs.mounts:
            if mount.path != tree.path and beneath(mount.path, tree.path):
                raise PolicyError(
                    f"fs.mounts: {mount.path} lies in {tree.path}, which an interpreter is installed in",
                    hint="mount it elsewhere: beneath /data, or /mnt",
                )
        if every or request.language in tree.languages:
            bound.append((index, tree))
    return bound


def arguments_of(
    policy: Policy,
    trees: Sequence[tuple[int, RuntimeTree]],
    *,
    covered: Mapping[str, str],
    beside_code: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """The stage has the whole root ready, so that bubblewrap mounts it at once; only what is a run's own is added."""
    uid = str(policy.proc.uid)
    arguments = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    arguments += ["--unshare-cgroup", "--uid", uid, "--gid", uid, "--hostname", "jar"]
    arguments += ["--die-with-parent", "--new-session", "--dev-bind", layout.ROOT, "/", "--proc", "/proc"]
    for path, cover in covered.items():
        arguments += ["--ro-bind", cover, path]
    for name, value in (env or {}).items():
        arguments += ["--setenv", name, value]
    arguments += ["--bind", f"{layout.RUNS}/{layout.RUN}/tmp", "/tmp"]
    arguments += ["--bind", f"{layout.RUNS}/{layout.RUN}/shm", "/dev/shm"]
    arguments += ["--ro-bind", f"{layout.CODE}/{layout.RUN}", layout.JAR_CODE]
    for path, source in (beside_code or {}).items():
        arguments += ["--ro-bind", source, path]
    for mount in sorted(policy.fs.mounts, key=lambda mount: mount.path.count("/")):
        if beneath(mount.path, PRIVATE_TEMPORARY):  # the run's own /tmp has covered it
            arguments += ["--bind" if mount.rw else "--ro-bind", layout.inside(mount.path), mount.path]
    for index, tree in trees:
        arguments += ["--ro-bind", layout.runtime(index), tree.path]
    return [*arguments, "--chdir", policy.fs.workdir, "--seccomp", str(layout.SECCOMP_FD)]


def _mount_points(policy: Policy, host: Host, trees: Sequence[tuple[int, RuntimeTree]]) -> tuple[list[str], list[str]]:
    """The mount points that a finished jar must have: (read-only, writable)."""
    readonly = ["/", "/dev", layout.JAR_CODE, *host.directories, *(tree.path for _index, tree in trees)]
    readonly += [*covered(policy), *(f"/proc/{name}" for name in machine.SHOWN[policy.proc.host_info])]
    readonly += [mount.path for mount in policy.fs.mounts if not mount.rw]
    return readonly, ["/proc", "/tmp", "/dev/shm", *(mount.path for mount in policy.fs.mounts if mount.rw)]


def _absent(policy: Policy, host: Host) -> list[str]:
    """Canary paths: what the host has and the jar must not show, unless the policy itself mounts something there."""
    shown = [mount.path for mount in policy.fs.mounts]
    return [path for path in host.secrets if not any(beneath(path, top) for top in shown)]


def _absent_at_first(policy: Policy, stage: StagePlan, trees: Sequence[tuple[int, RuntimeTree]]) -> list[str]:
    """Denied names at the top of each mount, and some of those in interpreters' directories.

    Only before the first run, since code may make files of these names.
    """
    tops = [view.jar_path for view in stage.views if view.source is not None and view.kind is not ViewKind.LIVE]
    for _index, tree in trees:
        if tree.searched:
            tops += [tree.path, *(f"{tree.path}/{name}" for name, _source in tree.parts)]
    hidden = [f"{tree.path}/{name}" for _index, tree in trees for name in tree.hidden[:_MOST_LOOKED_FOR]]
    if not tops:
        return hidden
    from belljar.policy.globs import DenyGlobs

    names = DenyGlobs(policy.fs.deny_globs).literal_names()
    return [*hidden, *(f"{top}/{name}" for top in tops for name in names)]


# --- the command -----------------------------------------------------------------------------------------------------


def _environment(policy: Policy, request: RunRequest, host: Host) -> dict[str, str]:
    every = request.code is None or request.language == "bash"
    seen = [each for each in host.runtimes if every or each.language == request.language or not each.installations]
    programs = [os.path.dirname(runtime.path) for runtime in seen]
    path = ":".join(dict.fromkeys([*installed_programs(policy), *programs, "/usr/local/bin", "/usr/bin", "/bin"]))
    environment = {
        "PATH": path,
        "HOME": HOME,
        "USER": "jar",
        "LOGNAME": "jar",
        "TMPDIR": "/tmp",
        "PWD": policy.fs.workdir,
    }
    if request.code is not None and request.language == "python":
        environment |= {"PYTHONPATH": policy.fs.workdir, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    if request.code is not None and request.language == "javascript":
        environment["NODE_PATH"] = f"{policy.fs.workdir}/node_modules"
    if policy.net.enabled:
        from belljar.backends.network import opening

        environment |= opening.variables(policy, opening.BUNDLE)
    environment |= {name: request.env[name] for name in policy.env.pass_ if name in request.env}
    return {**environment, **policy.env.set}


def _warms(policy: Policy, request: RunRequest, environment: Mapping[str, str]) -> bool:
    """Whether its interpreter may be up before the code comes: node, unless the policy tells it to load something."""
    if request.code is None or request.language != "javascript":
        return False
    chosen = {*policy.env.pass_, *policy.env.set, *(secret.env or "" for secret in policy.credentials.values())}
    return not any(name.startswith(_READ_EARLY) for name in chosen & environment.keys())


def _code_name(request: RunRequest, host: Host) -> str | None:
    runtime = host.runtime(request.language)
    if request.code is None or runtime is None:
        return None
    name = os.path.basename(request.script_name)
    usable = name.isprintable() and len(os.fsencode(name)) < 200 and name not in ("", ".", "..", *layout.OURS)
    return name if usable else runtime.file_name


def _command(policy: Policy, request: RunRequest, host: Host) -> list[str]:
    if request.code is None:
        if not request.argv:
            raise UsageError("nothing to run: the command is empty")
        return list(request.argv)
    runtime = host.runtime(request.language) or find_shown(request.language, policy, host.secrets)
    return [runtime.path, f"{layout.JAR_CODE}/{_code_name(request, host)}", *request.arguments]
