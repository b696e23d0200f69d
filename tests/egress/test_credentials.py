"""What requests carry when they leave: the policy's credential, and nobody else's."""

# ruff: noqa: E501 (rows of tables)

from __future__ import annotations

import base64
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.egress.decide.credentials import OutgoingRequest, Scrubber, fetch, outgoing, reflecting, scrub, stripped
from belljar.egress.decide.rules import Rules, compile_rules
from belljar.egress.decide.signing import component_values, sign, signature_base, signature_parameters
from belljar.egress.decide.steps import Request, Verdict, decide_request
from belljar.errors import PrerequisiteError
from belljar.policy.load.resolve import resolve
from belljar.policy.models import Credential

SECRETS = {"token": "s3cret", "key": "k/e y", "basic": "user:pass", "loose": "l00se", "narrow": "n4rrow", "seed": ""}
CREDENTIALS: dict[str, Any] = {
    "token": {"from": "env:TOKEN", "placeholder": "placeholder-token", "reflects": True},
    "key": {"from": "env:KEY", "query": "key", "placeholder": "placeholder-key"},
    "basic": {"from": "env:BASIC", "format": "Basic {base64}", "placeholder": "placeholder-basic"},
    "loose": {"from": "env:LOOSE", "header": "X-Api-Key", "on_foreign_credential": "strip"},
    "narrow": {"from": "env:N", "methods": ["GET"], "paths": ["/v1/**"], "hosts": ["narrow.test"]},
    "gone": {"from": "env:GONE"},
}
ALLOWLIST = [
    {"host": "token.test", "credential": "token"},
    {"host": "key.test", "credential": "key"},
    {"host": "basic.test", "credential": "basic"},
    {"host": "loose.test", "credential": "loose"},
    {"host": "narrow.test", "credential": "narrow"},
    {"host": "other.narrow.test", "credential": "narrow"},
    {"host": "gone.test", "credential": "gone"},
    {"host": "half.test", "paths": ["/open/**"]},
    {"host": "half.test", "paths": ["/closed/**"], "credential": "token"},
    {"host": "local.test", "credential": "token", "addresses": ["127.0.0.1:80", "[::1]"]},
    {"host": "lan.test", "credential": "token", "addresses": ["10.0.0.1"]},
    "free.test",
]
Headers = dict[str, str]


def rules_of(**more: Any) -> Rules:
    net = {"enabled": True, "allowlist": ALLOWLIST, **more}
    return compile_rules(resolve(layers=[{"net": net, "credentials": CREDENTIALS}], managed=None))


RULES = rules_of()


def sent(host: str, target: str = "/", headers: Headers | None = None, **more: Any) -> OutgoingRequest | Verdict:
    pairs = tuple((name.encode(), value.encode()) for name, value in (headers or {}).items())
    options = {"tls": True, "method": "GET", **more}
    port = 443 if options["tls"] else 80
    request = Request(host, port, options["tls"], options["method"], target, host, pairs)
    verdict = decide_request(RULES, request)
    assert verdict.allowed
    return outgoing(RULES, verdict.rule, request, SECRETS)


def headers_of(result: OutgoingRequest | Verdict) -> Headers:
    assert isinstance(result, OutgoingRequest), result
    return {name.decode(): value.decode() for name, value in result.headers}


BASIC = base64.b64encode(b"user:pass").decode()
ADDED = [
    # host, target, headers sent; headers and target that leave
    ("token.test", "/", {}, {"authorization": "Bearer s3cret"}, "/"),
    ("token.test", "/", {"authorization": "Bearer placeholder-token"}, {"authorization": "Bearer s3cret"}, "/"),
    ("token.test", "/", {"authorization": "placeholder-token"}, {"authorization": "Bearer s3cret"}, "/"),
    ("token.test", "/", {"cookie": "a=b", "accept": "*/*"}, {"accept": "*/*", "authorization": "Bearer s3cret"}, "/"),
    ("key.test", "/a", {}, {}, "/a?key=k%2Fe%20y"),
    ("key.test", "/a?b=1", {}, {}, "/a?b=1&key=k%2Fe%20y"),
    ("key.test", "/a?key=placeholder-key&b=1", {}, {}, "/a?b=1&key=k%2Fe%20y"),
    ("basic.test", "/", {}, {"authorization": f"Basic {BASIC}"}, "/"),
    ("loose.test", "/", {"authorization": "Bearer mine"}, {"x-api-key": "l00se"}, "/"),
    ("loose.test", "/?api_key=mine&a=1", {"x-api-key": "mine"}, {"x-api-key": "l00se"}, "/?a=1"),
    ("narrow.test", "/v1/x", {}, {"authorization": "Bearer n4rrow"}, "/v1/x"),
    ("narrow.test", "/v2", {}, {}, "/v2"),
    ("narrow.test", "/v1/../v2", {}, {}, "/v1/../v2"),
    ("other.narrow.test", "/v1/x", {}, {}, "/v1/x"),
    ("half.test", "/open/x", {}, {}, "/open/x"),
    ("half.test", "/closed/x", {}, {"authorization": "Bearer s3cret"}, "/closed/x"),
    ("free.test", "/?api_key=mine", {"authorization": "mine", "cookie": "a"}, {"authorization": "mine", "cookie": "a"}, "/?api_key=mine"),
    ("free.test", "/", {"authorization": "Bearer placeholder-token"}, {"authorization": "Bearer placeholder-token"}, "/"),
]  # fmt: skip


