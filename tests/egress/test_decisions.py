"""Each step of a decision as a table: rules, what is asked, what is answered, and by which rule."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from belljar.egress.decide import reasons
from belljar.egress.decide.rules import Rules, compile_rules
from belljar.egress.decide.steps import (
    Request,
    Verdict,
    addresses_for,
    decide_address,
    decide_connection,
    decide_name,
    decide_request,
    decide_server_name,
    inspects,
    must_open,
)
from belljar.policy.builtin import BUILTIN, HOST_NAME
from belljar.policy.load.resolve import resolve

NET: dict[str, Any] = {
    "allowlist": [
        "plain.test",
        {"host": "*.wild.test", "ports": [443, 22]},
        {"host": "api.test", "methods": ["GET"], "paths": ["/v1/**"], "query": ["page"]},
        {"host": "api.test", "methods": ["POST"], "paths": ["/v1/items"]},
        {"host": "pinned.test", "addresses": ["10.0.0.7", "[::1]:8443"]},
        "10.9.9.9",
        "fd00::9",
        "api.anthropic.com",
        "169.254.169.254",
        {"host": "shop.test", "ports": [443, 22]},
    ],
    "denylist": [
        "bad.wild.test",
        {"host": "*", "ports": [22]},
        {"host": "shop.test", "methods": ["DELETE"]},
        {"host": "shop.test", "paths": ["/admin/**"]},
        {"host": "shop.test", "query": ["debug"]},
    ],
    "host_ports": [5432],
}


def rules_of(**net: Any) -> Rules:
    return compile_rules(resolve(layers=[{"net": {"enabled": True, **net}}], managed=None))


RULES = rules_of(**NET)


def told(verdict: Verdict) -> str:
    """`ok`, or the reason; with the rule's key."""
    return f"{verdict.reason or 'ok'} {verdict.key}"


NAMES = {
    "plain.test": "ok net.allowlist[0]",
    "PLAIN.test.": "ok net.allowlist[0]",
    "x.plain.test": "name-not-listed net.allowlist",
    "wild.test": "name-not-listed net.allowlist",
    "a.b.wild.test": "ok net.allowlist[1]",
    "bad.wild.test": "denied-by-rule net.denylist[0]",
    "x.bad.wild.test": "ok net.allowlist[1]",
    "other.test": "name-not-listed net.allowlist",
    "evil.test\0.plain.test": "name-form net.allowlist",
    "plain.test%00": "name-form net.allowlist",
    "plain.test\r\n": "name-form net.allowlist",
    "0x7f000001": "address-form net.allowlist",
    "10.9.9.9": "ok net.allowlist[5]",
    "::ffff:10.9.9.9": "ok net.allowlist[5]",
    "10.9.9.8": "address-not-listed net.allowlist",
    "169.254.169.254": "builtin-cloud-metadata built-in cloud-metadata",
    "metadata.google.internal": "builtin-cloud-metadata built-in cloud-metadata",
    HOST_NAME: "ok net.host_ports",
    "x" * 101 + ".wild.test": "name-form net.allowlist",
    ".".join(["x" * 50] * 2) + ".wild.test": "name-too-long net.max_name_length",
    "mzxw6ytboi4dcmbvgyytcmrtgqydsojrhe2dkmzv7qk3hx.wild.test": "name-entropy net.max_name_entropy",
}


@pytest.mark.parametrize(("name", "wanted"), NAMES.items(), ids=ascii)
def test_names(name: str, wanted: str) -> None:
    """What a jar may ask for."""
    assert told(decide_name(RULES, name, names_so_far=0)) == wanted


def test_number_of_names() -> None:
    """Only names that a star covers are counted: the others are the policy's own words."""
    assert told(decide_name(RULES, "a.wild.test", names_so_far=255)) == "ok net.allowlist[1]"
    assert told(decide_name(RULES, "a.wild.test", names_so_far=256)) == "too-many-names net.max_names"
    assert told(decide_name(RULES, "plain.test", names_so_far=256)) == "ok net.allowlist[0]"


