"""The jars that a pool's stage has lent to the host, and the runs for which there is none yet.

A thread takes what is offered, has it prepared, and gives it to a run of the caller whose turn it is. Whoever finds one
that is ready has no other thread to wait for.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Hashable

from belljar.backends.bubblewrap.host.backend import BubblewrapJar, end_of
from belljar.backends.bubblewrap.host.client import fault
from belljar.backends.bubblewrap.host.pool_process import PooledProcess
from belljar.backends.bubblewrap.shared import wire
from belljar.backends.contract import LOOK_UP_SECONDS, End, never_started
from belljar.backends.fair_queue import FairQueue
from belljar.errors import BelljarError, SandboxUnavailableError

Prepare = Callable[[PooledProcess], None]
"""What is done to each jar before it waits."""
_DEATH_SECONDS = 0.2
"""How much later than its jars a zygote may die that is killed together with them."""


class Waiter:
    """A run for which there is no jar yet."""

    def __init__(self, ready: ReadyJars, caller: Hashable) -> None:
        self._ready_jars = ready
        self.caller = caller
        self._woken = threading.Lock()
        self._woken.acquire()
        self.jar: PooledProcess | None = None
        self.refused: wire.Message | None = None
        """Instead: what was wrong with the one that it would have got."""
        self.fault: BelljarError | None = None
        self.killed = ""

    def wait(self) -> None:
        """Until it has a jar, or will get none."""
        try:
            while not self._woken.acquire(timeout=LOOK_UP_SECONDS):
                pass
        except BaseException:
            self.kill("abandoned")
            if self.jar is not None:
                self.jar.close()
            raise

    def end(self) -> End:
        """How the run ended for which there was no jar: it was called off, or what it would have got does not hold."""
        return end_of(self.refused) if self.refused is not None else never_started(self.killed)

    def wake(self) -> None:
        """It has something now."""
        self._woken.release()

    def kill(self, reason: str) -> None:
        """It is not wanted any more. From any thread."""
        self._ready_jars.call_off(self, reason)


class ReadyJars:
    """What waits. Its thread ends when the stage does; it does not keep the pool alive."""

    def __init__(self, offers: socket.socket, pool: BubblewrapJar, prepare: Prepare | None, helpers: int) -> None:
        """`pool` is what has lent them, by a weak reference."""
        self._offers = offers
        self._pool = pool
        self._prepare = prepare
        self._helpers = helpers
        self._lock = threading.RLock()
        """A run that nobody has any more is let go of wherever Python finds that, in here as well."""
        self._jars: deque[PooledProcess] = deque()
        self._waiting: FairQueue[Waiter] = FairQueue()
        self._ended: dict[str, PooledProcess] = {}
        """Those that are done with, as long as the stage has not said that they are gone."""
        self._gone: set[str] = set()
        """And those that are gone, and not done with yet."""
        self._stopped = False
        self._zygote = (0, -1)
        """Of the process that jars come from: its number, and a descriptor that says when it is dead."""
        self._why: BelljarError | None = None
        self._thread = threading.Thread(target=self._hear, name="belljar-shelf", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """How many runs wait for a jar."""
        return len(self._waiting)

    def take_ready(self) -> PooledProcess | None:
        """A jar, if one is there."""
        with self._lock:
            return self._first()

    def _first(self) -> PooledProcess | None:
        while self._jars:
            jar = self._jars.popleft()
            if self._is_alive(jar):
                return jar
            self._drop(jar)
        return None

    def take(self, caller: Hashable) -> PooledProcess | Waiter:
        """A jar, or what to wait for, in turn. Raises what has befallen the pool, when there will be no more."""
        with self._lock:
            if (jar := self._first()) is not None:
                return jar
            if self._why is not None:
                raise self._why
            waiter = Waiter(self, caller)
            self._waiting.add(caller, waiter)
            self._tell_queued()
            return waiter

    def call_off(self, waiter: Waiter, reason: str) -> None:
        """It waits no more; if it has been given a jar, that one is its own affair."""
        with self._lock:
            if self._waiting.remove(waiter.caller, waiter):
                waiter.killed = reason
                waiter.wake()
                self._tell_queued()

    def bury(self, process: PooledProcess) -> None:
        """Close a run that has ended: in this object's thread, when the stage has seen that nothing is left of it."""
        with self._lock:
            if not self._stopped and process.name not in self._gone:
                self._ended[process.name] = process
                return
            self._gone.discard(process.name)
        process.close()

    def lost_zygote(self, generation: int) -> bool:
        """Return True if the zygote of this generation is dead, or dies within a moment: its jars die beside it."""
        with self._lock:
            number, descriptor = self._zygote
            if number != generation or descriptor < 0:
                return True
            descriptor = os.dup(descriptor)
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(1000 * _DEATH_SECONDS))
        finally:
            os.close(descriptor)

    def close(self, why: str) -> None:
        """Nobody gets anything any more."""
        self._stop(SandboxUnavailableError(why))
        with contextlib.suppress(OSError):
            self._offers.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _tell_queued(self) -> None:
        try:
            self._offers.send(wire.packet({"asking": len(self._waiting)}))
        except OSError:
            pass  # the stage is gone, and that is heard of

    def _is_alive(self, jar: PooledProcess) -> bool:
        """Whether it still waits, and will: what it came from lives. Neither has anything to say but its end."""
        return jar.generation == self._zygote[0] and not jar.watched.poll(0)

    # --- in its own thread ---

    def _hear(self) -> None:
        while True:
            try:
                received = wire.receive(self._offers)
            except OSError:
                received = None
            if received is None:
                break
            self._heard(*received)
        self._stop(None)
        self._offers.close()
        if self._zygote[1] >= 0:
            os.close(self._zygote[1])
            self._zygote = (0, -1)

    def _let_go(self, name: str) -> None:
        """Nothing is left of it, the stage says."""
        with self._lock:
            ended = self._ended.pop(name, None)
            if ended is None:
                self._gone.add(name)
        if ended is not None:
            ended.close()

    def _heard(self, message: wire.Message, descriptors: list[int]) -> None:
        if "lent" in message:
            jar = PooledProcess(message["lent"], descriptors, self._pool, self._helpers)
            if self._prepare is not None:
                self._prepare(jar)
            self._put(jar)
        elif "gone" in message:
            self._let_go(message["gone"])
        elif "zygote" in message:
            self._renew(message["zygote"], descriptors[0])
        elif "refused" in message:
            self._refuse(message["refused"])
        else:
            self._fail(fault(message))

    def _put(self, jar: PooledProcess) -> None:
        with self._lock:
            if jar.generation == self._zygote[0]:
                jar.watched.register(self._zygote[1], select.POLLIN)
            if not self._is_alive(jar):
                self._drop(jar)
            elif self._waiting:
                waiter = self._waiting.next()
                waiter.jar = jar
                waiter.wake()
                self._tell_queued()
            else:
                try:
                    jar.have_outputs()
                except OSError:
                    pass  # too many files are open: whoever takes it is told
                self._jars.append(jar)

    def _renew(self, number: int, descriptor: int) -> None:
        """Another zygote: the one before it is dead, and its jars are."""
        with self._lock:
            if self._zygote[1] >= 0:
                os.close(self._zygote[1])
            self._zygote = number, descriptor
            while self._jars:
                self._drop(self._jars.popleft())

    def _drop(self, jar: PooledProcess) -> None:
        """It is of no use any more."""
        jar.close()
        if jar.name in self._gone:
            self._gone.discard(jar.name)
        else:
            self._ended[jar.name] = jar

    def _refuse(self, message: wire.Message) -> None:
        """A jar does not hold: whoever waits for it is told so, and gets none."""
        with self._lock:
            if self._waiting:
                waiter = self._waiting.next()
                waiter.refused = message
                waiter.wake()

    def _fail(self, why: BelljarError) -> None:
        """There will be no more; those that wait here are still good."""
        with self._lock:
            self._why = self._why or why
            self._wake_all()

    def _stop(self, why: BelljarError | None) -> None:
        """The stage is gone, or the pool closed."""
        with self._lock:
            self._why = self._why or why or _GoneError()
            self._stopped = True
            self._wake_all()
            jars = [*self._jars, *self._ended.values()]
            self._jars.clear()
            self._ended.clear()
        for jar in jars:
            jar.close()

    def _wake_all(self) -> None:
        while self._waiting:
            waiter = self._waiting.next()
            waiter.fault = self._why
            waiter.wake()


class _GoneError(SandboxUnavailableError):
    """The stage has died. Why, whoever asks has to find out."""

    def __init__(self) -> None:
        super().__init__("the pool's stage process has died", hint="open another Pool")


def is_gone(error: BelljarError) -> bool:
    """Whether the stage may have said more about it."""
    return isinstance(error, _GoneError)
