"""A trust store for Java, which reads no PEM: the same certificates in its own format (JKS, with no key in it)."""

from __future__ import annotations

import base64
import hashlib
import re
import struct

_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105 - every Java's: it guards against mistakes, not against people
_SALT = b"Mighty Aphrodite"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)


def java_store(bundle: str) -> bytes:
    """The certificates of a PEM bundle as a JKS file."""
    certificates = [base64.b64decode(text) for text in _CERTIFICATE.findall(bundle)]
    content = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        alias = f"belljar-{number}".encode()
        content += struct.pack(">IH", _TRUSTED, len(alias)) + alias + struct.pack(">Q", 0)
        content += struct.pack(">H", 5) + b"X.509" + struct.pack(">I", len(certificate)) + certificate
    seal = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + content)  # noqa: S324 - the format's own
    return content + seal.digest()
