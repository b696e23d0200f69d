"""Which addresses may be dialled: the table is the policy's own, because a managed policy is judged by it too."""

from __future__ import annotations

from belljar.policy.keys.addresses import METADATA, METADATA_V6, is_public, judge

__all__ = ["METADATA", "METADATA_V6", "is_public", "judge"]
