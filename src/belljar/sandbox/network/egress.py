"""A Sandbox's network: hands each run's listeners to the proxy, and makes records and denials of what it decides."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from belljar.audit.log import audit_log
from belljar.backends.contract import Jar, Process, Trust
from belljar.egress import ca
from belljar.egress.client.client import PROXY, Served, ServedListener
from belljar.egress.client.java_store import java_store
from belljar.egress.decide.reasons import change, words
from belljar.egress.decide.rules import Rules, compile_rules
from belljar.egress.decide.steps import Verdict
from belljar.egress.events import UNRECORDED, Event
from belljar.errors import AuditError, SandboxUnavailableError
from belljar.policy.models import Policy
from belljar.sandbox.network.egress_check import ROLES, Canary
from belljar.sandbox.record import redacting
from belljar.sandbox.record.result import Denial

_MOST_OTHERS = 1000
"""Refusals, and names that were looked up, of a run that are recorded: code makes them for nothing. What is let pass
is always recorded, because it is done."""
_MOST_KEPT = 1000
"""Of what was let pass, in the result."""
_MOST_DENIALS = 100
_TOLD = ("kind", "host", "port", "method", "path", "reason", "detail", "rule", "where", "bytes_out", "bytes_in")
"""What of a decision is in the audit log, as far as there is something to tell."""
_TELLING = ("canary", "proxy")
"""Refusals that are recorded however many others there were: a token that was sent, a fault of the proxy's."""
UNREACHED = "upstream"
"""The reason of what was allowed and failed: the name has no address, nobody answered. It is in the records."""
_MOST_ROOTS = 4 << 20
CANARY = "canary-token"
"""Why a run is ended that sent a planted token."""


class Egress:
    """What the runs of one Sandbox share: the rules, the certificates, the planted tokens."""

    def __init__(self, policy: Policy, on_event: Callable[[Event], None] | None = None) -> None:
        self._policy = policy
        self._on_event = on_event
        self._rules = compile_rules(policy)
        self._tokens = {path: os.urandom(20).hex() for path in policy.net.canary_files}

    @cached_property
    def trust(self) -> Trust:
        """The certificates that its jars trust."""
        authority = PROXY.authority()
        roots = ca.host_roots()
        if self._policy.net.ca_file:  # what is passed through, the code itself has to verify
            with open(self._policy.net.ca_file, encoding="ascii", errors="replace") as file:
                roots += file.read(_MOST_ROOTS)
        bundle = ca.trust_bundle(authority, roots)
        return Trust(bundle, authority.certificate, ca.subject_hash(), java_store(bundle))

    def prepare(self) -> None:
        """Start the proxy: it comes up while the jar does."""
        PROXY.start()

    @property
    def planted(self) -> Mapping[str, bytes]:
        """The canary tokens, by where the policy wants them."""
        return {path: f"{token}\n".encode() for path, token in self._tokens.items()}

    def plant(self, jar: Jar) -> None:
        """Write the canary tokens where the policy wants them."""
        for path, content in self.planted.items():
            index, mount = next(
                (at, mount)
                for at, mount in enumerate(self._policy.fs.mounts)
                if path.startswith(f"{mount.path}/") and mount.rw
            )
            jar.write(index, path[len(mount.path) + 1 :], content)

    def secrets(self) -> dict[str, str]:
        """The credentials that the rules use, fetched for one run."""
        if not self._rules.credentials:
            return {}
        from belljar.egress.secret_sources import fetch

        return {spec.name: fetch(spec, os.environ) for spec in self._rules.credentials}

    def serve(self, run_id: str, process: Process, secrets: Mapping[str, str], kill: Callable[[str], None]) -> Traffic:
        """Let the proxy have the run's listeners. Raises SandboxUnavailableError if there is none."""
        canary = Canary(self._rules, [one for one in process.listeners if one.role in ROLES])
        traffic = Traffic(self._policy, self._rules, kill, canary, self._on_event)
        served = [one for one in process.listeners if one.role not in ROLES]
        listeners = [ServedListener(one.role, one.port, one.descriptor) for one in served]
        process.listeners = ()
        tokens = [token.encode() for token in self._tokens.values()]
        try:
            traffic.served = PROXY.serve(
                run_id, self._rules, secrets, tokens, listeners, self._policy.net.ca_file, traffic.take
            )
        except BaseException as error:
            canary.close()
            kill("killed")
            if isinstance(error, OSError):
                raise SandboxUnavailableError(f"the egress proxy could not be reached: {error}") from error
            raise
        traffic.problems = tuple(canary.problems())
        return traffic


