"""What comes back from a step of a session, and what is told while it runs: plain values, ready for JSON."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from belljar.sandbox.record.result import Artifact, Denial, Fault, Outcome

if TYPE_CHECKING:
    from belljar.egress.events import Event
    from belljar.redaction.slices import Slice

_TEXT = ("text/", "application/json", "image/svg+xml")


@dataclass(frozen=True, slots=True)
class Rich:
    """Something the code showed that is more than text: a figure, a table, JSON. It comes from an untrusted source."""

    mime: str
    data: bytes
    name: str
    """A file name for it: `figure-1.png`."""

    @property
    def text(self) -> str:
        """As text, if it is of a kind that is."""
        return self.data.decode(errors="replace")

    @property
    def is_text(self) -> bool:
        """Whether its kind is text."""
        return self.mime.startswith(_TEXT) or self.mime.endswith(("+json", "+xml"))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: text as it is, anything else in base64."""
        data = self.text if self.is_text else base64.b64encode(self.data).decode()
        return {"mime": self.mime, "name": self.name, "encoding": "" if self.is_text else "base64", "data": data}


@dataclass(frozen=True, slots=True)
class Shown:
    """An event of a stream: the code showed something, by `display`, as a figure, or as its last value."""

    text: str
    forms: tuple[Rich, ...]


@dataclass(frozen=True, slots=True)
class StepError:
    """The exception that ended a step, as Python tells it; the traceback begins at the step's own code."""

    type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """The whole story of one step."""

    session_id: str
    step: int
    outcome: Outcome
    value: str | None
    """The `repr` of the last expression, if it has a value."""
    results: tuple[Rich, ...]
    """What the code showed, and the other forms of its value."""
    stdout: str
    stderr: str
    error: StepError | None
    exit_code: int | None
    """What the code gave to `sys.exit`, which ends the step, not the session."""
    truncated: bool
    interrupted: bool
    state_lost: bool
    """Whether the interpreter has ended, and all its variables with it."""
    duration: float
    artifacts: tuple[Artifact, ...]
    denials: tuple[Denial, ...]
    """What the network refused; other refusals are told when the session ends."""
    egress: tuple[Event, ...] = ()
    reason: str = ""
    """What ended it, in words. For `failed`: why the interpreter ended, or limits that its output speaks of, if any."""
    fault: Fault = Fault.NONE
    """Whose fault the end is: `none`, `code`, `policy` or `infra`."""
    run_id: str = ""
    """The run of the session's interpreter, for the audit log and `belljar logs`."""

    @property
    def ok(self) -> bool:
        """Whether the step ran to its end."""
        return self.outcome is Outcome.OK

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
        return sliced(text, f"{self.run_id}/{self.step}/{stream}", head=head, tail=tail, characters=characters)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        from dataclasses import asdict, replace

        return asdict(replace(self, results=())) | {"results": [rich.to_dict() for rich in self.results]}


@dataclass(frozen=True, slots=True)
class StepFinished:
    """The last event of a step."""

    result: StepResult
