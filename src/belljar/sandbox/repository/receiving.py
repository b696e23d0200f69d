"""New objects and refs in the host's repository, as a push brings them: objects first, refs last, all of them at once.

The pack goes through git once more, into a quarantine directory beside the objects. A full disk or a kill at any step
leaves the repository as it was; `git gc` removes a quarantine directory that was left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping

from belljar.sandbox.repository.host_git import GitError, HostGit

_INDEX_SECONDS = 600.0
_LAST = (".pack", ".rev", ".idx")
"""Git takes a pack for there once its index is."""


def receive_pack(git: HostGit, pack: str) -> None:
    """Add the objects of a checked pack to the repository.

    Raises:
        GitError: git refuses the pack, or the disk is full. Then nothing was added.
    """
    if not _count(pack):
        return
    # Git itself removes directories of this name when they are old.
    quarantine = os.path.join(git.objects, f"tmp_objdir-belljar-{os.urandom(6).hex()}")
    try:
        _make_directory(git, quarantine)
        env = {"GIT_OBJECT_DIRECTORY": quarantine, "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(git.objects)}
        with open(pack, "rb") as file:
            git.run("index-pack", "--strict", "--stdin", file=file, env=env, seconds=_INDEX_SECONDS)
        _migrate(git, os.path.join(quarantine, "pack"))
    except OSError as error:
        raise GitError(f"{git.objects}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(quarantine, ignore_errors=True)


def update_refs(git: HostGit, updates: Mapping[str, tuple[str | None, str]], message: str) -> None:
    """Set refs in one transaction: each from the id that it has, or from nothing, to a new one.

    Raises:
        GitError: one of them has another id meanwhile, or can't be written. Then none was set.
    """
    if not updates:
        return
    zero = "0" * len(next(iter(updates.values()))[1])
    lines = [f"update {name}\0{new}\0{old or zero}\0" for name, (old, new) in sorted(updates.items())]
    text = "".join(["start\0", *lines, "prepare\0", "commit\0"])
    git.run("update-ref", "--no-deref", "-m", message, "--stdin", "-z", data=text.encode())


def delete_refs(git: HostGit, prefix: str) -> int:
    """Delete every ref beneath `prefix`, as `refs/belljar/RUN/`. Return how many there were.

    Raises:
        GitError: one of them can't be deleted. Then none is.
    """
    lines = git.run("for-each-ref", "--format=%(objectname) %(refname)", prefix).decode("utf-8", "surrogateescape")
    found = [line.split(" ", 1) for line in lines.splitlines()]
    delete_these(git, {name: one for one, name in found})
    return len(found)


def delete_these(git: HostGit, refs: Mapping[str, str]) -> None:
    """Delete refs, each with the id that it has to have, in one transaction. Raises GitError; then none is deleted."""
    text = "".join(f"delete {name}\0{one}\0" for name, one in sorted(refs.items()))
    if text:
        git.run("update-ref", "--no-deref", "--stdin", "-z", data=text.encode("utf-8", "surrogateescape"))


def _count(pack: str) -> int:
    with open(pack, "rb") as file:
        return int.from_bytes(file.read(12)[8:12], "big")


def _make_directory(git: HostGit, path: str, mode: int = 0o700) -> None:
    os.mkdir(path, mode)
    if os.geteuid() == 0:
        owner = os.stat(git.directory)
        os.chown(path, owner.st_uid, owner.st_gid)


def _migrate(git: HostGit, source: str) -> None:
    target = os.path.join(git.objects, "pack")
    with contextlib.suppress(FileExistsError):
        _make_directory(git, target, 0o755)
    for name in sorted(os.listdir(source), key=lambda name: _LAST.index(os.path.splitext(name)[1])):
        path = os.path.join(source, name)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        if not os.path.lexists(os.path.join(target, name)):  # the same name is the same content
            os.rename(path, os.path.join(target, name))
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _quoted(path: str) -> str:
    """Return a path for a list that is separated by colons, in the quotes that git reads there."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
