"""A command-line agent in a jar: the policy that its profile, the project and the caller's options make, and the jar.

The project is a copy-on-write view, home is empty, and the key of the model stays outside: the egress proxy adds it, on
the model's own host and for questions only. So the agent may be left to itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from belljar.agents import home, profile, program
from belljar.agents.repository import Worktree, worktree_of
from belljar.errors import PolicyError, UsageError
from belljar.policy.mapping import to_mapping
from belljar.policy.models import Policy
from belljar.policy.paths import WORKSPACE, PathError, beneath, real_path, visited
from belljar.policy.resolve import resolve
from belljar.sandbox.sandbox import Sandbox

_ROOM: dict[str, Any] = {
    "fs": {"size_mb": "2g", "inodes": 400_000},
    "proc": {
        "cpu_quota": 4,
        "mem_mb": "4g",
        "timeout_ms": "12h",
        "pids": 1024,
        "open_files": 4096,
        "file_size_mb": "1g",
        "output_mb": 256,
    },
}
"""What an agent with a compiler at hand needs; a policy that someone names has its own."""
_LIVE = {"on_degraded": ["proc.mem_mb", "proc.cpu_quota", "fs.deny_globs", "fs.size_mb", "fs.inodes"]}
"""What can't be held in a directory of the host's own: whoever says --live accepts that."""
_SKIPPING = ("--dangerously-skip-permissions", "--permission-mode", "--allow-dangerously-skip-permissions")


@dataclass(frozen=True)
class Wanted:
    """What the caller asks for."""

    words: tuple[str, ...]
    """The command: the agent and its arguments."""
    project: str = "."
    profile: str | None = None
    policy: str | None = None
    allow: tuple[str, ...] = ()
    """Hosts that it may reach besides its model."""
    overrides: tuple[str, ...] = ()
    live: bool = False
    backend: str | None = None
    timeout: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def profile_name(self) -> str:
        """The profile that was named, or that of the program."""
        return self.profile or profile.profile_for(self.words[0])


@dataclass(frozen=True)
class Agent:
    """An agent that is ready to start."""

    argv: tuple[str, ...]
    policy: Policy
    worktree: Worktree | None
    files: Mapping[str, str]
    """What its home holds, by path in the jar."""

    def opened(self) -> Sandbox:
        """Its jar, with the files of its home in it."""
        jar = Sandbox(self.policy, one_shot=True)
        jar.remember_host_files()
        try:
            for path, content in self.files.items():
                jar.files.write(path, content)
        except BaseException:
            jar.close()
            raise
        return jar


def prepare(wanted: Wanted) -> Agent:
    """The agent, with its policy resolved. Starts nothing.

    Raises:
        PrerequisiteError: the program or the key of its model is not there.
        PolicyError: as `resolve`.
        UsageError: the project can't be shown to it.

    """
    project = _project(wanted.project)
    name = wanted.profile_name
    if profile.is_file(name) and any(beneath(step, project) for step in visited(name)):
        raise PolicyError(
            f"{name}: a profile inside the project is never read: the agent that it confines could have written it",
            hint=f"move it out of {project}",
        )
    own = profile.with_keys_of(wanted.environ, name, profile.read_profile(name))
    found = program.find(wanted.words[0], wanted.environ)
    worktree = None if wanted.live else worktree_of(project)
    policy = resolve(
        wanted.policy,
        layers=[*_layers(wanted, own), found.policy, _mounts(project, worktree, live=wanted.live)],
        overrides=wanted.overrides,
        backend=wanted.backend,
        timeout=wanted.timeout,
        layers_are=f"profile {name}",
    )
    files = _home_files(name, policy, wanted.environ)
    if worktree:
        files[f"{WORKSPACE}/.git"] = worktree.link
    return Agent((*found.argv, *_arguments(name, wanted.words[1:])), policy, worktree, files)


def _project(path: str) -> str:
    try:
        project = real_path(path)
    except PathError as error:
        raise UsageError(f"the project {path}: {error}") from None
    if not os.path.isdir(project):
        found = "it is no directory" if os.path.exists(project) else "there is no such directory"
        raise UsageError(f"the project {path}: {found}", hint="--project DIR says which, or cd into it")
    if beneath(os.path.realpath(os.path.expanduser("~")), project):
        raise UsageError(
            f"{project} is no project: an agent would see all that is yours", hint="cd into the project's directory"
        )
    return project


def _layers(wanted: Wanted, own: dict[str, Any]) -> list[dict[str, Any]]:
    """The profile over the room that an agent needs, with the hosts that the policy beneath and the caller allow."""
    base = resolve(wanted.policy, managed=None)
    also = to_mapping(base)["net"]["allowlist"] if base.net.enabled else []
    also += list(wanted.allow)
    net = own.get("net", {})
    if also:
        net = {**net, "enabled": True, "allowlist": [*net.get("allowlist", []), *also]}
    room = [] if wanted.policy else [_ROOM, *([_LIVE] if wanted.live else [])]
    return [*room, {**own, "net": net}]


def _mounts(project: str, worktree: Worktree | None, *, live: bool) -> dict[str, Any]:
    mounts = [
        {"path": WORKSPACE, "source": project, "rw": True, "cow": not live},
        {"path": home.HOME, "rw": True},
        *([worktree.mount] if worktree else []),
    ]
    # Bytecode is run unread, so it does not come back by itself: better there is none.
    variables = {"HOME": home.HOME, "PYTHONDONTWRITEBYTECODE": "1"}
    return {"fs": {"mounts": mounts, "workdir": WORKSPACE}, "env": {"set": variables}}


def _home_files(name: str, policy: Policy, environ: Mapping[str, str]) -> dict[str, str]:
    files = {f"{home.HOME}/.gitconfig": home.git_settings(home.git_identity(environ))}
    if name == "claude":
        placeholders = {spec.env or "": spec.placeholder or "" for spec in policy.credentials.values()}
        files[f"{home.HOME}/.claude.json"] = home.claude_settings(placeholders, WORKSPACE)
    elif name == "gemini":
        files[f"{home.HOME}/.gemini/settings.json"] = home.gemini_settings()
    return files


def _arguments(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Claude Code asks nobody in a jar, unless the caller says how it shall ask."""
    asks = name != "claude" or any(word.partition("=")[0] in _SKIPPING for word in words)
    return tuple(words) if asks else (_SKIPPING[0], *words)
