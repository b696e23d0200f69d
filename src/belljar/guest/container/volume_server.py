"""The volume server: keeps a Sandbox's files in its volume and serves them to the host.

Runs in a container of its own, which has the volume and nothing else; no code of the user's ever runs in it. What lies
in the volume was made by that code: names, links, modes and depths are hostile, so every path is walked one name at a
time through no link.

The volume has a directory for each mount (`m0`, `m1`, …) and, for each run, `tmp-N`, `shm-N` and `code-N`. Live
directories of the host's are bound beside it, as they are in the runs' containers.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from belljar.guest.container import wire
from belljar.guest.container.gvisor_cache_flush import CacheFlush
from belljar.guest.container.user_files import write_user_files
from belljar.guest.tree import READ, Bounds, enter, kind, make_directories, open_beneath, open_name, remove_tree, walk

_BATCH_BYTES = wire.MAX_FRAME // 2
_ENTRY_BYTES, _NAME_BYTE = 250, 6
"""What an entry takes in a message at most: so much, and so much for each byte of its path (`\\udcff`)."""
_moves = itertools.count(1)
_DEPTH, _EVERYTHING = 200, 1 << 62
RESERVES = {".name": 0, ".room": 1 << 16}
"""In a directory for code: the file that becomes the code's own, and bytes for it. They are no part of what the
policy lets the code write, so that after code that fills everything another can still start."""
LIVE = "/live"
"""Where the volume server has the host's own directories, if the policy shows any for writing."""

Request = dict[str, Any]
Reply = dict[str, Any]


