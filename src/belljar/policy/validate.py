"""Reads a tree of nodes as a layer, by the table of keys. Everything that is wrong is gathered, nothing is guessed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from belljar.policy import globs, hosts, paths, units
from belljar.policy.keys import CLAUSES, KEYS, REQUIRED, Key, Kind, fields, sections
from belljar.policy.layer import Layer, Written
from belljar.policy.models import HostRule, Mount
from belljar.policy.nodes import Node
from belljar.policy.problems import Problems, found, nearest

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_CREDENTIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_LONGEST_VALUE = 32 * 1024
_Wrong = (paths.PathError, hosts.HostError, globs.GlobError)


class _InvalidError(ValueError):
    """A value is not what its key wants; the text is the rest of the sentence."""


def validate(root: Node, problems: Problems, *, base: str, must_exist: bool = True) -> Layer:
    """The layer that a tree says. Relative paths of the host are taken from `base`.

    `must_exist` is off for a ceiling, which names directories that a host may not have.
    """
    return _Validator(problems, base, must_exist=must_exist).layer(root)


def require_all(layer: Layer, root: Node, problems: Problems) -> None:
    """Note every limit that a policy without `extends` leaves open."""
    for path in REQUIRED:
        if path not in layer:
            problems.add(root.origin, f"{path}: wanted a value, found nothing: 'extends: none' inherits nothing")


class _Validator:
    def __init__(self, problems: Problems, base: str, *, must_exist: bool) -> None:
        self.problems = problems
        self.base = base
        self.must_exist = must_exist

    def layer(self, root: Node) -> Layer:
        written: Layer = {}
        if not isinstance(root.value, dict):
            self.problems.add(root.origin, f"wanted a mapping of keys such as 'proc', found {root.described}")
            return written
        for name, node in root.value.items():
            if name in sections():
                self._section(name, node, written)
            else:
                self._key(name, name, root, node, written)
        return written

    def _section(self, section: str, node: Node, written: Layer) -> None:
        if node.value is None:
            return
        if not isinstance(node.value, dict):
            wanted = ", ".join(fields(section))
            self.problems.add(node.origin, f"{section}: wanted a mapping of {wanted}, found {node.described}")
            return
        for name, inner in node.value.items():
            self._key(f"{section}.{name}", name, node, inner, written)

    def _key(self, path: str, name: str, parent: Node, node: Node, written: Layer) -> None:
        key = KEYS.get(path)
        if key is None or "[]" in path:
            return self._unknown(path, name, parent)
        try:
            value = self._read(key, node)
        except (_InvalidError, *_Wrong) as error:
            self.problems.add(node.origin, f"{path}: {error}")
        else:
            written[path] = Written(value, node.origin)
        return None

    def _unknown(self, path: str, name: str, parent: Node) -> None:
        inside = path[: -len(name) - 1]
        known = [*fields(inside), *(sections() if not inside else ())]
        elsewhere = [other for other in KEYS if other.endswith("." + name)]
        hint = nearest(name, known)
        if not hint and elsewhere:
            hint = f" (did you mean '{elsewhere[0]}'?)"
        where = f" in {inside}" if inside else ""
        self.problems.add(parent.keys[name], f"unknown key {found(name)}{where}{hint}")

    def _read(self, key: Key, node: Node) -> Any:
        if node.value is None and key.optional:
            return None
        return _READERS[key.kind](self, key, node)

    # One reader for each kind. Each gives the final value, or raises with the rest of the sentence.

    def version(self, _key: Key, node: Node) -> int:
        if node.value != 1 or isinstance(node.value, bool):
            raise _InvalidError(f"wanted 1, found {node.described}")
        return 1

    def extends(self, _key: Key, node: Node) -> str:
        if not (text := _text(node, "a preset or a path")):
            raise _InvalidError("wanted a preset or a path, found ''")
        return text

    def choice(self, key: Key, node: Node) -> str:
        if not isinstance(node.value, str) or node.value not in key.choices:
            close = nearest(node.value, key.choices) if isinstance(node.value, str) else ""
            raise _InvalidError(f"wanted one of {', '.join(key.choices)}, found {node.described}{close}")
        return node.value

    def choices(self, key: Key, node: Node) -> tuple[Any, ...]:
        items = self._items(key, node, lambda item: self.choice(key, item))
        return items if "[]" not in key.path else tuple(item.value for item in items)

    def degraded(self, key: Key, node: Node) -> str | tuple[str, ...]:
        if isinstance(node.value, list):
            return tuple(item.value for item in self._items(key, node, self._clause))
        if node.value not in ("refuse", "allow"):
            close = nearest(node.value, ("refuse", "allow")) if isinstance(node.value, str) else ""
            raise _InvalidError(f"wanted refuse, allow or a list of clauses, found {node.described}{close}")
        return str(node.value)

    def _clause(self, node: Node) -> str:
        text = _text(node, "a clause such as proc.mem_mb")
        if text not in CLAUSES:
            raise _InvalidError(f"wanted a clause such as proc.mem_mb, found {node.described}{nearest(text, CLAUSES)}")
        return text

    def count(self, key: Key, node: Node) -> int:
        if isinstance(node.value, bool) or not isinstance(node.value, int) or not _within(node.value, key):
            wanted = f"a whole number from {key.minimum:.0f} to {key.maximum:.0f}"
            raise _InvalidError(f"wanted {wanted}, found {node.described}")
        return node.value

    def number(self, key: Key, node: Node) -> float:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not _within(value, key):
            raise _InvalidError(f"wanted a number from {key.minimum:g} to {key.maximum:g}, found {node.described}")
        return float(value)

    def size(self, key: Key, node: Node) -> int:
        value = units.size(node.value)
        if value is None or not _within(value, key):
            low, high = units.show_size(int(key.minimum)), units.show_size(int(key.maximum))
            raise _InvalidError(f"wanted a size from {low} to {high}, in MB or like '512m', found {node.described}")
        return value

    def time(self, key: Key, node: Node) -> float:
        value = units.milliseconds(node.value)
        if value is None or not _within(value, key):
            low, high = units.show_time(int(key.minimum)), units.show_time(int(key.maximum))
            raise _InvalidError(f"wanted a time from {low} to {high}, in ms or like '30s', found {node.described}")
        return value / 1000

    def boolean(self, _key: Key, node: Node) -> bool:
        if not isinstance(node.value, bool):
            meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(str(node.value).lower(), "")
            close = f" (did you mean '{meant}'?)" if meant else ""
            raise _InvalidError(f"wanted true or false, found {node.described}{close}")
        return node.value

    def jar_path(self, key: Key, node: Node) -> str:
        text = _text(node, "an absolute path in the jar")
        return paths.mount_path(text) if key.path == "fs.mounts[].path" else paths.jar_path(text)

    def host_path(self, key: Key, node: Node) -> str:
        text = _text(node, "a path")
        if not self.must_exist:
            if not os.path.isabs(text):
                raise _InvalidError(f"wanted an absolute path in a managed policy, found {node.described}")
            return paths.host_path(text, self.base)
        if key.path == "fs.mounts[].source":
            return paths.mount_source(text, self.base)
        # An interpreter in a virtual environment is a link, and is known by the link's name.
        paths.host_path(os.path.dirname(text) or ".", self.base)
        path = os.path.abspath(os.path.join(self.base, text))
        if key.path == "python.venv" and not os.path.isfile(os.path.join(path, "pyvenv.cfg")):
            raise _InvalidError(f"wanted a virtual environment, found {node.described}, which has no pyvenv.cfg")
        if key.path == "python.interpreter" and not (os.path.isfile(path) and os.access(path, os.X_OK)):
            raise _InvalidError(f"wanted a program, found {node.described}, which can't be executed")
        return path

    def globs(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, _glob)

    def records(self, key: Key, node: Node) -> tuple[Written, ...]:
        read = self._mount if key.path == "fs.mounts" else self._host_rule
        items = self._items(key, node, read)
        if key.path == "fs.mounts":
            self._once(key, items)
        return items

    def _once(self, key: Key, items: tuple[Written, ...]) -> None:
        first: dict[str, Written] = {}
        for item in items:
            if item.value.path in first:
                line = first[item.value.path].origin.line
                self.problems.add(item.origin, f"{key.path}: {item.value.path} is written twice, first in line {line}")
            first.setdefault(item.value.path, item)

    def _mount(self, node: Node) -> Mount:
        values = self._record("fs.mounts[]", node, needs="path")
        mount = Mount(**values)
        if mount.cow and not (mount.rw and mount.source):
            raise _InvalidError("wanted 'cow' only together with 'rw: true' and a source")
        return mount

    def _host_rule(self, node: Node) -> HostRule:
        if isinstance(node.value, str):
            return HostRule(hosts.host_name(node.value))
        return HostRule(**self._record("net.allowlist[]", node, needs="host"))

    def _record(self, path: str, node: Node, *, needs: str) -> dict[str, Any]:
        known = fields(path)
        if not isinstance(node.value, dict):
            raise _InvalidError(f"wanted a mapping of {', '.join(known)}, found {node.described}")
        before, values = len(self.problems), {}
        for name, inner in node.value.items():
            if name not in known:
                self.problems.add(node.keys[name], f"unknown key {found(name)} in {path}{nearest(name, known)}")
                continue
            try:
                values[name] = self._read(known[name], inner)
            except (_InvalidError, *_Wrong) as error:
                self.problems.add(inner.origin, f"{path}.{name}: {error}")
        if needs not in node.value:
            raise _InvalidError(f"wanted '{needs}', found {', '.join(map(found, node.value)) or 'nothing'}")
        if len(self.problems) > before:
            raise _AlreadyToldError
        return values

    def _items(self, key: Key, node: Node, read: Callable[[Node], Any]) -> tuple[Written, ...]:
        if not isinstance(node.value, list):
            raise _InvalidError(f"wanted a list, found {node.described}")
        items: list[Written] = []
        for at, inner in enumerate(node.value):
            try:
                items.append(Written(read(inner), inner.origin))
            except _AlreadyToldError:
                continue
            except (_InvalidError, *_Wrong) as error:
                self.problems.add(inner.origin, f"{key.path}[{at}]: {error}")
        return tuple(items)

    def variables(self, key: Key, node: Node) -> dict[str, Written]:
        if not isinstance(node.value, dict):
            raise _InvalidError(f"wanted a mapping of names and values, found {node.described}")
        variables: dict[str, Written] = {}
        for name, inner in node.value.items():
            try:
                variables[_variable(name)] = Written(_variable_value(inner), inner.origin)
            except _InvalidError as error:
                self.problems.add(node.keys[name], f"{key.path}: {error}")
        return variables

    def names(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item: _variable(_text(item, "the name of a variable")))

    def host(self, _key: Key, node: Node) -> str:
        return hosts.host_name(_text(node, "a host"))

    def ports(self, key: Key, node: Node) -> tuple[int, ...]:
        ports = tuple(item.value for item in self._items(key, node, lambda item: self.count(key, item)))
        if not ports and not node.value:
            raise _InvalidError("wanted at least one port, found an empty list")
        return ports

    def paths(self, key: Key, node: Node) -> tuple[str, ...]:
        return tuple(w.value for w in self._items(key, node, lambda item: hosts.url_path(_text(item, "a URL path"))))

    def credential(self, _key: Key, node: Node) -> str:
        text = _text(node, "the name of a credential")
        if not _CREDENTIAL.match(text):
            raise _InvalidError(f"wanted the name of a credential, found {node.described}")
        return text

    def rate(self, _key: Key, node: Node) -> str:
        text = _text(node, "a rate such as 10/s")
        hosts.per_second(text)
        return text


class _AlreadyToldError(ValueError):
    """What is wrong with an item was noted at its own place."""


def _text(node: Node, wanted: str) -> str:
    if not isinstance(node.value, str):
        raise _InvalidError(f"wanted {wanted}, found {node.described}")
    return node.value


def _within(value: float, key: Key) -> bool:
    return key.minimum <= value <= key.maximum


def _glob(node: Node) -> str:
    text = _text(node, "a pattern in quotes")
    try:
        globs.parse(text.removeprefix("!"))
    except globs.GlobError as error:
        raise _InvalidError(f"{error}, in {node.described}" if text else str(error)) from None
    return text


def _variable(name: str) -> str:
    if not _VARIABLE.match(name):
        raise _InvalidError(f"wanted the name of a variable, found {found(name)}")
    return name


def _variable_value(node: Node) -> str:
    if node.value is None or isinstance(node.value, list | dict) or "\0" in node.text:
        raise _InvalidError(f"wanted text, found {node.described}")
    if len(node.text) > _LONGEST_VALUE:
        raise _InvalidError(f"wanted at most {_LONGEST_VALUE} characters, found {len(node.text)}")
    return node.text


_READERS: dict[Kind, Callable[[_Validator, Key, Node], Any]] = {
    Kind.VERSION: _Validator.version,
    Kind.EXTENDS: _Validator.extends,
    Kind.CHOICE: _Validator.choice,
    Kind.CHOICES: _Validator.choices,
    Kind.DEGRADED: _Validator.degraded,
    Kind.COUNT: _Validator.count,
    Kind.NUMBER: _Validator.number,
    Kind.SIZE: _Validator.size,
    Kind.TIME: _Validator.time,
    Kind.BOOLEAN: _Validator.boolean,
    Kind.JAR_PATH: _Validator.jar_path,
    Kind.HOST_PATH: _Validator.host_path,
    Kind.GLOBS: _Validator.globs,
    Kind.RECORDS: _Validator.records,
    Kind.VARIABLES: _Validator.variables,
    Kind.NAMES: _Validator.names,
    Kind.HOST: _Validator.host,
    Kind.PORTS: _Validator.ports,
    Kind.PATHS: _Validator.paths,
    Kind.CREDENTIAL: _Validator.credential,
    Kind.RATE: _Validator.rate,
}
