"""The audit log's records: each carries the digest of the one before, so that none can be changed or taken out. Pure.

A record is one line of JSON whose last member is the SHA-256 of the line without that member. Nothing has to be made
canonical to check it: the bytes that were written are what was hashed.
"""

from __future__ import annotations

from collections.abc import Iterable

from belljar._startup import json_text
from belljar.policy.digest import sha256

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

FIRST = "0" * 64
"""What the first record of all has instead of the digest of one before."""
_MARK = b',"digest":"'
_TAIL = len(_MARK) + 64 + len(b'"}')


class BrokenRecordError(Exception):
    """A line that is no record, or not the one that was written. Its text says which."""


class Link:
    """Where a chain stands: the number and the digest of its last record. Made often, and so a plain class."""

    __slots__ = ("digest", "seq")

    def __init__(self, seq: int, digest: str) -> None:
        self.seq = seq
        self.digest = digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Link) and (self.seq, self.digest) == (other.seq, other.digest)

    def __hash__(self) -> int:
        return hash((self.seq, self.digest))

    def __repr__(self) -> str:
        return f"Link(seq={self.seq}, digest={self.digest!r})"


START = Link(0, FIRST)


def encode(after: Link, time: float, events: Iterable[dict[str, Any] | str]) -> tuple[bytes, Link]:
    """The next records as lines, and where the chain stands then. An event may be its members' JSON already."""
    seq, digest, lines = after.seq, after.digest, []
    for event in events:
        members = event if isinstance(event, str) else json_text.dumps(event)[1:-1]
        seq += 1
        body = f'{{"seq":{seq},"time":{time!r},"prev":"{digest}",{members}'
        digest = sha256(f"{body}}}".encode())
        lines.append(f'{body},"digest":"{digest}"}}\n')
    return "".join(lines).encode(), Link(seq, digest)


def decode(line: bytes) -> dict[str, Any]:
    """A record, if its digest is right. Raises BrokenRecordError."""
    line = line.rstrip(b"\n")
    mark = line[-_TAIL : -_TAIL + len(_MARK)]
    if mark != _MARK or not line.endswith(b'"}'):
        raise BrokenRecordError("it is not a record")
    body = line[:-_TAIL] + b"}"
    digest = line[-66:-2].decode("ascii", "replace")
    if sha256(body) != digest:
        raise BrokenRecordError("it was changed: its digest is not that of its text")
    import json

    try:
        record: dict[str, Any] = json.loads(line)
        if isinstance(record["seq"], int) and isinstance(record["prev"], str):
            return record
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise BrokenRecordError("it is not a record")


def follow(after: Link, record: dict[str, Any]) -> Link:
    """Where the chain stands after a record. Raises BrokenRecordError if it does not follow."""
    seq = record["seq"]
    if seq == after.seq + 1 and record["prev"] == after.digest:
        return Link(seq, record["digest"])
    if seq > after.seq + 1:
        missing = f"record {after.seq + 1} is" if seq == after.seq + 2 else f"records {after.seq + 1} to {seq - 1} are"
        raise BrokenRecordError(f"it is record {seq}, and {missing} missing before it")
    if seq <= after.seq:
        raise BrokenRecordError(f"it is record {seq}, and stands after record {after.seq}: out of order")
    raise BrokenRecordError(f"it does not follow the record {after.seq} that stands before it, which is another")
