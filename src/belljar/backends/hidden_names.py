"""Names that `fs.deny_globs` denies in an interpreter's own directory: searched for once, then remembered.

To search such a directory takes up to 300 ms, too long for each start. A name that is made, renamed or removed changes
the time of its directory, which only the kernel can set (`st_ctime`). So what a search found holds as long as no
directory has another time. A directory with many packages has thousands of directories. There a start looks at those
nearest to the top, where a package is installed or removed, and the search is repeated each hour; a policy that does
not accept `fs.deny_globs: degraded` has all of them looked at.

Runs in the host's process. Reads the interpreter's directory through no link, and writes only to the state directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from belljar._startup.records import dataclass
from belljar.backends.runtimes import Installation, Runtime
from belljar.errors import PolicyError
from belljar.policy.digest import sha256
from belljar.policy.models import Policy
from belljar.state import private_directory

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from belljar.policy.globs import DenyGlobs

_MARK = "belljar 1"
_NEAREST = 200
"""Directories that a start looks at. To look at one takes 3 to 6 microseconds."""
_VALID_SECONDS = 3600
"""How long a search counts that has more directories than a start looks at."""
_FRESH_NS = 2_000_000_000
"""A directory that was changed less than this before a search may change again without another time."""
_LARGEST_BYTES = 16 << 20
_MOST_KEPT = 16
_MOST_HIDDEN = 10_000
_SOFTWARE = (".py", ".pyc", ".pyi", ".so", ".js", ".mjs", ".cjs")
"""How files end that an interpreter executes: they stay, whatever their name is.

A pattern such as `**/token*` is meant for files of yours. It would take Python's own `tokenize.py` away.
"""
_PACKAGES = ("__init__.py", "package.json")
"""What a directory has in it that an interpreter imports from."""


def with_hidden(runtime: Runtime, policy: Policy, *, state: str) -> Runtime:
    """Return the runtime with the denied names in its directories. Virtual environments are left to the stage."""
    if not policy.fs.deny_globs or all(shown.searched for shown in runtime.installations):
        return runtime
    exact = not _accepts_less(policy)
    shown = tuple(
        each if each.searched else _hiding(each, policy.fs.deny_globs, state, exact=exact)
        for each in runtime.installations
    )
    return Runtime(runtime.language, runtime.path, runtime.prefixes, runtime.venv, shown)


def _accepts_less(policy: Policy) -> bool:
    return policy.on_degraded == "allow" or "fs.deny_globs" in policy.on_degraded


def _hiding(shown: Installation, patterns: Sequence[str], state: str, *, exact: bool) -> Installation:
    words = (_MARK, str(exact), shown.path, *(word for part in shown.parts for word in part), "", *patterns)
    key = sha256("\0".join(words).encode("utf-8", "surrogateescape"))
    place = f"{state}/interpreters/{key[:32]}"
    found = _holding(_KNOWN.get(key) or _read(place))
    if found is None:
        found, written = _search(shown, patterns, exact=exact)
        _keep(key, place, written)
    if (count := len(found.hidden)) > _MOST_HIDDEN:
        raise PolicyError(
            f"fs.deny_globs denies {count} files of the interpreter in {shown.path}, such as {found.hidden[0]}",
            hint=f"deny names that are yours alone, or use another interpreter; at most {_MOST_HIDDEN} can be hidden",
        )
    seconds = _VALID_SECONDS if found.until else 0
    return Installation(shown.path, shown.parts, shown.links, shown.searched, found.hidden, seconds)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search found, and until when that counts (seconds since 1970); 0: until a directory changes."""

    hidden: tuple[str, ...]
    until: int


_KNOWN: dict[str, bytes] = {}
"""What this process has searched for, by the digest of where and what, as in the files."""


def _read(place: str) -> bytes:
    """Return what a search has left in the state directory; nothing if others could have written it."""
    try:
        file = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(file)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022 or status.st_size > _LARGEST_BYTES:
            return b""
        return os.read(file, status.st_size)
    finally:
        os.close(file)


