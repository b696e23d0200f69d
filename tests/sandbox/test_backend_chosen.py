"""Which backend a policy gets. Nothing weaker is used unless the policy names it."""

from __future__ import annotations

from typing import Any

import pytest

from belljar import Sandbox
from belljar.backends import registry
from belljar.backends.contract import RunRequest
from belljar.errors import PolicyError, PrerequisiteError
from belljar.policy.keys.table import CLAUSES
from belljar.policy.load.resolve import resolve
from belljar.sandbox.run.backend_choice import candidates, detect

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


def test_unconfined_accounts_for_every_clause() -> None:
    """Once each; what would confine a container holds nothing here, and what is asked of one can't be had."""
    asked = {"image": "a", "ports": ["1:1"], "pull": "missing"}
    for layer in ({}, {"container": asked}):
        policy = resolve("unrestricted", layers=[layer], managed=None)
        report = registry.create("unconfined", state="").compile(policy, RunRequest(argv=("true",))).report
        keys = [clause.key for clause in report.clauses]
        assert set(keys) >= set(CLAUSES)
        assert len(keys) == len(set(keys))
        short = {clause.key for clause in report.shortfalls() if clause.key.startswith("container.")}
        always = {"container.network", "container.pid", "container.privileged", "container.read_only"}
        assert short == always | {f"container.{name}" for name in layer.get("container", {})}


def test_one_that_does_not_exist_yet_is_told(state_directory: str) -> None:
    """With what to use instead; and no other is taken in its place."""
    policy = resolve(layers=[{"backend": "seatbelt"}], managed=None)
    with pytest.raises(PrerequisiteError, match="seatbelt"):
        detect(policy, state=state_directory)
    with pytest.raises(PrerequisiteError, match="seatbelt"):
        Sandbox(policy)


@pytest.mark.backend("bubblewrap")
def test_the_fallback_is_taken_and_told() -> None:
    """The result says for whom it stands in."""
    with Sandbox({"backend": "seatbelt", "fallback": ["bubblewrap"]}) as jar:
        result = jar.exec(["echo", "x"])
    assert (result.stdout, result.backend, result.fallback_from) == ("x\n", "bubblewrap", ("seatbelt",))


def test_no_such_name_is_the_policys_mistake() -> None:
    """With the nearest that there is."""
    with pytest.raises(PolicyError, match="did you mean 'bubblewrap'"):
        Sandbox(backend="bublewrap")
