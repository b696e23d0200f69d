"""What is known of a run, as the files of a bundle: from the audit log, from what is stored beside it, from its jar."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import subprocess
from collections.abc import Mapping
from typing import Any

from belljar.audit import reading, stored
from belljar.audit.log import directory
from belljar.audit.store import RunStore
from belljar.backends.hostile_files import walk
from belljar.backends.runtimes import find_program
from belljar.errors import BelljarError
from belljar.policy.models import Policy
from belljar.sandbox.files.snapshots import Held, take
from belljar.sandbox.incident.evidence_archive import EvidenceArchiveWriter
from belljar.sandbox.record import redacting
from belljar.sandbox.record.stored_output import STREAMS, of_records

_MOST_STEPS = 10_000 - 100
_MOST_TOLD = 3
"""Files that are named, of those that could not be kept."""


class Evidence:
    """Adds it to a bundle, piece by piece. What can't be had is in `missing`, with the reason."""

    def __init__(self, run_id: str, bundle: EvidenceArchiveWriter) -> None:
        self._run_id = run_id
        self._bundle = bundle
        self.records = _records(run_id)
        self._created = next((one for one in self.records if one["event"] == "created"), {})
        self._plan = _digest(next((one["plan"] for one in self.records if one["event"] == "plan"), ""))
        self.missing: dict[str, str] = {}

    def add_records(self) -> None:
        """The audit log's, and of those once more what the network was asked for."""
        if not self.records:
            self.missing["records.jsonl"] = "the audit log has none of the run, or can't be read"
        self._bundle.add("records.jsonl", _lines(self.records))
        self._bundle.add("egress.jsonl", _lines([one for one in self.records if one["event"] == "egress"]))

    def add_stored(self, policy: Policy | None) -> None:
        """What records refer to: the policy, the plan, the code and the input."""
        text = stored.load(stored.policies(), _digest(self._created.get("policy")), ".json")
        self._add("policy.json", self._with_tokens(text, ("env", "set"), policy))
        text = stored.load(stored.plans(), self._plan, ".json")
        self._add("plan.json", self._with_tokens(text, ("env",), policy))
        steps = [one for one in self.records if one["event"] == "step"]
        for step in steps[:_MOST_STEPS]:
            self._add(f"code/{int(step['step'])}", stored.load_input(str(step["code"])))
        if isinstance(code := self._created.get("code"), str):
            self._add("code", stored.load_input(code))
        elif not steps:
            self.missing["code"] = "it is a command: records.jsonl has it" if self._created else "it was not started"
        self._add_input(self._created.get("stdin"))

    def _with_tokens(self, text: bytes | None, place: tuple[str, ...], policy: Policy | None) -> bytes | None:
        """As it is stored, if the environment in it holds no secret: then its digest is that of the records."""
        if text is None:
            return None
        told = json.loads(text)
        env = told
        for key in place:
            env = env.get(key, {})
        clean = self._environment(env, policy)
        if clean == env:
            return text
        env.update(clean)
        return json.dumps(told, indent=2).encode()

    def _environment(self, env: Mapping[str, str], policy: Policy | None) -> dict[str, str]:
        """As it may be stored. Of a policy that can't be read any more nobody knows what that is."""
        if policy is None:
            return dict.fromkeys(env, "<not told>")
        told = {name: str(redacting.for_log(f"{name}={value}", self._run_id, policy)) for name, value in env.items()}
        return {name: text[len(name) + 1 :] if text.startswith(f"{name}=") else text for name, text in told.items()}

    def _add_input(self, given: object) -> None:
        if isinstance(given, str):
            self._add("input", stored.load_input(given))
        else:
            self.missing["input"] = "it was not stored" if given else "it was given none"

    def _add(self, name: str, content: bytes | None) -> None:
        if content is None:
            self.missing[name] = "it is not stored, or not as it was"
        else:
            self._bundle.add(name, content)

    def add_output(self, printed: Mapping[str, bytes | bytearray] | None, policy: Policy | None) -> None:
        """What it printed, as it may be stored."""
        if printed is None:
            printed = self._stored_output()
        for stream in STREAMS:
            self._bundle.add(f"output/{stream}", self._redacted(bytes(printed.get(stream, b"")), policy))

    def _stored_output(self) -> dict[str, bytes]:
        """Of a run that has ended, what was stored of it: with tokens already."""
        found = of_records(self._run_id, self.records)
        if found.missing:
            self.missing["output"] = found.missing
        return {stream: b"".join(piece.data for piece in found.pieces if piece.stream == stream) for stream in STREAMS}

    def _redacted(self, data: bytes, policy: Policy | None) -> bytes:
        if policy is None or not redacting.wanted(policy, "log") or redacting.wanted(policy, "result"):
            return data
        redactor = redacting.of_run(self._run_id, policy)
        if redactor is None:
            return data
        stream = redactor.byte_stream()
        return stream.feed(data) + stream.finish()

    def add_files(self, held: Held, policy: Policy, scratch: str) -> None:
        """The jar's files, as a snapshot, and a list of all that is there, of what a snapshot does not take as well."""
        entries = walk(held.tree.descriptor, own=True)
        tree = [[one.path, one.kind, one.size, f"{held.modes.get(one.path, one.mode):04o}"] for one in entries]
        self._bundle.add(
            "tree.json", json.dumps({"base": held.base, "deleted": held.deleted, "entries": tree}).encode()
        )
        left_out: dict[str, str] = {}
        try:
            taken = take(held, most_bytes=policy.fs.size_bytes, path=scratch, left_out=left_out)
        except BelljarError as error:
            self.missing["files.snapshot"] = str(error)
            return
        if left_out:
            first = "; ".join(f"{path!r}: {why}" for path, why in list(left_out.items())[:_MOST_TOLD])
            self.missing["files"] = f"{len(left_out)} of the jar's, such as {first}"
        try:
            with open(taken.path, "rb") as file:
                self._bundle.add_file("files.snapshot", file, os.fstat(file.fileno()).st_size)
        finally:
            os.unlink(taken.path)

    def add_surroundings(self, policy: Policy | None) -> None:
        """The code's environment, and what ran it."""
        text = stored.load(stored.plans(), self._plan, ".json")
        plan = json.loads(text) if text else {}
        set_by_policy = dict(policy.env.set) if policy else {}
        env = self._environment({**plan.get("env", {}), **set_by_policy}, policy)
        told = {"env": env, "argv": plan.get("argv"), "workdir": plan.get("workdir"), "image": plan.get("image")}
        self._bundle.add("environment.json", json.dumps(told, indent=2).encode())
        self._bundle.add("versions.json", json.dumps(_versions(str(plan.get("backend", ""))), indent=2).encode())


