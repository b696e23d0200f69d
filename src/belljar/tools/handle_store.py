"""What results refer to by a handle: files that runs made, and outputs too long to show. In memory, bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from belljar.redaction.slices import OutputStore

PREFIX = "belljar://artifact/"
_MOST_BYTES = 64 << 20
_MOST_FILES = 2000
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class StoredFile(NamedTuple):
    """A file that a run made, as it was when the run ended."""

    handle: str
    path: str
    name: str
    """Its path as it may be shown; it is in the handle, too."""
    mime: str
    data: bytes
    clean: Callable[[str], str] = str
    """What redacts it, by the policy that it was made under."""

    @property
    def text(self) -> str:
        """What is in it, as it may be shown, if that is text."""
        return self.clean(self.data.decode())

    @property
    def is_image(self) -> bool:
        """Whether models can look at it."""
        return self.mime.startswith("image/")


def mime_of(data: bytes) -> str:
    """By what is in it: names are the code's."""
    for magic, mime in _IMAGES:
        if data.startswith(magic):
            return mime
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if b"\0" in data:
        return "application/octet-stream"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"


def _kept(run_id: str, content: Mapping[str, bytes], clean: Callable[[str], str]) -> list[StoredFile]:
    """A name may be of any bytes, and hold what has to be redacted: so two may look the same."""
    kept: dict[str, StoredFile] = {}
    for path, data in content.items():
        name = clean(path)
        handle = f"{PREFIX}{run_id}/{quote(name, errors='surrogateescape')}"
        if handle in kept:
            handle = f"{handle}?{len(kept)}"
        kept[handle] = StoredFile(handle, path, name, mime_of(data), data, clean)
    return list(kept.values())


def _in_scope(handle: str, scope: str) -> str:
    """One name for both. What a model writes as a handle can't be taken for the other part."""
    return f"{len(scope)}:{scope}{handle}"


class HandleStore:
    """Files and outputs by handle, while there is room; the oldest go first. Any thread may use it.

    A scope has its own of both, as it has its own sessions: another finds them by no handle.
    """

    def __init__(self, *, most_bytes: int = _MOST_BYTES, most_files: int = _MOST_FILES) -> None:
        self._outputs = OutputStore()
        self._most_bytes, self._most_files = most_bytes, most_files
        self._files: OrderedDict[tuple[str, str], StoredFile] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def put(
        self, run_id: str, content: Mapping[str, bytes], *, scope: str = "", clean: Callable[[str], str] = str
    ) -> list[StoredFile]:
        """Keep the files of a run; `clean` redacts what is shown of them."""
        kept = _kept(run_id, content, clean)
        with self._lock:
            for file in kept:
                self._forget((scope, file.handle))
                self._files[scope, file.handle] = file
                self._size += len(file.data)
            while self._files and (self._size > self._most_bytes or len(self._files) > self._most_files):
                self._forget(next(iter(self._files)))
        return kept

    def put_output(self, text: str, handle: str, *, scope: str = "") -> None:
        """Keep an output that is too long to show."""
        self._outputs.put(text, _in_scope(handle, scope))

    def output(self, handle: str, *, scope: str = "") -> str | None:
        """An output; None if it is not kept, or no longer."""
        return self._outputs.get(_in_scope(handle, scope), 0, None)

    def _forget(self, key: tuple[str, str]) -> None:
        if old := self._files.pop(key, None):
            self._size -= len(old.data)

    def forget(self, scope: str) -> None:
        """Let go of the files of a scope; of its outputs when others need the room."""
        with self._lock:
            for key in [key for key in self._files if key[0] == scope]:
                self._forget(key)

    def get(self, handle: str, *, scope: str = "") -> StoredFile | None:
        """A file; None if it is not kept, or no longer."""
        with self._lock:
            return self._files.get((scope, handle))

    def files(self, *, scope: str = "") -> list[StoredFile]:
        """All of them, the newest first."""
        with self._lock:
            return [file for (whose, _handle), file in reversed(self._files.items()) if whose == scope]
