"""The eight presets. Each is a YAML file here; `_compiled.py` holds them read and checked (`scripts/generate.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from belljar.policy.layer import Layer, Written
from belljar.policy.models import DenyRule, HostRule, Mount, Origin
from belljar.policy.presets._compiled import COMPILED

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

PRESETS: Mapping[str, str] = MappingProxyType({name: entry[0] for name, entry in COMPILED.items()})
"""Every preset and one sentence about it."""

_LISTS: dict[str, Any] = {
    "fs.mounts": lambda value: Mount(*value),
    "fs.deny_globs": str,
    "net.allowlist": lambda value: HostRule(*value),
    "net.denylist": lambda value: DenyRule(*value),
    "net.allow_builtin": str,
    "net.host_ports": int,
    "net.publish": str,
    "net.strip_headers": str,
    "net.canary_files": str,
    "env.pass": str,
    "logging.redact": str,
    "logging.redact_in": str,
    "fallback": str,
    "container.ports": str,
}


def preset_names() -> tuple[str, ...]:
    """The presets, from the strictest to none at all."""
    return tuple(PRESETS)


def preset_layer(name: str) -> tuple[str, Layer]:
    """What the preset extends (or nothing), and its layer."""
    _, extends, keys = COMPILED[name]
    file = f"preset {name}"
    layer: Layer = {}
    for key, (value, line, column) in keys.items():
        final = value
        if key in _LISTS:
            final = tuple(Written(_LISTS[key](item), Origin(file, *at), preset=True) for item, *at in value)
        elif key == "env.set":
            final = {variable: Written(text, Origin(file, *at), preset=True) for variable, (text, *at) in value.items()}
        layer[key] = Written(final, Origin(file, line, column), preset=True)
    return extends, layer
