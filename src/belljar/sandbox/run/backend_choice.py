"""Which backend a policy gets: the one it names, or the best there is; a weaker one only if the policy lists it."""

from __future__ import annotations

from belljar._startup.records import dataclass
from belljar.backends import registry
from belljar.backends.contract import Availability, Backend
from belljar.errors import PrerequisiteError
from belljar.policy.models import Policy


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend that would be used, why, and what was passed over."""

    backend: str
    reason: str
    rejected: tuple[Availability, ...] = ()


def candidates(policy: Policy) -> tuple[str, ...]:
    """The backends that this policy allows, in order."""
    first = registry.AUTOMATIC if policy.backend == "auto" else (policy.backend,)
    return tuple(dict.fromkeys((*first, *policy.fallback)))


def detect(policy: Policy, *, state: str) -> Choice:
    """Try each candidate for real, and choose the first that works.

    Raises:
        PrerequisiteError: none does; the message has each one's reason.
    """
    rejected: list[Availability] = []
    for name in candidates(policy):
        found = registry.availability(name, state=state, image=policy.container.image)
        if found.available:
            return Choice(name, found.reason, tuple(rejected))
        rejected.append(found)
    reasons = "; ".join(f"{found.backend}: {found.reason}" for found in rejected)
    hint = next((found.hint for found in rejected if found.hint), "run `belljar doctor`")
    raise PrerequisiteError(f"no backend that the policy allows works on this host: {reasons}", hint=hint)


def open_best(policy: Policy, *, state: str) -> tuple[Backend, tuple[str, ...]]:
    """The backend for a Sandbox, and the names of those it stands in for.

    With one candidate nothing is probed: it works, or its own error says why not, and that is quicker.
    """
    names = candidates(policy)
    if len(names) == 1:
        return registry.create(names[0], state=state), ()
    choice = detect(policy, state=state)
    return registry.create(choice.backend, state=state), tuple(found.backend for found in choice.rejected)


def all_availability(*, state: str, image: str = "") -> list[Availability]:
    """Every backend, and whether it works here; container engines with `image`, if a policy names one."""
    return registry.everything(state=state, image=image)
