"""Reading the bundle of a quarantine, which may have been tampered with: checked, bounded, and written nowhere."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from belljar.errors import UsageError
from belljar.sandbox.incident.evidence_archive import FORMAT, MANIFEST, NAME, digest_of

_BLOCK = 512
_PIECE = 1 << 20
_MOST_FILES = 10_000
_MOST_MANIFEST = 16 << 20


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """A file in a bundle: where it lies."""

    name: str
    size: int
    offset: int


class EvidenceArchive:
    """One that somebody left, as it lies there. Nothing of it is written anywhere, and nothing is executed.

    Raises:
        UsageError: it is no bundle, or not as belljar writes them. Which, and what is wrong with it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UsageError(f"{path} can't be read: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise UsageError(f"{path} is not a file")
            self.parts = {part.name: part for part in self._parts()}
            self.manifest = self._read_manifest()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def _wrong(self, what: str) -> UsageError:
        return UsageError(
            f"{self.path} is not as belljar wrote it: {what}",
            hint="nothing of it was written or executed; the audit log has the digest of every bundle",
        )

    def _parts(self) -> Iterator[ArchivePart]:
        """Every file in it. Plain headers only: no link, no device, no extension, no name but ours."""
        size, offset, seen = os.fstat(self._descriptor).st_size, 0, set[str]()
        while True:
            block = os.pread(self._descriptor, _BLOCK, offset)
            if len(block) != _BLOCK:
                raise self._wrong("it is cut off")
            if not any(block):
                break
            part = self._part(block, offset + _BLOCK)
            if part.name in seen or len(seen) == _MOST_FILES:
                raise self._wrong(f"{part.name} is in it twice" if part.name in seen else "it has too many files")
            seen.add(part.name)
            offset = part.offset + -(-part.size // _BLOCK) * _BLOCK
            if offset > size:
                raise self._wrong(f"{part.name} says that it is larger than the bundle")
            end = part.offset + part.size
            if any(os.pread(self._descriptor, offset - end, end)):
                raise self._wrong(f"something follows {part.name}")
            yield part
        while rest := os.pread(self._descriptor, _PIECE, offset):
            if any(rest):
                raise self._wrong("something follows its end")
            offset += len(rest)

    def _part(self, block: bytes, offset: int) -> ArchivePart:
        try:
            if _octal(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 32:
                raise self._wrong("a header's checksum is wrong")
            name = block[:100].rstrip(b"\0").decode("ascii")
            size = _octal(block[124:136])
        except ValueError as error:
            raise self._wrong("a header makes no sense") from error
        if not NAME.fullmatch(name):
            raise self._wrong(f"it holds {name!r}, which no bundle does")
        if block[156:157] != b"0" or any(block[157:257]) or any(block[345:500]):
            raise self._wrong(f"{name} is not a plain file")
        return ArchivePart(name, size, offset)

    def _read_manifest(self) -> dict[str, Any]:
        if MANIFEST not in self.parts:
            raise self._wrong("it has no manifest")
        try:
            manifest = json.loads(self.read(MANIFEST, _MOST_MANIFEST))
        except (ValueError, RecursionError) as error:
            raise self._wrong("its manifest can't be read") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise self._wrong("its manifest is of no known format")
        if not isinstance(manifest.get("files"), dict):
            raise self._wrong("its manifest lists no files")
        return manifest

    def read(self, name: str, most: int) -> bytes:
        """At most `most` bytes of a file."""
        part = self._named(name)
        return os.pread(self._descriptor, min(part.size, most), part.offset)

    def pieces(self, name: str) -> Iterator[bytes]:
        """The whole of a file."""
        part = self._named(name)
        position, end = part.offset, part.offset + part.size
        while position < end:
            piece = os.pread(self._descriptor, min(_PIECE, end - position), position)
            if not piece:
                raise self._wrong("it is cut off")
            position += len(piece)
            yield piece

    def _named(self, name: str) -> ArchivePart:
        if name not in self.parts:
            raise UsageError(f"{self.path} holds no {name!r}", hint=f"it holds {', '.join(self.parts)}")
        return self.parts[name]

    def problems(self) -> list[str]:
        """What is not as the manifest says; empty if all is."""
        listed = self.manifest["files"]
        found = [f"{name} is missing" for name in listed if name not in self.parts]
        if self.manifest.get("sha256") != digest_of(self.manifest):
            found.append("the manifest was changed")
        for name in self.parts:
            if name == MANIFEST:
                continue
            wanted = listed.get(name)
            if not isinstance(wanted, dict):
                found.append(f"{name} is not in the manifest")
                continue
            digest = hashlib.sha256()
            for piece in self.pieces(name):
                digest.update(piece)
            if (wanted.get("sha256"), wanted.get("size")) != (digest.hexdigest(), self.parts[name].size):
                found.append(f"{name} was changed")
        return found

    def digest(self) -> str:
        """That of the whole file, as the audit log has it."""
        whole, position = hashlib.sha256(), 0
        while piece := os.pread(self._descriptor, _PIECE, position):
            whole.update(piece)
            position += len(piece)
        return whole.hexdigest()


def _octal(field: bytes) -> int:
    """A number of a header. Raises ValueError for anything else, such as one with a sign."""
    digits = field.rstrip(b"\0 ")
    if not digits.isdigit():
        raise ValueError("not a number")
    return int(digits, 8)


__all__ = ["ArchivePart", "EvidenceArchive"]
