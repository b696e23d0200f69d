"""What every backend promises: `probe`, `compile`, `launch`, and the values that pass between them.

`compile` is pure: a plan can be made, printed and compared on any machine. Only `probe` and `launch` touch the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from belljar._startup.records import Protocol, StrEnum, dataclass, field
from belljar.policy.models import Policy

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

LOOK_UP_SECONDS = 0.25
"""Whoever waits for a run looks up so often. A signal that comes just before a thread goes to sleep does not wake it,
nor does one that the kernel gives to another thread; and what it is to do in Python is done when the first thread runs.
"""


class Status(StrEnum):
    """How far a clause of the policy holds on a backend."""

    ENFORCED = "enforced"
    DEGRADED = "degraded"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of the policy and what holds it; `lost` says what a degraded one can't hold."""

    key: str
    status: Status
    by: str
    lost: str = ""


@dataclass(frozen=True, slots=True)
class EnforcementReport:
    """Every clause of a policy, accounted for."""

    clauses: tuple[Clause, ...]
    unseen: str = ""
    """What is refused here without a record in `denials`, and why; empty where all is recorded."""

    def clause(self, key: str) -> Clause:
        """The clause named `key`."""
        return next(clause for clause in self.clauses if clause.key == key)

    def shortfalls(self) -> tuple[Clause, ...]:
        """The clauses that are not fully enforced."""
        return tuple(clause for clause in self.clauses if clause.status is not Status.ENFORCED)

    def refused_by(self, policy: Policy) -> tuple[Clause, ...]:
        """The shortfalls that the policy does not accept: any of them stops the run."""
        if policy.on_degraded == "allow":
            return ()
        accepted = () if policy.on_degraded == "refuse" else policy.on_degraded
        return tuple(clause for clause in self.shortfalls() if clause.key not in accepted)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `belljar doctor`: what was looked at, what was found, what it means, what to type."""

    name: str
    ok: bool
    found: str
    meaning: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend works on this host, and why."""

    backend: str
    available: bool
    reason: str
    hint: str = ""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class Trust:
    """The certificates that a jar trusts when the egress proxy may have to look into TLS."""

    bundle: str
    """The host's own roots and the proxy's, as PEM."""
    own: str
    """The proxy's alone."""
    subject_hash: str
    """The name under which OpenSSL looks for it in a directory of certificates."""
    java: bytes = b""
    """The bundle as Java reads it."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run: a command, or code in a language. The policy says what it may do."""

    argv: tuple[str, ...] = ()
    """The command; empty when `code` is given."""
    code: bytes | None = None
    language: str = "python"
    script_name: str = ""
    """The name that the code's file has in the jar (`script.py`), for tracebacks."""
    arguments: tuple[str, ...] = ()
    """Arguments for the code."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The caller's environment, from which `env.pass` picks."""
    explain_denials: bool = False
    trust: Trust | None = None
    """Given where the policy opens the network."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All that `launch` needs, and nothing that has to be decided any more. Plain data, JSON-ready."""

    backend: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    limits: Mapping[str, Any]
    stage: Mapping[str, Any]
    """What is prepared outside the jar before it is made; its form is the backend's own."""
    report: EnforcementReport
    policy_digest: str
    image: str = ""
    """The digest of the container image that the code runs in; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Something a backend saw being refused, in the backend's words; `belljar.sandbox.run.denials` explains it."""

    kind: str
    """`file`, `network`, `name`, `syscall`."""
    target: str
    result: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """How a process tree ended, as the backend saw it."""

    exit_code: int
    signal: int | None
    ended_by: str
    """Empty if the code ended by itself; else `timeout`, `oom`, `output`, `killed`, `abandoned`, `canary`, `gate`,
    `pid1`, `container`, `forged`, `internal`, or an operator's words."""
    problems: tuple[str, ...]
    """Why it never started, if it did not."""
    started: bool
    cpu_seconds: float
    peak_memory_bytes: int | None
    processes: int | None
    bytes_read: int | None
    bytes_written: int | None
    oom_kills: int
    pids_refused: int
    observations: tuple[Observation, ...]
    kept: str = ""
    """The container that stays, where the policy says so."""
    began: float = 0.0
    """When the code was let go, by the clock of `time.monotonic`; 0 if it was not."""


class JarGoneError(Exception):
    """The jar died before the code had begun. Nothing has run in it, so another jar may have the run."""