CONNECTIONS = {
    ("plain.test", 443): "ok net.allowlist[0]",
    ("plain.test", 80): "ok net.allowlist[0]",
    ("plain.test", 8080): "port-not-listed net.allowlist[0]",
    ("other.test", 443): "name-not-listed net.allowlist",
    ("a.wild.test", 443): "ok net.allowlist[1]",
    ("a.wild.test", 22): "denied-by-rule net.denylist[1]",
    ("bad.wild.test", 443): "denied-by-rule net.denylist[0]",
    ("10.9.9.9", 443): "ok net.allowlist[5]",
    ("fd00::9", 443): "ok net.allowlist[6]",
    ("fd00:0::9", 443): "ok net.allowlist[6]",
    ("8.8.8.8", 443): "address-not-listed net.allowlist",
    ("169.254.169.254", 80): "builtin-cloud-metadata built-in cloud-metadata",
    (HOST_NAME, 5432): "ok net.host_ports",
    (HOST_NAME, 5433): "port-not-listed net.host_ports",
    (HOST_NAME, 22): "denied-by-rule net.denylist[1]",
    ("shop.test", 443): "ok net.allowlist[9]",
    ("127.1", 443): "address-form net.allowlist",
}


@pytest.mark.parametrize(("where", "wanted"), CONNECTIONS.items(), ids=str)
def test_connections(where: tuple[str, int], wanted: str) -> None:
    """What may be dialled."""
    assert told(decide_connection(RULES, *where)) == wanted


ADDRESSES = {
    ("plain.test", "93.184.216.34"): "ok net.allowlist[0]",
    ("plain.test", "2606:2800:220:1::1"): "ok net.allowlist[0]",
    ("plain.test", "127.0.0.1"): "private-address net.allowlist[0]",
    ("plain.test", "10.0.0.1"): "private-address net.allowlist[0]",
    ("plain.test", "10.9.9.9"): "private-address net.allowlist[0]",
    ("plain.test", "::ffff:8.8.8.8"): "private-address net.allowlist[0]",
    ("plain.test", "::1"): "private-address net.allowlist[0]",
    ("plain.test", "0.0.0.0"): "private-address net.allowlist[0]",
    ("plain.test", "198.18.0.1"): "private-address net.allowlist[0]",
    ("plain.test", "169.254.169.254"): "builtin-cloud-metadata built-in cloud-metadata",
    ("plain.test", "64:ff9b::a9fe:a9fe"): "private-address net.allowlist[0]",
    ("plain.test", "nonsense"): "address-form net.allowlist",
    ("pinned.test", "10.0.0.7"): "ok net.allowlist[4]",
    ("pinned.test", "::1"): "ok net.allowlist[4]",
    ("pinned.test", "10.0.0.8"): "private-address net.allowlist[4]",
    ("pinned.test", "8.8.8.8"): "address-not-listed net.allowlist[4]",
    ("10.9.9.9", "10.9.9.9"): "ok net.allowlist[5]",
    ("other.test", "8.8.8.8"): "name-not-listed net.allowlist",
}


@pytest.mark.parametrize(("what", "wanted"), ADDRESSES.items(), ids=str)
def test_addresses(what: tuple[str, str], wanted: str) -> None:
    """What a name may resolve to."""
    host, ip = what
    assert told(decide_address(RULES, host, 443, ip)) == wanted


def test_a_star_means_the_public_internet() -> None:
    """A private address is reached by a rule that names it, or not at all."""
    rules = rules_of(allowlist=["*", "10.0.0.2"])
    for ip in ("127.0.0.1", "10.0.0.1", "::1", "fe80::1", "198.18.0.7"):
        assert (
            told(decide_name(rules, ip))
            == told(decide_connection(rules, ip, 443))
            == "private-address net.allowlist[0]"
        )
    for ip in ("8.8.8.8", "2606:4700::1111", "10.0.0.2"):
        assert decide_name(rules, ip).allowed
        assert decide_connection(rules, ip, 443).allowed


