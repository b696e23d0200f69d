r"""Deny globs: which paths the jar never sees. Pure: it looks at names, never at files.

    **/NAME      NAME at any depth          *      any part of one name (a leading dot too)
    NAME         the same                   ?      one character
    a/b          the same as **/a/b         [abc]  one of these; [!abc] one that is not
    /a/b         this path, of the host     {a,b}  either
                 or of the jar              \       the next character as it is

A pattern that matches a directory denies all beneath it, and `NAME/**` denies NAME itself too: an empty `.ssh` that can
be seen helps nobody.

Braces are expanded first, so that what is left is names and stars. Between two stars the leftmost match is as good as
any, for characters in a name and for names in a path; so every step is an atomic group and the time of a match grows
with the path, never exponentially.

A path that lacks the text of every pattern matches none, and is told so without a regular expression: most commands ask
about one path, and to import `re` and compile every pattern takes longer than all else that they do with a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    import re

LONGEST_PATTERN = 512
MOST_ALTERNATIVES = 64
_SPECIAL = frozenset("*?[]{}\\")
_NESTING = frozenset("{}[\\")
_NO_NAMES = frozenset(("", ".", ".."))


class GlobError(ValueError):
    """The pattern can't be parsed; the text says why, fit for the middle of a sentence."""


class DenyGlobs:
    """A list of deny patterns, compiled. The index of a pattern is its place in the list.

    Raises:
        GlobError: when a pattern can't be parsed.

    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._parsed = tuple(parse(pattern) for pattern in self.patterns)

    def match(self, path: str) -> int | None:
        """The first pattern that denies the absolute `path` or a directory above it."""
        path = _normal(path)
        hit = self._regex.match(path) if self._could_match(path) else None
        found = [hit.lastindex - 1] if hit and hit.lastindex else []
        found += [self._names[name] for name in path.split("/") if name in self._names]
        whole = f"{path}/"
        found += [index for text, index in self._deep.items() if text in whole]
        found += [index for text, index in self._rooted.items() if whole.startswith(text)]
        return min(found, default=None)

    def denies(self, host_path: str | None, jar_path: str) -> int | None:
        """The first pattern that denies a file that the host and the jar know by these names."""
        paths = (jar_path,) if host_path is None or host_path == jar_path else (host_path, jar_path)
        found = [self.match(path) for path in paths]
        return min((index for index in found if index is not None), default=None)

    def within(self, source: str | None, path: str) -> DenyGlobs:
        """The patterns as they hold inside the mount of `source` at the jar's `path`; indexes stay the same.

        An absolute pattern that covers all of the source (or of the path) says "nothing else of it", and is left out:
        `/home/**` does not erase a project that someone mounted from their home.
        """
        roots = [_normal(root) for root in (source, path) if root is not None]
        covering = {index for index in self._absolute if any(self._covers(index, root) for root in roots)}
        return self._keeping(lambda index: index not in covering)

    def may_end_at(self, name: str) -> bool:
        """Whether a pattern can match a path whose last name is this one: a quick no for most files of a walk."""
        return name in self._names or name in self._last_names or self._ends.match(name) is not None

    def literal_names(self) -> list[str]:
        """The names that are denied at every depth (`**/NAME`, `**/NAME/**`), which a walk can look up."""
        return list(self._names)

    def has_wildcards(self) -> bool:
        """Whether a pattern is neither such a name nor an absolute path without wildcards."""
        return any(
            _literal_name(parts) is None and not (parts and parts[0] != "**" and all(map(_is_literal, parts)))
            for alternatives in self._parsed
            for parts in alternatives
        )

    def is_absolute(self, index: int) -> bool:
        """Whether the pattern is bound to one place, not to a name."""
        return self.patterns[index].startswith("/")

    def by_name(self) -> DenyGlobs:
        """Only the patterns that hold wherever a name is; indexes stay the same."""
        return self._keeping(lambda index: not self.is_absolute(index))

    def _keeping(self, keep: Callable[[int], bool]) -> DenyGlobs:
        kept = DenyGlobs(())
        kept.patterns = self.patterns
        kept._parsed = tuple(parts if keep(index) else () for index, parts in enumerate(self._parsed))
        return kept

    def _could_match(self, path: str) -> bool:
        """Whether the path has all the text of some pattern. Not asked any more once there is an expression for all."""
        if "_regex" in vars(self):
            return True
        path += "/"
        return any(all(text in path for text in texts) for texts in self._texts)

    def _covers(self, index: int, root: str) -> bool:
        """Whether an absolute pattern denies all of a directory."""
        if all(_is_literal(name) for parts in self._parsed[index] for name in parts):
            return any(f"{root}/".startswith(_text(parts)) for parts in self._parsed[index])
        return _compiled(_alternation([self._parsed[index]])).match(root) is not None

    @cached_property
    def _absolute(self) -> tuple[int, ...]:
        return tuple(index for index in range(len(self.patterns)) if self.is_absolute(index))

    @cached_property
    def _ends(self) -> re.Pattern[str]:
        last = {parts[-1] for alternatives in self._rest for parts in alternatives}
        return _compiled("|".join(_path_regex((name,)).removeprefix("/") for name in sorted(last)) or "(?!)")

    @cached_property
    def _names(self) -> dict[str, int]:
        names: dict[str, int] = {}
        for index, alternatives in enumerate(self._parsed):
            for parts in alternatives:
                if (name := _literal_name(parts)) is not None:
                    names.setdefault(name, index)
        return names

    @cached_property
    def _deep(self) -> dict[str, int]:
        """Alternatives like `**/.config/gh`, as the text that a path has which they match, if it ends in a slash."""
        return self._literal(lambda parts: parts[0] == "**" and len(parts) > 2, lambda parts: _text(parts[1:]))

    @cached_property
    def _rooted(self) -> dict[str, int]:
        """Alternatives like `/home/**`, as the text with which a path begins that they match."""
        return self._literal(lambda parts: parts[0] != "**", _text)

    def _literal(self, wanted: Callable[[Parts], bool], text: Callable[[Parts], str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for index, alternatives in enumerate(self._parsed):
            for parts in alternatives:
                if wanted(parts) and not _needs_expression(parts):
                    found.setdefault(text(parts), index)
        return found

    @cached_property
    def _last_names(self) -> frozenset[str]:
        return frozenset(text.split("/")[-2] for text in (*self._deep, *self._rooted))

    @cached_property
    def _texts(self) -> list[list[str]]:
        """For each alternative that needs an expression, text that every path has which it matches."""
        return [list(_texts(parts)) for alternatives in self._rest for parts in alternatives]

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return _compiled(_alternation(self._rest))

    @cached_property
    def _rest(self) -> list[list[Parts]]:
        """The alternatives that need an expression, for each pattern."""
        return [[parts for parts in alternatives if _needs_expression(parts)] for alternatives in self._parsed]


Parts = tuple[str, ...]


@lru_cache(maxsize=1024)
def parse(pattern: str) -> tuple[Parts, ...]:
    """The alternatives of a pattern, each the names of a path from the root; the trailing `**` is dropped."""
    if not pattern:
        raise GlobError("wanted a pattern, found nothing")
    if len(pattern) > LONGEST_PATTERN:
        raise GlobError(f"wanted at most {LONGEST_PATTERN} characters, found {len(pattern)}")
    if "\0" in pattern:
        raise GlobError("wanted a path pattern, found a NUL character")
    return tuple(_parts(alternative) for alternative in _expand(pattern))


def _parts(pattern: str) -> Parts:
    if pattern.startswith("**/") and _is_literal(rest := pattern[3:]):  # most are like this
        names = rest.split("/")
        if _NO_NAMES.isdisjoint(names):
            return ("**", *names)
    if "//" in pattern:
        raise GlobError("wanted a name between slashes, found '//'")
    names = pattern.strip("/").split("/")
    if not pattern.startswith("/"):
        names.insert(0, "**")
    parts = [name for at, name in enumerate(names) if name != "**" or at == 0 or names[at - 1] != "**"]
    while parts and parts[-1] == "**":
        parts.pop()
    if not parts or parts == [""]:
        raise GlobError("wanted a pattern that leaves something, found one that denies every path")
    for name in parts:
        if name in (".", ".."):
            raise GlobError(f"wanted names, found '{name}'")
        if name != "**":
            if "**" in name.replace("\\*", ""):
                raise GlobError(f"wanted '**' alone between slashes, found '{name}'")
            if not _is_literal(name):
                _tokens(name)
    return tuple(parts)


def _expand(pattern: str) -> list[str]:
    """Every combination of the braces' alternatives; they nest."""
    if _NESTING.isdisjoint(pattern):
        return [pattern]
    if pattern.count("{") == pattern.count("}") == 1 and "[" not in pattern and "\\" not in pattern:
        before, _, rest = pattern.partition("{")
        inside, closed, after = rest.partition("}")
        if closed and inside.count(",") < MOST_ALTERNATIVES:
            return [f"{before}{choice}{after}" for choice in inside.split(",")]
    done, waiting = [], [pattern]
    while waiting:
        current = waiting.pop(0)
        if (span := _first_braces(current)) is None:
            done.append(current)
        else:
            start, end, commas = span
            cuts = [start, *commas, end]
            choices = [current[a + 1 : b] for a, b in pairwise(cuts)]
            waiting += [current[:start] + choice + current[end + 1 :] for choice in choices]
        if len(done) + len(waiting) > MOST_ALTERNATIVES:
            raise GlobError(f"wanted at most {MOST_ALTERNATIVES} alternatives, found more")
    return done


