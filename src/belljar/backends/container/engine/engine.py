"""The container engine: which program it is, with which runtime, and how its commands are run.

docker, podman and nerdctl take the same commands and almost the same options; what differs between them is told here.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from belljar.backends.container.engine.faults import GVISOR_INSTALL, GVISOR_NETWORK, fault, no_answer
from belljar.errors import BelljarError, PolicyError, PrerequisiteError, SandboxUnavailableError

__all__ = ["Engine", "engine_environment", "fault", "find_engine", "find_program"]

DEFAULT_SECONDS = 60.0
_PLACES = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
_PROGRAMS = {"docker": ("docker", "nerdctl"), "podman": ("podman",), "gvisor": ("docker", "podman")}
"""Which engines serve a backend when the policy names none, the first that is there."""
_FITTING = {"docker": ("docker", "nerdctl"), "podman": ("podman",), "gvisor": ("docker", "podman", "nerdctl")}
_RUNS_CODE = ("LD_", "DYLD_", "PYTHON", "NODE_", "BASH_", "GIT_", "PERL", "RUBY", "JAVA_", "GCONV_PATH", "ENV")
"""How the names of variables begin that make a dynamic linker, an interpreter or a shell run what they name."""
_INSTALL = {
    "docker": "sudo apt install docker.io",
    "podman": "sudo apt install podman uidmap",
    "nerdctl": "see https://github.com/containerd/nerdctl/releases",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine's program, and the runtime that it shall use."""

    name: str
    """`docker`, `podman` or `nerdctl`: which dialect it speaks."""
    program: str
    """Its path."""
    runtime: str | None = None
    """`runc`, `crun`, `runsc`; None is whatever the engine takes by default."""
    reaches: bool = False
    """Whether runsc is to use the sockets of the container's own namespace, because the policy opens the network."""

    def command(self, *args: str) -> list[str]:
        """The whole argv of one of its commands, with the options that come before every command."""
        return [self.program, *self._global_options(), *args]

    def run_options(self) -> list[str]:
        """The options that `run` and `create` need to use the runtime, where it is not a global option."""
        if not self.runtime or self.name == "podman":
            return []
        return ["--runtime", self._reaching_runtime() if self.reaches else self.runtime]

    def _reaching_runtime(self) -> str:
        """docker's name for a runsc with `--network=host`: which, with docker's network `none`, is an empty one."""
        from belljar.backends.container.engine.facts import facts

        known = facts(self).runtime_arguments
        for name, words in known.items():
            if "--network=host" in words and name.startswith("runsc"):
                return name
        raise PrerequisiteError(f"{self.name} has no gVisor that can be connected to a network", hint=GVISOR_NETWORK)

    def environment(self) -> dict[str, str]:
        """The environment of the engine's program (see `engine_environment`)."""
        return engine_environment()

    def run(self, *args: str, timeout: float = DEFAULT_SECONDS, input: bytes | None = None) -> str:  # noqa: A002
        """What one of its commands prints.

        Raises:
            PrerequisiteError, SandboxUnavailableError: what `fault` makes of its complaint.
        """
        code, stdout, stderr = self.attempt(*args, timeout=timeout, input=input)
        if code:
            raise fault(self, stderr, code)
        return stdout

    def attempt(
        self,
        *args: str,
        timeout: float = DEFAULT_SECONDS,
        input: bytes | None = None,  # noqa: A002
    ) -> tuple[int, str, str]:
        """Run one of its commands: exit code, stdout, stderr. Raises only if it can't be started or does not end."""
        try:
            ended = subprocess.run(
                self.command(*args),
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                check=False,
                timeout=timeout,
                env=self.environment(),
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        except subprocess.TimeoutExpired as error:
            raise no_answer(self, timeout) from error
        except OSError as error:
            raise PrerequisiteError(f"{self.program} can't be started: {error.strerror}") from error
        return ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")

    def _global_options(self) -> list[str]:
        if self.name != "podman":
            return []
        options = ["--log-level", "error"]
        if os.path.isdir("/proc/self") and not os.path.isdir("/run/systemd/system") and not _is_remote_podman():
            options += ["--cgroup-manager", "cgroupfs"]  # there is no systemd to ask
        if self.runtime:
            options += ["--runtime", self.runtime]
        if self.runtime == "runsc":
            # Loopback only, or the container's own namespace; older ones can't set up anything else.
            options += ["--runtime-flag", "network=host" if self.reaches else "network=none"]
        return options


def engine_environment() -> dict[str, str]:
    """The caller's environment, with a PATH in which an engine finds its own helpers.

    Without what makes a program run someone's code: the caller may have it from a file in a workspace.
    """
    every = {name: os.environ.get(name) for name in os.environ}  # another thread may take one away meanwhile
    kept = {name: value for name, value in every.items() if value is not None and not name.startswith(_RUNS_CODE)}
    return {**kept, "PATH": os.pathsep.join(_search_path())}


def find_program(name: str) -> str | None:
    """Where a program is: in PATH, or where the system's programs are."""
    for place in _search_path():
        path = os.path.join(place, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def find_engine(
    backend: str, engine: str = "auto", runtime: str = "auto", *, timeout: float = DEFAULT_SECONDS
) -> Engine:
    """The engine for a backend (`docker`, `podman`, `gvisor`), as `container.engine` and `container.runtime` want it.

    For gvisor, docker is asked whether it has runsc, for `timeout` seconds at most.

    Raises:
        PolicyError: the three do not fit together.
        PrerequisiteError: it is not installed; or for gvisor, there is no runsc.
    """
    names = _PROGRAMS[backend] if engine == "auto" else (engine,)
    if engine not in ("auto", *_FITTING[backend]):
        raise PolicyError(f"container.engine is {engine}, which backend {backend} does not use")
    if backend == "gvisor":
        if runtime not in ("auto", "runsc"):
            raise PolicyError(f"container.runtime is {runtime}, but backend gvisor is runsc and nothing else")
        return _find_gvisor(names, timeout)
    wanted = None if runtime == "auto" else runtime
    for name in names:
        program = _find_engine_program(name)
        if program is not None:
            return Engine(name, program, wanted)
    raise PrerequisiteError(f"{names[0]} is not installed", hint=_INSTALL[names[0]])


def _find_gvisor(names: tuple[str, ...], timeout: float) -> Engine:
    """The first of these engines that has runsc. Never one with anything else."""
    problems: list[BelljarError] = []
    for name in names:
        program = _find_engine_program(name)
        if program is None:
            continue
        engine = Engine(name, program, "runsc")
        try:
            if _has_runsc(engine, timeout):
                return engine
        except (PrerequisiteError, SandboxUnavailableError) as problem:
            problems.append(problem)
    if problems and find_program("runsc"):
        raise problems[0]
    looked_at = " and ".join(names)
    raise PrerequisiteError(f"there is no gVisor here: {looked_at} without a runtime runsc", hint=GVISOR_INSTALL)


def _has_runsc(engine: Engine, timeout: float) -> bool:
    if engine.name == "docker":
        from belljar.backends.container.engine.facts import facts

        return "runsc" in facts(engine, timeout=timeout).runtimes
    needed = "containerd-shim-runsc-v1" if engine.name == "nerdctl" else "runsc"
    return find_program(needed) is not None


def _find_engine_program(name: str) -> str | None:
    """The engine's program; but not podman that calls itself docker (the package podman-docker)."""
    program = find_program(name)
    if program is None or name != "docker":
        return program
    with open(program, "rb") as file:
        start = file.read(4096)
    return None if start.startswith(b"#!") and b"podman" in start else program


def _search_path() -> list[str]:
    """The caller's PATH and the system's places; last what lies where the caller stands, perhaps a workspace."""
    path = [place for place in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(place)]
    places = list(dict.fromkeys([*path, *_PLACES]))
    here = os.path.join(os.getcwd(), "")
    return sorted(places, key=lambda place: os.path.join(place, "").startswith(here) and here != "/")


def _is_remote_podman() -> bool:
    return bool(os.environ.get("CONTAINER_HOST") or os.environ.get("CONTAINER_CONNECTION"))
