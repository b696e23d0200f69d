"""Whether a container was killed for its memory, where its state does not say so: docker may hear of it too late."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from belljar.backends.container.engine import Engine
from belljar.errors import BelljarError

_KILLED = 137
_LATE = timedelta(seconds=1)
"""How long after the end docker may hear of the reason."""
_SECONDS = 10.0


def told_late(engine: Engine, name: str, state: Mapping[str, Any]) -> bool:
    """Look in the engine's record for what ended the container `name`, whose `State` has no OOMKilled.

    docker learns of the end and of the reason by two messages. If that of the end is first, OOMKilled stays false for
    ever, and only its events tell: with gVisor, where the whole container is one victim, this is one in five.
    """
    if engine.name != "docker" or state.get("ExitCode") != _KILLED:
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
