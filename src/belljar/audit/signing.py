"""A signature of where the audit log stands: whoever rewrites the whole chain can't make it again without the key."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from belljar.audit.chain import Link
from belljar.audit.log import audit_log
from belljar.audit.reading import records
from belljar.audit.verify import Verdict, verify
from belljar.errors import PrerequisiteError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


def make_key(path: str) -> str:
    """Write a new key into a file that only its owner can read. The public one, as text.

    Raises:
        UsageError: the file is there already.
    """
    ed25519, serialization = _library()
    key = ed25519.Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(key.private_bytes(*form))
    except FileExistsError as error:
        raise UsageError(f"{path} is there already: a key is never overwritten") from error
    return public_text(key.public_key())


def sign(path: str, key_file: str) -> dict[str, Any]:
    """Put a signature of all records so far into the log, as a record of its own.

    Raises:
        UsageError: the log is not in order, or the key can't be read.
    """
    verdict = verify(path)
    if not verdict.ok:
        raise UsageError(f"the log is not in order, and is not signed: {verdict.where}: {verdict.problem}")
    key = _private(key_file)
    signed = {
        "event": "signed",
        "signed_seq": verdict.link.seq,
        "signed_digest": verdict.link.digest,
        "public_key": public_text(key.public_key()),
        "signature": base64.b64encode(key.sign(_message(verdict.link))).decode(),
    }
    audit_log().append(signed)
    return signed


def check(path: str, public_key: str, seen: Callable[[int], None] | None = None) -> Verdict:
    """As `verify`, and every signature by this key is right, and there is one."""
    verdict = verify(path, seen)
    key = _public(public_key)
    known = public_text(key)
    digests: dict[int, str] = {}
    signatures = 0
    for record in records(path):
        digests[record["seq"]] = record["digest"]
        if record.get("event") == "signed" and record.get("public_key") == known:
            signatures += 1
            if not _is_right(key, record, digests):
                problem = f"the signature in record {record['seq']} is not that of record {record.get('signed_seq')}"
                return Verdict(
                    ok=False, records=verdict.records, link=verdict.link, where="signatures", problem=problem
                )
    if verdict.ok and not signatures:
        return Verdict(
            ok=False, records=verdict.records, link=verdict.link, where="signatures", problem="none is by this key"
        )
    return verdict


def _is_right(key: Ed25519PublicKey, record: dict[str, Any], digests: dict[int, str]) -> bool:
    from cryptography.exceptions import InvalidSignature

    seq, digest = record.get("signed_seq"), str(record.get("signed_digest"))
    if not isinstance(seq, int) or digests.get(seq) != digest:
        return False
    try:
        key.verify(base64.b64decode(str(record.get("signature"))), _message(Link(seq, digest)))
    except (InvalidSignature, ValueError):
        return False
    return True


def _message(link: Link) -> bytes:
    return f"belljar audit log: {link.seq} {link.digest}".encode()


def public_text(key: Ed25519PublicKey) -> str:
    """A public key as one word."""
    return base64.b64encode(key.public_bytes_raw()).decode()


def _public(text: str) -> Ed25519PublicKey:
    ed25519, _serialization = _library()
    try:
        key: Ed25519PublicKey = ed25519.Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise UsageError(f"{text!r} is no public key", hint="belljar audit keygen FILE prints it") from error
    return key


def _private(path: str) -> Ed25519PrivateKey:
    ed25519, serialization = _library()
    try:
        with open(path, "rb") as file:
            key = serialization.load_pem_private_key(file.read(1 << 16), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} holds no key: {error}", hint=f"make one: belljar audit keygen {path}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(f"the key in {path} is not an Ed25519 one")
    found: Ed25519PrivateKey = key
    return found


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise PrerequisiteError("signing needs cryptography", hint="pip install cryptography") from error
    return ed25519, serialization
