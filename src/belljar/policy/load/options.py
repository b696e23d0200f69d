"""The options of a command as layers: `--set key=value`, `--backend`, `--timeout`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from belljar.policy.keys.table import KEYS
from belljar.policy.keys.units import plain
from belljar.policy.layer import Layer
from belljar.policy.load.validate import validate
from belljar.policy.models import Origin
from belljar.policy.nodes import Node
from belljar.policy.problems import Problems, found, nearest

_NEEDS_YAML = tuple("[{\"'")
_LONGEST = 64 * 1024


def option_layers(
    overrides: Sequence[str], named: Mapping[str, tuple[str, str | None]], problems: Problems
) -> list[Layer]:
    """A layer for each option, in order; `named` has the key and value of options with a name of their own."""
    layers = [_override(text, problems) for text in overrides]
    for option, (key, value) in named.items():
        if value is not None:
            origin = Origin(option)
            if key.endswith("_ms") and value.isdecimal() and value.strip("0"):  # ms in the file; people mean seconds
                problems.add(
                    origin, f"wanted a time with its unit, found '{value[:20]}': write {value[:20]}s or {value[:20]}ms"
                )
                continue
            layers.append(_layer(key, Node(value, origin, value), origin, problems))
    return layers


def _override(text: str, problems: Problems) -> Layer:
    origin = Origin("--set")
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        problems.add(origin, f"wanted key=value, found {found(text)}")
        return {}
    node = _value(value.strip(), origin, problems)
    if key.startswith("env.set."):
        name = key.removeprefix("env.set.")
        return _layer("env.set", Node({name: node}, origin, keys={name: origin}), origin, problems)
    if key not in KEYS or "[]" in key or key in ("version", "extends"):
        known = [path for path in KEYS if "[]" not in path and path not in ("version", "extends")]
        inside = [path for path in known if path.endswith("." + key)]
        close = f" (did you mean '{inside[0]}'?)" if inside else nearest(key, known)
        problems.add(origin, f"unknown key {found(key)}{close}")
        return {}
    return _layer(key, node, origin, problems)


def _value(text: str, origin: Origin, problems: Problems) -> Node:
    """A plain scalar by itself; lists, mappings and quoted text by YAML."""
    if len(text) > _LONGEST:
        problems.add(origin, f"wanted at most {_LONGEST} characters, found {len(text)}")
        return Node(None, origin)
    if not text.startswith(_NEEDS_YAML):
        return Node(plain(text), origin, text)
    from belljar.policy.load.reading import read_text

    inner = Problems()
    tree = read_text(text, origin.file, inner)
    problems.take(inner, origin)
    return _at(tree, origin)


def _at(node: Node, origin: Origin) -> Node:
    """The tree, with the option as the place of everything: a line of a command line helps nobody."""
    if isinstance(node.value, dict):
        inner = {name: _at(item, origin) for name, item in node.value.items()}
        return Node(inner, origin, keys=dict.fromkeys(inner, origin))
    if isinstance(node.value, list):
        return Node([_at(item, origin) for item in node.value], origin)
    return Node(node.value, origin, node.text)


def _layer(key: str, node: Node, origin: Origin, problems: Problems) -> Layer:
    for name in reversed(key.split(".")):
        node = Node({name: node}, origin, keys={name: origin})
    return validate(node, problems, base=os.getcwd())
