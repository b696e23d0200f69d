"""Merges texts that both the agent and the user changed. Git does it, in a jar of its own without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from belljar.errors import BelljarError

MAX_MERGED = 1 << 20
"""Bytes of a file that is merged."""

_SCRIPT = """
number=0
while [ -e "$number.ours" ]; do
    git merge-file -p -q "$number.ours" "$number.base" "$number.theirs" > "$number.merged" && : > "$number.clean"
    number=$((number + 1))
done
"""


@dataclass(frozen=True)
class ThreeTexts:
    """A file as it was, as the user has it, and as the agent has it."""

    base: bytes
    ours: bytes
    theirs: bytes


def merge(texts: Sequence[ThreeTexts]) -> list[bytes | None]:
    """Merge each of them. None stands for a conflict, for what is no text, and for a host on which git can't run."""
    merged: list[bytes | None] = [None] * len(texts)
    wanted = [number for number, one in enumerate(texts) if all(map(_is_text, (one.base, one.ours, one.theirs)))]
    if wanted:
        try:
            for number, text in zip(wanted, _merged([texts[number] for number in wanted]), strict=True):
                merged[number] = text
        except (BelljarError, OSError):
            pass  # no jar could be made: a conflict, which touches nothing
    return merged


def _is_text(content: bytes) -> bool:
    return b"\0" not in content and len(content) <= MAX_MERGED


def _merged(texts: Sequence[ThreeTexts]) -> list[bytes | None]:
    from belljar.sandbox.run.sandbox import Sandbox

    with Sandbox(timeout=60, one_shot=True) as jar:
        for number, one in enumerate(texts):
            for name, content in (("base", one.base), ("ours", one.ours), ("theirs", one.theirs)):
                jar.files.write(f"{number}.{name}", content)
        if not jar.exec(["sh", "-c", _SCRIPT]).ok:
            return [None] * len(texts)
        names = {entry.path for entry in jar.files.list()}
        return [
            jar.files.read(f"{number}.merged", limit=4 * MAX_MERGED) if f"{number}.clean" in names else None
            for number in range(len(texts))
        ]


__all__ = ["MAX_MERGED", "ThreeTexts", "merge"]
