"""Hosts that belljar knows: a rule with a star does not open them, and an API of them takes no key but the policy's."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.egress.decide import reasons
from belljar.egress.decide.credentials import OutgoingRequest, outgoing
from belljar.egress.decide.rules import Rules, compile_rules
from belljar.egress.decide.steps import (
    Request,
    Verdict,
    addresses_for,
    decide_connection,
    decide_name,
    decide_request,
    inspects,
    must_open,
)
from belljar.errors import PolicyError
from belljar.policy.builtin import BUILTIN
from belljar.policy.carriers import CARRIERS, guarded, reserved
from belljar.policy.keys.hosts import covers
from belljar.policy.lint import lint
from belljar.policy.load.resolve import from_mapping, resolve
from belljar.policy.models import HostRule

BOUND = {"host": "api.anthropic.com", "credential": "own"}
OWN = {"own": {"from": "env:OWN", "header": "x-api-key", "placeholder": "placeholder-own"}}


def rules_of(*allowlist: Any, **net: Any) -> Rules:
    layer: dict[str, Any] = {"net": {"enabled": True, "allowlist": list(allowlist), **net}}
    if any(isinstance(entry, dict) and "credential" in entry for entry in allowlist):
        layer["credentials"] = OWN
    return compile_rules(resolve(layers=[layer], managed=None))


def sent(rules: Rules, host: str, target: str = "/v1/messages", method: str = "POST", **headers: str) -> str:
    """The reason for which a request is refused, or the values of its headers and its target as they leave."""
    pairs = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    request = Request(host, 443, True, method, target, host, pairs)
    verdict = decide_request(rules, request)
    if not verdict.allowed:
        return verdict.reason
    leaving = outgoing(rules, verdict.rule, request, {"own": "s3cret"})
    if isinstance(leaving, Verdict):
        return leaving.reason
    assert isinstance(leaving, OutgoingRequest)
    return " ".join([leaving.target, *(value.decode() for _name, value in leaving.headers)])


BROAD = {
    # every cloud's control plane, in each region, and the ways in which the same is called
    "sts.amazonaws.com": "cloud control plane",
    "sts.eu-west-1.amazonaws.com": "cloud control plane",
    "ssm.us-east-1.amazonaws.com": "cloud control plane",
    "a-service-of-next-year.us-east-1.amazonaws.com": "cloud control plane",
    "sts.cn-north-1.amazonaws.com.cn": "cloud control plane",
    "management.azure.com": "cloud control plane",
    "login.microsoftonline.com": "cloud control plane",
    "mine.vault.azure.net": "cloud control plane",
    "cloudresourcemanager.googleapis.com": "cloud control plane",
    "www.googleapis.com": "cloud control plane",
    "oauth2.googleapis.com": "cloud control plane",
    "api.cloudflare.com": "cloud control plane",
    # models
    "api.anthropic.com": "model API",
    "eu.api.openai.com": "model API",
    "mine.openai.azure.com": "model API",
    "mine.cognitiveservices.azure.com": "model API",
    "generativelanguage.googleapis.com": "model API",
    "europe-west4-aiplatform.googleapis.com": "model API",
    "bedrock-runtime.us-west-2.amazonaws.com": "model API",
    # places that exist to take data
    "pastebin.com": "paste site",
    "webhook.site": "request catcher",
    "x1.oast.live": "request catcher",
    "x.trycloudflare.com": "tunnel",
    "0x0.st": "file drop",
    "tmpfiles.org": "file drop",
    "hooks.slack.com": "chat or webhook",
    "dns.google": "names over HTTPS",
    "bit.ly": "URL shortener",
}


@pytest.mark.parametrize(("host", "kind"), BROAD.items(), ids=list(BROAD))
def test_a_star_does_not_open_it(host: str, kind: str) -> None:
    """By name, by connection and by request alike; what is refused says which rule would open it, and that one does."""
    rules = rules_of("*")
    for verdict in (decide_name(rules, host), decide_connection(rules, host, 443)):
        assert (verdict.allowed, verdict.reason, verdict.key) == (False, "rule-too-broad", "net.allowlist[0]")
        assert verdict.detail.startswith(f"{kind}: ")
        assert reasons.change(verdict, host=host) == f"net.allowlist: [{host if host[0].isalpha() else repr(host)}]"
    assert sent(rules, host) == "rule-too-broad"
    named = rules_of("*", host)
    assert decide_name(named, host).allowed
    assert decide_connection(named, host, 443).rule == named.allow[1]


OPEN = (
    *("example.com", "pypi.org", "files.pythonhosted.org", "github.com", "bucket.s3.amazonaws.com", "s3.amazonaws.com"),
    *("bucket.s3.eu-west-1.amazonaws.com", "s3-eu-west-1.amazonaws.com", "storage.googleapis.com", "1.1.1.1"),
    *("fonts.googleapis.com", "x.execute-api.us-east-1.amazonaws.com", "ec2-1-2-3-4.compute-1.amazonaws.com"),
    *("anthropic.com", "docs.anthropic.com", "openai.com", "notapi.anthropic.com.example.com", "checkip.amazonaws.com"),
)


@pytest.mark.parametrize("host", OPEN)
def test_a_star_opens_the_rest(host: str) -> None:
    """Control: what is no such host is reached as before."""
    assert decide_connection(rules_of("*"), host, 443).allowed


WIDTHS = {
    ("*.anthropic.com", "api.anthropic.com"): False,
    ("api.anthropic.com", "api.anthropic.com"): True,
    ("*.amazonaws.com", "sts.amazonaws.com"): False,
    ("*.amazonaws.com", "sts.eu-west-1.amazonaws.com"): False,
    ("*.eu-west-1.amazonaws.com", "sts.eu-west-1.amazonaws.com"): False,
    ("sts.eu-west-1.amazonaws.com", "sts.eu-west-1.amazonaws.com"): True,
    ("*.amazonaws.com", "athena.eu-west-1.amazonaws.com"): True,
    ("*.googleapis.com", "generativelanguage.googleapis.com"): False,
    ("*.googleapis.com", "bigquery.googleapis.com"): True,
    ("*.azure.com", "mine.openai.azure.com"): False,
    ("*.openai.azure.com", "mine.openai.azure.com"): True,
    ("*.mine.openai.azure.com", "x.mine.openai.azure.com"): True,
}


@pytest.mark.parametrize(("pair", "opens"), WIDTHS.items(), ids=[" ".join(pair) for pair in WIDTHS])
def test_what_names_a_host(pair: tuple[str, str], opens: bool) -> None:
    """The whole name, or a star that is as narrow as the entry of the table."""
    verdict = decide_connection(rules_of(pair[0]), pair[1], 443)
    assert (verdict.allowed, verdict.reason) == (opens, "" if opens else "rule-too-broad")


def test_an_address_that_a_star_covers_is_opened() -> None:
    """Without a server name, only the inside tells which host is asked; a rule that names the address knows it."""
    assert must_open(rules_of("*"), "192.0.2.7", 443) is True
    assert must_open(rules_of("192.0.2.7"), "192.0.2.7", 443) is False
    assert must_open(rules_of("*"), "example.com", 443) is False


def test_no_pinned_address_of_a_broad_rule() -> None:
    """A rule that does not open the host does not say where it is dialled, either."""
    rules = rules_of({"host": "*.anthropic.com", "addresses": ["10.0.0.1"]}, "api.anthropic.com")
    assert addresses_for(rules, "api.anthropic.com", 443) == ()


KEYS: tuple[dict[str, Any], ...] = (
    {"x_api_key": "sk-ant-of-someone-else"},
    {"authorization": "Bearer sk-ant-oat-of-someone-else"},
    {"x_api_token": "of-someone-else"},
    {"x_serverless_authorization": "Bearer of-someone-else"},
    {"x_goog_api_key": "of-someone-else"},
    {"x_shop_api_token": "of-someone-else"},
    {"cf_access_client_secret": "of-someone-else"},
    {"sec_websocket_protocol": "realtime, openai-insecure-api-key.sk-of-someone-else"},
    {"target": "/v1/messages?key=short"},
    {"target": "/v1/messages?api%5Fkey=short"},
    {"target": "/v1/messages?a=b;access_token=short"},
    {"target": "/v1/messages?%24httpHeaders=x-goog-api-key:short"},
    {"x.api.key": "of-someone-else"},
    {"x+goog+api+key": "of-someone-else"},
)


@pytest.mark.parametrize("carried", KEYS, ids=lambda carried: next(iter(carried.items()))[-1])
def test_a_foreign_key_at_a_listed_api(carried: dict[str, Any]) -> None:
    """Refused although no credential is bound. The same passes at another host, and if the rule says so."""
    assert sent(rules_of("api.anthropic.com"), "api.anthropic.com", **carried) == "unbound-credential"
    assert sent(rules_of(BOUND), "api.anthropic.com", **carried) == "foreign-credential"
    allowed = rules_of({"host": "api.anthropic.com", "foreign_credentials": True})
    assert sent(allowed, "api.anthropic.com", **carried).startswith("/v1/messages")
    assert sent(rules_of("plain.test"), "plain.test", **carried).startswith("/v1/messages")


HARMLESS: tuple[dict[str, Any], ...] = (
    {},
    {"content_type": "application/json", "anthropic_version": "2023-06-01", "user_agent": "x"},
    {"idempotency_key": "123", "x_csrf_token": "123", "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ=="},
    {"target": "/v1/models?pageToken=abc&limit=5&model=key"},
)


@pytest.mark.parametrize("carried", HARMLESS, ids=str)
def test_what_is_no_credential(carried: dict[str, Any]) -> None:
    """Control: an API that is listed answers questions without a key, and one with a bound key takes those, too."""
    for rules in (rules_of("api.anthropic.com"), rules_of(BOUND)):
        assert sent(rules, "api.anthropic.com", **carried).startswith("/v1/")


def test_a_short_key_elsewhere_is_a_word() -> None:
    """`?key=name` is an ordinary question at a host that has a credential, `?key=AIza…` is a credential."""
    rules = rules_of({"host": "items.test", "credential": "own"})
    assert sent(rules, "items.test", "/v1?key=colour").startswith("/v1?key=colour")
    assert sent(rules, "items.test", "/v1?key=AIzaSyA1234567890abcdefg") == "foreign-credential"


def test_the_advice_about_a_foreign_key_works() -> None:
    """What the refusal says to write is a policy, and opens it."""
    rules = rules_of("api.anthropic.com")
    request = Request("api.anthropic.com", 443, True, "POST", "/v1/messages", None, ((b"x-api-key", b"k"),))
    verdict = outgoing(rules, rules.allow[0], request, {})
    assert isinstance(verdict, Verdict)
    advice = reasons.change(verdict, host="api.anthropic.com")
    assert advice.startswith("net.allowlist[0].credential, a credential of the policy's; or ")
    import yaml

    key, value = next(iter(yaml.safe_load(advice.partition("; or ")[2]).items()))
    assert sent(rules_of(*value), "api.anthropic.com", x_api_key="k") == "/v1/messages k"
    assert key == "net.allowlist"


def test_tls_is_opened_to_see_keys() -> None:
    """For every known API, unless each of its rules lets any credential pass."""
    assert inspects(rules_of("api.deepseek.com"), "api.deepseek.com", 443) is True
    allowed = {"host": "api.deepseek.com", "foreign_credentials": True}
    assert inspects(rules_of(allowed), "api.deepseek.com", 443) is False
    assert inspects(rules_of(allowed, "api.deepseek.com"), "api.deepseek.com", 443) is True
    assert inspects(rules_of("plain.test"), "plain.test", 443) is False


UPLOADS = {
    "bound": (BOUND, "/v1/files s3cret"),
    "not bound": ("api.anthropic.com", "upload-without-credential"),
    "any credential": ({"host": "api.anthropic.com", "foreign_credentials": True}, "upload-without-credential"),
}


@pytest.mark.parametrize(("entry", "wanted"), UPLOADS.values(), ids=UPLOADS)
def test_a_lifted_upload(entry: Any, wanted: str) -> None:
    """Opens only together with a credential of the policy's; what is not lifted stays closed with it."""
    assert sent(rules_of(entry, allow_builtin=["anthropic-files"]), "api.anthropic.com", "/v1/files") == wanted
    assert sent(rules_of(entry), "api.anthropic.com", "/v1/files") == "builtin-anthropic-files"
    assert sent(rules_of(entry), "api.anthropic.com", "/v1/messages").startswith("/v1/messages")
    foreign = sent(rules_of(entry, allow_builtin=["anthropic-files"]), "api.anthropic.com", "/v1/files", x_api_key="k")
    assert foreign in ("foreign-credential", "unbound-credential", "upload-without-credential")


