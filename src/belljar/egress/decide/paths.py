"""URL paths and query keys, as every server that might read them could understand them. Pure.

Servers differ: one merges slashes, one cuts off what follows a semicolon, one takes `%2F` for a slash. A path that has
several readings is allowed if all of them are, and denied if one of them is; what has no safe reading is refused.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote_to_bytes

_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TWICE = re.compile(r"%[0-9A-Fa-f]{2}")
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
_REMEMBERED_LENGTH = 256
_MAX_PATH = 8 << 10
_MAX_KEYS = 1000
_ENDS = re.compile(r"[. ]+(?=/|\Z)")
"""What Windows leaves out at the end of a name."""
_SLASH = "\ue000"
"""Stands for an encoded slash that is a character of its segment."""
_UNSAFE = re.compile(rf"[\x00-\x1f\x7f\\{_SLASH}]")


class AmbiguousPath(ValueError):  # noqa: N818 a refusal is a result here
    """Two servers would take this path for two different ones."""


def split_target(target: str | bytes) -> tuple[str, str]:
    """The path and the query of an origin-form target (`/a?b=c`, or `*`), as they were sent.

    Raises:
        AmbiguousPath: when it is no such target.

    """
    text = target.decode("latin-1") if isinstance(target, bytes) else target
    path, _, query = text.partition("?")
    if _CONTROL.search(text) or "#" in text or not (path.startswith("/") or text == "*"):
        raise AmbiguousPath(text)
    if query.count("&") + query.count(";") > _MAX_KEYS:
        raise AmbiguousPath("too many keys")
    return path, query


def readings(path: str) -> tuple[str, ...]:
    """The path, percent-decoded, in each way that a server may understand it; the plainest first.

    Raises:
        AmbiguousPath: when a reading climbs (`..`, `.. `), could name a host (`//x`), holds a control character or a
            backslash, is encoded twice or no UTF-8, or is longer than any path.

    """
    return _readings(path) if len(path) <= _REMEMBERED_LENGTH else _readings.__wrapped__(path)


@lru_cache(maxsize=1024)
def _readings(path: str) -> tuple[str, ...]:
    if _BAD_PERCENT.search(path) or len(path) > _MAX_PATH:
        raise AmbiguousPath(path)
    try:
        decoded = unquote_to_bytes(path.encode("latin-1")).decode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise AmbiguousPath(path) from None
    if _TWICE.search(decoded) or _UNSAFE.search(decoded):
        raise AmbiguousPath(path)
    whole = path if decoded == path else _decoded_within_segments(path)
    found = dict.fromkeys((whole, decoded))
    for also in (_composed, _without_query, _without_parameters):
        found |= dict.fromkeys([also(reading) for reading in found])
    for reading in found:
        if reading.startswith("//") or any(segment and not segment.strip(". ") for segment in reading.split("/")):
            raise AmbiguousPath(path)
    for also in (_merged, _without_ends):
        found |= dict.fromkeys([also(reading) for reading in found])
    return tuple(found)


def _composed(path: str) -> str:
    """Return the path with plain characters for those that look like them (full-width ones)."""
    if path.isascii():
        return path
    plain = unicodedata.normalize("NFKC", path)
    if _UNSAFE.search(plain.replace(_SLASH, "")) or _TWICE.search(plain):
        raise AmbiguousPath(path)
    return plain


def _without_query(path: str) -> str:
    """Return what is left of a path whose encoded `?` or `#` was decoded before the path was cut there."""
    return re.split("[?#]", path, maxsplit=1)[0] or "/"


def _without_ends(path: str) -> str:
    return _ENDS.sub("", path) or "/"


def _decoded_within_segments(path: str) -> str:
    parts = re.split(r"%2[fF]", path)
    return _SLASH.join(unquote_to_bytes(part.encode("latin-1")).decode("utf-8", "replace") for part in parts)


def _without_parameters(path: str) -> str:
    return "/".join(segment.partition(";")[0] for segment in path.split("/")) if ";" in path else path


def _merged(path: str) -> str:
    return re.sub(r"//+", "/", path)


def allowed_by(paths: tuple[str, ...], all_readings: tuple[str, ...]) -> bool:
    """Whether every reading fits one of the globs."""
    return all(any(matches(glob, reading) for glob in paths) for reading in all_readings)


def denied_by(paths: tuple[str, ...], all_readings: tuple[str, ...]) -> bool:
    """Whether any reading fits one of the globs, in any case, with or without a slash at its end."""
    for reading in all_readings:
        bare = reading.rstrip("/")
        if any(_pattern(glob, re.IGNORECASE).match(form) for glob in paths for form in (reading, bare, bare + "/")):
            return True
    return False


def matches(glob: str, path: str) -> bool:
    """Whether the path fits: `*` is any part of one segment, `**` as a whole segment any number of them."""
    return _pattern(glob).match(path) is not None


@lru_cache(maxsize=4096)
def _pattern(glob: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is matched in time linear to the path: what fits first is kept (`(?>…)`)."""
    groups: list[list[str]] = [[]]
    for segment in glob.split("/")[1:]:
        if segment == "**":
            groups.append([])
        else:
            groups[-1].append("/" + _segment(segment))
    first, *others = ("".join(group) for group in groups)
    if not others:
        return re.compile(first + r"\Z", flags)
    *middle, last = others
    text = first + "".join(f"(?>(?:/[^/]*)*?{group}(?=/|\\Z))" for group in middle if group)
    if glob.endswith("/**"):
        return re.compile(text + r"/(?s:.*)\Z", flags)
    return re.compile(rf"{text}(?:/[^/]*)*?{last}\Z", flags)


def _segment(glob: str) -> str:
    first, *others = (re.escape(_decoded_within_segments(part)) for part in glob.split("*"))
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>[^/]*?{part})" for part in middle if part) + rf"[^/]*{last}(?=/|\Z)"


def query_keys(query: str) -> frozenset[str]:
    """The keys of a query string, in each way that a server may split it.

    Raises:
        AmbiguousPath: when one is not validly percent-encoded.

    """
    if not query:
        return frozenset()
    if query.count("&") + query.count(";") > _MAX_KEYS:
        raise AmbiguousPath("too many keys")
    pieces = {*query.split("&"), *re.split("[&;]", query)}
    return frozenset(_key(piece) for piece in pieces if piece)


def _key(piece: str) -> str:
    raw = piece.partition("=")[0]
    if _BAD_PERCENT.search(raw):
        raise AmbiguousPath(piece)
    try:
        return unquote_to_bytes(raw.replace("+", " ").encode("latin-1")).decode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise AmbiguousPath(piece) from None
