"""Reads a tree of nodes as a layer, by the table of keys. Everything that is wrong is gathered, nothing is guessed."""

from __future__ import annotations

import os
from collections.abc import Callable

from belljar.policy import paths
from belljar.policy.keys import hosts, network_values
from belljar.policy.keys.table import KEYS, REQUIRED, Key, ValueKind, fields, sections
from belljar.policy.keys.values import (
    SCALARS,
    WRONG,
    InvalidError,
    choice,
    clause,
    count,
    glob,
    published,
    text_of,
    variable,
    variable_value,
    word,
)
from belljar.policy.layer import Layer, Written
from belljar.policy.models import DenyRule, HostRule, Mount
from belljar.policy.nodes import Node
from belljar.policy.problems import Problems, found, nearest

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any


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
        except WRONG as error:
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
        if scalar := SCALARS.get(key.kind) or network_values.SCALARS.get(key.kind):
            return scalar(key, node)
        return _LISTS_AND_PATHS[key.kind](self, key, node)

    def choices(self, key: Key, node: Node) -> tuple[Any, ...]:
        inside_an_item = key.path not in KEYS
        read = self._some if inside_an_item else self._items
        return read(key, node, lambda item, _: choice(key, item))

    def degraded(self, key: Key, node: Node) -> str | tuple[str, ...]:
        if isinstance(node.value, list):
            return tuple(item.value for item in self._items(key, node, lambda item, _: clause(item)))
        if node.value not in ("refuse", "allow"):
            close = nearest(node.value, ("refuse", "allow")) if isinstance(node.value, str) else ""
            raise InvalidError(f"wanted refuse, allow or a list of clauses, found {node.described}{close}")
        return str(node.value)

    def source(self, _key: Key, node: Node) -> str:
        text = text_of(node, "a path")
        return paths.mount_source(text, self.base) if self.must_exist else _absolute(text)

    def venv(self, _key: Key, node: Node) -> str:
        path = self._named(text_of(node, "a path"))
        if self.must_exist and not os.path.isfile(os.path.join(path, "pyvenv.cfg")):
            raise InvalidError(f"wanted a virtual environment, found {node.described}, which has no pyvenv.cfg")
        return path

    def program(self, _key: Key, node: Node) -> str:
        path = self._named(text_of(node, "a path"))
        if self.must_exist and not (os.path.isfile(path) and os.access(path, os.X_OK)):
            raise InvalidError(f"wanted a program, found {node.described}, which can't be executed")
        return path

    def _named(self, text: str) -> str:
        """A path whose last name stays as it is: an interpreter in a virtual environment is a link."""
        if not self.must_exist:
            return _absolute(text)
        text = os.path.normpath(text) if text else text
        if os.path.basename(text) in ("", ".", ".."):
            return paths.host_path(text, self.base)
        try:
            directory = paths.host_path(os.path.dirname(text) or ".", self.base)
        except paths.PathError:
            paths.host_path(text, self.base)  # so that the message shows the whole path
            raise
        path = os.path.join(directory, os.path.basename(text))
        paths.real_path(path)
        return path

    def globs(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item, _: glob(item))

    def mounts(self, key: Key, node: Node) -> tuple[Written, ...]:
        items = self._items(key, node, self._mount)
        self._once(key, items)
        return items

    def hosts(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, self._host_rule)

    def _once(self, key: Key, items: tuple[Written, ...]) -> None:
        first: dict[str, Written] = {}
        for item in items:
            if item.value.path in first:
                line = first[item.value.path].origin.line
                self.problems.add(item.origin, f"{key.path}: {item.value.path} is written twice, first in line {line}")
            first.setdefault(item.value.path, item)

    def _mount(self, node: Node, where: str) -> Mount:
        mount = Mount(**self._record("fs.mounts[]", node, where, needs="path"))
        if mount.cow and not (mount.rw and mount.source):
            raise InvalidError("wanted 'cow' only together with 'rw: true' and a source")
        return mount

    def _host_rule(self, node: Node, where: str) -> HostRule:
        if isinstance(node.value, str):
            return HostRule(hosts.host_name(node.value))
        values = self._record("net.allowlist[]", node, where, needs="host")
        if "budget_mb" in values:
            values["budget_bytes"] = values.pop("budget_mb")
        if values.get("foreign_credentials") and (values.get("credential") or values.get("sign")):
            raise InvalidError(
                "wanted 'credential' or 'sign', which keep others off the host, or 'foreign_credentials'"
            )
        return HostRule(**values)

    def denied(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, self._deny_rule)

    def _deny_rule(self, node: Node, where: str) -> DenyRule:
        if isinstance(node.value, str):
            return DenyRule(hosts.host_name(node.value))
        return DenyRule(**self._record("net.denylist[]", node, where, needs="host"))

    def credentials(self, key: Key, node: Node) -> dict[str, Written]:
        if node.value is None:
            return {}  # as a section of which everything is commented out
        if not isinstance(node.value, dict):
            raise InvalidError(f"wanted a mapping of names and mappings, found {node.described}")
        found_: dict[str, Written] = {}
        for name, inner in node.value.items():
            try:
                network_values.credential_name(name)
                values = self._record("credentials[]", inner, f"{key.path}.{name}")
                found_[name] = Written(network_values.credential(name, values), inner.origin)
            except _AlreadyToldError:
                continue
            except WRONG as error:
                self.problems.add(node.keys[name], f"{key.path}.{name[:64]}: {error}")
        return found_

    def secret(self, _key: Key, node: Node) -> str:
        text = network_values.secret(node)
        return f"file:{self._named(text.removeprefix('file:'))}" if text.startswith("file:") else text

    def file(self, _key: Key, node: Node) -> str:
        path = self._named(text_of(node, "a path"))
        if self.must_exist and not os.path.isfile(path):
            raise InvalidError(f"wanted a file that exists, found {node.described}")
        return path

    def _record(self, prefix: str, node: Node, where: str, *, needs: str = "") -> dict[str, Any]:
        known = fields(prefix)
        if not isinstance(node.value, dict):
            raise InvalidError(f"wanted a mapping of {', '.join(known)}, found {node.described}")
        before, values = len(self.problems), {}
        for name, inner in node.value.items():
            if name not in known:
                self.problems.add(node.keys[name], f"unknown key {found(name)} in {where}{nearest(name, known)}")
                continue
            try:
                values[name] = self._read(known[name].at(f"{where}.{name}"), inner)
            except WRONG as error:
                self.problems.add(inner.origin, f"{where}.{name}: {error}")
        if needs and needs not in node.value:
            raise InvalidError(f"wanted '{needs}', found {', '.join(map(found, node.value)) or 'nothing'}")
        if len(self.problems) > before:
            raise _AlreadyToldError
        return values

    def _items(self, key: Key, node: Node, read: Callable[[Node, str], Any]) -> tuple[Written, ...]:
        if not isinstance(node.value, list):
            raise InvalidError(f"wanted a list, found {node.described}")
        items: list[Written] = []
        for at, inner in enumerate(node.value):
            where = f"{key.path}[{at}]"
            try:
                items.append(Written(read(inner, where), inner.origin))
            except _AlreadyToldError:
                continue
            except WRONG as error:
                self.problems.add(inner.origin, f"{where}: {error}")
        return tuple(items)

    def variables(self, key: Key, node: Node) -> dict[str, Written]:
        if not isinstance(node.value, dict):
            raise InvalidError(f"wanted a mapping of names and values, found {node.described}")
        variables: dict[str, Written] = {}
        for name, inner in node.value.items():
            try:
                variables[variable(name)] = Written(variable_value(inner), inner.origin)
            except WRONG as error:
                self.problems.add(node.keys[name], f"{key.path}: {error}")
        return variables

    def names(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item, _: variable(text_of(item, "the name of a variable")))

    def ports(self, key: Key, node: Node) -> tuple[int, ...]:
        return self._some(key, node, lambda item, _: count(key, item))

    def paths(self, key: Key, node: Node) -> tuple[str, ...]:
        return self._some(key, node, lambda item, _: hosts.url_path(text_of(item, "a URL path")))

    def words(self, key: Key, node: Node) -> tuple[str, ...]:
        return self._some(key, node, lambda item, _: word(item))

    def patterns(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item, _: word(item))

    def published(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item, _: published(key, item))

    def query_keys(self, key: Key, node: Node) -> tuple[str, ...]:
        return self._some(key, node, lambda item, _: network_values.query_key(key, item))

    def addresses(self, key: Key, node: Node) -> tuple[str, ...]:
        return self._some(key, node, lambda item, _: hosts.pinned_address(text_of(item, "an address in quotes")))

    def host_names(self, key: Key, node: Node) -> tuple[str, ...]:
        return self._some(key, node, lambda item, _: hosts.host_name(text_of(item, "a host")))

    def service_ports(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item, _: count(key, item))

    def jar_ports(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item, _: network_values.jar_port(key, item))

    def headers(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item, _: network_values.header(key, item).lower())

    def jar_files(self, key: Key, node: Node) -> tuple[Written, ...]:
        return self._items(key, node, lambda item, _: network_values.jar_file(item))

    def _some(self, key: Key, node: Node, read: Callable[[Node, str], Any]) -> tuple[Any, ...]:
        """The items of a list that may be left out, and then means something else than an empty one would."""
        items = self._items(key, node, read)
        if not node.value:
            raise InvalidError("wanted at least one item, found an empty list: leave the key out instead")
        return tuple(item.value for item in items)