@pytest.mark.parametrize(("host", "target", "headers", "wanted", "wanted_target"), ADDED)
def test_added(host: str, target: str, headers: Headers, wanted: Headers, wanted_target: str) -> None:
    """A placeholder, or nothing, becomes the real one, at the host that it is bound to and nowhere else."""
    result = sent(host, target, headers)
    assert headers_of(result) == wanted
    assert isinstance(result, OutgoingRequest)
    assert result.target == wanted_target


def test_a_cookie_that_is_the_credential() -> None:
    """The format says where the placeholder is."""
    spec = {"from": "env:S", "header": "Cookie", "format": "session={}", "placeholder": "placeholder"}
    layer = {"net": {"enabled": True, "allowlist": [{"host": "a.test", "credential": "s"}]}, "credentials": {"s": spec}}
    rules = compile_rules(resolve(layers=[layer], managed=None))
    for value, wanted in {"session=placeholder": True, "session=mine": False}.items():
        request = Request("a.test", 443, True, "GET", "/", "a.test", ((b"cookie", value.encode()),))
        result = outgoing(rules, rules.allow[0], request, {"s": "s3cret"})
        assert isinstance(result, OutgoingRequest) is wanted
        if isinstance(result, OutgoingRequest):
            assert result.headers == ((b"cookie", b"session=s3cret"),)


def test_basic_with_a_placeholder_inside() -> None:
    """As git sends a password."""
    inside = base64.b64encode(b"x-token:placeholder-basic").decode()
    assert (
        headers_of(sent("basic.test", "/", {"authorization": f"Basic {inside}"}))["authorization"] == f"Basic {BASIC}"
    )


def test_a_header_that_names_another_method() -> None:
    """What a credential is narrowed to, it is in every reading of a request."""
    assert "authorization" in headers_of(sent("narrow.test", "/v1/x"))
    for name, value in {"x-http-method-override": "DELETE", "x-original-url": "/v2"}.items():
        assert "authorization" not in headers_of(sent("narrow.test", "/v1/x", {name: value}))


FOREIGN = [
    ("token.test", "/", {"authorization": "Bearer mine"}),
    ("token.test", "/", {"authorization": "Bearer placeholder-token, mine"}),
    ("token.test", "/", {"authorization": "Bearer xplaceholder-token"}),
    ("token.test", "/", {"x-api-key": "mine"}),
    ("token.test", "/", {"x-api-key": "placeholder-token"}),
    ("token.test", "/?access_token=mine", {}),
    ("token.test", "/?%61ccess_token=mine", {}),
    ("token.test", "/?a=1;access_token=mine", {}),
    ("token.test", "/?X-Amz-Signature=mine", {}),
    ("key.test", "/?key=mine", {}),
    ("key.test", "/?key=placeholder-key;key=mine", {}),
    ("key.test", "/", {"x-goog-api-key": "mine"}),
    ("half.test", "/open/x", {"authorization": "Bearer mine"}),
    ("narrow.test", "/v2", {"authorization": "Bearer mine"}),
    ("basic.test", "/", {"authorization": "Basic " + base64.b64encode(b"me:mine").decode()}),
    ("basic.test", "/", {"authorization": "Basic !"}),
]


@pytest.mark.parametrize(("host", "target", "headers"), FOREIGN)
def test_foreign(host: str, target: str, headers: Headers) -> None:
    """Someone else's credential does not reach a host that has one, by any of its rules."""
    result = sent(host, target, headers)
    assert isinstance(result, Verdict)
    assert (result.allowed, result.reason) == (False, "foreign-credential")
    assert "mine" not in result.detail


NAMES = ["authorization", "x-api-key", "cookie", "private-token", "accept", "x-b", "signature"]
VALUES = ["Bearer mine", "mine", "placeholder-token", "Bearer placeholder-token", "Basic bWluZTptaW5l", ""]
KEYS = ["access_token", "key", "sig", "a", "Access_Token", "%61ccess_token"]


