"""A command-line agent in a jar: the policy that its profile, the project and the caller's options make, and the jar.

The project is a copy-on-write view, home is empty, and the key of the model stays outside: the egress proxy adds it, on
the model's own host and for questions only. So the agent may be left to itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from belljar.agents import home, profile, program
from belljar.agents.allowed import rules
from belljar.agents.home_store import MOST_FILE_BYTES, forget
from belljar.agents.kept_home import KeptHome, is_kept
from belljar.agents.repository import Worktree, worktree_of
from belljar.audit.state import writing_hint
from belljar.errors import AuditError, PolicyError, UsageError
from belljar.policy.globs import DenyGlobs
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
_SHORTEST_SECRET = 8
"""A key of fewer characters may be in any file."""
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
    def agent_name(self) -> str:
        """The agent whose home it has: by its profile, or by the program where that is a file of the user's own."""
        return self.profile_name if is_kept(self.profile_name) else profile.profile_for(self.words[0])

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
    files: Mapping[str, str | bytes]
    """What belljar writes into its home, by path in the jar."""
    kept: KeptHome | None = None
    """Its home of earlier calls, if there is one."""
    secrets: tuple[bytes, ...] = ()
    """The keys of its model, which no file that is kept may hold."""

    def opened(self) -> Sandbox:
        """Its jar, with the files of its home in it."""
        files = dict(self.files)
        if self.kept:
            with _told_of_state():
                self.kept.begin()
            files |= {f"{home.HOME}/{name}": content for name, content in self.kept.files.items()}
        jar = Sandbox(self.policy, one_shot=True)
        try:
            for path, content in files.items():
                jar.files.write(path, content)
            if self.kept:
                self.kept.mounted()
        except BaseException:
            jar.close()
            raise
        return jar

    def keep_home(self, jar: Sandbox) -> str:
        """Keep its home for the next call in this project. Return what could not be kept, in words; empty if all was.

        The caller must not do so for a run that was killed or quarantined: the home of before stays then.
        """
        if self.kept is None:
            return ""
        every = DenyGlobs(self.policy.fs.deny_globs)
        globs = {name: every.within(source, f"{home.HOME}/{name}") for name, source in self.kept.mounts.items()}

        def denied(name: str, path: str) -> bool:
            return globs[name].denies(None, f"{home.HOME}/{name}/{path}") is not None

        with contextlib.ExitStack() as stack:
            try:
                changed = {name: jar.changed_tree(f"{home.HOME}/{name}") for name in self.kept.mounts}
                for one in changed.values():
                    stack.callback(os.close, one.descriptor)
                files = {}
                for name in self.kept.file_names:
                    with contextlib.suppress(FileNotFoundError, UsageError):  # gone, or too large
                        files[name] = jar.files.read(f"{home.HOME}/{name}", limit=MOST_FILE_BYTES)
                left_out = self.kept.keep(changed, files, denied=denied, secrets=self.secrets)
            except OSError as error:
                return f"its home is not kept, and stays as it was before: {error.strerror}"
        return f"{left_out} files of its home are not kept: there is no room" if left_out else ""


def prepare(wanted: Wanted) -> Agent:
    """The agent, with its policy resolved. Starts nothing.

    Raises:
        PrerequisiteError: the program or the key of its model is not there.
        PolicyError: as `resolve`.
        UsageError: the project can't be shown to it.

    """
    project = project_directory(wanted.project)
    name = wanted.profile_name
    if profile.is_file(name) and any(beneath(step, project) for step in visited(name)):
        raise PolicyError(
            f"{name}: a profile inside the project is never read: the agent that it confines could have written it",
            hint=f"move it out of {project}",
        )
    own = profile.with_keys_of(wanted.environ, name, profile.read_profile(name))
    found = program.find(wanted.words[0], wanted.environ)
    worktree = None if wanted.live else worktree_of(project)
    kept = _kept_home(wanted, project)
    policy = resolve(
        wanted.policy,
        layers=[
            *_layers(wanted, own, project),
            found.policy,
            _mounts(project, worktree, live=wanted.live),
            home.mounts(kept),
        ],
        overrides=wanted.overrides,
        backend=wanted.backend,
        timeout=wanted.timeout,
        layers_are=f"profile {name}",
    )
    files = _home_files(name, wanted.environ, WORKSPACE, kept)
    if worktree:
        files[f"{WORKSPACE}/.git"] = worktree.link
    argv = (*found.argv, *_arguments(name, wanted.words[1:]))
    return Agent(argv, policy, worktree, files, kept, _secrets(policy, wanted.environ))


