"""The file that a quarantine leaves: a plain tar archive of few files, whose names are belljar's own, and a manifest.

What the code made (names, links, modes) is in it as data, inside of one of those files. So whoever reads it, with
`evidence_archive_reading` or with `tar`, finds nothing that leads anywhere. It is not compressed: it is as large
as it looks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import tarfile
from typing import IO, Any, Self

from belljar.errors import SandboxUnavailableError
from belljar.sandbox.files.unfinished import beside

FORMAT = "belljar-quarantine-1"
MANIFEST = "manifest.json"
NAME = re.compile(
    r"(manifest|policy|plan|tree|environment|versions|end)\.json|(records|egress)\.jsonl|code|input|code/[0-9]{1,6}"
    r"|output/(stdout|stderr)|files\.snapshot"
)
_MOST_BYTES = (8 << 30) - 1
"""Of one file in it: what the header of a plain archive can say."""


class EvidenceArchiveWriter:
    """Writes one: each file once, the manifest last. What is not finished is removed.

    One that is there already stays: then `path` has a number, when it is finished.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._unfinished = beside(path)
        self._sums: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = open(os.open(self._unfinished, flags, 0o600), "w+b")
        except OSError as error:
            raise _unwritten(self.path, error) from error
        self._archive = tarfile.open(fileobj=self._file, mode="w", format=tarfile.USTAR_FORMAT)
        return self

    def __exit__(self, *_exception: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._unfinished)

    def add(self, name: str, content: bytes) -> None:
        """A file with this content. Raises SandboxUnavailableError."""
        self.add_file(name, io.BytesIO(content), len(content))

    def add_file(self, name: str, source: IO[bytes], size: int) -> None:
        """A file with the next `size` bytes of another. Raises SandboxUnavailableError."""
        if not NAME.fullmatch(name) or name in self._sums or size > _MOST_BYTES:
            raise AssertionError(f"{name}, of {size} bytes, is no part of a bundle")
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        counted = _Counted(source)
        try:
            self._archive.addfile(member, counted)  # type: ignore[arg-type]
        except OSError as error:
            raise _unwritten(self.path, error) from error
        self._sums[name] = {"sha256": counted.digest.hexdigest(), "size": size}

    def finish(self, about: dict[str, Any]) -> str:
        """Write the manifest, and give the file its name. Its digest. Raises SandboxUnavailableError."""
        manifest = {"format": FORMAT, **about, "files": dict(self._sums)}
        manifest["sha256"] = digest_of(manifest)
        self.add(MANIFEST, json.dumps(manifest, indent=2).encode("ascii"))
        try:
            self._archive.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.seek(0)
            digest = hashlib.file_digest(self._file, "sha256").hexdigest()
            self.path = _linked(self._unfinished, self.path)
        except OSError as error:
            raise _unwritten(self.path, error) from error
        return digest


def _linked(unfinished: str, path: str) -> str:
    """Give it its name, or the next that nobody has: others may be taking evidence of the same run."""
    stem, ending = os.path.splitext(path)
    for target in [path] + [f"{stem}-{number}{ending}" for number in range(2, 1000)]:
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, target)
            return target
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def digest_of(manifest: dict[str, Any]) -> str:
    """That of a manifest without its digest."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii")).hexdigest()


class _Counted:
    """Reads on behalf of the archive, and keeps a digest of what it read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self.digest.update(data)
        return data


def _unwritten(path: str, error: OSError) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        f"the bundle {path} can't be written: {error.strerror or error}", hint="make room on that disk"
    )


__all__ = ["FORMAT", "MANIFEST", "NAME", "EvidenceArchiveWriter", "digest_of"]
