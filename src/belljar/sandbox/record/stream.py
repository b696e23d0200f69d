"""A run as an iterator of events, that can be ended from any thread while another one waits for the next event."""

from __future__ import annotations

import os
import time
from _thread import allocate_lock  # `threading` takes a millisecond to import
from collections.abc import Callable, Iterator

from belljar._startup.records import Protocol
from belljar.sandbox.record.events import Finished, Output

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Self

    from belljar.backends.contract import LaunchPlan, Process
    from belljar.policy.models import Policy
    from belljar.sandbox.files.snapshots import Held
    from belljar.sandbox.record.printed import Printed
    from belljar.sandbox.record.sampling import Samples

Event = Output | Finished


def new_run_id() -> str:
    """Return an id for a run: sortable by time, unguessable, short enough to type."""
    return f"{int(time.time() * 1000):012x}-{os.urandom(4).hex()}"


class Killable(Protocol):
    """A run that can be ended."""

    def kill(self, reason: str) -> None:
        """End it."""


class Access:
    """A run as it can be looked into while it is there: what it is, its processes, its files."""

    __slots__ = ("held", "plan", "policy", "process")

    def __init__(self, policy: Policy, plan: LaunchPlan, process: Process, held: Callable[[], Held]) -> None:
        self.policy = policy
        self.plan = plan
        self.process = process
        self.held = held
        """What the jar holds of the workspace, for a snapshot. Raises UsageError if it holds nothing."""


class Handle:
    """What can be done to a run from outside, before it has started, while it runs, and after it has ended.

    One is made for every run: what most of them never have is said once, for all.
    """

    process: Killable | None = None
    """The run, while there is one."""
    _killed = ""
    policy: Policy | None = None
    read_along = False
    """Whether somebody else has asked what it prints."""
    end_told = False
    """Whether one of them has got all of it."""
    printed: Printed | None = None
    """Made when somebody has."""
    samples: Samples | None = None
    """What it used over time, if it lives long enough."""
    access: Access | None = None
    """While there is something to look into."""
    over = False
    """Whether all its processes are gone: then only its end is to be recorded, which may have to wait."""
    kept_still = False
    """Whether it was frozen to stay so: then whoever looks into it does not let it go on."""
    quarantined = ""
    """The bundle that was made of it, if one was."""

    def __init__(self, session: str = "") -> None:
        self.session = session
        """The session whose run it is, if it is one's."""
        self.parts: dict[int, dict[str, bytearray]] = {}
        """What it has printed so far, by stream: of a run one part, of a session one for each of the last steps."""
        self.looking = allocate_lock()
        """Held by whoever looks into it: it does not go away meanwhile."""

    def prints(self, captured: dict[str, bytearray], policy: Policy, part: int = 0) -> None:
        """What it prints is put there as it comes."""
        self.policy = policy
        self.parts[part] = captured

    def started(self, process: Killable) -> None:
        """The run's process exists now; a kill that came earlier takes effect."""
        self.process = process
        if self._killed:
            process.kill(self._killed)

    def ended(self) -> None:
        """The run is over: there is nothing left to kill, or to look into."""
        self.process = None
        with self.looking:
            self.access = None

    def kill(self, reason: str) -> None:
        """End the run, now or as soon as it starts."""
        self._killed = reason
        if (process := self.process) is not None:
            process.kill(reason)


class Stream(Iterator[Event]):
    """What `Sandbox.stream` returns. Leaving it, closing it or losing it ends the run.

    Nothing but its user holds it (the events and the Sandbox know the handle only), so that losing it is noticed.
    """

    def __init__(self, handle: Handle, events: Iterator[Event]) -> None:
        self.handle = handle
        self._events = events
        self._turn = allocate_lock()

    def __next__(self) -> Event:
        with self._turn:
            return next(self._events)

    def kill(self, reason: str = "killed") -> None:
        """End the run. The events that are still to come tell of it."""
        self.handle.kill(reason)

    def close(self) -> None:
        """End the run and let go of it; waits for a thread that is inside `next`."""
        self.kill("abandoned")
        with self._turn:
            close = getattr(self._events, "close", None)
            if close is not None:
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
