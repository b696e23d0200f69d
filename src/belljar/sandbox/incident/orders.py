"""What another process may have done to a run of this one, besides ending it: keeping its files, quarantining it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from belljar.errors import AuditError, BelljarError, SandboxUnavailableError, UsageError
from belljar.sandbox.files import snapshots
from belljar.sandbox.files.snapshots import Snapshot
from belljar.sandbox.record.stream import Handle, new_run_id

if TYPE_CHECKING:
    from belljar.sandbox.session.home import Home


def carry_out(order: dict[str, Any], handle: Handle | None, home: Home | None) -> dict[str, Any]:
    """Do it. The answer, or what went wrong."""
    try:
        if order["op"] == "snapshot":
            taken = _keep(str(order["run"]), str(order.get("name") or ""), handle, home)
            return {"id": taken.id, "path": taken.path, "files": taken.files, "size": taken.size}
        return _quarantine(order, handle)
    except BelljarError as error:
        kind = "usage" if isinstance(error, UsageError) else "unavailable"
        return {"fault": kind, "error": error.message, "hint": error.hint}
    except OSError as error:
        return {"fault": "unavailable", "error": error.strerror or str(error), "hint": ""}
    except Exception as error:  # noqa: BLE001 - in a thread that nobody watches: whoever asked has to hear of it
        return {"fault": "unavailable", "error": f"belljar itself failed: {type(error).__name__}: {error}", "hint": ""}


def _keep(target: str, name: str, handle: Handle | None, home: Home | None) -> Snapshot:
    """The files of a run, or of a session that may be idle. The code stands still meanwhile: it is one moment."""
    if home is not None:
        return home.snapshot(name or None)
    if handle is None:
        raise UsageError(f"{target} has just ended", hint="keep what a run made: belljar run --artifacts DIR")
    path = snapshots.path_of(name or new_run_id())
    if os.path.lexists(path):
        raise UsageError(f"there is a snapshot called {name} already", hint="remove it, or use another name")
    with handle.looking:
        access = handle.access
        if access is None:
            raise UsageError(f"{target} has just ended, or has not begun", hint="try again")
        with contextlib.suppress(OSError, BelljarError):  # then it is read while it changes, as far as it can be
            access.process.freeze()
        try:
            held = access.held()
            try:
                whose = {"run": target, "session": handle.session}
                return snapshots.keep(held, most_bytes=access.policy.fs.size_bytes, path=path, **whose)
            finally:
                os.close(held.tree.descriptor)
        finally:
            if not handle.kept_still:
                with contextlib.suppress(OSError):  # it was ended meanwhile
                    access.process.thaw()


def _quarantine(order: dict[str, Any], handle: Handle | None) -> dict[str, Any]:
    from belljar.sandbox.incident.quarantine import take_live

    then = str(order["then"])
    if handle is None or then not in ("kill", "keep", "resume"):
        raise UsageError(f"{order['run']} has just ended", hint="try again: what is stored of it is taken then")
    try:
        done = take_live(str(order["run"]), handle, reason=str(order["reason"]), by="belljar quarantine", then=then)  # type: ignore[arg-type]
    except (AuditError, SandboxUnavailableError) as error:
        what = f"it stands still until `belljar kill {order['run']}`" if handle.kept_still else "it goes on"
        raise SandboxUnavailableError(error.message, hint=f"{error.hint}; the run: {what}") from error
    return {**{name: getattr(done, name) for name in done.__dataclass_fields__}, "missing": dict(done.missing)}


__all__ = ["carry_out"]
