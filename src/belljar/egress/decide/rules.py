"""The rules of a run as the proxy holds them: plain values, compiled once from a policy and sent to its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from belljar.policy.builtin import BUILTIN, BuiltIn
from belljar.policy.carriers import fits, overlap
from belljar.policy.models import Credential, Policy

_PLACES = (
    *("net.enabled", "net.allowlist", "net.denylist", "net.allow_builtin", "net.host_ports", "net.canary_files"),
    *("net.max_name_length", "net.max_name_entropy", "net.max_names", "net.budget_mb"),
)
_REMEMBERED = 2048


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the allowlist, of the denylist or of the built-in list; what is empty means any."""

    index: int
    key: str
    """`net.allowlist[2]`, or `built-in cloud-metadata`."""
    where: str
    """`file:line`."""
    host: str
    ports: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    credential: str | None = None
    sign: str | None = None
    rate: str | None = None
    budget_bytes: int | None = None
    addresses: tuple[str, ...] = ()
    foreign_credentials: bool = False
    builtin: str = ""
    """The name of the built-in entry, if it is one."""
    get_body: bool = False
    """Whether GET and HEAD may carry a body."""

    @property
    def narrows(self) -> bool:
        """Whether it looks at a request: at its method, path or query."""
        return bool(self.methods or self.paths or self.query)

    @property
    def inspects(self) -> bool:
        """Whether it has to see inside TLS."""
        return self.narrows or bool(self.credential or self.sign or self.rate)


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rules:
    """All that is decided by. There is no secret in it."""

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    """The denylist, then the built-in list without what was lifted."""
    lifted: tuple[Rule, ...] = ()
    """Upload endpoints of the built-in list that were lifted: they open only for a credential of the policy's."""
    host_ports: tuple[int, ...] = ()
    max_name_length: int = 100
    max_name_entropy: float = 4.2
    max_names: int = 256
    budget_bytes: int | None = None
    strip_headers: tuple[str, ...] = ()
    credentials: tuple[Credential, ...] = ()
    canaries: bool = False
    """Whether there are tokens to look for, so that every TLS connection has to be opened."""
    places: Mapping[str, str] = field(default_factory=_empty, compare=False)
    """Keys of `net` to `file:line`."""
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What was found out about a host and port, so that it need not be for each request."""

    def remembered(self, key: Any, find: Callable[[], Any]) -> Any:
        """What `find` says, found once."""
        try:
            return self.memo[key]
        except KeyError:
            if len(self.memo) >= _REMEMBERED:
                self.memo.clear()
            found = self.memo[key] = find()
            return found

    def credential(self, name: str | None) -> Credential | None:
        """The credential of this name, if there is one."""
        return next((item for item in self.credentials if item.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, that JSON carries."""
        plain = _plain(self)
        for name in ("allow", "deny", "lifted", "credentials"):
            plain[name] = [_plain(item) for item in plain[name]]
        del plain["memo"]
        return {**plain, "places": dict(self.places)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Rules:
        """What `to_json` made."""
        values = _tuples(plain)
        values["allow"] = tuple(Rule(**_tuples(item)) for item in plain["allow"])
        values["deny"] = tuple(Rule(**_tuples(item)) for item in plain["deny"])
        values["lifted"] = tuple(Rule(**_tuples(item)) for item in plain["lifted"])
        values["credentials"] = tuple(Credential(**_tuples(item)) for item in plain["credentials"])
        values["places"] = MappingProxyType(dict(plain["places"]))
        return cls(**values)


def _plain(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def compile_rules(policy: Policy, *, dashboard_ports: Sequence[int] = ()) -> Rules:
    """The rules that a policy says; none at all while `net.enabled` is false.

    Args:
        policy: the resolved policy.
        dashboard_ports: ports of the host on which belljar's own dashboard listens.

    """
    net = policy.net
    places = {key: str(policy.origin(key) or "") for key in _PLACES}
    if not net.enabled:
        return Rules(places=MappingProxyType(places))
    used = {name for rule in net.allowlist for name in (rule.credential, rule.sign) if name}
    return Rules(
        allow=tuple(_allow(policy, at) for at in range(len(net.allowlist))),
        deny=(*(_deny(policy, at) for at in range(len(net.denylist))), *_builtin(policy, dashboard_ports)),
        lifted=_lifted(policy),
        host_ports=net.host_ports,
        max_name_length=net.max_name_length,
        max_name_entropy=net.max_name_entropy,
        max_names=net.max_names,
        budget_bytes=net.budget_bytes,
        strip_headers=net.strip_headers,
        credentials=tuple(item for name, item in policy.credentials.items() if name in used),
        canaries=bool(net.canary_files),
        places=MappingProxyType(places),
    )


def _allow(policy: Policy, at: int) -> Rule:
    rule = policy.net.allowlist[at]
    return Rule(
        index=at,
        key=f"net.allowlist[{at}]",
        where=str(policy.origin(f"net.allowlist[{at}]") or ""),
        host=rule.host,
        ports=rule.ports,
        methods=rule.methods,
        paths=rule.paths,
        query=rule.query,
        credential=rule.credential,
        sign=rule.sign,
        rate=rule.rate,
        budget_bytes=rule.budget_bytes,
        addresses=rule.addresses,
        foreign_credentials=rule.foreign_credentials,
        get_body=rule.get_body,
    )


def _deny(policy: Policy, at: int) -> Rule:
    rule = policy.net.denylist[at]
    key = f"net.denylist[{at}]"
    where = str(policy.origin(key) or "")
    return Rule(at, key, where, rule.host, rule.ports, rule.methods, rule.paths, rule.query)


def _builtin(policy: Policy, dashboard_ports: Sequence[int]) -> list[Rule]:
    rules: list[Rule] = []
    for entry in BUILTIN:
        if entry.name in policy.net.allow_builtin:
            continue
        if entry.paths and not _is_reached(policy, entry):
            continue
        ports = tuple(dashboard_ports) if entry.name == "belljar-dashboard" else entry.ports
        if entry.name == "belljar-dashboard" and not ports:
            continue
        rules += _of_entry(entry, ports)
    return rules


def _is_reached(policy: Policy, entry: BuiltIn) -> bool:
    """Return True if a rule may be for a host of the entry: what no rule reaches need not be sent to the proxy."""
    return any(_may_mean(rule.host, host) for rule in policy.net.allowlist for host in entry.hosts)


def _may_mean(rule_host: str, host: str) -> bool:
    if rule_host == "*" or ("*" in host[1:] and rule_host.startswith("*")):
        return True
    return overlap(rule_host, host) or fits(host, rule_host)


def _lifted(policy: Policy) -> tuple[Rule, ...]:
    entries = [entry for entry in BUILTIN if entry.paths and entry.name in policy.net.allow_builtin]
    return tuple(rule for entry in entries for rule in _of_entry(entry, entry.ports))


def _of_entry(entry: BuiltIn, ports: tuple[int, ...]) -> list[Rule]:
    key = f"built-in {entry.name}"
    return [
        Rule(at, key, "", host, ports, entry.methods, entry.paths, builtin=entry.name)
        for at, host in enumerate(entry.hosts)
    ]
