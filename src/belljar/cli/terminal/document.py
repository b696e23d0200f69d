"""JSON on standard output: one document, ASCII only, so that nothing in it can touch a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any


def print_json(value: Any) -> None:
    """Print `value`, which may hold the frozen values of the rest of belljar."""
    sys.stdout.write(json.dumps(value, default=plain, indent=2) + "\n")


def plain(value: Any) -> Any:
    """A frozen value as what JSON knows: mappings, and dataclasses by their fields."""
    if isinstance(value, Mapping):
        return dict(value)
    if fields := getattr(value, "__dataclass_fields__", None):
        return {name: getattr(value, name) for name in fields}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
