"""No spelling sets a set-user-id or set-group-id bit, or makes a device; ordinary modes work.

Every control writes one empty file into an empty directory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

AT_FDCWD = 0xFFFFFFFFFFFFFF9C
O_CREAT_WRONLY = os.O_CREAT | os.O_WRONLY
MODE = "mode"
FILE = "file"

# how it is spelled → call and arguments, with MODE where the mode goes
SPELLINGS: dict[str, list[int | str]] = {
    "chmod": ["chmod", FILE, MODE],
    "fchmod": ["fchmod", 0, MODE],
    "fchmodat": ["fchmodat", AT_FDCWD, FILE, MODE],
    "fchmodat2": ["fchmodat2", AT_FDCWD, FILE, MODE, 0],
    "creat": ["creat", "new", MODE],
    "open": ["open", "new", O_CREAT_WRONLY, MODE],
    "openat": ["openat", AT_FDCWD, "new", O_CREAT_WRONLY, MODE],
    "openat, temporary": ["openat", AT_FDCWD, ".", os.O_TMPFILE | os.O_WRONLY, MODE],
    "openat, flags above 32 bits": ["openat", AT_FDCWD, "new", O_CREAT_WRONLY | 1 << 40, MODE],
    "mkdir": ["mkdir", "new", MODE],
    "mkdirat": ["mkdirat", AT_FDCWD, "new", MODE],
    "mknod": ["mknod", "new", MODE, 0],
    "mknodat": ["mknodat", AT_FDCWD, "new", MODE, 0],
}
BITS = {"setuid": 0o4755, "setgid": 0o2755, "both": 0o6755, "setuid above 16 bits": 0xFFFF00000000 | 0o4755}


def _job(number, words: list[int | str], mode: int) -> list[int | str]:
    call, *arguments = words
    return [number(str(call)), *(mode if word == MODE else word for word in arguments)]


@pytest.mark.parametrize("mode", BITS.values(), ids=BITS)
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_bits_are_refused(spelling: list[int | str], mode: int, attempt, number, tmp_path: Path) -> None:
    """EPERM with the bit; the control and the same call without the bit do their work."""
    (tmp_path / FILE).touch()
    if spelling[0] == "fchmod":
        # the child's standard input is /dev/null, which must not be changed: any descriptor number will do
        spelling = ["fchmod", 999, MODE]
    usual = {0, errno.ENOSYS, errno.EOPNOTSUPP} if spelling[0] != "fchmod" else {errno.EBADF}
    assert attempt("jar", call=_job(number, spelling, mode)).errno == errno.EPERM
    assert not (tmp_path / "new").exists()
    assert attempt("jar", call=_job(number, spelling, 0o755)).errno in usual
    if (tmp_path / "new").is_dir():
        (tmp_path / "new").rmdir()
    (tmp_path / "new").unlink(missing_ok=True)
    assert attempt(call=_job(number, spelling, mode)).errno in usual


def test_the_control_really_sets_the_bit(attempt, number, tmp_path: Path) -> None:
    """Otherwise the table above would prove nothing."""
    (tmp_path / FILE).touch()
    attempt("jar", call=[number("fchmodat"), AT_FDCWD, FILE, 0o4755])
    assert not (tmp_path / FILE).stat().st_mode & stat.S_ISUID
    attempt(call=[number("fchmodat"), AT_FDCWD, FILE, 0o4755])
    assert (tmp_path / FILE).stat().st_mode & stat.S_ISUID


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CLOEXEC, os.O_RDONLY | os.O_DIRECTORY])
@pytest.mark.parametrize("garbage", [0o6777, 0xFFFFFFFFFFFFFFFF, 0o4000])
def test_garbage_mode_without_creation(flags: int, garbage: int, attempt, number, tmp_path: Path) -> None:
    """An ordinary open has no mode; what is left in the register is nobody's wish."""
    (tmp_path / FILE).touch()
    path = "." if flags & os.O_DIRECTORY else FILE
    assert attempt("jar", call=[number("openat"), AT_FDCWD, path, flags, garbage]).errno == 0
    assert attempt("jar", call=[number("open"), path, flags, garbage]).errno == 0


NODES = {
    "regular": (stat.S_IFREG, True),
    "no type": (0, True),
    "fifo": (stat.S_IFIFO, True),
    "socket": (stat.S_IFSOCK, True),
    "character device": (stat.S_IFCHR, False),
    "block device": (stat.S_IFBLK, False),
}


@pytest.mark.parametrize("call", ["mknod", "mknodat"])
@pytest.mark.parametrize(("type_", "allowed"), NODES.values(), ids=NODES)
def test_nodes(type_: int, allowed: bool, call: str, attempt, number, root, tmp_path: Path) -> None:
    """No device, not even 0:0, which is an overlay's whiteout and needs no privilege."""
    place: list[int | str] = [AT_FDCWD, "new"] if call == "mknodat" else ["new"]
    job = [number(call), *place, type_ | 0o644, 0]
    assert attempt("jar", call=job).errno == (0 if allowed else errno.EPERM)
    (tmp_path / "new").unlink(missing_ok=True)
    if root or type_ != stat.S_IFBLK:
        assert attempt(call=job).errno == 0