def forget_home(wanted: Wanted) -> bool:
    """Forget what the agent kept of earlier calls in the project. Return False if there was nothing."""
    return forget(project_directory(wanted.project), wanted.agent_name)


def _kept_home(wanted: Wanted, project: str) -> KeptHome | None:
    if not is_kept(wanted.agent_name):
        return None
    with _told_of_state():
        return KeptHome(project, wanted.agent_name)


@contextlib.contextmanager
def _told_of_state() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        told = f"the agent's home can't be kept: {error.strerror}: {error.filename}"
        raise AuditError(told, hint=writing_hint(error)) from error


def _secrets(policy: Policy, environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """The values of the credentials that come from variables."""
    names = [spec.source.removeprefix("env:") for spec in policy.credentials.values() if spec.source.startswith("env:")]
    return tuple(os.fsencode(environ[name]) for name in names if len(environ.get(name, "")) >= _SHORTEST_SECRET)


def project_directory(path: str) -> str:
    """The real path of a project. Raises UsageError for what is none, or holds all that is the user's."""
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


def _layers(wanted: Wanted, own: dict[str, Any], project: str) -> list[dict[str, Any]]:
    """The profile over the room that an agent needs, with the hosts that the policy, the user and the caller allow."""
    base = resolve(wanted.policy, managed=None)
    also = to_mapping(base)["net"]["allowlist"] if base.net.enabled else []
    also += rules(project, wanted.allow)
    net = own.get("net", {})
    if also:
        net = {**net, "enabled": True, "allowlist": [*net.get("allowlist", []), *also]}
    room = [] if wanted.policy else [_ROOM, *([_LIVE] if wanted.live else [])]
    return [*room, {**own, "net": net}]


def _mounts(project: str, worktree: Worktree | None, *, live: bool) -> dict[str, Any]:
    mounts = [
        {"path": WORKSPACE, "source": project, "rw": True, "cow": not live},
        *([worktree.mount] if worktree else []),
    ]
    # Bytecode is run unread, so it does not come back by itself: better there is none.
    variables = {"HOME": home.HOME, "PYTHONDONTWRITEBYTECODE": "1"}
    return {"fs": {"mounts": mounts, "workdir": WORKSPACE}, "env": {"set": variables}}


def _home_files(name: str, environ: Mapping[str, str], project: str, kept: KeptHome | None) -> dict[str, str | bytes]:
    """What belljar writes into the home, by path: what is there of earlier calls stays as the agent left it."""
    files: dict[str, str | bytes] = {f"{home.HOME}/.gitconfig": home.git_settings(home.git_identity(environ))}
    if name == "claude":
        specs = profile.read_profile(name)["credentials"].values()  # also those of other calls: the answer is kept
        placeholders = [spec["placeholder"] for spec in specs]
        files[f"{home.HOME}/.claude.json"] = home.claude_settings(placeholders, project)
    elif name == "gemini" and not (kept and os.path.lexists(f"{kept.mounts['.gemini']}/settings.json")):
        files[f"{home.HOME}/.gemini/settings.json"] = home.gemini_settings()
    return files


def _arguments(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Claude Code asks nobody in a jar, unless the caller says how it shall ask."""
    asks = name != "claude" or any(word.partition("=")[0] in _SKIPPING for word in words)
    return tuple(words) if asks else (_SKIPPING[0], *words)
