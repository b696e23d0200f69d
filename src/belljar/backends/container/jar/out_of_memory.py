"""Whether a container was killed for its memory, where its state does not say so though the engine has noticed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from belljar.backends.container.jar.attached import Attached
from belljar.errors import BelljarError

_KILLED = 137
_LATE = timedelta(seconds=1)
"""How long after the end docker may hear of the reason."""
_SECONDS = 10.0


def told_late(container: Attached, state: Mapping[str, Any]) -> bool:
    """Look elsewhere for what ended a container whose `State` has no OOMKilled.

    docker learns of the end and of the reason by two messages. If that of the end is first, OOMKilled stays false for
    ever, and only its events tell: with gVisor, where the whole container is one victim, this is one in five.

    podman 4 looks for the file `oom` of its monitor in one directory, and conmon 2.1 writes it into another.
    """
    if state.get("ExitCode") != _KILLED:
        return False
    engine, name = container.engine, container.name
    if container.monitored is not None:
        return os.path.exists(os.path.join(container.monitored, "oom"))
    if engine.name != "docker":
        return False
    with contextlib.suppress(BelljarError, KeyError, ValueError):
        since, until = str(state["StartedAt"]), _after(str(state["FinishedAt"]))
        only = ("--filter", f"container={name}", "--filter", "event=oom")
        return bool(engine.run("events", "--since", since, "--until", until, *only, timeout=_SECONDS).strip())
    return False


def _after(finished_at: str) -> str:
    """A moment later, on the engine's own clock; asked for events until then, it waits for them."""
    whole, _, fraction = finished_at.rstrip("Z").partition(".")
    finished = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}")  # docker tells nanoseconds
    return (finished + _LATE).isoformat() + "Z"
