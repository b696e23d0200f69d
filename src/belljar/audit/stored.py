"""What records refer to by its digest, stored once: policies, plans, and the inputs that a run can be repeated with."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from functools import cache

from belljar.audit.log import directory
from belljar.errors import AuditError
from belljar.policy.digest import sha256
from belljar.state import private_directory, state_directory, writing_hint

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import IO

_MOST_KNOWN = 2_000
_KNOWN: set[str] = set()
"""What was stored by this process, and need not be again. When it is full, it begins anew."""


def policies() -> str:
    """Where the texts of policies are."""
    return os.path.join(directory(), "policies")


def plans() -> str:
    """Where the texts of plans are."""
    return os.path.join(directory(), "plans")


def inputs() -> str:
    """Where the code of runs is: not in the log, because it may hold anything. One file a day, as the log."""
    return f"{state_directory()}/inputs"


def store(place: str, data: bytes, suffix: str = "") -> str:
    """Have the data in a file that is named by its digest, which is returned. Raises AuditError."""
    digest = sha256(data)
    path = os.path.join(place, digest + suffix)
    if path in _KNOWN:
        return digest
    try:
        if not _refreshed(path):
            private_directory(place)
            unfinished = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with open(os.open(unfinished, flags, 0o600), "wb") as file:
                    file.write(data)
                os.rename(unfinished, path)
            except OSError:
                if os.path.exists(unfinished):  # half of it, on a disk that is full
                    os.unlink(unfinished)
                raise
    except OSError as error:
        raise _unwritten(error, place) from error
    _know(path)
    return digest


def _know(name: str) -> None:
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN.add(name)


def secret_digest(data: bytes) -> str:
    """A digest that tells whether two texts are the same, and to nobody else anything: a short one could be guessed.

    Raises:
        AuditError: the key that it takes can't be written.
    """
    return sha256(_key(f"{state_directory()}/digests.key") + data)


@cache
def _key(path: str) -> bytes:
    try:
        if not os.path.exists(path):
            _make_key(path)
        with open(path, "rb") as file:
            return file.read(32)
    except OSError as error:
        raise _unwritten(error, path) from error


def _make_key(path: str) -> None:
    private_directory(os.path.dirname(path))
    unfinished = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(unfinished, flags, 0o600), "wb") as file:
        file.write(os.urandom(32))
    try:
        os.link(unfinished, path)
    except FileExistsError:
        pass  # another process was first
    finally:
        os.unlink(unfinished)


_DAY = 86_400.0


def _refreshed(path: str) -> bool:
    """Whether it is there. That it is used again is written into its time: what nobody has used for long is removed."""
    try:
        if os.stat(path).st_mtime < time.time() - _DAY:
            os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _unwritten(error: OSError, place: str) -> AuditError:
    return AuditError(
        f"what the audit log refers to can't be written: {error.strerror}: {place}",
        hint=writing_hint(error),
    )


def load(place: str, digest: str, suffix: str = "") -> bytes | None:
    """What has this digest; None if it is gone, or is not what it was."""
    try:
        with open(os.path.join(place, digest + suffix), "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data if sha256(data) == digest else None


_TODAY: list[str] = [""]
_TODAYS_NUMBER: list[int] = [-1]


def _today() -> str:
    number = int(time.time() // 86_400)
    if _TODAYS_NUMBER[0] != number:
        _TODAY[0], _TODAYS_NUMBER[0] = time.strftime("%Y-%m-%d", time.gmtime(number * 86_400)), number
    return _TODAY[0]


def keep_input(data: bytes) -> str:
    """Have the data among the inputs of the day, after those that are there. Its digest. Raises AuditError."""
    digest = sha256(data)
    path = f"{inputs()}/{_today()}"
    if path + digest in _KNOWN:
        return digest
    entry = b"%s %d\n%s\n" % (digest.encode(), len(data), data)
    try:
        _add(path, entry)
    except OSError as error:
        raise _unwritten(error, inputs()) from error
    _know(path + digest)
    return digest


def _add(path: str, entry: bytes) -> None:
    """All of it or nothing: half of one would stand before whatever comes later."""
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # so that what is taken back is ours
        try:
            written = os.write(descriptor, entry)
            if written != len(entry):
                os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR) - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:  # not left to closing: a process that was forked just now has it, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _opened(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        private_directory(inputs())
        return os.open(path, flags, 0o600)


def load_input(digest: str) -> bytes | None:
    """The input that has this digest; None if it is gone, or is not what it was."""
    try:
        names = sorted(os.listdir(inputs()), reverse=True)
    except FileNotFoundError:
        return None
    for name in names:
        with open(os.path.join(inputs(), name), "rb") as file:
            if (data := _find(file, digest)) is not None:
                return data
    return None


def _find(file: IO[bytes], digest: str) -> bytes | None:
    """Entry by entry; if it is not found so, wherever it is: half an entry, of a process that was killed, hides it."""
    size = os.fstat(file.fileno()).st_size
    while head := file.readline(200):
        name, _, length = head.strip().partition(b" ")
        if not length.isdigit() or int(length) > size:
            break
        if name == digest.encode():
            data = file.read(int(length))
            if sha256(data) == digest:
                return data
            break
        file.seek(int(length) + 1, os.SEEK_CUR)
    return _search(file, digest) if size else None


def _search(file: IO[bytes], digest: str) -> bytes | None:
    """Code may hold lines that look like an entry's first; what has another digest is not taken for one."""
    import mmap

    wanted, at = digest.encode() + b" ", -1
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        while (at := whole.find(wanted, at + 1)) >= 0:
            begin = at + len(wanted)
            end = whole.find(b"\n", begin, begin + 100)
            length = whole[begin:end] if end >= 0 else b""
            if length.isdigit() and sha256(data := whole[end + 1 : end + 1 + int(length)]) == digest:
                return data
    return None