def test_the_host_itself() -> None:
    """Its loopback address, on the ports that are listed."""
    assert decide_address(RULES, HOST_NAME, 5432, "127.0.0.1").allowed
    assert decide_address(RULES, HOST_NAME, 5432, "::1").allowed
    assert not decide_address(RULES, HOST_NAME, 5432, "10.0.0.1").allowed
    assert not decide_address(RULES, HOST_NAME, 80, "127.0.0.1").allowed
    assert addresses_for(RULES, HOST_NAME, 5432) == (("127.0.0.1", None), ("::1", None))
    without = rules_of(allowlist=["*"])
    assert not decide_name(without, HOST_NAME).allowed
    assert not decide_connection(without, HOST_NAME, 443).allowed


def test_the_dashboard() -> None:
    """Its port is closed, even if it is listed."""
    policy = resolve(layers=[{"net": {"enabled": True, "host_ports": [80, 5432]}}], managed=None)
    rules = compile_rules(policy, dashboard_ports=[80])
    assert told(decide_connection(rules, HOST_NAME, 80)) == "builtin-belljar-dashboard built-in belljar-dashboard"
    assert decide_connection(rules, HOST_NAME, 5432).allowed


def test_where_hosts_are_dialled() -> None:
    """By the policy's own word, or by DNS."""
    assert addresses_for(RULES, "pinned.test", 443) == (("10.0.0.7", None), ("::1", 8443))
    assert addresses_for(RULES, "plain.test", 443) == ()
    assert addresses_for(RULES, "10.9.9.9", 443) == (("10.9.9.9", None),)


SERVER_NAMES = {
    ("plain.test", "plain.test"): "ok net.allowlist[0]",
    ("plain.test", "PLAIN.test"): "ok net.allowlist[0]",
    ("plain.test", "other.test"): "server-name-mismatch net.allowlist[0]",
    ("plain.test", "x.wild.test"): "server-name-mismatch net.allowlist[0]",
    ("plain.test", None): "server-name-missing net.allowlist[0]",
    ("plain.test", ""): "server-name-missing net.allowlist[0]",
    ("plain.test", "plain.test\0.evil.test"): "name-form net.allowlist[0]",
    ("10.9.9.9", None): "ok net.allowlist[5]",
    ("10.9.9.9", "plain.test"): "server-name-mismatch net.allowlist[5]",
}


@pytest.mark.parametrize(("names", "wanted"), SERVER_NAMES.items(), ids=str)
def test_server_names(names: tuple[str, str | None], wanted: str) -> None:
    """TLS is for the host that was dialled."""
    assert told(decide_server_name(RULES, names[0], 443, names[1])) == wanted


def asked(text: str, *, headers: dict[str, str] | None = None, authority: str | None = "") -> Request:
    """`GET host/path` as a request."""
    method, _, rest = text.partition(" ")
    host, slash, target = rest.partition("/")
    pairs = tuple((name.encode(), value.encode()) for name, value in (headers or {}).items())
    return Request(host, 443, True, method, slash + target, host if authority == "" else authority, pairs)


