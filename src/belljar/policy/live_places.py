"""Directories that code could write: those that a Sandbox showed as they are (`--live`). Kept in the state directory.

Code that had such a directory may have left a link in it. Whoever follows the link later, to mount what is behind it or
to read a policy, does what the code wants. So belljar remembers these directories, and follows no link in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from belljar.errors import PolicyError
from belljar.policy import paths
from belljar.state import state_directory

_FILE = "live-places"
_MANY = 500
"""From so many on, those that are gone are forgotten."""


def remember(directories: Iterable[str]) -> None:
    """Note directories, by their real paths, before code may write there. The state directory must exist.

    Raises:
        PolicyError: code could write the state directory, whose bytecode belljar executes outside of any jar.
    """
    directories = tuple(directories)
    _refuse_state(directories)
    before = known()
    new = [directory for directory in directories if directory not in before]
    if not new:
        return
    if len(before) > _MANY:
        _forget_gone(before)
    lines = b"".join(os.fsencode(_escaped(directory)) + b"\n" for directory in new)
    file = os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, lines)  # in one piece: others may append as well
    finally:
        os.close(file)


def _refuse_state(directories: Iterable[str]) -> None:
    state = os.path.realpath(state_directory())
    for directory in directories:
        if paths.beneath(state, directory) or paths.beneath(directory, state):
            raise PolicyError(
                f"{directory} can't be live: belljar's state directory is {state}, and bytecode there is run",
                hint="leave out --live and use --apply, or set BELLJAR_STATE_DIR to a directory elsewhere",
            )


def _forget_gone(places: Iterable[str]) -> None:
    """Drop places that are no directory any more: a new directory of that name holds nothing of the code's."""
    there = [place for place in places if os.path.isdir(place)]
    with open(f"{_path()}.new", "wb") as file:
        file.write(b"".join(os.fsencode(_escaped(place)) + b"\n" for place in there))
    os.replace(f"{_path()}.new", _path())


def known() -> tuple[str, ...]:
    """All of them, each once."""
    try:
        with open(_path(), "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return ()
    return tuple(dict.fromkeys(_unescaped(os.fsdecode(line)) for line in lines if line))


def holding(path: str) -> str | None:
    """The live directory in which `path`, or a link on the way to it, lies: its content is the code's choice."""
    places = known()
    steps = paths.visited(path) if places else ()
    return next((place for place in places for step in steps if paths.beneath(step, place)), None)


def first_inside(links: Iterable[str]) -> str | None:
    """The first of the links that lies in a live directory."""
    places = known()
    return next((link for link in links if any(paths.beneath(link, place) for place in places)), None)


def _path() -> str:
    return os.path.join(state_directory(), _FILE)


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace("\n", "\\n")


def _unescaped(line: str) -> str:
    return "\\".join(part.replace("\\n", "\n") for part in line.split("\\\\"))
