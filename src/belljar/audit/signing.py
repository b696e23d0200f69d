"""A signature of where the audit log stands: whoever rewrites the whole chain can't make it again without the key."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from belljar.audit.chain import Link
from belljar.audit.log import audit_log, directory
from belljar.audit.reading import records
from belljar.audit.verify import LogVerdict, anchor, pruned_signatures, verify
from belljar.errors import PrerequisiteError, UsageError
from belljar.state import state_directory

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
    _remember(signed)
    return signed


def check(
    path: str, public_key: str, seen: Callable[[int], None] | None = None, *, expect: int | None = None
) -> LogVerdict:
    """As `verify`, and every signature by this key is right, there is one, and they reach as far as is known.

    That is at least up to the record `expect`; and for this user's own log, up to the last one that was signed here: a
    log that was taken back to an earlier signature lacks that one.
    """
    verdict = verify(path, seen)
    if not verdict.ok:
        return verdict
    key = _public(public_key)
    start = anchor(path)
    digests = {start.seq: start.digest}
    reach, pruned = -1, 0
    for record in [*pruned_signatures(path), *records(path)]:
        seq = record.get("seq")
        if isinstance(seq, int) and seq > start.seq:
            digests[seq] = str(record.get("digest"))
        if record.get("event") == "pruned" and record.get("upto") == start.seq and isinstance(seq, int):
            pruned = seq
        if record.get("event") == "signed" and record.get("public_key") == public_text(key):
            signed = record.get("signed_seq")
            if not _is_by(key, record) or not _fits(record, digests, start):
                return _wrong(verdict, f"the signature in record {seq} is not that of record {signed}")
            reach = max(reach, int(record["signed_seq"]))
    if reach < 0:
        return _wrong(verdict, "none is by this key")
    if start.seq and not pruned:
        return _wrong(verdict, f"the log begins after record {start.seq}, and no record says that it was pruned there")
    covered = max(0, reach - start.seq)
    removed = start.seq if pruned > reach else 0
    found = replace(verdict, signed_seq=reach, unsigned=max(0, verdict.records - covered), removed_unsigned=removed)
    if expect is not None and reach < expect:
        return _wrong(found, f"they reach up to record {reach}, and record {expect} was expected to be signed")
    last = _last_signed_here(key) if os.path.realpath(path) == os.path.realpath(directory()) else 0
    if last > reach:
        return _wrong(found, f"record {last} was signed here, and that signature is gone: the log was taken back")
    return found


def _wrong(verdict: LogVerdict, problem: str) -> LogVerdict:
    return replace(verdict, ok=False, where="signatures", problem=problem)


def _fits(record: dict[str, Any], digests: dict[int, str], start: Link) -> bool:
    """Return True if what was signed is what the log has. Of what was removed, only the last digest is known."""
    seq = record["signed_seq"]
    return bool(seq < start.seq or digests.get(seq) == record.get("signed_digest"))


def _is_by(key: Ed25519PublicKey, record: dict[str, Any]) -> bool:
    from cryptography.exceptions import InvalidSignature

    seq = record.get("signed_seq")
    if isinstance(seq, bool) or not isinstance(seq, int) or seq < 0:
        return False
    try:
        signature = base64.b64decode(str(record.get("signature")))
        key.verify(signature, _message(Link(seq, str(record.get("signed_digest")))))
    except (InvalidSignature, ValueError):
        return False
    return True


# --- what was signed here, kept beside the log ---


def _marks_file() -> str:
    return os.path.join(state_directory(), "signed.json")


def _marks() -> dict[str, Any]:
    try:
        with open(_marks_file(), encoding="ascii") as file:
            marks = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return marks if isinstance(marks, dict) else {}


def _last_signed_here(key: Ed25519PublicKey) -> int:
    """Return the last record that a key signed here. Ignores a mark that the key did not sign."""
    mark = _marks().get(public_text(key))
    return int(mark["signed_seq"]) if isinstance(mark, dict) and _is_by(key, mark) else 0


def _remember(signed: dict[str, Any]) -> None:
    marks = {**_marks(), signed["public_key"]: signed}
    unfinished = f"{_marks_file()}.{os.getpid()}"
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(marks, file)
    os.rename(unfinished, _marks_file())


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
        hint = "give the text that `belljar audit keygen` and `belljar audit sign` print"
        raise UsageError(f"{text!r} is no public key", hint=hint) from error
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