@settings(deadline=None)
@given(
    st.sampled_from(["token.test", "loose.test", "key.test"]),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=4),
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=3),
    st.sampled_from("&;"),
)
def test_no_other_credential_passes(
    host: str, headers: list[tuple[str, str]], pairs: list[tuple[str, str]], between: str
) -> None:
    """Whatever is sent to a host that has a credential: it leaves with that one, or not at all."""
    target = "/?" + between.join(f"{key}={value.replace(' ', '+')}" for key, value in pairs)
    request = Request(
        host, 443, True, "GET", target, host, tuple((name.encode(), value.encode()) for name, value in headers)
    )
    result = outgoing(RULES, decide_request(RULES, request).rule, request, SECRETS)
    assert not any(secret in repr(result) for secret in SECRETS.values() if secret)
    if isinstance(result, Verdict):
        assert result.reason == "foreign-credential"
        return
    carried = {"token.test": ("authorization", "Bearer s3cret"), "loose.test": ("x-api-key", "l00se"), "key.test": None}
    left = [(name.decode(), value.decode()) for name, value in result.headers]
    assert [pair for pair in left if pair[0] in NAMES[:4]] == [pair for pair in [carried[host]] if pair]
    left_keys = [
        piece.partition("=")[0].lower() for piece in result.target.partition("?")[2].replace(";", "&").split("&")
    ]
    assert not {"access_token", "sig", "%61ccess_token"} & set(left_keys)
    if host == "key.test":
        assert left_keys.count("key") == 1


def test_not_without_tls() -> None:
    """A secret is not sent in the clear, but to this host itself."""
    for host, wanted in {"token.test": "no-tls", "lan.test": "no-tls", "local.test": ""}.items():
        result = sent(host, tls=False)
        assert (result.reason if isinstance(result, Verdict) else "") == wanted


def test_missing() -> None:
    """A run whose secret is not there sends nothing."""
    result = sent("gone.test")
    assert isinstance(result, Verdict)
    assert result.reason == "credential-missing"


def test_headers_that_are_stripped() -> None:
    """What tells of proxies, and what the policy says; everything else stays in order."""
    rules = rules_of(strip_headers=["User-Agent"])
    names = [
        "accept",
        "proxy-authorization",
        "proxy-connection",
        "x-forwarded-for",
        "forwarded",
        "via",
        "user-agent",
        "x-a",
    ]
    pairs = [(name.encode(), b"1") for name in names]
    assert stripped(rules, pairs) == ((b"accept", b"1"), (b"x-a", b"1"))


def test_reflecting() -> None:
    """Only hosts whose credential says so are searched."""
    assert reflecting(RULES, "token.test", 443, SECRETS) == (b"s3cret",)
    assert reflecting(RULES, "key.test", 443, SECRETS) == ()
    assert reflecting(RULES, "free.test", 443, SECRETS) == ()


def test_scrubbed() -> None:
    """The secret and its base64 form, at the same length."""
    encoded = base64.b64encode(b"s3cret")
    assert scrub(b"a s3cret b " + encoded, [b"s3cret"]) == b"a ****** b " + b"*" * len(encoded)
    assert scrub(b"s3cre", [b"s3cret"]) == b"s3cre"
    assert scrub(b"anything", []) == b"anything"


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"s3cret", b"s3c", b"s3cre", b"s", b"t", b"x", b"ret"]), max_size=12), st.data())
def test_scrubbed_across_chunks(pieces: list[bytes], data: st.DataObject) -> None:
    """However a stream is cut."""
    text = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    scrubber = Scrubber([b"s3cret"])
    out = b"".join(scrubber.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))
    assert out + scrubber.finish() == text.replace(b"s3cret", b"******")


# --- signatures ------------------------------------------------------------------------------------------------------

