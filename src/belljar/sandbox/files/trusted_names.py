"""Files that tools on the host act upon by themselves: code in a jar must not write them unseen.

The names are in `acted_upon.txt`, each with a reason. A file that makes git, an editor, an agent or a build service
*do* something does not come back, unless a person says so for that file. To delete such a file changes what the tool
does, too.
"""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache
from typing import NamedTuple

_GIT = "the host's git would act on it"
BYTECODE = "__pycache__"
NOT_READABLE = "Python on the host would run it, and nobody can read it"
_IGNORED = frozenset((
    0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010),
    *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0,
    *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000),
))  # fmt: skip
"""Characters that some file systems do not see in a name: all of Unicode's Default_Ignorable_Code_Point.

HFS+ leaves out some of them. A directory of ext4 or f2fs that folds case leaves out all of them.
"""


class ActedUpon(NamedTuple):
    """One entry of the table."""

    name: str
    """As it is written there, in small letters: `.mvn/`, `tools/bazel`, `eslint.config.*`."""
    who: str
    what: str

    @property
    def why(self) -> str:
        """The reason, as people read it."""
        return f"{self.who} on the host would act on it: {self.what}"


class _Table(NamedTuple):
    files: dict[str, ActedUpon]
    directories: dict[str, ActedUpon]
    file_patterns: tuple[tuple[re.Pattern[str], ActedUpon], ...]
    directory_patterns: tuple[tuple[re.Pattern[str], ActedUpon], ...]
    parents: dict[str, ActedUpon]
    """Directories that hold one with a name of two parts, such as `.github`."""


@cache
def entries() -> tuple[ActedUpon, ...]:
    """Every entry of the table, in its order."""
    found = []
    with open(os.path.join(os.path.dirname(__file__), "acted_upon.txt"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                who, what, names = (field.strip() for field in line.split("|"))
                found += [ActedUpon(name, who, what) for name in names.split()]
    return tuple(found)


@cache
def _table() -> _Table:
    files: dict[str, ActedUpon] = {}
    directories: dict[str, ActedUpon] = {}
    parents: dict[str, ActedUpon] = {}
    file_patterns: list[tuple[re.Pattern[str], ActedUpon]] = []
    directory_patterns: list[tuple[re.Pattern[str], ActedUpon]] = []
    for entry in entries():
        name = entry.name.rstrip("/")
        is_directory = entry.name.endswith("/")
        if "*" in name:
            pattern = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
            (directory_patterns if is_directory else file_patterns).append((pattern, entry))
        else:
            (directories if is_directory else files).setdefault(name, entry)
        if "/" in name:
            parents.setdefault(name.partition("/")[0], entry)
    return _Table(files, directories, tuple(file_patterns), tuple(directory_patterns), parents)


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """What a file system that is less exact than Linux's own may take a name for: in small letters, and no more."""
    if not name.isascii():
        from unicodedata import normalize

        name = normalize("NFKC", "".join(letter for letter in name if ord(letter) not in _IGNORED))
    name = name.casefold().partition(":")[0].rstrip(". ") or name
    return ".git" if name in ("git~1", ".git") else name


def in_bytecode(path: str) -> str:
    """The directory of bytecode that a path is in, or is; empty if there is none. Nothing of it comes back, ever."""
    if BYTECODE not in path.casefold() and path.isascii():
        return ""
    names = path.split("/")
    for position, name in enumerate(names, 1):
        if plain_name(name) == BYTECODE:
            return "/".join(names[:position])
    return ""


def acted_upon(path: str, *, is_directory: bool, kind: str = "added") -> str:
    """Why this path must not come back to the host by itself; empty if it may.

    Args:
        path: relative to the workspace.
        is_directory: whether it is one; a directory that is merely there makes no tool act.
        kind: what happened to it, as in `Change`.

    """
    directory, _, name = path.rpartition("/")
    above = _inside(directory) if directory else _NOWHERE
    if above.why:
        return above.why
    deleted = kind == "deleted"
    small = plain_name(name)
    if small == BYTECODE:
        return NOT_READABLE
    if small == ".git":
        return _GIT
    two = f"{above.name}/{small}" if directory else small
    if entry := _file(small) or _file(two):
        return entry.why
    if (entry := _directory(small) or _directory(two)) and (deleted or not is_directory):
        return entry.why
    if deleted and (entry := _table().parents.get(small)):
        return f"{entry.who} on the host acts on what is in it"
    return ""


class _Inside(NamedTuple):
    """What is known of every path in a directory."""

    name: str = ""
    """The directory's own name."""
    why: str = ""
    """Why nothing in it may come back by itself."""


_NOWHERE = _Inside()


@lru_cache(maxsize=512)
def _inside(directory: str) -> _Inside:
    """Asked for each file, answered once for each directory: a tree may be 200 directories deep."""
    parent, _, name = directory.rpartition("/")
    above = _inside(parent) if parent else _NOWHERE
    small = plain_name(name)
    if above.why:
        return _Inside(small, above.why)
    if small == BYTECODE:
        return _Inside(small, NOT_READABLE)
    if small == ".git":
        return _Inside(small, _GIT)
    two = f"{above.name}/{small}" if parent else small
    entry = _file(small) or _file(two) or _directory(small) or _directory(two)
    return _Inside(small, entry.why if entry else "")


def _file(name: str) -> ActedUpon | None:
    return _table().files.get(name) or _by_pattern(name, directories=False)


def _directory(name: str) -> ActedUpon | None:
    return _table().directories.get(name) or _by_pattern(name, directories=True)


@lru_cache(maxsize=4096)
def _by_pattern(name: str, *, directories: bool) -> ActedUpon | None:
    beginnings, endings = _ends_of_patterns(directories=directories)
    if not name.startswith(beginnings) and not name.endswith(endings):
        return None  # almost always, and without forty expressions
    patterns = _table().directory_patterns if directories else _table().file_patterns
    return next((entry for pattern, entry in patterns if pattern.fullmatch(name)), None)


@cache
def _ends_of_patterns(*, directories: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How names begin, and how others end, that a pattern may match: each pattern is in one of the two."""
    beginnings: set[str] = set()
    endings: set[str] = set()
    for entry in entries():
        name = entry.name.rstrip("/")
        if "*" in name and entry.name.endswith("/") == directories:
            beginning, _, rest = name.partition("*")
            ending = rest.rpartition("*")[2]
            (beginnings if beginning else endings).add(beginning or ending)
    return tuple(beginnings), tuple(endings)


def link_acted_upon(path: str, target: str) -> str:
    """Why a link must not come back by itself: whoever writes to it writes what it leads to. It leaves no workspace."""
    parts = path.split("/")
    if any(plain_name(part) == ".git" for part in parts):
        return "the host's git would write through it"
    names = [name for name in target.split("/") if name not in ("", ".")]
    upward = sum(name == ".." for name in names)
    leads = [*parts[: len(parts) - 1 - upward], *names[upward:]]
    if any(plain_name(part) == ".git" for part in leads):
        return "it leads to what the host's git acts on"
    if why := acted_upon("/".join(leads), is_directory=True, kind="deleted"):
        return f"it leads to a file: {why}"
    return ""
