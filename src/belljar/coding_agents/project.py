"""The project of an agent: which directory of the host it is, where the jar has it, and where the agent starts.

The jar has the project at its own absolute path, so that virtual environments, `#!` lines, transcripts and messages are
right in both places. Of the directories above it the jar shows names and nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from belljar.backends.installations import private_paths
from belljar.coding_agents import home
from belljar.errors import UsageError
from belljar.policy.paths import PRIVATE_TEMPORARY, WORKSPACE, PathError, beneath, mount_path, real_path
from belljar.state import state_directory

_PRIVATE = (".gnupg", ".kube", ".docker", ".config", ".claude", ".netrc", ".claude.json", ".git-credentials")
"""In the home, besides what no jar shows."""
_WITH_PROJECTS = (".config", ".claude")
"""Of those, directories in which people have projects: `~/.config/nvim`."""
_OWN = (home.HOME, home.PLACE)
"""Directories that belljar itself fills in an agent's jar."""


@dataclass(frozen=True)
class Project:
    """A directory of the host that a jar shows to an agent."""

    directory: str
    """On the host, with every link resolved."""
    place: str
    """In the jar."""
    start: str
    """The agent's working directory, in the jar."""
    notes: tuple[str, ...] = ()
    """What the caller should hear."""

    def inside(self, path: str) -> str | None:
        """The path in the jar of a real path of the host; None if it does not lie in the project."""
        if not beneath(path, self.directory):
            return None
        return os.path.normpath(os.path.join(self.place, os.path.relpath(path, self.directory)))


def find_project(named: str | None, at: str | None, *, temporary: bool = True) -> Project:
    """Find the project, and choose its place in the jar.

    Args:
        named: The directory that the caller named, taken literally. None means the current directory; in a repository
            of git's that is the repository's top, since git needs all of it.
        at: The place in the jar that the caller asked for; None means the project's own path.
        temporary: Whether the backend can mount something beneath the jar's /tmp.

    Raises:
        UsageError: The project can't be shown, or not there.

    """
    here = os.path.realpath(os.getcwd())
    directory = project_directory(named)
    notes: list[str] = []
    if named is None and directory != here:
        notes.append(f"the project is {directory}, the repository's top; the agent starts in {here}")
    if named is not None and os.path.abspath(named) != directory:
        notes.append(f"the project is {directory}: {named} leads there through a link")
    if at is not None:
        place = _asked_place(at)
    elif why := why_not_at(directory, temporary=temporary):
        place = WORKSPACE
        notes.append(f"the project is shown as {WORKSPACE}, not at its own path: {why}")
    else:
        place = directory
    below = os.path.relpath(here, directory) if beneath(here, directory) else "."
    return Project(directory, place, os.path.normpath(os.path.join(place, below)), tuple(notes))


def project_directory(named: str | None) -> str:
    """The real path of the project that the caller named, or works in. Raises UsageError as `find_project`."""
    here = os.path.realpath(os.getcwd())
    return _real(named if named is not None else repository_top(here) or here)


def _real(path: str) -> str:
    try:
        project = real_path(path)
    except PathError as error:
        raise UsageError(f"the project {path}: {error}") from None
    if not os.path.isdir(project):
        found = "it is no directory" if os.path.exists(project) else "there is no such directory"
        raise UsageError(f"the project {path}: {found}", hint="--project DIR says which, or cd into it")
    if beneath(_home(), project):
        raise UsageError(
            f"{project} is no project: an agent would see all that is yours", hint="cd into the project's directory"
        )
    if private := _private_project(project):
        raise UsageError(
            f"{project} is no project: an agent would see {private}, which is yours alone",
            hint="cd into the project's directory",
        )
    state = os.path.realpath(state_directory())
    if beneath(project, state):
        raise UsageError(
            f"{project} is no project: belljar keeps its own files in {state}", hint="cd into the project's directory"
        )
    return project


def private_place(real: str) -> str | None:
    """The place that is the user's alone and that an agent would see, or be in; None if there is none."""
    home = _home()
    if beneath(home, real):
        return home
    private = [*private_paths(state_directory()), "/proc", *(os.path.join(home, name) for name in _PRIVATE)]
    for place in map(os.path.realpath, private):
        if beneath(real, place) or (beneath(place, real) and os.path.exists(place)):
            return place
    return None


def _private_project(project: str) -> str | None:
    """As `private_place`, for a project. A directory in ~/.config or ~/.claude may be one."""
    for name in (".ssh", ".aws", *_PRIVATE):
        place = os.path.realpath(os.path.join(_home(), name))
        inside = beneath(project, place) and (project == place or name not in _WITH_PROJECTS)
        if inside or (beneath(place, project) and os.path.exists(place)):
            return place
    return None


def _home() -> str:
    return os.path.realpath(os.path.expanduser("~"))


def repository_top(directory: str) -> str | None:
    """The top of the git repository that `directory` lies in; None if there is none that is this user's.

    As git does, belljar takes no repository that somebody else made above the directory (`/tmp/.git`): all beneath it
    would be shown. A repository whose top is the home, or above it, is no project either.
    """
    if os.environ.get("GIT_DIR"):
        return None
    top = directory
    while not os.path.lexists(os.path.join(top, ".git")):
        if top == "/":
            return None
        top = os.path.dirname(top)
    mark = os.path.join(top, ".git")
    is_one = os.path.isfile(mark) or os.path.exists(os.path.join(mark, "HEAD"))
    owners = {os.lstat(top).st_uid, os.lstat(mark).st_uid}
    if not is_one or owners != {os.geteuid()} or beneath(_home(), top):
        return None
    return top


def _asked_place(at: str) -> str:
    try:
        place = mount_path(at)
    except PathError as error:
        raise UsageError(f"--at {at}: {error}", hint=f"--at {WORKSPACE}") from None
    if taken := _taken(place):
        raise UsageError(f"--at {at}: {taken} is the agent's own in the jar", hint=f"--at {WORKSPACE}")
    return place


def why_not_at(directory: str, *, temporary: bool) -> str:
    """Why the jar can't have a directory of the host at its own path; empty if it can."""
    try:
        mount_path(directory)
    except PathError as error:
        return str(error).partition(", found ")[2] or str(error)
    if taken := _taken(directory):
        return f"{taken} is the agent's own in the jar"
    if beneath(directory, PRIVATE_TEMPORARY) and not temporary:
        return f"in a container {PRIVATE_TEMPORARY} is the jar's own"
    return ""


def _taken(place: str) -> str | None:
    return next((own for own in _OWN if beneath(place, own) or beneath(own, place)), None)
