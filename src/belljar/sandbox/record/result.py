"""What comes back from a run: plain values, ready for JSON."""

from __future__ import annotations

from belljar._startup.records import StrEnum, dataclass, field
from belljar.backends.contract import EnforcementReport

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    from belljar.egress.events import Event
    from belljar.redaction.slices import Slice


class Outcome(StrEnum):
    """How a run ended."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OOM = "oom"
    KILLED = "killed"
    REFUSED = "refused"


class Fault(StrEnum):
    """Whose fault the end of a run is.

    An infrastructure failure must never look like a wrong answer of the code, nor the other way round: code that could
    make its own failure look like `infra` would be given another try.
    """

    NONE = "none"
    """Nothing failed: the code succeeded, or its caller stopped it."""
    CODE = "code"
    """The code: an exit code, an exception, a limit, or what it did to its own jar."""
    POLICY = "policy"
    """The policy or an operator stopped it: refused, a canary, `belljar kill`, the kill switch, a forged message."""
    INFRA = "infra"
    """The jar, the engine, the proxy or the audit log was lost without the code's doing."""


_FAULTS = {
    **dict.fromkeys(("timeout", "oom", "output", "pid1", "container", "out of its time"), Fault.CODE),
    **dict.fromkeys(("internal", "gate", "unrecorded"), Fault.INFRA),
    **dict.fromkeys(
        ("killed", "abandoned", "interrupted", "ended", "idle", "room", "unused", "closed", "restarted"), Fault.NONE
    ),
}
"""By the reason for which a run was ended. Any other reason is an operator's, or the policy's."""


def fault_of(outcome: Outcome, ended_by: str) -> Fault:
    """Return whose fault it is that a run ended with `outcome`, for the reason `ended_by` if belljar ended it."""
    if outcome is Outcome.OK:
        return Fault.NONE
    if outcome is Outcome.REFUSED:
        return Fault.POLICY
    return _FAULTS.get(ended_by, Fault.POLICY) if ended_by else Fault.CODE


@dataclass(frozen=True, slots=True)
class Denial:
    """Something the jar refused: what was tried, by which rule, and the smallest change that would allow it."""

    kind: str
    """`file`, `network`, `syscall`, `limit`."""
    target: str
    """What was tried: `open /root/.ssh/id_rsa`, `connect 192.0.2.1:443`, `ptrace`."""
    rule: str
    """The key of the policy that refused it: `fs.deny_globs[1]`."""
    where: str
    """File and line of that rule."""
    allow: str
    """The smallest policy change that would allow it, or why none can."""
    count: int = 1
    code: str = ""
    """For the network: the stable code of the reason, such as `name-not-listed`."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A regular file in the workspace that the run made or changed."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What the run used. `None` where the host can't tell."""

    cpu_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    processes: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """The whole story of one run."""

    run_id: str
    outcome: Outcome
    exit_code: int | None
    signal: str | None
    stdout: str
    stderr: str
    truncated: bool
    duration: float
    """Seconds, from the call to the end of the last process."""
    usage: Usage
    denials: tuple[Denial, ...]
    artifacts: tuple[Artifact, ...]
    policy_digest: str
    enforcement: EnforcementReport
    backend: str = ""
    reason: str = ""
    """What ended it, in words, with the rule. For `failed`: limits of the policy that its output speaks of, if any."""
    fallback_from: tuple[str, ...] = field(default=())
    """Backends that the policy preferred and that were not available here."""
    image: str = ""
    """The digest of the container image that the code ran in (`sha256:…`); empty on a backend without images."""
    egress: tuple[Event, ...] = ()
    """Where the policy opens the network: what the proxy decided, in order; of what it let pass the first thousand
    decisions, and so many of the others."""
    container: str = ""
    """The name of the run's container, where it was kept (`container.auto_remove: false`)."""
    fault: Fault = Fault.NONE
    """Whose fault the end is: `none`, `code`, `policy` or `infra`."""
    not_saved: tuple[tuple[str, str], ...] = ()
    """Of a pool's run with `artifacts=`: files that were not written there, each with the reason."""

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end and returned 0."""
        return self.outcome is Outcome.OK

    def but_not_saved(self, refused: Iterable[tuple[str, str]]) -> RunResult:
        """The same result, with files that were not written to `artifacts=`."""
        from dataclasses import replace

        return replace(self, not_saved=tuple(refused))

    def slice(
        self,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        head: int = 40,
        tail: int = 20,
        characters: int = 16_000,
    ) -> Slice:
        """The first and last lines of what it printed, for a model, and a handle to the whole (`belljar.output`)."""
        from belljar.sandbox.record.kept_outputs import sliced

        text = self.stdout if stream == "stdout" else self.stderr
        return sliced(text, f"{self.run_id}/{stream}", head=head, tail=tail, characters=characters)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        from dataclasses import asdict

        return asdict(self)
