"""What was built: archives by the digest of their recipe, kept so that a second engine, or a second clone, builds
nothing again; and a record for each image of what is in it.

Archives are in `BELLJAR_IMAGE_CACHE`, or in `images` in the state directory. Records are in the state directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from belljar.state import state_directory

_UNUSED_SECONDS = 30 * 86400


@dataclass(frozen=True)
class Record:
    """What is known of an image that was built here."""

    id: str
    name: str
    recipe: str
    layer: str
    """The digest of its only layer."""
    size: int
    release: str
    architecture: str
    packages: tuple[str, ...]
    """`name version` of each Debian package."""
    requirements: tuple[str, ...] = ()


def cache_directory() -> str:
    """Where archives are kept; made if it is not there."""
    chosen = os.environ.get("BELLJAR_IMAGE_CACHE")
    return _made(os.path.abspath(chosen)) if chosen else _made(state_directory(), "images")


def _made(directory: str, *names: str) -> str:
    """The directory, made if it is not there, each part that is ours closed to everyone else."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for name in names:
        directory = os.path.join(directory, name)
        os.makedirs(directory, mode=0o700, exist_ok=True)
    return directory


def archive_path(recipe: str) -> str:
    """Where the archive of a recipe is, or would be."""
    return os.path.join(cache_directory(), f"{recipe}.tar")


def cached(recipe: str) -> Record | None:
    """The record of the archive in the cache; None if there is none, or half of one."""
    record = _read(os.path.join(cache_directory(), f"{recipe}.json"))
    if record is None:
        return None
    try:
        os.utime(archive_path(recipe))  # it is in use
    except FileNotFoundError:
        return None
    except PermissionError:
        pass  # somebody else's cache
    return record


def keep(archive: str, record: Record) -> None:
    """Move a finished archive into the cache: the record last, so that what is recorded is whole."""
    os.replace(archive, archive_path(record.recipe))
    _write(os.path.join(cache_directory(), f"{record.recipe}.json"), record)
    _remove_unused()


def _remove_unused() -> None:
    """Archives that nobody has asked for in a month: recipes change, and each is as large as an image."""
    for name in os.listdir(cache_directory()):
        path = os.path.join(cache_directory(), name)
        with suppress(OSError):
            if name.endswith(".tar") and time.time() - os.stat(path).st_mtime > _UNUSED_SECONDS:
                os.unlink(path)
                os.unlink(f"{path.removesuffix('.tar')}.json")


def remember(record: Record) -> None:
    """Write down, in the state directory, what an image that an engine now has consists of."""
    _made(state_directory(), os.path.basename(_records()))
    _write(_record_path(record.id), record)


def recall(image: str) -> Record | None:
    """What is known of the image with this ID."""
    return _read(_record_path(image))


def forget(image: str, *, archive: bool) -> None:
    """The image is gone: so is its record, and if `archive` says so what the cache keeps of it."""
    record = recall(image)
    paths = [_record_path(image)]
    if archive and record is not None:
        paths += [archive_path(record.recipe), os.path.join(cache_directory(), f"{record.recipe}.json")]
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


@contextmanager
def building(recipe: str) -> Iterator[str]:
    """A scratch directory beside the cache, gone at the end; two that build the same wait for each other."""
    directory = cache_directory()
    with open(os.path.join(directory, f"{recipe}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep(directory, recipe)
        scratch = tempfile.mkdtemp(prefix=f"build-{recipe}-", dir=directory)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _sweep(directory: str, recipe: str) -> None:
    """Remove what a killed build of this recipe left; the caller holds its lock."""
    for name in os.listdir(directory):
        if name.startswith(f"build-{recipe}-"):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def _records() -> str:
    return os.path.join(state_directory(), "image-records")


def _record_path(image: str) -> str:
    digest = image.removeprefix("sha256:")
    return os.path.join(_records(), f"{digest if digest.isalnum() else 'unknown'}.json")


def _read(path: str) -> Record | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return Record(**{**found, "packages": tuple(found["packages"]), "requirements": tuple(found["requirements"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: str, record: Record) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix="record-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(record), file, indent=1)
    os.replace(temporary, path)