EXAMPLE = Request(
    "example.com", 443, True, "POST", "/foo?param=Value&Pet=dog", "example.com",
    ((b"date", b"Tue, 20 Apr 2021 02:07:55 GMT"), (b"content-type", b"application/json"), (b"content-length", b"18")),
)  # fmt: skip
HMAC_KEY = "base64:uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ=="
ED25519_SEED = "n4Ni+HpISpVObnQMW0wOhCKROaIKqKtW/2ZYb2p9KcU="
RFC_EXAMPLES = {
    "B.2.5": (
        "hmac-sha256", HMAC_KEY, ("date", "@authority", "content-type"), "test-shared-secret",
        "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=",
    ),
    "B.2.6": (
        "ed25519", ED25519_SEED, ("date", "@method", "@path", "@authority", "content-type", "content-length"), "test-key-ed25519",
        "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "secret", "covered", "key_id", "wanted"), RFC_EXAMPLES.values(), ids=RFC_EXAMPLES
)
def test_examples_of_the_rfc(algorithm: str, secret: str, covered: tuple[str, ...], key_id: str, wanted: str) -> None:
    """RFC 9421, appendix B."""
    base = signature_base(component_values(EXAMPLE), covered, signature_parameters(covered, 1618884473, key_id))
    assert base64.b64encode(sign(algorithm, secret, base)).decode() == wanted


def test_a_signed_request() -> None:
    """The signature covers what is sent, after everything else was changed, and replaces any that the code made."""
    key = Ed25519PrivateKey.generate()
    seed = base64.b64encode(key.private_bytes_raw()).decode()
    layer = {
        "net": {
            "enabled": True,
            "allowlist": [{"host": "a.test", "ports": [8443], "sign": "seed", "credential": "key"}],
        },
        "credentials": {
            "seed": {"from": "env:S", "algorithm": "ed25519", "key_id": "k1", "on_foreign_credential": "strip"},
            "key": {"from": "env:K", "query": "key", "on_foreign_credential": "strip"},
        },
    }
    rules = compile_rules(resolve(layers=[layer], managed=None))
    headers = ((b"signature", b"sig1=:AAAA:"), (b"content-type", b"text/plain"))
    request = Request("a.test", 8443, True, "POST", "/x?y=1", "a.test:8443", headers)
    result = outgoing(rules, rules.allow[0], request, {"seed": seed, "key": "s"}, created=7)
    assert isinstance(result, OutgoingRequest)
    assert (result.target, result.used) == ("/x?y=1&key=s", ("key", "seed"))
    values = dict(result.headers)
    covered = '("@method" "@authority" "@path" "@query" "content-type");created=7;keyid="k1"'
    assert values[b"signature-input"].decode() == f"sig1={covered}"
    base = (
        '"@method": POST\n"@authority": a.test:8443\n"@path": /x\n"@query": ?y=1&key=s\n"content-type": text/plain\n'
        f'"@signature-params": {covered}'
    )
    signature = values[b"signature"].decode().removeprefix("sig1=:").removesuffix(":")
    key.public_key().verify(base64.b64decode(signature), base.encode())


@pytest.mark.parametrize(
    "secret", ["", "AAAA", "base64:!", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"]
)
def test_what_is_no_key(secret: str) -> None:
    """The error says so, and not what was there."""
    with pytest.raises(PrerequisiteError, match="a signing key is"):
        sign("ed25519", secret, b"")


# --- where secrets come from -----------------------------------------------------------------------------------------


def spec(**values: Any) -> Credential:
    return Credential("mine", **values)


def test_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment, a file, a program and a keyring; a last line end is not part of it."""
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    assert fetch(spec(source="env:MINE"), {"MINE": "from there"}) == "from there"
    assert fetch(spec(source=f"file:{file}"), {}) == "from a file"
    program = (sys.executable, "-c", "import os; print(os.environ['X'])")
    assert fetch(spec(command=program), {**os.environ, "X": "printed"}) == "printed"
    fake = types.SimpleNamespace(get_password=lambda service, user: f"{service}+{user}" if user == "me" else None)
    monkeypatch.setitem(sys.modules, "keyring", fake)
    assert fetch(spec(source="keyring:a/me"), {}) == "a+me"
    with pytest.raises(PrerequisiteError, match="the keyring has nothing for a/you"):
        fetch(spec(source="keyring:a/you"), {})


MISSING = {
    "no variable": ({"source": "env:MINE"}, "the variable MINE is not set"),
    "an empty one": ({"source": "env:EMPTY"}, "it is empty"),
    "two lines": ({"source": "env:LINES"}, "more than one line"),
    "no file": ({"source": "file:/nonexistent/x"}, "/nonexistent/x: No such file or directory"),
    "a directory": ({"source": "file:/"}, "/: Is a directory"),
    "no program": ({"command": ("/nonexistent/x",)}, "/nonexistent/x: No such file or directory"),
    "a failure": ({"command": (sys.executable, "-c", "print('s3cret'); exit(3)")}, "ended with 3"),
    "too slow": ({"command": (sys.executable, "-c", "import time; time.sleep(60)")}, "took longer than 0.5 s"),
    "no text": ({"command": (sys.executable, "-c", "import os; os.write(1, bytes([255]))")}, "it is not text"),
    "too large": ({"command": (sys.executable, "-c", "print('x' * 70000)")}, "it is larger than 65536 bytes"),
}


@pytest.mark.parametrize(("values", "told"), MISSING.values(), ids=MISSING)
def test_what_can_not_be_fetched(values: dict[str, Any], told: str) -> None:
    """Whatever is wrong is told, and nothing of the secret."""
    seconds = 0.5 if "took" in told else 30
    with pytest.raises(PrerequisiteError) as caught:
        fetch(spec(**values), {**os.environ, "EMPTY": "", "LINES": "s3cret\ns3cret"}, seconds=seconds)
    assert told in str(caught.value)
    assert "the credential mine could not be got" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_without_a_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what to install."""
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(PrerequisiteError, match=r"belljar\[keyring\]"):
        fetch(spec(source="keyring:a/b"), {})
