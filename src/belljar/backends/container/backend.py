"""The container backends: the contract's three steps, on top of an engine's command line."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import shutil
import tempfile
from dataclasses import replace

from belljar.backends.container.engine.engine import Engine, find_engine
from belljar.backends.container.engine.facts import Facts, facts, require_sound_runtime
from belljar.backends.container.engine.seccomp_profile import profile
from belljar.backends.container.images.engine_images import BASE_IMAGE, Image, find, look, pull
from belljar.backends.container.jar import live
from belljar.backends.container.jar.compile import ContainerHost, compile_plan, opened_directory, opened_files, opens
from belljar.backends.container.jar.jar import ContainerJar
from belljar.backends.container.jar.machine_files import HostMachine, machine_files
from belljar.backends.contract import Availability, LaunchPlan, RunRequest
from belljar.errors import PrerequisiteError
from belljar.limits.naming import is_dead
from belljar.policy.models import Policy

_HOSTS = b"127.0.0.1\tlocalhost jar\n::1\tlocalhost\n"
"""In the place of the host's own /etc/hosts, of which podman gives each container a copy."""


class ContainerBackend:
    """docker, podman or nerdctl, with the runtime that the backend's name or the policy says."""

    def __init__(self, *, name: str, state: str) -> None:
        self.name = name
        self._state = state
        self._places: dict[object, tuple[Engine, ContainerHost]] = {}

    def probe(self) -> Availability:
        """Whether the engine answers, with this runtime."""
        from belljar.backends.container.probe import probe

        return probe(self.name)

    def compile(self, policy: Policy, request: RunRequest) -> LaunchPlan:
        """The plan for one run on this engine."""
        place = self._place(policy)[1]
        for files in (opened_files(request, place) if opens(policy, place) else {}, machine_files(policy, place)):
            for path, content in files.items():
                _write_once(opened_directory(files, place), os.path.basename(path), content, anew=True)
        return compile_plan(policy, request, place)

    def open(self, policy: Policy, plan: LaunchPlan) -> ContainerJar:
        """Make the volume of a Sandbox, and copy into it what the policy shows of the host."""
        engine, _place = self._place(policy)
        _sweep(os.path.join(self._state, "mirrors"))
        live.sweep(os.path.join(self._state, "live"))
        return ContainerJar(engine, plan, policy.fs.deny_globs, state=self._state)

    def _place(self, policy: Policy) -> tuple[Engine, ContainerHost]:
        asked = policy.container
        key = (asked.engine, asked.runtime, asked.image, asked.pull, _connects(policy))
        if key not in self._places:
            self._places[key] = self._look(policy)
        return self._places[key]

    def _look(self, policy: Policy) -> tuple[Engine, ContainerHost]:
        """Ask the engine what it is. Raises PrerequisiteError for one that can't be trusted with code."""
        asked = policy.container
        engine = find_engine(self.name, asked.engine, asked.runtime)
        known = facts(engine)
        if engine.runtime == "runsc" and _connects(policy) and _enters(known):
            engine = replace(engine, reaches=True)
        require_sound_runtime(known)
        image = _image(engine, asked.image or BASE_IMAGE, pulls=asked.pull == "missing")
        filters = _filters_can_be_made()
        home = os.path.expanduser("~")
        return engine, ContainerHost(
            backend=self.name,
            engine=engine.name,
            program=engine.program,
            facts=known,
            run_options=tuple(engine.run_options()),
            image=image.id,
            image_name=asked.image or BASE_IMAGE,
            image_id=image.id,
            profile=_write_profile(self._state, reported=filters) if known.seccomp else "",
            filters=filters,
            processors=os.cpu_count() or 1,
            root=os.geteuid() == 0,
            hard_processes=_most_processes(),
            enters=_enters(known),
            opened=os.path.join(self._state, "opened" if _enters(known) else "opened-by-relay"),
            machine=_this_machine() if known.local else None,
            hosts=_write_once(self._state, "hosts", _HOSTS) if engine.name == "podman" else "",
            secrets=(f"{home}/.ssh", f"{home}/.aws", self._state, "/run/docker.sock", "/run/podman/podman.sock"),
        )


def _this_machine() -> HostMachine:
    with open("/proc/cpuinfo", errors="replace") as file:
        cpuinfo = file.read(1 << 14)
    return HostMachine(
        mem_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        processors=tuple(sorted(os.sched_getaffinity(0))),
        cpuinfo=cpuinfo,
        booted=_boot_time(),
    )


def _boot_time() -> int:
    """As the kernel tells it: computed from clocks it would be another each time, and so would the files."""
    with open("/proc/stat") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("btime "))


def _connects(policy: Policy) -> bool:
    """Whether something leads into or out of the container."""
    return policy.net.enabled or bool(policy.net.publish)


def _enters(known: Facts) -> bool:
    """Whether the containers' namespaces can be entered: root can enter all, and a user those of his own engine."""
    return known.local and (known.rootless if os.geteuid() else not known.rootless)


def _image(engine: Engine, name: str, *, pulls: bool) -> Image:
    """The image, pulled if the policy says so and it is not here. belljar's own is in no registry."""
    if pulls and name != BASE_IMAGE and look(engine, name) is None:
        return pull(engine, name)
    return find(engine, name)


def _most_processes() -> int:
    """What podman may ask for: it lowers its own limit to the number of processes that the kernel has names for."""
    limits = [resource.getrlimit(resource.RLIMIT_NPROC)[1]]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/pid_max") as file:
        limits.append(int(file.read()))
    finite = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    return min(finite, default=-1)


def _filters_can_be_made() -> bool:
    from belljar.backends.seccomp.filters import jar_filter

    try:
        jar_filter(reported=True)
    except PrerequisiteError:  # not Linux, or no libseccomp: the engine's profile stands alone
        return False
    return True


def _write_profile(state: str, *, reported: bool) -> str:
    """The engine's profile as a file, which its client reads; named by its content."""
    content = profile(reported=reported).encode()
    return _write_once(state, f"seccomp-{hashlib.sha256(content).hexdigest()[:16]}.json", content)


def _write_once(state: str, name: str, content: bytes, *, anew: bool = False) -> str:
    """A file of this content; `anew` looks at the content too, where the name does not tell it."""
    path = os.path.join(state, name)
    if not os.path.exists(path) or (anew and not _holds(path, content)):
        os.makedirs(state, mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=state, delete=False) as file:  # each thread its own
            file.write(content)
            os.fchmod(file.fileno(), 0o644)  # the code may have to read it; the directory is closed to others
        os.replace(file.name, path)
    return path


def _holds(path: str, content: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(content) + 1) == content


def _sweep(mirrors: str) -> None:
    """Remove the copies that a killed belljar left."""
    try:
        names = os.listdir(mirrors)
    except FileNotFoundError:
        return
    for name in names:
        _uid, _, rest = name.partition("-")
        if is_dead(rest.rpartition("-")[0]):
            shutil.rmtree(os.path.join(mirrors, name), ignore_errors=True)
