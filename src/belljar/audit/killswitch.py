"""The kill switch: a file in the state directory, or what a variable says. While it is on, nothing runs."""

from __future__ import annotations

import os
import time

from belljar._startup import json_text
from belljar.errors import KillSwitchError
from belljar.state import state_directory

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "BELLJAR_KILLSWITCH"
"""`1`: it is on. A path: it is on while there is a file at it. Nothing, or `0`: what the state directory says."""


_KEY = os.environ.encodekey(VARIABLE)


def path() -> str:
    """The file that `belljar killswitch on` makes."""
    return f"{state_directory()}/killswitch"


def why() -> str:
    """Why nothing may run; empty while it may."""
    if _KEY in os.environ._data and (reason := _said()):  # type: ignore[attr-defined]  # noqa: SLF001 - as in `state`
        return reason
    if not _is_there(path()):
        return ""
    told = read()
    return str(told.get("reason") or "no reason was given")


def _said() -> str:
    """What the variable says."""
    value = os.environ.get(VARIABLE, "")
    if os.sep in value:
        return f"{value} is there ({VARIABLE})" if _is_there(value) else ""
    return f"{VARIABLE} is set" if value not in ("", "0") else ""


def _is_there(name: str) -> bool:
    """Whether there is anything of this name. If that can't be found out, there may be."""
    try:
        os.lstat(name)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def read() -> dict[str, Any]:
    """What whoever turned it on said. A file that says nothing, made by some other program, counts as well."""
    try:
        with open(path(), encoding="utf-8", errors="replace") as file:
            told = json_text.loads(file.read(1 << 16).strip())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def check() -> None:
    """Raises KillSwitchError while it is on."""
    if reason := why():
        raise KillSwitchError(
            f"the kill switch is on: {reason}", hint="`belljar killswitch off`, when whoever turned it on agrees"
        )


def turn_on(reason: str) -> str:
    """Nothing new runs from now on, and every belljar process of this user ends what runs.

    On a full disk the file is empty, which needs no room, and counts as well. Returns why the reason is not in it;
    nothing if it is.

    Raises:
        OSError: the file can't be made, so it is not on.
    """
    os.makedirs(state_directory(), mode=0o700, exist_ok=True)
    text = json_text.dumps({"reason": reason, "since": time.time(), "by": os.getuid()})
    unfinished = f"{path()}.{os.getpid()}"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text + "\n")
        os.rename(unfinished, path())
    except OSError as error:
        _remove(unfinished)
        if not os.path.lexists(path()):
            os.close(os.open(path(), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return error.strerror or str(error)
    return ""


def _remove(name: str) -> None:
    try:
        os.unlink(name)
    except OSError:
        pass


def turn_off() -> bool:
    """Let things run again. False if it was off."""
    try:
        os.unlink(path())
    except FileNotFoundError:
        return False
    return True
