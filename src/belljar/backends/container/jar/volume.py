"""The host's side of the volume server: the files of a Sandbox, asked for one request at a time.

What comes back was made by the guest: names, links, sizes. A tree is written into a private directory of the host's
only when someone asks for it, one name at a time, through no link, and is removed when it is let go.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from belljar.backends.container.engine.cleanup_process import owner
from belljar.backends.container.jar.attached import Attached
from belljar.backends.contract import ChangedTree, Entry
from belljar.backends.hostile_files import MAX_DEPTH, MAX_ENTRIES, MAX_NAMES, bounds, open_beneath, parts
from belljar.errors import BelljarError, SandboxUnavailableError, UsageError
from belljar.guest.container import wire

Message = dict[str, Any]
_BOUNDS = {"depth": MAX_DEPTH, "most": MAX_ENTRIES, "names": MAX_NAMES}


class Volume:
    """Asks the program in the volume server's container. Any thread may call; one request at a time."""

    def __init__(self, container: Attached, mirrors: str, *, most_bytes: int) -> None:
        self._container = container
        self._directory = mirrors
        self._most_bytes = most_bytes
        """What the volume can hold: the host keeps no more of it."""
        self._lock = threading.Lock()
        self._count = 0
        self._mirrors: list[str] = []
        self._broken: SandboxUnavailableError | None = None
        self._closed = False

    def need(self) -> None:
        """Raise if the container that holds the files is gone: this Sandbox can't be used any more."""
        if self._closed:
            raise UsageError("this Sandbox is closed")
        if self._broken is None and self._container.is_over:
            self._broken = _broken(self._container.lost())
        if self._broken is not None:
            raise SandboxUnavailableError(self._broken.message, hint=self._broken.hint)

    def ask(self, verb: str, *, follow: Callable[[], Iterator[bytes]] | None = None, **request: Any) -> Message:
        """One request and its answer; `follow` makes the frames that go along. Raises OSError as the server says."""
        for message, _data in self._talk(verb, request, follow):
            if message is not None:
                return message
        raise AssertionError("a conversation ends with an answer")

    def _talk(
        self, verb: str, request: Message, follow: Callable[[], Iterator[bytes]] | None = None
    ) -> Iterator[tuple[Message | None, bytes]]:
        """Everything that comes back: (message, nothing) or (None, data); the last message is the answer."""
        with self._lock:
            self.need()
            self._count += 1
            answered = False
            try:
                self._container.send(wire.message({"do": verb, "id": self._count, **request}))
                for frame in follow() if follow else ():
                    self._container.send(frame)
                while not answered:
                    kind, payload = self._container.next()
                    if kind == wire.DATA:
                        yield None, payload
                        continue
                    message = json.loads(payload)
                    answered = message.get("id") == self._count
                    if answered and "errno" in message:
                        raise OSError(message["errno"], message["message"])
                    yield message, b""
            except BelljarError as error:
                self._broken = _broken(error)
                raise self._broken from error
            finally:
                if not answered and self._broken is None:  # whoever listened went away in the middle
                    self._skip()

    def _skip(self) -> None:
        while True:
            kind, payload = self._container.next()
            if kind == wire.JSON and json.loads(payload).get("id") == self._count:
                return

    # --- single files ---

    def read(self, mount: int, path: str, limit: int) -> bytes:
        """At most `limit` bytes of a file."""
        content = bytearray()
        for message, data in self._talk("read", {"mount": mount, "path": path, "limit": limit}):
            content += data
            if message is not None and len(content) != message["size"]:
                raise SandboxUnavailableError("the volume server sent less than it said")
        return bytes(content)

    def write(self, mount: int, path: str, content: bytes) -> int:
        """Write a file and make the directories above it; its time of change."""

        def follow() -> Iterator[bytes]:
            for start in range(0, len(content), wire.CHUNK):
                yield wire.encode(wire.DATA, content[start : start + wire.CHUNK])

        answer = self.ask("write", mount=mount, path=path, size=len(content), follow=follow)
        return int(answer["changed_ns"])

    def list(self, mount: int, path: str, *, recursive: bool, changed: bool = False) -> Iterator[Entry]:
        """The entries beneath a directory; with `changed`, without those that are as they were copied in."""
        request = {"mount": mount, "path": path, "recursive": recursive, "bounds": _BOUNDS, "changed": changed}
        entries, within = [], bounds()
        for message, _data in self._talk("list", request):
            told = (message or {}).get("entries", ())
            entries += [_entry(entry) for entry in told if within.takes(entry["path"])]
        yield from entries

    # --- trees ---

    def fill(self, mount: int, frames: Callable[[], Iterator[bytes]]) -> None:
        """Copy a directory of the host's in; `frames` are those of `source_frames`."""
        self.ask("fill", mount=mount, follow=frames)

    def changes(self, mount: int, only: Sequence[str] | None) -> ChangedTree:
        """What differs from what was copied in, written into a directory that only this user can enter."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        mirror = tempfile.mkdtemp(prefix=f"{owner()}-", dir=self._directory)
        root = os.open(mirror, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        untouched: dict[str, str] = {}
        whole, within = True, bounds()
        request = {"mount": mount, "only": only, "bounds": _BOUNDS}
        try:
            with contextlib.closing(_Writer(root, self._most_bytes)) as writer:
                for message, data in self._talk("changes", request):
                    if message is None:
                        writer.data(data)
                    elif "entry" in message:
                        entry = message["entry"]
                        if not within.takes(entry["path"]):
                            raise SandboxUnavailableError("the volume server told of more than it was asked for")
                        if entry.get("untouched"):
                            untouched[entry["path"]] = entry["kind"]
                        else:
                            writer.begin(entry)
                    elif "id" in message:
                        whole = message["whole"]
                    else:
                        writer.told(message)
        except BaseException:
            os.close(root)
            raise
        finally:
            self._mirrors.append(mirror)  # removed when the Sandbox is closed
        return ChangedTree(root, layered=False, untouched=untouched, whole=whole)

    def close(self) -> None:
        """Answer nobody any more, and remove what was written on the host."""
        self._closed = True
        for mirror in self._mirrors:
            _make_removable(mirror)
            shutil.rmtree(mirror, ignore_errors=True)
        self._mirrors.clear()


class _Writer:
    """Makes the entries of a tree, one after the other."""

    def __init__(self, root: int, most_bytes: int) -> None:
        self._root = root
        self._left = most_bytes
        self._file = -1
        self._at = 0
        self._modes: list[tuple[str, int]] = []

    def begin(self, entry: Message) -> None:
        """The next entry; of a file, its data follows."""
        self._finish()
        path, mode = entry["path"], entry["mode"]
        names = parts(path)
        if "/".join(names) != path or not names:
            raise SandboxUnavailableError("the volume server told of a path that is none")
        parent = self._directory("/".join(names[:-1]))
        try:
            with contextlib.suppress(FileExistsError):
                if "same_as" in entry:
                    self._link(parent, names[-1], entry["same_as"])
                else:
                    self._make(parent, names[-1], entry, mode)
        finally:
            os.close(parent)

    def _directory(self, path: str) -> int:
        """A directory of the tree, made as far as it is missing: one that is untouched is not told of again."""
        with contextlib.suppress(FileNotFoundError):
            return open_beneath(self._root, path)
        current = os.dup(self._root)
        for name in parts(path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=current)
            following = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = following
        return current

    def _make(self, parent: int, name: str, entry: Message, mode: int) -> None:
        if entry["kind"] == "directory":
            os.mkdir(name, 0o700, dir_fd=parent)
        elif entry["kind"] == "link":
            if entry["target"]:  # else it was gone before it could be read
                os.symlink(entry["target"], name, dir_fd=parent)
        elif entry["kind"] == "file":
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(name, flags, 0o600, dir_fd=parent)
            os.fchmod(self._file, mode & 0o1777)
        else:
            os.mkfifo(name, 0o600, dir_fd=parent)

    def _link(self, parent: int, name: str, first: str) -> None:
        """Another name of a file that was told before; without that one, it is left out."""
        *above, last = parts(first)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            directory = open_beneath(self._root, "/".join(above))
            try:
                os.link(last, name, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(directory)

    def told(self, message: Message) -> None:
        """Where the next piece of data belongs, or how long the file is."""
        if "at" in message:
            self._at = int(message["at"])
        elif "whole" in message and self._file >= 0:
            os.ftruncate(self._file, int(message["whole"]))

    def data(self, data: bytes) -> None:
        """A piece of the file."""
        if self._file >= 0:
            self._left -= len(data)
            if self._left < 0:
                raise SandboxUnavailableError(
                    "the workspace changes while it is read, and has become more than fs.size_mb",
                    hint="look at the changes when the run has ended",
                )
            os.pwrite(self._file, data, self._at)

    def _finish(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def close(self) -> None:
        """Let go of the last file."""
        self._finish()


def _broken(error: BelljarError) -> SandboxUnavailableError:
    first = f"{error.hint}; then open" if error.hint else "open"
    return SandboxUnavailableError(
        f"this Sandbox is lost, with the files in it: {error.message}", hint=f"{first} a new Sandbox"
    )


def _entry(told: Message) -> Entry:
    return Entry(told["path"], told["kind"], told["size"], told["mode"], told["changed_ns"])


def _make_removable(top: str) -> None:
    for directory, _names, _files in os.walk(top):
        with contextlib.suppress(OSError):
            os.chmod(directory, 0o700)


def source_frames(
    root: int, directories: Sequence[str], wanted: Callable[[str], bool]
) -> Callable[[], Iterator[bytes]]:
    """The frames that carry a directory of the host's into the volume server: what is `wanted`, through no link.

    `directories` are those to look into, each after the one above it. What this user can't read is left out.
    """

    def frames() -> Iterator[bytes]:
        for directory in directories:
            try:
                opened = open_beneath(root, directory)
            except OSError:
                continue
            try:
                if directory:
                    mode = stat.S_IMODE(os.fstat(opened).st_mode) & 0o777
                    yield wire.message({"path": directory, "kind": "directory", "mode": mode})
                for name in os.listdir(opened):
                    below = f"{directory}/{name}" if directory else name
                    if wanted(below):
                        yield from _file_frames(opened, name, below)
            finally:
                os.close(opened)
        yield wire.message({})

    return frames


def _file_frames(directory: int, name: str, path: str) -> Iterator[bytes]:
    try:
        status = os.lstat(name, dir_fd=directory)
        if stat.S_ISLNK(status.st_mode):
            yield wire.message({"path": path, "kind": "link", "target": os.readlink(name, dir_fd=directory)})
            return
        if not stat.S_ISREG(status.st_mode):
            return
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT):
            return
        raise
    try:
        size = os.fstat(source).st_size
        yield wire.message(
            {
                "path": path,
                "kind": "file",
                "mode": stat.S_IMODE(status.st_mode) & 0o777,
                "mtime_ns": status.st_mtime_ns,
                "size": size,
            }
        )
        while size:
            data = os.read(source, min(wire.CHUNK, size)) or bytes(min(wire.CHUNK, size))  # it shrank meanwhile
            size -= len(data)
            yield wire.encode(wire.DATA, data)
    finally:
        os.close(source)
