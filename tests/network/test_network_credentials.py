"""Secrets of the host's: the proxy adds them to requests, the jar never has them, and no other reaches that host."""

from __future__ import annotations

import json
from typing import Any

import pytest
from network_daemons import need_program
from network_routes import OpenJar, codes, denial, network, rule, run_python, run_shell, summary, told
from network_web import Site, Web

SECRET = "s3cret-value-of-the-host-4711"
PLACEHOLDER = "placeholder-for-the-items-api"

ROUTES = pytest.mark.parametrize("route", ["transparent", "http", "socks"])


@pytest.fixture(autouse=True)
def secret_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host finds it."""
    need_program("curl", "curl")
    monkeypatch.setenv("ITEMS_SECRET", SECRET)


def with_credential(secure: Web, **credential: Any) -> dict[str, Any]:
    """A policy with a credential for `web.test`, and none for `other.test`."""
    policy = network(rule("web.test", secure.address, 443, credential="items"), rule("other.test", secure.address, 443))
    spec = {"from": "env:ITEMS_SECRET", "placeholder": PLACEHOLDER, "env": "ITEMS_TOKEN", **credential}
    return {**policy, "credentials": {"items": spec}}


@ROUTES
def test_secret_is_added_on_the_way(net_jar: OpenJar, secure: Web, site: Site, route: str) -> None:
    """Without a word of the code's, and in place of its placeholder; the server sees the secret alone."""
    script = """
        curl -sS https://web.test/silent
        curl -sS -H "Authorization: Bearer $ITEMS_TOKEN" https://web.test/spoken
    """
    result = run_shell(net_jar(with_credential(secure)), script, route=route)
    told(result)
    assert [request.headers.get("authorization") for request in site.requests] == [f"Bearer {SECRET}"] * 2
    assert not result.denials, summary(result)


def test_secret_is_nowhere_in_the_jar(net_jar: OpenJar, secure: Web) -> None:
    """Not in any environment, file or process that the code can read, nor in the result."""
    script = f"""
        env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
        curl -sS https://web.test/silent
        echo '-- files:'; grep -rsl '{SECRET.replace("-", "[-]")}' /workspace /tmp /etc /run /dev/shm 2>/dev/null
    """
    jar = net_jar(with_credential(secure))
    jar.files.write("decoy", SECRET.encode())
    result = run_shell(jar, script)
    assert "ITEMS_TOKEN=" + PLACEHOLDER in result.stdout
    assert result.stdout.partition("-- files:\n")[2] == "/workspace/decoy\n", "all others, and only they, have none"
    assert SECRET not in json.dumps(result.to_dict(), default=str)


FOREIGN = (
    "-H 'Authorization: Bearer of-someone-else'",
    "-H 'authorization: Basic c29tZW9uZTplbHNl'",
    "-u someone:else",
    "-H 'x-api-key: of-someone-else'",
    "-G -d access_token=of-someone-else",
)


@ROUTES
def test_foreign_credential_is_refused(net_jar: OpenJar, secure: Web, site: Site, route: str) -> None:
    """A key that came with the code would reach someone else's account at the same host."""
    script = "\n".join(f"curl -sS {words} https://web.test/{at}" for at, words in enumerate(FOREIGN))
    result = run_shell(net_jar(with_credential(secure)), script, route=route)
    assert told(result).count("reason: foreign-credential: ") == len(FOREIGN)
    for at in range(len(FOREIGN)):
        assert denial(result, "foreign-credential", f"GET web.test/{at}").rule == "net.allowlist[0]"
    assert not site.requests


def test_foreign_credential_is_stripped_if_the_policy_says_so(net_jar: OpenJar, secure: Web, site: Site) -> None:
    """The request passes, with the policy's own."""
    jar = net_jar(with_credential(secure, on_foreign_credential="strip"))
    told(run_shell(jar, "curl -sS -H 'Authorization: Bearer of-someone-else' -H 'x-api-key: other' https://web.test/"))
    assert site.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert "x-api-key" not in site.requests[0].headers


@ROUTES
def test_placeholder_elsewhere_stays_a_placeholder(net_jar: OpenJar, secure: Web, site: Site, route: str) -> None:
    """A host to which the credential is not bound gets what the code sent, which is worth nothing."""
    script = 'curl -sS -H "Authorization: Bearer $ITEMS_TOKEN" https://other.test/'
    told(run_shell(net_jar(with_credential(secure)), script, route=route))
    assert [request.headers["authorization"] for request in site.requests] == [f"Bearer {PLACEHOLDER}"]


def test_secret_that_comes_back_is_blotted_out(net_jar: OpenJar, secure: Web, site: Site) -> None:
    """A host that echoes requests tells the code nothing, if the policy says that it reflects."""
    jar = net_jar(with_credential(secure, reflects=True))
    result = run_shell(jar, "curl -sS --compressed https://web.test/echo")
    assert SECRET not in told(result)
    assert json.loads(result.stdout)["headers"]["authorization"] == "Bearer " + "*" * len(SECRET)
    assert site.requests[0].headers["authorization"] == f"Bearer {SECRET}"


