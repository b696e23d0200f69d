"""Policy + request + what the engine is → a plan. Pure: nothing is asked, nothing is started.

`stage` holds the engine's own arguments, ready but for places that are known only when a Sandbox is opened: `{volume}`
(its name), `{files}` (where the engine keeps it), `{live}` (where live directories are mounted for it), `{jar}`,
`{user}` (a number that no other Sandbox has), `{owner}`, `{run}` (the number of the run) and `{slot}` (that of its
directories, which another run has after it).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.backends.container.engine.facts import Facts
from belljar.backends.container.jar.guest_program import BOOT
from belljar.backends.container.jar.machine_files import HostMachine, machine_files
from belljar.backends.container.jar.report import observes, report
from belljar.backends.contract import LaunchPlan, RunRequest
from belljar.backends.network import opening
from belljar.backends.network.addresses import PROXY_ADDRESS
from belljar.backends.runtimes import installed_programs
from belljar.errors import PolicyError, UsageError
from belljar.guest.container import gvisor_cache_flush
from belljar.guest.container.loopback_listener import RESOLVER
from belljar.guest.container.user_files import USER_FILE_BYTES
from belljar.guest.container.volume_server import LIVE, RESERVES
from belljar.policy.models import Mount, Policy
from belljar.policy.paths import PRIVATE_TEMPORARY, beneath

HOME = "/tmp/home"
CODE = "/run/jar"
SHARED = "/dev/shm"
DEPOT = "/depot"
LABEL = "belljar"
LOW_PORTS = "net.ipv4.ip_unprivileged_port_start=0"
"""The gate, an ordinary user, listens on the policy's ports."""
PAGE = 4096
ANY_USER = 1000
"""The presets' `proc.uid`. It stands for a number of the Sandbox's own where the engine can give it one."""
USER_FILES = {"passwd": "/etc/passwd", "group": "/etc/group"}
"""Files of the volume in which the Sandbox's user has a name, and where a run has them."""
LEAST_MEMORY = {"runsc": 64 << 20}
_LEAST_MEMORY = 32 << 20
_GATE_FILES = 1024
"""Descriptors that the gate may have; the code has proc.open_files."""
_DEPOT_MEMORY = 256 << 20
_OWN_DIRECTORIES = {"tmp": 0o1777, "shm": 0o1777, "code": 0o755}
_OWN_BYTES = 2 * RESERVES[".room"]
_FILE_NAMES = {"python": "main.py", "javascript": "main.js", "bash": "main.sh"}
_PROGRAMS = {"python": "python3", "javascript": "node", "bash": "bash"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PYTHON_OURS = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
"""Variables of Python that the waiting interpreter has, or that are given to it later."""
_PYTHON = ("-E", "-s", "-B", "-u", "-c", BOOT)
"""The gate listens to no variable of an image's and imports nothing from a home: code could have put it there."""
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_NOT_FOR_THE_GATE = (*_PROXIES, *map(str.upper, _PROXIES), "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH")
"""Emptied: docker's client adds the proxies of its settings, perhaps with a password; an image may have the others."""


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """What `compile` has to know: the engine, its image, and this host. Plain data."""

    backend: str
    engine: str
    program: str
    facts: Facts
    run_options: tuple[str, ...]
    image: str
    """The image as the engine is asked for it: an id, so that nothing else can take its place."""
    image_name: str
    image_id: str
    profile: str
    """Path of the seccomp profile; empty where the engine has no seccomp."""
    filters: bool
    """Whether belljar can make the inner filter here (libseccomp)."""
    processors: int
    root: bool
    hard_processes: int
    """RLIMIT_NPROC of this process: what podman may set at most. -1 is no limit."""
    enters: bool = False
    """Whether belljar may enter the containers' network: as root, of an engine on this very system."""
    opened: str = ""
    """Directory of the files that a container has from belljar in its /etc (`opened_files`) and /proc."""
    machine: HostMachine | None = None
    """This host, if the engine is on it."""
    hosts: str = ""
    """Path of the file that the code has as /etc/hosts; empty where the engine makes a harmless one."""
    secrets: tuple[str, ...] = field(default=())

    @property
    def gvisor(self) -> bool:
        """Whether the code's kernel is gVisor's."""
        return self.facts.runtime == "runsc"

    @property
    def groups(self) -> bool:
        """Whether the engine can hold limits with control groups: not for an ordinary user with cgroup v1."""
        return not (self.facts.rootless and self.facts.cgroup_version == "1")

    def own_user(self, policy: Policy) -> bool:
        """Return True if each Sandbox gets a user id of its own in place of `proc.uid`.

        gVisor counts for each container by itself, and in a user namespace few numbers exist. A live directory that
        is bound as it is needs `proc.uid`: only its owner may write there.
        """
        if policy.proc.uid != ANY_USER or self.gvisor or self.facts.rootless or self.facts.user_namespace:
            return False
        return self.root or not any(map(is_live, policy.fs.mounts))


def compile_plan(policy: Policy, request: RunRequest, place: ContainerHost) -> LaunchPlan:
    """The plan for one run. All but the command is the same for every run of a Sandbox."""
    least = LEAST_MEMORY.get(place.facts.runtime, _LEAST_MEMORY)
    if policy.proc.mem_bytes < least:
        raise PolicyError(
            f"{policy.origin('proc.mem_mb') or 'proc.mem_mb'}: a container needs {least >> 20} MB at least",
            hint=f"--set proc.mem_mb={least >> 20}, or --backend bubblewrap",
        )
    _refuse_dangers(policy)
    _refuse_in_temporary(policy)
    environment = _environment(policy, request, place)
    argv = _command(policy, request)
    return LaunchPlan(
        backend=place.backend,
        argv=tuple(argv),
        env=environment,
        workdir=policy.fs.workdir,
        limits={
            "mem_bytes": policy.proc.mem_bytes,
            "cpu_quota": policy.proc.cpu_quota,
            "pids": policy.proc.pids,
            "open_files": policy.proc.open_files,
            "file_size_bytes": policy.proc.file_size_bytes,
            "timeout_seconds": policy.proc.timeout_seconds,
            "output_bytes": policy.proc.output_bytes,
        },
        stage={
            "engine": place.engine,
            "program": place.program,
            "runtime": place.facts.runtime,
            "image": place.image_name,
            "image_id": place.image_id,
            "volume": _volume(policy, place),
            "own": _own(place),
            "keep": not policy.container.auto_remove,
            "idmap": place.root,
            "own_user": place.own_user(policy),
            "keeps_id": place.facts.rootless,
            "local": place.facts.local,
            "reaches": place.enters,
            "depot": _depot_arguments(policy, place),
            "run": _run_arguments(policy, request, place),
            "boot": BOOT,
            "views": [_view(mount) for mount in policy.fs.mounts],
            "expect": _expect(policy, place),
            "code_name": _code_name(request),
            "python": _in_process(policy, request, environment),
            "rlimits": _rlimits(policy, place),
            "filters": place.filters and not policy.container.privileged,
            "observe": observes(policy, place),
            "gateway_ports": opening.ports(policy) if opens(policy, place) and place.enters else None,
            "relay_ports": opening.ports(policy) if opens(policy, place) and not place.enters else None,
            "publishes": bool(policy.net.publish) and place.enters,
        },
        report=report(policy, place),
        policy_digest=policy.digest,
        image=place.image_id,
    )


def _refuse_in_temporary(policy: Policy) -> None:
    """Refuse a mount beneath /tmp, which is a mount of each run's own here."""
    for mount in policy.fs.mounts:
        if beneath(mount.path, PRIVATE_TEMPORARY):
            raise PolicyError(
                f"fs.mounts: {mount.path} lies in {PRIVATE_TEMPORARY}, and in a container each run has that anew",
                hint="mount it elsewhere: beneath /data, or /mnt; or use --backend bubblewrap",
            )


def _refuse_dangers(policy: Policy) -> None:
    """A second look: whatever made this policy, only one that is marked as dangerous gets what is."""
    asked = policy.container
    dangers = {
        "container.privileged": asked.privileged,
        "container.pid": asked.pid == "host",
        "container.network": asked.network != "none",
    }
    named = [key for key, given in dangers.items() if given]
    if named and not policy.dangerous:
        raise PolicyError(
            f"{policy.origin(named[0]) or named[0]}: only a policy that extends `unrestricted` may ask for this",
            hint="--policy unrestricted, and read what it says first",
        )


# --- the volume and its server ----------------------------------------------------------------------------------------


def _view(mount: Mount) -> dict[str, Any]:
    return {"path": mount.path, "source": mount.source, "writable": mount.rw, "live": is_live(mount)}


def is_live(mount: Mount) -> bool:
    """Whether the host's own directory is shown for writing."""
    return mount.source is not None and mount.rw and not mount.cow


def _volume(policy: Policy, place: ContainerHost) -> dict[str, Any]:
    uid = _user(policy, place) if not place.facts.rootless else "0"
    named = len(USER_FILES) if place.own_user(policy) else 0
    blocks = max(1, (policy.fs.size_bytes + _OWN_BYTES + named * USER_FILE_BYTES) // PAGE)
    files = policy.fs.inodes + _own_files(place) + len(policy.fs.mounts) + named
    # nr_blocks, because podman takes `size` for a quota of its own.
    options = f"nr_blocks={blocks},nr_inodes={files},mode=0700,uid={uid},gid={uid},nosuid,nodev"
    return {"options": options, "bytes": blocks * PAGE, "files": files}


def _user(policy: Policy, place: ContainerHost) -> str:
    return "{user}" if place.own_user(policy) else str(policy.proc.uid)


def _own_files(place: ContainerHost) -> int:
    """Files of belljar's in a volume, which are not counted as the code's: its top, and for each of two runs its
    directories and the reserves (while it runs: its code, and what is left of them).
    """
    return 1 + 2 * (len(_own(place)) + len(RESERVES)) + (gvisor_cache_flush.FILES if place.gvisor else 0)


def _own_places(place: ContainerHost) -> dict[str, str]:
    """The parts of the volume that are a run's own, and where it has them.

    gVisor has a tmpfs of its own for /dev/shm: of a file on the host it knows one name only, so a semaphore, which the
    C library makes under one name and then links to another, would wake nobody who has opened it by the other.
    """
    return {"tmp": "/tmp", **({} if place.gvisor else {"shm": SHARED}), "code": CODE}


def _own(place: ContainerHost) -> dict[str, int]:
    """The directories of a run's own in the volume, and their modes; each after the one that it is in."""
    own = {f"{name}-{{slot}}": _OWN_DIRECTORIES[name] for name in _own_places(place)}
    return {**own, f"tmp-{{slot}}{HOME.removeprefix('/tmp')}": 0o755}


def _common(policy: Policy, place: ContainerHost, *, name: str, kept: bool = False) -> list[str]:
    """What every container of belljar's has: no privilege, no network, nothing to write on but what is mounted."""
    uid = _user(policy, place)
    arguments = ["run", "--interactive", *place.run_options, "--name", name, "--hostname", "jar"]
    mark = f"{LABEL}.kept=1" if kept else f"{LABEL}=1"  # by `belljar=1`, what was left is found and removed
    arguments += ["--label", mark, "--label", f"{LABEL}.owner={{owner}}", "--label", f"{LABEL}.jar={{jar}}"]
    arguments += ["--pull", "never", "--log-driver", "none", "--user", f"{uid}:{uid}", "--workdir", "/"]
    arguments += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    if place.profile:
        arguments += ["--security-opt", f"seccomp={place.profile}"]
    if place.engine == "podman":
        arguments += ["--read-only-tmpfs=false", "--http-proxy=false", "--env-host=false", "--stop-timeout", "0"]
        arguments += ["--ulimit", f"nproc={place.hard_processes}:{place.hard_processes}"]
        arguments += [f"--userns=keep-id:uid={uid},gid={uid}"] if place.facts.rootless else []
    for variable in ("LANG=C.UTF-8", f"PATH={_PATH}", *(f"{name}=" for name in _NOT_FOR_THE_GATE)):
        arguments += ["--env", variable]
    return [*arguments, "--ulimit", "core=1:1", "--entrypoint", "python3"]


def _depot_arguments(policy: Policy, place: ContainerHost) -> list[str]:
    arguments = _common(policy, place, name="belljar-{jar}-{run}")
    arguments += ["--network", "none", "--read-only", "--ulimit", f"nofile={_GATE_FILES}:{_GATE_FILES}"]
    if place.groups:
        arguments += ["--memory", str(policy.fs.size_bytes + _DEPOT_MEMORY)]
    for index, mount in enumerate(policy.fs.mounts):
        if is_live(mount):
            arguments += ["--mount", bind(_live_source(index, mount, place), f"{LIVE}/{index}", writable=True)]
    return [*arguments, "--mount", f"type=volume,src={{volume}},dst={DEPOT}", place.image, *_PYTHON]


def _live_source(index: int, mount: Mount, place: ContainerHost) -> str:
    """What the engine binds: the host's directory, or, started by root, its mount with the owner mapped."""
    assert mount.source is not None
    return f"{{live}}/{index}" if place.root else mount.source


# --- a run's container -----------------------------------------------------------------------------------------------


def _run_arguments(policy: Policy, request: RunRequest, place: ContainerHost) -> list[str]:
    asked = policy.container
    opened = opens(policy, place)
    prefix = f"belljar-{asked.name}-" if asked.name else "belljar-"
    arguments = _common(policy, place, name=f"{prefix}{{jar}}-{{run}}", kept=not asked.auto_remove)
    arguments += ["--network", asked.network, *(["--read-only"] if asked.read_only else [])]
    arguments += ["--privileged"] if asked.privileged else []
    arguments += ["--pid", "host"] if asked.pid == "host" else []
    arguments += [part for port in asked.ports for part in ("--publish", f"127.0.0.1:{port}")]
    arguments += _laid_over(machine_files(policy, place), place)
    if opened:
        arguments += _laid_over(opened_files(request, place), place)
        if place.enters and not place.gvisor:
            arguments += ["--sysctl", "net.ipv6.conf.all.disable_ipv6=0"]  # docker switches it off
        elif not place.gvisor:  # which lets everybody have every port
            arguments += ["--sysctl", LOW_PORTS]
    elif asked.network == "none" and place.engine != "podman":  # which then has no name server to begin with
        arguments += ["--dns", "127.0.0.1", "--dns-search", "."]  # else the host's domain is there
        arguments += ["--dns-option", "timeout:1", "--dns-option", "attempts:1"]
    if asked.network == "none" and place.hosts:
        arguments += ["--mount", bind(place.hosts, "/etc/hosts", writable=False)]
    arguments += _limits(policy, place)
    for index, mount in enumerate(policy.fs.mounts):
        source = _live_source(index, mount, place) if is_live(mount) else f"{{files}}/m{index}"
        arguments += ["--mount", bind(source, mount.path, writable=mount.rw)]
    for name, path in _own_places(place).items():
        arguments += ["--mount", bind(f"{{files}}/{name}-{{slot}}", path, writable=True)]
    if place.own_user(policy):
        for name, path in USER_FILES.items():
            arguments += ["--mount", bind(f"{{files}}/{name}", path, writable=False)]
    if place.gvisor:
        arguments += ["--tmpfs", f"{SHARED}:rw,exec,nosuid,nodev,mode=1777,size={policy.fs.size_bytes}"]
    return [*arguments, place.image, *_PYTHON]


def opens(policy: Policy, place: ContainerHost) -> bool:
    """Whether its runs reach the egress proxy, and nothing else: by a gateway, or through the gate's own channel."""
    return policy.net.enabled and policy.container.network == "none" and place.facts.local


def opened_files(request: RunRequest, place: ContainerHost) -> dict[str, bytes]:
    """What a container with a network has in its /etc: by path, the content. The resolver, and certificates."""
    files = {"/etc/resolv.conf": opening.resolver(PROXY_ADDRESS if place.enters else RESOLVER).encode()}
    if request.trust is not None:
        directory = os.path.dirname(opening.BUNDLE)
        files |= {f"{directory}/{name}": data for name, data in opening.trust_files(request.trust).items()}
    return files


def opened_directory(files: Mapping[str, bytes], place: ContainerHost) -> str:
    """Where they lie on the host: a directory for each content, so that no other Sandbox changes what one mounts."""
    digest = hashlib.sha256()
    for path, content in files.items():
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return f"{place.opened}/{digest.hexdigest()[:16]}"


def _laid_over(files: Mapping[str, bytes], place: ContainerHost) -> list[str]:
    """They are laid over the container's own, one by one."""
    directory = opened_directory(files, place)
    mounts = [bind(f"{directory}/{os.path.basename(path)}", path, writable=False) for path in files]
    return [part for mount in mounts for part in ("--mount", mount)]


def bind(source: str, path: str, *, writable: bool) -> str:
    """The value of `--mount` for a directory or file of the host's, quoted where it has to be."""
    if "," in source or "," in path or '"' in source + path:
        source, path = source.replace('"', '""'), path.replace('"', '""')
        return f'type=bind,"src={source}","dst={path}"' + ("" if writable else ",readonly")
    return f"type=bind,src={source},dst={path}" + ("" if writable else ",readonly")


def _limits(policy: Policy, place: ContainerHost) -> list[str]:
    proc = policy.proc
    files = max(_GATE_FILES, proc.open_files)
    arguments = ["--ulimit", f"nofile={files}:{files}"]
    if not place.groups:
        return arguments
    arguments += ["--memory", str(proc.mem_bytes), "--memory-swap", str(proc.mem_bytes)]
    # Outside, gVisor's own threads count as well; inside, its kernel holds the number (RLIMIT_NPROC).
    arguments += ["--pids-limit", str(proc.pids + 1 if not place.gvisor else 4 * proc.pids + 512)]
    if proc.cpu_quota < place.processors:  # an engine refuses more processors than there are
        arguments += ["--cpus", f"{proc.cpu_quota:.2f}"]
    return arguments


def _rlimits(policy: Policy, place: ContainerHost) -> dict[str, int]:
    """What the code's process sets on itself, before the code."""
    limits = {"RLIMIT_NOFILE": policy.proc.open_files, "RLIMIT_FSIZE": policy.proc.file_size_bytes, "RLIMIT_CORE": 1}
    if not place.gvisor:
        limits |= {"RLIMIT_MSGQUEUE": 0, "RLIMIT_MEMLOCK": 64 * 1024, "RLIMIT_SIGPENDING": 1024}
    if place.gvisor or not place.groups:  # a kernel, or a user namespace, of the container's own: nobody else counts
        limits["RLIMIT_NPROC"] = policy.proc.pids + 1
    if not place.groups:
        limits["RLIMIT_DATA"] = 4 * policy.proc.mem_bytes + (256 << 20)
    return limits


def _expect(policy: Policy, place: ContainerHost) -> dict[str, Any]:
    """What the gate must find before any code may start."""
    asked = policy.container
    writable = [mount.path for mount in policy.fs.mounts if mount.rw]
    readonly = [mount.path for mount in policy.fs.mounts if not mount.rw]
    volume = _volume(policy, place)
    return {
        "uid": None if place.own_user(policy) else policy.proc.uid,
        "gvisor": place.gvisor,
        "privileged": asked.privileged,
        "network": asked.network,
        "readonly_root": asked.read_only,
        "host_processes": asked.pid == "host",
        "seccomp": bool(place.profile) and not place.gvisor,
        "writable": [*writable, "/tmp", SHARED, CODE],
        "readonly": readonly,
        "absent": list(place.secrets),
        "volume_bytes": volume["bytes"],
        "shared_bytes": -(-policy.fs.size_bytes // PAGE) * PAGE if place.gvisor else volume["bytes"],
        "volume_files": volume["files"],
    }


# --- the command -----------------------------------------------------------------------------------------------------


def _environment(policy: Policy, request: RunRequest, place: ContainerHost) -> dict[str, str]:
    environment = {
        "PATH": ":".join([*installed_programs(policy), _PATH]),
        "HOME": HOME,
        "USER": "jar",
        "LOGNAME": "jar",
        "TMPDIR": "/tmp",
        "PWD": policy.fs.workdir,
    }
    if request.code is not None and request.language == "python":
        environment |= {**_PYTHON_OURS, "PYTHONPATH": policy.fs.workdir}
    if request.code is not None and request.language == "javascript":
        environment["NODE_PATH"] = f"{policy.fs.workdir}/node_modules"
    if opens(policy, place):
        proxy = PROXY_ADDRESS if place.enters else "127.0.0.1"
        environment |= opening.variables(policy, opening.BUNDLE, proxy=proxy)
    environment |= {name: request.env[name] for name in policy.env.pass_ if name in request.env}
    return {**environment, **policy.env.set}


def _code_name(request: RunRequest) -> str | None:
    if request.code is None:
        return None
    name = os.path.basename(request.script_name)
    usable = name.isprintable() and len(os.fsencode(name)) < 200 and name not in ("", ".", "..")
    return name if usable else _FILE_NAMES[request.language]


def _command(policy: Policy, request: RunRequest) -> list[str]:
    entrypoint = list(policy.container.entrypoint or ())
    if request.code is None:
        if not request.argv:
            raise UsageError("nothing to run: the command is empty")
        return [*entrypoint, *request.argv]
    return [*entrypoint, _PROGRAMS[request.language], f"{CODE}/{_code_name(request)}", *request.arguments]


def _in_process(policy: Policy, request: RunRequest, environment: Mapping[str, str]) -> bool:
    """Whether the interpreter that is up and waiting will do: for Python, unless it has to be started differently."""
    if request.code is None or request.language != "python" or policy.container.entrypoint:
        return False
    ours = {**_PYTHON_OURS, "PYTHONPATH": environment.get("PYTHONPATH", "")}
    special = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
    return all(ours.get(name) == value for name, value in special.items())
