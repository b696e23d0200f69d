"""Directories of the host for the tests: made from a mapping, and fingerprinted to the last bit."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

Content = str | bytes | None


def plant(root: Path, files: Mapping[str, Content]) -> Path:
    """Make files beneath `root`. A name that ends in `/` is a directory, content that starts with `-> ` a link."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif isinstance(content, str) and content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content or b"")
    return root


def fingerprint(root: Path) -> dict[str, tuple[object, ...]]:
    """Every path beneath `root` with all that a change would leave a trace in: mode, owner, size, times, content."""
    seen: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(root):
        for name in [".", *names, *files]:
            path = os.path.normpath(os.path.join(directory, name))
            seen[os.path.relpath(path, root)] = _trace(path)
    return seen


def _trace(path: str) -> tuple[object, ...]:
    status = os.lstat(path)
    content: object = None
    if stat.S_ISREG(status.st_mode):
        content = Path(path).read_bytes()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    links = None if stat.S_ISDIR(status.st_mode) else status.st_nlink
    return (
        status.st_mode, status.st_uid, status.st_gid, status.st_ino, links,
        status.st_mtime_ns, status.st_ctime_ns, content,
    )  # fmt: skip


def contents(root: Path) -> dict[str, str]:
    """Every file with its text, every link with its target, every directory with `/`: what a person would compare."""
    seen = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            seen[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            seen[f"{name}/"] = ""
        else:
            seen[name] = path.read_text()
    return seen
