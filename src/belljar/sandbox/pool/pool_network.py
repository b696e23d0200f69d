"""The network of a pool's jars: served by the proxy, and tried, before a jar waits; so that no run waits for that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from belljar.backends.contract import JarGoneError, never_started
from belljar.backends.pool_contract import PooledJar
from belljar.errors import BelljarError, SandboxUnavailableError
from belljar.sandbox.record.stream import new_run_id

if TYPE_CHECKING:
    from belljar.backends.contract import End
    from belljar.sandbox.network.egress import Traffic
    from belljar.sandbox.network.network import Network
    from belljar.sandbox.record.stream import Handle


class Serving:
    """Gives every jar that a pool is lent its network. Called by one thread."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __call__(self, jar: PooledJar) -> None:
        """Have it served. What goes wrong is told to the run that gets it."""
        jar.prepared = JarNetwork(self._network, jar)


class JarNetwork:
    """That of one jar. Until a run begins in it, nothing is in it that could use it."""

    def __init__(self, network: Network, jar: PooledJar) -> None:
        self._end: Callable[[str], None] | None = None
        """How the run is ended that has it."""
        self._fault: BelljarError | None = None
        self._shared = network
        self._network = network.of_jar(new_run_id(), self._kill)
        try:
            jar.await_listeners()
            with contextlib.suppress(
                BelljarError
            ):  # a secret that is missing now is asked for again when there is a run
                self._network.__enter__()
            self._network.serve(jar)
        except BelljarError as error:
            self._fault = error
        except OSError as error:
            self._fault = SandboxUnavailableError(f"the jar's network could not be served: {error}")

    def _kill(self, reason: str) -> None:
        """End the run. What is wrong with a jar that waits is told when it is to be used."""
        if self._end is not None:
            self._end(reason)

    @property
    def traffic(self) -> Traffic | None:
        """What the proxy told."""
        return self._network.traffic

    def begin(self, run_id: str, handle: Handle) -> End | None:
        """It is this run's from now on; or how the run ends, which can't begin here.

        Raises:
            JarGoneError: the proxy has died meanwhile, and with it this jar's network.
            BelljarError: it could not be served.
        """
        if self._fault is not None:
            raise self._fault
        if not self._network.alive:
            raise JarGoneError
        self._end = self._shared.ending(run_id, handle)
        self._network.become(run_id)
        if self.traffic is not None and self.traffic.problems:
            self._network.close()
            return self._network.judged(never_started("canary"))
        return None

    def judged(self, end: End) -> End:
        """The run's end, by what the network knows of it."""
        return self._network.judged(end)

    def end(self) -> None:
        """The code has ended: the proxy looks once more at what it tried, while its end is read here."""
        self._network.end()

    def close(self) -> None:
        """The code has ended: every decision has been told."""
        self._network.close()

    def abandon(self) -> None:
        """Nobody wants to know any more."""
        with contextlib.suppress(BelljarError, OSError):
            self._network.abandon()


__all__ = ["JarNetwork", "Serving"]
