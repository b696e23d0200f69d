"""A container on its way up, or up and at its gate: of one run to come, with directories and a gateway of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from belljar.backends.container.jar.attached import Attached
from belljar.backends.contract import Listener
from belljar.backends.network.outside import OutsideGateway


class Waiting:
    """Its container, the number of its directories, and what it found when it came up."""

    def __init__(self, container: Attached, slot: str, stage: Mapping[str, Any]) -> None:
        self.container = container
        self.slot = slot
        self._stage = stage
        self._coming = threading.Lock()
        """Held while it comes up, by whoever waits for that; whoever closes it does not wait."""
        self._lock = threading.Lock()
        self._found: dict[str, Any] | None = None
        self._outside: OutsideGateway | None = None
        self._over = False

    def ready(self) -> dict[str, Any]:
        """Wait until it is at its gate, and has its gateway if the policy opens the network; what it found there."""
        with self._coming:
            if self._found is None:
                found = self.container.ready()
                ports, publishes = self._stage["gateway_ports"], self._stage["publishes"]
                if (ports is not None or publishes) and not self._over:
                    pid = int(self.container.state()["Pid"])
                    self._keep(OutsideGateway(pid, ports, publishes=publishes))
                self._found = found
            return self._found

    def _keep(self, outside: OutsideGateway) -> None:
        with self._lock:
            if not self._over:
                self._outside = outside
                return
        outside.close()  # it was closed meanwhile

    def listeners(self) -> tuple[Listener, ...]:
        """The sockets of its gateway, for the run."""
        return self._outside.take() if self._outside else ()

    def close(self) -> None:
        """Its run is over, or there will be none."""
        with self._lock:
            self._over = True
            outside, self._outside = self._outside, None
        if outside:
            with contextlib.suppress(OSError):
                outside.close()
