"""Refs and objects of a jar's repository, read from outside. Everything in it is hostile: names, links, sizes, content.

Only ids and checked names of refs are believed to be what they say. Objects are copied as bytes; of packs only the pack
itself, never its index, which may lie. Git reads them in a jar of its own (see `checking`).
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field

from belljar.backends.hostile_files import MAX_ENTRIES, bounds, copy_content, open_beneath, walk
from belljar.sandbox.repository.making import JarRepository

MOST_REFS = 10_000
MOST_BYTES = 1 << 30
"""Bytes of all new objects, as they lie in the jar."""
_MOST_PACKED_REFS = 16 << 20
_LONGEST_REF = 1024
_MOST_HOOKS = 20
_LOOSE = re.compile(r"([0-9a-f]{2})/([0-9a-f]{38}(?:[0-9a-f]{24})?)")
_PACK = re.compile(r"pack/[A-Za-z0-9._-]{1,200}\.pack")
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_KINDS = ("refs/heads/", "refs/tags/", "refs/notes/")
_BAD = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|\.$|/$")


class CommitsRefusedError(Exception):
    """Commits of a jar can't be brought back; the message says why."""


@dataclass(frozen=True)
class Tips:
    """What the refs of a jar's repository say at the end."""

    head: str = ""
    """The branch that was checked out (`refs/heads/main`), an id, or nothing that can be believed."""
    refs: dict[str, str] = field(default_factory=dict)
    """Branches, tags, notes and the stash, with their ids."""
    left_out: tuple[str, ...] = ()
    """Refs that are not brought back, each with a reason."""
    hooks: tuple[str, ...] = ()
    """Hooks that the jar's repository has. They stay there."""


def read_tips(root: int, repository: JarRepository) -> Tips:
    """Read the refs of a jar's repository; `root` is the directory that was mounted.

    Raises:
        RefusedError: there are more than the host reads.
    """
    top = _directory(root, repository.place)
    if top is None:
        return Tips(left_out=("the jar's repository is gone",))
    try:
        found: dict[str, str] = {}
        left_out: list[str] = []
        _read_packed(top, found)
        _read_loose(top, found, left_out)
        length = 64 if repository.format == "sha256" else 40
        refs = {}
        for name, one in found.items():
            if not is_ref_name(name):
                left_out.append(f"{name[:200]!r}: no name that git allows")
            elif len(one) == length and (name.startswith(_KINDS) or name == "refs/stash"):
                refs[name] = one
        return Tips(_head(top, length), refs, tuple(left_out[:20]), _hooks(top))
    finally:
        os.close(top)


def is_ref_name(name: str) -> bool:
    """Return True if git allows this name, as `git check-ref-format` decides, and it is text of one line."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return len(name) <= _LONGEST_REF and name.startswith("refs/") and not _BAD.search(name)


def _read_packed(top: int, found: dict[str, str]) -> None:
    content = _bytes(top, "packed-refs", _MOST_PACKED_REFS + 1)
    if len(content) > _MOST_PACKED_REFS:
        raise CommitsRefusedError(f"its packed-refs has more than {_MOST_PACKED_REFS >> 20} MiB")
    for line in content.decode("utf-8", "surrogateescape").split("\n"):
        one, _, name = line.partition(" ")
        if _ID.fullmatch(one) and name:
            found[name] = one
            _check_count(found)


def _read_loose(top: int, found: dict[str, str], left_out: list[str]) -> None:
    directory = _directory(top, "refs")
    if directory is None:
        return
    within = bounds()
    try:
        for entry in walk(directory, own=True, within=within):
            name = f"refs/{entry.path}"
            if entry.kind == "directory" or entry.path == "heads/.keep":
                continue
            text = _bytes(directory, entry.path, 256).decode("utf-8", "surrogateescape").rstrip("\n")
            if entry.kind == "file" and _ID.fullmatch(text):
                found[name] = text
                _check_count(found)
            elif not name.startswith("refs/remotes/"):
                found.pop(name, None)
                left_out.append(f"{name[:200]!r}: it names no object")
    finally:
        os.close(directory)
    if within.cut:
        raise CommitsRefusedError(f"its refs are more than {MAX_ENTRIES} files")


def _check_count(found: dict[str, str]) -> None:
    if len(found) > MOST_REFS:
        raise CommitsRefusedError(f"it has more than {MOST_REFS} refs")


def _hooks(top: int) -> tuple[str, ...]:
    directory = _directory(top, "hooks")
    if directory is None:
        return ()
    try:
        return tuple(name for name in os.listdir(directory)[:_MOST_HOOKS] if name != ".keep")
    finally:
        os.close(directory)


def _head(top: int, length: int) -> str:
    text = _bytes(top, "HEAD", 2048).decode("utf-8", "surrogateescape").rstrip("\n")
    if text.startswith("ref: "):
        name = text.removeprefix("ref: ").strip()
        return name if is_ref_name(name) and name.startswith("refs/heads/") else ""
    return text if _ID.fullmatch(text) and len(text) == length else ""


def copy_objects(root: int, repository: JarRepository, target: str) -> None:
    """Copy the jar's own objects into a new directory: loose ones by name into `loose`, packs by number into `packs`.

    Raises:
        RefusedError: there are more than the host copies.
    """
    os.mkdir(target, 0o755)
    os.mkdir(os.path.join(target, "loose"), 0o755)
    os.mkdir(os.path.join(target, "packs"), 0o755)
    start = f"{repository.place}/" if repository.place else ""
    objects = _directory(root, f"{start}objects")
    if objects is None:
        return
    within = bounds()
    room, packs = MOST_BYTES, 0
    try:
        for entry in walk(objects, own=True, within=within):
            if entry.kind != "file":
                continue
            if loose := _LOOSE.fullmatch(entry.path):
                name = os.path.join("loose", loose[1], loose[2])
                os.makedirs(os.path.join(target, "loose", loose[1]), exist_ok=True)
            elif _PACK.fullmatch(entry.path):
                name, packs = os.path.join("packs", f"{packs}.pack"), packs + 1
            else:
                continue
            room -= entry.size
            if room < 0:
                raise CommitsRefusedError(f"its new objects are more than {MOST_BYTES >> 20} MiB")
            copy_file(objects, entry.path, os.path.join(target, name), most=room + entry.size, mode=0o644)
    finally:
        os.close(objects)
    if within.cut:
        raise CommitsRefusedError(f"its objects are more than {MAX_ENTRIES} files; `git gc` in the jar packs them")


def copy_file(top: int, path: str, target: str, *, most: int, mode: int) -> bool:
    """Copy a plain file of a jar into a new one of the host. Return False if there is none, or it is larger."""
    try:
        source = open_beneath(top, path, os.O_RDONLY, own=True)
    except OSError:
        return False
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return False
        fresh = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            copy_content(source, fresh)
        finally:
            os.close(fresh)
    finally:
        os.close(source)
    return True


def _directory(root: int, path: str) -> int | None:
    try:
        return open_beneath(root, path, own=True)
    except OSError:
        return None


def _bytes(root: int, path: str, most: int) -> bytes:
    """Return the beginning of a plain file; empty if there is none."""
    try:
        descriptor = open_beneath(root, path, os.O_RDONLY, own=True)
    except OSError:
        return b""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most)
