"""What the keys of `container` and the rest of a policy have to agree on. Pure."""

from __future__ import annotations

from belljar.policy.layer import Layer
from belljar.policy.models import Origin
from belljar.policy.problems import Problems, found, place

_ENGINES = {"docker": ("docker", "nerdctl"), "podman": ("podman",), "gvisor": ("docker", "podman", "nerdctl")}
"""Which engines each backend may use."""
_HINT = "name the backend that you mean, and its fallback: backend: podman, fallback: []"


def check(values: Layer, problems: Problems) -> None:
    """Note what contradicts itself."""
    backends = _backends(values)
    engine, runtime, network = (values.get(f"container.{name}") for name in ("engine", "runtime", "network"))
    for backend, origin in backends.items():
        fitting = _ENGINES.get(backend, ())
        if engine and engine.value != "auto" and fitting and engine.value not in fitting:
            wanted = " or ".join(("auto", *fitting))
            text = f"container.engine: wanted {wanted} for the backend {backend} ({place(origin)})"
            problems.add(engine.origin, f"{text}, found {found(engine.value)}", hint=_HINT)
    if runtime and runtime.value not in ("auto", "runsc") and "gvisor" in backends:
        text = f"container.runtime: wanted runsc for the backend gvisor ({place(backends['gvisor'])})"
        problems.add(
            runtime.origin,
            f"{text}, found {found(runtime.value)}",
            hint="for another runtime write 'backend: docker' or 'backend: podman', and a fallback without gvisor",
        )
    if network and network.value != "none" and not (values.get("net.enabled") and values["net.enabled"].value):
        problems.add(
            network.origin,
            f"container.network: wanted none, because net.enabled is false, found {found(network.value)}",
        )


def _backends(values: Layer) -> dict[str, Origin]:
    """Every backend that may be used, and where it is named."""
    named = [values["backend"]] if "backend" in values else []
    listed = values["fallback"].value if "fallback" in values else ()
    return {item.value: item.origin for item in (*listed, *named)}