REQUESTS = {
    "GET plain.test/": "ok net.allowlist[0]",
    "PURGE plain.test/a/%2e%2e/b?x": "ok net.allowlist[0]",
    "GET api.test/v1/a/b": "ok net.allowlist[2]",
    "GET api.test/v1/a?page=2": "ok net.allowlist[2]",
    "GET api.test/v1/a?page=2&limit=3": "query-not-listed net.allowlist[2]",
    "GET api.test/v1/a?%70age=2": "ok net.allowlist[2]",
    "GET api.test/v2/a": "path-not-listed net.allowlist[2]",
    "GET api.test/v1": "path-not-listed net.allowlist[2]",
    "GET api.test/v1/../v2": "path-ambiguous net.allowlist[2]",
    "GET api.test/v1/%2e%2e/v2": "path-ambiguous net.allowlist[2]",
    "GET api.test/v1/..%2fv2": "path-ambiguous net.allowlist[2]",
    "GET api.test/v1/%00": "path-ambiguous net.allowlist[2]",
    "POST api.test/v1/items": "ok net.allowlist[3]",
    "POST api.test/v1/items?anything=1": "ok net.allowlist[3]",
    "POST api.test/v1/other": "path-not-listed net.allowlist[3]",
    "PUT api.test/v1/items": "method-not-listed net.allowlist[2]",
    "get api.test/v1/a": "method-not-listed net.allowlist[2]",
    "GET other.test/": "name-not-listed net.allowlist",
    "CONNECT plain.test/": "method-not-listed net.allowlist[0]",
    "TRACE plain.test/": "method-not-listed net.allowlist[0]",
    "GET plain.test": "bad-request net.allowlist[0]",
    "GET plain.test/a b": "bad-request net.allowlist[0]",
    "GET plain.test/a\r\nX: y": "bad-request net.allowlist[0]",
    "GET shop.test/": "ok net.allowlist[9]",
    "DELETE shop.test/": "denied-by-rule net.denylist[2]",
    "delete shop.test/": "denied-by-rule net.denylist[2]",
    "GET shop.test/admin": "denied-by-rule net.denylist[3]",
    "GET shop.test/admin/x": "denied-by-rule net.denylist[3]",
    "GET shop.test//admin/": "denied-by-rule net.denylist[3]",
    "GET shop.test/x/../admin": "denied-by-rule net.denylist[3]",
    "GET shop.test/ADMIN/x": "denied-by-rule net.denylist[3]",
    "GET shop.test/?DEBUG=1": "denied-by-rule net.denylist[4]",
    "GET shop.test/administration": "ok net.allowlist[9]",
    "GET shop.test/?debug": "denied-by-rule net.denylist[4]",
    "GET shop.test/?a=1&debug=1": "denied-by-rule net.denylist[4]",
    "GET shop.test/?a=1;debug=1": "denied-by-rule net.denylist[4]",
    "POST api.anthropic.com/v1/messages": "ok net.allowlist[7]",
    "POST api.anthropic.com/v1/messages/count_tokens": "ok net.allowlist[7]",
    "POST api.anthropic.com/v1/dreams": "builtin-anthropic-files built-in anthropic-files",
    "POST api.anthropic.com/v1/tunnels/t_01": "builtin-anthropic-files built-in anthropic-files",
    "POST api.anthropic.com/v1/files": "builtin-anthropic-files built-in anthropic-files",
    "GET api.anthropic.com/v1/files/file_01": "builtin-anthropic-files built-in anthropic-files",
    "POST api.anthropic.com/v1/%66iles?beta=true": "builtin-anthropic-files built-in anthropic-files",
    "POST api.anthropic.com//v1/files/": "builtin-anthropic-files built-in anthropic-files",
    "POST api.anthropic.com/v1/x/../files": "builtin-anthropic-files built-in anthropic-files",
    "POST api.anthropic.com/v1/messages/batches": "builtin-anthropic-batches built-in anthropic-batches",
}


@pytest.mark.parametrize(("text", "wanted"), REQUESTS.items(), ids=ascii)
def test_requests(text: str, wanted: str) -> None:
    """Method, path and query; what is denied comes first, and the closest rule explains."""
    assert told(decide_request(RULES, asked(text))) == wanted


AUTHORITIES = {
    "plain.test": "ok",
    "PLAIN.TEST": "ok",
    "plain.test.": "ok",
    "plain.test:443": "ok",
    "plain.test:80": "authority-mismatch",
    "other.test": "authority-mismatch",
    "api.test": "authority-mismatch",
    "plain.test, other.test": "name-form",
    "user@plain.test": "name-form",
    "plain.test\0": "name-form",
    "plain.test:": "name-form",
}


@pytest.mark.parametrize(("authority", "wanted"), AUTHORITIES.items(), ids=ascii)
def test_authorities(authority: str, wanted: str) -> None:
    """A request is for the host that was dialled, also the second one of a connection."""
    verdict = decide_request(RULES, asked("GET plain.test/", authority=authority))
    assert (verdict.reason or "ok") == wanted


def test_a_request_without_a_host() -> None:
    """It can't be seen for whom it is."""
    assert decide_request(RULES, asked("GET plain.test/", authority=None)).reason == "authority-missing"


