"""Words that the tests of the network share: the ways to the proxy, policies, and what a run told."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from belljar import RunResult, Sandbox
from belljar.sandbox.record.result import Denial

OpenJar = Callable[..., Sandbox]

PROXY = "198.18.0.1"
"""Where a jar finds the proxy, if it looks for one."""

_VARIABLES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
)
ROUTES: Mapping[str, str] = {
    "transparent": "unset " + " ".join(_VARIABLES),
    "http": f'[ "$HTTPS_PROXY" = http://{PROXY}:3128 ]',
    "socks": "unset " + " ".join(_VARIABLES) + f"; export ALL_PROXY=socks5h://{PROXY}:1080",
}
"""For a shell in the jar: programs know of no proxy, of the one in the jar's environment, or of the SOCKS one."""


def rule(host: str, address: str, *ports: int, **more: Any) -> dict[str, Any]:
    """An entry of the allowlist for a server of the test's."""
    return {"host": host, "addresses": [address], **({"ports": list(ports)} if ports else {}), **more}


def network(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A policy with these rules; what is more belongs beneath `net`."""
    return {"net": {"enabled": True, "allowlist": list(rules), **more}}


def run_shell(jar: Sandbox, script: str, *args: str, route: str = "transparent") -> RunResult:
    """Run a shell script in the jar, on one of the routes."""
    return jar.exec(["sh", "-c", f"{ROUTES[route]} || exit 99\n{script}", "sh", *args])


def run_python(jar: Sandbox, code: str, *args: str, route: str = "transparent") -> RunResult:
    """Run Python code in the jar, on one of the routes."""
    words = [shlex.quote(word) for word in ("python3", "-c", code, *args)]
    return run_shell(jar, "exec " + " ".join(words), route=route)


def told(result: RunResult) -> str:
    """What the code printed, if it ran to its end."""
    assert result.ok, f"{summary(result)}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout


def summary(result: RunResult) -> str:
    """For a test that fails: how a run ended, and what its network told."""
    events = [
        f"{event.kind} {event.host}:{event.port} {event.method} {event.path} {event.reason or 'ok'} {event.detail}"
        for event in result.egress
    ]
    return f"{result.outcome} {result.exit_code} {result.reason}\n" + "\n".join(events)


def network_denials(result: RunResult) -> list[Denial]:
    """What was refused of the network."""
    return [denial for denial in result.denials if denial.kind == "network"]


def codes(result: RunResult) -> set[str]:
    """The reasons of all refusals."""
    return {denial.code for denial in network_denials(result)}


def denial(result: RunResult, code: str, target: str = "") -> Denial:
    """The one refusal with this reason, of what begins like the target."""
    found = [each for each in network_denials(result) if each.code == code and each.target.startswith(target)]
    assert len(found) == 1, f"{code}: {network_denials(result)}\n{summary(result)}"
    return found[0]


def decisions(result: RunResult, kind: str) -> Sequence[tuple[str, bool]]:
    """Each host and whether it was allowed, for the events of a kind."""
    return [(event.host, event.allowed) for event in result.egress if event.kind == kind]