def never_started(ended_by: str, problem: str = "") -> End:
    """Return the end of a run that has not begun."""
    return End(
        exit_code=128 + 9,
        signal=None,
        ended_by=ended_by,
        problems=(problem,) if problem else (),
        started=False,
        cpu_seconds=0.0,
        peak_memory_bytes=0,
        processes=None,
        bytes_read=None,
        bytes_written=None,
        oom_kills=0,
        pids_refused=0,
        observations=(),
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in the workspace. `kind` is `file`, `directory`, `link` or `other`."""

    path: str
    kind: str
    size: int
    mode: int = 0
    changed_ns: int = 0


@dataclass(frozen=True, slots=True)
class ChangedTree:
    """What runs changed in a mount, as a directory that the host can read."""

    descriptor: int
    """To be closed by whoever asked."""
    layered: bool
    """Whether it is an overlay's upper layer, and not the whole."""
    untouched: Mapping[str, str] = field(default_factory=dict)
    """Where it is neither: kinds by path of what is in the mount as it was copied, and therefore not in the tree."""
    whole: bool = True
    """False if the mount holds more than was looked at: what is missing here may still be there."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket at which a jar's connections arrive, for the egress proxy: what it is for, its port, its descriptor."""

    role: str
    """`tcp`, `dns-udp`, `dns-tcp`, `http-proxy`, `socks`, `packet` are the proxy's. `door` leads to the code's servers;
    `canary-udp` and `canary-tcp` are sockets in the jar's own network, to try what must be refused."""
    port: int
    descriptor: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """A run that was told to stand still."""

    by: str
    """By what, in words."""
    still: bool = True
    """Whether every process of it does; one that is inside of a long call does so when it returns."""


class Process(Protocol):
    """A run in progress. Its output has to be read by the caller, who is also how it ends if nobody cares."""

    stdout: int
    stderr: int
    listeners: tuple[Listener, ...]
    """Where the policy opens the network: the caller's, to be handed to the proxy. The code waits until `begin`."""

    def begin(self) -> None:
        """Its listeners are served: let the code start. Without listeners it has started by itself."""

    def fileno(self) -> int:
        """Readable when the last process of the jar is gone."""

    def kill(self, reason: str) -> None:
        """End the whole tree."""

    def freeze(self) -> Frozen:
        """Have the whole tree stand still, and the run's clock with it, until `thaw` or its end."""

    def thaw(self) -> None:
        """Let it go on."""

    def end(self) -> End:
        """Wait for the end, and tell it."""

    def close(self) -> None:
        """Let go of every descriptor; a run that is still alive is ended."""


class Jar(Protocol):
    """What stays between the runs of one Sandbox: the mounts and the files in them."""

    shortfalls: tuple[Clause, ...]
    """What could only be found out on the real directories."""

    def launch(self, plan: LaunchPlan, request: RunRequest, *, stdin: int | None, prepare: bool = False) -> Process:
        """Start a run. `stdin` is a descriptor to read from, or None. `prepare` hints that another run will follow."""

    def prepare(self, plan: LaunchPlan, request: RunRequest) -> None:
        """Have a jar wait for a run like this, as far as there is something to prepare. What fails, the run tells."""

    def read(self, mount: int, path: str, limit: int) -> bytes:
        """At most `limit` bytes of a regular file in the mount, through no link. Raises OSError as `open` would."""

    def write(self, mount: int, path: str, content: bytes) -> int:
        """Write a file and make the directories above it; its time of change, in nanoseconds."""

    def list(self, mount: int, path: str, *, recursive: bool) -> Iterable[Entry]:
        """The entries beneath a directory, bounded in number and depth."""

    def mkdir(self, mount: int, path: str) -> None:
        """Make a directory and those above it."""

    def remove(self, mount: int, path: str) -> None:
        """Remove a file, a link, or a directory with all that is in it."""

    def changed(self, mount: int) -> Iterable[Entry]:
        """The entries that the jar itself holds of a mount: what runs made or changed, and, in a copy, the rest too."""

    def changes(self, mount: int, only: Sequence[str] | None = None) -> ChangedTree:
        """What runs changed in a mount, with its content; `only` these paths, if not all are wanted."""

    def close(self) -> None:
        """End every run and let go of everything."""


class Backend(Protocol):
    """A way to confine code."""

    name: str

    def probe(self) -> Availability:
        """Whether it works here."""

    def compile(self, policy: Policy, request: RunRequest) -> LaunchPlan:
        """What would be done, and how far it holds."""

    def open(self, policy: Policy, plan: LaunchPlan) -> Jar:
        """Prepare what the runs of one Sandbox share."""
