"""The key of a model stays outside of the jar, also where the endpoint itself tells it."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from agent_runs import SECRET, Home
from model_endpoint import ModelEndpoint, bash, say

from belljar.coding_agents.home_store import place
from belljar.coding_agents.profile import profile_names, read_profile


class _Echo(http.server.BaseHTTPRequestHandler):
    """A gateway that tells in its complaint which key it got, as some do."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        key = str(self.headers["x-api-key"])
        body = f"no such key: {key}".encode()
        self.send_response(401)
        self.send_header("x-complaint", key)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """Not now."""


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_a_key_that_the_endpoint_sends_back_stays_outside(home: Home) -> None:
    """In a body or a header. And a host that refused it everything was not reached."""
    script = """
        curl -si -H "x-api-key: $ANTHROPIC_API_KEY" -d x $ANTHROPIC_BASE_URL/v1/messages; curl -s http://example.org/
    """
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            extra = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": url}
            ran = home.agent(script, "--profile", "aider", "--json", **extra)
        finally:
            server.shutdown()
            thread.join()
    told = ran.json["stdout"]
    assert f"no such key: {'*' * len(SECRET)}" in told
    assert "x-complaint" in told.lower()
    assert SECRET not in ran.out
    assert [one["host"] for one in ran.json["reached"]] == ["model.belljar.internal"]


@pytest.mark.parametrize("name", profile_names())
def test_every_key_of_a_profile_is_searched_for_in_answers(name: str) -> None:
    """One that is forgotten is one that an agent can ask for."""
    assert all(spec["reflects"] is True for spec in read_profile(name).get("credentials", {}).values())


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize("words", [("claude",), ("agent", "--", "claude")], ids=" ".join)
def test_the_login_in_home_is_used_and_stays_there(home: Home, words: tuple[str, ...]) -> None:
    """Whichever command starts Claude Code: the jar has a placeholder."""
    program = home.directory / "bin/claude"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "its token is $CLAUDE_CODE_OAUTH_TOKEN"\n')
    program.chmod(0o755)
    login = home.directory / ".claude/.credentials.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": SECRET, "expiresAt": 0}}))

    ran = home.belljar(*words, "-p", "x", PATH=f"{program.parent}:{os.environ['PATH']}")

    assert ran.code == 0, ran.err
    assert "its token is sk-ant-" in ran.out
    assert SECRET not in ran.out


REFRESH = "sk-ant-ort01-refreshes-the-login-4711"


def _log_in(home: Home, *, seconds: float) -> None:
    """Have a login that ends so many seconds from now, as Claude Code keeps it."""
    login = home.directory / ".claude/.credentials.json"
    login.parent.mkdir(exist_ok=True)
    expires = int((time.time() + seconds) * 1000)
    token = {"accessToken": SECRET, "refreshToken": REFRESH, "expiresAt": expires, "scopes": ["user:inference"]}
    login.write_text(json.dumps({"claudeAiOauth": token}))


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.usefixtures("claude")
def test_claude_code_asks_its_model_with_the_login(home: Home) -> None:
    """The proxy adds the token. Neither it nor what renews it is in the jar, or in what is kept of it."""
    _log_in(home, seconds=3600)
    look = (
        "cat /proc/*/environ | tr '\\0' '\\n' | grep OAUTH | sort -u; "
        "grep -rls 's3cret[-]of[-]the\\|refreshes[-]the' ~ /tmp /workspace; ls -A ~/.claude | grep cred"
    )
    with ModelEndpoint([bash(look), say("Done.")]) as model:
        ran = home.belljar("claude", "-p", "look", ANTHROPIC_BASE_URL=model.url)
        (told,) = model.results()
    assert (ran.code, ran.out) == (0, "Done.\n"), ran.err
    assert {one.headers["authorization"] for one in model.questions} == {f"Bearer {SECRET}"}
    assert told.splitlines()[-1] == "CLAUDE_CODE_OAUTH_TOKEN=sk-ant-oat01-placeholder-of-belljar"
    kept = Path(place(os.path.realpath(home.project), "claude"))
    content = b"".join(path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert b"Done." in content
    assert SECRET.encode() not in content
    assert REFRESH.encode() not in content


@pytest.mark.host
@pytest.mark.parametrize("seconds", [-3600, 5])
def test_a_login_that_has_expired_says_what_to_type(home: Home, seconds: float) -> None:
    """Before anything is started."""
    _log_in(home, seconds=seconds)
    ran = home.belljar("claude", "-p", "x")
    assert ran.code == 125
    assert f"the login of Claude Code in {home.directory}/.claude has expired (" in ran.err
    assert "hint: claude -p hello " in ran.err
    assert home.belljar("claude", "--reset").code == 0, "to forget needs no login"
    assert SECRET not in ran.err


@pytest.mark.host
def test_without_a_claude_it_says_what_to_install(home: Home, tmp_path: Path) -> None:
    """Neither on PATH nor in the SDK's wheel."""
    code = "import sys; sys.modules['claude_agent_sdk'] = None; from belljar.cli.main import main\n"
    code += "sys.exit(main(['claude', '-p', 'x']))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home.project,
        env=home.environment(ANTHROPIC_API_KEY=SECRET, PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 125
    assert "claude is not installed on this host" in ran.stderr
    assert "hint: npm install -g @anthropic-ai/claude-code, or pip install 'belljar[claude]'" in ran.stderr
    assert "Traceback" not in ran.stderr
