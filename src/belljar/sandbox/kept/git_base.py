"""Finds what a file was before both the agent and the user changed it: in the index of the project's git.

An index entry that has the file's inode, time of change and size from before the jar was made names a blob with its
content. Git reads it, in a jar of its own that sees the repository read-only and has no network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from belljar.errors import BelljarError
from belljar.policy.paths import WORKSPACE
from belljar.sandbox.files.git_settings import Repository, repository_of
from belljar.sandbox.kept.merging import MAX_MERGED

Identity = tuple[int, ...]
"""Inode, ctime in nanoseconds, and size."""

_INSIDE = "/repository.git"
_MOST_FILES = 200
_LOW = 0xFFFFFFFF
"""The index has the low 32 bits of inodes and sizes."""
_LIST = 'export GIT_DIR="$0" GIT_LITERAL_PATHSPECS=1; git ls-files --stage --debug -z -- "$@" > entries'
_READ = 'export GIT_DIR="$0"; for name in "$@"; do git cat-file blob "$name" > "$name" || rm -f "$name"; done'
_ENTRY = re.compile(
    rb"(?P<mode>\d{6}) (?P<blob>[0-9a-f]{40,64}) 0\t(?P<path>[^\0]+)\0"
    rb"  ctime: (?P<seconds>\d+):(?P<nanoseconds>\d+)\n[^\0]*?\tino: (?P<inode>\d+)\n"
    rb"[^\0]*?  size: (?P<size>\d+)\t[^\n]*\n"
)


@dataclass(frozen=True)
class Base:
    """A file as it was."""

    content: bytes
    mode: int


def bases(project: str, wanted: Mapping[str, Identity]) -> dict[str, Base]:
    """Find the content of these files of a project, by what they were. Return those that git has."""
    repository = repository_of(os.path.realpath(project)) if wanted else None
    if repository is None:
        return {}
    try:
        return _found(repository, os.path.realpath(project), dict(list(wanted.items())[:_MOST_FILES]))
    except (BelljarError, OSError):
        return {}  # no jar, or no git: then the file can't be merged, which touches nothing


def _found(repository: Repository, project: str, wanted: Mapping[str, Identity]) -> dict[str, Base]:
    from belljar.sandbox.run.sandbox import Sandbox

    common = os.path.realpath(repository.common)
    own = os.path.relpath(os.path.realpath(repository.directory), common)
    if own.startswith(".."):
        return {}
    directory = os.path.normpath(f"{_INSIDE}/{own}")
    above = os.path.relpath(project, os.path.realpath(repository.top))
    named = {os.fsencode(os.path.normpath(f"{above}/{path}")): path for path in wanted}
    mounts = [{"path": WORKSPACE, "rw": True}, {"path": _INSIDE, "source": common}]
    with Sandbox({"fs": {"mounts": mounts, "workdir": WORKSPACE}}, timeout=60, one_shot=True) as jar:
        if not jar.exec(["sh", "-c", _LIST, directory, *map(os.fsdecode, named)]).ok:
            return {}
        blobs: dict[str, tuple[str, int]] = {}
        for entry in _ENTRY.finditer(jar.files.read("entries")):
            path = named.get(entry["path"])
            if path is not None and _is(entry, wanted[path]):
                blobs[path] = (entry["blob"].decode(), int(entry["mode"], 8) & 0o777)
        if not blobs or not jar.exec(["sh", "-c", _READ, directory, *{blob for blob, _mode in blobs.values()}]).ok:
            return {}
        there = {entry.path: entry.size for entry in jar.files.list()}
        # A filter, as for line ends, may have written another content than the blob's. Then the sizes differ.
        return {
            path: Base(jar.files.read(blob, limit=MAX_MERGED), mode)
            for path, (blob, mode) in blobs.items()
            if there.get(blob) == wanted[path][2] <= MAX_MERGED
        }


def _is(entry: re.Match[bytes], identity: Identity) -> bool:
    """Return True if an entry of the index was made of the file with this identity."""
    inode, changed, size = identity
    seconds, nanoseconds = divmod(changed, 1_000_000_000)
    return (
        int(entry["inode"]) == inode & _LOW
        and int(entry["size"]) == size & _LOW
        and int(entry["seconds"]) == seconds & _LOW
        and int(entry["nanoseconds"]) in (0, nanoseconds)
    )


__all__ = ["Base", "bases"]
