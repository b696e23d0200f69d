"""Snapshots: the files of a workspace, as one file of the host's. A line of JSON, and then a tar archive.

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
from typing import IO, Any

from belljar.audit.state import state_directory
from belljar.backends.contract import ChangedTree, Entry
from belljar.backends.hostile_files import MAX_ENTRIES, open_beneath, parts, walk
from belljar.errors import AuditError, SandboxUnavailableError, UsageError
from belljar.policy.records import dataclass
from belljar.sandbox import recording
from belljar.sandbox.unfinished import beside, sweep

_LONGEST_HEAD = 64 << 20
FORMAT = 1
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
                shutil.copyfileobj(archive.extractfile(member), file, 1 << 20)
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


def take(held: Held, *, most_bytes: int, path: str) -> Snapshot:
    """Write what a jar holds of its workspace to a file.

    Raises:
        UsageError: it is larger than `most_bytes`, or has more files than the host looks at.
        SandboxUnavailableError: it could not be written.
    """
    try:
        entries = _entries(held.tree, held.modes)
    except OSError as error:
        raise UsageError(f"the workspace can't be kept: {error.strerror}") from error
    files = sum(entry.kind == "file" for entry in entries)
    size = sum(entry.size for entry in entries if entry.kind == "file")
    if size > most_bytes:
        raise UsageError(
            f"the files are {size} bytes, more than the {most_bytes} that fs.size_mb allows",
            hint="files with holes count as if they had none",
        )
    head = {"format": FORMAT, "created": time.time(), "files": files, "size": size, "base": held.base}
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    unfinished = beside(path)
    try:
        sweep(os.path.dirname(path))
        with open(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(json.dumps({**head, "deleted": held.deleted}).encode() + b"\n")
            with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive:
                for entry in entries:
                    _add(archive, held.tree.descriptor, entry)
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


def _entries(tree: ChangedTree, modes: Mapping[str, int]) -> list[Entry]:
    """What to keep, directories before what is in them."""
    entries: list[Entry] = []
    if not tree.whole:
        raise UsageError("the workspace has too many files, or names that are too long, for a snapshot")
    for count, entry in enumerate(walk(tree.descriptor, own=True, whole=True), start=1):
        if count == MAX_ENTRIES:
            raise UsageError(f"the workspace has more than {MAX_ENTRIES} files: too many for a snapshot")
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


def _add(archive: tarfile.TarFile, root: int, entry: Entry) -> None:
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
            member.size = entry.size
            if os.fstat(source).st_size < entry.size or not stat.S_ISREG(os.fstat(source).st_mode):
                raise UsageError(f"{entry.path} changed while it was being read", hint="try again when nothing runs")
            archive.addfile(member, file)


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
        if head["format"] == FORMAT and _makes_sense(head):
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
        raise UsageError(f"there is no snapshot at {path}: {error.strerror}") from error
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
