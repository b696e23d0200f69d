"""What an engine's complaint means: a table of the messages of docker, podman and nerdctl, and what to do about each.

The text comes from the engine's own program. A container's stderr must never get here: `docker run` mixes the two.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from belljar.errors import BelljarError, PrerequisiteError, SandboxUnavailableError

if TYPE_CHECKING:
    from belljar.backends.container.engine.engine import Engine

GVISOR_INSTALL = (
    "install gVisor: sudo apt install runsc (or see https://gvisor.dev/docs/user_guide/install), "
    "then tell docker of it: sudo runsc install, or in /etc/docker/daemon.json "
    '{"runtimes": {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=none"]}}}; '
    "then sudo systemctl restart docker. podman finds runsc by itself"
)
GVISOR_NETWORK = (
    "add one to /etc/docker/daemon.json, beside runsc: "
    '"runsc-network": {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=host"]}; then sudo systemctl restart '
    "docker. In a container without a network, the host's network is an empty namespace, to which belljar lays a cable"
)
_START = {
    "docker": "sudo systemctl start docker (or set DOCKER_HOST to where it listens)",
    "podman": "podman machine start, or systemctl --user start podman.socket, or unset CONTAINER_HOST",
    "nerdctl": "sudo systemctl start containerd",
}
_LONGEST_LINE = 300
_MOST_TEXT = 16384
_NOISE = re.compile(
    r"^(See '.*--help'|Run '.*--help'|Usage:|WARNING: |time=\S+ level=(?:debug|info|warning) |\[\]$|\{)", re.IGNORECASE
)
_PREFIXES = re.compile(
    r"^(?:docker: |Error: |Error response from daemon: |ERRO\[\d+\] |FATA\[\d+\] |time=\S+ level=\w+ msg=)+"
)


class UnattachedError(SandboxUnavailableError):
    """A container was started, and nobody got to its first process: nothing has run in it, and another may do."""


class _Row(NamedTuple):
    pattern: str
    error: type[BelljarError]
    message: str
    hint: str


_AGAIN = "try again; `belljar doctor` says whether the engine is well"
_WENT_AWAY = "{engine}'s daemon went away in the middle"
_BACK = "try again when it is back; its log says why: journalctl -u {engine}"

# The first row that matches wins, so the narrow ones come first.
_ROWS = (
    _Row(
        r"permission denied while trying to connect|dial unix \S+: connect: permission denied|"
        r"rootless containerd not running|got permission denied",
        PrerequisiteError,
        "this user may not talk to {engine}'s daemon",
        "sudo usermod -aG docker $USER and log in again (that group is as good as root), "
        "or use an engine without root: backend: podman, or backend: bubblewrap",
    ),
    _Row(
        r"client version \S+ is too (?:new|old)|is too new\. Maximum supported API|minimum supported API version",
        PrerequisiteError,
        "{engine}'s program and its daemon are of versions that do not fit",
        "install the program that came with the daemon, or set DOCKER_API_VERSION to what the daemon speaks",
    ),
    _Row(
        r"error during connect: .*(?:\bEOF\b|reset by peer|broken pipe)",
        SandboxUnavailableError,
        _WENT_AWAY,
        _BACK,
    ),
    _Row(
        r"cannot connect to the docker daemon|is the docker daemon running|failed to connect to the docker api|"
        r"error during connect|cannot connect to podman|unable to connect to podman|cannot access containerd socket|"
        r"connect: connection refused|dial unix \S+: connect: no such file|dial tcp .*(?:i/o timeout|no route to host)|"
        r"request returned .* for API route|"
        r"indirection through nil pointer to embedded struct field Info",
        PrerequisiteError,
        "{engine}'s daemon does not answer",
        "{start}",
    ),
    _Row(
        r"no space left on device|disk quota exceeded",
        SandboxUnavailableError,
        "the disk that {engine} writes to is full",
        "see what takes the space: {engine} system df; remove what nobody uses: {engine} system prune",
    ),
    _Row(
        r"invalid reference format|repository name .*must be lowercase|could not parse image|invalid image reference",
        PrerequisiteError,
        "this is not the name of an image",
        "write container.image as NAME:TAG or NAME@sha256:DIGEST, in lower case",
    ),
    _Row(
        r"no such image|image not known|unable to find image|pull access denied|manifest unknown|"
        r"manifest for .* not found|repository does not exist|failed to resolve reference|"
        r"initializing source docker://|short-name .* did not resolve",
        PrerequisiteError,
        "the image is not here",
        "belljar image build makes belljar's own; {engine} pull IMAGE gets another",
    ),
    _Row(
        r"cannot run with network enabled in root network namespace",
        PrerequisiteError,
        "this runsc can't set up a network",
        'give docker\'s runtime runsc the argument: "runtimeArgs": ["--network=none"] in /etc/docker/daemon.json, '
        "then restart docker",
    ),
    _Row(
        r"unable to start container process: exec:|attempted to invoke a command that was not found|"
        r"crun: executable file .* not found|executable file .* not found in \$PATH: no such file or directory: OCI|"
        r"error finding executable .* in path",
        SandboxUnavailableError,
        "the image has no such program",
        "name a program that the image has, or use an image that has it: container.image",
    ),
    _Row(
        r"unknown runtime specified|unknown or invalid runtime name|invalid runtime name|"
        r"OCI runtime \S+ not found|requested OCI runtime .* not available|no valid executable found for OCI runtime|"
        r"(?:fork/)?exec:? \S*(?:runc|crun|runsc)\S*: (?:executable file not found|no such file)|"
        r"runtime \S+ binary not installed|containerd-shim-\S+: (?:executable )?file not found",
        PrerequisiteError,
        "{engine} has no such runtime",
        "{runtime}",
    ),
    _Row(
        r"subuid|subgid|cannot find UID/GID for user|insufficient UIDs or GIDs|newuidmap|newgidmap",
        PrerequisiteError,
        "podman without root has no user ids to give to a container",
        "sudo apt install uidmap; sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER; "
        "podman system migrate",
    ),
    _Row(
        r"failed to connect to container's attach socket",
        UnattachedError,
        "{engine} did not get into the container that it had started",
        _AGAIN,
    ),
    _Row(
        r"name \S+ is already in use|that name is already in use|name .* is already used by",
        SandboxUnavailableError,
        "another container has this name",
        "choose another container.name, or remove the other: {engine} rm -f NAME",
    ),
    _Row(
        r"no such container|no container with (?:name or )?ID|no such object|container .* does not exist|"
        r"is marked for removal|removal of container .* is already in progress|container \S+ is not running|"
        r"no such process: OCI runtime|container state improper|can only .* running containers",
        SandboxUnavailableError,
        "the container is gone: something else removed or stopped it",
        "try again; leave containers with the label belljar=1 to belljar",
    ),
    _Row(
        r"no such volume|no volume with (?:name|ID)|volume .* does not exist",
        SandboxUnavailableError,
        "the volume is gone: something else removed it",
        "try again; leave volumes with the label belljar=1 to belljar",
    ),
    _Row(
        r"\bEOF\b|transport is closing|connection reset by peer|broken pipe|server is shutting down|ttrpc: closed|"
        r"use of closed network connection|code = (?:Unavailable|Canceled)|shim disconnected|context canceled",
        SandboxUnavailableError,
        _WENT_AWAY,
        _BACK,
    ),
    _Row(
        r"cgroup|sd-bus call|Interactive authentication required|Delegate=|crun: .*controller",
        PrerequisiteError,
        "{engine} can't set limits by control groups here",
        "without root, on cgroup v2: sudo systemctl edit user@.service, [Service] Delegate=cpu cpuset io memory pids; "
        "on cgroup v1: use the engine as root",
    ),
    _Row(
        r"bind source path does not exist|error mounting|statfs \S+: no such file|path .* is not a shared mount|"
        r"mounts denied|is not shared from the host",
        PrerequisiteError,
        "{engine} can't mount what it was asked to",
        "a daemon on another machine, or in a virtual machine, sees only its own files: use a local one",
    ),
    _Row(
        r"setrlimit|error setting rlimit|ulimit",
        PrerequisiteError,
        "{engine} can't set limits on processes here",
        "start the engine with higher limits of its own (ulimit -n, ulimit -u), or as root",
    ),
    _Row(
        r"seccomp",
        PrerequisiteError,
        "{engine} can't load the system call filter",
        "use an engine and a kernel that were built with seccomp; {engine} info names it",
    ),
    _Row(
        r"unknown flag|unknown shorthand flag|flag provided but not defined|unknown option",
        PrerequisiteError,
        "this {engine} is too old (or of another kind) for belljar",
        "install docker 20.10 or later, podman 4 or later, or nerdctl 1 or later",
    ),
    _Row(
        r"cannot allocate memory|resource temporarily unavailable|too many open files",
        SandboxUnavailableError,
        "the host has no memory, processes or descriptors left for a container",
        "end what is not needed, then try again",
    ),
)
_TABLE = tuple((re.compile(row.pattern, re.IGNORECASE), row) for row in _ROWS)


def fault(engine: Engine, stderr: str, code: int) -> BelljarError:
    """What the engine's program meant when it ended with `code` and this text: whose fault it is, and what to do."""
    lines = _telling_lines(stderr)
    for pattern, row in _TABLE:
        for line in reversed(lines):
            if pattern.search(line):
                return row.error(f"{_fill(row.message, engine)}: {printable(line)}", hint=_fill(row.hint, engine))
    said = printable(lines[-1]) if lines else "it said nothing"
    return SandboxUnavailableError(f"{engine.name} failed with code {code}: {said}", hint=_AGAIN)


