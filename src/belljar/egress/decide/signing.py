"""Signs requests by RFC 9421, HTTP Message Signatures, with a key that the code never sees.

What is signed: the method, the host, the path and the query, and the digest and type of the content if the request
names them. The signature base is the RFC's, byte by byte: its own examples are among the tests.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from belljar.errors import PrerequisiteError

if TYPE_CHECKING:
    from belljar.egress.decide.steps import Request
    from belljar.policy.models import Credential

DERIVED = ("@method", "@authority", "@path", "@query")
_ALSO = ("content-digest", "content-type")
LABEL = "sig1"


def signature_headers(
    credential: Credential, secret: str, request: Request, created: int
) -> tuple[tuple[bytes, bytes], ...]:
    """The two headers that sign a request, which is as it is about to be sent."""
    values = component_values(request)
    covered = (*DERIVED, *(name for name in _ALSO if name in values))
    parameters = signature_parameters(covered, created, credential.key_id or "")
    base = signature_base(values, covered, parameters)
    signature = base64.b64encode(sign(credential.algorithm or "", secret, base)).decode("ascii")
    return (
        (b"signature-input", f"{LABEL}={parameters}".encode("ascii")),
        (b"signature", f"{LABEL}=:{signature}:".encode("ascii")),
    )


def signature_parameters(covered: Iterable[str], created: int, key_id: str) -> str:
    """The value of `@signature-params`, which `Signature-Input` repeats."""
    listed = " ".join(f'"{name}"' for name in covered)
    return f'({listed});created={created};keyid="{key_id}"'


def signature_base(values: dict[str, str], covered: Iterable[str], parameters: str) -> bytes:
    """The text that is signed."""
    lines = [f'"{name}": {values[name]}' for name in covered]
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode("ascii")


def sign(algorithm: str, secret: str, base: bytes) -> bytes:
    """The signature of the base.

    Raises:
        PrerequisiteError: when the secret is no key for the algorithm.

    """
    if algorithm == "hmac-sha256":
        return hmac.digest(_bytes(secret), base, "sha256")
    signature: bytes = _ed25519(secret).sign(base)
    return signature


def component_values(request: Request) -> dict[str, str]:
    """What a signature may cover: each header, and what is derived from the request line."""
    target = request.target.decode("latin-1") if isinstance(request.target, bytes) else request.target
    path, _, query = target.partition("?")
    host = f"[{request.host}]" if ":" in request.host else request.host
    default = request.port == (443 if request.tls else 80)
    values: dict[str, str] = {}
    for name, value in request.headers:
        key = name.decode("latin-1")
        text = value.decode("latin-1").strip(" \t")
        values[key] = f"{values[key]}, {text}" if key in values else text
    values = {name: text for name, text in values.items() if text.isascii() and text.isprintable()}
    values |= {
        "@method": request.method,
        "@authority": host if default else f"{host}:{request.port}",
        "@path": path or "/",
        "@query": f"?{query}",
    }
    return values


def _bytes(secret: str) -> bytes:
    """The bytes of a shared key: `base64:…` decoded, anything else as it is."""
    if not secret.startswith("base64:"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("base64:"), validate=True)
    except (binascii.Error, ValueError):
        raise PrerequisiteError("a signing key is not valid base64") from None


@lru_cache(maxsize=16)
def _ed25519(secret: str) -> Any:
    """The private key: PEM, or the 32 bytes of its seed in base64."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        if secret.lstrip().startswith("-----BEGIN"):
            key = load_pem_private_key(secret.encode(), None)
            if not isinstance(key, Ed25519PrivateKey):
                raise PrerequisiteError("a signing key is not an Ed25519 key")
            return key
        return Ed25519PrivateKey.from_private_bytes(base64.b64decode(secret.removeprefix("base64:"), validate=True))
    except (ValueError, TypeError):
        raise PrerequisiteError("a signing key is neither PEM nor 32 bytes in base64") from None
