"""One run of a pool, as its caller asked for it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from belljar.sandbox.files.kept_files import KeptFiles
from belljar.sandbox.record.inputs import Input


class PoolWork(NamedTuple):
    """What to run, with what, and where its files go."""

    code: bytes
    language: str
    name: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes]
    """What it finds in its workspace: content by path."""
    stdin: Input
    artifacts: str | KeptFiles | None
    """A directory into which the files are copied that it made, or what keeps them."""
    caller: Hashable = None
    """For whom: where runs have to wait, the callers take turns."""
    overwrite: bool = False
    """Whether files of that directory may be replaced."""
