"""One reader for each kind of single value. Each gives the final value, or raises the rest of a sentence.

The sentence starts with the key and ends here: "wanted a number from 0 to 1, found 3".
"""

from __future__ import annotations

from collections.abc import Callable

from belljar.policy import globs, paths
from belljar.policy.keys import hosts, units
from belljar.policy.keys.patterns import Pattern
from belljar.policy.keys.table import CLAUSES, Key, ValueKind
from belljar.policy.nodes import Node
from belljar.policy.problems import found, nearest

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

_VARIABLE = Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_CREDENTIAL = Pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_CONTAINER = Pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
IMAGE_PATTERN = (
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{{1,5}})?/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_IMAGE = Pattern(IMAGE_PATTERN + r"\Z")
_LONGEST_IMAGE = 400
_PUBLISHED = Pattern(r"([1-9][0-9]{0,4}):([1-9][0-9]{0,4})\Z")
_LONGEST_VALUE = 32 * 1024


class InvalidError(ValueError):
    """A value is not what its key wants; the text is the rest of the sentence."""


WRONG = (InvalidError, paths.PathError, hosts.HostError, globs.GlobError)
"""All that a reader raises."""


def text_of(node: Node, wanted: str) -> str:
    """The value, if it is text."""
    if not isinstance(node.value, str):
        raise InvalidError(f"wanted {wanted}, found {node.described}")
    return node.value


def _within(value: float, key: Key) -> bool:
    return key.minimum <= value <= key.maximum


def version(_key: Key, node: Node) -> int:
    """The format's version."""
    if node.value != 1 or isinstance(node.value, bool):
        raise InvalidError(f"wanted 1, found {node.described}")
    return 1


def extends(_key: Key, node: Node) -> str:
    """A preset or a path; whether it is there is the resolver's business."""
    if not (text := text_of(node, "a preset or a path")):
        raise InvalidError("wanted a preset or a path, found ''")
    return text


def choice(key: Key, node: Node) -> str:
    """One word of the key's."""
    if not isinstance(node.value, str) or node.value not in key.choices:
        close = nearest(node.value, key.choices) if isinstance(node.value, str) else ""
        raise InvalidError(f"wanted one of {', '.join(key.choices)}, found {node.described}{close}")
    return node.value


def count(key: Key, node: Node) -> int:
    """A whole number in the key's range."""
    if isinstance(node.value, bool) or not isinstance(node.value, int) or not _within(node.value, key):
        wanted = f"a whole number from {key.minimum:.0f} to {key.maximum:.0f}"
        raise InvalidError(f"wanted {wanted}, found {node.described}")
    return node.value


def number(key: Key, node: Node) -> float:
    """A number in the key's range."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not _within(value, key):
        raise InvalidError(f"wanted a number from {key.minimum:g} to {key.maximum:g}, found {node.described}")
    return float(value)


def size(key: Key, node: Node) -> int:
    """Bytes."""
    value = units.size(node.value)
    if value is None or not _within(value, key):
        low, high = units.show_size(int(key.minimum)), units.show_size(int(key.maximum))
        raise InvalidError(f"wanted a size from {low} to {high}, in MB or like '512m', found {node.described}")
    return value


def time(key: Key, node: Node) -> float:
    """Seconds."""
    value = units.milliseconds(node.value)
    if value is None or not _within(value, key):
        low, high = units.show_time(int(key.minimum)), units.show_time(int(key.maximum))
        raise InvalidError(f"wanted a time from {low} to {high}, in ms or like '30s', found {node.described}")
    return value / 1000


def seconds(key: Key, node: Node) -> float:
    """Seconds, and seconds is what a plain number means."""
    plain = not isinstance(node.value, bool) and isinstance(node.value, int | float)
    value = units.milliseconds(node.value * 1000 if plain else node.value)
    if value is None or not _within(value, key):
        low, high = units.show_time(int(key.minimum)), units.show_time(int(key.maximum))
        raise InvalidError(f"wanted a time from {low} to {high}, in seconds or like '30m', found {node.described}")
    return value / 1000


def boolean(_key: Key, node: Node) -> bool:
    """`true` or `false`; YAML 1.1's other words are told apart in the error."""
    if not isinstance(node.value, bool):
        meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(str(node.value).lower(), "")
        close = f" (did you mean '{meant}'?)" if meant else ""
        raise InvalidError(f"wanted true or false, found {node.described}{close}")
    return node.value