def _holding(data: bytes) -> _Found | None:
    """Return what the last search found, if no directory has changed since."""
    mark, *words = os.fsdecode(data).split("\0")
    try:
        until, count = int(words[0]), int(words[1])
        hidden, stamps = words[2 : 2 + count], words[2 + count :]
        if mark != _MARK or len(hidden) != count or (until and not 0 < until - time.time() <= _VALID_SECONDS):
            return None
        for at in range(0, len(stamps), 2):
            if _stamp(stamps[at]) != stamps[at + 1]:
                return None
    except (ValueError, IndexError, OSError):
        return None
    return _Found(tuple(hidden), until)


def _stamp(directory: str) -> str:
    status = os.lstat(directory)
    return f"{status.st_dev}.{status.st_ino}.{status.st_ctime_ns}"


def _search(shown: Installation, patterns: Sequence[str], *, exact: bool) -> tuple[_Found, bytes]:
    """Return what is denied, and how to remember it; nothing of the latter if a directory was changed just now."""
    from belljar.policy.globs import DenyGlobs

    globs = DenyGlobs(patterns)
    began = time.time()
    hidden: list[str] = []
    directories: list[str] = []
    for name, real in shown.parts:
        jar_path = f"{shown.path}/{name}"
        if os.path.isdir(real):
            denied, looked_at = _denied_beneath(real, jar_path, globs.within(real, jar_path))
            hidden += [f"{name}/{below}" for below in denied]
            directories += looked_at
        elif globs.may_end_at(os.path.basename(real)) and globs.denies(real, jar_path) is not None:
            hidden += [] if _is_software(real) else [name]
    directories.sort(key=lambda path: path.count("/"))
    nearest = directories if exact else directories[:_NEAREST]
    until = 0 if nearest == directories else int(began) + _VALID_SECONDS
    found = _Found(tuple(hidden), until)
    return found, _as_written(found, nearest, not_after=int(began * 1e9) - _FRESH_NS)


def _denied_beneath(real: str, jar_path: str, globs: DenyGlobs) -> tuple[list[str], list[str]]:
    """Return what is denied beneath a directory, as paths relative to it, and every directory that was looked at."""
    from belljar.backends.denied_walk import find_denied

    hidden: list[str] = []
    directories: list[str] = []
    starts = [""]
    for start in starts:  # grows: a package whose name is denied is looked into
        found = find_denied(real, real, jar_path, globs, start)
        directories += [f"{real}/{below}" if below else real for below in found.directories]
        for below in found.paths:
            if _is_package(f"{real}/{below}"):
                starts.append(below)
            elif not _is_software(below):
                hidden.append(below)
    return hidden, directories


def _is_software(path: str) -> bool:
    return path.endswith(_SOFTWARE) or ".so." in os.path.basename(path)


def _is_package(path: str) -> bool:
    return not os.path.islink(path) and any(os.path.isfile(f"{path}/{name}") for name in _PACKAGES)


def _as_written(found: _Found, directories: Sequence[str], *, not_after: int) -> bytes:
    try:
        stamps = list(_stamps(directories, not_after))
    except (OSError, _ChangingError):
        return b""
    return os.fsencode("\0".join((_MARK, str(found.until), str(len(found.hidden)), *found.hidden, *stamps)))


def _keep(key: str, place: str, data: bytes) -> None:
    """Write down what a search found. Without it, the next start searches again."""
    if not data:
        return
    if len(_KNOWN) >= _MOST_KEPT:
        _KNOWN.clear()
    _KNOWN[key] = data
    directory, written = os.path.dirname(place), f"{place}.{os.getpid()}"
    try:
        private_directory(directory)
        file = os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            complete = os.write(file, data) == len(data)
        finally:
            os.close(file)
        if complete:
            os.rename(written, place)
        _remove_oldest(directory)
    except OSError:
        return


class _ChangingError(Exception):
    """A directory was changed just now, or while it was searched."""


def _stamps(directories: Sequence[str], not_after: int) -> Iterator[str]:
    for directory in directories:
        status = os.lstat(directory)
        if status.st_ctime_ns > not_after:
            raise _ChangingError
        yield directory
        yield f"{status.st_dev}.{status.st_ino}.{status.st_ctime_ns}"


def _remove_oldest(directory: str) -> None:
    kept = [(os.lstat(f"{directory}/{name}").st_mtime_ns, name) for name in os.listdir(directory)]
    for _changed, name in sorted(kept)[:-_MOST_KEPT]:
        os.unlink(f"{directory}/{name}")
