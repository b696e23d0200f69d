"""`belljar allow`: one command lets agents reach a host, and the summary of a run says which command."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agent_runs import SECRET, Home, make_home
from scripted_claude import Calls

from belljar.coding_agents.inside import Wanted, prepare
from belljar.coding_agents.summary import to_allow
from belljar.errors import PolicyError, UsageError
from belljar.policy.companions import COMPANIONS, READING
from belljar.policy.models import HostRule
from belljar.sandbox.record.result import RunResult
from belljar.tools.allowed_hosts import change_allowed, read_allowed, rules, rules_for

ASK = "curl -sS -m 5 https://pypi.org/simple/ https://files.pythonhosted.org/x 2>&1; true"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allowed in every project is not for other tests."""
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path / "state"))


def _codes(calls: Calls, script: str, *options: str, cwd: Path | None = None) -> set[str]:
    return {denial["code"] for denial in calls(script, "--json", *options, cwd=cwd).json["denials"]}


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_the_line_that_a_denial_prints_allows_it(calls: Calls, tmp_path: Path) -> None:
    """Once, and typed as it is: from the next call on, in this project alone, until it is taken back."""
    ran = calls(ASK)
    (line,) = [line for line in ran.err.splitlines() if "belljar allow" in line]
    assert line == "belljar: to allow   belljar allow pypi.org --for-project"
    words = shlex.split(line.removeprefix("belljar: to allow "))
    told = calls.home.belljar(*words[1:])
    project = os.path.realpath(calls.home.project)
    assert told.code == 0, told.err
    assert told.out.splitlines() == [
        f"agents in {project}:",
        "+pypi.org",
        "+files.pythonhosted.org  (pip and uv download packages from it; GET and HEAD only)",
    ]
    assert "name-not-listed" not in _codes(calls, ASK)
    other = make_home(tmp_path / "other").project
    assert "name-not-listed" in _codes(calls, ASK, cwd=other)
    recorded = calls.home.belljar("audit", "query", "event=allow", "--json").json
    assert (recorded["hosts"], recorded["project"]) == (["pypi.org"], project)
    assert calls.home.belljar("allow", "--remove", "pypi.org", "--for-project").code == 0
    assert "name-not-listed" in _codes(calls, ASK)


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_the_line_names_the_project_where_that_is_another(calls: Calls, tmp_path: Path) -> None:
    """A name with a space in it, too."""
    other = tmp_path / "the other"
    other.mkdir()
    ran = calls("curl -sS http://example.org 2>&1; true", "--project", str(other))
    line = next(line for line in ran.err.splitlines() if "belljar allow" in line)
    words = shlex.split(line.removeprefix("belljar: to allow "))
    assert words == ["belljar", "allow", "example.org", "--project", str(other)]
    assert calls.home.belljar(*words[1:]).code == 0
    assert read_allowed(os.path.realpath(other)) == ["example.org"]
    assert "name-not-listed" not in _codes(calls, "curl -sS http://example.org 2>&1; true", "--project", str(other))


@pytest.mark.host
def test_what_the_command_says(home: Home) -> None:
    """A host for every project, both lists, and what can't be allowed."""
    project = os.path.realpath(home.project)
    added = home.belljar("allow", "Registry.NPMjs.org", "--json")
    assert added.json == {"project": None, "before": [], "after": ["registry.npmjs.org"], "companions": {}}
    again = home.belljar("allow", "registry.npmjs.org")
    assert again.out == "agents in every project: that was so before\n"
    assert home.belljar("allow", "crates.io", "example.org", "--project", ".").code == 0
    listed = home.belljar("allow", "--list", "--json").json
    both = {"every_project": ["registry.npmjs.org"], "project": project, "for_project": ["crates.io", "example.org"]}
    assert listed == both
    for words, told in (
        ((), "which host?"),
        (("*",), "every host is too many"),
        (("https://pypi.org",), "wanted a host without its scheme"),
        (("--remove", "example.org"), "example.org is not allowed in every project"),
        (("--list", "example.org"), "--list stands alone"),
        (("localhost",), "net.host_ports"),
        (("127.0.0.1",), "net.host_ports"),
        (("::1",), "net.host_ports"),
        (("0.0.0.0",), "net.host_ports"),
        (("169.254.169.254",), "hand out the credentials"),
    ):
        refused = home.belljar("allow", *words)
        assert (refused.code, told in refused.err, "hint: " in refused.err) == (2, True, True), refused.err
    assert home.belljar("allow", "--list", "--json").json == both
    assert (
        home.belljar("allow", "--remove", "registry.npmjs.org").out == "agents in every project:\n-registry.npmjs.org\n"
    )


