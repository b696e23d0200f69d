"""A tree of values that know where they were written, and how a plain mapping becomes one.

A YAML file, a mapping given through the API and a `--set` all become the same tree, so that one validator reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from belljar._startup.records import NamedTuple
from belljar.policy.models import Origin
from belljar.policy.problems import Problems

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

DEEPEST = 12
MOST_NODES = 5000
_LARGEST = 2**63


class Node(NamedTuple):
    """A scalar, a list of nodes or a mapping to nodes. `text` is a scalar as it was written."""

    value: Any
    origin: Origin
    text: str = ""
    keys: Mapping[str, Origin] = {}
    """For a mapping: where each key was written."""

    @property
    def described(self) -> str:
        """What an error calls this value."""
        from belljar.policy.problems import found

        if isinstance(self.value, dict):
            return "a mapping"
        return "a list" if isinstance(self.value, list) else found(self.value)


def _is_text(value: str) -> bool:
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def from_plain(value: object, origin: Origin, problems: Problems) -> Node:
    """The tree of a value out of someone's program; what can't be in a policy becomes a problem."""
    return _Plain(origin, problems).node(value, "", 0)


class _Plain:
    def __init__(self, origin: Origin, problems: Problems) -> None:
        self.origin = origin
        self.problems = problems
        self.count = 0

    def node(self, value: object, path: str, depth: int) -> Node:
        self.count += 1
        if depth > DEEPEST or self.count > MOST_NODES:
            return self._wrong(path, f"wanted at most {DEEPEST} levels and {MOST_NODES} values, found more")
        if isinstance(value, Mapping):
            return self._mapping(value, path, depth)
        if isinstance(value, list | tuple):
            return Node([self.node(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(value)], self.origin)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
            return self._wrong(path, "wanted a number of at most 64 bits, found a larger one")
        if isinstance(value, str) and not value.isascii() and not _is_text(value):
            return self._wrong(path, "wanted text, found half of a character")
        if value is None or isinstance(value, bool | int | float | str):
            return Node(value, self.origin, str(value))
        return self._wrong(path, f"wanted plain data, found a value of type {type(value).__name__}")

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> Node:
        inner: dict[str, Node] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self._wrong(path, f"wanted text as a key, found {type(key).__name__}")
                continue
            inner[key] = self.node(item, f"{path}.{key}" if path else key, depth + 1)
            if self.count > MOST_NODES:
                break
        return Node(inner, self.origin, keys=dict.fromkeys(inner, self.origin))

    def _wrong(self, path: str, text: str) -> Node:
        if self.count <= MOST_NODES + 1:
            self.problems.add(self.origin, f"{path or 'the policy'}: {text}")
        return Node(None, self.origin)
