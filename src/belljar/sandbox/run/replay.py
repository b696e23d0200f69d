"""Running again what ran: the stored policy and code, checked against the audit log; and what differs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from belljar.audit import stored
from belljar.audit.store import RunStore
from belljar.errors import UsageError
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.run.sandbox import Sandbox

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
_DIGESTS = ("stdout", "stderr")
_ENDS = ("finished", "refused")


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
    before = Told(row["run"])
    created = before.beginning()
    policy = _policy(str(created["policy"]))
    stdin = _input(created, before.one("input"))
    with Sandbox(policy, one_shot=True) as jar:
        result = _again(jar, created, stdin)
    differences = _differences(before, Told(result.run_id))
    if result.policy_digest != created["policy"]:  # the managed policy is another, or belljar is
        differences.append(("policy", created["policy"], jar.policy.digest))
    return Replayed(row["run"], result, tuple(differences), _notes(policy, created, stdin))


class Told:
    """What the audit log has of one run."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        with RunStore() as store:
            self.records = list(store.events(run_id))

    def one(self, *events: str) -> dict[str, Any] | None:
        """The last record that is one of these."""
        return next((record for record in reversed(self.records) if record["event"] in events), None)

    def beginning(self) -> dict[str, Any]:
        """How it began. Raises UsageError if it can't be run again, or there would be nothing to compare with."""
        created = self.one("created")
        if created is None:
            raise UsageError(f"the audit log has no beginning of the run {self.run_id}", hint="was it pruned?")
        if created.get("kind") == "session":
            raise UsageError(
                f"{self.run_id} is the run of a session, and sessions are not replayed: their steps came one by one",
                hint=f"`belljar inspect {self.run_id}` lists the steps",
            )
        if lost := self.one("lost"):
            raise UsageError(f"the jar of {self.run_id} broke, so there is nothing to compare with: {lost['reason']}")
        if self.one(*_ENDS) is None:
            raise UsageError(f"{self.run_id} has no end in the audit log: it runs, or was killed with its process")
        return created

    def denied(self) -> list[list[str]]:
        """What was refused, each thing once: how often may depend on the moment."""
        found = [one for one in self.records if one["event"] == "denied"]
        return sorted([str(one.get(key)) for key in ("kind", "target", "rule")] for one in found)

    def made(self) -> list[str]:
        """The files that it made, as far as they are in the log."""
        return [str(path) for path in (self.one("artifacts") or {}).get("paths", ())]


def _differences(before: Told, now: Told) -> list[tuple[str, Any, Any]]:
    ended, again = before.one(*_ENDS) or {}, now.one(*_ENDS) or {}
    known = [what for what in _COMPARED if what in ended]
    found = [(what, ended[what], again.get(what)) for what in known if ended[what] != again.get(what)]
    for stream in _DIGESTS:
        digests = ended.get(f"{stream}_digest"), again.get(f"{stream}_digest")
        if digests[0] != digests[1] and ended.get(f"{stream}_bytes") == again.get(f"{stream}_bytes"):
            found.append((stream, digests[0], digests[1]))
    for what, one, other in (("denied", before.denied(), now.denied()), ("artifacts", before.made(), now.made())):
        if one != other:
            found.append((what, one, other))
    return found


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
    given = _given(created)
    explains = bool(given.get("explain_denials"))
    if "code" not in created:
        return jar.exec(given["argv"], stdin=stdin, explain_denials=explains)
    code = stored.load_input(str(created["code"]))
    if code is None:
        raise UsageError("the code of that run is not stored any more, or was changed")
    words, name = given.get("arguments", ()), given.get("name", "")
    language = str(created["language"])
    return jar.run(code, language=language, name=name, args=words, stdin=stdin, explain_denials=explains)


def _given(created: dict[str, Any]) -> dict[str, Any]:
    """The words of its command, or the arguments and the name of its code: the log's own have tokens in them."""
    if "given" not in created and "code" in created:
        return {}
    data = stored.load_input(str(created.get("given")))
    if data is None:
        raise UsageError("the command or the arguments of that run are not stored any more, or were changed")
    given: dict[str, Any] = json.loads(data)
    return given


def _notes(policy: dict[str, Any], created: dict[str, Any], stdin: bytes | None) -> tuple[str, ...]:
    sources = [str(mount["source"]) for mount in policy["fs"]["mounts"] if mount.get("source")]
    notes = [f"{source} is mounted, and is as it is now" for source in sources]
    if passed := policy["env"].get("pass"):
        names = ", ".join(map(str, passed))
        notes.append(f"{names} came from its caller's environment, and was not stored: it is as it is here and now")
    if policy["net"]["enabled"]:
        notes.append("it has a network, and what answers there may have changed")
    if created.get("stdin") and stdin is None:
        notes.append(
            "it read standard input, which was not stored: it was more than a megabyte, or a pipe of the caller's"
        )
    if count := created.get("files"):
        notes.append(f"{count} {'file was' if count == 1 else 'files were'} written into its workspace, and not stored")
    return tuple(notes)
