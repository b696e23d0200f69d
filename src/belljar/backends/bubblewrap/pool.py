"""A pool's stage, from belljar's side."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Hashable

from belljar.backends.bubblewrap import wire
from belljar.backends.bubblewrap.backend import BubblewrapJar
from belljar.backends.bubblewrap.pool_process import PooledProcess
from belljar.backends.bubblewrap.pool_run import ZYGOTE_KILLED
from belljar.backends.bubblewrap.pool_shelf import Prepare, Shelf, Waiter, is_gone
from belljar.backends.contract import End
from belljar.errors import BelljarError, UsageError

Wanted = Callable[[Waiter], None]
"""Told of what a run waits for, so that it can be called off."""


class BubblewrapPool(BubblewrapJar):
    """Gives out jars that have waited, each to one run."""

    def __init__(
        self, control: socket.socket, answer: wire.Message, *, helpers: int, prepare: Prepare | None = None
    ) -> None:
        super().__init__(control, answer)
        self._owner = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            wire.send(control, {"do": "lend"}, (theirs.fileno(),))
        self._shelf = Shelf(ours, weakref.proxy(self), prepare, helpers)

    def take_ready(self) -> PooledProcess | None:
        """A jar for one run, if one waits. Any thread may call."""
        self._check_ours()
        return self._shelf.take_ready()

    def _check_ours(self) -> None:
        if self._control.fileno() < 0:
            raise UsageError("this Pool is closed")
        if os.getpid() != self._owner:  # both would give code to the same jars
            raise UsageError("this Pool is another process's, which forked this one", hint="open a Pool here")

    def take(self, waits: Wanted, caller: Hashable) -> PooledProcess | End:
        """A jar for one run, or how the run ended for which there is none. Any thread may call."""
        self._check_ours()
        try:
            found = self._shelf.take(caller)
        except BelljarError as error:
            raise self._told(error) from None
        if isinstance(found, PooledProcess):
            return found
        waits(found)
        found.wait()
        if found.jar is not None:
            return found.jar
        if found.fault is not None:
            raise self._told(found.fault)
        return found.end()

    def _told(self, error: BelljarError) -> BelljarError:
        return self.last_words() if is_gone(error) else error

    def bury(self, process: PooledProcess) -> None:
        """It has ended: let go of it, soon, off the caller's path."""
        if os.getpid() == self._owner:  # in a forked one neither the shelf's thread is there, nor whoever locked it
            self._shelf.bury(process)

    def judged(self, process: PooledProcess, end: End) -> End:
        """Return the run's end. If its pid 1 was killed together with the zygote, the end says that the jar was lost.

        The stage may hear of the jar's end a moment before that of the zygote. So this looks once more.
        """
        if end.ended_by != "pid1" or not self._shelf.lost_zygote(process.generation):
            return end
        from dataclasses import replace

        return replace(end, ended_by="internal", problems=(ZYGOTE_KILLED,))

    def statistics(self) -> dict[str, int]:
        """How many jars wait, how many runs wait for one, and how many zygotes there have been."""
        answer, _descriptors = self._ask({"do": "statistics"})
        return {"waiting": answer["waiting"], "zygotes": answer["zygotes"], "queued": self._shelf.queued}

    def close(self) -> None:
        """End the stage, and with it every run and mount."""
        self._shelf.close("the pool was closed before the run had begun")
        super().close()
