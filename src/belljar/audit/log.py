"""The audit log: one file a day, written to by every belljar process of the user, one record after the other.

Whoever writes holds a lock on the *head*, a small file that says where the chain stands: its last number and digest,
and how long the day's file is. Records go into the file with one `write`, then the head is renewed. A process that is
killed in between leaves a record that the next one adopts; half a record, on a disk that is full, is taken back. So
what was acknowledged is there, and what is there is whole. A new day is in the head before the first record is in its
file, so that what is left unfinished is always looked for in the right one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from _thread import LockType, allocate_lock  # threading's own, without threading
from _weakref import ref  # weakref's own, without weakref

from belljar.audit.chain import START, BrokenRecordError, Link, decode, encode, follow
from belljar.errors import AuditError
from belljar.policy.digest import sha256
from belljar.state import private_directory, state_directory, writing_hint

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

_MARK = "belljar-audit-1"
_WIDTH = 160
"""Of the head: always the same, so that it is overwritten whole."""
_SUFFIX = ".jsonl"
_NO_TURN = "somebody else writes, and does not end"
_PAUSE_SECONDS = 0.01
"""Between two looks at a lock for which nobody waits without end."""


class Head:
    """Where the log stands: the chain's last link, the day whose file it is in, and that file's length."""

    __slots__ = ("day", "link", "size")

    def __init__(self, link: Link, day: str, size: int) -> None:
        self.link = link
        self.day = day
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Head) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash((self.link, self.day, self.size))

    def encode(self) -> bytes:
        """As it lies on the disk."""
        text = f"{_MARK} {self.link.seq} {self.size} {self.day} {self.link.digest}"
        return f"{text} {sha256(text.encode())[:16]}".ljust(_WIDTH - 1).encode() + b"\n"


def read_head(data: bytes) -> Head | None:
    """The head, if these bytes are one."""
    text, _, check = data.decode("ascii", "replace").rstrip().rpartition(" ")
    words = text.split(" ")
    if len(words) != 5 or words[0] != _MARK or sha256(text.encode())[:16] != check:
        return None
    return Head(Link(int(words[1]), words[4]), words[3], int(words[2]))


def directory() -> str:
    """Where the log is."""
    return f"{state_directory()}/audit"


def day_files(path: str) -> list[str]:
    """The names of the days' files, the first first."""
    try:
        return sorted(name for name in os.listdir(path) if name.endswith(_SUFFIX) and name[:4].isdigit())
    except FileNotFoundError:
        return []


_EVERY: set[ref[AuditLog]] = set()


