"""What came of an agent's run, for people and for programs: files changed, hosts reached, what was refused. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from belljar.coding_agents.review import Review
from belljar.coding_agents.transcript import Did
from belljar.policy.companions import COMPANIONS
from belljar.policy.keys.hosts import HostError, host_name
from belljar.policy.keys.units import counted
from belljar.sandbox.record.result import RunResult


@dataclass
class Reached:
    """What a run exchanged with one host."""

    host: str
    port: int
    requests: int = 0
    bytes_out: int = 0
    bytes_in: int = 0


def hosts_reached(result: RunResult) -> list[Reached]:
    """Every host that let it in, in the order in which it came to them."""
    found: dict[tuple[str, int], Reached] = {}
    for event in result.egress:
        if not event.allowed or event.kind not in ("connect", "request", "closed"):
            continue
        if event.kind == "closed" and (event.host, event.port) not in found:
            continue  # a refusal was read from the proxy, and the host never heard of it
        one = found.setdefault((event.host, event.port), Reached(event.host, event.port))
        one.requests += event.kind == "request"
        one.bytes_out += event.bytes_out
        one.bytes_in += event.bytes_in
    return list(found.values())


def as_lines(result: RunResult, review: Review | None, did: Did | None = None, *, project: str = "") -> list[str]:
    """A few lines. Names in them are the agent's: escape them for a terminal.

    `project` is the directory that the user named, if it is not the current one.
    """
    lines = _account(result, did) if did and did.transcript else []
    lines += [f"changed    {_changed(review)}"] if review else []
    if review and review.protected:
        lines.append(f"protected  {_listed([change.path for change in review.protected])}")
    if review and review.ignored:
        lines.append(f"ignored    {_listed(review.ignored_groups)}")
    if review and review.commits.moves:
        lines.append(f"commits    {_listed(_commits(review))}")
    if review and review.refused:
        lines.append(f"refused    {_listed([f'{change.path} ({change.refusal})' for change in review.refused])}")
    reached = [
        f"{one.host}:{one.port} ({asked}, {_size(one.bytes_out)} out, {_size(one.bytes_in)} in)"
        for one in hosts_reached(result)
        for asked in (counted(one.requests, "request"),)
    ]
    lines.append(f"reached    {_listed(reached) if reached else 'no host'}")
    denied = [f"{denial.target}{f' ({denial.count} times)' if denial.count > 1 else ''}" for denial in result.denials]
    lines.append(f"denied     {_listed(denied) if denied else 'nothing'}")
    if command := to_allow(result, project):
        lines.append(f"to allow   {command}")
    return lines


def _account(result: RunResult, did: Did) -> list[str]:
    """What it ran by its own account, and what that took."""
    shown = [_shortened(command) for command in did.commands]
    others = sum(did.tools.values()) - len(shown)
    lines = [f"ran        {counted(len(shown), 'command')}: {_listed(shown)}"] if shown else []
    also = f", {counted(others, 'other tool call')}" if others else ""
    tokens = f"{did.input_tokens} tokens in, {did.output_tokens} out"
    return [*lines, f"took       {result.duration:.1f} s, {tokens}{also}"]


def _shortened(command: str) -> str:
    first, _, rest = command.strip().partition("\n")
    return f"{first[:_LONGEST_COMMAND]}…" if rest or len(first) > _LONGEST_COMMAND else first


def to_allow(result: RunResult, project: str = "") -> str:
    """The command that lets the agent reach the hosts that were refused for their names; empty if there are none.

    Names come from the agent and the command is for a shell, so a name that is no plain name of a host is left out.
    """
    asked = dict.fromkeys(one.host for one in result.egress if one.reason == "name-not-listed")
    names = [name for name in asked if _is_plain(name)]
    comes_along = {other.host for name in names for other in COMPANIONS.get(name, ())}
    wanted = [name for name in names if name not in comes_along][:_MOST]
    where = f"--project {shlex.quote(project)}" if project else "--for-project"
    if not wanted and any(denial.rule == "net.enabled" for denial in result.denials):
        return (
            f"belljar allow pypi.org {where}, with the host that it needs: it has no network, so its name is not known"
        )
    return f"belljar allow {' '.join(wanted)} {where}" if wanted else ""


def _is_plain(name: str) -> bool:
    try:
        return host_name(name) == name and "*" not in name
    except HostError:
        return False


def _changed(review: Review) -> str:
    counts: dict[str, int] = {}
    for change in review.files:
        kind = "modified" if change.kind == "mode" else change.kind
        counts[kind] = counts.get(kind, 0) + 1
    words = [f"{count} {kind}" for kind, count in sorted(counts.items())]
    return ", ".join(words) or "nothing"


def _commits(review: Review) -> list[str]:
    """Each moved ref, with the number of its new commits and the first reason against it."""
    told = []
    for move in review.commits.moves:
        why = f", with {move.marks[0].path}: {move.marks[0].why}" if move.marks else ""
        told.append(f"{move.short} ({len(move.commits)} new{why})")
    return told


_MOST = 8
_LONGEST_COMMAND = 60


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count // 1000} kB" if count < 10_000_000 else f"{count >> 20} MB"


def as_mapping(result: RunResult, review: Review | None) -> dict[str, Any]:
    """For JSON."""
    reached = [vars(one) for one in hosts_reached(result)]
    if review is None:
        return {"reached": reached}
    changes = [
        {"path": change.path, "kind": change.kind, "what": change.what, "protected": change.protected}
        | {"ignored": change.ignored}
        | ({"why": change.refusal} if change.refusal else {})
        for change in (*review.files, *review.protected, *review.ignored, *review.refused)
    ]
    commits = [
        {"id": commit.id, "author": commit.author, "subject": commit.subject} for commit in review.commits.commits
    ]
    refs = [
        {"ref": move.name, "repository": move.repository.path, "old": move.old, "new": move.new}
        | {"kept_as": move.kept_as(review.commits.run)}
        | {"marks": [{"commit": mark.commit, "path": mark.path, "why": mark.why} for mark in move.marks]}
        for move in review.commits.moves
    ]
    return {"reached": reached, "changes": changes, "commits": commits, "refs": refs}