def test_headers_that_say_otherwise() -> None:
    """Some servers take the method or the path from a header."""
    override = {"x-http-method-override": "delete"}
    assert decide_request(RULES, asked("POST shop.test/", headers=override)).reason == "denied-by-rule"
    assert decide_request(RULES, asked("GET api.test/v1/a", headers=override)).reason == "method-not-listed"
    assert decide_request(RULES, asked("GET plain.test/", headers=override)).allowed
    elsewhere = {"x-original-url": "/admin"}
    assert decide_request(RULES, asked("GET api.test/v1/a", headers=elsewhere)).reason == "path-ambiguous"
    assert decide_request(RULES, asked("GET shop.test/", headers=elsewhere)).reason == "denied-by-rule"


OPENED = {
    "plain.test": False,
    "a.wild.test": False,
    "api.test": True,
    "shop.test": True,
    "api.anthropic.com": True,
    "pinned.test": False,
    HOST_NAME: False,
}


@pytest.mark.parametrize(("host", "wanted"), OPENED.items())
def test_what_is_opened(host: str, wanted: bool) -> None:
    """TLS is opened where a rule looks at requests, a deny rule too, and nowhere else."""
    assert must_open(RULES, host, 443) is inspects(RULES, host, 443) is wanted


def test_canaries_open_everything() -> None:
    """A token can be anywhere; but what is no request still passes where no rule looks at requests."""
    rules = rules_of(allowlist=["plain.test"], host_ports=[1], canary_files=["/workspace/x"])
    assert must_open(rules, "plain.test", 443)
    assert not inspects(rules, "plain.test", 443)
    assert must_open(rules, HOST_NAME, 1), "services of this host, too"


@pytest.mark.parametrize("entry", BUILTIN, ids=lambda entry: entry.name)
def test_built_in(entry: Any) -> None:
    """Each entry holds against a rule for everything, and is lifted by its name alone."""
    if entry.name == "belljar-dashboard":
        return
    lifted = [other.name for other in BUILTIN if other.name != entry.name]
    for host in [host.replace("*", "x") for host in entry.hosts]:
        every = rules_of(allowlist=["*", host], allow_builtin=lifted)
        none = rules_of(allowlist=["*", host], allow_builtin=[entry.name])
        for path in entry.paths or ("/",):
            target = path.replace("**", "x").replace("*", "y")
            request = Request(host, 443, True, "POST", target, f"[{host}]" if ":" in host else host)
            assert decide_request(every, request).reason == f"builtin-{entry.name}"
            assert decide_request(none, request).allowed


def test_off_is_off() -> None:
    """Rules of a policy without a network allow nothing, whatever else it says."""
    rules = compile_rules(resolve(layers=[{"net": {"allowlist": ["*"], "host_ports": [1]}}], managed=None))
    assert rules == Rules()
    assert not decide_name(rules, "a.test").allowed


def test_rules_travel() -> None:
    """To the proxy's process and back, as JSON."""
    layer = {
        "net": {"enabled": True, **NET, "budget_mb": 1, "strip_headers": ["X-A"]},
        "credentials": {"a": {"from": "env:A", "hosts": ["a.test"]}, "b": {"from": "env:B"}},
    }
    layer["net"]["allowlist"] = [
        *NET["allowlist"],
        {"host": "c.test", "credential": "a", "budget_mb": 3, "rate": "1/s"},
    ]
    rules = compile_rules(resolve(layers=[layer], managed=None))
    again = Rules.from_json(json.loads(json.dumps(rules.to_json())))
    assert again == rules
    assert again.places == rules.places
    assert [item.name for item in rules.credentials] == ["a"]


CHANGES = {
    ("other.test", 443): "net.allowlist: [other.test]",
    ("other.test", 22): "remove net.denylist[1]",
    ("other.test", 8443): "net.allowlist: [{host: other.test, ports: [8443]}]",
    ("1.2.3.4", 443): "net.allowlist: ['1.2.3.4']",
    ("plain.test", 8443): "net.allowlist[0].ports, with 8443",
    ("bad.wild.test", 443): "remove net.denylist[0]",
    (HOST_NAME, 80): "net.host_ports: [80]",
    ("169.254.169.254", 80): "net.allow_builtin: [cloud-metadata]",
}