def test_an_address_of_this_host_is_none_to_allow() -> None:
    """For one run neither; one that was allowed before can be taken back, and others of the network stay."""
    for host in ("127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "169.254.169.254", "fe80::1"):
        with pytest.raises(UsageError, match="address"):
            rules_for([host])
    assert rules_for(["10.0.0.5", "93.184.216.34"]) == ["10.0.0.5", "93.184.216.34"]
    path = Path(os.environ["BELLJAR_STATE_DIR"], "allowed")
    path.mkdir(parents=True)
    (path / "every-project.json").write_text('{"hosts": ["127.0.0.1"]}')
    assert change_allowed(None, ["127.0.0.1"], remove=True)[1] == []


@pytest.mark.host
def test_a_host_brings_those_that_it_needs_for_reading(home: Home, claude: str) -> None:
    """With --allow as with `belljar allow`; a host that is named itself is as it was named."""
    environ = {"PATH": os.path.dirname(claude), "ANTHROPIC_API_KEY": SECRET, "HOME": str(home.directory)}

    def allowed(*hosts: str) -> dict[str, HostRule]:
        wanted = Wanted(("claude",), project=str(home.project), profile="claude", allow=hosts, environ=environ)
        return {rule.host: rule for rule in prepare(wanted).policy.net.allowlist}

    found = allowed("pypi.org")
    assert set(found) == {"api.anthropic.com", "pypi.org", "files.pythonhosted.org"}
    assert found["files.pythonhosted.org"] == HostRule("files.pythonhosted.org", ports=(443,), methods=READING)
    assert allowed("pypi.org", "files.pythonhosted.org")["files.pythonhosted.org"].methods == ()
    change_allowed(os.path.realpath(home.project), ["proxy.golang.org"], remove=False, managed=None)
    assert set(allowed()) == {"api.anthropic.com", "proxy.golang.org", "sum.golang.org"}


def test_no_host_that_takes_uploads_comes_along() -> None:
    """By the names under which these services take them."""
    hosts = {one.host for many in COMPANIONS.values() for one in many}
    assert not {host for host in hosts if host.startswith(("upload", "api.", "push", "gist")) or "upload" in host}
    assert all(one.why for many in COMPANIONS.values() for one in many)


def test_a_managed_policy_is_a_ceiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over what is allowed, what was allowed before, and what comes along."""
    monkeypatch.setattr("belljar.policy.load.resolve.MANAGED_OWNER", os.geteuid())
    managed = tmp_path / "policy.yaml"
    managed.write_text("version: 1\nnet:\n  enabled: true\n  allowlist: [pypi.org]\n")
    change_allowed(None, ["pypi.org"], remove=False, managed=str(managed))
    assert rules("/project", [], managed=str(managed)) == ["pypi.org"]
    with pytest.raises(PolicyError, match=r"example\.org: the managed policy .* does not allow it"):
        change_allowed("/project", ["example.org"], remove=False, managed=str(managed))
    assert read_allowed("/project") == []
    change_allowed("/project", ["example.org"], remove=False, managed=None)
    with pytest.raises(PolicyError) as raised:
        rules("/project", [], managed=str(managed))
    assert "belljar allow --remove example.org --for-project" in str(raised.value.hint)
    change_allowed("/project", ["example.org"], remove=True, managed=str(managed))
    assert rules("/project", [], managed=str(managed)) == ["pypi.org"]


def test_a_name_that_a_shell_would_act_on_is_not_in_the_command() -> None:
    """Names come from the agent: it may look up what it wants."""

    def command(*names: str) -> str:
        egress: list[Any] = [SimpleNamespace(host=name, reason="name-not-listed") for name in names]
        return to_allow(cast("RunResult", SimpleNamespace(egress=egress, denials=[])))

    assert command("a.example", "$(id).example", "b;c.example", "-x.example", "*", "x y") == (
        "belljar allow a.example --for-project"
    )
    assert command("`id`") == ""
    assert command("files.pythonhosted.org", "pypi.org") == "belljar allow pypi.org --for-project"