class AuditLog:
    """The log in one directory, as one process writes it. Its threads share it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = allocate_lock()
        self._pid = 0
        self._head = -1
        self._head_identity = (0, 0)
        self._day = ""
        """Of the file that is open; empty if none is."""
        self._file = -1
        self._file_identity = (0, 0)
        self._at: Head | None = None
        """Where the log stood when we wrote last."""
        self._written = b""
        """The same, as it lies on the disk."""
        self._today = (0, "")
        _EVERY.add(ref(self, _EVERY.discard))

    def append(self, *events: dict[str, Any] | str, patience: float | None = None) -> Link:
        """Write records, all or none, and return where the chain stands.

        `patience` is for what happens whether or not it is recorded: so many seconds are waited for others who write.

        Raises:
            AuditError: they could not be written. Then what they record must not happen.
        """
        with self._lock if patience is None else _Patiently(self._lock, patience):
            try:
                self._open()
                if patience is None:
                    fcntl.flock(self._head, fcntl.LOCK_EX)
                else:
                    _take_turn(self._head, patience)
                try:
                    return self._append(events)
                finally:
                    fcntl.flock(self._head, fcntl.LOCK_UN)
            except OSError as error:
                raise AuditError(
                    f"the audit log can't be written: {error.strerror}: {error.filename or self.path}",
                    hint=writing_hint(error),
                ) from error

    def _append(self, events: tuple[dict[str, Any] | str, ...]) -> Link:
        now = time.time()
        head = self._settled()
        # The clock may go back: a day that has begun goes on, so that files and records are in one order.
        day = max(head.day, self._day_of(now))
        if day != head.day:
            head = self._turned(head, day)
        if head.day != self._day:
            self._open_day(head.day)
        data, link = encode(head.link, now, events)
        size, written = head.size, 0
        try:
            written = os.write(self._file, data)
            if written != len(data):  # a disk that is full takes what fits
                written += os.write(self._file, data[written:])
        finally:
            if written != len(data):
                os.ftruncate(self._file, size)
        self._renew(Head(link, head.day, size + len(data)))
        return link

    def _turned(self, head: Head, day: str) -> Head:
        """Where the log stands when another day begins, which the head says before anything is in its file."""
        head = self._adopted_later(head)
        if head.day < day:
            head = Head(head.link, day, 0)
            self._renew(head)
        return head

    def _day_of(self, now: float) -> str:
        number = int(now // 86_400)
        if number != self._today[0]:
            self._today = number, time.strftime("%Y-%m-%d", time.gmtime(now))
        return self._today[1]

    def _renew(self, head: Head) -> None:
        text = head.encode()
        os.pwrite(self._head, text, 0)
        self._at, self._written = head, text

    def close(self) -> None:
        """Let go of its files. Whoever writes later opens them again."""
        with self._lock:
            if self._pid == os.getpid():
                if self._is(self._head, self._head_identity):
                    os.close(self._head)
                if self._day and self._is(self._file, self._file_identity):
                    os.close(self._file)
            self._pid, self._head, self._day, self._file = 0, -1, "", -1

    def begin_in_child(self) -> None:
        """In a process that was forked just now: a thread that held the lock is not in it, and never lets go.

        Its descriptors are those of the parent. If that one dies with the lock on the head, we would go on holding it.
        """
        self._lock = allocate_lock()
        for descriptor, identity in ((self._head, self._head_identity), (self._file, self._file_identity)):
            if self._is(descriptor, identity):
                os.close(descriptor)
        self._pid, self._head, self._day, self._file, self._at = 0, -1, "", -1, None

    # --- opening ---

    def _open(self) -> None:
        """Have the head open, as `_settled` has the day's file.

        In a forked process they are opened anew: a lock belongs to an open file, and both would have it. So they are
        when someone removed them, or closed our descriptors: what is written into a file without a name, or into
        another, is written nowhere.
        """
        if self._pid == os.getpid() and self._status(self._head, self._head_identity) is not None:
            return
        private_directory(self.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._head = os.open(os.path.join(self.path, "head"), flags, 0o600)
        self._head_identity = _identity(self._head)
        self._pid, self._day, self._file = os.getpid(), "", -1

    def _is(self, descriptor: int, identity: tuple[int, int]) -> bool:
        return self._status(descriptor, identity) is not None

    def _status(self, descriptor: int, identity: tuple[int, int]) -> os.stat_result | None:
        """If the descriptor is still the file that was opened, and the file still has a name."""
        try:
            status = os.fstat(descriptor)
        except OSError:
            return None
        if (status.st_dev, status.st_ino) != identity:
            return None
        if not status.st_nlink:
            os.close(descriptor)
            return None
        return status

    def _open_day(self, day: str) -> None:
        if day == self._day:
            return
        if self._day and self._is(self._file, self._file_identity):
            os.close(self._file)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(os.path.join(self.path, day + _SUFFIX), flags, 0o600)
        self._file_identity = _identity(self._file)
        self._day = day

    # --- what another process left ---

    def _settled(self) -> Head:
        """Where the log stands; what a process did not finish, because it was killed, is finished or taken back."""
        text = os.pread(self._head, 256, 0)
        if self._day:
            status, at = self._status(self._file, self._file_identity), self._at
            if status is None:
                self._day = ""
            elif text == self._written and at is not None and status.st_size == at.size and self._day == at.day:
                return at  # nobody has written since
        first = not self._day
        head = read_head(text) or self._found()
        if not head.day:
            return head
        self._open_day(head.day)
        size = os.fstat(self._file).st_size
        if size > head.size:
            head = self._adopted(head, size)
            self._renew(head)
        return self._adopted_later(head) if first else head

    def _adopted_later(self, head: Head) -> Head:
        """With what is in files of later days than the head's. It is asked when a day begins, and once by a process."""
        for name in day_files(self.path):
            day = name.removesuffix(_SUFFIX)
            if day > head.day:
                self._open_day(day)
                found = self._adopted(Head(head.link, day, 0), os.fstat(self._file).st_size)
                if found.link != head.link:  # a file in which nothing follows is someone else's
                    head = found
                    self._renew(head)
        return head

    def _found(self) -> Head:
        """Without a head, as far as the last file is whole. (`verify` tells of a head that was lost.)"""
        files = day_files(self.path)
        for name in reversed(files):
            size, last = 0, START
            with open(os.path.join(self.path, name), "rb") as file:
                for line in file:
                    try:
                        record = _whole(line)
                    except BrokenRecordError:
                        break
                    size, last = size + len(line), Link(record["seq"], record["digest"])
            if size or name == files[0]:
                return Head(last, name.removesuffix(_SUFFIX), size)
        return Head(START, "", 0)

    def _adopted(self, head: Head, size: int) -> Head:
        """With what follows in the file that is open, which is so long."""
        extra = os.pread(self._file, size - head.size, head.size)
        link, whole = head.link, head.size
        for line in extra.splitlines(keepends=True):
            try:
                link = follow(link, _whole(line))
            except BrokenRecordError:
                break
            whole += len(line)
        if whole < size and not extra[whole - head.size :].count(b"\n"):
            os.ftruncate(self._file, whole)  # half a record, which nobody was told is there
        else:
            whole = size  # someone else's lines: they stay, for `verify` to find
        return Head(link, head.day, whole)


def _whole(line: bytes) -> dict[str, Any]:
    """A record with its line's end: the next one would stand on its line otherwise. Raises BrokenRecordError."""
    if not line.endswith(b"\n"):
        raise BrokenRecordError("it is cut off")
    return decode(line)


def _take_turn(head: int, patience: float) -> None:
    """Have the lock; raise TimeoutError if another process holds it for longer than that."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(head, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, _NO_TURN) from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return


class _Patiently:
    """A lock among threads, for which nobody waits without end: the one that holds it may be this one, if an object is
    finalised while it writes.
    """

    def __init__(self, lock: LockType, seconds: float) -> None:
        self._lock, self._seconds = lock, seconds

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._seconds):
            hint = "try again when the other belljar process has ended: `belljar ps` lists them"
            raise AuditError(f"the audit log can't be written: {_NO_TURN}", hint=hint)

    def __exit__(self, *_exception: object) -> None:
        self._lock.release()


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


_LOGS: dict[str, AuditLog] = {}
"""That of the state directory, which is the same for the life of most programs."""


def _begin_in_child() -> None:
    for log in list(_EVERY):
        if (found := log()) is not None:
            found.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def audit_log() -> AuditLog:
    """The log of this user."""
    state = state_directory()
    log = _LOGS.get(state)
    if log is None:
        for other in list(_LOGS.values()):
            other.close()
        _LOGS.clear()
        log = _LOGS[state] = AuditLog(directory())
    return log


def record(event: str, **details: Any) -> None:
    """Write one record. Raises AuditError."""
    audit_log().append({"event": event, **details})
