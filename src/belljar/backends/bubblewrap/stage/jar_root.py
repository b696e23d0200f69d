"""The root of a jar, made once in the stage: system directories, /etc, /dev, interpreters. Bubblewrap takes it whole.

Runs in the stage, as the jar's user. What is mounted here is read-only for good before the first jar is made.
"""

from __future__ import annotations

import contextlib
import os
import stat

from belljar.backends import kernel
from belljar.backends.bubblewrap.shared import layout
from belljar.backends.bubblewrap.shared.stage_plan import StagePlan
from belljar.backends.bubblewrap.shared.wire import write_all

CLOSED = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_LARGEST_FILE, _PIECE = 16 << 20, 64 << 10
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def make_root(plan: StagePlan) -> None:
    """The jar's root, whole: bubblewrap takes it as it is, for every run."""
    kernel.mount(layout.ROOT, layout.ROOT, None, kernel.MS_BIND)  # a mount of its own, read-only in the end
    for name in ("etc", "dev", "proc", "tmp", "run"):
        os.mkdir(f"{layout.ROOT}/{name}", 0o755)
    os.mkdir(layout.inside(layout.JAR_CODE), 0o755)
    for path, target in plan.links:
        os.symlink(target, layout.inside(path))
    for path in plan.directories:
        _show(path, path)
    for name in plan.etc_host:
        share = _copy if any(file.startswith(f"{name}/") for file in plan.etc_files) else _share
        share(f"/etc/{name}", layout.inside(f"/etc/{name}"), CLOSED)
    for name, text in plan.etc_files.items():
        _replace(layout.inside(f"/etc/{name}"), text.encode(errors="surrogateescape"))
    for tree in plan.runtimes:
        if not tree.late:
            os.makedirs(layout.inside(tree.path), exist_ok=True)  # a run of its language binds the tree there
    _make_dev()


def _show(source: str, path: str) -> None:
    """Mount a directory of the host's read-only at the jar's `path`."""
    os.makedirs(layout.inside(path))
    kernel.mount(source, layout.inside(path), None, kernel.MS_BIND | kernel.MS_REC)
    kernel.restrict(layout.inside(path), CLOSED, recursive=True)


def create(path: str, content: bytes = b"") -> None:
    """Make a file that is not there yet."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


def _share(host_path: str, staged_path: str, attributes: int) -> None:
    """Show a file or directory of the host's in the stage; a symbolic link is made anew."""
    _make_parents(staged_path)
    status = os.lstat(host_path)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(host_path), staged_path)
        return
    if stat.S_ISREG(status.st_mode):  # small, and a copy is one mount less in every jar
        create(staged_path, _read(host_path))
        return
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(staged_path)
    else:
        create(staged_path)
    kernel.mount(host_path, staged_path, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.restrict(staged_path, attributes, recursive=True)


def _copy(host_path: str, staged_path: str, attributes: int) -> None:
    """A directory of files and links, as it is on the host, so that belljar can add files of its own."""
    os.makedirs(staged_path)
    for entry in os.scandir(host_path):
        if entry.is_symlink() or entry.is_file():
            _share(entry.path, f"{staged_path}/{entry.name}", attributes)


def _read(path: str) -> bytes:
    """The file's content, up to a size. In pieces: one large read would make room for all of that first."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while len(content) < _LARGEST_FILE and (piece := os.read(descriptor, _PIECE)):
            content += piece
    finally:
        os.close(descriptor)
    return content


def _make_parents(path: str) -> None:
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):  # almost always it is there, which `makedirs` finds out last
        os.makedirs(directory, exist_ok=True)


def _replace(path: str, content: bytes) -> None:
    _make_parents(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    create(path, content)


def _make_dev() -> None:
    """A /dev of six devices and terminals of its own, made once: bubblewrap's --dev would make it for each run."""
    kernel.mount(layout.DEV, layout.DEV, None, kernel.MS_BIND)  # first: what is mounted before would be there twice
    for name in DEVICES:
        _share(f"/dev/{name}", f"{layout.DEV}/{name}", kernel.MOUNT_ATTR_NOSUID)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"{layout.DEV}/{name}")
    os.mkdir(f"{layout.DEV}/shm")
    os.mkdir(f"{layout.DEV}/pts")
    kernel.mount("devpts", f"{layout.DEV}/pts", "devpts", kernel.MS_NOSUID, "newinstance,ptmxmode=0666,mode=620,max=64")
    os.symlink("pts/ptmx", f"{layout.DEV}/ptmx")
    kernel.restrict(layout.DEV, CLOSED, recursive=False)
