"""What a run that has ended printed, as far as it was stored."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from belljar.audit import outputs, stored
from belljar.audit.store import RunStore
from belljar.errors import UsageError
from belljar.sandbox.record.following import Piece

STREAMS = ("stdout", "stderr")


class StoredOutput(NamedTuple):
    """The output of a run, by what the audit log says of it."""

    run_id: str
    pieces: tuple[Piece, ...]
    missing: str
    """Why there is less than it printed; empty if all is there."""
    hint: str = ""

    @property
    def nothing(self) -> bool:
        """Whether it printed something, and none of it is there."""
        return bool(self.missing) and not self.pieces


def find(name: str) -> StoredOutput:
    """That of the run of this name, or of the only one whose name begins or ends so.

    Raises:
        UsageError: the audit log knows no such run.
    """
    with RunStore() as store:
        row = store.run(name)
        if row is None:
            raise UsageError(f"the audit log knows no run {name!r}", hint="`belljar ps --all` lists them")
        records = list(store.events(str(row["run"])))
    return of_records(str(row["run"]), records)


def of_records(run_id: str, records: list[dict[str, Any]]) -> StoredOutput:
    """By the records of the run."""
    pieces: list[Piece] = []
    missing, hint = "", ""
    ends = [record for record in records if record["event"] in ("finished", "stepped")]
    if not ends:
        return StoredOutput(run_id, (), "it has no end in the audit log: it was refused, or its process was killed")
    for record in sorted(ends, key=lambda record: int(record.get("step") or 0)):
        part, kept = int(record.get("step") or 0), record.get("output") or {}
        for stream in STREAMS:
            if (found := kept.get(stream)) is not None:
                data = outputs.load(run_id, part, stream, str(found["digest"]))
                if data is None:
                    missing = "it was stored, and has been removed since, or changed"
                    continue
                pieces.append(Piece(stream, part, data))
                if found.get("left_out"):
                    missing = f"the first {found['left_out']:,} bytes of its {stream} were not stored"
            elif record.get(f"{stream}_bytes"):
                missing = str(kept.get("error") or _not_chosen(records))
                hint = hint or "--set logging.sample_ratio=1 stores the output of every run"
    return StoredOutput(run_id, tuple(pieces), missing, hint if missing else "")


def _not_chosen(records: list[dict[str, Any]]) -> str:
    ratio = None
    for record in records:
        if record["event"] == "created":
            digest = str(record.get("policy")).removeprefix("sha256:")
            if text := stored.load(stored.policies(), digest, ".json"):
                ratio = json.loads(text).get("logging", {}).get("sample_ratio")
    share = "" if ratio is None else f", of which its policy has {ratio:g}"
    return f"what it printed was not stored: it is not in the share of logging.sample_ratio{share}"