class Traffic:
    """What the proxy told of one run."""

    def __init__(
        self,
        policy: Policy,
        rules: Rules,
        kill: Callable[[str], None],
        canary: Canary,
        also: Callable[[Event], None] | None = None,
    ) -> None:
        self._policy = policy
        self._rules = rules
        self._kill = kill
        self._canary = canary
        self._also = also
        self.run_id = ""
        """The run's, where the proxy knows the jar by another name, because it was served before there was a run."""
        self.sent_canary = False
        """Whether a planted token was in what the code sent."""
        self.problems: tuple[str, ...] = ()
        """What the canaries found: a run with one is refused."""
        self._lock = threading.Lock()
        self._records: list[Event] = []
        self._counts = {"allowed": 0, "refused": 0, "unrecorded": 0}
        self._passed = self._others = 0
        self._denied: dict[Denial, int] = {}
        self.served: Served | None = None

    def take(self, events: list[Event]) -> str | None:
        """Called by the proxy's client, from its own thread: what was decided is done when this has returned."""
        if self.run_id:
            events = [replace(event, run_id=self.run_id) for event in events]
        canary = any(event.kind == "canary" for event in events)
        self.sent_canary |= canary
        with self._lock:
            events = [event for event in events if event.allowed or not self._canary.is_own(event)]
            recorded = [event for event in events if self._counted(event)]
        written = self._written(recorded)
        if canary:  # when it is in the log: what is taken as evidence has it
            self._kill(CANARY)
        if self._also:
            for event in events:
                with contextlib.suppress(Exception):  # a listener's fault is none of the run
                    self._also(event)
        return None if written else UNRECORDED

    def _counted(self, event: Event) -> bool:
        """Count it, and keep it for the result; whether it is recorded."""
        self._counts["allowed" if event.allowed else "refused"] += event.kind != "closed"
        if not event.allowed and event.reason != UNREACHED:
            self._refused(event)
        if (event.allowed and event.kind != "name") or event.kind in _TELLING:
            self._passed += 1
            if self._passed <= _MOST_KEPT:
                self._records.append(event)
            return True
        self._others += 1
        if self._others > _MOST_OTHERS:
            self._counts["unrecorded"] += 1
            return False
        self._records.append(event)
        return True

    @property
    def totals(self) -> dict[str, int]:
        """How many decisions there were, and how many of them are in no record of their own; for the audit log."""
        with self._lock:
            return dict(self._counts)

    def _refused(self, event: Event) -> None:
        """Count it."""
        denial = self._denial(event)
        if denial in self._denied:
            self._denied[denial] += 1
        elif len(self._denied) < _MOST_DENIALS:
            self._denied[denial] = 1

    def _written(self, events: list[Event]) -> bool:
        """Whether they are in the audit log now. A run is ended of which nobody would know later what it did."""
        try:
            if events:
                audit_log().append(*map(self._record, events))
        except AuditError:
            self._kill(UNRECORDED)
            return False
        return True

    def _record(self, event: Event) -> dict[str, Any]:
        """What of it is in the audit log."""
        told = {name: value for name in _TOLD if (value := getattr(event, name))}
        for name in ("host", "path", "detail"):
            if name in told:
                told[name] = redacting.for_log(told[name], event.run_id, self._policy)
        return {"event": "egress", "run": event.run_id, "at": event.time, "allowed": event.allowed, **told}

    def _denial(self, event: Event) -> Denial:
        rule = event.rule or "net.allowlist"
        where = event.where or str(self._policy.origin(rule) or "default")
        return Denial("network", _target(event), rule, where, self._allow(event), code=event.reason)

    def _allow(self, event: Event) -> str:
        """The smallest change that would allow it, or why none does."""
        rule = next((one for one in (*self._rules.allow, *self._rules.deny) if one.key == event.rule), None)
        verdict = Verdict(allowed=False, reason=event.reason, detail=event.detail, rule=rule)
        wanted = change(verdict, host=event.host, port=event.port or 443, method=event.method, path=event.path)
        return wanted or f"no policy allows it: {words(event.reason, event.detail)}"

    def tell(self) -> None:
        """Have everything that was decided until now in the records."""
        if self.served is not None:
            self.served.tell()

    @property
    def alive(self) -> bool:
        """Whether the proxy still serves it."""
        return self.served is not None and self.served.alive

    def renew(self, secrets: Mapping[str, str]) -> None:
        """The secrets have changed since it was served."""
        if self.served is not None:
            self.served.renew(secrets)

    def abandon(self) -> None:
        """Nobody wants to know what it tried."""
        if self.served is not None:
            self.served.abandon()
            self.served = None

    def end(self) -> None:
        """The run is over: the proxy may begin to end its connections, and to tell. `close` waits for that."""
        if self.served is not None:
            self.served.end()

    def close(self) -> None:
        """The run is over: no connection of its is left, and every decision has been told."""
        if self.served is not None:
            self.served.close()
            self.served = None

    @property
    def records(self) -> tuple[Event, ...]:
        """The decisions, in order: the first thousand of what passed, the first thousand others."""
        with self._lock:
            return tuple(self._records)

    @property
    def denials(self) -> tuple[Denial, ...]:
        """What was refused, each once."""
        with self._lock:
            return tuple(replace(denial, count=count) for denial, count in self._denied.items())


def _target(event: Event) -> str:
    host = f"[{event.host}]" if ":" in event.host else event.host
    if event.kind == "name":
        return f"look up {event.host}"
    if event.kind == "request":
        return f"{event.method} {host}{':' + str(event.port) if event.port not in (80, 443) else ''}{event.path}"
    if event.kind == "proxy":
        return "the egress proxy"
    if event.kind == "udp":
        return f"send a datagram to {host}:{event.port}"
    return f"connect {host}:{event.port}"


__all__ = ["CANARY", "UNREACHED", "Egress", "Traffic"]