def test_a_bound_credential_and_any_other() -> None:
    """Exclude each other in one rule; between two rules for a host, the bound one holds for both."""
    with pytest.raises(PolicyError, match="wanted 'credential' or 'sign', which keep others off the host"):
        rules_of({**BOUND, "foreign_credentials": True})
    both = rules_of({"host": "api.anthropic.com", "paths": ["/x"], "foreign_credentials": True}, BOUND)
    assert sent(both, "api.anthropic.com", "/x", x_api_key="k") == "foreign-credential"


COVERED = {
    ("*", "example.com"): True,
    ("*", "*.example.com"): True,
    ("*", "api.anthropic.com"): False,
    ("*", "sts.eu-west-1.amazonaws.com"): False,
    ("*", "*.openai.azure.com"): False,
    ("*", "*.ngrok.io"): False,
    ("*.com", "*.amazonaws.com"): False,
    ("*.amazonaws.com", "sts.amazonaws.com"): False,
    ("*.amazonaws.com", "bucket.s3.amazonaws.com"): True,
    ("*.openai.azure.com", "mine.openai.azure.com"): True,
    ("api.anthropic.com", "api.anthropic.com"): True,
}


@pytest.mark.parametrize(("pair", "covered"), COVERED.items(), ids=[" ".join(pair) for pair in COVERED])
def test_a_ceiling(pair: tuple[str, str], covered: bool) -> None:
    """A rule that opens what a wider rule of the managed policy leaves closed is not covered by it."""
    assert covers(HostRule(pair[0]), HostRule(pair[1])) is covered


