"""System calls that Python does not wrap, one thin function each: no policy, no retries, OSError on failure."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable

from belljar._startup import foreign_functions as ctypes

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_NS_GET_USERNS = 0xB701

MS_RDONLY, MS_NOSUID, MS_NODEV = 0x1, 0x2, 0x4
MS_REMOUNT, MS_BIND, MS_REC = 0x20, 0x1000, 0x4000
MS_PRIVATE = 1 << 18

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOUNT_ATTR_IDMAP = 0x00100000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

# Numbers of calls newer than 2019 are the same on every architecture.
_NR_OPEN_TREE, _NR_MOVE_MOUNT, _NR_MOUNT_SETATTR = 428, 429, 442
_OPENAT2 = ctypes.c_long(437)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(function: Callable[..., int], *arguments: Any, what: str) -> int:
    result = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _syscall(number: int, *arguments: Any, what: str) -> int:
    return _checked(_libc.syscall, ctypes.c_long(number), *arguments, what=what)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _checked(_libc.unshare, ctypes.c_int(flags), what="unshare")


def setns(namespace: int, kind: int) -> None:
    """Move this process into the namespace of the descriptor, which must be of the kind."""
    _checked(_libc.setns, ctypes.c_int(namespace), ctypes.c_int(kind), what="setns")


def owner_of(namespace: int) -> int:
    """The user namespace that owns a namespace, as a descriptor."""
    return fcntl.ioctl(namespace, _NS_GET_USERNS)


def enter_owner(namespace: int) -> None:
    """Move into the user namespace that owns a namespace, unless this process is in it already."""
    owner = owner_of(namespace)
    try:
        if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
            setns(owner, CLONE_NEWUSER)
    finally:
        os.close(owner)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Attach a file system, or change how one is attached."""
    _checked(
        _libc.mount,
        _encoded(source),
        os.fsencode(target),
        _encoded(kind),
        ctypes.c_ulong(flags),
        _encoded(options),
        what=f"mount {kind or ''} on {target}",
    )


def unmount(target: str) -> None:
    """Detach what is mounted at `target`."""
    _checked(_libc.umount2, os.fsencode(target), ctypes.c_int(2), what=f"unmount {target}")


def open_tree(path: str, *, recursive: bool) -> int:
    """A detached copy of the mount at `path`, which has no link in it, as a descriptor.

    Raises:
        OSError: ELOOP if a part of `path` is a link. Someone made it since the path was resolved.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    found = openat2(AT_FDCWD, path, os.O_PATH, resolve=RESOLVE_NO_SYMLINKS)
    try:
        return _syscall(_NR_OPEN_TREE, found, b"", ctypes.c_uint(flags), what=path)
    finally:
        os.close(found)


def move_mount(tree: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    _syscall(
        _NR_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH), what=target
    )


def idmap(tree: int, userns: int, *, private: bool = False) -> None:
    """Make a detached mount show the owners that `userns` maps them to; `private`, and share no mounts with others."""
    attributes = _MountAttr(attr_set=MOUNT_ATTR_IDMAP, userns_fd=userns, propagation=MS_PRIVATE if private else 0)
    _syscall(
        _NR_MOUNT_SETATTR,
        tree,
        b"",
        ctypes.c_uint(AT_EMPTY_PATH),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
        what="idmapped mount",
    )


def restrict(path: str, attributes: int, *, recursive: bool) -> None:
    """Give the mount at `path` more restrictive attributes: read-only, no setuid, no devices."""
    wanted = _MountAttr(attr_set=attributes)
    _syscall(
        _NR_MOUNT_SETATTR,
        AT_FDCWD,
        os.fsencode(path),
        ctypes.c_uint(AT_RECURSIVE if recursive else 0),
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
        what=path,
    )


def openat2(directory: int, path: str, flags: int, *, resolve: int, mode: int = 0) -> int:
    """Open `path` beneath `directory` under the rules of `resolve`."""
    found = try_openat2(directory, path, flags, resolve=resolve, mode=mode)
    if found < 0:
        raise OSError(-found, os.strerror(-found), path)
    return found


def try_openat2(directory: int, path: str, flags: int, *, resolve: int, mode: int = 0) -> int:
    """As `openat2`, where failing is the rule: what is wrong is told by a negative number."""
    how, size = _open_how(flags, mode, resolve)
    found: int = _libc.syscall(_OPENAT2, directory, os.fsencode(path), how, size)
    return found if found >= 0 else -ctypes.get_errno()


@functools.lru_cache(maxsize=16)
def _open_how(flags: int, mode: int, resolve: int) -> tuple[Any, Any]:
    """As the kernel takes it, which only reads it: where it is, and its size."""
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=mode, resolve=resolve)
    return ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))


def prctl(option: int, argument: int) -> None:
    """Set one attribute of this process."""
    _checked(_libc.prctl, option, ctypes.c_ulong(argument), 0, 0, 0, what=f"prctl {option}")


def set_name(name: str) -> None:
    """The name that `ps` shows for this process."""
    _libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
