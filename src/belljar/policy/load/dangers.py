"""What hands the host to the code: only a policy that starts from `unrestricted` may have it, whatever else it says.

A privileged container, the host's network or processes, and the socket of a container engine. Beneath a managed policy
it must stand there as well: `unrestricted` is anyone's word, the managed policy is the host's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from belljar._startup.records import NamedTuple
from belljar.policy.layer import Layer
from belljar.policy.models import Origin
from belljar.policy.problems import Problems, found

_HINT = "if the code may have the whole host, write 'extends: unrestricted' (or use --policy unrestricted)"
_MANAGED_HINT = "a managed policy can be tightened, never loosened"


class _Danger(NamedTuple):
    key: str
    origin: Origin
    wanted: str
    what: str
    why: str


def judge(values: Layer, problems: Problems, *, unrestricted: bool, ceiling: Layer | None) -> bool:
    """Whether there is any danger; each that is not granted is noted."""
    dangers = (*_values(values), *_sockets(values))
    for danger in dangers:
        said = f"{danger.key}: wanted {danger.wanted}, found {danger.what}: {danger.why}"
        if not unrestricted:
            problems.add(danger.origin, f"{said}; only a policy that extends 'unrestricted' may have that", hint=_HINT)
        elif ceiling is not None and danger.key not in ceiling:
            problems.add(danger.origin, f"{said}, and the managed policy does not name it", hint=_MANAGED_HINT)
    return bool(dangers)


def _values(values: Layer) -> Iterator[_Danger]:
    written = {key: item for key, item in values.items() if key.startswith("container.")}
    if not written:
        return
    from belljar.policy.keys.table import KEYS  # most policies need none of it

    for key, item in written.items():
        for value, why in KEYS[key].dangers:
            if item.value == value:
                refused = [refused for refused, _ in KEYS[key].dangers]
                wanted = [choice for choice in KEYS[key].choices or ("false",) if choice not in refused]
                yield _Danger(key, item.origin, " or ".join(wanted), found(value), why)


def _sockets(values: Layer) -> Iterator[_Danger]:
    mounts = values["fs.mounts"].value if "fs.mounts" in values else ()
    shown = [("fs.mounts", item.origin, item.value.source) for item in mounts if item.value.source]
    if (venv := values.get("python.venv")) and venv.value:
        shown.append(("python.venv", venv.origin, os.path.realpath(venv.value)))
    if not shown:
        return
    from belljar.policy.load.engine_sockets import shown_by

    for key, origin, source in shown:
        if socket := shown_by(source, os.environ):
            why = f"{socket} lies in it, and who reaches a container engine is root on the host"
            yield _Danger(key, origin, "a directory without an engine's socket", source, why)
