"""The file that `belljar init` writes: every key, commented out, with its meaning and what holds without it."""

from __future__ import annotations

import textwrap

from belljar.policy.keys.table import Key, fields, sections
from belljar.policy.load.resolve import DEFAULT_PRESET, resolve
from belljar.policy.mapping import to_mapping
from belljar.policy.presets import PRESETS
from belljar.policy.show import flow

_WIDTH = 100
_HEAD = """\
# What code in the jar may do. Everything that is commented out shows what holds without it.
#
#   belljar run --policy {file} script.py    runs under it
#   belljar policy check {file}              says what is wrong with it
#   belljar policy show {file}               shows what it comes to, and where each value is from
#
# Keep this file outside of any directory that you give to the code with --workspace: it is not read from there.
"""


def commented_template(preset: str = DEFAULT_PRESET, *, file: str = "sandbox.policy.yaml") -> str:
    """A policy file that extends `preset` and shows every key."""
    values = to_mapping(resolve(preset, managed=None))
    lines = [_HEAD.format(file=file), "version: 1", ""]
    lines += [f"# The presets: {', '.join(PRESETS)}.", f"extends: {preset}"]
    for name, key in fields("").items():
        if name not in ("version", "extends"):
            lines += ["", *_explain(key, ""), f"# {name}: {flow(values[name] or key.example)}"]
    for section in sections():
        lines += ["", f"# {section}:"]
        for name, key in fields(section).items():
            lines += _explain(key, "  ")
            lines += _value(name, key, values[section][name])
    return "\n".join(lines) + "\n"


def _explain(key: Key, indent: str) -> list[str]:
    text = textwrap.wrap(key.doc, _WIDTH - len(indent) - 4)
    return [f"#{indent} # {line}" if indent else f"# {line}" for line in text]


def _value(name: str, key: Key, value: object) -> list[str]:
    """The key with what is inherited; the items of a list are explained by an example."""
    if key.path == "fs.mounts":
        items = [*value, {"path": "/deps", "source": "./deps", "rw": False}] if isinstance(value, list) else []
        return [f"#   {name}:", *(f"#     - {flow(item)}" for item in items)]
    if key.path == "fs.deny_globs":
        return [f"#   {name}: ['**/*.secret']"]
    if key.path == "net.allowlist":
        example = {"host": "api.example.com", "ports": [443], "methods": ["GET"], "paths": ["/v1/**"]}
        return [f"#   {name}:", "#     - pypi.example", f"#     - {flow(example)}"]
    if key.path == "net.denylist":
        return [f"#   {name}:", f"#     - {flow({'host': 'api.example.com', 'methods': ['DELETE']})}"]
    return [f"#   {name}: {flow(value)}"]
