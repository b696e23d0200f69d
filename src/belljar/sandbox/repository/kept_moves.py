"""Moves of refs that nobody decided about yet, beside the kept work of their run: `belljar apply` takes them up later.

`commits.json` says what was found when the commits came in: which refs moved, what their commits change and hold. The
commits themselves are in the host's repository, as `refs/belljar/RUN/…`. belljar wrote the file, where no jar can.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import Any

from belljar.errors import UsageError
from belljar.sandbox.repository import moving
from belljar.sandbox.repository.checking import Commit
from belljar.sandbox.repository.host_git import GitError
from belljar.sandbox.repository.incoming import Incoming, Move
from belljar.sandbox.repository.judging import Mark
from belljar.sandbox.repository.making import JarRepository, jar_repositories, refs_of

_NAME = "commits.json"
_INDEX = "index-{}"


def save(arrived: Incoming, directory: str) -> None:
    """Write the moves of a run into the directory of its kept work."""
    if not arrived.moves:
        return
    repositories = {move.repository.path: move.repository for move in arrived.moves}
    told = {
        "heads": {path: [one.head, arrived.heads.get(one.place, "")] for path, one in repositories.items()},
        "moves": [_told(move) for move in arrived.moves],
    }
    for one in repositories.values():
        _write(os.path.join(directory, _INDEX.format(one.number)), one.index)
    _write(os.path.join(directory, _NAME), json.dumps(told).encode("ascii"))


def load(directory: str, project: str, run: str) -> Incoming:
    """Take up the moves of a run again, as far as the project's repositories still have its commits.

    Raises:
        UsageError: what was written down can't be read.
    """
    arrived = Incoming(run)
    try:
        with open(os.path.join(directory, _NAME), encoding="ascii") as file:
            told = json.load(file)
    except FileNotFoundError:
        return arrived
    except (OSError, ValueError) as error:
        raise UsageError(f"the commits of {run} can't be read: {error}") from error
    found = jar_repositories(project, project)
    repositories = {one.path: one for one in found.all}
    arrived.know(repositories.values())
    used: dict[str, JarRepository] = {}
    for row in told["moves"]:
        path = row.pop("repository")
        if path not in repositories:
            arrived.problems.append(f"{path or project}: the repository is not there any more")
            continue
        if path not in used:
            one = repositories[path]
            used[path] = replace(one, index=_read(os.path.join(directory, _INDEX.format(one.number))))
            start, end = told["heads"][path]
            if one.head == start:  # otherwise the user has another branch checked out by now, and stays there
                arrived.heads[one.place] = end
        move = _move(row, used[path])
        if _is_there(move, run):
            arrived.moves.append(move)
    return arrived


def waiting(directory: str) -> list[str]:
    """Say which refs are kept there, moved or not. Asks no git."""
    try:
        with open(os.path.join(directory, _NAME), encoding="ascii") as file:
            moves = json.load(file)["moves"]
    except (OSError, ValueError):
        return []
    return [f"{move['repository']}: {move['name']}".removeprefix(": ") for move in moves]


def _told(move: Move) -> dict[str, Any]:
    marks, commits = [asdict(mark) for mark in move.marks], [asdict(commit) for commit in move.commits]
    plain = {"name": move.name, "old": move.old, "new": move.new, "paths": sorted(move.paths)}
    return {
        **plain,
        "repository": move.repository.path,
        "commits": commits,
        "marks": marks,
        "submodules": move.submodules,
    }


def _move(row: dict[str, Any], repository: JarRepository) -> Move:
    commits = tuple(Commit(**{**one, "parents": tuple(one["parents"])}) for one in row["commits"])
    marks = tuple(Mark(**one) for one in row["marks"])
    submodules = tuple((path, commit) for path, commit in row["submodules"])
    return Move(repository, row["name"], row["old"], row["new"], commits, frozenset(row["paths"]), marks, submodules)


def _is_there(move: Move, run: str) -> bool:
    """Return True if the repository has the commits of a move, and did not move there since."""
    try:
        refs, _links = refs_of(move.repository.git)
        now = moving.head_id(move.repository.git) if move.name == "HEAD" else refs.get(move.name)
    except GitError:
        return False
    return refs.get(move.kept_as(run)) == move.new != now


def _write(path: str, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


__all__ = ["load", "save", "waiting"]
