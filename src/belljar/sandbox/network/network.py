"""The network of a run: what it may reach, through the egress proxy, and what of it can be reached from this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from belljar.backends.contract import End, Jar, Process, Trust
from belljar.policy.models import Policy
from belljar.sandbox.incident.ending import by_network
from belljar.sandbox.network.publish import Published

if TYPE_CHECKING:
    from belljar.egress.events import Event
    from belljar.sandbox.network.egress import Egress, Traffic
    from belljar.sandbox.record.stream import Handle


class Network:
    """What the runs of one Sandbox share."""

    def __init__(self, policy: Policy, on_egress: Callable[[Event], None] | None) -> None:
        self._ports = policy.net.publish
        self._quarantines = policy.logging.quarantine
        self._egress: Egress | None = None
        if policy.net.enabled:
            from belljar.sandbox.network.egress import Egress

            self._egress = Egress(policy, on_egress)

    @property
    def trust(self) -> Trust | None:
        """The certificates that its jars trust."""
        return self._egress.trust if self._egress else None

    def prepare(self) -> None:
        """A jar is about to be opened."""
        if self._egress:
            self._egress.prepare()

    @property
    def planted(self) -> Mapping[str, bytes]:
        """What a fresh jar has to hold: content by path."""
        return self._egress.planted if self._egress else {}

    def plant(self, jar: Jar) -> None:
        """Prepare what a fresh jar has to hold."""
        if self._egress:
            self._egress.plant(jar)

    def of_run(self, run_id: str, handle: Handle) -> RunNetwork:
        """That of one run, to be entered before the run starts."""
        return self.of_jar(run_id, self.ending(run_id, handle))

    def of_jar(self, run_id: str, kill: Callable[[str], None]) -> RunNetwork:
        """That of a jar in which there may be a run later."""
        return RunNetwork(run_id, kill, self._egress, self._ports)

    def ending(self, run_id: str, handle: Handle) -> Callable[[str], None]:
        """How a run is ended from here, from any thread, without waiting for it."""
        return by_network(run_id, handle) if self._quarantines else handle.kill


class RunNetwork:
    """Open from before a run's start until after its end."""

    def __init__(self, run_id: str, kill: Callable[[str], None], egress: Egress | None, ports: tuple[str, ...]) -> None:
        self._run_id = run_id
        self._kill = kill
        self._egress = egress
        self._ports = ports
        self._published: Published | None = None
        self._secrets: dict[str, str] = {}
        self._stack = ExitStack()
        self.traffic: Traffic | None = None

    def __enter__(self) -> Self:
        """Have everything that could be missing: a free port, the secrets."""
        if self._egress:
            self._secrets = self._egress.secrets()
        if self._ports:
            self._published = self._stack.enter_context(Published(self._ports))
        return self

    def serve(self, process: Process) -> None:
        """The jar is there: let its connections out, and others' in; and then let the code start."""
        forwards = [one.descriptor for one in process.listeners if one.role == "door"]
        process.listeners = tuple(one for one in process.listeners if one.role != "door")
        if self._published and forwards:
            self._published.start(forwards[0])
        if self._egress and process.listeners:
            self.traffic = self._egress.serve(self._run_id, process, self._secrets, self._kill)
            self._stack.callback(self.traffic.close)
            if self.traffic.problems:
                self._kill("canary")
                return
        process.begin()

    @property
    def alive(self) -> bool:
        """Whether the proxy that serves it still does."""
        return self.traffic is None or self.traffic.alive

    def become(self, run_id: str) -> None:
        """What was served ahead is for this run, which begins now: with the secrets that are valid now."""
        if self._egress and self.traffic:
            self.traffic.run_id = run_id
            secrets = self._egress.secrets()
            if secrets != self._secrets:
                self._secrets = secrets
                self.traffic.renew(secrets)

    def judged(self, end: End) -> End:
        """The run's end, by what the network knows of it: a token that was sent, or what did not hold, so that the code
        was not started.
        """
        if self.traffic is None or not (self.traffic.problems or self.traffic.sent_canary):
            return end
        from dataclasses import replace

        if self.traffic.sent_canary:  # the code may have ended before the kill arrived
            from belljar.sandbox.network.egress import CANARY

            return replace(end, ended_by=CANARY)
        return replace(end, problems=end.problems + self.traffic.problems, started=False, ended_by="canary")

    def end(self) -> None:
        """The code has ended: `close` has less to wait for."""
        if self.traffic:
            self.traffic.end()

    def close(self) -> None:
        """No connection is left, and every decision has been told."""
        self._stack.close()
        self._secrets.clear()

    def abandon(self) -> None:
        """End it, without waiting for what it had to tell."""
        if self.traffic:
            self.traffic.abandon()
        self.close()

    def __exit__(self, *_exception: object) -> None:
        self.close()


__all__ = ["Network", "RunNetwork"]