def test_other_forms_of_a_credential(net_jar: OpenJar, secure: Web, site: Site, tmp_path: Any) -> None:
    """From a file into a header of its own; from a command into the query; only for what it is bound to."""
    (tmp_path / "secret").write_text(f"{SECRET}-file\n")
    policy = network(
        rule("web.test", secure.address, 443, credential="by-header"),
        rule("other.test", secure.address, 443, credential="by-query"),
    )
    policy["credentials"] = {
        "by-header": {
            "from": f"file:{tmp_path}/secret",
            "header": "X-Api-Key",
            "paths": ["/v1/**"],
            "methods": ["GET"],
        },
        "by-query": {"command": ["printf", "%s", f"{SECRET}-command"], "query": "key"},
    }
    script = """
        curl -sS https://web.test/v1/a; curl -sS https://web.test/v2/a; curl -sS -d body https://web.test/v1/a
        curl -sS 'https://other.test/b?page=1'
    """
    result = run_shell(net_jar(policy), script)
    told(result)
    first, second, third, fourth = site.requests
    assert first.headers["x-api-key"] == f"{SECRET}-file"
    assert "x-api-key" not in second.headers
    assert "x-api-key" not in third.headers
    assert fourth.path == f"/b?page=1&key={SECRET}-command"
    assert SECRET not in json.dumps(result.to_dict(), default=str)


