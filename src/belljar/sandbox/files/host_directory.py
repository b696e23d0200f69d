"""The one judgement of what may leave a jar: for `apply`, for artifacts, for the results of a session, for `restore`.

`HostDirectory` is a directory of the host's as its tools know it. `OutgoingFiles` judges files copied into one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

import belljar
from belljar.backends.hostile_files import leaves, open_beneath
from belljar.errors import UsageError
from belljar.policy.globs import DenyGlobs
from belljar.policy.paths import PathError, real_path
from belljar.sandbox.files.git_settings import REPOSITORY, ActedPaths, Repositories, repository_of
from belljar.sandbox.files.trusted_names import NOT_READABLE, acted_upon, in_bytecode, link_acted_upon, plain_name
from belljar.state import state_directory

IN_REPOSITORY = "git would take its directory for a repository, and do what its settings say"
LEADS_OUT = "it is a link that leads out of the directory"
_MOST_NAMES = 10_000
_REPOSITORY = frozenset(name.upper() for name in REPOSITORY)


class HostDirectory:
    """A directory of the host's that files of a jar are written to, as the host's tools know it."""

    def __init__(self, path: str) -> None:
        self._real = os.path.realpath(path)
        self._above = _above(self._real)
        self._in_bare = _in_bare_repository(self._real)
        self._state = os.path.realpath(state_directory())
        self._package = os.path.dirname(os.path.realpath(belljar.__file__))
        self.git = ActedPaths(path)
        self._linked = _linked(self._real)

    def known_as(self, path: str) -> str:
        """What the host's tools call a path, from the top of the repository that it is in."""
        return self._above + path

    def never(self, path: str) -> str:
        """Why nobody may bring this path back, whatever they say; empty if it may come back."""
        if in_bytecode(path):
            return NOT_READABLE
        return self.state(path)

    def state(self, path: str) -> str:
        """Why a path in the state directory must stay as it is; empty if it is none."""
        return "belljar keeps its state there" if f"{self._real}/{path}/".startswith(f"{self._state}/") else ""

    def acted_upon(self, path: str, *, is_directory: bool, kind: str = "added") -> str:
        """Why this path must not come back by itself; empty if it may."""
        known = self.known_as(path)
        if why := acted_upon(known, is_directory=is_directory, kind=kind):
            return why
        if self._in_bare:
            return IN_REPOSITORY
        is_directory = is_directory and kind != "deleted"
        if why := self.git.why(path, is_directory=is_directory):
            return why
        if not is_directory and self._linked and (name := self._linked_by(path)):
            return f"{name} leads to it: {acted_upon(name, is_directory=True, kind='deleted')}"
        whole = f"{self._real}/{path}"
        if "-packages/" in self._package and whole.startswith(f"{self._package}/"):
            return "belljar itself would run it, outside of a jar"
        return ""

    def link_acted_upon(self, path: str, target: str) -> str:
        """Why a link with this target must not come back by itself; empty if it may."""
        known = self.known_as(path)
        if why := acted_upon(known, is_directory=True, kind="deleted") or link_acted_upon(known, target):
            return why
        leads = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if why := "" if leads.startswith("..") else self.git.why(leads, is_directory=False):
            return f"it leads to a file: {why}"
        return ""

    def _linked_by(self, path: str) -> str:
        names = tuple(map(plain_name, path.split("/")))
        longest = min(len(names), max(map(len, self._linked), default=0))
        return next((self._linked[names[:n]] for n in range(1, longest + 1) if names[:n] in self._linked), "")


def _above(real: str) -> str:
    """The names that lead to a directory from the top of its repository, or from the root where it is in none."""
    repository = repository_of(real)
    inside = os.path.relpath(real, repository.top) if repository else real.lstrip("/")
    return "" if inside in (".", "") else f"{inside}/"


def _in_bare_repository(real: str) -> bool:
    """Return True if the directory is in a repository that is not called `.git`, or is one."""
    if repository_of(real) is not None:  # a worktree, which may lie in a bare repository
        return False
    while not all(os.path.lexists(os.path.join(real, name)) for name in REPOSITORY):
        if real in ("/", ""):
            return False
        real = os.path.dirname(real)
    return True


