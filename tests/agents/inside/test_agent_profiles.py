"""Which model an agent may ask, with whose key, and how its program gets into a jar. Nothing is started here."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from belljar.coding_agents.inside import Wanted, prepare
from belljar.coding_agents.login import use_login
from belljar.coding_agents.profile import LOCAL_MODEL, moved, profile_for, profile_names, read_profile, with_keys_of
from belljar.coding_agents.program import brought_in
from belljar.coding_agents.project import Project
from belljar.egress.decide.rules import compile_rules
from belljar.egress.decide.trial import trial
from belljar.errors import PolicyError, PrerequisiteError, UsageError

RULE = {"host": "api.anthropic.com", "ports": [443], "paths": ["/v1/messages"], "credential": "anthropic-token"}
PROJECT = Project("/nonexistent", "/workspace", "/workspace")

PLACES = [
    # the variable, host, port, path, addresses, the variable in the jar
    ("https://gw.example.com", "gw.example.com", 443, "/v1/messages", None, "https://gw.example.com:443"),
    ("https://gw.example.com:8443/a/", "gw.example.com", 8443, "/a/v1/messages", None, "https://gw.example.com:8443/a"),
    ("http://10.1.2.3:80", "10.1.2.3", 80, "/v1/messages", None, "http://10.1.2.3:80"),
    ("http://localhost:4000", LOCAL_MODEL, 4000, "/v1/messages", "127.0.0.1:4000", f"http://{LOCAL_MODEL}:4000"),
    ("http://[::1]:4000", LOCAL_MODEL, 4000, "/v1/messages", "[::1]:4000", f"http://{LOCAL_MODEL}:4000"),
]


@pytest.mark.parametrize(("url", "host", "port", "path", "address", "inside"), PLACES)
def test_another_endpoint(url: str, host: str, port: int, path: str, address: str | None, inside: str) -> None:
    """The rule goes with it, and nothing else is allowed there."""
    place = moved(RULE, {"ANTHROPIC_BASE_URL": url})
    assert (place.rule["host"], place.rule["ports"], place.rule["paths"]) == (host, [port], [path])
    assert place.rule.get("addresses") == ([address] if address else None)
    assert place.variables == {"ANTHROPIC_BASE_URL": inside}


@pytest.mark.parametrize(
    "url", ["gw.example.com", "ftp://gw.example.com", "https://user:key@gw.example.com", "http://["]
)
def test_what_is_no_endpoint(url: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(UsageError, match="ANTHROPIC_BASE_URL"):
        moved(RULE, {"ANTHROPIC_BASE_URL": url})


def test_the_version_in_the_url_of_openai() -> None:
    """Their variable holds it, ours would say it twice."""
    place = moved(
        {**RULE, "credential": "openai", "paths": ["/v1/responses"]}, {"OPENAI_BASE_URL": "https://x.test/v1"}
    )
    assert place.rule["paths"] == ["/v1/responses"]


def test_a_gateway_with_a_private_address() -> None:
    """Only a profile can name it, and what it names stays."""
    place = moved({**RULE, "addresses": ["10.1.2.3"]}, {"ANTHROPIC_BASE_URL": "https://gw.example.com"})
    assert (place.rule["host"], place.rule["addresses"]) == ("gw.example.com", ["10.1.2.3"])


KEYS = [
    # profile, variables that are set, credentials that are used
    ("claude", ("ANTHROPIC_API_KEY",), {"anthropic"}),
    ("claude", ("ANTHROPIC_AUTH_TOKEN",), {"anthropic-token"}),
    ("claude", ("CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_API_KEY"), {"anthropic"}),
    ("aider", ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), {"anthropic", "openai"}),
    ("aider", ("OPENAI_API_KEY",), {"openai"}),
    ("codex", ("OPENAI_API_KEY",), {"openai"}),
    ("gemini", ("GEMINI_API_KEY",), {"gemini"}),
    ("none", (), set()),
]


@pytest.mark.parametrize(("name", "variables", "used"), KEYS)
def test_the_keys_that_are_there(name: str, variables: tuple[str, ...], used: set[str]) -> None:
    """One for each host."""
    found = with_keys_of(dict.fromkeys(variables, "key"), name, read_profile(name))
    assert set(found["credentials"]) == used
    rules = found["net"].get("allowlist", [])
    assert [rule["credential"] for rule in rules] == list(found["credentials"])


@pytest.mark.parametrize("name", [name for name in profile_names() if name != "none"])
def test_no_key_at_all(name: str) -> None:
    """Without one an agent could only fail, later."""
    with pytest.raises(PrerequisiteError, match="no key for"):
        with_keys_of({}, name, read_profile(name))


def test_profiles_by_the_name_of_the_program() -> None:
    """Or none."""
    assert profile_for("/usr/local/bin/codex") == "codex"
    assert profile_for("my-agent") == "none"
    with pytest.raises(PolicyError, match="no profile"):
        read_profile("my-agent")


ASKED = [
    # method, url, allowed
    ("POST", "https://api.anthropic.com/v1/messages", True),
    ("POST", "https://api.anthropic.com/v1/messages/count_tokens", True),
    ("GET", "https://api.anthropic.com/v1/messages", False),
    ("POST", "https://api.anthropic.com/v1/messages/batches", False),
    ("POST", "https://api.anthropic.com/v1/files", False),
    ("GET", "https://api.anthropic.com/v1/files/file_1/content", False),
    ("POST", "https://api.anthropic.com/v1/organizations/api_keys", False),
    ("POST", "https://other.example.com/v1/messages", False),
    ("GET", "https://pypi.org/simple/", True),
]


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Something to call claude."""
    path = tmp_path / "bin/claude"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def wanted(tmp_path: Path, program: str, **options: Any) -> Wanted:
    """A project in a directory of its own."""
    (tmp_path / "project").mkdir(exist_ok=True)
    environ = {"ANTHROPIC_API_KEY": "key", "PATH": f"{os.path.dirname(program)}:{os.environ['PATH']}"}
    project = str(tmp_path / "project")
    return Wanted(("claude", "-p", "hi"), project=project, profile="claude", environ=environ, **options)


