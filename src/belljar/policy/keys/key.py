"""What a key of a policy is: its kind of value, how a managed policy binds it, and all that the tables say of one."""

from __future__ import annotations

from belljar._startup.records import StrEnum, dataclass

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any


class ValueKind(StrEnum):
    """What a value is; `validate` has one reader for each."""

    VERSION = "version"
    EXTENDS = "preset or path"
    CHOICE = "choice"
    CHOICES = "list of choices"
    DEGRADED = "refuse, allow or a list of keys"
    COUNT = "whole number"
    NUMBER = "number"
    SIZE = "size"
    TIME = "time"
    SECONDS = "time in seconds"
    BOOLEAN = "boolean"
    JAR_PATH = "path in the jar"
    MOUNT_PATH = "path in the jar that is free"
    SOURCE = "directory of the host"
    VENV = "virtual environment of the host"
    PROGRAM = "program of the host"
    GLOBS = "list of globs"
    MOUNTS = "list of mappings"
    HOSTS = "list of hosts and mappings"
    VARIABLES = "names and values"
    NAMES = "list of names"
    HOST = "host"
    PORTS = "list of ports"
    PATHS = "list of URL paths"
    CREDENTIAL = "name"
    RATE = "rate"
    IMAGE = "image"
    CONTAINER = "name of a container"
    WORDS = "list of words"
    PATTERNS = "list of patterns"
    PUBLISHED = "list of host:container ports"
    DENIED = "list of hosts to deny and mappings"
    QUERY_KEYS = "list of query keys"
    QUERY_KEY = "query key"
    ADDRESSES = "list of addresses"
    SERVICE_PORTS = "list of the host's ports"
    JAR_PORTS = "list of ports and host:jar ports"
    HEADERS = "list of header names"
    HEADER = "header name"
    JAR_FILES = "list of paths in the jar"
    FILE = "file of the host"
    CREDENTIALS = "names and mappings"
    FROM = "env:NAME, file:PATH or keyring:SERVICE/USER"
    FORMAT = "text with {} in it"
    PLACEHOLDER = "text"
    VARIABLE = "name of a variable"
    KEY_ID = "name of a key"
    HOST_NAMES = "list of hosts"


class Bound(StrEnum):
    """How a managed policy binds a key; the words are the reference page's."""

    NONE = "does not bind"
    MOST = "is the most"
    SAME = "must stay the same"
    OFF = "false stays false"
    ON = "true stays true"
    BACKEND = "anything but auto must stay; unconfined only if named here"
    SUBSET = "nothing beyond what is listed here"
    DEGRADED = "nothing beyond what is accepted here"
    KEPT = "every pattern stays"
    MOUNTS = "every source lies beneath one of these, writable and live only if that one is"
    COVERED = "every entry is covered by one of these"
    ORDER = "nothing that stands after it in the list"
    ADDED = "every entry stays"
    AS_WRITTEN = "nothing beyond what is listed here, and each as it is here"


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `minimum` and `maximum` are in the value's base unit: bytes for a size, milliseconds for a time."""

    path: str
    kind: ValueKind
    doc: str
    example: Any
    bound: Bound = Bound.NONE
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()
    optional: bool = False
    """Whether `null` may be written, to take back what was inherited."""
    dangers: tuple[tuple[Any, str], ...] = ()
    """Values that only a policy from `unrestricted` may have, each with the reason."""
    default: Any = None
    """What holds if no layer writes the key. For a limit None is no limit, for a choice it is the first one."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    def at(self, path: str) -> Key:
        """The same key, at the place of one item: `fs.mounts[2].path`."""
        kept = (self.kind, self.doc, self.example, self.bound, self.minimum, self.maximum, self.choices, self.optional)
        return Key(path, *kept, self.dangers, self.default)
