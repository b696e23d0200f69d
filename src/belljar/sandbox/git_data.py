"""Git's data that comes out of a jar, read before the host's git reads it: it trusts what is in its own files. Pure.

Git checks the names in a tree or a pack, but not those in an index that lies on disk: an entry called
`.git/hooks/post-checkout`, or one with `..` in it, is written where it says by the next `git checkout`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from belljar.sandbox.trusted_names import plain_name

BELIEVED = ("index", "packed-refs")
"""Files of `.git` whose content git takes at its word."""
MOST_BYTES = 64 << 20
"""Larger files are not looked at, and do not come back by themselves."""
_LONGEST_NAME = 4096
"""No file on Linux has a longer path, and no index needs one."""
_MOST_NAMES = 2 * MOST_BYTES
"""Bytes of all names in an index together. Version 4 stores only how a name differs from the one before, so a file
may hold far more than its own size: an index of 64 MiB could say terabytes of names."""
_BEFORE_HASH = 40
_LONG_NAME = 0xFFF
_EXTENDED = 0x4000
_SUSPECT = re.compile(rb"(?:^|/)(?:/|$|\.|[Gg])|[^\x20-\x7e]")
"""Names without this hold no part that could be `.git`, `git~1`, `.`, `..` or empty, and need no closer look."""


def index_is_plain(data: bytes, *, hash_size: int = 20) -> bool:
    """Whether every name in this index is that of a file in the work tree, whichever way git comes to read it."""
    try:
        _check_index(data, hash_size)
    except (ValueError, IndexError):
        return False
    return True


def packed_refs_are_plain(data: bytes) -> bool:
    """Whether none of them makes git show one object in the place of another."""
    return b"refs/replace/" not in data


def _check_index(data: bytes, hash_size: int) -> None:
    version, count = _number(data, 4), _number(data, 8)
    end = len(data) - hash_size
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("no index")
    places: dict[int, int] = {}
    at, name, room = 12, b"", _MOST_NAMES
    for position in range(count):
        places[at] = position
        at, name = _entry(data, at, name, version, hash_size)
        room -= len(name)
        if room < 0:
            raise ValueError("more names than the host reads")
        if at > end or not _is_plain(name):
            raise ValueError("a name that is none of a file in the work tree")
    places[at] = count
    for kind, body in _extensions(data, at, end):
        if kind == b"IEOT":
            _check_blocks(body, places, count)
        elif kind == b"EOIE" and _number(body, 0) != at:
            raise ValueError("the entries end elsewhere")
        elif kind == b"link":
            raise ValueError("there are more entries in another file")


def _entry(data: bytes, at: int, before: bytes, version: int, hash_size: int) -> tuple[int, bytes]:
    """Where the next entry is, and the name of this one."""
    flags_at = at + _BEFORE_HASH + hash_size
    flags = int.from_bytes(data[flags_at : flags_at + 2], "big")
    start = flags_at + (4 if flags & _EXTENDED else 2)
    kept = b""
    if version == 4:
        cut, start = _varint(data, start)
        if cut > len(before):
            raise ValueError("more is cut off than there is")
        kept = before[: len(before) - cut]
    stop = data.index(b"\0", start, start + _LONGEST_NAME + 1)
    name = kept + data[start:stop]
    if len(name) > _LONGEST_NAME:
        raise ValueError("a name that is too long for a file")
    if min(len(name), _LONG_NAME) != flags & _LONG_NAME:
        raise ValueError("two lengths for one name")
    following = stop + 1 if version == 4 else at + ((stop - at + 8) & ~7)
    return following, name


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """As git writes the offset of a delta."""
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
        if value > 1 << 31:
            raise ValueError("no length")
    return value, at + 1


def _extensions(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    while at + 8 <= end:
        size = _number(data, at + 4)
        if at + 8 + size > end:
            raise ValueError("an extension that is longer than the file")
        yield data[at : at + 4], data[at + 8 : at + 8 + size]
        at += 8 + size
    if at != end:
        raise ValueError("something after the extensions")


def _check_blocks(body: bytes, places: dict[int, int], count: int) -> None:
    """Several threads read an index in blocks: those have to be the entries that were looked at."""
    done = 0
    for at in range(4, len(body), 8):
        if places.get(_number(body, at)) != done:
            raise ValueError("a block that begins elsewhere")
        done += _number(body, at + 4)
    if done != count:
        raise ValueError("more entries in blocks, or fewer")


def _number(data: bytes, at: int) -> int:
    if len(data) < at + 4:
        raise ValueError("it ends too soon")
    return int.from_bytes(data[at : at + 4], "big")


def _is_plain(name: bytes) -> bool:
    if name and not _SUSPECT.search(name):
        return True
    parts = name.decode("utf-8", "surrogateescape").split("/")
    if parts[-1] == "" and len(parts) > 1:  # a directory, in a sparse index
        parts.pop()
    return not any(part in ("", ".", "..") or plain_name(part) == ".git" for part in parts)
