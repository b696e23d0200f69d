"""Readers for the values of the network and of credentials, as `values` has them for the rest."""

from __future__ import annotations

from collections.abc import Callable

from belljar.policy import paths
from belljar.policy.keys.key import Key, ValueKind
from belljar.policy.keys.patterns import Pattern
from belljar.policy.keys.values import InvalidError, text_of, variable
from belljar.policy.models import Credential
from belljar.policy.nodes import Node
from belljar.policy.problems import found

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

CREDENTIAL_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
HEADER_PATTERN = r"[A-Za-z0-9_-]{1,64}"
SOURCE_PATTERN = r"env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:.+|keyring:[^/]+/.+"
QUERY_KEY_PATTERN = r"[!-~]{1,128}"
_CREDENTIAL = Pattern(CREDENTIAL_PATTERN + r"\Z")
_HEADER = Pattern(HEADER_PATTERN + r"\Z")
_SOURCE = Pattern(f"(?:{SOURCE_PATTERN})\\Z")
_QUERY_KEY = Pattern(QUERY_KEY_PATTERN + r"\Z")
_PRINTABLE = Pattern(r"[ -~]+\Z")
_PLACEHOLDER = Pattern(r"[A-Za-z0-9._~+/=-]{8,200}\Z")
_KEY_ID = Pattern(r"[!#-\[\]-~]{1,128}\Z")
_PUBLISH = Pattern(r"(?:([1-9][0-9]{0,4}):)?([1-9][0-9]{0,4})\Z")
_FRAMING = frozenset(
    (
        *("connection", "content-encoding", "content-length", "content-type", "expect", "host"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers without which a request is another request, or none."""


def credential_name(name: str) -> str:
    """The name of a credential, where it is defined."""
    if not _CREDENTIAL.match(name):
        raise InvalidError("wanted a name of letters, digits, '.', '_' and '-'")
    return name


def credential(name: str, values: dict[str, Any]) -> Credential:
    """The credential that the keys of one entry say together."""
    if ("from" in values) == ("command" in values):
        raise InvalidError("wanted 'from' or 'command', to say where the secret is, and not both")
    if "query" in values and ("header" in values or "format" in values):
        raise InvalidError("wanted a header (with its format) or a query key, found both")
    signs = "algorithm" in values
    sent = [key for key in ("header", "format", "query", "placeholder", "env", "reflects") if key in values]
    if signs and sent:
        raise InvalidError(f"wanted a key that signs and is never sent ('algorithm'), found '{sent[0]}' too")
    if signs != ("key_id" in values):
        raise InvalidError("wanted 'algorithm' and 'key_id' together")
    values = {"source" if key == "from" else key: value for key, value in values.items()}
    header = values.get("header", "Authorization")
    values.setdefault("format", "Bearer {}" if header.lower() == "authorization" and "query" not in values else "{}")
    if "env" in values:
        values.setdefault("placeholder", f"belljar-placeholder-{name}")
    return Credential(name, **values)


def secret(node: Node) -> str:
    """Where a secret is."""
    text = text_of(node, "env:NAME, file:PATH or keyring:SERVICE/USER")
    if not _SOURCE.match(text) or not text.isprintable():
        # What was written may be the secret itself, so it is not repeated.
        raise InvalidError("wanted env:NAME, file:PATH or keyring:SERVICE/USER, found something else")
    return text


def header(_key: Key, node: Node) -> str:
    """The name of a header."""
    text = text_of(node, "the name of a header")
    if not _HEADER.match(text):
        raise InvalidError(f"wanted the name of a header, found {node.described}")
    if text.lower() in _FRAMING:
        raise InvalidError(f"wanted a header that is not part of how a request is framed, found {node.described}")
    return text


def header_format(_key: Key, node: Node) -> str:
    """The value of a header, around the secret."""
    text = text_of(node, "a text with {} in it")
    if not _PRINTABLE.match(text) or text.count("{}") + text.count("{base64}") != 1:
        raise InvalidError(f"wanted a text with one {{}} or {{base64}} in it, found {node.described}")
    return text


def query_key(_key: Key, node: Node) -> str:
    """A key of a URL's query, decoded."""
    text = text_of(node, "a query key in quotes")
    if not _QUERY_KEY.match(text):
        raise InvalidError(f"wanted a query key, found {node.described}")
    return text


def placeholder(_key: Key, node: Node) -> str:
    """What the code sends instead of a secret: long enough to be nothing else, plain enough for any header."""
    text = text_of(node, "a text of 8 to 200 letters, digits and ._~+/=-")
    if not _PLACEHOLDER.match(text):
        raise InvalidError(f"wanted a text of 8 to 200 letters, digits and ._~+/=-, found {node.described}")
    return text


def variable_name(_key: Key, node: Node) -> str:
    """The name of a variable."""
    return variable(text_of(node, "the name of a variable"))


def key_id(_key: Key, node: Node) -> str:
    """The name of a key, as it stands between quotes in a signature."""
    text = text_of(node, "the name of a key")
    if not _KEY_ID.match(text):
        raise InvalidError(f"wanted the name of a key, without spaces, quotes and backslashes, found {node.described}")
    return text


def jar_port(key: Key, node: Node) -> str:
    """`host:jar`; a port alone is the same on both sides."""
    text = node.text if isinstance(node.value, int) and not isinstance(node.value, bool) else node.value
    match = _PUBLISH.match(text) if isinstance(text, str) else None
    if not match or not all(int(port) <= key.maximum for port in match.groups() if port):
        raise InvalidError(f"wanted a port such as 8000, or two such as '18000:8000', found {found(node.value)}")
    return f"{match[1] or match[2]}:{match[2]}"


def jar_file(node: Node) -> str:
    """A file in the jar."""
    return paths.jar_path(text_of(node, "an absolute path in the jar"))


SCALARS: dict[ValueKind, Callable[[Key, Node], Any]] = {
    ValueKind.HEADER: header,
    ValueKind.FORMAT: header_format,
    ValueKind.QUERY_KEY: query_key,
    ValueKind.PLACEHOLDER: placeholder,
    ValueKind.VARIABLE: variable_name,
    ValueKind.KEY_ID: key_id,
}
