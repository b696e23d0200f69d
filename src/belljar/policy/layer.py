"""A layer: what one file, preset, mapping or option says, each value with the place it was written at.

The keys are the file's own (`proc.mem_mb`); the values are final (bytes, seconds, `Mount`). A list holds `Written`
items, and so does `env.set` under each name, because an error or a denial names the line of the item.
"""

from __future__ import annotations

from belljar._startup.records import NamedTuple
from belljar.policy.models import Origin

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any, TypeAlias


class Written(NamedTuple):
    """A value, where it was written, and whether a preset wrote it (a ceiling lowers those and refuses others)."""

    value: Any
    origin: Origin
    preset: bool = False


Layer: TypeAlias = dict[str, Written]
"""Key of the file to what is written there. A key that is not written is not in it."""
