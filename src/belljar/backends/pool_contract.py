"""What a backend promises that keeps jars waiting for a pool's runs. The others serve pools by whole Sandboxes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import cast

from belljar._startup.records import Protocol  # the base of the protocols in contract.py, which these extend
from belljar.backends.contract import Backend, Clause, End, LaunchPlan, Process, Trust
from belljar.errors import UsageError
from belljar.policy.models import Policy

_REMEDIES = {
    os.strerror(errno.ENOSPC): "give less, or raise fs.size_mb and fs.inodes",
    os.strerror(errno.EMFILE): "raise proc.open_files",
}
"""What to do about it, where that is not another name."""


class Prepared(Protocol):
    """What was done to a jar before it waits, and has to be undone."""

    def abandon(self) -> None:
        """The jar is no more."""


class PooledJar(Process, Protocol):
    """A jar that waits, until `start`; from then on a run."""

    workspace: int
    """A descriptor of the directory that the code works in."""
    prepared: Prepared | None

    def give(
        self, code: bytes, name: str, arguments: Sequence[str], files: Mapping[str, bytes], stdin: int | None
    ) -> None:
        """Give it what to run, which it does not do yet. Raises JarGoneError."""

    def give_at_once(self, body: bytes) -> None:
        """Give it what `JarPool.packed` made and what is started in a moment: it stays awake. Raises JarGoneError."""

    def start(self, timeout_seconds: float) -> None:
        """Have it run what it was given. Raises JarGoneError, or as `end` UsageError, and then nothing has run."""

    def await_listeners(self) -> None:
        """Wait for the sockets of its network, where the policy opens one."""


class WaitingRun(Protocol):
    """A run for which there is no jar yet."""

    def kill(self, reason: str) -> None:
        """It is not wanted any more. From any thread."""


class JarPool(Protocol):
    """Gives out jars that have waited, each to one run. Any thread may call."""

    shortfalls: tuple[Clause, ...]
    """What could only be found out on the real directories."""

    def packed(self, code: bytes, name: str, arguments: Sequence[str]) -> bytes | None:
        """Return what to run as `PooledJar.give_at_once` takes it. None if that is too long."""

    def take_ready(self) -> PooledJar | None:
        """Return a jar for one run, if one waits."""

    def take(self, waits: Callable[[WaitingRun], None], caller: Hashable) -> PooledJar | End:
        """Take a jar for one run, or return the `End` of the run for which there is none.

        `waits` is told of what the run waits for, so that it can be called off.
        """

    def bury(self, jar: PooledJar) -> None:
        """Close a jar whose run has ended, soon, off the caller's path."""

    def judged(self, jar: PooledJar, end: End) -> End:
        """Return the end of a jar's run. It says that the jar was lost, if what it was cloned from died as well."""

    def statistics(self) -> dict[str, int]:
        """How many jars wait, how many runs wait for one, and how many zygotes there have been."""

    def close(self) -> None:
        """End every run and let go of every jar."""


class PoolBackend(Backend, Protocol):
    """A backend that has a pool's jars wait."""

    def open_pool(
        self,
        policy: Policy,
        *,
        size: int,
        preload: Sequence[str],
        trust: Trust | None,
        prepare: Callable[[PooledJar], None] | None,
    ) -> tuple[LaunchPlan, JarPool]:
        """Make a pool for Python code: the plan of its jars, and what gives them out, each prepared before it waits.

        Raises:
            PolicyError: it asks for what runs of a pool can't have.
            SandboxUnavailableError: a module can't be preloaded, or jars can't be made.
        """


def pool_backend(backend: Backend) -> PoolBackend | None:
    """Return the backend, if it has a pool's jars wait."""
    return cast("PoolBackend", backend) if hasattr(backend, "open_pool") else None


def does_not_fit(why: str) -> UsageError:
    """What is told of a run that was given more than its jar holds, or names that it can't have."""
    hint = next((remedy for reason, remedy in _REMEDIES.items() if reason in why), "rename it")
    return UsageError(f"what the run was given can't be put into its jar: {why}", hint=hint)
