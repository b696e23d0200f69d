"""Reads one YAML file into nodes: bounded in size, depth and count, with the place of every value.

It works on the parser's events, not on its tree: events arrive one by one, so that a bomb is refused before it is
built, and nothing here or in libyaml recurses. What YAML has beyond plain data (anchors, tags, merge keys, several
documents) is refused, because no policy needs it and each has been a hole in someone's reader.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from belljar.errors import PolicyError
from belljar.policy.keys.units import plain
from belljar.policy.models import Origin
from belljar.policy.nodes import DEEPEST, MOST_NODES, Node
from belljar.policy.problems import Problems, found, place

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_FILE = 256 * 1024
_MOST_PROBLEMS = 50


def read_file(path: str, problems: Problems, *, owner: int | None = None) -> Node:
    """The tree of the file at `path`. With `owner`, only that user may have been able to write it.

    Raises:
        PolicyError: when the file can't be read at all. What is wrong inside it goes to `problems`.

    """
    return read_text(decode(read_bytes(path, owner=owner), path), path, problems)


def read_bytes(path: str, *, owner: int | None = None) -> bytes:
    """The content of a regular file of bounded size; a pipe or a device is refused before it can block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PolicyError(f"{_name(path)}: can't be read: {reason}") from None
    try:
        _check_status(os.fstat(descriptor), path, owner)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise PolicyError(f"{_name(path)}: can't be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(content) > LARGEST_FILE:
        raise PolicyError(f"{_name(path)}: wanted at most {LARGEST_FILE} bytes, found more")
    return content


def _name(path: str) -> str:
    """The path as an error shows it: unprintable characters and bytes that are no text are escaped."""
    return path if path.isprintable() else ascii(path)


def _check_status(status: os.stat_result, path: str, owner: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "something else"
        raise PolicyError(f"{_name(path)}: wanted a regular file, found {what}")
    if status.st_size > LARGEST_FILE:
        raise PolicyError(f"{_name(path)}: wanted at most {LARGEST_FILE} bytes, found {status.st_size}")
    if owner is None:
        return
    if status.st_uid != owner:
        who = "root" if owner == 0 else f"user {owner}"
        raise PolicyError(f"{_name(path)}: wanted a file that {who} owns, found one of user {status.st_uid}")
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise PolicyError(
            f"{_name(path)}: wanted a file that only its owner may write, found mode {mode:04o}",
            hint=f"chmod 0644 {path}",
        )


def decode(content: bytes, path: str) -> str:
    """The text of a file, or the place where it stops being text."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        where = place(Origin(_name(path), line, column))
        raise PolicyError(f"{where}: wanted UTF-8 text, found the byte 0x{content[error.start]:02x}") from None


def read_text(text: str, name: str, problems: Problems) -> Node:
    """The tree of YAML text; `name` is the file in every place."""
    import yaml  # 24 ms, so only for who has a file to read

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(_name(name), problems)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
            if builder.stopped:
                break
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        builder.problem(builder.at(mark), f"not YAML: {error.problem or error.context}")
    except yaml.reader.ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        origin = Origin(builder.name, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        builder.problem(origin, f"not YAML: {error.reason}")
    return builder.root or Node({}, Origin(builder.name, 1, 1))


class _Open:
    """A list or mapping whose end has not come yet."""

    def __init__(self, node: Node, keys: dict[str, Origin], *, mapping: bool) -> None:
        self.node = node
        self.mapping = mapping
        self.keys = keys
        self.key: tuple[str, Origin] | None = None


class _Builder:
    """Takes events one by one and grows the tree, with a stack of its own."""

    def __init__(self, name: str, problems: Problems) -> None:
        self.name = name
        self.problems = problems
        self.root: Node | None = None
        self.stopped = False
        self.open: list[_Open] = []
        self.documents = self.count = self.wrong = 0

    def at(self, mark: Any) -> Origin:
        return Origin(self.name, mark.line + 1, mark.column + 1) if mark else Origin(self.name)

    def problem(self, origin: Origin, text: str, *, stop: bool = False) -> None:
        self.problems.add(origin, text)
        self.wrong += 1
        self.stopped |= stop or self.wrong >= _MOST_PROBLEMS

    def take(self, event: Any) -> None:
        kind = type(event).__name__
        origin = self.at(event.start_mark)
        if kind == "DocumentStartEvent":
            self.documents += 1
            if self.documents > 1:
                self.problem(origin, "wanted one document, found a second one", stop=True)
        elif kind == "AliasEvent":
            self.problem(
                origin, f"wanted a value, found the alias *{event.anchor[:40]}: a policy has no aliases", stop=True
            )
        elif kind in ("MappingStartEvent", "SequenceStartEvent", "ScalarEvent"):
            self._value(event, kind, origin)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self.open.pop()

    def _value(self, event: Any, kind: str, origin: Origin) -> None:
        self.count += 1
        if self.count > MOST_NODES:
            return self.problem(origin, f"wanted at most {MOST_NODES} values, found more", stop=True)
        for found_word in self._beyond_plain_data(event, kind):
            return self.problem(origin, f"wanted plain data, found {found_word}", stop=True)
        if kind == "ScalarEvent":
            value = plain(event.value) if event.implicit[0] else event.value
            return self._scalar(Node(value, origin, event.value))
        if len(self.open) >= DEEPEST:
            return self.problem(origin, f"wanted at most {DEEPEST} levels, found more", stop=True)
        mapping = kind == "MappingStartEvent"
        keys: dict[str, Origin] = {}
        node = Node({} if mapping else [], origin, keys=keys)
        if self._expects_key():
            return self.problem(origin, f"wanted a name as a key, found {node.described}", stop=True)
        self._place(node)
        self.open.append(_Open(node, keys, mapping=mapping))
        return None

    @staticmethod
    def _beyond_plain_data(event: Any, kind: str) -> Iterator[str]:
        if event.anchor:
            yield f"the anchor &{event.anchor[:40]}"
        # Quoted text has no tag of its own; a plain `!` says only "not plain".
        if event.tag not in (None, "!") and not (kind == "ScalarEvent" and event.implicit[1]):
            yield f"the tag {found(event.tag)}"

    def _expects_key(self) -> bool:
        return bool(self.open) and self.open[-1].mapping and self.open[-1].key is None

    def _scalar(self, node: Node) -> None:
        if not self._expects_key():
            return self._place(node)
        top = self.open[-1]
        top.key = (node.text, node.origin)
        if node.text == "<<":
            self.problem(node.origin, "wanted a key, found a merge key: use 'extends'", stop=True)
        elif node.text in top.node.value:
            first = top.keys[node.text]
            self.problem(node.origin, f"the key {found(node.text)} is written twice, first in line {first.line}")
        return None

    def _place(self, node: Node) -> None:
        if not self.open:
            self.root = self.root or node
            return
        top = self.open[-1]
        if not top.mapping:
            top.node.value.append(node)
            return
        name, origin = top.key or ("", node.origin)
        top.key = None
        top.node.value[name] = node
        top.keys.setdefault(name, origin)
