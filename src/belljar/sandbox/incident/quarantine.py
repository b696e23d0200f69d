"""Quarantine: a run stands still, all that is known of it is written into one file, and then it is killed.

Runs in the process that has the run, in a thread of its own; of a run that has ended, in whichever process wants it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from belljar.audit.log import audit_log, record
from belljar.audit.store import RunStore
from belljar.backends.contract import End, Frozen, LaunchPlan
from belljar.errors import AuditError, BelljarError, SandboxUnavailableError, UsageError
from belljar.policy.models import Policy
from belljar.sandbox.files.snapshots import Held
from belljar.sandbox.files.unfinished import sweep
from belljar.sandbox.incident.evidence import Evidence, stored_policy
from belljar.sandbox.incident.evidence_archive import EvidenceArchiveWriter
from belljar.sandbox.record.stream import Access, Handle
from belljar.state import private_directory, state_directory

if TYPE_CHECKING:
    from belljar.sandbox.run.watch import Watch

Then = Literal["kill", "keep", "resume"]
_NOT_FROZEN = Frozen("", still=False)
_PATIENCE_SECONDS = 0.5
"""How long others are waited for who write to the audit log: nobody would know when they end."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """What came of it."""

    run: str
    path: str
    sha256: str
    frozen: str
    """By what it stood still meanwhile; empty if it did not."""
    still: bool
    """Whether every process of it did."""
    missing: Mapping[str, str]
    """What is not in the bundle, and why."""
    unrecorded: str = ""
    """Why it is not in the audit log, if it is not."""


def directory() -> str:
    """Where bundles are kept, if nobody says otherwise."""
    return os.path.join(state_directory(), "quarantine")


def take_live(
    run_id: str, handle: Handle, *, reason: str, by: str, then: Then = "kill", ended_by: str = ""
) -> Quarantined:
    """Of a run of this process. It stands still first, and that is recorded then: whether or not that can be.

    Raises:
        UsageError: it has ended, or has not begun.
        SandboxUnavailableError: the bundle can't be written. The run stands still, unless it was to go on.
    """
    with handle.looking:
        access = handle.access
        if access is None:
            raise UsageError(f"{run_id} has just ended, or has not begun", hint="try again")
        frozen, why = _freeze(access)
        handle.kept_still = bool(frozen.by)  # until it is said otherwise: whatever goes wrong from here on
        _tell("quarantine", run=run_id, reason=reason, by=by, then=then)
        try:
            done = _bundle(
                run_id,
                about={"reason": reason, "by": by, "then": then},
                frozen=frozen,
                missing={"stillness": why} if why else {},
                policy=access.policy,
                held=access.held,
                printed=_printed(handle),
            )
        finally:
            if then == "resume":
                handle.kept_still = False
                with contextlib.suppress(OSError):  # it was ended meanwhile
                    access.process.thaw()
        handle.quarantined = done.path
        if then == "kill":
            handle.kill(ended_by or f"quarantined: {reason}")
        return done


def take_at_end(run_id: str, handle: Handle, policy: Policy, plan: LaunchPlan, watch: Watch, end: End) -> str:  # noqa: PLR0917
    """Of a run that a canary ended, before its end is told. The bundle; that of `take_live`, if there is one."""
    with handle.looking:
        if handle.quarantined:
            return handle.quarantined
        reason = "; ".join(end.problems) or end.ended_by
        _tell("quarantine", run=run_id, reason=reason, by="a canary", then="kill")
        access = handle.access
        done = _bundle(
            run_id,
            about={"reason": reason, "by": "a canary", "then": "kill", "backend": plan.backend},
            frozen=_NOT_FROZEN,
            missing={},
            policy=policy,
            held=access.held if access else None,
            printed=watch.captured,
            end=end,
        )
        handle.quarantined = done.path
        return done.path


def take_ended(name: str, *, reason: str) -> Quarantined:
    """Of a run that has ended, with what is stored of it. Raises UsageError if the audit log knows no such run."""
    with RunStore() as store:
        row = store.run(name)
    if row is None:
        raise UsageError(f"the audit log knows no run {name!r}", hint="`belljar ps --all` lists them")
    run_id = str(row["run"])
    record("quarantine", run=run_id, reason=reason, by="belljar quarantine", then="ended")
    return _bundle(
        run_id,
        about={"reason": reason, "by": "belljar quarantine", "then": "ended"},
        frozen=_NOT_FROZEN,
        missing={},
        policy=stored_policy(run_id),
        held=None,
        printed=None,
    )


def _freeze(access: Access) -> tuple[Frozen, str]:
    """What it stands still by; or why it does not."""
    try:
        frozen = access.process.freeze()
    except (OSError, BelljarError) as error:
        return _NOT_FROZEN, str(error)
    return frozen, "" if frozen.still else "some processes were inside of a call: they stand still when it returns"


def _printed(handle: Handle) -> Mapping[str, bytes]:
    """All that it has printed so far; of a session, in the last steps."""
    parts = [part for _number, part in sorted(handle.parts.items())]
    return {stream: b"".join(bytes(part[stream]) for part in parts) for stream in ("stdout", "stderr")}


def _bundle(
    run_id: str,
    *,
    about: dict[str, Any],
    frozen: Frozen,
    missing: dict[str, str],
    policy: Policy | None,
    held: Callable[[], Held] | None,
    printed: Mapping[str, bytes | bytearray] | None,
    end: End | None = None,
) -> Quarantined:
    with EvidenceArchiveWriter(_path(run_id)) as bundle:
        evidence = Evidence(run_id, bundle)
        evidence.missing.update(missing)
        evidence.add_records()
        evidence.add_stored(policy)
        evidence.add_output(printed, policy)
        evidence.add_surroundings(policy)
        if end is not None:
            bundle.add("end.json", _json(end))
        with contextlib.ExitStack() as stack:
            if (tree := _held(held, evidence, stack)) is not None and policy is not None:
                evidence.add_files(tree, policy, f"{bundle.path}.files")
        told = {"run": run_id, "created": time.time(), **about, "frozen": frozen.by, "still": frozen.still}
        digest = bundle.finish({**told, "missing": evidence.missing})
    unrecorded = _tell(
        "quarantined",
        run=run_id,
        path=bundle.path,
        sha256=digest,
        frozen=frozen.by,
        still=frozen.still,
        missing=sorted(evidence.missing),
    )
    return Quarantined(run_id, bundle.path, digest, frozen.by, frozen.still, evidence.missing, unrecorded)


def _tell(event: str, **details: Any) -> str:
    """Record what is done to stop a run, and is done whether or not that works. Why it does not."""
    try:
        audit_log().append({"event": event, **details}, patience=_PATIENCE_SECONDS)
    except AuditError as error:
        return error.message
    return ""


def _held(held: Callable[[], Held] | None, evidence: Evidence, stack: contextlib.ExitStack) -> Held | None:
    """What the jar holds, until the stack is left."""
    if held is None:
        evidence.missing["files.snapshot"] = "there is no jar any more, and its files are gone with it"
        return None
    try:
        found = held()
    except (BelljarError, OSError) as error:
        evidence.missing["files.snapshot"] = str(error)
        return None
    stack.callback(os.close, found.tree.descriptor)
    return found


def _path(run_id: str) -> str:
    try:
        top = private_directory(directory())
        sweep(top)
    except OSError as error:
        raise SandboxUnavailableError(f"{directory()} can't be made: {error.strerror}") from error
    return os.path.join(top, f"{run_id}.tar")


def _json(end: End) -> bytes:
    told = {name: getattr(end, name) for name in end.__dataclass_fields__}
    told["observations"] = [[seen.kind, seen.target, seen.result, seen.count] for seen in end.observations]
    return json.dumps(told, indent=2).encode()


__all__ = ["Quarantined", "directory", "take_at_end", "take_ended", "take_live"]