def test_a_ceiling_and_foreign_credentials() -> None:
    """Are a grant, so the managed policy has to say it."""
    host, allowed = "api.anthropic.com", HostRule("api.anthropic.com", foreign_credentials=True)
    assert not covers(HostRule(host), allowed)
    assert covers(allowed, HostRule(host))
    assert covers(allowed, allowed)


def test_every_upload_has_a_known_host() -> None:
    """The two lists agree, so that no entry of one is reached by a star."""
    for entry in BUILTIN:
        for host in entry.hosts if entry.paths else ():
            plain = host.replace("*.", "x.").replace("*-", "x-").replace("-*", "-x").replace(".*", ".x")
            assert guarded(plain) is not None, host


def test_the_table() -> None:
    """What needs a name has a reason; nothing that is of another kind is taken for it."""
    for kind in CARRIERS:
        assert kind.why
        assert kind.needs_name or not kind.guarded
    assert reserved("bucket.s3.amazonaws.com") is None
    assert reserved("example.com") is None


def test_lint_of_foreign_credentials() -> None:
    """It is worth a warning."""
    policy = from_mapping({"net": {"enabled": True, "allowlist": [{"host": "api.x.ai", "foreign_credentials": True}]}})
    assert "foreign-credentials" in {finding.code for finding in lint(policy)}
