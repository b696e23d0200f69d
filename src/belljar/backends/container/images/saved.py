"""Reads what `docker save` and `podman save` write, as it comes through a pipe, and unpacks nothing to disk.

An image is hostile: whoever made it chose its names, sizes and links. Names are only ever compared, sizes are bounded,
and a reader that only goes forward holds no more than a piece at a time.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from belljar.errors import SandboxUnavailableError

MOST_READ = 4 << 20
"""The longest piece that is ever held: a config, a header, the start of a file."""
MOST_FILES = 2_000_000
_PIECE = 1 << 16
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Forward(io.RawIOBase):
    """A stream for `tarfile` that can be skipped through but not gone back in, and refuses to hold much."""

    def __init__(self, source: IO[bytes], start: bytes = b"") -> None:
        self._source = source
        self._start = start
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        if size < 0 or size > MOST_READ:
            raise _malformed("a header claims more than any has")
        data = self._take(size)
        self._at += len(data)
        return data

    def _take(self, size: int) -> bytes:
        data, self._start = self._start[:size], self._start[size:]
        while len(data) < size and (more := self._source.read(size - len(data))):
            data += more
        return data

    def seekable(self) -> bool:
        """Forward only."""
        return True

    def tell(self) -> int:
        """How far it is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to `offset`."""
        if whence != io.SEEK_SET or offset < self._at:
            raise _malformed("its parts are not in order")
        while self._at < offset and self.read(min(_PIECE, offset - self._at)):
            pass
        return self._at


File = Callable[[int], bytes]
"""Reads up to so many bytes of a member's content."""
Visit = Callable[[int, tarfile.TarInfo, File], None]
"""Is shown each member of each layer: the number of the layer as it came, the member, its content."""


@dataclass(frozen=True)
class SavedImage:
    """What a saved image turned out to be."""

    config: dict[str, Any]
    order: tuple[int, ...]
    """The numbers of the layers, the lowest first."""
    unread: tuple[str, ...]
    """Layers that could not be looked into, and why."""


def read_saved(stream: IO[bytes], visit: Visit) -> SavedImage:
    """Show every file of every layer to `visit`. Raises SandboxUnavailableError for what is no saved image."""
    parts = _Parts(visit)
    try:
        for archive, member in _members(Forward(stream)):
            if member.issym() or member.islnk():
                parts.links[member.name] = _beside(member)
            elif member.isreg():
                parts.add(member, _content(archive, member))
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, OverflowError) as error:
        raise _malformed(str(error) or type(error).__name__) from error
    return parts.understand()


def _members(source: Forward) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Each member in turn; tarfile would keep all of them."""
    with tarfile.open(fileobj=source, mode="r:") as archive:
        count = 0
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]
            count += 1
            if count > MOST_FILES:
                raise _malformed(f"more than {MOST_FILES} files")
            yield archive, member


class _Parts:
    """The parts of a saved image as they come: what is what is known only at the end."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._documents: dict[str, Any] = {}
        self._layers: dict[str, int] = {}
        self._unread: dict[str, str] = {}
        self.links: dict[str, str] = {}

    def add(self, member: tarfile.TarInfo, content: IO[bytes]) -> None:
        """A file of the archive: a document, a layer, or nothing of interest."""
        start = content.read(512)
        name = member.name.removeprefix("./")
        if start[:1] in (b"{", b"[") and member.size <= MOST_READ:
            self._documents[name] = _json(start + content.read(MOST_READ))
        elif start.startswith(_ZSTD):
            self._unread[name] = "packed with zstd"
        elif start.startswith(_GZIP) or start[257:262] == b"ustar" or (name.endswith(".tar") and not any(start)):
            self._layers[name] = len(self._layers)
            _layer(Forward(content, start), self._layers[name], self._visit, packed=start.startswith(_GZIP))

    def understand(self) -> SavedImage:
        """Which of the documents is the config, and how the layers lie: docker's way, or that of an OCI layout."""
        documents = self._documents
        try:
            if "manifest.json" in documents:
                (manifest, *_others) = documents["manifest.json"]
                config, names = manifest["Config"], manifest["Layers"]
            else:
                manifest = documents[_blob(documents["index.json"]["manifests"][0])]
                config, names = _blob(manifest["config"]), [_blob(layer) for layer in manifest["layers"]]
            places = [self.links.get(name, name) for name in names]
            order = tuple(self._layers[name] for name in places if name not in self._unread)
            unread = tuple(f"{name}: {why}" for name, why in self._unread.items())
            return SavedImage(dict(documents[config]), order, unread)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise _malformed("its manifest does not say what its layers are") from error


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(member)
    if file is None:
        raise _malformed(f"{member.name!r} has no content")
    return file


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _layer(source: Forward, number: int, visit: Visit, *, packed: bool) -> None:
    plain = Forward(gzip.GzipFile(fileobj=source)) if packed else source  # type: ignore[arg-type]
    for archive, member in _members(plain):
        visit(number, member, _reader(archive, member))


def _reader(archive: tarfile.TarFile, member: tarfile.TarInfo) -> File:
    def read(size: int) -> bytes:
        return _content(archive, member).read(min(size, MOST_READ)) if member.isreg() else b""

    return read


def _beside(member: tarfile.TarInfo) -> str:
    """Where a link in the archive leads: docker saves a layer that occurs twice as one."""
    parts = member.name.split("/")[:-1] if member.issym() else []
    for part in member.linkname.split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _blob(entry: Any) -> str:
    return "blobs/" + str(entry["digest"]).replace(":", "/")


def _malformed(reason: str) -> SandboxUnavailableError:
    return SandboxUnavailableError(f"the saved image can't be read: {reason}")
