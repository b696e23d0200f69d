"""The digest of a policy: one name for all that can be enforced, wherever it was written."""

from __future__ import annotations

from typing import Any

from belljar.policy.models import Policy


def digest(policy: Policy) -> str:
    """`sha256:…` of the canonical JSON of the policy's mapping."""
    import json
    from hashlib import sha256

    from belljar.policy.mapping import to_mapping

    mapping: dict[str, Any] = to_mapping(policy)
    text = json.dumps(mapping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + sha256(text.encode("ascii")).hexdigest()