class VolumeServer:
    """Answers requests about the files beneath `root`, one after the other."""

    def __init__(self, channel: wire.FrameChannel, root: str, live: list[int]) -> None:
        self._channel = channel
        self._root = os.open(root, READ)
        self._live = frozenset(live)
        self._gone: list[str] = []
        """Directories that were removed while the code stood in them and went on writing."""
        self._copied: dict[int, dict[str, tuple[int, int]]] = {}
        """What was copied in from the host: (inode, time of change) by path, for each mount."""
        self._ballast: CacheFlush | None = None
        self._verbs: dict[str, Callable[[Request], Reply]] = {
            "make": self._make,
            "name": self._name,
            "load": self._load,
            "reset": self._reset,
            "wipe": self._wipe,
            "fill": self._fill,
            "read": self._read,
            "write": self._write,
            "mkdir": self._mkdir,
            "remove": self._remove,
            "list": self._list,
            "changes": self._changes,
        }

    def serve(self) -> None:
        """Until the host is gone."""
        while (frame := self._channel.next()) is not None:
            kind, payload = frame
            if kind != wire.JSON:
                continue  # what is left of a write that was refused
            request = json.loads(payload)
            try:
                reply = self._verbs[request["do"]](request)
            except OSError as error:
                reply = {"errno": error.errno or errno.EIO, "message": error.strerror or str(error)}
            except ValueError as error:  # a name that no system can write
                reply = {"errno": errno.EINVAL, "message": str(error)}
            self._channel.send(wire.message({"id": request["id"], **reply}))
            self._channel.drain()
            if self._ballast is not None:
                self._ballast.looked()
                self._ballast.drop(self._channel.has_news)

    # --- the volume ---

    def _load(self, _request: Request) -> Reply:
        self._ballast = CacheFlush(self._root)
        return {}

    def _make(self, request: Request) -> Reply:
        for name, mode in request["directories"].items():
            self._make_one(name, mode)
        for name in request["reserves"]:
            self._reserve(name)
        return {}

    def _name(self, request: Request) -> Reply:
        write_user_files(self._root, request["user"], instead_of=request["instead_of"], home=request["home"])
        return {}

    def _make_one(self, name: str, mode: int) -> None:
        os.mkdir(name, 0o755, dir_fd=self._root)
        os.chmod(f"/proc/self/fd/{self._root}/{name}", mode)

    def _reset(self, request: Request) -> Reply:
        """Empty the directories of a run for another: in a volume that the code has filled, no new ones can be made.

        Nothing of that run is alive. Of its files and directories, as many are kept as the next run needs: what is
        removed, gVisor may give back late.
        """
        directories, reserves = request["directories"], request["reserves"]
        missing = []
        for name, mode in directories.items():
            inner = [path.rpartition("/")[2] for path in directories if path.rpartition("/")[0] == name]
            try:
                self._empty(name, mode, inner, RESERVES if name in reserves else ())
            except FileNotFoundError:  # an inner one that the code has removed
                missing.append(name)
        try:
            for name in missing:
                self._make_one(name, directories[name])
            for name in reserves:
                self._reserve(name)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return {"reserved": False}  # the code has taken it; the next run has to do with what is left
        return {"reserved": True}

    def _empty(self, name: str, mode: int, inner: Sequence[str], files: Collection[str]) -> None:
        """Remove what is in a directory, but `inner` directories, and one file for each of the names `files`."""
        directory = enter(self._root, name)
        try:
            spared = []
            for entry in os.listdir(directory):
                status = os.lstat(entry, dir_fd=directory)
                if stat.S_ISDIR(status.st_mode):
                    if entry not in inner:
                        self._remove_directory(directory, entry)
                elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and files:
                    spared.append(entry)
                else:
                    os.unlink(entry, dir_fd=directory)
            _keep_as(directory, spared, files)
            os.fchmod(directory, mode)
        finally:
            os.close(directory)

    def _reserve(self, name: str) -> None:
        """Hold the room that the gate needs to start code: it lets go of it just before."""
        directory = os.open(name, READ, dir_fd=self._root)
        try:
            for reserve, size in RESERVES.items():
                _fill_up(directory, reserve, size)
        finally:
            os.close(directory)

    def _wipe(self, request: Request) -> Reply:
        for name in request["names"]:
            try:
                remove_tree(self._root, name)
            except FileNotFoundError:
                continue
        self._remove_gone()
        return {}

    def _remove_gone(self) -> None:
        gone, self._gone = self._gone, []
        for name in gone:
            self._gone += remove_tree(self._root, name)

    def _mount(self, request: Request) -> int:
        mount = int(request["mount"])
        return os.open(f"{LIVE}/{mount}" if mount in self._live else f"m{mount}", READ, dir_fd=self._root)

    def _owns(self, request: Request) -> bool:
        """Whether what the code closed may be opened: not in a directory of the host's, whose modes are not ours."""
        return int(request["mount"]) not in self._live

    # --- copying in ---

    def _fill(self, request: Request) -> Reply:
        """Entries follow, each a message and, for a file, its data; the last message is empty."""
        mount = self._mount(request)
        copied = self._copied.setdefault(int(request["mount"]), {})
        problem: OSError | None = None
        while (frame := self._channel.next()) is not None:
            entry = json.loads(frame[1])
            if not entry:
                break
            try:
                self._put(mount, entry, failed=problem is not None)
            except OSError as error:
                problem = problem or error
        if problem is None:
            self._remember(mount, copied)
        os.close(mount)
        if problem is not None:
            raise problem
        return {}

    def _put(self, mount: int, entry: dict[str, Any], *, failed: bool) -> None:
        size = entry.get("size", 0)
        if failed:
            self._skip(size)
            return
        directory, _, name = entry["path"].rpartition("/")
        try:
            parent = open_beneath(mount, directory)
        except OSError:
            self._skip(size)
            raise
        try:
            if entry["kind"] == "directory":
                os.mkdir(name, entry["mode"] | 0o700, dir_fd=parent)
            elif entry["kind"] == "link":
                os.symlink(entry["target"], name, dir_fd=parent)
            else:
                self._put_file(parent, name, entry, size)
        except FileExistsError:
            pass  # the place of another mount, which covers it
        finally:
            os.close(parent)

    def _put_file(self, parent: int, name: str, entry: dict[str, Any], size: int) -> None:
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(name, flags, 0o600, dir_fd=parent)
        except OSError:
            self._skip(size)
            raise
        try:
            self._receive(target, size)
            os.fchmod(target, entry["mode"])
            os.utime(target, ns=(entry["mtime_ns"], entry["mtime_ns"]))
        finally:
            os.close(target)

    def _remember(self, mount: int, copied: dict[str, tuple[int, int]]) -> None:
        everything = Bounds(depth=_DEPTH, most=_EVERYTHING, names=_EVERYTHING)
        for path, _directory, _name, status in walk(mount, everything, own=True):
            if not stat.S_ISDIR(status.st_mode):
                copied[path] = (status.st_ino, status.st_ctime_ns)

    def _receive(self, target: int, size: int) -> None:
        """Write `size` bytes of data frames; all of them are taken, whatever happens."""
        while size > 0:
            data = self._data()
            size -= len(data)
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(target, view) :]
                except OSError:
                    self._skip(size)
                    raise

    def _skip(self, size: int) -> None:
        while size > 0:
            size -= len(self._data())

    def _data(self) -> bytes:
        frame = self._channel.next()
        if frame is None or frame[0] != wire.DATA or not frame[1]:
            raise SystemExit(1)  # the host is gone, or does not keep to what it said
        return frame[1]

    # --- single files ---

    def _read(self, request: Request) -> Reply:
        mount = self._mount(request)
        try:
            descriptor = open_beneath(mount, request["path"], os.O_RDONLY, own=self._owns(request))
        finally:
            os.close(mount)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            return {"size": self._send_content(descriptor, request["limit"])}
        finally:
            os.close(descriptor)

    def _send_content(self, descriptor: int, limit: int) -> int:
        """At most `limit` bytes. The file may change while it is read: what was sent is what counts."""
        sent = 0
        while sent < limit and (data := os.read(descriptor, min(wire.CHUNK, limit - sent))):
            self._channel.send(wire.encode(wire.DATA, data))
            self._channel.drain()
            sent += len(data)
        return sent

    def _write(self, request: Request) -> Reply:
        size = request["size"]
        directory, _, name = request["path"].rpartition("/")
        mount = self._mount(request)
        try:
            parent = make_directories(mount, directory)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                target = os.open(name or ".", flags, 0o644, dir_fd=parent)
            finally:
                os.close(parent)
        except OSError:
            self._skip(size)
            raise
        finally:
            os.close(mount)
        try:
            if not stat.S_ISREG(os.fstat(target).st_mode):
                self._skip(size)
                raise OSError(errno.EINVAL, "not a regular file")
            self._receive(target, size)
            return {"changed_ns": os.fstat(target).st_ctime_ns}
        finally:
            os.close(target)

    def _mkdir(self, request: Request) -> Reply:
        mount = self._mount(request)
        try:
            os.close(make_directories(mount, request["path"]))
        finally:
            os.close(mount)
        return {}

    def _remove(self, request: Request) -> Reply:
        directory, _, name = request["path"].rpartition("/")
        if name in ("", ".", ".."):
            raise OSError(errno.EBUSY, "that is the mount itself")
        mount = self._mount(request)
        try:
            parent = open_beneath(mount, directory, own=self._owns(request))
            try:
                if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                    os.unlink(name, dir_fd=parent)
                elif int(request["mount"]) in self._live:
                    remove_in_place(parent, name)
                else:
                    self._remove_directory(parent, name)
            finally:
                os.close(parent)
        finally:
            os.close(mount)
        return {}

    def _remove_directory(self, parent: int, name: str) -> None:
        """Moved out of the code's sight first, so that nothing it does meanwhile matters."""
        os.close(enter(parent, name))  # a directory that is closed can't be moved
        moved = f"gone-{next(_moves)}"
        os.rename(name, moved, src_dir_fd=parent, dst_dir_fd=self._root)
        self._gone.append(moved)
        self._remove_gone()

    # --- trees ---

    def _list(self, request: Request) -> Reply:
        mount = self._mount(request)
        try:
            top = open_beneath(mount, request["path"], own=self._owns(request))
        finally:
            os.close(mount)
        try:
            bounds = Bounds(**request["bounds"])
            entries = walk(top, bounds, recursive=request["recursive"], own=self._owns(request))
            copied = self._copied.get(int(request["mount"]), {}) if request["changed"] else {}
            self._send_entries(
                _entry(path, status)
                for path, _directory, _name, status in entries
                if copied.get(path) != (status.st_ino, status.st_ctime_ns)
            )
        finally:
            os.close(top)
        return {"whole": not bounds.cut}

    def _send_entries(self, entries: Iterator[dict[str, Any]]) -> None:
        batch: list[dict[str, Any]] = []
        size = 0
        for entry in entries:
            batch.append(entry)
            size += _ENTRY_BYTES + _NAME_BYTE * len(os.fsencode(entry["path"]))
            if size > _BATCH_BYTES:
                self._send_batch(batch)
                batch, size = [], 0
        self._send_batch(batch)

    def _send_batch(self, batch: list[dict[str, Any]]) -> None:
        if batch:
            self._channel.send(wire.message({"entries": batch}))
            self._channel.drain()

    def _changes(self, request: Request) -> Reply:
        """Every entry; with those that are not as they were copied in, their content.

        `only` are paths that are wanted, when not all are.
        """
        mount = self._mount(request)
        copied = self._copied.get(int(request["mount"]), {})
        only = None if request.get("only") is None else set(request["only"])
        names: dict[tuple[int, int], str] = {}
        bounds = Bounds(**request["bounds"])
        try:
            for path, directory, name, status in walk(mount, bounds, own=True):
                if only is not None and path not in only:
                    continue
                entry = _entry(path, status)
                if entry["kind"] == "link":
                    entry["target"] = _target(directory, name)
                if copied.get(path) == (status.st_ino, status.st_ctime_ns):
                    entry["untouched"] = True
                if entry["kind"] == "file" and status.st_nlink > 1 and "untouched" not in entry:
                    first = names.setdefault((status.st_ino, status.st_ctime_ns), path)
                    if first != path:  # sent once: a file of many names takes no more room there than here
                        entry["same_as"] = first
                self._channel.send(wire.message({"entry": entry}))
                if entry["kind"] == "file" and not entry.keys() & {"untouched", "same_as"}:
                    self._send_file(directory, name, status.st_size)
                self._channel.drain()
        finally:
            os.close(mount)
        return {"whole": not bounds.cut}

    def _send_file(self, directory: int, name: str, size: int) -> None:
        """Data with its holes left out: the offset before each piece. Ends with the length of the whole."""
        try:
            descriptor = open_name(directory, name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, own=True)
        except OSError:  # gone meanwhile
            self._channel.send(wire.message({"gone": True}))
            return
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # something else by now
                self._channel.send(wire.message({"gone": True}))
                return
            position = 0
            while position < size:
                try:
                    position = os.lseek(descriptor, position, os.SEEK_DATA)
                    hole = os.lseek(descriptor, position, os.SEEK_HOLE)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                        break
                    hole = size  # a file system that does not tell
                while position < min(hole, size):
                    data = os.pread(descriptor, min(wire.CHUNK, hole - position, size - position), position)
                    if not data:
                        size = position
                        break
                    if data.strip(b"\0"):  # gVisor does not tell where the holes are
                        self._channel.send(wire.message({"at": position}) + wire.encode(wire.DATA, data))
                        self._channel.drain()
                    position += len(data)
            self._channel.send(wire.message({"whole": os.fstat(descriptor).st_size}))
        finally:
            os.close(descriptor)


