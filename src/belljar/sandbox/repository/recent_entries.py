"""Entries of git's index that git must compare by content, marked so that it does wherever the index is copied. Pure.

Git takes a file for unchanged if the time of change and the size in its index are those of the file. It does not
for files as new as the index itself: they may have been written again within the same second. In a copy of the index,
which is newer than all files, git could not tell those. So they get the size 0, which is git's own mark for them.
"""

from __future__ import annotations

import hashlib
import struct

_HEADER = struct.Struct(">4sII")
_SIZE_AT, _ID_AT = 36, 40
_EXTENDED, _NAME_LENGTH = 0x4000, 0x0FFF
_OLDEST, _NEWEST = 2, 4


def mark_recent(index: bytes, written_s: int, *, object_format: str) -> bytes | None:
    """Return an index in which every file as new as `written_s` is to be compared by content.

    Args:
        index: the content of the file.
        written_s: when it was written, in seconds.
        object_format: `sha1` or `sha256`.

    Returns:
        The index; None if it can't be read.
    """
    hashing = hashlib.sha256 if object_format == "sha256" else hashlib.sha1
    id_bytes = hashing().digest_size
    marked = bytearray(index)
    end = len(index) - id_bytes
    try:
        magic, version, count = _HEADER.unpack_from(index)
        if magic != b"DIRC" or not _OLDEST <= version <= _NEWEST:
            return None
        entry = struct.Struct(f">8xI28x{id_bytes}xH")  # the file's time of change in seconds, and flags
        at, changed = _HEADER.size, False
        for _ in range(count):
            modified_s, flags = entry.unpack_from(index, at)
            if modified_s >= written_s:
                marked[at + _SIZE_AT : at + _ID_AT] = bytes(4)
                changed = True
            name_at = at + entry.size + (2 if flags & _EXTENDED else 0)
            if version == _NEWEST:
                at = _end_of_short_name(index, name_at)
            else:
                length = flags & _NAME_LENGTH
                name_end = name_at + length if length < _NAME_LENGTH else index.index(0, name_at)
                at += ((name_end - at) // 8 + 1) * 8  # one to eight zeros, up to a multiple of eight
    except (struct.error, IndexError, ValueError):
        return None
    if at > end:
        return None
    if changed and any(index[end:]):  # zeros: `index.skipHash` leaves the checksum out
        marked[end:] = hashing(marked[:end]).digest()
    return bytes(marked) if changed else index


def _end_of_short_name(index: bytes, at: int) -> int:
    """Return the end of a name of version 4: how much of the name before goes, in 7 bits of each byte, and a text."""
    while index[at] & 0x80:
        at += 1
    return index.index(0, at + 1) + 1
