"""No combination of layers grants what the ceiling denies.

`grants_more` is an oracle that shares nothing with the ceiling's code: it reads the ceiling as plain data, and asks of
a small world (directories, requests, variables) whether the policy reaches something that the ceiling does not.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from belljar.errors import PolicyError
from belljar.policy.globs import DenyGlobs
from belljar.policy.keys.table import CLAUSES
from belljar.policy.load import resolve as resolve_module
from belljar.policy.load.resolve import preset_names, resolve
from belljar.policy.models import DenyRule, HostRule, Policy
from belljar.redaction.kinds import expand

MB = 1024 * 1024
DIRECTORIES = ("a", "a/b", "a/secret", "c", "c/d", "c/d/e")
HOSTS = ("a.com", "x.a.com", "y.x.a.com", "b.com", "1.2.3.4", "10.0.0.1")
PRIVATE = "10.0.0.1"
QUERIES = ((), ("p",), ("p", "q"))
BUILTINS = ("openai-files", "openai-batches", "cloud-metadata")
PATHS = ("/", "/v1", "/v1/x", "/v1/x/y", "/v2")
LIMITS = {
    "proc": {"mem_mb": (1, 4096), "timeout_ms": (1, 90_000), "pids": (1, 2000), "open_files": (8, 5000)},
    "fs": {"size_mb": (1, 5000), "inodes": (16, 90_000)},
}


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


def words(*values: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), unique=True, max_size=len(values))


def limits(section: str) -> dict[str, st.SearchStrategy[Any]]:
    return {name: st.integers(*ends) for name, ends in LIMITS[section].items()}


rules = st.fixed_dictionaries(
    {"host": st.sampled_from([*HOSTS, "*.a.com", "*.x.a.com", "*"])},
    optional={
        "ports": st.lists(st.sampled_from([80, 443, 8080]), min_size=1, unique=True),
        "methods": st.lists(st.sampled_from(["GET", "POST"]), min_size=1, unique=True),
        "paths": st.lists(st.sampled_from(["/v1/**", "/v1/x", "/v1/*", "/**", "/v2"]), min_size=1, unique=True),
        "query": st.lists(st.sampled_from(["p", "q"]), min_size=1, unique=True),
        "credential": st.sampled_from(["one", "two"]),
        "sign": st.just("key"),
        "rate": st.sampled_from(["1/s", "30/m", "10/s"]),
        "budget_mb": st.sampled_from([1, 2]),
        "addresses": st.lists(st.sampled_from(["10.0.0.9", "8.8.8.8:1", "[::1]"]), min_size=1, unique=True),
    },
)
denials = st.fixed_dictionaries(
    {"host": st.sampled_from(["a.com", "*.a.com", "*"])},
    optional={
        "ports": st.just([443]),
        "methods": st.just(["POST"]),
        "paths": st.just(["/v1/**"]),
        "query": st.just(["p"]),
    },
)
network = {
    "enabled": st.booleans(),
    "allowlist": st.lists(rules, max_size=2),
    "denylist": st.lists(denials, max_size=2),
    "allow_builtin": st.lists(st.sampled_from(BUILTINS), unique=True),
    "host_ports": st.lists(st.sampled_from([5432, 6379]), unique=True),
    "publish": st.lists(st.sampled_from([8000, "18000:8000"]), unique=True),
    "strip_headers": st.lists(st.sampled_from(["X-A", "x-a", "x-b"]), max_size=2),
    "budget_mb": st.sampled_from([None, 1, 2]),
    "max_name_length": st.sampled_from([50, 150]),
    "max_name_entropy": st.sampled_from([3, 5]),
    "max_names": st.sampled_from([5, 500]),
    "canary_files": st.lists(st.sampled_from(["/workspace/x", "/workspace/y"]), unique=True),
}
secrets = st.fixed_dictionaries(
    {"from": st.sampled_from(["env:A", "env:B"])},
    optional={
        "hosts": st.just(["a.com"]),
        "on_foreign_credential": st.just("strip"),
        "placeholder": st.just("xxxxxxxx"),
    },
)
own_credentials = st.fixed_dictionaries({}, optional={"one": secrets, "two": secrets})
DEFINED = {
    "one": {"from": "env:A"},
    "two": {"from": "env:A"},
    "key": {"from": "env:K", "algorithm": "ed25519", "key_id": "k"},
}
modes = st.sampled_from([{}, {"rw": True}, {"rw": True, "cow": True}])
mounts = st.builds(
    lambda path, source, mode: {"path": path, **({"source": f"HERE/{source}", **mode} if source else {"rw": True})},
    st.sampled_from(["/workspace", "/data", "/data/deep"]),
    st.sampled_from([*DIRECTORIES, None]),
    modes,
)
globs = ["**/secret", "HERE/c/**", "HERE/c/d", "/data/**", "**/b"]
backends = st.sampled_from(["auto", "bubblewrap", "docker", "unconfined"])
containers = {
    "image": st.sampled_from(["", "a", "b:1"]),
    "engine": st.sampled_from(["auto", "docker"]),
    "runtime": st.sampled_from(["auto", "runc", "runsc"]),
    "name": st.sampled_from(["one", "two", None]),
    "network": st.sampled_from(["none", "bridge", "host"]),
    "pid": st.sampled_from(["private", "host"]),
    "privileged": st.booleans(),
    "read_only": st.booleans(),
    "auto_remove": st.booleans(),
    "entrypoint": st.sampled_from([["a"], ["a", "b"], None]),
    "ports": words("1:1", "2:2", "3:3"),
    "pull": st.sampled_from(["never", "missing"]),
}
redaction = {
    "redact": words("secrets", "personal", "email", "token"),
    "redact_in": words("log", "result"),
    "let_through": words("*@example.com", "10.0.0.0/8"),
}
degraded = st.sampled_from(["refuse", "allow"]) | words("proc.mem_mb", "proc.cpu_quota", "fs.size_mb")


def policies(patterns: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return some(
        backend=backends,
        fallback=words("bubblewrap", "docker", "unconfined"),
        on_degraded=degraded,
        fs=some(
            mounts=st.lists(mounts, max_size=2, unique_by=lambda mount: mount["path"]),
            deny_globs=words(*patterns),
            **limits("fs"),
        ),
        net=some(**network),
        credentials=own_credentials,
        proc=some(uid=st.sampled_from([1000, 1001]), cpu_quota=st.sampled_from([0.5, 1, 3]), **limits("proc")),
        env=some(**{"pass": words("A", "B"), "set": st.dictionaries(st.sampled_from(["A", "LANG"]), st.just("x"))}),
        logging=some(sample_ratio=st.sampled_from([0, 1]), redact_pii=st.booleans(), **redaction),
        container=some(**containers),
    )


def grants_more(policy: Policy, ceiling: dict[str, Any], here: Path) -> Iterator[str]:
    """Everything that the policy reaches and the ceiling does not."""
    yield from _limits(policy, ceiling)
    yield from _backends(policy, ceiling)
    yield from _words(policy, ceiling)
    yield from _containers(policy, ceiling.get("container", {}))
    net, fs = ceiling.get("net", {}), ceiling.get("fs", {})
    if policy.net.enabled and net.get("enabled") is False:
        yield "net.enabled"
    if "allowlist" in net:
        outer = [_rule(entry) for entry in net["allowlist"]]
        for request in product(HOSTS, (80, 443, 8080), ("GET", "POST"), PATHS, QUERIES):
            for how in _ways(policy.net.allowlist, request):
                if not any(_within(how, other) for other in _ways(outer, request)):
                    yield f"net.allowlist {request} {how}"
        for name in ("host_ports", "allow_builtin"):
            if not set(getattr(policy.net, name)) <= set(net.get(name, ())):
                yield f"net.{name}"
    yield from _network(policy, net)
    yield from _secrets(policy, ceiling)
    yield from _files(policy, fs, here)


def _network(policy: Policy, net: dict[str, Any]) -> Iterator[str]:
    asked = policy.net
    for name in ("host_ports", "allow_builtin"):
        if name in net and not set(getattr(asked, name)) <= set(net[name]):
            yield f"net.{name}"
    published = {f"{port}:{port}" if isinstance(port, int) else port for port in net.get("publish", ())}
    if ("publish" in net or net.get("enabled") is False) and not set(asked.publish) <= published:
        yield "net.publish"
    if not {name.lower() for name in net.get("strip_headers", ())} <= set(asked.strip_headers):
        yield "net.strip_headers"
    if not set(net.get("canary_files", ())) <= set(asked.canary_files):
        yield "net.canary_files"
    for rule in net.get("denylist", ()):
        lists = {name: tuple(value) for name, value in rule.items() if isinstance(value, list)}
        if DenyRule(**{**rule, **lists}) not in asked.denylist:
            yield "net.denylist"
    limits = {name: getattr(asked, name) for name in ("max_name_length", "max_name_entropy", "max_names")}
    limits["budget_mb"] = float("inf") if asked.budget_bytes is None else asked.budget_bytes / MB
    for name, value in limits.items():
        if net.get(name) is not None and value > net[name]:
            yield f"net.{name}"


def _secrets(policy: Policy, ceiling: dict[str, Any]) -> Iterator[str]:
    for name, item in policy.credentials.items():
        if "credentials" in ceiling:
            meant = ceiling["credentials"].get(name)
            same = meant and (item.source, list(item.hosts), item.on_foreign_credential, item.placeholder) == (
                meant["from"],
                meant.get("hosts", []),
                meant.get("on_foreign_credential", "refuse"),
                meant.get("placeholder"),
            )
            if not same:
                yield "credentials"


def _limits(policy: Policy, ceiling: dict[str, Any]) -> Iterator[str]:
    proc, fs = ceiling.get("proc", {}), ceiling.get("fs", {})
    reached = {
        "mem_mb": policy.proc.mem_bytes / MB,
        "timeout_ms": round(policy.proc.timeout_seconds * 1000, 6),
        "pids": policy.proc.pids,
        "open_files": policy.proc.open_files,
        "cpu_quota": policy.proc.cpu_quota,
        "size_mb": policy.fs.size_bytes / MB,
        "inodes": policy.fs.inodes,
    }
    yield from (name for name, value in reached.items() if value > {**proc, **fs}.get(name, float("inf")))
    if policy.proc.uid != proc.get("uid", policy.proc.uid):
        yield "proc.uid"


def _backends(policy: Policy, ceiling: dict[str, Any]) -> Iterator[str]:
    pinned, listed = ceiling.get("backend", "auto"), ceiling.get("fallback")
    used = {policy.backend, *policy.fallback}
    if "unconfined" in used and "unconfined" not in {pinned, *(listed or ())}:
        yield "unconfined"
    if pinned != "auto":
        if policy.backend != pinned or not set(policy.fallback) <= {pinned, *(listed or ())}:
            yield "backend"
    elif listed is not None and not set(policy.fallback) <= set(listed):
        yield "fallback"


def _words(policy: Policy, ceiling: dict[str, Any]) -> Iterator[str]:
    env, log = ceiling.get("env", {}), ceiling.get("logging", {})
    if "pass" in env and not set(policy.env.pass_) <= set(env["pass"]):
        yield "env.pass"
    if "set" in env and not set(policy.env.set) <= set(env["set"]):
        yield "env.set"
    if log.get("redact_pii") and not policy.logging.redact_pii:
        yield "logging.redact_pii"
    redacts = log.get("redact_pii", bool(log.get("redact") or log.get("redact_in")))
    if redacts:
        if not policy.logging.redact_pii:
            yield "logging.redact_pii"
        if not expand(log.get("redact", ["secrets", "personal"])) <= expand(policy.logging.redact):
            yield "logging.redact"
        if not set(log.get("redact_in", ["log"])) <= set(policy.logging.redact_in):
            yield "logging.redact_in"
        if not set(policy.logging.let_through) <= set(log.get("let_through", [])):
            yield "logging.let_through"
    if "on_degraded" in ceiling:
        accepted, most = policy.on_degraded, ceiling["on_degraded"]
        if accepted == "allow" and most != "allow":
            yield "on_degraded"
        most_set = set(CLAUSES) if most == "allow" else set() if most == "refuse" else set(most)
        if not isinstance(accepted, str) and not set(accepted) <= most_set:
            yield "on_degraded"


def _containers(policy: Policy, ceiling: dict[str, Any]) -> Iterator[str]:
    asked = policy.container
    for name in ("image", "engine", "runtime", "name"):
        if name in ceiling and getattr(asked, name) != ceiling[name]:
            yield f"container.{name}"
    if "entrypoint" in ceiling and list(asked.entrypoint or ()) != (ceiling["entrypoint"] or []):
        yield "container.entrypoint"
    if "ports" in ceiling and not set(asked.ports) <= set(ceiling["ports"]):
        yield "container.ports"
    if asked.pull == "missing" and ceiling.get("pull") == "never":
        yield "container.pull"
    for name in ("read_only", "auto_remove"):
        if ceiling.get(name) and not getattr(asked, name):
            yield f"container.{name}"
    # Dangers: where the ceiling says nothing, it says no.
    if asked.privileged and not ceiling.get("privileged", False):
        yield "container.privileged"
    if asked.pid == "host" and ceiling.get("pid", "private") == "private":
        yield "container.pid"
    if (
        asked.network
        not in {"none": ("none",), "bridge": ("none", "bridge"), "host": ("none", "bridge", "host")}[
            ceiling.get("network", "none")
        ]
    ):
        yield "container.network"


def _rule(entry: dict[str, Any]) -> HostRule:
    lists = {name: tuple(value) for name, value in entry.items() if isinstance(value, list)}
    values = {**entry, **lists}
    if "budget_mb" in values:
        values["budget_bytes"] = values.pop("budget_mb") * MB
    return HostRule(**values)


def _ways(allowlist: Any, request: tuple[str, int, str, str, tuple[str, ...]]) -> Iterator[HostRule]:
    """The rules by which a request passes."""
    host, port, method, path, query = request
    for rule in allowlist:
        if (
            (rule.host == host or (rule.host == "*" and host != PRIVATE) or _is_beneath(host, rule.host))
            and port in rule.ports
            and (not rule.methods or method in rule.methods)
            and (not rule.paths or any(_path_matches(path, glob) for glob in rule.paths))
            and (not rule.query or set(query) <= set(rule.query))
        ):
            yield rule


def _is_beneath(host: str, pattern: str) -> bool:
    return pattern.startswith("*.") and host.endswith(pattern[1:])


def _within(inner: HostRule, outer: HostRule) -> bool:
    """Whether a request that passes by `inner` carries all that `outer` asks of it, and is dialled where it says."""
    return (
        outer.credential in (None, inner.credential)
        and outer.sign in (None, inner.sign)
        and _rate(inner.rate) <= _rate(outer.rate)
        and (inner.budget_bytes or 2**60) <= (outer.budget_bytes or 2**60)
        and bool(inner.addresses) == bool(outer.addresses)
        and set(inner.addresses) <= set(outer.addresses)
    )


def _rate(text: str | None) -> float:
    return {None: float("inf"), "1/s": 1, "30/m": 0.5, "10/s": 10}[text]


def _path_matches(path: str, glob: str) -> bool:
    if glob.endswith("/**"):
        return path.startswith(glob[:-2])
    return path.count("/") == glob.count("/") and fnmatchcase(path, glob)


def _files(policy: Policy, fs: dict[str, Any], here: Path) -> Iterator[str]:
    """Every directory of the world: how the policy shows it, and whether the ceiling would."""
    allowed = fs.get("mounts")
    denied = DenyGlobs(policy.fs.deny_globs)
    for mount in policy.fs.mounts:
        held = denied.within(mount.source, mount.path)
        for name in DIRECTORIES:
            host = f"{here}/{name}"
            if mount.source is None or not f"{host}/".startswith(f"{mount.source}/"):
                continue
            jar = mount.path + host[len(mount.source) :]
            if held.denies(f"{host}/file", f"{jar}/file") is not None:
                continue
            if allowed is not None and not any(_shows(outer, host, mount.rw, mount.cow) for outer in allowed):
                yield f"fs.mounts {name}"
            for pattern in fs.get("deny_globs", ()):
                if _denied(pattern, host, jar, allowed or ()):
                    yield f"fs.deny_globs {pattern} {name}"


def _shows(outer: dict[str, Any], host: str, rw: bool, cow: bool) -> bool:
    if not f"{host}/".startswith(outer.get("source", "\0") + "/"):
        return False
    return (outer.get("rw", False) or not rw) and (cow or not rw or not outer.get("cow", False))


def _denied(pattern: str, host: str, jar: str, allowed: Any) -> bool:
    """By name, always; by place, unless the ceiling itself mounts something there."""
    if pattern.startswith("**/"):
        return pattern[3:] in host.split("/") or pattern[3:] in jar.split("/")
    place = pattern.removesuffix("/**")
    own = [path for mount in allowed for path in (mount.get("source"), mount["path"]) if path]
    exempt = [path for path in own if f"{path}/".startswith(f"{place}/")]
    return any(
        f"{path}/".startswith(f"{place}/") and not any(f"{path}/".startswith(f"{free}/") for free in exempt)
        for path in (host, jar)
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("world").resolve()
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve_module, "MANAGED_OWNER", os.geteuid())
        yield root


def placed(policy: dict[str, Any], here: Path) -> dict[str, Any]:
    return json.loads(json.dumps(policy).replace("HERE", str(here)))


outcomes: Counter[str] = Counter()


def _hosts(policy: dict[str, Any]) -> list[dict[str, Any]]:
    return policy.get("net", {}).get("allowlist", [])


def stays_beneath(here: Path, preset: str, layers: list[Any], ceiling: Any, workspace: str | None, live: bool) -> None:
    """Resolve it; the policy that comes out, if any, grants nothing that the ceiling denies."""
    managed = here / "managed.yaml"
    if layers:
        layers = [{**layers[0], "credentials": {**DEFINED, **layers[0].get("credentials", {})}}, *layers[1:]]
    if "credentials" in ceiling or any("credential" in rule or "sign" in rule for rule in _hosts(ceiling)):
        ceiling = {**ceiling, "credentials": {**DEFINED, **ceiling.get("credentials", {})}}
    managed.write_text(json.dumps(placed(ceiling, here)))
    managed.chmod(0o644)
    try:
        policy = resolve(
            preset,
            layers=[placed(layer, here) for layer in layers],
            workspace=f"{here}/{workspace}" if workspace else None,
            live=live,
            managed=str(managed),
        )
    except PolicyError:
        outcomes["refused"] += 1
        event("refused")
        return
    outcomes["granted"] += 1
    event("granted")
    asked = policy.container
    if asked.privileged or asked.pid == "host" or asked.network != "none":
        outcomes["dangerous"] += 1
        assert preset == "unrestricted"
    assert list(grants_more(policy, placed(ceiling, here), here)) == []


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    preset=st.sampled_from(preset_names()),
    layers=st.lists(policies([*globs, "!**/secret", "!**/b", "!**/.env"]), max_size=2),
    ceiling=policies([*globs, "**/.env"]),
    workspace=st.none() | st.sampled_from(DIRECTORIES),
    live=st.booleans(),
)
def test_nothing_grants_what_the_ceiling_denies(
    here: Path, preset: str, layers: list[Any], ceiling: Any, workspace: str | None, live: bool
) -> None:
    """Whatever the layers say, of whatever key."""
    stays_beneath(here, preset, layers, ceiling, workspace, live)


shown = st.lists(mounts, min_size=1, max_size=2, unique_by=lambda mount: mount["path"])


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    layer=st.fixed_dictionaries({"fs": st.fixed_dictionaries({"mounts": shown})}),
    ceiling=st.fixed_dictionaries(
        {"fs": st.fixed_dictionaries({}, optional={"mounts": shown, "deny_globs": words(*globs)})}
    ),
)
def test_nothing_shows_files_that_the_ceiling_denies(here: Path, layer: Any, ceiling: Any) -> None:
    """Mounts and patterns meet seldom among all the keys, so here they are alone."""
    stays_beneath(here, "aicode", [layer], ceiling, None, live=False)


rule_lists = st.lists(rules, min_size=1, max_size=2)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(inner=rule_lists, outer=rule_lists)
def test_nothing_reaches_hosts_that_the_ceiling_denies(here: Path, inner: list[Any], outer: list[Any]) -> None:
    """The same for hosts."""
    stays_beneath(here, "aicode", [{"net": {"allowlist": inner}}], {"net": {"allowlist": outer}}, None, live=False)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    inner=st.lists(some(net=some(**network), credentials=own_credentials), min_size=1, max_size=2),
    outer=some(net=some(**network), credentials=own_credentials),
)
def test_no_network_beyond_what_the_ceiling_has(here: Path, inner: list[Any], outer: Any) -> None:
    """The same for all that the network has."""
    stays_beneath(here, "aicode", inner, outer, None, live=False)


easy = st.fixed_dictionaries({"host": st.sampled_from(["a.com", "x.a.com"])}, optional={"credential": st.just("one")})


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    inner=st.lists(easy, min_size=1, max_size=2),
    outer=st.lists(easy, min_size=1, max_size=2),
    mine=own_credentials,
    theirs=own_credentials,
)
def test_no_credential_but_the_ceilings(here: Path, inner: Any, outer: Any, mine: Any, theirs: Any) -> None:
    """The same for what a credential's name means."""
    layer = {"net": {"allowlist": inner}, "credentials": mine}
    stays_beneath(here, "aicode", [layer], {"net": {"allowlist": outer}, "credentials": theirs}, None, live=False)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    preset=st.sampled_from(["unrestricted", "unrestricted", "docker"]),
    inner=st.lists(some(container=some(**containers)), min_size=1, max_size=2),
    outer=some(**containers),
)
def test_no_container_gets_what_the_ceiling_denies(here: Path, preset: str, inner: list[Any], outer: Any) -> None:
    """The same for what an engine is asked for."""
    stays_beneath(here, preset, inner, {"container": outer}, None, live=False)