@pytest.mark.parametrize(("where", "wanted"), CHANGES.items(), ids=str)
def test_the_smallest_change(where: tuple[str, int], wanted: str) -> None:
    """Each refusal says what would allow it."""
    host, port = where
    assert reasons.change(decide_connection(RULES, host, port), host=host, port=port) == wanted


def test_changes_of_requests_are_enough() -> None:
    """What a refusal proposes, written into the policy, allows the request."""
    verdict = decide_request(RULES, asked("PUT api.test/v1/items"))
    assert reasons.change(verdict, host="api.test", method="PUT") == "net.allowlist[2].methods, with PUT"
    verdict = decide_request(RULES, asked("GET api.test/v2"))
    assert reasons.change(verdict, host="api.test", path="/v2") == "net.allowlist[2].paths, with /v2"
    verdict = decide_request(RULES, asked("GET api.test/v1/a?x=1"))
    assert reasons.change(verdict, host="api.test") == "net.allowlist[2].query, with x"
    verdict = decide_address(RULES, "plain.test", 443, "10.0.0.1")
    assert reasons.change(verdict, host="plain.test") == "net.allowlist: [{host: plain.test, addresses: ['10.0.0.1']}]"
    assert reasons.change(decide_connection(RULES, "plain.test", 443)) == ""


def test_every_reason_has_words() -> None:
    """No code is told without its meaning."""
    verdicts = [decide_request(RULES, asked(text)) for text in REQUESTS]
    for verdict in [*verdicts, *(decide_name(RULES, name) for name in NAMES)]:
        if not verdict.allowed:
            assert verdict.reason in reasons.REASONS or verdict.reason.startswith("builtin-")
            assert " " in reasons.words(verdict.reason, verdict.detail)


# --- properties ------------------------------------------------------------------------------------------------------

HOSTS = ("a.test", "x.a.test", "y.x.a.test", "b.test", "8.8.8.8", "10.0.0.1")
hosts = st.sampled_from([*HOSTS, "*.a.test", "*.x.a.test", "*"])
ports = st.lists(st.sampled_from([80, 443, 22]), min_size=1, unique=True)
narrowing = {
    "methods": st.lists(st.sampled_from(["GET", "POST"]), min_size=1, unique=True),
    "paths": st.lists(st.sampled_from(["/v1/**", "/v1/x", "/*/y", "/**"]), min_size=1, unique=True),
    "query": st.lists(st.sampled_from(["p", "q"]), min_size=1, unique=True),
}
entries = st.fixed_dictionaries({"host": hosts}, optional={"ports": ports, **narrowing})
policies = st.fixed_dictionaries(
    {"allowlist": st.lists(entries, max_size=3), "denylist": st.lists(entries, max_size=2)}
)
ODD_HOSTS = [
    "{}", "{}.", "{}\0", "{}%00", "x\0.{}", "{}\r\n", " {}", "u@{}", "[{}]", "{}#", "{}/", "{}:443",
    "0x8.8.8.8", "134744072", "010.0.0.1", "10.1",
]  # fmt: skip
odd_hosts = st.builds(
    lambda host, form, upper: form.format(host.upper() if upper else host),
    st.sampled_from(HOSTS),
    st.sampled_from(ODD_HOSTS),
    st.booleans(),
)
odd_paths = st.sampled_from(
    [
        "/",
        "/v1/x",
        "/v1/x?p=1",
        "/v1/x?q",
        "/v1/../v2",
        "/v1/%2e%2e/y",
        "//v1/x",
        "/v1/y;z",
        "/v1%2fx",
        "/V1/x",
        "/v1/x/",
    ]
) | st.text("/v1x%2e.;?&pq=", max_size=12).map(lambda text: "/" + text)


