"""What the host's git is told about a directory: the files that its settings name, and what it takes for a repository.

Git's settings are read here as text. Nothing of them is executed, and git itself is not asked: a workspace may lie in a
repository that somebody else has written.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

from belljar.sandbox.files.trusted_names import plain_name

_MOST_BYTES = 1 << 20
_MOST_FILES = 64
_MOST_DEEP = 10
_NO_PATHS = frozenset({"remote", "branch", "user", "author", "committer", "color", "url", "svn-remote"})
"""Sections whose values are no paths and no commands."""
_COMMANDS = re.compile(
    r"^alias\.|(command|cmd|helper|program|driver|textconv|clean|smudge|process|editor|pager|file|path|hook|external"
    r"|fsmonitor|askpass|template|dir|filter|update|proxy|server)$"
)
"""Keys whose values are files or commands, so that a word of them without a slash may name a file, too."""
_DIRECTORIES = frozenset({"core.hookspath", "init.templatedir"})
_HOOKS = frozenset({
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg",
    "commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update",
    "proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc",
    "post-rewrite", "sendemail-validate", "fsmonitor-watchman", "p4-changelist", "p4-prepare-changelist",
    "p4-post-changelist", "p4-pre-submit", "post-index-change",
})  # fmt: skip
_SECTION = re.compile(r'\s*\[\s*([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_KEY = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:=\s*(.*))?$", re.DOTALL)


class Setting(NamedTuple):
    """One line of git's settings."""

    key: str
    """In small letters, without the subsection: `core.hookspath`, `includeif.path`."""
    value: str


def settings_in(text: str) -> Iterator[Setting]:
    """The settings in a file of git's."""
    section = ""
    for line in _whole_lines(text):
        found = _SECTION.match(line)
        if found:
            section = found[1].partition(".")[0].lower()
        rest = line[found.end() :] if found else line
        if (setting := _KEY.match(_without_comment(rest))) and section:
            yield Setting(f"{section}.{setting[1].lower()}", _unquoted((setting[2] or "").strip()))


def _whole_lines(text: str) -> Iterator[str]:
    """Lines, with those that go on after a backslash put together. A comment does not go on."""
    held: list[str] = []
    for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"):
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1 and _without_comment(line) == line
        held.append(line[:-1] if goes_on else line)
        if not goes_on:
            yield "".join(held)
            held.clear()
    yield "".join(held)


def _without_comment(line: str) -> str:
    quoted = escaped = False
    for position, letter in enumerate(line):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == '"':
            quoted = not quoted
        elif letter in "#;" and not quoted:
            return line[:position]
    return line


def _unquoted(value: str) -> str:
    return re.sub(r'\\(.)|"', lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1] or ""), value)


class Repository(NamedTuple):
    """A repository of the host's, and the directory that it keeps the files of."""

    top: str
    directory: str
    """What `.git` is, or leads to."""
    common: str
    """What all of its worktrees share."""


def repository_of(directory: str) -> Repository | None:
    """The repository that a directory is in, as git finds it: the nearest `.git`, here or above."""
    current = directory
    while True:
        link = os.path.join(current, ".git")
        if os.path.isdir(link):
            return _repository(current, link)
        if os.path.isfile(link) and (text := _read(link)).startswith("gitdir:"):
            named = text.removeprefix("gitdir:").partition("\n")[0].strip()
            return _repository(current, os.path.join(current, named))
        if current in ("/", ""):
            return None
        current = os.path.dirname(current)


def _repository(top: str, directory: str) -> Repository:
    named = _read(os.path.join(directory, "commondir")).strip()
    return Repository(top, directory, os.path.normpath(os.path.join(directory, named)) if named else directory)


