"""A resolved policy with a mapping over it, for one call: it may grant less than the policy, and never more."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from belljar.policy.layer import Layer
from belljar.policy.load.assemble import assemble
from belljar.policy.load.ceiling import apply
from belljar.policy.load.merge import Merged
from belljar.policy.load.validate import validate
from belljar.policy.mapping import to_mapping
from belljar.policy.models import Origin, Policy
from belljar.policy.nodes import from_plain
from belljar.policy.problems import Problems

_NAME = "policy"


def tightened(policy: Policy, mapping: Mapping[str, Any], *, by: str) -> Policy:
    """The policy, and over it what `mapping` says in the form of the file. `by` is whose word that is, for errors.

    Raises:
        PolicyError: the mapping is wrong, or asks for something that the policy does not grant.
    """
    problems = Problems()
    under = _layer(_as_written(policy), Origin("its own"), problems)
    over = _layer(mapping, Origin(by), problems)
    for key in ("extends", "version"):
        if written := over.get(key):
            problems.add(written.origin, f"{key}: wanted only what is tightened, found a whole policy")
    merged = Merged()
    merged.lay(under, problems)
    merged.lay(over, problems)
    problems.check()
    apply(merged, under, problems, name=_NAME)
    problems.check()
    made = assemble(merged.values, problems, dangerous=policy.dangerous)
    problems.check()
    assert made is not None
    return made


def _layer(mapping: Mapping[str, Any], origin: Origin, problems: Problems) -> Layer:
    return validate(from_plain(mapping, origin, problems), problems, base=os.getcwd())


def _as_written(policy: Policy) -> dict[str, Any]:
    """Without what it extends: everything is in it, its patterns too."""
    told = {key: value for key, value in to_mapping(policy).items() if key not in ("version", "extends")}
    return {**told, "fs": {**told["fs"], "deny_globs": list(policy.fs.deny_globs)}}