@pytest.mark.parametrize(("method", "url", "allowed"), ASKED)
def test_what_the_profile_of_claude_lets_pass(
    tmp_path: Path, program: str, method: str, url: str, allowed: bool
) -> None:
    """Questions, and the hosts that the caller named."""
    agent = prepare(wanted(tmp_path, program, allow=("pypi.org",)))
    assert trial(compile_rules(agent.policy), url, method=method).verdict.allowed is allowed


def test_a_policy_beneath(tmp_path: Path, program: str) -> None:
    """Its hosts, mounts and limits stay, and the profile's are over it."""
    (tmp_path / "data").mkdir()
    policy = tmp_path / "mine.yaml"
    policy.write_text(
        "version: 1\nproc: {mem_mb: 3g}\nnet: {enabled: true, allowlist: [pypi.org]}\n"
        "fs: {mounts: [{path: /data, source: ./data}]}\n"
    )
    agent = prepare(wanted(tmp_path, program, policy=str(policy), overrides=("proc.pids=99",)))
    assert [rule.host for rule in agent.policy.net.allowlist] == ["api.anthropic.com", "pypi.org"]
    assert "/data" in [mount.path for mount in agent.policy.fs.mounts]
    assert (agent.policy.proc.mem_bytes, agent.policy.proc.pids) == (3 << 30, 99)
    assert agent.argv == ("/opt/agent/bin/claude", "--dangerously-skip-permissions", "-p", "hi")


def script(path: Path, first: str) -> str:
    """A program of one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_programs_and_what_they_need(tmp_path: Path) -> None:
    """Each is shown with no more of the host than it needs."""
    node = script(tmp_path / "node/bin/node", "")
    environ = {"PATH": os.path.dirname(node)}
    package = script(tmp_path / "lib/node_modules/@x/gemini/dist/index.js", "#!/usr/bin/env node")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gemini").symlink_to(package)
    found = brought_in(str(tmp_path / "bin/gemini"), environ, PROJECT)
    assert found.argv == ("/opt/agent/node/node", "/opt/agent/node_modules/@x/gemini/dist/index.js")
    assert [mount["source"] for mount in found.mounts] == [os.path.dirname(node), str(tmp_path / "lib/node_modules")]
    assert not any(mount["rw"] for mount in found.mounts)

    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    aider = script(tmp_path / "venv/bin/aider", f"#!{tmp_path}/venv/bin/python")
    (tmp_path / "bin/aider").symlink_to(aider)
    found = brought_in(str(tmp_path / "bin/aider"), environ, PROJECT)
    assert (found.argv, found.venv) == ((aider,), str(tmp_path / "venv"))

    assert brought_in("/usr/bin/env", environ, PROJECT).argv == ("/usr/bin/env",)
    with pytest.raises(PrerequisiteError, match="a script for dyalog"):
        brought_in(script(tmp_path / "apl", "#!/usr/bin/env dyalog"), environ, PROJECT)


@pytest.mark.parametrize("first", ["#!/bin/sh", "#!/usr/bin/env node"])
def test_a_program_in_the_home_itself_shows_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Its directory would come along, and with it all that is the user's."""
    node = script(tmp_path / "node/bin/node", "")
    environ = {"PATH": os.path.dirname(node)}
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert brought_in(script(tmp_path / "home/tools/mine", first), environ, PROJECT).mounts
    for place in ("home/mine", "mine"):
        with pytest.raises(PrerequisiteError, match="all that is yours"):
            brought_in(script(tmp_path / place, first), environ, PROJECT)


LOGINS = [
    # what the file says, the token that is used
    ('{"claudeAiOauth": {"accessToken": "tok", "expiresAt": 99999999999999}}', "tok"),
    ('{"claudeAiOauth": {"accessToken": "tok"}}', "tok"),
    ('{"claudeAiOauth": 7}', None),
    ("not json", None),
]


@pytest.mark.parametrize(("text", "token"), LOGINS)
def test_the_login_of_claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, token: str | None) -> None:
    """Its token is used where no variable holds a key; one that has expired is told."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "")
    (tmp_path / ".credentials.json").write_text(text)
    use_login()
    assert os.environ.get("CLAUDE_CODE_OAUTH_TOKEN", "") == (token or "")
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "")
    (tmp_path / ".credentials.json").write_text('{"claudeAiOauth": {"accessToken": "tok", "expiresAt": 1000}}')
    with pytest.raises(PrerequisiteError, match="expired"):
        use_login()