risky = some(**{name: containers[name] for name in ("network", "pid", "privileged")})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(preset=st.sampled_from(["unrestricted", "unrestricted", "aicode"]), inner=risky, outer=risky)
def test_no_container_gets_the_host(here: Path, preset: str, inner: Any, outer: Any) -> None:
    """Unless both the policy and the ceiling say so, and the policy starts from `unrestricted`."""
    stays_beneath(here, preset, [{"container": inner}], {"container": outer}, None, live=False)


def test_the_property_is_not_empty(here: Path) -> None:
    """Both outcomes were met, and without the ceiling the oracle does find what is granted."""
    assert min(outcomes["granted"], outcomes["refused"], outcomes["dangerous"]) > 20
    ceiling = {
        "backend": "bubblewrap",
        "on_degraded": "refuse",
        "fs": {"mounts": [], "size_mb": 1, "deny_globs": ["**/secret", f"{here}/c/**"]},
        "net": {
            "enabled": False,
            "allowlist": [],
            "denylist": [{"host": "c.com"}],
            "strip_headers": ["x-a"],
            "max_names": 1,
            "publish": [],
            "budget_mb": 1,
            "canary_files": ["/workspace/x"],
        },
        "credentials": {},
        "proc": {"mem_mb": 1, "uid": 1},
        "env": {"pass": [], "set": {}},
        "container": {"image": "a", "name": "x", "pull": "never", "ports": [], "entrypoint": None, "read_only": True},
    }
    found = set()
    asked = {
        "image": "b", "name": "y", "pull": "missing", "ports": ["1:1"], "entrypoint": ["a"], "read_only": False,
        "privileged": True, "pid": "host", "network": "host",
    }  # fmt: skip
    for directory in ("a", "c"):
        open_wide = {
            "fs": {"mounts": [{"path": "/data", "source": f"{here}/{directory}", "rw": True}]},
            "container": asked,
            "net": {"host_ports": [1], "publish": [1], "allow_builtin": ["openai-files"]},
            "credentials": {"a": {"from": "env:A"}},
        }
        policy = resolve("unrestricted", layers=[open_wide], managed=None)
        found |= {word.split()[0] for word in grants_more(policy, ceiling, here)}
    assert found == {
        "mem_mb", "size_mb", "proc.uid", "unconfined", "backend", "env.pass", "env.set", "on_degraded", "net.enabled",
        "net.allowlist", "net.denylist", "net.strip_headers", "net.max_names", "net.publish", "net.budget_mb",
        "net.canary_files", "net.host_ports", "net.allow_builtin", "credentials", "fs.mounts",
        "fs.deny_globs", *(f"container.{name}" for name in asked),
    }  # fmt: skip
