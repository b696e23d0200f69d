"""Saved images made by hand: small, and with whatever a test wants in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import Any

Files = dict[str, "str | bytes | tarfile.TarInfo"]

CLEAN_CONFIG = {"config": {"User": "1000:1000", "Env": ["PATH=/usr/bin", "LANG=C.UTF-8"]}}
CLEAN: Files = {"usr/bin/python3": "ELF", "etc/passwd": "root:x:0:0::/:/bin/sh\n"}


def member(name: str, *, mode: int = 0o644, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """A member without content."""
    made = tarfile.TarInfo(name)
    made.mode, made.type, made.linkname = mode, kind, link
    return made


def tar(files: Files) -> bytes:
    """A tar file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
                continue
            data = content.encode() if isinstance(content, str) else content
            entry = member(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def saved(*layers: Files | bytes, config: dict[str, Any] | None = None) -> bytes:
    """What `docker save` writes: layers, then the config, then the manifest."""
    packed = [layer if isinstance(layer, bytes) else tar(layer) for layer in layers]
    parts: Files = {f"{number}/layer.tar": data for number, data in enumerate(packed)}
    manifest = [{"Config": "config.json", "RepoTags": ["x:1"], "Layers": list(parts)}]
    documents = {"config.json": json.dumps(config or CLEAN_CONFIG), "manifest.json": json.dumps(manifest)}
    return tar({**parts, **documents})


def oci(*layers: Files) -> bytes:
    """The same as an OCI layout with packed layers, as newer engines save."""
    packed = [gzip.compress(tar(layer), mtime=0) for layer in layers]
    config = json.dumps(CLEAN_CONFIG).encode()
    manifest = json.dumps({"config": _entry(config), "layers": [_entry(data) for data in packed]}).encode()
    index = json.dumps({"manifests": [_entry(manifest)]})
    blobs: Files = {f"blobs/sha256/{_digest(data)}": data for data in (*packed, config, manifest)}
    return tar({**blobs, "index.json": index, "oci-layout": '{"imageLayoutVersion": "1.0.0"}'})


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _entry(data: bytes) -> dict[str, str]:
    return {"digest": f"sha256:{_digest(data)}"}