def _linked(real: str) -> dict[tuple[str, ...], str]:
    """Files of the directory that the host's own links name: `CLAUDE.md -> docs/guide.md`. By path, the link's name.

    Looked for at the top, and in directories there whose names begin with a dot.
    """
    found: dict[tuple[str, ...], str] = {}
    for directory in ("", *(name for name in _names(real) if name.startswith(".") and name != ".git")):
        for name in _names(os.path.join(real, directory)):
            path = os.path.join(real, directory, name)
            if not os.path.islink(path):
                continue
            own = f"{directory}/{name}" if directory else name
            inside = os.path.relpath(os.path.realpath(path), real)
            if not inside.startswith("..") and inside != "." and acted_upon(own, is_directory=True, kind="deleted"):
                found[tuple(map(plain_name, inside.split("/")))] = own
    return found


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)[:_MOST_NAMES]
    except OSError:
        return []


class OutgoingFiles:
    """Judges files of a jar that are copied into a directory of the host's, by the rules of `apply`."""

    def __init__(
        self,
        root: int,
        directory: str,
        paths: Collection[str],
        *,
        globs: tuple[str, ...] = (),
        jar_path: str = "/workspace",
        protected: bool = False,
    ) -> None:
        """`protected` lets files pass that a tool on the host would act on."""
        self._root = root
        self._directory = os.path.abspath(directory)
        self._host = HostDirectory(directory)
        self._globs = DenyGlobs(globs).within(self._directory, jar_path)
        self._jar_path = jar_path
        self._protected = protected
        self._coming = frozenset(above for path in paths for above in _in_repositories(path))
        self._repositories = Repositories(self._exists)

    def why(self, path: str, what: str = "file", target: str = "") -> str:
        """Why this file, directory or link must not be written; empty if it may be."""
        rule = self._globs.denies(f"{self._directory}/{path}", f"{self._jar_path}/{path}")
        if rule is not None:
            return f"its name is denied by fs.deny_globs[{rule}] {self._globs.patterns[rule]}"
        if why := self._host.never(path):
            return why
        if what == "link" and leaves(path, target):
            return LEADS_OUT
        if self._protected:
            return ""
        if why := self._host.acted_upon(path, is_directory=what == "directory"):
            return why
        if what == "link" and (why := self._host.link_acted_upon(path, target)):
            return why
        return IN_REPOSITORY if self._repositories.holds(path) else ""

    def _exists(self, path: str) -> bool:
        if path in self._coming:
            return True
        directory, _, name = path.rpartition("/")
        try:
            parent = open_beneath(self._root, directory)
        except OSError:
            return False
        try:
            os.lstat(name, dir_fd=parent)
        except OSError:
            return False
        finally:
            os.close(parent)
        return True


def _in_repositories(path: str) -> list[str]:
    """A path and those above it, as far as they have a name that makes a directory a repository."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth, name in enumerate(names, 1) if name.upper() in _REPOSITORY]


def check_target(directory: str) -> None:
    """Raise UsageError if a directory is the user's home, or above it: programs act on what is there by any name."""
    real, home = os.path.realpath(directory), os.path.realpath(os.path.expanduser("~"))
    if f"{home}/".startswith(f"{real.rstrip('/')}/"):
        what = "your home directory" if real == home else "a directory above your home"
        raise UsageError(
            f"{directory} is {what}: programs act on what is there, whatever it is called",
            hint=f"name a directory of its own, such as {os.path.join(home, 'out')}",
        )


def open_target(directory: str) -> int:
    """Make a directory for files of a jar, and open it.

    Raises:
        UsageError: as `check_target`; or it can't be made.
    """
    check_target(directory)
    try:
        real = real_path(directory)  # follows no link that code could have made
        os.makedirs(real, exist_ok=True)
        return open_real(real)
    except PathError as error:
        raise UsageError(f"{directory} can't be written to: {error}") from None
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(
            f"{directory}: there is a file where a directory was wanted",
            hint="name a directory; belljar makes one that does not exist",
        ) from error
    except OSError as error:
        raise UsageError(f"{directory} can't be written to: {error.strerror}") from error


def open_real(path: str) -> int:
    """Open a directory by its real path. The caller must close it.

    Code that has a live directory may put a link on the way at any time. No link is followed.

    Raises:
        UsageError: there is a link on the way.
        OSError: it can't be opened.
    """
    top = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_beneath(top, path.lstrip("/"))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UsageError(
                f"{path} can't be opened: somebody put a link on the way to it, or a file",
                hint="look at who changes it (another jar with a live directory?), and try again",
            ) from error
        raise
    finally:
        os.close(top)


__all__ = ["IN_REPOSITORY", "LEADS_OUT", "HostDirectory", "OutgoingFiles", "check_target", "open_real", "open_target"]