def stored_policy(run_id: str) -> Policy | None:
    """That of a run that has ended; None if it is not stored, or makes no sense to this belljar."""
    from belljar.policy.load.resolve import resolve

    created = next((one for one in _records(run_id) if one["event"] == "created"), {})
    text = stored.load(stored.policies(), _digest(created.get("policy")), ".json")
    try:
        return None if text is None else resolve(layers=[json.loads(text)])
    except BelljarError:
        return None


def _records(run_id: str) -> list[dict[str, Any]]:
    """What the log has of the run: by the index, and if that can't be written, by reading it all.

    Nothing, if the log can't be read at all: what else there is of a run that stands still is taken all the same.
    """
    try:
        with RunStore() as store:
            return list(store.events(run_id))
    except (sqlite3.Error, OSError):
        pass
    try:
        return [one for one in reading.records(directory()) if one.get("run") == run_id]
    except OSError:
        return []


def _lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode("ascii") + b"\n" for one in records)


def _digest(text: object) -> str:
    return str(text or "none").removeprefix("sha256:")


def _versions(backend: str) -> dict[str, str]:
    from belljar import __version__

    name = os.uname()
    told = {
        "belljar": __version__,
        "python": platform.python_version(),
        "kernel": f"{name.sysname} {name.release} {name.version}",
        "machine": name.machine,
        "backend": backend,
    }
    try:
        told["system"] = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        pass
    if backend == "bubblewrap" and (program := find_program("bwrap", "/usr/bin:/bin")):
        found = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=10)
        told["bubblewrap"] = found.stdout.strip()
    return told


__all__ = ["Evidence", "stored_policy"]
