"""A command-line agent in a jar: the policy that its profile, the project and the caller's options make, and the jar.

The project is a copy-on-write view, home is empty, and the key of the model stays outside: the egress proxy adds it, on
the model's own host and for questions only. So the agent may be left to itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from belljar.coding_agents import claude_arguments, home, profile, program
from belljar.coding_agents.environment import Environment, find_environment
from belljar.coding_agents.home_store import MOST_FILE_BYTES, forget
from belljar.coding_agents.kept_home import KeptHome, is_kept
from belljar.coding_agents.kept_packages import VARIABLES, KeptPackages, forget_packages
from belljar.coding_agents.project import Project, find_project, project_directory, repository_top
from belljar.errors import AuditError, PolicyError, UsageError
from belljar.policy.digest import digest
from belljar.policy.globs import DenyGlobs
from belljar.policy.keys.units import counted
from belljar.policy.load.resolve import resolve
from belljar.policy.mapping import to_mapping
from belljar.policy.models import Policy
from belljar.policy.paths import WORKSPACE, beneath, visited
from belljar.sandbox.repository.making import NO_REPOSITORY, JarRepositories, jar_repositories
from belljar.sandbox.run.sandbox import Sandbox
from belljar.state import writing_hint
from belljar.tools.allowed_hosts import rules

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
    project: str | None = None
    """The directory that the caller named; None for the current one, or the top of its repository."""
    at: str | None = None
    """Where the jar has the project, if not at its own path."""
    profile: str | None = None
    policy: str | None = None
    allow: tuple[str, ...] = ()
    """Hosts that it may reach besides its model."""
    overrides: tuple[str, ...] = ()
    live: bool = False
    keep_packages: bool = False
    """Whether packages that it installs stay for the next call, and those of earlier calls are there."""
    backend: str | None = None
    timeout: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def agent_name(self) -> str:
        """The agent whose home it has: by its profile, or by the program where that is a file of the user's own."""
        return self.profile_name if is_kept(self.profile_name) else profile.profile_for(self.words[0])

    @property
    def program_name(self) -> str:
        """The agent whose packages it has: also of a program that has no profile."""
        return self.agent_name if is_kept(self.agent_name) else os.path.basename(self.words[0])

    @property
    def profile_name(self) -> str:
        """The profile that was named, or that of the program."""
        return self.profile or profile.profile_for(self.words[0])


@dataclass(frozen=True)
class Agent:
    """An agent that is ready to start."""

    argv: tuple[str, ...]
    policy: Policy
    files: Mapping[str, str | bytes]
    """What belljar writes into the jar before the agent starts, by path in the jar."""
    project: Project
    repositories: JarRepositories = NO_REPOSITORY
    """What the jar has in the place of the project's `.git`."""
    name: str = "agent"
    """The program, by the name that the caller used."""
    notes: tuple[str, ...] = ()
    """What the caller should hear before the agent starts."""
    kept: KeptHome | None = None
    """Its home of earlier calls, if there is one."""
    packages: KeptPackages | None = None
    """Packages that it installed in earlier calls, if they are kept."""
    secrets: tuple[bytes, ...] = ()
    """The keys of its model, which no file that is kept may hold."""

    @property
    def title(self) -> str:
        """What a list of runs calls it: the agent and the project."""
        return f"{self.name} in {self.project.directory}"

    def opened(self) -> Sandbox:
        """Its jar, with the files of its home in it."""
        files = dict(self.files)
        for one in self._remembered:
            with _told_of_state():
                one.begin()
            files |= {f"{home.HOME}/{name}": content for name, content in one.files.items()}
        jar = Sandbox(self.policy, one_shot=True)
        jar.remember_host_files(self.project.place)
        try:
            for path, content in files.items():
                jar.files.write(path, content)
            for path, data in self.repositories.files.items():
                jar.files.write(f"{self.repositories.mount}/{path}", data)
            for path, data in self.repositories.links.items():
                jar.files.write(f"{self.project.place}/{path}", data)
            for one in self._remembered:
                one.mounted()
        except BaseException:
            jar.close()
            raise
        return jar

    @property
    def _remembered(self) -> list[KeptHome]:
        return [one for one in (self.kept, self.packages) if one is not None]

    def keep_home(self, jar: Sandbox, *, finished: bool) -> list[str]:
        """Keep its home for the next call in this project, and its packages. Return what could not be kept, in words.

        The caller must not do so for a run that was killed or quarantined: the home of before stays then. `finished`
        says that the agent ended by itself. Otherwise a package may be half installed, so that none is kept.
        """
        told = []
        if self.kept is not None:
            left_out, failed = self._keep(jar, self.kept)
            if failed:
                told.append(f"its home is not kept, and stays as it was before: {failed}")
            if left_out:
                told.append(f"not kept of its home: {counted(left_out, 'file')}: there is no room")
        if self.packages is not None:
            failed = self._keep(jar, self.packages)[1] if finished else "the agent was stopped"
            if failed:
                told.append(f"packages of this run are not kept, and those of before stay: {failed}")
        return told

    def _keep(self, jar: Sandbox, kept: KeptHome) -> tuple[int, str]:
        """Keep one of the directories. Return how many files there is no room for, and why none is kept."""
        every = DenyGlobs(self.policy.fs.deny_globs)
        globs = {name: every.within(source, f"{home.HOME}/{name}") for name, source in kept.mounts.items()}

        def denied(name: str, path: str) -> bool:
            return globs[name].denies(None, f"{home.HOME}/{name}/{path}") is not None

        with contextlib.ExitStack() as stack:
            try:
                changed = {name: jar.changed_tree(f"{home.HOME}/{name}") for name in kept.mounts}
                for one in changed.values():
                    stack.callback(os.close, one.descriptor)
                files = {}
                for name in kept.file_names:
                    with contextlib.suppress(OSError, UsageError):  # gone, no file, or too large
                        files[name] = jar.files.read(f"{home.HOME}/{name}", limit=MOST_FILE_BYTES)
                return kept.keep(changed, files, denied=denied, secrets=self.secrets), ""
            except OSError as error:
                return 0, error.strerror or str(error)


