"""What records refer to by its digest, stored once: policies, plans, and the inputs that a run can be repeated with."""

from __future__ import annotations

import os

from belljar.audit.log import directory
from belljar.audit.state import private_directory, state_directory
from belljar.errors import AuditError
from belljar.policy.digest import sha256

_KNOWN: set[str] = set()


def policies() -> str:
    """Where the texts of policies are."""
    return os.path.join(directory(), "policies")


def plans() -> str:
    """Where the texts of plans are."""
    return os.path.join(directory(), "plans")


def inputs() -> str:
    """Where code and standard input are: not in the log, because they may hold anything."""
    return os.path.join(state_directory(), "inputs")


def store(place: str, data: bytes, suffix: str = "") -> str:
    """Have the data in a file that is named by its digest, which is returned. Raises AuditError."""
    digest = sha256(data)
    path = os.path.join(place, digest + suffix)
    if path in _KNOWN:
        return digest
    try:
        if not os.path.exists(path):
            private_directory(place)
            unfinished = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
            os.rename(unfinished, path)
    except OSError as error:
        raise AuditError(
            f"what the audit log refers to can't be written: {error.strerror}: {place}",
            hint="nothing runs unrecorded: make room on that disk, or set BELLJAR_STATE_DIR to another place",
        ) from error
    if len(_KNOWN) < 10_000:
        _KNOWN.add(path)
    return digest


def load(place: str, digest: str, suffix: str = "") -> bytes | None:
    """What has this digest; None if it is gone, or is not what it was."""
    try:
        with open(os.path.join(place, digest + suffix), "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data if sha256(data) == digest else None
