"""An image as one file that `docker load` and `podman load` read: a layer, a config, a manifest.

We write it ourselves, with nothing in it that depends on when or where it was written: the engine computes an image's
ID from these bytes, so the same files have the same ID.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any

from belljar.backends.container.images.recipe import DATE, EPOCH, HOME, USER_ID

LABEL, RECIPE_LABEL = "belljar.image", "belljar.recipe"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Layer:
    """A written layer."""

    path: str
    digest: str
    size: int


def write_layer(path: str, members: Iterable[tuple[tarfile.TarInfo, IO[bytes] | None]]) -> Layer:
    """Write the members in the order in which they come."""
    with open(path, "wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for member, content in members:
                archive.addfile(member, content)
        size = file.tell()
    return Layer(path, _digest_of(path), size)


def _digest_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def image_config(layer: Layer, *, architecture: str, recipe: str) -> bytes:
    """The image's config. Its digest is the image's ID."""
    environment = ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", f"HOME={HOME}", "PYTHONDONTWRITEBYTECODE=1"]
    config: dict[str, Any] = {
        "architecture": architecture,
        "os": "linux",
        "created": DATE,
        "config": {
            "User": f"{USER_ID}:{USER_ID}",
            "Env": environment,
            "Cmd": ["/bin/bash"],
            "WorkingDir": "/workspace",
            "Labels": {LABEL: "1", RECIPE_LABEL: recipe},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}"]},
        "history": [{"created": DATE, "created_by": "belljar image build"}],
    }
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()


def write_archive(file: IO[bytes], layer: Layer, config: bytes, name: str) -> str:
    """Write the whole; returns the image's ID."""
    image = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{image}.json", "RepoTags": [name], "Layers": [f"{layer.digest}/layer.tar"]}]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT, bufsize=_CHUNK) as archive:
        _add(archive, f"{image}.json", config)
        _add(archive, "manifest.json", json.dumps(manifest, sort_keys=True).encode())
        with open(layer.path, "rb") as content:
            archive.addfile(_member(f"{layer.digest}/layer.tar", layer.size), content)
    return f"sha256:{image}"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    archive.addfile(_member(name, len(content)), io.BytesIO(content))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, EPOCH
    return member


# Docker's names for what Debian calls otherwise.
_ARCHITECTURES = {"armhf": "arm", "i386": "386", "ppc64el": "ppc64le"}


def engine_architecture(debian: str) -> str:
    """Debian's name of an architecture as engines spell it."""
    return _ARCHITECTURES.get(debian, debian)
