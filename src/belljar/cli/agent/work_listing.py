"""Changes of a run for people: protected ones first, a new directory with many files as one line. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from belljar.cli.terminal.safe_text import visible, visible_lines
from belljar.cli.terminal.style import BOLD, DIM, RED, YELLOW, paint
from belljar.policy.keys.units import counted
from belljar.sandbox.files.changes import Change

_FEW = 5
"""Files of a new directory that are listed one by one."""
MOST_LISTED = 50
_SIGNS = {"added": "+", "modified": "~", "deleted": "-", "mode": "~"}
_GREEN = "32"


def listing(changes: Iterable[Change], *, colour: bool, most: int = MOST_LISTED, only_plain: bool = False) -> list[str]:
    """Lines that name all changes, with what each needs. Names are the agent's, and made visible here.

    `only_plain` leaves out those that need another word, and directories in which nothing else is.
    """
    found = list(changes)
    parts = (
        ("", [one for one in found if one.protected], YELLOW),
        ("", [one for one in found if not one.refusal], ""),
        ("git ignores ", [one for one in found if one.ignored], DIM),
        ("refused: ", [one for one in found if one.refusal and not one.protected and not one.ignored], RED),
    )
    directories = {one.path for one in found if one.what == "directory" and one.kind == "added"}
    parents = {above for one in found for above in _above(one.path)}
    lines: list[str] = []
    for label, chosen, tint in parts[1:2] if only_plain else parts:
        rows = _folded(chosen, directories, parents)
        for sign, name, why in rows[:most]:
            text = f"  {sign} {label}{visible(name)}" + (
                f": {visible(why)}" if why and not label.startswith("git") else ""
            )
            lines.append(paint(text, tint or (RED if sign == "-" else _GREEN if sign == "+" else BOLD), on=colour))
        if len(rows) > most:
            lines.append(f"  and {len(rows) - most:,} more")
    return lines


def _folded(changes: list[Change], directories: set[str], parents: set[str]) -> list[tuple[str, str, str]]:
    """Sign, name and reason; files of a new directory together if they are many."""
    inside: dict[str, int] = {}
    tops: dict[str, str | None] = {}
    for change in changes:
        tops[change.path] = top = _top(change.path, directories)
        if top is not None and change.what != "directory":
            inside[top] = inside.get(top, 0) + 1
    rows: list[tuple[str, str, str]] = []
    told: set[str] = set()
    for change in changes:
        top = tops[change.path]
        if top is not None and inside.get(top, 0) > _FEW:
            if top not in told:
                told.add(top)
                rows.append(("+", f"{top}/ ({counted(inside[top], 'file')})", change.refusal))
        elif change.what != "directory" or change.path not in parents or change.kind == "deleted":
            name = f"{change.path}/" if change.what == "directory" else change.path
            note = " (changed on the host, too)" if change.meanwhile else ""
            rows.append((_SIGNS[change.kind], name + note, change.refusal))
    return rows


def _top(path: str, directories: set[str]) -> str | None:
    """The highest new directory that a path is in, or is."""
    return next((above for above in (*_above(path), path) if above in directories), None)


def _above(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]


def coloured(diff: str, *, colour: bool) -> str:
    """A diff with nothing hidden in it, and in colours if they are on."""
    text = visible_lines(diff)
    if not colour:
        return text
    tints = (("diff ", BOLD), ("+++", BOLD), ("---", BOLD), ("@@", "36"), ("+", _GREEN), ("-", RED))
    return "\n".join(
        next((paint(line, tint, on=True) for start, tint in tints if line.startswith(start)), line)
        for line in text.split("\n")
    )


__all__ = ["MOST_LISTED", "coloured", "listing"]