def prepare(wanted: Wanted) -> Agent:
    """The agent, with its policy resolved. Starts nothing.

    Raises:
        PrerequisiteError: the program or the key of its model is not there.
        PolicyError: as `resolve`.
        UsageError: the project can't be shown to it.

    """
    base = resolve(wanted.policy, managed=None)
    temporary = (wanted.backend or base.backend) in ("auto", "bubblewrap")
    project = find_project(wanted.project, wanted.at, temporary=temporary)
    name = wanted.profile_name
    if profile.is_file(name) and any(beneath(step, project.directory) for step in visited(name)):
        raise PolicyError(
            f"{name}: a profile inside the project is never read: the agent that it confines could have written it",
            hint=f"move it out of {project.directory}",
        )
    own = profile.with_keys_of(wanted.environ, name, profile.read_profile(name))
    found = program.find(wanted.words[0], wanted.environ, project)
    shown = claude_arguments.ShownArguments(list(wanted.words[1:]))
    if name == "claude":
        shown = claude_arguments.show(wanted.words[1:], project, temporary=temporary, globs=base.fs.deny_globs)
    chosen = base.python.venv or base.python.interpreter or any(one.startswith("python.") for one in wanted.overrides)
    python = Environment() if chosen or found.venv else find_environment(project, wanted.environ)
    repositories = NO_REPOSITORY if wanted.live else _repositories(project)
    kept, packages = _kept_home(wanted, project.directory), _kept_packages(wanted, project.directory)
    policy = resolve(
        wanted.policy,
        layers=[
            *_layers(wanted, base, own, project.directory),
            {"fs": {"mounts": shown.mounts}},
            found.policy,
            python.policy,
            _mounts(project, repositories, live=wanted.live),
            home.mounts(one for one in (kept, packages) if one is not None),
            {"env": {"set": VARIABLES if packages else {}}},
        ],
        overrides=wanted.overrides,
        backend=wanted.backend,
        timeout=wanted.timeout,
        layers_are=f"profile {name}",
    )
    if project.place != WORKSPACE and not wanted.policy:
        policy = _without_workspace(policy)
    return Agent(
        (*found.argv, *_arguments(name, shown.words)),
        policy,
        {**_home_files(name, wanted.environ, project.start, kept), **shown.files},
        project,
        repositories,
        name=os.path.basename(wanted.words[0]),
        notes=(*project.notes, *python.notes, *repositories.told),
        kept=kept,
        packages=packages,
        secrets=_secrets(policy, wanted.environ),
    )


def _repositories(project: Project) -> JarRepositories:
    """The repository of the project, or one above it that counts: the jar has all objects of it.

    One whose top is the home, with the user's settings in it, or that somebody else made does not count.
    """
    own = os.path.lexists(os.path.join(project.directory, ".git"))
    if not own and repository_top(project.directory) is None:
        return NO_REPOSITORY
    return jar_repositories(project.directory, project.place)


def forget_home(wanted: Wanted) -> bool:
    """Forget what the agent kept of earlier calls in the project. Return False if there was nothing."""
    project = project_directory(wanted.project)
    packages = forget_packages(project, wanted.program_name)
    return forget(project, wanted.agent_name) or packages


def _kept_home(wanted: Wanted, project: str) -> KeptHome | None:
    if not is_kept(wanted.agent_name):
        return None
    with _told_of_state():
        return KeptHome(project, wanted.agent_name)


def _kept_packages(wanted: Wanted, project: str) -> KeptPackages | None:
    if not wanted.keep_packages:
        return None
    with _told_of_state():
        return KeptPackages(project, wanted.program_name)


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


def _layers(wanted: Wanted, base: Policy, own: dict[str, Any], project: str) -> list[dict[str, Any]]:
    """The profile over the room that an agent needs, with the hosts that the policy, the user and the caller allow."""
    also = to_mapping(base)["net"]["allowlist"] if base.net.enabled else []
    also += rules(project, wanted.allow)
    net = own.get("net", {})
    if also:
        net = {**net, "enabled": True, "allowlist": [*net.get("allowlist", []), *also]}
    room = [] if wanted.policy else [_ROOM, *([_LIVE] if wanted.live else [])]
    return [*room, {**own, "net": net}]


def _mounts(project: Project, repositories: JarRepositories, *, live: bool) -> dict[str, Any]:
    mounts = [
        {"path": project.place, "source": project.directory, "rw": True, "cow": not live},
        *repositories.mounts,
    ]
    # Bytecode is run unread, so it does not come back by itself: better there is none.
    variables = {"HOME": home.HOME, "PYTHONDONTWRITEBYTECODE": "1", **repositories.variables}
    return {"fs": {"mounts": mounts, "workdir": project.start}, "env": {"set": variables}}


def _without_workspace(policy: Policy) -> Policy:
    """Leave out the empty /workspace of the presets: an agent could write to it, and nothing of that comes back."""
    kept = tuple(mount for mount in policy.fs.mounts if mount.path != WORKSPACE or mount.source is not None)
    changed = replace(policy, fs=replace(policy.fs, mounts=kept), digest="")
    return replace(changed, digest=digest(changed))


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