class ActedPaths:
    """Paths of a directory that the host's git runs, obeys or includes, because its settings name them."""

    def __init__(self, directory: str) -> None:
        self._roots = tuple(dict.fromkeys((os.path.abspath(directory), os.path.realpath(directory))))
        self._beneath: dict[tuple[str, ...], str] = {}
        self._exact: dict[tuple[str, ...], str] = {}
        self._hooks: set[tuple[str, ...]] = set()
        self.excludes: list[str] = []
        """Files of `core.excludesFile`."""
        self._read: set[str] = set()
        repository = repository_of(self._roots[-1])
        top = repository.top if repository else self._roots[-1]
        for path in _own_files():
            self._add_file(path, top, 0)
        if repository:
            for path in dict.fromkeys((repository.common, repository.directory)):
                for name in ("config", "config.worktree"):
                    self._add_file(os.path.join(path, name), top, 0)
                self._add_linked_hooks(os.path.join(path, "hooks"))

    def why(self, path: str, *, is_directory: bool) -> str:
        """Why git on the host acts on this path of the directory; empty if it does not."""
        if not (self._beneath or self._exact or self._hooks):
            return ""
        names = tuple(map(plain_name, path.split("/")))
        key = self._exact.get(names)
        if key is None:
            longest = min(len(names), max(map(len, self._beneath), default=0))
            key = next((self._beneath[names[:n]] for n in range(1, longest + 1) if names[:n] in self._beneath), None)
        if key is not None and not is_directory:
            return f"the host's git would act on it: its setting {key} names it"
        if names[-1] in _HOOKS and names[:-1] in self._hooks:
            return "the host's git runs it: its hooks lie there"
        return ""

    def _add_file(self, path: str, top: str, depth: int) -> None:
        real = os.path.realpath(path)
        if real in self._read or len(self._read) >= _MOST_FILES or depth > _MOST_DEEP:
            return
        self._read.add(real)
        for key, value in settings_in(_read(real)):
            if key.partition(".")[0] in _NO_PATHS or not value:
                continue
            if key in ("include.path", "includeif.path"):
                included = os.path.join(os.path.dirname(path), _home(value))
                self._note(included, key, beneath=True)
                self._add_file(included, top, depth + 1)
            elif key in _DIRECTORIES:
                self._note(os.path.join(top, _home(value)), key, beneath=True, hooks=key == "core.hookspath")
            else:
                if key == "core.excludesfile":
                    self.excludes.append(os.path.join(top, _home(value)))
                for word in _words(value):
                    if "/" in word or _COMMANDS.search(key):
                        self._note(os.path.join(top, _home(word)), key, beneath="/" in word)

    def _add_linked_hooks(self, directory: str) -> None:
        """A hook that is a link runs the file that it leads to."""
        try:
            names = os.listdir(directory)
        except OSError:
            return
        for name in names[:1000]:
            path = os.path.join(directory, name)
            if os.path.islink(path):
                self._note(os.path.realpath(path), f"hook {name}", beneath=False)

    def _note(self, path: str, key: str, *, beneath: bool, hooks: bool = False) -> None:
        for form in dict.fromkeys((os.path.normpath(path), os.path.realpath(path))):
            for root in self._roots:
                inside = tuple(map(plain_name, form.removeprefix(f"{root}/").split("/"))) if form != root else ()
                if form.startswith(f"{root}/"):
                    (self._beneath if beneath else self._exact).setdefault(inside, key)
                elif form != root:
                    continue
                if hooks:
                    self._hooks.add(inside)


def _own_files() -> Iterator[str]:
    """Settings of the user and of the host."""
    environ = os.environ
    home = os.path.expanduser("~")
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    yield environ.get("GIT_CONFIG_SYSTEM") or "/etc/gitconfig"
    if chosen := environ.get("GIT_CONFIG_GLOBAL"):
        yield chosen
    yield os.path.join(base, "git", "config")
    yield os.path.join(home, ".gitconfig")


def _home(value: str) -> str:
    return os.path.expanduser(value) if value.startswith("~") else value


def _words(value: str) -> list[str]:
    """The words of a command, or the path that the value is."""
    try:
        words = shlex.split(value.removeprefix("!"))
    except ValueError:
        words = value.split()
    inner = [word for one in words if " " in one for word in one.replace(";", " ").replace("&", " ").split()]
    return list(dict.fromkeys((value, *words, *inner)))


def _read(path: str) -> str:
    """A small file of the host's; empty if there is none, or if it is no plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not os.path.isfile(f"/proc/self/fd/{descriptor}"):
                return ""
            return file.read(_MOST_BYTES).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return ""


# --- what git takes for a repository ---

REPOSITORY = ("HEAD", "objects", "refs")
_PARTS = frozenset({"head", "objects", "refs", "config", "config.worktree", "hooks", "info", "packed-refs", "index"})


class Repositories:
    """Finds directories that git takes for a repository whatever they are called: those with HEAD, objects and refs.

    `exists` says whether a path will be there, as a file, a directory or a link. Answers are remembered for each
    directory, because a tree may be 200 directories deep.
    """

    def __init__(self, exists: Callable[[str], bool]) -> None:
        self._exists = exists
        self._known: dict[str, bool] = {}
        self._in_one: dict[str, bool] = {"": False}

    def holds(self, path: str) -> bool:
        """Return True if git would read this path as a part of a repository.

        A directory with a HEAD and a file `commondir` is one as well: the rest lies in the directory that it names.
        """
        directory, _, name = path.rpartition("/")
        small = plain_name(name)
        return small == "commondir" or self._inside(directory) or (small in _PARTS and self._is_one(directory))

    def _inside(self, directory: str) -> bool:
        known = self._in_one.get(directory)
        if known is None:
            parent, _, name = directory.rpartition("/")
            known = self._inside(parent) or (plain_name(name) in _PARTS and self._is_one(parent))
            self._in_one[directory] = known
        return known

    def _is_one(self, directory: str) -> bool:
        known = self._known.get(directory)
        if known is None:
            prefix = f"{directory}/" if directory else ""
            known = all(
                any(self._exists(prefix + form) for form in dict.fromkeys((name, name.lower(), name.upper())))
                for name in REPOSITORY
            )
            self._known[directory] = known
        return known