def _first_braces(pattern: str) -> tuple[int, int, list[int]] | None:
    commas: list[int] = []
    depth, start, at = 0, -1, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 1
        elif character == "[":
            at = _class_end(pattern, at)
        elif character == "{":
            start = at if depth == 0 else start
            depth += 1
        elif character == "}":
            depth -= 1
            if depth < 0:
                raise GlobError("wanted a '{' before '}'")
            if depth == 0:
                return start, at, commas
        elif character == "," and depth == 1:
            commas.append(at)
        at += 1
    if depth:
        raise GlobError("wanted a '}' after '{'")
    return None


def _class_end(pattern: str, start: int) -> int:
    """Where the `[` at `start` is closed; a `]` that comes first is one of its characters."""
    first = start + 2 if pattern[start + 1 : start + 2] in ("!", "^") else start + 1
    end = pattern.find("]", first + 1)
    if end < 0:
        raise GlobError("wanted a ']' after '['")
    if "/" in pattern[start:end]:
        raise GlobError("wanted characters of a name between '[' and ']', found '/'")
    return end


def _tokens(name: str) -> list[str]:
    """A regular expression for each star, character or class of one name."""
    tokens, at = [], 0
    while at < len(name):
        character = name[at]
        if character == "*":
            tokens.append("*")
        elif character == "?":
            tokens.append("[^/]")
        elif character == "[":
            end = _class_end(name, at)
            tokens.append(_class(name[at + 1 : end]))
            at = end
        elif character == "\\":
            at += 1
            if at == len(name):
                raise GlobError("wanted a character after '\\'")
            tokens.append(_escaped(name[at]))
        else:
            tokens.append(_escaped(character))
        at += 1
    return tokens