def says_something(stderr: str) -> bool:
    """Whether there is a complaint in this text at all."""
    return bool(_telling_lines(stderr))


def _telling_lines(stderr: str) -> list[str]:
    return [line for line in map(str.strip, stderr[-_MOST_TEXT:].splitlines()) if line and not _NOISE.match(line)]


def stopped(exit_code: object) -> BelljarError:
    """A container ended that belljar did not end."""
    return SandboxUnavailableError(
        f"the container was stopped by something else (exit code {exit_code})",
        hint="try again; leave containers with the label belljar=1 to belljar",
    )


def went_away(engine: Engine) -> BelljarError:
    """The daemon was there, and is not any more."""
    return SandboxUnavailableError(_fill(_WENT_AWAY, engine), hint=_fill(_BACK, engine))


def no_answer(engine: Engine, seconds: float) -> BelljarError:
    """The engine's program did not end in time."""
    return SandboxUnavailableError(
        f"{engine.name} did not answer within {seconds:g} s", hint=f"is its daemon well? Try: {engine.name} info"
    )


def printable(line: str) -> str:
    """One line of an engine, without its prefixes, of bounded length, with nothing that a terminal would act on."""
    text = _PREFIXES.sub("", line.strip())
    text = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text[: _LONGEST_LINE + 1])
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "…"


def _fill(text: str, engine: Engine) -> str:
    if text == "{start}":
        return _START[engine.name]
    if text == "{runtime}":
        return GVISOR_INSTALL if engine.runtime == "runsc" else _install_runtime(engine)
    return text.replace("{engine}", engine.name)


def _install_runtime(engine: Engine) -> str:
    runtime = engine.runtime or "runc"
    named = f"; name it in /etc/docker/daemon.json under runtimes and restart docker: {runtime}"
    return f"sudo apt install {runtime}" + (named if engine.name == "docker" and runtime != "runc" else "")
