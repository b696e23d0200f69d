"""Return whether git ignores a path: what it ignores, `git status` and `git diff` do not show.

The host's own `.gitignore` files decide, as they are in its directory, and not those of the jar. They are read here as
text, within limits, so that no settings of a repository are obeyed. Where the limits are passed, a path counts as
ignored: then a person is asked.
"""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache
from typing import IO, NamedTuple

from belljar.backends.hostile_files import open_beneath
from belljar.sandbox.files.git_settings import repository_of

_MOST_BYTES = 1 << 20
_MOST_RULES = 20_000
_LONGEST = 1024
_TOO_LONG = "x" * (_LONGEST + 1)
"""A line that passes the limit, in place of a file that does."""
_MOST_TRIED = 5_000_000
"""Rules that are tried for paths, in all: some seconds."""


_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t-\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class IgnoreRule(NamedTuple):
    """One line of a `.gitignore`."""

    pattern: re.Pattern[str]
    only_directories: bool
    negated: bool


class Ignored:
    """The ignored paths beneath a directory of the host's."""

    def __init__(self, root: int, path: str, excludes: list[str]) -> None:
        """`root` is the directory's descriptor, `path` its path, `excludes` the files of `core.excludesFile`."""
        self._root = root
        real = os.path.realpath(path)
        repository = repository_of(real)
        self._rules: dict[str, list[tuple[str, IgnoreRule]]] = {}
        """By directory: the rules for what is in it, each with the directory that it is written in."""
        self._tried = 0
        self._known: dict[str, bool] = {}
        self._count = 0
        self.overflowed = False
        top = repository.top if repository else real
        inside = os.path.relpath(real, top)
        self._above = () if inside == "." else tuple(inside.split(os.sep))
        """The names that lead from the top of the repository to the directory."""
        own = [*(excludes or [_default_excludes()])]
        if repository:
            own.append(os.path.join(repository.common, "info", "exclude"))
        self._base = [rule for file in own for rule in self._parsed(_read(file), "")]
        self._parents: list[tuple[str, IgnoreRule]] = []
        for depth in range(len(self._above)):
            place = "/".join(self._above[:depth])
            text = _read(os.path.join(top, place, ".gitignore"))
            self._parents += self._parsed(text, place)

    def __call__(self, path: str, *, is_directory: bool) -> bool:
        """Return True if git ignores the path, or a directory above it."""
        if self.overflowed:
            return True
        known = self._known.get(path) if is_directory else None
        if known is None:
            parent = path.rpartition("/")[0]
            known = bool(parent) and self(parent, is_directory=True)
            known = known or self._matches("/".join((*self._above, path)), parent, is_directory=is_directory)
            if is_directory:
                self._known[path] = known
        return known

    def _matches(self, whole: str, parent: str, *, is_directory: bool) -> bool:
        """The last rule that matches decides; a file that lies deeper speaks later."""
        rules = self._of(parent)
        if self.overflowed:
            return True
        for place, rule in rules:
            self._tried += 1
            if (found := _verdict(rule, place, whole, is_directory=is_directory)) is not None:
                return found
        if self._tried > _MOST_TRIED:
            self.overflowed = True
        return False

    def _of(self, directory: str) -> list[tuple[str, IgnoreRule]]:
        """The rules for what is in a directory, the strongest first. A directory without rules has those above it."""
        known = self._rules.get(directory)
        if known is None:
            above = self._of(directory.rpartition("/")[0]) if directory else [*self._base, *self._parents][::-1]
            text = self._host_text(f"{directory}/.gitignore" if directory else ".gitignore")
            place = "/".join((*self._above, directory)) if directory else "/".join(self._above)
            known = [*self._parsed(text, place)[::-1], *above] if text else above
            self._rules[directory] = known
        return known

    def _host_text(self, path: str) -> str:
        try:
            descriptor = open_beneath(self._root, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return ""
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return _text(file)

    def _parsed(self, text: str, place: str) -> list[tuple[str, IgnoreRule]]:
        """The rules of a file, as many as there is room for."""
        rules: list[tuple[str, IgnoreRule]] = []
        for line in () if self.overflowed else text.split("\n"):
            if (rule := parse(line)) is not None:
                rules.append((place, rule))
                self._count += 1
            if self._count > _MOST_RULES or (len(line) > _LONGEST and not line.startswith("#")):
                self.overflowed = True
                break
        return rules


def _verdict(rule: IgnoreRule, place: str, whole: str, *, is_directory: bool) -> bool | None:
    """What a rule says about a path; None if it does not match."""
    if rule.only_directories and not is_directory:
        return None
    inside = whole.removeprefix(f"{place}/") if place else whole
    return None if rule.pattern.fullmatch(inside) is None else not rule.negated


@lru_cache(maxsize=2048)
def parse(line: str) -> IgnoreRule | None:
    """The rule of a line; None if it has none."""
    line = line.removesuffix("\r")
    if line.startswith("#") or len(line) > _LONGEST:
        return None
    stripped = line.rstrip(" ")
    if stripped.endswith("\\") and stripped != line:  # a space that is quoted
        stripped += " "
    negated = stripped.startswith("!")
    text = stripped[negated:]
    only_directories = text.endswith("/")
    text = text.removesuffix("/")
    if not text:
        return None
    anchored = "/" in text
    text = text.removeprefix("/")
    pattern = _anchored(text) if anchored else f"(?:[^/]++/)*+{_name(text)}"
    try:
        return IgnoreRule(re.compile(pattern, re.DOTALL), only_directories, negated)
    except re.error:
        return None


def _anchored(text: str) -> str:
    """Git compares the text before the first wildcard by itself, so `a**/b` begins with `a` and goes on with `**/b`."""
    plain = re.split(r"[*?\[\\]", text, maxsplit=1)[0]
    rest = text[len(plain) :]
    if not rest.startswith("**"):
        return _expression(text)
    return re.escape(plain) + (f"/?{_expression(rest)}" if rest.strip("*/") else ".*")


def _names(text: str) -> list[str]:
    """The names of a pattern. A slash in brackets does not end one."""
    names, start, at = [], 0, 0
    while at < len(text):
        if text[at] == "/":
            names.append(text[start:at])
            start = at + 1
        at = _bracket(text, at)[1] if text[at] == "[" else at + 1 + (text[at] == "\\")
    return [*names, text[start:]]


def _expression(text: str) -> str:
    """An anchored pattern: `**` between slashes is any number of names. As with stars, the leftmost match is enough."""
    runs: list[list[str]] = [[]]
    for name in _names(text):
        if len(name) > 1 and not name.strip("*"):
            runs.append([])
        else:
            runs[-1].append(_name(name))
    first, *rest = ["/".join(run) for run in runs]
    if not rest:
        return first
    *middle, last = rest
    made = f"{first}/" if first else ""
    made += "".join(f"(?>(?:[^/]++/)*?{run}/)" for run in middle if run)
    return made + (f"(?:[^/]++/)*{last}" if last else ".+")


def _name(text: str) -> str:
    """One name. After each star the leftmost match is as good as any, so that time does not explode."""
    made, at = "", 0
    star = False
    piece = ""
    while at < len(text):
        letter = text[at]
        if letter == "*":
            made += _piece(piece, after_star=star)
            piece, star = "", True
            at += 1
            continue
        if letter == "?":
            piece += "[^/]"
        elif letter == "[":
            found, at = _bracket(text, at)
            piece += found
            continue
        elif letter == "\\" and at + 1 < len(text):
            at += 1
            piece += re.escape(text[at])
        else:
            piece += re.escape(letter)
        at += 1
    # The last piece must reach the end, so it is found from there and not by the leftmost match.
    return made + (f"[^/]*{piece}" if star else piece)


def _piece(piece: str, *, after_star: bool) -> str:
    return f"(?>[^/]*?{piece})" if after_star else piece


def _bracket(text: str, at: int) -> tuple[str, int]:
    """One of some characters, as an expression, and where it ends. To git, one that does not close matches nothing."""
    at += 1
    negated = text[at : at + 1] in ("!", "^")
    at += negated
    body, first = "", at
    while at < len(text):
        if text[at] == "]" and at > first:
            return f"(?!/)[{'^' if negated else ''}{body}]", at + 1
        closing = text.find("]", at + 2)
        if text.startswith("[:", at) and closing > at + 2 and text[closing - 1] == ":":
            if (named := _CLASSES.get(text[at + 2 : closing - 1])) is None:
                return "(?!)", len(text)
            body += named
            at = closing + 1
            continue
        low, at = _character(text, at)
        body += re.escape(low)  # even if it begins a range that is none
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in ("", "]"):
            high, at = _character(text, at + 1)
            body += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
    return "(?!)", len(text)


def _character(text: str, at: int) -> tuple[str, int]:
    if text[at] == "\\" and at + 1 < len(text):
        at += 1
    return text[at], at + 1


def _default_excludes() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "git", "ignore")


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return _text(file)


def _text(file: IO[bytes]) -> str:
    data = file.read(_MOST_BYTES + 1)
    return data.decode("utf-8", "surrogateescape") if len(data) <= _MOST_BYTES else _TOO_LONG
