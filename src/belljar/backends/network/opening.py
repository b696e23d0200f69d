"""What a policy that opens the network means for a jar: its gateway, its /etc and its environment. Pure."""

from __future__ import annotations

from belljar.backends.contract import Trust
from belljar.backends.network.addresses import ALWAYS_HEARD, HTTP_PROXY_PORT, MOST_PORTS, PROXY_ADDRESS
from belljar.errors import PolicyError
from belljar.policy.models import Policy

ALWAYS = (ALWAYS_HEARD, 443)
"""Ports on which a refusal can be told in words, so that they are listened on whatever the policy lists."""

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""Where the certificates that the jar trusts lie, on a backend whose /etc is belljar's."""


def resolver(address: str) -> str:
    """What /etc/resolv.conf says."""
    return f"nameserver {address}\noptions timeout:2 attempts:2\n"


RESOLVER = resolver(PROXY_ADDRESS)

_BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)
_NO_PROXY = "localhost,127.0.0.1,::1"


def ports(policy: Policy) -> tuple[int, ...]:
    """Every port on which the code may reach some host.

    Raises:
        PolicyError: they are too many.
    """
    listed = {port for rule in policy.net.allowlist for port in rule.ports}
    wanted = sorted({*ALWAYS, *listed, *policy.net.host_ports})
    if len(wanted) > MOST_PORTS:
        raise PolicyError(
            f"net.allowlist: wanted at most {MOST_PORTS} different ports, found {len(wanted)}",
            hint="list the ports that are needed",
        )
    return tuple(wanted)


def variables(policy: Policy, bundle: str, *, proxy: str = PROXY_ADDRESS) -> dict[str, str]:
    """For programs that like to be told: where the proxy is, which certificates to trust, what stands for a secret."""
    address = f"http://{proxy}:{HTTP_PROXY_PORT}"
    told = {name: address for word in ("HTTP_PROXY", "HTTPS_PROXY") for name in (word, word.lower())}
    told |= {"NO_PROXY": _NO_PROXY, "no_proxy": _NO_PROXY}
    told |= dict.fromkeys(_BUNDLE_VARIABLES, bundle)
    secrets = policy.credentials.values()
    return {**told, **{secret.env: secret.placeholder for secret in secrets if secret.env and secret.placeholder}}


def trust_files(trust: Trust) -> dict[str, bytes]:
    """Files beneath /etc/ssl/certs by which every program of the jar trusts the proxy's certificates."""
    own = trust.own.encode()
    named = {"ca-certificates.crt": trust.bundle.encode(), "belljar.pem": own, f"{trust.subject_hash}.0": own}
    return {**named, "java/cacerts": trust.java}


__all__ = ["ALWAYS", "BUNDLE", "RESOLVER", "ports", "resolver", "trust_files", "variables"]
