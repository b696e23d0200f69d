"""What a policy allows that its author may not have meant. A policy with findings is still a policy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from belljar.policy.builtin import BUILTIN
from belljar.policy.carriers import carrier, guarded, overlap
from belljar.policy.globs import DenyGlobs
from belljar.policy.keys.addresses import is_public
from belljar.policy.keys.redaction import SECRETS
from belljar.policy.models import HostRule, Policy

_READING = frozenset(("GET", "HEAD", "OPTIONS"))
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY|_PAT\b|^AWS_|^DATABASE_URL$", re.IGNORECASE
)
_EXECUTED = (
    ".git",
    "Makefile",
    "package.json",
    "pyproject.toml",
    ".venv",
    "node_modules",
    ".envrc",
    ".vscode",
    ".husky",
)
"""What the host runs by itself sooner or later: hooks, build files, editors' tasks, installed packages."""
_MODULES = ("id_token.py", "secrets.py", "credentials.py", "token.py", "keys.py", "password.py")
"""Names of modules that packages really have, and that a pattern for credentials easily hides as well."""
_TUNNELS = {22: "ssh carries anything, in both directions", 23: "telnet carries anything", 25: "mail carries anything"}
_TUNNELS |= {465: _TUNNELS[25], 587: _TUNNELS[25], 853: "names over TLS can carry data"}
_SERVICES = {2375: "docker's API is root on this host", 2376: "docker's API is root on this host"}
_SERVICES |= {
    6443: "the API of a cluster",
    9229: "a debugger of Node's runs any code",
    5678: "a debugger runs any code",
}
_SERVICES |= {22: "ssh to this host", 9222: "a browser's debugger runs any code"}


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One thing to think about: a `warning`, or a `note` about what does not do what it looks like."""

    level: str
    code: str
    key: str
    where: str
    text: str
    hint: str = ""


def lint(policy: Policy) -> tuple[LintFinding, ...]:
    """Everything that was found, warnings first."""
    linter = _Linter(policy)
    found = [*linter.hosts(), *linter.network(), *linter.credentials(), *linter.files(), *linter.rest()]
    return tuple(sorted(found, key=lambda finding: finding.level != "warning"))


class _Linter:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def _finding(self, level: str, code: str, key: str, text: str, hint: str = "") -> LintFinding:
        return LintFinding(level, code, key, str(self.policy.origin(key) or ""), text, hint)

    def _warning(self, code: str, key: str, text: str, hint: str = "") -> LintFinding:
        return self._finding("warning", code, key, text, hint)

    def _note(self, code: str, key: str, text: str, hint: str = "") -> LintFinding:
        return self._finding("note", code, key, text, hint)

    def hosts(self) -> Iterator[LintFinding]:
        if not self.policy.net.enabled:
            return
        for at, rule in enumerate(self.policy.net.allowlist):
            key = f"net.allowlist[{at}]"
            yield from self._host(key, rule)
            yield from self._reach(key, rule)
            yield from self._unreachable(key, rule)
            apex = rule.host.removeprefix("*.")
            if apex != rule.host and not any(_covers(other.host, apex) for other in self.policy.net.allowlist):
                yield self._note("apex", key, f"{rule.host} does not cover {apex} itself", f"list {apex} as well")

    def _host(self, key: str, rule: HostRule) -> Iterator[LintFinding]:
        """Whether data can leave by this rule."""
        if _only_reads(rule) or rule.credential:
            return
        if rule.host == "*":
            yield self._warning(
                "every-host", key, "'*' is every host of the internet: data can leave to any of them", "name the hosts"
            )
        elif rule.foreign_credentials and (known := guarded(rule.host)):
            yield self._warning(
                "foreign-credentials",
                key,
                f"any key may be sent to {rule.host} ({known.kind}): {known.why}",
                "credential: NAME, which the proxy adds and the code never sees",
            )
        elif match := carrier(rule.host):
            kind, why, name = match
            of = "" if name == rule.host else f", {name}"
            yield self._warning(
                "carrier",
                key,
                f"data can leave through {rule.host} ({kind}{of}): {why}",
                "allow reading only (methods: [GET, HEAD]), bind a credential, or name paths",
            )

    def _reach(self, key: str, rule: HostRule) -> Iterator[LintFinding]:
        for port in rule.ports:
            if port in _TUNNELS:
                yield self._warning("tunnel", key, f"port {port} of {rule.host}: {_TUNNELS[port]}")
        inside = [address for address in (rule.host, *map(_bare, rule.addresses)) if _is_private(address)]
        if inside:
            yield self._note("private-address", key, f"{', '.join(inside)} is not on the public internet")
        if rule.credential and 443 not in rule.ports:
            yield self._note(
                "no-tls", key, "a credential is only sent through TLS, and port 443 is not among the ports"
            )

    def _unreachable(self, key: str, rule: HostRule) -> Iterator[LintFinding]:
        for at, denied in enumerate(self.policy.net.denylist):
            whole = not (denied.methods or denied.paths or denied.query)
            ports = not denied.ports or set(rule.ports) <= set(denied.ports)
            if whole and ports and (denied.host in ("*", rule.host) or _beneath(rule.host, denied.host)):
                yield self._note(
                    "never", key, f"{rule.host} is denied by net.denylist[{at}], so the rule allows nothing"
                )

    def network(self) -> Iterator[LintFinding]:
        net = self.policy.net
        if net.enabled and not net.allowlist and not net.host_ports:
            yield self._note("nothing", "net.allowlist", "the network is on, and the list is empty: nothing is reached")
        if not net.enabled and (net.allowlist or net.host_ports):
            yield self._note("off", "net.enabled", "the network is off, so the lists of net allow nothing")
        for at, name in enumerate(net.allow_builtin):
            why = next((entry.why for entry in BUILTIN if entry.name == name), "")
            yield self._warning("built-in", f"net.allow_builtin[{at}]", f"{name} is lifted: {why}")
        for at, port in enumerate(net.host_ports):
            if port in _SERVICES:
                yield self._warning("service", f"net.host_ports[{at}]", f"port {port} of this host: {_SERVICES[port]}")

    def credentials(self) -> Iterator[LintFinding]:
        used = {name for rule in self.policy.net.allowlist for name in (rule.credential, rule.sign)}
        for name, item in self.policy.credentials.items():
            key = f"credentials.{name}"
            if name not in used:
                yield self._note("unused", key, f"no rule of net.allowlist names {name}")
            hosts = [rule.host for rule in self.policy.net.allowlist if rule.credential == name]
            if any(host.startswith("*") for host in hosts) and not item.hosts:
                yield self._warning(
                    "wide-credential", key, f"{name} is sent to every host that {', '.join(hosts)} covers", "name hosts"
                )
            if item.source.startswith("env:") and item.source[4:] in self.policy.env.pass_:
                yield self._warning("passed", key, f"env.pass gives {item.source[4:]} to the code itself")

    def _patterns(self) -> Iterator[LintFinding]:
        for at, pattern in enumerate(self.policy.fs.deny_globs):
            names = [name for name in _MODULES if DenyGlobs((pattern,)).match(f"/a/{name}") is not None]
            if names:
                yield self._note(
                    "wide-pattern",
                    f"fs.deny_globs[{at}]",
                    f"{pattern} hides {', '.join(names)} of installed packages, too",
                    "name the files, such as **/id_rsa*",
                )

    def files(self) -> Iterator[LintFinding]:
        yield from self._patterns()
        for at, mount in enumerate(self.policy.fs.mounts):
            if not (mount.source and mount.rw and not mount.cow):
                continue
            present = [name for name in _EXECUTED if os.path.lexists(os.path.join(mount.source, name))]
            if present:
                yield self._warning(
                    "executed",
                    f"fs.mounts[{at}]",
                    f"the code may change {', '.join(present)} in {mount.source} itself, and the host executes them",
                    "cow: true, and bring the changes back after a look at them",
                )

    def rest(self) -> Iterator[LintFinding]:
        policy = self.policy
        if policy.proc.timeout_seconds < 1:
            milliseconds = round(1000 * policy.proc.timeout_seconds)
            yield self._note(
                "short", "proc.timeout_ms", f"every run ends after {milliseconds} ms", f"for seconds: {milliseconds}s"
            )
        for at, name in enumerate(policy.env.pass_):
            if _SECRET.search(name):
                yield self._warning(
                    "secret", f"env.pass[{at}]", f"{name} looks like a secret, and the code gets it", _INSTEAD
                )
        for name in policy.env.set:
            if _SECRET.search(name):
                yield self._warning(
                    "secret", f"env.set.{name}", f"{name} looks like a secret, written in a file", _INSTEAD
                )
        if policy.backend == "unconfined" or "unconfined" in policy.fallback:
            yield self._warning("unconfined", "backend", "unconfined is no sandbox at all")
        elif policy.on_degraded == "allow":
            yield self._warning(
                "degraded", "on_degraded", "every clause may be held less than fully", "list the clauses"
            )
        if policy.dangerous:
            yield self._warning("dangerous", "container", "it hands the host to the code")
        if not policy.logging.redact_pii:
            yield self._note("redaction", "logging.redact_pii", "secrets and personal data are logged as they are")
        elif "secrets" not in policy.logging.redact and not set(SECRETS) <= set(policy.logging.redact):
            yield self._note("redaction", "logging.redact", "some secrets are logged as they are")


_INSTEAD = "credentials, which the proxy adds and the code never sees"


def _covers(pattern: str, host: str) -> bool:
    return pattern in ("*", host) or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _only_reads(rule: HostRule) -> bool:
    return bool(rule.methods) and set(rule.methods) <= _READING


def _bare(address: str) -> str:
    """An address of a rule without its port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0]


def _is_private(host: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*", host)) and not is_public(host)


def _beneath(host: str, pattern: str) -> bool:
    return pattern.startswith("*.") and overlap(host, pattern) and len(host) >= len(pattern)
