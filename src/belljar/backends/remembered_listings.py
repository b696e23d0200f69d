"""Directory listings of one opening, as text for the next one: a directory that is the same need not be read again.

Names and inodes are the host's, and the code may have made them. A listing counts only with its stamp: the device, the
inode and the ctime that the directory has now. A text that does not fit what is asked is not used at all.
"""

from __future__ import annotations

import _imp
import contextlib
import ctypes
import os

from belljar.backends.denied_walk import Denied, Listing

LEAST_NAMES = 2000
"""Fewer are found as quickly as they are looked up."""
_MOST_BYTES = 64 << 20
_MOST_FILES = 50
"""Files with listings; the oldest go."""
_MARK = "belljar listings 1"
_FIELD, _RECORD, _VIEW = "\0", "\0\n", "\0\0\n"
"""A name holds no NUL, and every field begins with a slash or a digit."""
_LOCAL = frozenset({
    0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E, 0x794C7630,
})  # fmt: skip
"""ext4, xfs, btrfs, tmpfs, f2fs, zfs, bcachefs and overlayfs. In others a directory may change and its ctime stay."""


class Remembered:
    """Listings of an earlier opening, by what they were made with."""

    def __init__(self, text: str = "") -> None:
        self._views: dict[str, str] = {}
        head, _, rest = text.partition(_VIEW)
        if head == f"{_MARK} {_digest(rest)}":
            for view in rest.split(_VIEW):
                key, separator, records = view.partition(_RECORD)
                if separator:
                    self._views[key] = records
        self._kept: dict[str, str] = {}
        self.changed = False
        """Whether `text` differs from what it was made of."""

    def listings(self, key: str, root: str) -> dict[str, Listing]:
        """Return the listings made with this key, by directory; none if the file system of `root` is no local one."""
        records = self._views.get(key)
        if records is None or not is_local(root):
            return {}
        try:
            return dict(map(_read, records.split(_RECORD)))
        except (ValueError, IndexError):
            return {}

    def keep(self, key: str, root: str, found: Denied) -> None:
        """Have the listings of a walk in the text, if they are worth it."""
        if sum(listing.names for listing in found.listings.values()) < LEAST_NAMES or not is_local(root):
            return
        if found.listed_again == 0 and key in self._views:
            self._kept[key] = self._views[key]
            return
        device = os.lstat(root).st_dev  # what is mounted beneath may be of another kind
        told = (_told(path, one) for path, one in found.listings.items() if one.stamp and one.stamp[0] == device)
        self._kept[key] = _RECORD.join(told)
        self.changed = self.changed or self._kept[key] != self._views.get(key)

    @property
    def text(self) -> str:
        """What to give the next opening."""
        rest = _VIEW.join(f"{key}{_RECORD}{records}" for key, records in self._kept.items() if records)
        return f"{_MARK} {_digest(rest)}{_VIEW}{rest}"


def key_of(host_path: str, jar_path: str, patterns: tuple[str, ...]) -> str:
    """What listings depend on: they say which names are denied."""
    return repr((host_path, jar_path, patterns))


def _digest(text: str) -> str:
    """What a text is that was not cut off: a file may be, when the power fails. Malice is kept out by its mode."""
    return _imp.source_hash(1, os.fsencode(text)).hex()


def _told(path: str, listing: Listing) -> str:
    numbers = (*(listing.stamp or ()), listing.names, len(listing.denied), len(listing.directories))
    names = (*listing.denied, *listing.directories, *listing.sockets)
    return _FIELD.join((f"/{path}", *map(str, numbers), *(f"/{name}" for name in names)))


def _read(record: str) -> tuple[str, Listing]:
    path, device, inode, ctime_ns, names, denied, directories, *told = record.split(_FIELD)
    rest = [name[1:] for name in told]
    first, second = int(denied), int(denied) + int(directories)
    stamp = (int(device), int(inode), int(ctime_ns))
    return path[1:], Listing(stamp, int(names), rest[:first], rest[first:second], rest[second:])


def is_local(path: str) -> bool:
    """Return True if a directory's ctime changes with every name, on this file system."""
    status = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.statfs(os.fsencode(path), status) == 0 and status[0] & 0xFFFFFFFF in _LOCAL


def read_text(path: str) -> str:
    """Return what was kept there; empty if there is nothing, or if somebody else could have written it."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o177022 != 0o100000:
                return ""
            return os.fsdecode(file.read(_MOST_BYTES))
    except OSError:
        return ""


def write_text(path: str, text: str) -> None:
    """Keep a text for the next opening. What can't be written is read anew then."""
    own = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(own, flags, 0o600), "wb") as file:
            file.write(os.fsencode(text))
        os.replace(own, path)
        above = os.path.dirname(path)
        for _time, name in sorted((os.lstat(f"{above}/{one}").st_mtime_ns, one) for one in os.listdir(above))[
            :-_MOST_FILES
        ]:
            os.unlink(f"{above}/{name}")
