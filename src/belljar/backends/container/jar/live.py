"""A directory of the host's that the code changes itself (`--live`), as a place that an engine can bind.

Runs in belljar, with the privilege of whoever started it. Started by root, the directory is mounted once more, in a
closed directory of belljar's, with its owner shown as the jar's user: so the code reads and writes what the owner may,
and what it makes is the owner's. Anybody else's directory is bound as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from belljar.backends import kernel
from belljar.backends.container.engine.cleanup_process import CLEANUP_PROCESS
from belljar.backends.container.engine.leftovers import owner, unmount
from belljar.backends.denied_walk import find_denied
from belljar.errors import PolicyError, SandboxUnavailableError
from belljar.limits.naming import is_dead
from belljar.policy.globs import DenyGlobs
from belljar.policy.paths import beneath

MOST_COVERS = 500
_NAMESPACE = "import ctypes,sys;sys.exit(ctypes.CDLL(None).unshare(0x10000000)or print(flush=True)or sys.stdin.read())"
"""A process in a user namespace of its own, until its stdin ends: the namespace exists for its table of ids."""


class LiveDirectories:
    """The live directories of one Sandbox."""

    def __init__(self, directory: str, jar: str) -> None:
        self.directory = os.path.join(directory, f"{owner()}-{jar}")
        self.shortfalls: list[str] = []
        self._mounts: list[str] = []

    def share(self, index: int, source: str, uid: int) -> None:
        """Started by root: mount `source` at `directory`/`index`, its owner shown as `uid`."""
        target = os.path.join(self.directory, str(index))
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        os.mkdir(target, 0o700)
        CLEANUP_PROCESS.add((), "mount", target)
        self._mounts.append(target)
        try:
            tree = kernel.open_tree(source, recursive=True)
            try:
                status = os.fstat(tree)
                with _mapping(status.st_uid, status.st_gid, uid) as namespace:
                    kernel.idmap(tree, namespace, private=True)
                kernel.move_mount(tree, target)
            finally:
                os.close(tree)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _became_a_link(source) from error
            raise SandboxUnavailableError(
                f"{source} can't be shown to the code for writing: its owner can't be mapped ({error.strerror})",
                hint="leave out --live and use --apply, put the directory on ext4, xfs or btrfs, or start belljar as "
                "the directory's owner",
            ) from error

    def covers(self, source: str, jar_path: str, deny_globs: tuple[str, ...], *, sockets: bool) -> list[str]:
        """What the engine has to cover in a directory, as paths in it: denied names, and `sockets`: sockets and pipes.

        gVisor has no way to a socket or a named pipe of the host, and does not start with a mount on one.
        """
        found = find_denied(source, source, jar_path, DenyGlobs(deny_globs).within(source, jar_path))
        hidden = [*found.paths, *(found.sockets if sockets else ())]
        if len(hidden) > MOST_COVERS:
            raise SandboxUnavailableError(
                f"{len(hidden)} denied files, sockets and pipes in the live directory: {MOST_COVERS} can be covered",
                hint="leave out --live: the code then works on a copy-on-write view, which has no such limit",
            )
        links = [path for path in hidden if os.path.islink(os.path.join(source, path))]
        self.shortfalls += [f"{path} is a link, which can't be covered in a live directory" for path in links]
        return [path for path in hidden if path not in links]

    def closed(self, *, directory: bool) -> str:
        """Something that nobody can read, to cover with."""
        path = os.path.join(self.directory, "closed-directory" if directory else "closed-file")
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            if directory:
                os.mkdir(path, 0)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0))
        return path

    def close(self) -> None:
        """Unmount everything. A container that still ends has its own mount of it."""
        for target in self._mounts:
            unmount(target)
            CLEANUP_PROCESS.done(target)
        self._mounts.clear()
        _clear(self.directory)


def need_writable(source: str, uid: int) -> None:
    """For an ordinary user, whose engine shows a directory as it is: whether the jar's user may write there."""
    status = os.stat(source)
    if sys.platform == "linux" and status.st_uid != uid and not status.st_mode & 0o002:
        raise PolicyError(
            f"{source} belongs to user {status.st_uid}, and the code runs as user {uid}: it could change nothing there",
            hint=f"--set proc.uid=$(id -u), which is {os.getuid()}",
        )


def sweep(directory: str) -> None:
    """Unmount and remove what killed belljars left."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for name in names:
        _uid, _, rest = name.partition("-")
        if is_dead(rest.rpartition("-")[0]):
            left = os.path.join(directory, name)
            for entry in os.listdir(left):
                if entry.isdigit():
                    unmount(os.path.join(left, entry))
            _clear(left)


def _clear(directory: str) -> None:
    """Remove a closed directory of ours with what is in it; nothing of what may still be mounted there."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, "closed-file"))
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(directory, "closed-directory"))
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def refuse_nested(source: str, views: Iterable[Mapping[str, Any]]) -> None:
    """For an ordinary user, whose engine looks paths up for each container: refuse a live directory in another one.

    Code that has the outer one could put a link in the place of the inner one, for the next container to follow.
    """
    for view in views:
        if view["live"] and view["source"] != source and beneath(view["source"], source):
            raise PolicyError(
                f"{view['source']} lies in {source}, and both are live: code could put a link in its place",
                hint="mount the outer one alone, or use --backend bubblewrap",
            )


def open_source(path: str) -> int:
    """Open a directory that a mount of the policy names, through no link. The caller must close it.

    Raises:
        SandboxUnavailableError: somebody put a link on the way to it since the policy was read.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        if sys.platform != "linux":
            return os.open(path, flags | os.O_NOFOLLOW)
        return kernel.openat2(kernel.AT_FDCWD, path, flags, resolve=kernel.RESOLVE_NO_SYMLINKS)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise SandboxUnavailableError(f"can't mount {path}: {error.strerror}") from error
        raise _became_a_link(path) from error


def _became_a_link(path: str) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        f"can't mount {path}: since the policy was read, somebody put a link there",
        hint="look at who changes it (another jar with a live directory?), and try again",
    )


def is_directory(path: str) -> bool | None:
    """Whether it is a directory or something else; None if nothing is there."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return None


@contextlib.contextmanager
def _mapping(uid: int, gid: int, shown: int) -> Iterator[int]:
    """A namespace in which the owner's files are those of the user `shown`.

    Root keeps a number too: gVisor's file server makes every file as root, and then gives it away.
    """
    words = [sys.executable, "-I", "-S", "-c", _NAMESPACE]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as holder:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise OSError(1, "this host makes no user namespaces")
        for kind, number in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{holder.pid}/{kind}", "w") as file:
                file.write(f"{number} {shown} 1\n{0 if number else shown} 0 1\n")
        namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield namespace
        finally:
            os.close(namespace)
            holder.communicate()