def _escaped(character: str) -> str:
    return character if character.isalnum() or character == "_" else f"\\{character}"


def _class(inside: str) -> str:
    negated = inside[:1] in ("!", "^")
    inside = inside[1:] if negated else inside
    pieces, at = "", 0
    while at < len(inside):
        low, high, step = inside[at], inside[at], 1
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            high, step = inside[at + 2], 3
        if low > high:
            raise GlobError(f"wanted a range from low to high, found '{inside[at : at + 3]}'")
        pieces += f"{_escaped(low)}-{_escaped(high)}"
        at += step
    return f"[^/{pieces}]" if negated else f"(?!/)[{pieces}]"


def _name_regex(name: str) -> str:
    """`/` and one name: each star takes the least that lets the fixed text after it match, and never gives it back."""
    fixed = [""]
    for piece in _tokens(name):
        if piece == "*":
            fixed.append("")
        else:
            fixed[-1] += piece
    middle = "".join(f"(?>[^/]*?{text})" for text in fixed[1:-1])
    last = f"[^/]*{fixed[-1]}" if len(fixed) > 1 else ""
    return f"/{fixed[0]}{middle}{last}(?=/|\\Z)"


def _path_regex(parts: Parts) -> str:
    groups: list[list[str]] = [[]]
    for part in parts:
        if part == "**":
            groups.append([])
        else:
            groups[-1].append(_name_regex(part))
    deep = "".join(f"(?>(?:/[^/]+)*?{''.join(group)})" for group in groups[1:])
    return "".join(groups[0]) + deep


def _alternation(patterns: Sequence[Iterable[Parts]]) -> str:
    """One expression for all; the number of the group that matched is the pattern's index plus one."""
    never = "(?!)"
    return "|".join(f"({'|'.join(map(_path_regex, alternatives)) or never})" for alternatives in patterns) or never


def _compiled(expression: str) -> re.Pattern[str]:
    import re

    return re.compile(expression)


def _texts(parts: Parts) -> Iterator[str]:
    """What a path that matches has in it, if it ends in a slash: whole names, and how the others begin and end."""
    for part in parts:
        if _is_literal(part):
            yield f"/{part}/"
        elif part != "**":
            wild = [at for at, character in enumerate(part) if character in _SPECIAL]
            yield f"/{part[: wild[0]]}"
            yield f"{part[wild[-1] + 1 :]}/"


def _is_literal(name: str) -> bool:
    return not _SPECIAL.intersection(name)


def _needs_expression(parts: Parts) -> bool:
    return not all(_is_literal(name) for name in (parts[1:] if parts[0] == "**" else parts))


def _text(parts: Parts) -> str:
    return f"/{'/'.join(parts)}/"


def _literal_name(parts: Parts) -> str | None:
    return parts[1] if len(parts) == 2 and parts[0] == "**" and _is_literal(parts[1]) else None


def _normal(path: str) -> str:
    return "/" + "/".join(name for name in path.split("/") if name not in ("", "."))