def plainly_allowed(net: dict[str, Any], host: str, port: int, method: str, target: str) -> bool:
    """The rules once more, for plain requests only, written to be read: no deny rule fits, an allow rule does."""
    path, _, query = target.partition("?")
    keys = {piece.partition("=")[0] for piece in query.split("&") if piece}

    def fits(rule: dict[str, Any], every: bool) -> bool:
        named = rule["host"] in (host, "*") or (rule["host"].startswith("*.") and host.endswith(rule["host"][1:]))
        in_ports = port in rule.get("ports", [443, 80] if every else [port])
        in_query = keys <= set(rule["query"]) if every and "query" in rule else True
        if not every and "query" in rule:
            in_query = bool(keys & set(rule["query"]))
        in_methods = method in rule.get("methods", [method])
        return (
            named
            and in_ports
            and in_methods
            and in_query
            and ("paths" not in rule or any(plain_path(g) for g in rule["paths"]))
        )

    def plain_path(glob: str) -> bool:
        if glob.endswith("/**"):
            return path.startswith(glob[:-2])
        if glob == "/*/y":
            return path.count("/") == 2 and path.endswith("/y")
        return path == glob

    return any(fits(rule, every=True) for rule in net["allowlist"]) and not any(
        fits(rule, every=False) for rule in net["denylist"]
    )


@settings(deadline=None)
@given(policies, odd_hosts, st.sampled_from([80, 443, 22]), st.sampled_from(["GET", "POST", "get", "PUT"]), odd_paths)
def test_nothing_is_allowed_that_the_plain_rule_denies(
    net: dict[str, Any], host: str, port: int, method: str, target: str
) -> None:
    """Whatever form a request takes: if it passes, it passes by the plain reading of the rules, too."""
    rules = rules_of(**net)
    verdict = decide_request(rules, Request(host.lower().removesuffix("."), port, True, method, target, host))
    plain = host.lower().removesuffix(".")
    event("allowed" if verdict.allowed else "refused")
    if verdict.allowed:
        assert plain in HOSTS
        if "%" not in target and ";" not in target and ".." not in target and "//" not in target:
            assert plainly_allowed(net, plain, port, method, target)
    if not verdict.allowed:
        assert verdict.reason
    name = decide_name(rules, host)
    if name.allowed:
        assert plain in HOSTS
        assert any(
            rule["host"] in (plain, "*") or plain.endswith(rule["host"].lstrip("*")) for rule in net["allowlist"]
        )


@settings(deadline=None)
@given(st.lists(entries, max_size=2), odd_hosts, st.sampled_from([80, 443]))
def test_an_empty_list_allows_nothing(denied: list[Any], host: str, port: int) -> None:
    """Whatever is denied."""
    rules = rules_of(allowlist=[], denylist=denied)
    assert not decide_name(rules, host).allowed
    assert not decide_connection(rules, host, port).allowed
    assert not decide_request(rules, Request(host, port, True, "GET", "/", host)).allowed
    assert not decide_address(rules, host, port, "8.8.8.8").allowed


@settings(deadline=None)
@given(policies, st.sampled_from(HOSTS), st.sampled_from([80, 443, 22]), st.sampled_from(["GET", "POST"]), odd_paths)
def test_denying_wins(net: dict[str, Any], host: str, port: int, method: str, target: str) -> None:
    """One more deny rule never allows more, and one that fits denies."""
    request = Request(host, port, False, method, target, host)
    before = decide_request(rules_of(**net), request)
    more = {**net, "denylist": [*net["denylist"], {"host": "*", "methods": ["POST"]}]}
    after = decide_request(rules_of(**more), request)
    assert before.allowed or not after.allowed
    if method == "POST":
        assert not after.allowed
    without = decide_request(rules_of(**{**net, "denylist": []}), request)
    assert without.allowed or not before.allowed


@settings(deadline=None)
@given(st.text(max_size=30) | st.binary(max_size=30), st.text(max_size=20), st.binary(max_size=40))
def test_nothing_breaks(host: str | bytes, method: str, target: bytes) -> None:
    """Any text and bytes get a verdict."""
    rules = rules_of(allowlist=["*"], denylist=[{"host": "*", "paths": ["/x/**"]}])
    decide_name(rules, host)
    decide_server_name(rules, "a.test", 443, host)
    verdict = decide_request(rules, Request("a.test", 443, True, method, target, host))
    if verdict.allowed:
        assert target.startswith(b"/") or target == b"*"
        assert not set(target) & set(b"\0\r\n\t #")
