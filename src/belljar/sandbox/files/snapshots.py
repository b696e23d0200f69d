"""Snapshots: the files of a workspace, as one file of the host's. A line of JSON, and then a tar archive.

A file with holes is stored as its data alone; the member's header `BELLJAR.data` says where each piece belongs, and how
large the file is. So a terabyte of nothing takes neither the room nor the time of one.

Reading them out of a jar, everything is the guest's: through no link, bounded, and no device or setuid bit comes along.
Putting them into another jar is done inside of that one, by a run of its own, so that no path in them leads the host
anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

from belljar.backends.contract import ChangedTree, Entry
from belljar.backends.hostile_files import MAX_ENTRIES, Range, data_ranges, open_beneath, parts, walk
from belljar.errors import AuditError, SandboxUnavailableError, UsageError
from belljar.sandbox.files.unfinished import beside, sweep
from belljar.sandbox.record import recording
from belljar.state import state_directory

_LONGEST_HEAD = 64 << 20
FORMAT, _FORMATS = 2, (1, 2)
"""Format 1 has no files with holes."""
LATEST = 1 << 40
"""No time that is told is later, in seconds: the year 36812."""

RESTORE = r"""
import json, os, shutil, stat, sys, tarfile
top = sys.argv[1]
source = open(0, "rb", closefd=False)
head = json.loads(source.readline())
def clear(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
for path in head["deleted"]:
    clear(os.path.join(top, path))
modes = []
with tarfile.open(fileobj=source, mode="r|") as archive:
    for member in archive:
        path = os.path.join(top, member.name)
        if member.isdir():
            if os.path.islink(path) or not os.path.isdir(path):
                clear(path)
                os.makedirs(path)
        else:
            clear(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if member.issym():
                os.symlink(member.linkname, path)
                continue
            with open(path, "xb") as file:
                content = archive.extractfile(member)
                if "BELLJAR.data" not in member.pax_headers:
                    shutil.copyfileobj(content, file, 1 << 20)
                else:
                    size, *pieces = member.pax_headers["BELLJAR.data"].split()
                    for piece in pieces:
                        start, end = map(int, piece.split("-"))
                        file.seek(start)
                        while start < end:
                            data = content.read(min(1 << 20, end - start))
                            file.write(data)
                            start += len(data) or end
                    file.truncate(int(size))
        modes.append((path, member.mode, member.mtime))
for path, mode, mtime in reversed(modes):
    os.chmod(path, mode)
    os.utime(path, (mtime, mtime))
"""
"""What a jar runs to get the files of a snapshot: its arguments are the workspace, its input is the snapshot."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a workspace at one moment, kept until `remove`."""

    id: str
    path: str
    """Where it lies: a file that only its owner can read."""
    created: float
    files: int
    size: int
    """Of the files, together."""
    base: str | None
    """The host's directory of which it holds the changes; None if it holds everything."""

    def remove(self) -> None:
        """Delete it. Raises AuditError if that can't be recorded, and then it is not."""
        if os.path.lexists(self.path):
            recording.files("snapshot_removed", path=self.path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


@dataclass(frozen=True, slots=True)
class Held:
    """What a jar holds of its workspace. Whoever asked for it closes the tree."""

    tree: ChangedTree
    base: str | None
    """The host's directory of which these are the changes, if there is one."""
    deleted: tuple[str, ...]
    """What that has, and the workspace has not."""
    modes: Mapping[str, int]
    """By path, where the tree's own may be others."""


HOLES = "BELLJAR.data"
"""The header of a file with holes: its size, and `START-END` for each piece of data that is stored."""
MOST_PIECES = 500_000
"""Of data between holes, in one snapshot."""


def keep(held: Held, *, most_bytes: int, path: str, run: str = "", session: str = "") -> Snapshot:
    """As `take`, recorded before and after. Raises AuditError, too, and then there is no snapshot."""
    recording.files("snapshot", run=run, session=session, path=path)
    taken = take(held, most_bytes=most_bytes, path=path)
    try:
        recording.files("snapshotted", run=run, session=session, path=path, files=taken.files, size=taken.size)
    except AuditError:
        os.unlink(path)
        raise
    return taken


def take(held: Held, *, most_bytes: int, path: str, left_out: dict[str, str] | None = None) -> Snapshot:
    """Write what a jar holds of its workspace to a file.

    With `left_out`, a file that can't be kept is left out of the snapshot and told there: its path, and why.

    Raises:
        UsageError: its data are more than `most_bytes`, or it has more files than the host looks at.
        SandboxUnavailableError: it could not be written.
    """
    try:
        entries = _entries(held.tree, held.modes, left_out)
    except OSError as error:
        raise UsageError(f"the workspace can't be kept: {error.strerror}") from error
    files = sum(entry.kind == "file" for entry in entries)
    size = sum(entry.size for entry in entries if entry.kind == "file")
    room = _Room(most_bytes)
    head = {"format": FORMAT, "created": time.time(), "files": files, "size": size, "base": held.base}
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    unfinished = beside(path)
    try:
        sweep(os.path.dirname(path))
        with open(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(json.dumps({**head, "deleted": held.deleted}).encode() + b"\n")
            with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive:
                for entry in entries:
                    try:
                        _add(archive, held.tree.descriptor, entry, room)
                    except (UsageError, OSError) as error:
                        if left_out is None or room.writing:
                            raise
                        left_out[entry.path] = str(error)
        os.link(unfinished, path)
    except FileExistsError as error:
        raise UsageError(
            f"there is a snapshot at {path} already", hint="remove it, or use another name: none is overwritten"
        ) from error
    except OSError as error:
        raise SandboxUnavailableError(f"the snapshot could not be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
    return opened(path)


class _Room:
    """What may be written still."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = most_bytes
        self._pieces = MOST_PIECES
        self.writing = False
        """Whether a file is being written: an error then is the snapshot's, not the file's."""

    def take(self, path: str, data: list[Range]) -> int:
        """Count a file's data. How many bytes that is. Raises UsageError if there is no room for them."""
        size = sum(end - start for start, end in data)
        if size > self._bytes:
            raise UsageError(f"{path!r} does not fit: the files hold more than the {self._most} bytes of fs.size_mb")
        if len(data) > self._pieces:
            raise UsageError(f"{path!r} has too many holes: a snapshot keeps {MOST_PIECES} pieces of data")
        self._bytes -= size
        self._pieces -= len(data)
        return size


class _Data:
    """Reads a file's data one after the other, without its holes. What was cut off meanwhile reads as zeros."""

    def __init__(self, descriptor: int, ranges: list[Range]) -> None:
        self._descriptor = descriptor
        self._ranges = ranges[::-1]

    def read(self, size: int) -> bytes:
        found = bytearray()
        while self._ranges and len(found) < size:
            start, end = self._ranges.pop()
            wanted = min(end - start, size - len(found))
            found += os.pread(self._descriptor, wanted, start).ljust(wanted, b"\0")
            if start + wanted < end:
                self._ranges.append((start + wanted, end))
        return bytes(found)


def _entries(tree: ChangedTree, modes: Mapping[str, int], left_out: dict[str, str] | None) -> list[Entry]:
    """What to keep, directories before what is in them."""
    entries: list[Entry] = []
    if not tree.whole:
        many = "the workspace has too many files, or names that are too long, for a snapshot"
        if left_out is None:
            raise UsageError(many)
        left_out["."] = many
    for count, entry in enumerate(walk(tree.descriptor, own=True, whole=left_out is None), start=1):
        if count == MAX_ENTRIES:
            many = f"the workspace has more than {MAX_ENTRIES} files: too many for a snapshot"
            if left_out is None:
                raise UsageError(many)
            left_out["."] = many
            break
        if entry.kind != "other":
            mode = modes.get(entry.path, entry.mode)
            entries.append(Entry(entry.path, entry.kind, entry.size, mode, entry.changed_ns))
    return sorted(entries, key=lambda entry: entry.path)


@contextlib.contextmanager
def _parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    directory, _, name = path.rpartition("/")
    parent = open_beneath(root, directory or ".", os.O_RDONLY | os.O_DIRECTORY, own=True)
    try:
        yield parent, name
    finally:
        os.close(parent)


def _add(archive: tarfile.TarFile, root: int, entry: Entry, room: _Room) -> None:
    member = tarfile.TarInfo("/".join(parts(entry.path)))
    member.mode = entry.mode & 0o777
    member.mtime = entry.changed_ns / 1_000_000_000
    if entry.kind == "directory":
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif entry.kind == "link":
        with _parent(root, entry.path) as (parent, name):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=parent)
        archive.addfile(member)
    else:
        source = open_beneath(root, entry.path, os.O_RDONLY, own=True)
        with open(source, "rb") as file:
            if os.fstat(source).st_size < entry.size or not stat.S_ISREG(os.fstat(source).st_mode):
                raise UsageError(f"{entry.path} changed while it was being read", hint="try again when nothing runs")
            data = list(islice(data_ranges(source, entry.size), MOST_PIECES + 1))
            member.size = room.take(entry.path, data)
            if member.size != entry.size:
                member.pax_headers = {HOLES: " ".join([str(entry.size), *(f"{start}-{end}" for start, end in data)])}
            room.writing = True
            archive.addfile(member, _Data(file.fileno(), data))  # type: ignore[arg-type]
            room.writing = False


def opened(path: str) -> Snapshot:
    """The snapshot that lies at a path. Raises UsageError if none does."""
    with source(path) as file:
        head = read_head(file, path)
    name = os.path.basename(path).rpartition(".")[0]
    return Snapshot(name, path, head["created"], head["files"], head["size"], head["base"])


def read_head(file: IO[bytes], path: str) -> dict[str, Any]:
    """Its first line. Raises UsageError."""
    try:
        head: dict[str, Any] = json.loads(file.readline(_LONGEST_HEAD))
        if head["format"] in _FORMATS and _makes_sense(head):
            return head
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UsageError(f"{path} is no snapshot of belljar's")


def _makes_sense(head: dict[str, Any]) -> bool:
    """Whether it says what it has to say. It may be anybody's file."""
    return (
        isinstance(head["created"], int | float)
        and 0 <= head["created"] < LATEST
        and all(isinstance(head[name], int) and head[name] >= 0 for name in ("files", "size"))
        and isinstance(head["base"], str | None)
        and isinstance(head["deleted"], list)
        and all(isinstance(path, str) for path in head["deleted"])
    )


def source(path: str) -> IO[bytes]:
    """The file. Raises UsageError if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        hint = "`belljar snapshot ls` lists them"
        raise UsageError(f"there is no snapshot at {path}: {error.strerror}", hint=hint) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"there is no snapshot at {path}: it is not a file")
    return open(descriptor, "rb")


def path_of(name: str) -> str:
    """Where the snapshot of that name lies, if there is one. Raises UsageError for what can't be a name."""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise UsageError(f"no snapshot is called {name!r}: wanted letters, digits, - and _")
    return os.path.join(state_directory(), "snapshots", f"{name}.tar")


__all__ = ["RESTORE", "Held", "Snapshot", "keep", "opened", "path_of", "source", "take"]