class _AlreadyToldError(ValueError):
    """What is wrong with an item was noted at its own place."""


def _absolute(text: str) -> str:
    if not os.path.isabs(text):
        raise InvalidError(f"wanted an absolute path in a managed policy, found {found(text)}")
    return paths.host_path(text, "/")


_LISTS_AND_PATHS: dict[ValueKind, Callable[[_Validator, Key, Node], Any]] = {
    ValueKind.CHOICES: _Validator.choices,
    ValueKind.DEGRADED: _Validator.degraded,
    ValueKind.SOURCE: _Validator.source,
    ValueKind.VENV: _Validator.venv,
    ValueKind.PROGRAM: _Validator.program,
    ValueKind.GLOBS: _Validator.globs,
    ValueKind.MOUNTS: _Validator.mounts,
    ValueKind.HOSTS: _Validator.hosts,
    ValueKind.VARIABLES: _Validator.variables,
    ValueKind.NAMES: _Validator.names,
    ValueKind.PORTS: _Validator.ports,
    ValueKind.PATHS: _Validator.paths,
    ValueKind.WORDS: _Validator.words,
    ValueKind.PATTERNS: _Validator.patterns,
    ValueKind.PUBLISHED: _Validator.published,
    ValueKind.DENIED: _Validator.denied,
    ValueKind.CREDENTIALS: _Validator.credentials,
    ValueKind.FROM: _Validator.secret,
    ValueKind.FILE: _Validator.file,
    ValueKind.QUERY_KEYS: _Validator.query_keys,
    ValueKind.ADDRESSES: _Validator.addresses,
    ValueKind.HOST_NAMES: _Validator.host_names,
    ValueKind.SERVICE_PORTS: _Validator.service_ports,
    ValueKind.JAR_PORTS: _Validator.jar_ports,
    ValueKind.HEADERS: _Validator.headers,
    ValueKind.JAR_FILES: _Validator.jar_files,
}
