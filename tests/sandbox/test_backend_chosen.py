"""Which backend a policy gets. Nothing weaker is used unless the policy names it."""

from __future__ import annotations

from typing import Any

import pytest

from belljar import Sandbox
from belljar.backends import registry
from belljar.errors import PolicyError, PrerequisiteError
from belljar.policy.resolve import resolve
from belljar.sandbox.detect import candidates, detect

CANDIDATES = [
    ({}, registry.AUTOMATIC),
    ({"backend": "bubblewrap"}, ("bubblewrap",)),
    ({"backend": "docker"}, ("docker",)),
    ({"backend": "docker", "fallback": ["bubblewrap"]}, ("docker", "bubblewrap")),
    ({"backend": "bubblewrap", "fallback": ["bubblewrap", "unconfined"]}, ("bubblewrap", "unconfined")),
]


@pytest.mark.parametrize(("layer", "expected"), CANDIDATES)
def test_what_a_policy_allows(layer: dict[str, Any], expected: tuple[str, ...]) -> None:
    """In the policy's order, none twice."""
    assert candidates(resolve(layers=[layer], managed=None)) == expected


def test_unconfined_is_never_chosen_by_itself() -> None:
    """It has to be written down."""
    assert "unconfined" not in registry.AUTOMATIC


def test_one_that_does_not_exist_yet_is_told(state_directory: str) -> None:
    """With what to use instead; and no other is taken in its place."""
    policy = resolve(layers=[{"backend": "gvisor"}], managed=None)
    with pytest.raises(PrerequisiteError, match="gvisor"):
        detect(policy, state=state_directory)
    with pytest.raises(PrerequisiteError, match="gvisor"):
        Sandbox(policy)


@pytest.mark.backend("bubblewrap")
def test_the_fallback_is_taken_and_told() -> None:
    """The result says for whom it stands in."""
    with Sandbox({"backend": "gvisor", "fallback": ["bubblewrap"]}) as jar:
        result = jar.exec(["echo", "x"])
    assert (result.stdout, result.backend, result.fallback_from) == ("x\n", "bubblewrap", ("gvisor",))


def test_no_such_name_is_the_policys_mistake() -> None:
    """With the nearest that there is."""
    with pytest.raises(PolicyError, match="did you mean 'bubblewrap'"):
        Sandbox(backend="bublewrap")
