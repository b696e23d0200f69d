"""Before the code starts, a name and a host that nobody listed are tried from inside its network."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from network_routes import OpenJar, network, rule, run_python, told
from network_servers import Server

from belljar import Sandbox
from belljar.audit.reading import records
from belljar.egress.client.client import PROXY
from belljar.egress.decide.rules import Rule, Rules
from belljar.errors import AuditError
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Outcome

EVERYTHING = Rules(allow=(Rule(0, "net.allowlist[0]", "", "*", ports=(80, 443)),), max_name_entropy=8.0)


def serve_by(monkeypatch: pytest.MonkeyPatch, change: Callable[[Rules], Rules]) -> None:
    """Have the proxy decide by other rules than the policy's: a proxy that is broken."""
    right = PROXY.serve
    monkeypatch.setattr(PROXY, "serve", lambda run_id, rules, *rest: right(run_id, change(rules), *rest))


def ran(jar: Sandbox) -> Any:
    """The result of code that leaves a trace."""
    return run_python(jar, "open('/workspace/ran', 'w')")


def test_all_is_well(open_jar: OpenJar, plain: Server) -> None:
    """The attempts themselves are in no record."""
    result = ran(open_jar(network(rule("echo.test", plain.address))))
    assert told(result) == ""
    assert result.egress == result.denials == ()


def test_a_proxy_that_knows_every_name(
    open_jar: OpenJar, plain: Server, monkeypatch: pytest.MonkeyPatch, state_directory: str
) -> None:
    """The run is refused, and written down; the code was never started."""
    serve_by(monkeypatch, lambda _rules: EVERYTHING)
    jar = open_jar(network(rule("echo.test", plain.address)))
    result = ran(jar)
    assert (result.outcome, result.exit_code) == (Outcome.REFUSED, None)
    assert "a name that nobody listed was not refused" in result.reason
    assert [entry.path for entry in jar.files.list()] == []
    refused = [record for record in records(str(Path(state_directory, "audit"))) if record["event"] == "refused"]
    assert refused[-1]["run"] == result.run_id


def test_a_proxy_that_lets_every_host_pass(open_jar: OpenJar, plain: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a host, dialled by its address."""
    listed = Rule(0, "net.allowlist[0]", "", "192.0.2.1", ports=(80, 443), addresses=(plain.address,))
    serve_by(monkeypatch, lambda rules: replace(rules, allow=(listed,)))
    result = ran(open_jar(network(rule("echo.test", plain.address))))
    assert result.outcome is Outcome.REFUSED
    assert "a host that nobody listed was not refused" in result.reason


def test_a_proxy_that_dies(open_jar: OpenJar, plain: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between taking the listeners over and the first answer."""
    right = PROXY.serve

    def serve(*arguments: Any) -> Any:
        served = right(*arguments)
        PROXY.stop()
        return served

    monkeypatch.setattr(PROXY, "serve", serve)
    jar = open_jar(network(rule("echo.test", plain.address)))
    assert ran(jar).outcome is Outcome.REFUSED
    monkeypatch.undo()
    assert ran(jar).outcome is Outcome.OK


def test_a_refusal_that_cannot_be_written_down(
    open_jar: OpenJar, plain: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ends the run, which says why; with room for it, the same run goes on."""
    code = "import socket, time\ntry: socket.getaddrinfo('other.test', 80)\nexcept OSError: time.sleep(2)\nprint('on')"
    jar = open_jar(network(rule("echo.test", plain.address)))
    assert told(run_python(jar, code)) == "on\n"
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path))
    started = time.monotonic()
    late = f"print('up', flush=True); __import__('time').sleep(1); {code}".replace("sleep(2)", "sleep(60)")
    events = jar.stream(late)
    assert isinstance(next(events), Output)
    shutil.rmtree(tmp_path / "audit")
    (tmp_path / "audit").write_text("in the way")
    with pytest.raises(AuditError, match="audit log can't be written"):
        list(events)
    assert time.monotonic() - started < 50