def test_secret_that_can_not_be_got_stops_the_run(
    net_jar: OpenJar, secure: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any code has run, and with the name of the variable, not with a value."""
    from belljar import PrerequisiteError

    monkeypatch.delenv("ITEMS_SECRET")
    jar = net_jar(with_credential(secure))
    with pytest.raises(PrerequisiteError, match="ITEMS_SECRET"):
        run_shell(jar, "true")


def test_requests_are_signed(net_jar: OpenJar, secure: Web, site: Site, tmp_path: Any) -> None:
    """RFC 9421, with a key that stays outside: the server verifies it, and the code's own signature does not count."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").write_bytes(pem)
    policy = network(rule("web.test", secure.address, 443, sign="mine"))
    policy["credentials"] = {"mine": {"from": f"file:{tmp_path}/key.pem", "algorithm": "ed25519", "key_id": "jar-1"}}
    told(run_shell(net_jar(policy), "curl -sS 'https://web.test/signed?a=1'"))
    headers = site.requests[0].headers
    assert 'keyid="jar-1"' in headers["signature-input"]
    label, _, parameters = headers["signature-input"].partition("=")
    assert headers["signature"].startswith(f"{label}=:")
    _verify(key.public_key(), parameters, headers["signature"], site)


def _verify(public: Any, parameters: str, signature: str, site: Site) -> None:
    """As the server would, by the components that the signature says it covers."""
    import base64

    request = site.requests[0]
    values = {
        "@method": request.method,
        "@authority": request.headers["host"],
        "@scheme": "https",
        "@target-uri": f"https://{request.headers['host']}{request.path}",
        "@request-target": request.path,
        "@path": request.path.partition("?")[0],
        "@query": "?" + request.path.partition("?")[2],
    }
    covered = [name.strip('"') for name in parameters[1 : parameters.index(")")].split()]
    assert {"@method", "@authority"} <= set(covered)
    assert {"@target-uri", "@path", "@request-target"} & set(covered)
    lines = [f'"{name}": {values.get(name, request.headers.get(name, ""))}' for name in covered]
    base = "\n".join([*lines, f'"@signature-params": {parameters}'])
    public.verify(base64.b64decode(signature.split(":")[1]), base.encode())


@ROUTES
def test_upload_to_the_files_api_is_blocked(net_jar: OpenJar, secure: Web, site: Site, route: str) -> None:
    """An allowed vendor's API answers questions, and takes no files: whose key came with the code would get them."""
    jar = net_jar(network(rule("api.anthropic.com", secure.address, 443)))
    script = """
        curl -sS -d '{}' https://api.anthropic.com/v1/messages
        curl -sS -H 'x-api-key: of-someone-else' -F file=@/etc/hostname https://api.anthropic.com/v1/files
        curl -sS --path-as-is -F file=@/etc/hostname https://api.anthropic.com/v1/x/../files
        curl -sS -F file=@/etc/hostname https://api.anthropic.com/v1/%66iles
        curl -sS -F file=@/etc/hostname https://api.anthropic.com//v1//files
        curl -sS -d '{}' https://api.anthropic.com/v1/messages/batches
    """
    result = run_shell(jar, script, route=route)
    said = told(result)
    assert "hello from api.anthropic.com/v1/messages to POST\n" in said
    assert said.count("reason: builtin-anthropic-files: ") == 4, said
    assert said.count("reason: builtin-anthropic-batches: ") == 1
    assert [request.path for request in site.requests] == ["/v1/messages"]
    assert codes(result) == {"builtin-anthropic-files", "builtin-anthropic-batches"}
    allow = {each.allow for each in result.denials}
    assert allow == {"net.allow_builtin: [anthropic-files]", "net.allow_builtin: [anthropic-batches]"}


def test_built_in_entry_is_lifted_by_its_name(net_jar: OpenJar, secure: Web, site: Site) -> None:
    """And then only for a credential of the policy's: without one, the upload would be anyone's."""
    upload = "curl -sS -d body https://api.anthropic.com/v1/files"
    policy = network(rule("api.anthropic.com", secure.address, 443), allow_builtin=["anthropic-files"])
    assert "reason: upload-without-credential: " in told(run_shell(net_jar(policy), upload))
    assert site.requests == []
    bound = rule("api.anthropic.com", secure.address, 443, credential="vendor")
    policy = network(bound, allow_builtin=["anthropic-files"])
    policy["credentials"] = {"vendor": {"from": "env:ITEMS_SECRET", "header": "x-api-key"}}
    told(run_shell(net_jar(policy), upload))
    assert [(request.path, request.headers["x-api-key"]) for request in site.requests] == [("/v1/files", SECRET)]


@ROUTES
def test_foreign_key_to_a_listed_vendor(net_jar: OpenJar, secure: Web, site: Site, route: str) -> None:
    """Refused where no credential is bound, too: the vendor would keep what is sent for whoever owns the key."""
    ask = "curl -sS -d '{}' -H 'x-api-key: of-someone-else' https://api.anthropic.com/v1/messages"
    result = run_shell(net_jar(network(rule("api.anthropic.com", secure.address, 443))), ask, route=route)
    assert "reason: unbound-credential: " in told(result)
    assert codes(result) == {"unbound-credential"}
    assert site.requests == []
    allowed = rule("api.anthropic.com", secure.address, 443, foreign_credentials=True)
    told(run_shell(net_jar(network(allowed)), ask, route=route))
    assert [request.headers["x-api-key"] for request in site.requests] == ["of-someone-else"]


def test_headers_that_tell_of_proxies_are_stripped(net_jar: OpenJar, secure: Web, site: Site) -> None:
    """And those that the policy names."""
    jar = net_jar(network(rule("web.test", secure.address, 443, methods=["GET"]), strip_headers=["x-trace"]))
    headers = [
        "X-Forwarded-For: 10.0.0.1",
        "Forwarded: for=10.0.0.1",
        "Proxy-Authorization: x",
        "X-Trace: y",
        "X-Kept: z",
    ]
    words = " ".join(f"-H '{header}'" for header in headers)
    told(run_shell(jar, f"curl -sS {words} https://web.test/"))
    found = set(site.requests[0].headers)
    assert "x-kept" in found
    assert not found & {"x-forwarded-for", "forwarded", "proxy-authorization", "x-trace", "via"}


def test_rate_of_a_rule(net_jar: OpenJar, secure: Web, site: Site) -> None:
    """429 for what is more, with the reason; nothing of it reaches the server."""
    jar = net_jar(network(rule("web.test", secure.address, 443, rate="3/h")))
    script = 'for at in 1 2 3 4 5; do curl -sS -o /dev/null -w "%{http_code} " https://web.test/$at; done'
    result = run_shell(jar, script)
    assert told(result).split() == ["200", "200", "200", "429", "429"]
    assert len(site.requests) == 3
    assert denial(result, "rate", "GET web.test/4").allow == "net.allowlist[0].rate, larger"


@pytest.mark.parametrize("where", ["host", "run"])
def test_byte_budget(net_jar: OpenJar, secure: Web, site: Site, where: str) -> None:
    """A run that has used it up reaches the host no more, in the middle of an answer too."""
    policy = network(
        rule("web.test", secure.address, 443, **({"budget_mb": 1} if where == "host" else {})),
        **({"budget_mb": 1} if where == "run" else {}),
    )
    script = "curl -sS https://web.test/endless | wc -c; curl -sS https://web.test/after || true"
    result = run_shell(net_jar(policy), script)
    received = int(told(result).split()[0])
    assert 0 < received <= 1 << 20, summary(result)
    assert "budget" in codes(result)
    assert [request.path for request in site.requests] == ["/endless"]


def test_credential_goes_to_python_as_well(net_jar: OpenJar, secure: Web, site: Site) -> None:
    """A library that insists on a key gets the placeholder from its variable, and the server the secret."""
    code = """
import os, requests
answer = requests.get("https://web.test/items", headers={"Authorization": "Bearer " + os.environ["ITEMS_TOKEN"]})
print(answer.status_code)
"""
    assert told(run_python(net_jar(with_credential(secure)), code)) == "200\n"
    assert site.requests[0].headers["authorization"] == f"Bearer {SECRET}"
