"""The backends by name, best first. Naming one is the only way to get `unconfined`."""

from __future__ import annotations

from belljar.backends.contract import Availability, Backend
from belljar.errors import PrerequisiteError

AUTOMATIC = ("bubblewrap",)
"""What `backend: auto` chooses from, the strongest first."""

NAMES = ("bubblewrap", "gvisor", "docker", "podman", "unconfined")

_CONTAINERS = ("gvisor", "docker", "podman")
_LATER = ("landlock", "seatbelt")


def create(name: str, *, state: str) -> Backend:
    """The backend called `name`. Raises PrerequisiteError for one that this version does not have."""
    if name == "bubblewrap":
        from belljar.backends.bubblewrap.host.backend import BubblewrapBackend

        return BubblewrapBackend(state=state)
    if name in _CONTAINERS:
        from belljar.backends.container.backend import ContainerBackend

        return ContainerBackend(name=name, state=state)
    if name == "unconfined":
        from belljar.backends.unconfined import UnconfinedBackend

        return UnconfinedBackend()
    raise PrerequisiteError(
        f"this version of belljar has no backend {name!r}", hint=f"use one of: auto, {', '.join(NAMES)}"
    )


def availability(name: str, *, state: str, image: str = "") -> Availability:
    """What `probe` says, for backends that exist and for those that do not yet.

    A container engine has to have `image`; without one, belljar's own.
    """
    if name in _LATER:
        return Availability(name, available=False, reason="not in this version of belljar")
    if name in _CONTAINERS and image:
        from belljar.backends.container.probe import probe

        return probe(name, image)
    return create(name, state=state).probe()


def everything(*, state: str, image: str = "") -> list[Availability]:
    """All of them, in the order in which they would be chosen."""
    return [availability(name, state=state, image=image) for name in (*NAMES, *_LATER)]