def jar_path(_key: Key, node: Node) -> str:
    """A path in the jar."""
    return paths.jar_path(text_of(node, "an absolute path in the jar"))


def mount_path(_key: Key, node: Node) -> str:
    """A path in the jar that is free for a mount."""
    return paths.mount_path(text_of(node, "an absolute path in the jar"))


def host(_key: Key, node: Node) -> str:
    """The name of a host."""
    return hosts.host_name(text_of(node, "a host"))


def credential(_key: Key, node: Node) -> str:
    """The name of a credential."""
    text = text_of(node, "the name of a credential")
    if not _CREDENTIAL.match(text):
        raise InvalidError(f"wanted the name of a credential, found {node.described}")
    return text


def image(_key: Key, node: Node) -> str:
    """The name, digest or id of an image; nothing for belljar's own. An engine never takes it for an option."""
    text = text_of(node, "an image such as python:3.12-slim")
    if text and (len(text) > _LONGEST_IMAGE or not _IMAGE.match(text)):
        raise InvalidError(f"wanted an image such as python:3.12-slim, found {node.described}")
    return text


def container(_key: Key, node: Node) -> str:
    """A word in the name of a container."""
    text = text_of(node, "a name of letters, digits, '_', '.' and '-'")
    if not _CONTAINER.match(text):
        raise InvalidError(f"wanted a name of letters, digits, '_', '.' and '-', found {node.described}")
    return text


def published(key: Key, node: Node) -> str:
    """A pair of ports, `host:container`."""
    match = _PUBLISHED.match(node.value) if isinstance(node.value, str) else None
    if not match or not all(_within(int(port), key) for port in match.groups()):
        raise InvalidError(f"wanted two ports such as '8080:80', found {node.described}")
    return match[0]


def word(node: Node) -> str:
    """One word of a command."""
    text = text_of(node, "a word in quotes")
    if not text or "\0" in text or len(text) > _LONGEST_VALUE:
        raise InvalidError(f"wanted a word, found {node.described}")
    return text


def rate(_key: Key, node: Node) -> str:
    """A rate such as `10/s`."""
    text = text_of(node, "a rate such as 10/s")
    hosts.per_second(text)
    return text


def clause(node: Node) -> str:
    """A clause that `on_degraded` may list."""
    text = text_of(node, "a clause such as proc.mem_mb")
    if text not in CLAUSES:
        raise InvalidError(f"wanted a clause such as proc.mem_mb, found {node.described}{nearest(text, CLAUSES)}")
    return text


def glob(node: Node) -> str:
    """A deny pattern, or `!` and an inherited one."""
    text = text_of(node, "a pattern in quotes")
    try:
        globs.parse(text.removeprefix("!"))
    except globs.GlobError as error:
        raise InvalidError(f"{error}, in {node.described}" if text else str(error)) from None
    return text


def variable(name: str) -> str:
    """The name of a variable."""
    if not _VARIABLE.match(name):
        raise InvalidError(f"wanted the name of a variable, found {found(name)}")
    return name


def variable_value(node: Node) -> str:
    """The text of a variable, as it was written: `8080` and `true` are text too."""
    if node.value is None or isinstance(node.value, list | dict) or "\0" in node.text:
        raise InvalidError(f"wanted text, found {node.described}")
    if len(node.text) > _LONGEST_VALUE:
        raise InvalidError(f"wanted at most {_LONGEST_VALUE} characters, found {len(node.text)}")
    return node.text


SCALARS: dict[ValueKind, Callable[[Key, Node], Any]] = {
    ValueKind.VERSION: version,
    ValueKind.EXTENDS: extends,
    ValueKind.CHOICE: choice,
    ValueKind.COUNT: count,
    ValueKind.NUMBER: number,
    ValueKind.SIZE: size,
    ValueKind.TIME: time,
    ValueKind.SECONDS: seconds,
    ValueKind.BOOLEAN: boolean,
    ValueKind.JAR_PATH: jar_path,
    ValueKind.MOUNT_PATH: mount_path,
    ValueKind.HOST: host,
    ValueKind.CREDENTIAL: credential,
    ValueKind.RATE: rate,
    ValueKind.IMAGE: image,
    ValueKind.CONTAINER: container,
}
"""The kinds that need nothing but the value. Lists and paths of the host are the validator's."""
