"""Whether the audit log is as it was written: the first record that is changed, missing, out of order or cut off."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from belljar.audit.chain import START, BrokenRecordError, Link, decode, follow
from belljar.audit.log import day_files, read_head
from belljar.audit.reading import lines
from belljar.policy.digest import sha256
from belljar.policy.records import dataclass

ANCHOR = "anchor"
"""The file that says where the chain begins, once older days were removed."""
POLICIES = "policies"
_TOLD_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found."""

    ok: bool
    records: int
    link: Link
    """The last record that is as it was written."""
    where: str = ""
    """File and line of the first that is not."""
    problem: str = ""


def verify(path: str, seen: Callable[[int], None] | None = None) -> Verdict:
    """Look at every record in the directory. `seen` is told now and then how many were."""
    link = start = anchor(path)
    count = 0
    for name, number, line in lines(path, after=through(path)):
        try:
            if not line.endswith(b"\n"):
                raise BrokenRecordError("it is cut off")
            record = decode(line)
            link = follow(link, record)
            if problem := _policy_problem(path, record):
                raise BrokenRecordError(problem)
        except BrokenRecordError as error:
            return Verdict(ok=False, records=count, link=link, where=f"{name}:{number}", problem=str(error))
        count += 1
        if seen is not None and count % _TOLD_AT_ONCE == 0:
            seen(count)
    problem = _head_problem(path, link, start)
    where = f"{(day_files(path) or ['the log'])[-1]}, at its end" if problem else ""
    return Verdict(ok=not problem, records=count, link=link, where=where, problem=problem)


def through(path: str) -> str:
    """The last day's file that was removed, or is to be."""
    try:
        with open(os.path.join(path, ANCHOR), encoding="ascii") as file:
            return str(json.load(file)["through"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def anchor(path: str) -> Link:
    """Where the chain begins: before the first record of all, or after the last one that was removed."""
    try:
        with open(os.path.join(path, ANCHOR), encoding="ascii") as file:
            told = json.load(file)
        return Link(int(told["seq"]), str(told["digest"]))
    except FileNotFoundError:
        return START
    except (ValueError, KeyError, TypeError):
        return Link(-1, "the file `anchor` is damaged")


def _head_problem(path: str, link: Link, start: Link) -> str:
    try:
        with open(os.path.join(path, "head"), "rb") as file:
            head = read_head(file.read(256))
    except FileNotFoundError:
        return "" if link == start else "the file `head` is missing: records after this one may be, too"
    if head is None:
        return "the file `head` is damaged: whether records after this one are missing can't be told"
    if head.link.seq > link.seq:
        return f"the log was cut: its last record is {link.seq}, and {head.link.seq} were written"
    if head.link != link:
        return f"it has records that nobody acknowledged: the last one that was is {head.link.seq}"
    return ""


def _policy_problem(path: str, record: dict[str, Any]) -> str:
    """The full text of a policy lies beside the log, under its digest."""
    if record.get("event") != "policy":
        return ""
    digest = str(record.get("policy", ""))
    name = digest.removeprefix("sha256:")
    if not name.isalnum():
        return "it names no policy"
    try:
        with open(os.path.join(path, POLICIES, f"{name}.json"), "rb") as file:
            return "" if sha256(file.read()) == name else f"the text of the policy {digest} was changed"
    except FileNotFoundError:
        return f"the text of the policy {digest} is missing"
