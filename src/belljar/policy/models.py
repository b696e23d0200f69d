"""The policy as frozen values: what a reader of a YAML file gets, and all that the rest of belljar sees.

Sizes are bytes and times are seconds here, whatever the file's unit was. Nothing in this file reads, writes or decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from belljar._startup.records import dataclass, field

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: a file (or `preset aicode`, `--set`), a line and a column, both from 1."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory in the jar. Without `source` it is empty and ephemeral; with `cow` the source is never written."""

    path: str
    source: str | None = None
    rw: bool = False
    cow: bool = False


@dataclass(frozen=True, slots=True)
class FsPolicy:
    """What the jar sees of files."""

    mounts: tuple[Mount, ...] = ()
    deny_globs: tuple[str, ...] = ()
    size_bytes: int = 0
    inodes: int = 0
    workdir: str = "/workspace"
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of the allowlist; empty `methods` or `paths` mean any."""

    host: str
    ports: tuple[int, ...] = (443, 80)
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    credential: str | None = None
    rate: str | None = None
    query: tuple[str, ...] = ()
    """The query keys that may be sent; empty for any."""
    addresses: tuple[str, ...] = ()
    """Where the name is dialled instead of asking DNS: `10.1.2.3`, `127.0.0.1:8443`, `[::1]:8443`."""
    budget_bytes: int | None = None
    sign: str | None = None
    """The credential, a key, by which requests are signed."""
    foreign_credentials: bool = False
    """Whether credentials that are not the policy's may be sent to a model vendor's API or a cloud's."""
    get_body: bool = False
    """Whether GET and HEAD may carry a body."""


@dataclass(frozen=True, slots=True)
class DenyRule:
    """One entry of the denylist: it wins over every entry of the allowlist. What is empty means any."""

    host: str
    ports: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    query: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetPolicy:
    """What the jar reaches. An empty allowlist allows nothing."""

    enabled: bool = False
    allowlist: tuple[HostRule, ...] = ()
    denylist: tuple[DenyRule, ...] = ()
    allow_builtin: tuple[str, ...] = ()
    """The entries of the built-in deny list that do not hold, by name."""
    host_ports: tuple[int, ...] = ()
    publish: tuple[str, ...] = ()
    """Each `host:jar`, in digits without leading zeros."""
    strip_headers: tuple[str, ...] = ()
    """In small letters."""
    budget_bytes: int | None = None
    max_name_length: int = 100
    max_name_entropy: float = 4.2
    max_names: int = 256
    ca_file: str | None = None
    canary_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret of the host's: where it is got, and what the proxy does with it. The secret itself is never in here."""

    name: str
    source: str = ""
    """`env:NAME`, `file:/path` or `keyring:service/user`; empty when `command` prints it."""
    command: tuple[str, ...] = ()
    header: str = "Authorization"
    format: str = "Bearer {}"
    query: str | None = None
    """The query key that carries it, instead of a header."""
    placeholder: str | None = None
    """What the code may send in its stead."""
    env: str | None = None
    """The variable in which the code finds the placeholder."""
    hosts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    algorithm: str | None = None
    """`ed25519` or `hmac-sha256`: then it is a key, and requests are signed with it."""
    key_id: str | None = None
    on_foreign_credential: str = "refuse"
    reflects: bool = False
    """Whether responses may hold it, and are searched for it."""

    @property
    def kind(self) -> str:
        """What it is: `header`, `query` or `signature`."""
        return "signature" if self.algorithm else "query" if self.query else "header"


@dataclass(frozen=True, slots=True)
class ProcPolicy:
    """The share of the machine that a run may use."""

    uid: int
    cpu_quota: float
    mem_bytes: int
    timeout_seconds: float
    pids: int
    open_files: int
    file_size_bytes: int
    output_bytes: int
    host_info: str = "limits"
    """What the code learns about the machine: `hidden`, `limits` or `host`."""


@dataclass(frozen=True, slots=True)
class EnvPolicy:
    """The jar's environment: `set` as written, `pass_` by name from the caller's."""

    set: Mapping[str, str] = field(default_factory=_nothing)
    pass_: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonPolicy:
    """Which Python the jar gets: a virtual environment or an interpreter of the host, mounted read-only."""

    venv: str | None = None
    interpreter: str | None = None


@dataclass(frozen=True, slots=True)
class LoggingPolicy:
    """What is written down about a run."""

    sample_ratio: float = 0.1
    redact_pii: bool = True
    redact: tuple[str, ...] = ("secrets", "personal")
    redact_in: tuple[str, ...] = ("log",)
    let_through: tuple[str, ...] = ()
    quarantine: bool = False


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """How long a session may live, and how many there may be."""

    idle_seconds: float = 1800.0
    max_age_seconds: float = 28_800.0
    max_sessions: int = 32
    keep_seconds: float = 86_400.0


@dataclass(frozen=True, slots=True)
class AgentsPolicy:
    """What the caller of a tool may ask for."""

    unsandboxed: bool = False


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """What a container engine is asked for; another backend has no use for it, and its report says so."""

    image: str = ""
    """Empty for belljar's own base image."""
    engine: str = "auto"
    runtime: str = "auto"
    name: str | None = None
    network: str = "none"
    pid: str = "private"
    privileged: bool = False
    read_only: bool = True
    auto_remove: bool = True
    entrypoint: tuple[str, ...] | None = None
    ports: tuple[str, ...] = ()
    """Each `host:container`, in digits without leading zeros."""
    pull: str = "never"


@dataclass(frozen=True, slots=True)
class Policy:
    """A resolved policy: every layer merged, every value final."""

    fs: FsPolicy
    net: NetPolicy
    proc: ProcPolicy
    env: EnvPolicy
    python: PythonPolicy
    logging: LoggingPolicy
    container: ContainerPolicy = ContainerPolicy()
    session: SessionPolicy = SessionPolicy()
    agents: AgentsPolicy = AgentsPolicy()
    credentials: Mapping[str, Credential] = field(default_factory=_nothing)
    backend: str = "auto"
    fallback: tuple[str, ...] = ()
    on_degraded: str | tuple[str, ...] = "refuse"
    """`refuse`, `allow`, or the clauses (`proc.mem_mb`) whose degradation is accepted."""
    dangerous: bool = False
    """Whether it hands the host to the code (`policy.dangers`), which only a policy from `unrestricted` may."""
    origins: Mapping[str, Origin] = field(default_factory=_nothing, compare=False)
    """Key path as in the file (`proc.mem_mb`, `fs.deny_globs[2]`) to where it was written."""
    digest: str = ""
    """`sha256:…` of the canonical JSON of all that can be enforced (origins and layers left out)."""

    def origin(self, key: str) -> Origin | None:
        """Where `key` was written, or where the nearest key above it was."""
        while key:
            if found := self.origins.get(key):
                return found
            key = key.rpartition("[")[0] if key.endswith("]") else key.rpartition(".")[0]
        return None
