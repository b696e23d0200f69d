"""Running again what ran: the stored policy and code, checked against the audit log; and what differs."""

from __future__ import annotations

import json
from typing import Any

from belljar.audit import stored
from belljar.audit.store import RunStore
from belljar.errors import UsageError
from belljar.policy.records import dataclass
from belljar.sandbox.result import RunResult
from belljar.sandbox.sandbox import Sandbox

_COMPARED = (
    "outcome",
    "exit_code",
    "signal",
    "stdout_bytes",
    "stderr_bytes",
    "truncated",
    "backend",
    "image",
    "denials",
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run that was run again."""

    run_id: str
    result: RunResult
    differences: tuple[tuple[str, Any, Any], ...]
    """What, before, now."""
    notes: tuple[str, ...]
    """What may be why."""


def replay(name: str) -> Replayed:
    """Run it again. Raises UsageError if what it needs is not there (any more)."""
    with RunStore() as store:
        row = store.run(name)
        if row is None:
            raise UsageError(f"the audit log knows no run {name!r}", hint="`belljar ps --all` lists them")
        records = {record["event"]: record for record in store.events(row["run"])}
    created, ended = records.get("created"), records.get("finished")
    if created is None or ended is None:
        raise UsageError(f"the run {row['run']} has no end in the audit log, or no beginning")
    policy = _policy(str(created["policy"]))
    stdin = _input(created, records.get("input"))
    with Sandbox(policy, one_shot=True) as jar:
        result = _again(jar, created, stdin)
    now = _ended(result.run_id)
    differences = [(what, ended.get(what), now.get(what)) for what in _COMPARED if ended.get(what) != now.get(what)]
    if result.policy_digest != created["policy"]:  # the managed policy is another, or belljar is
        differences.append(("policy", created["policy"], jar.policy.digest))
    return Replayed(row["run"], result, tuple(differences), _notes(policy, created, stdin))


def _policy(digest: str) -> dict[str, Any]:
    text = stored.load(stored.policies(), digest.removeprefix("sha256:"), ".json")
    if text is None:
        raise UsageError(f"the policy {digest[:19]} of that run is not stored any more")
    policy: dict[str, Any] = json.loads(text)
    return policy


def _input(created: dict[str, Any], fed: dict[str, Any] | None) -> bytes | None:
    """What it read, if that is stored: it was there before the run, or came while it ran."""
    digest = (fed or created).get("stdin")
    if not isinstance(digest, str):
        return None
    data = stored.load_input(digest)
    if data is None:
        raise UsageError("the standard input of that run is not stored any more, or was changed")
    return data


def _again(jar: Sandbox, created: dict[str, Any], stdin: bytes | None) -> RunResult:
    if command := created.get("command"):
        return jar.exec([str(word) for word in command], stdin=stdin)
    code = stored.load_input(str(created.get("code")))
    if code is None:
        raise UsageError("the code of that run is not stored any more, or was changed")
    arguments = [str(word) for word in created.get("arguments", ())]
    return jar.run(code, language=str(created["language"]), args=arguments, stdin=stdin)


def _ended(run_id: str) -> dict[str, Any]:
    with RunStore() as store:
        return next((record for record in store.events(run_id) if record["event"] in ("finished", "refused")), {})


def _notes(policy: dict[str, Any], created: dict[str, Any], stdin: bytes | None) -> tuple[str, ...]:
    sources = [str(mount["source"]) for mount in policy["fs"]["mounts"] if mount.get("source")]
    notes = [f"{source} is mounted, and is as it is now" for source in sources]
    if policy["net"]["enabled"]:
        notes.append("it has a network, and what answers there may have changed")
    if created.get("stdin") and stdin is None:
        notes.append(
            "it read standard input, which was not stored: it was more than a megabyte, or a pipe of the caller's"
        )
    if count := created.get("files"):
        notes.append(f"{count} {'file was' if count == 1 else 'files were'} written into its workspace, and not stored")
    return tuple(notes)
