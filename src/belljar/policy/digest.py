"""The digest of a policy: one name for all that can be enforced, wherever it was written."""

from __future__ import annotations

from belljar.errors import InternalError
from belljar.policy.models import Policy

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any


def digest(policy: Policy) -> str:
    """`sha256:…` of the canonical JSON of the policy's mapping."""
    from belljar._startup import json_text
    from belljar.policy.mapping import to_mapping

    mapping: dict[str, Any] = to_mapping(policy)
    return "sha256:" + sha256(json_text.dumps(mapping, sort_keys=True).encode("ascii"))


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256."""
    return str(_SHA256(data).hexdigest())


def _found() -> Any:
    """The interpreter's own: hashlib would load OpenSSL first. `_sha256` up to Python 3.11, `_sha2` since."""
    for module in ("_sha2", "_sha256", "hashlib"):
        try:
            return __import__(module).sha256
        except ImportError:
            continue
    raise InternalError("this Python has no SHA-256")


_SHA256 = _found()
