"""`belljar mcp`, driven by the official client, by the real Claude Code command, and by the inspector's."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import anyio
import claude_agent_sdk
import jsonschema
import pytest
from mcp import ClientSession
from mcp_clients import BELLJAR, stdio, text_of
from scripted_model import PNG, Model, Records, say, use

from belljar.tools.definitions import TOOLS

pytestmark = pytest.mark.backend("bubblewrap")

ROOT = Path(__file__).resolve().parents[2]
INSPECTOR = ROOT / ".cache/inspector/node_modules/.bin/mcp-inspector"


class TestStdio:
    def test_the_tools_answer_with_what_their_schemas_say(self) -> None:
        async def main() -> None:
            async with stdio() as session:
                listed = {tool.name: tool for tool in (await session.list_tools()).tools}
                assert list(listed) == [tool.name for tool in TOOLS]
                calls = [
                    ("run", {"code": "print(6 * 7)"}),
                    ("exec", {"command": ["false"]}),
                    ("run", {"code": "import socket; socket.create_connection(('192.0.2.1', 9))"}),
                    ("write_file", {"path": "a.txt", "content": "text"}),
                    ("list_files", {}),
                    ("read_file", {"path": "a.txt"}),
                    ("run", {"code": "open('b', 'wb').write(bytes(9)); 1", "session": "main"}),
                    ("read_file", {"path": "b"}),
                    ("reset", {}),
                ]
                for name, given in calls:
                    result = await session.call_tool(name, given)
                    assert result.structured_content is not None, text_of(result)
                    jsonschema.validate(result.structured_content, listed[name].output_schema)
                wrong = await session.call_tool("run", {"code": 1})
                assert wrong.is_error

        anyio.run(main)

    def test_files_that_a_run_made_are_resources(self) -> None:
        async def main() -> None:
            async with stdio() as session:
                result = await session.call_tool("run", {"code": "open('é.txt', 'w').write('from bob@corp.test')"})
                (link,) = [block for block in result.content if block.type == "resource_link"]
                (listed,) = (await session.list_resources()).resources
                assert link.uri == listed.uri
                (read,) = (await session.read_resource(link.uri)).contents
                assert read.text == "from <EMAIL_1>"
                with pytest.raises(Exception, match="not kept"):
                    await session.read_resource("belljar://artifact/x/../../etc/passwd")

        anyio.run(main)

    def test_a_long_run_tells_its_progress(self) -> None:
        told: list[tuple[float, float | None, str | None]] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            told.append((progress, total, message))

        async def main() -> None:
            async with stdio() as session:
                code = "import time; print('on the way', flush=True); time.sleep(2.2)"
                await session.call_tool("run", {"code": code}, progress_callback=note)

        anyio.run(main)

        assert len(told) >= 2
        assert told[0][0] < told[1][0]
        assert told[0][1] == 60.0
        assert "printed 11 bytes" in str(told[-1][2])

    def test_a_cancelled_request_kills_its_jar(self, records: Records) -> None:
        async def main() -> None:
            async with stdio() as session, anyio.create_task_group() as tasks:
                tasks.start_soon(session.call_tool, "run", {"code": "import time; time.sleep(600)"})
                while not records("started"):
                    await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    while not records("finished"):
                        await anyio.sleep(0.02)

        anyio.run(main)

        assert records("finished")[0]["outcome"] == "killed"

    def test_options_are_those_of_a_run(self, tmp_path: Path) -> None:
        (tmp_path / "here.txt").write_text("seen")

        async def main() -> None:
            words = ["--workspace", str(tmp_path), "--stateful", "--set", "proc.timeout_ms=1s"]
            async with stdio(*words) as session:
                assert text_of(await session.call_tool("run", {"code": "x = open('here.txt').read()"})) == "(no output)"
                assert text_of(await session.call_tool("run", {"code": "x"})) == "'seen'"
                slow = await session.call_tool("run", {"code": "while True: pass"})
                assert slow.structured_content is not None
                assert slow.structured_content["outcome"] == "timeout"

        anyio.run(main)

    def test_calls_at_once_are_each_in_the_log(self, records: Records) -> None:
        results: list[str] = []

        async def one(session: ClientSession, number: int) -> None:
            results.append(text_of(await session.call_tool("run", {"code": f"print({number})"})))

        async def main() -> None:
            async with stdio() as session:
                async with anyio.create_task_group() as tasks:
                    for number in range(8):
                        tasks.start_soon(one, session, number)
                await session.call_tool("nothing", {})

        anyio.run(main)

        assert sorted(results) == [str(number) for number in range(8)]
        assert [(record["client"], record["tool"], record["allowed"]) for record in records("tool")] == [
            *[("mcp", "run", True)] * 8,
            ("mcp", "nothing", False),
        ]

    def test_where_no_jar_can_be_made_each_call_says_so(self) -> None:
        async def main() -> None:
            words = ["--set", "backend=landlock", "--set", "fallback=[]"]
            async with stdio(*words) as session:
                result = await session.call_tool("run", {"code": "1"})
                assert result.is_error
                assert "landlock" in text_of(result)

        anyio.run(main)

    def test_a_policy_that_is_wrong_is_told_without_a_traceback(self) -> None:
        told = subprocess.run([*BELLJAR, "mcp", "--policy", "aicod"], capture_output=True, text=True, check=False)

        assert told.returncode == 2 or told.returncode == 125
        assert "did you mean 'aicode'" in told.stderr
        assert "Traceback" not in told.stderr

    def test_without_the_sdk_the_error_says_what_to_install(self) -> None:
        code = "import sys; sys.modules['mcp'] = None; from belljar.cli.main import main; sys.exit(main(['mcp']))"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

        assert "pip install 'belljar[mcp]'" in told.stderr
        assert "Traceback" not in told.stderr


class TestConfig:
    @pytest.mark.parametrize("client", ["claude-code", "claude-desktop", "cursor", "vscode", "codex"])
    def test_what_is_pasted_starts_the_server(self, client: str) -> None:
        told = subprocess.run(
            [*BELLJAR, "mcp", "config", "--client", client, "--policy", "strict", "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        text = json.loads(told.stdout)["text"]
        parsed = tomllib.loads(text) if client == "codex" else json.loads(text)
        ((_key, servers),) = parsed.items()
        server = servers["belljar"]
        assert server["args"] == ["mcp", "--policy", "strict"]
        assert os.path.basename(server["command"]) == "belljar"
        assert os.path.isabs(server["command"])
        assert os.access(server["command"], os.X_OK)

    def test_the_policy_that_is_in_force_here_is_written(self, tmp_path: Path) -> None:
        """A client starts the server without the variable that names it."""
        (tmp_path / "mine.yaml").write_text("version: 1\nextends: strict\n")
        for policy, written in (("strict", "strict"), ("mine.yaml", str(tmp_path / "mine.yaml"))):
            told = subprocess.run(
                [*BELLJAR, "mcp", "config", "--client", "cursor"],
                cwd=tmp_path,
                env={**os.environ, "BELLJAR_POLICY": policy},
                capture_output=True,
                text=True,
                check=True,
            )
            assert json.loads(told.stdout)["mcpServers"]["belljar"]["args"] == ["mcp", "--policy", written]

    WRONG = [["--policy", "nosuchpolicy"], ["--workspace", "/does/not/exist"], ["--set", "proc.pids=many"]]

    @pytest.mark.parametrize("words", WRONG, ids=str)
    def test_what_would_not_start_is_not_printed(self, words: list[str]) -> None:
        """A client that starts it shows nobody why it ended."""
        told = subprocess.run(
            [*BELLJAR, "mcp", "config", "--client", "cursor", *words], capture_output=True, text=True, check=False
        )

        assert told.returncode != 0
        assert told.stdout == ""
        assert "Traceback" not in told.stderr

    def test_an_unknown_client_is_told_which_there_are(self) -> None:
        told = subprocess.run(
            [*BELLJAR, "mcp", "config", "--client", "emacs"], capture_output=True, text=True, check=False
        )

        assert told.returncode == 2
        assert "claude-desktop" in told.stderr


SERVER = """
import json, socket, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {}
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "someone", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        try:
            found = open(SECRET).read()
        except OSError:
            found = "no file"
        try:
            socket.create_connection(("127.0.0.1", PORT), 5).close()
            found += ", a network"
        except OSError:
            found += ", no network"
        result = {"content": [{"type": "text", "text": found}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


class TestWrap:
    @pytest.mark.parametrize("wrapped", [True, False])
    def test_someone_elses_server_answers_and_sees_nothing_of_the_host(self, tmp_path: Path, wrapped: bool) -> None:
        """Not wrapped, it sees both: else what it did not see would say nothing."""
        work = tmp_path / "work"
        work.mkdir()
        (tmp_path / "secret").write_text("a file of the host's")
        wrapper = [*BELLJAR, "mcp", "wrap", "--workspace", str(work), "--", "python3", "server.py"]

        async def main() -> str:
            async with stdio(program=wrapper if wrapped else [sys.executable, str(work / "server.py")]) as session:
                assert [tool.name for tool in (await session.list_tools()).tools] == ["look"]
                return text_of(await session.call_tool("look", {}))

        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
            secret = repr(str(tmp_path / "secret"))
            (work / "server.py").write_text(SERVER.replace("SECRET", secret).replace("PORT", port))
            found = anyio.run(main)

        assert found == ("no file, no network" if wrapped else "a file of the host's, a network")

    @pytest.mark.parametrize("program", ["python", "some-server"])
    def test_a_program_of_a_virtual_environment_has_its_packages(self, tmp_path: Path, program: str) -> None:
        """The system's own Python does not have them."""
        venv = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        (packages,) = venv.glob("lib/python*/site-packages")
        (packages / "only_here.py").write_text("print('imported')\n")
        script = venv / "bin/some-server"
        script.write_text(f"#!{venv}/bin/python\nimport only_here\n")
        script.chmod(0o755)
        words = [f"{venv}/bin/{program}", *(["-c", "import only_here"] if program == "python" else [])]
        told = subprocess.run([*BELLJAR, "mcp", "wrap", "--", *words], capture_output=True, text=True, check=False)
        assert (told.returncode, told.stdout) == (0, "imported\n"), told.stderr
        control = [*BELLJAR, "mcp", "wrap", "--", "/usr/bin/python3", "-c", "import only_here"]
        assert subprocess.run(control, capture_output=True, check=False).returncode == 1

    def test_it_reaches_the_hosts_that_are_allowed(self) -> None:
        """And no other. One that downloads its server is told which host that takes."""
        ask = "curl -sS -m 5 http://a.example/ http://b.example/ 2>&1; true"
        told = subprocess.run(
            [*BELLJAR, "mcp", "wrap", "--json", "--allow", "a.example", "--", "sh", "-c", ask],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        denials = json.loads(told.stderr)["denials"]
        refused = " ".join(one["target"] for one in denials if one["code"] == "name-not-listed")
        assert "b.example" in refused
        assert "a.example" not in refused
        npx = subprocess.run([*BELLJAR, "mcp", "wrap", "--", "npx", "--version"], capture_output=True, check=False)
        assert b"npx downloads its server: belljar mcp wrap --allow registry.npmjs.org -- " in npx.stderr

    def test_its_end_and_its_exit_code_are_passed_on(self) -> None:
        told = subprocess.run(
            [*BELLJAR, "mcp", "wrap", "--", "sh", "-c", "cat; exit 3"], input=b"{}\n", capture_output=True, check=False
        )

        assert told.stdout == b"{}\n"
        assert told.returncode == 3

    def test_its_complaints_do_nothing_to_a_terminal(self) -> None:
        """The client gets its words as they are, a person at a terminal sees what was in them."""
        ours, theirs = pty.openpty()
        words = [*BELLJAR, "mcp", "wrap", "--", "sh", "-c", r"printf '\033]52;c;aGk=\007' | tee /dev/stderr"]
        try:
            told = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, check=True)
            seen = os.read(ours, 4096)
        finally:
            os.close(ours)
            os.close(theirs)

        assert told.stdout == b"\x1b]52;c;aGk=\x07"
        assert rb"\x1b]52;c;aGk=\x07" in seen
        assert b"\x1b]" not in seen

    def test_a_program_that_is_not_there_is_told_without_options_that_are_not_there_either(self) -> None:
        told = subprocess.run([*BELLJAR, "mcp", "wrap", "--", "nosuch"], capture_output=True, text=True, check=False)

        assert told.returncode == 127
        assert "nosuch: not found" in told.stderr
        assert "--explain-denials" not in told.stderr

    def test_a_client_that_is_done_with_it_ends_it_and_that_is_recorded(self, records: Records) -> None:
        """By SIGTERM, where the end of its input was not enough."""
        words = ["mcp", "wrap", "--", "sh", "-c", "echo up; exec sleep 600"]
        with subprocess.Popen([*BELLJAR, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            process.terminate()
            assert process.wait(30) == 143

        assert [record["outcome"] for record in records("finished")] == ["killed"]

    def test_without_a_command_it_says_how(self) -> None:
        told = subprocess.run([*BELLJAR, "mcp", "wrap"], capture_output=True, text=True, check=False)

        assert told.returncode == 2
        assert "belljar mcp wrap -- " in told.stderr


class TestOtherClients:
    def test_the_real_claude_code(self, model: Model, tmp_path: Path, records: Records) -> None:
        """The command with `belljar mcp` in its configuration, as a user has it."""
        claude = Path(claude_agent_sdk.__file__).parent / "_bundled/claude"
        command, *words = BELLJAR
        servers = {"belljar": {"type": "stdio", "command": command, "args": [*words, "mcp"], "env": dict(os.environ)}}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        name = "mcp__belljar__run"
        model.scripts["cli"] = [[use(name, code="print(6 * 7)")], [use(name, code=PNG)], [say("It is 42.")]]

        told = subprocess.run(
            [
                str(claude),
                "-p",
                "script:cli please",
                "--mcp-config",
                str(tmp_path / "mcp.json"),
                "--strict-mcp-config",
                "--tools",
                "",
                "--allowedTools",
                name,
                "--setting-sources=",
            ],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            check=False,
        )

        assert told.stdout.strip() == "It is 42.", told.stderr
        assert model.text_of("cli", 0) == "42"
        assert "image" in [block["type"] for block in model.results["cli"][1]["content"]]
        assert all(record["tool_use"].startswith("toolu_") for record in records("tool"))

    @pytest.mark.skipif(not INSPECTOR.exists(), reason="the inspector is not installed: make inspector")
    def test_the_inspectors_command_line(self) -> None:
        node = shutil.which("node")
        assert node is not None

        def inspect(*words: str) -> Any:
            done = subprocess.run(
                [str(INSPECTOR), "--cli", *BELLJAR, "mcp", *words], capture_output=True, text=True, check=True
            )
            return json.loads(done.stdout)

        listed = inspect("--method", "tools/list")
        assert {tool["name"] for tool in listed["tools"]} == {tool.name for tool in TOOLS}
        called = inspect("--method", "tools/call", "--tool-name", "run", "--tool-arg", "code=print(6*7)")
        assert called["structuredContent"]["stdout"] == "42\n"