def _entry(path: str, status: os.stat_result) -> dict[str, Any]:
    return {
        "path": path,
        "kind": kind(status),
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "changed_ns": status.st_ctime_ns,
        "modified_ns": status.st_mtime_ns,
    }


def _target(directory: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return ""


def _keep_as(directory: int, spared: Sequence[str], names: Collection[str]) -> None:
    """Let files have these names, as far as there are any; the others are removed."""
    missing = [name for name in names if name not in spared]
    for entry in spared:
        if entry not in names and not missing:
            os.unlink(entry, dir_fd=directory)
            continue
        os.chmod(entry, 0o600, dir_fd=directory)  # nobody is alive who could put a link in its place
        if entry not in names:
            os.rename(entry, missing.pop(0), src_dir_fd=directory, dst_dir_fd=directory)


def _fill_up(directory: int, name: str, size: int) -> None:
    """A file of that many zeros; without room for all of them, of none."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        left = memoryview(bytes(size))
        while left:
            left = left[os.write(descriptor, left) :]
        os.ftruncate(descriptor, size)
    except OSError:
        os.ftruncate(descriptor, 0)
        raise
    finally:
        os.close(descriptor)


def remove_in_place(parent: int, name: str) -> None:
    """The same in a directory of the host's, out of which nothing can be moved."""
    import shutil

    try:
        shutil.rmtree(f"/proc/self/fd/{parent}/{name}")
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "so deep that it can't be removed") from None
