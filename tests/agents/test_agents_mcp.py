"""`belljar mcp`, driven by the official client, by the real Claude Code command, and by the inspector's."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import anyio
import claude_agent_sdk
import httpx
import jsonschema
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from scripted_model import PNG, Model, Records, say, use

from belljar.tools.definitions import TOOLS
from belljar.tools.mcp_http import Admission, listen

pytestmark = pytest.mark.backend("bubblewrap")

BELLJAR = [sys.executable, "-m", "belljar"]
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-tests-0123456789"
INSPECTOR = ROOT / ".cache/inspector/node_modules/.bin/mcp-inspector"


@asynccontextmanager
async def stdio(*words: str, program: list[str] | None = None) -> AsyncIterator[ClientSession]:
    """The server as a client starts it."""
    command, *arguments = program or [*BELLJAR, "mcp", *words]
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        yield session


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


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


@contextmanager
def http(*words: str, files: int = 0, **variables: str) -> Iterator[dict[str, str]]:
    """The server over HTTP: its address and token. With `files`, it may open so many."""
    limit = ["prlimit", f"--nofile={files}:{files}"] if files else []
    with subprocess.Popen(
        [*limit, *BELLJAR, "mcp", "--http", "0", "--json", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    ) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n") and (line := process.stdout.readline()):
            text += line
        try:
            yield json.loads(text)
        finally:
            process.terminate()
            process.wait()


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def _wait_for(records: Records, event: str) -> None:
    deadline = time.monotonic() + 20
    while not records(event):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _closed(client: socket.socket) -> bool:
    """Whether the other side has closed it; waits for that."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


class Raw:
    """A client of its own that speaks HTTP, with the handshake behind it."""

    def __init__(self, served: dict[str, str]) -> None:
        self._url, self._number = served["url"], 1
        accepted = "application/json, text/event-stream"
        headers = {"accept": accepted, "authorization": f"Bearer {served['token']}"}
        self.client = httpx.Client(headers=headers, trust_env=False, timeout=60)

    def __enter__(self) -> Self:
        begun = self.client.post(self._url, json=INITIALIZE)
        self.client.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        self.client.post(self._url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, *_exception: object) -> None:
        self.client.close()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """What comes back: a result, or an error."""
        self._number += 1
        asked = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        text = self.client.post(self._url, json=asked).text
        (told,) = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        return dict(told.get("result") or told)

    def call(self, tool: str, **given: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=tool, arguments=given)


class TestHttp:
    def test_the_official_client(self) -> None:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def main(served: dict[str, str]) -> None:
            headers = {"authorization": f"Bearer {served['token']}"}
            async with (
                httpx2.AsyncClient(headers=headers) as client,
                streamable_http_client(served["url"], http_client=client) as streams,
                ClientSession(streams[0], streams[1]) as session,
            ):
                await session.initialize()
                result = await session.call_tool("run", {"code": "print(6 * 7)"})
                assert text_of(result) == "42"

        with http() as served:
            anyio.run(main, served)

    def test_who_is_let_in(self) -> None:
        plain = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        with http(BELLJAR_MCP_TOKEN=TOKEN) as served:
            assert served["token"] == ""  # it was given, and is not said again
            port = httpx.URL(served["url"]).port
            good = {**plain, "authorization": f"Bearer {TOKEN}"}
            cases = [
                (200, good),
                (200, {**good, "origin": f"http://127.0.0.1:{port}"}),
                (200, {**good, "host": f"localhost:{port}"}),
                (401, plain),
                (401, {**plain, "authorization": "Bearer wrong"}),
                (401, {**plain, "authorization": f"bearer {TOKEN}x"}),
                (401, {**plain, "authorization": f"Basic {TOKEN}"}),
                (421, {**good, "host": "evil.example.com"}),
                (421, {**good, "host": f"evil.example.com:{port}"}),
                (421, {**good, "host": f"127.0.0.1:{port + 1}"}),
                (403, {**good, "origin": "https://evil.example.com"}),
                (403, {**good, "origin": "null"}),
            ]
            for status, headers in cases:
                found = httpx.post(served["url"], json=INITIALIZE, headers=headers, trust_env=False)
                assert found.status_code == status, headers
            assert httpx.get(served["url"], headers=plain, trust_env=False).status_code == 401

    def test_nothing_of_one_connection_is_anothers(self) -> None:
        """Sessions, files, resources and outputs that were too long to show; with the token alone, by their names."""
        with http() as served, Raw(served) as first, Raw(served) as second:
            made = first.call("run", code="x = 1; open('mine.txt', 'w').write('of the first')", session="s")
            (file,) = made["structuredContent"]["files"]
            long = first.call("run", code="print('of the first ' * 9999)")["structuredContent"]["handles"]["stdout"]
            assert "of the first" in str(first.call("read_file", path=long))

            assert "NameError" in str(second.call("run", code="x", session="s"))
            for path in (file["handle"], long, "mine.txt"):
                answer = second.call("read_file", path=path, session="s")
                assert answer["isError"], path
                assert "of the first" not in str(answer)
            assert "mine.txt" in str(first.ask("resources/list"))
            assert "mine.txt" not in str(second.ask("resources/list"))
            assert "of the first" in str(first.ask("resources/read", uri=file["handle"]))
            assert "of the first" not in str(second.ask("resources/read", uri=file["handle"]))

    def test_the_official_clients_do_not_share_anything(self) -> None:
        """As they come: they try first the protocol in which each request stands alone."""
        import httpx2
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        async def one(served: dict[str, str], *calls: tuple[str, dict[str, Any]]) -> list[Any]:
            headers = {"authorization": f"Bearer {served['token']}"}
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http_client:
                way = streamable_http_client(served["url"], http_client=http_client)
                async with Client(way) as client:
                    told = [await client.call_tool(name, given) for name, given in calls]
                    return [*told, (await client.list_resources()).resources]

        async def main(served: dict[str, str]) -> None:
            write = ("write_file", {"path": "private.txt", "content": "of the first"})
            run = ("run", {"code": "open('made.txt', 'w').write('x')"})
            _written, _ran, listed = await one(served, write, run)
            assert len(listed) == 1
            read, listed = await one(served, ("read_file", {"path": "private.txt"}))
            assert read.is_error
            assert "of the first" not in text_of(read)
            assert listed == []

        with http() as served:
            anyio.run(main, served)

    @pytest.mark.parametrize("version", ["2026-07-28", "2999-01-01", "x"])
    def test_a_request_that_stands_alone_is_refused(self, version: str, records: Records) -> None:
        """It would have no sessions, everybody's, or those of whoever it names; so would one with two versions."""
        envelope = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        call = {"name": "write_file", "arguments": {"path": "a", "content": "b"}, "_meta": envelope}
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": call}
        names = {"mcp-method": "tools/call", "mcp-name": "write_file"}
        with http() as served, Raw(served) as other:
            plain = {**other.client.headers, "mcp-protocol-version": version, **names}
            plain.pop("mcp-session-id")
            mine = {**plain, "mcp-session-id": other.client.headers["mcp-session-id"]}
            chosen = {**plain, "mcp-session-id": "chosen"}
            two = [*chosen.items(), ("mcp-protocol-version", "2025-06-18")]
            two.reverse()
            for headers in (plain, mine, chosen, two):
                found = httpx.post(served["url"], json=body, headers=headers, trust_env=False)
                assert found.status_code == 400, headers
                assert "initialize one" in found.json()["error"]["message"]
        assert not records("tool")

    def test_a_handler_itself_answers_no_request_without_a_connection(self) -> None:
        """Even if the transport let it through: whose sessions these are is not the request's to say."""
        from types import SimpleNamespace

        from mcp.shared.exceptions import MCPError

        from belljar.tools.mcp_server import Calls

        for version, headers in (("2026-07-28", {"mcp-session-id": "chosen"}), ("2025-06-18", {})):
            request = SimpleNamespace(headers=headers)
            context: Any = SimpleNamespace(request=request, protocol_version=version, meta=None, request_id=1)
            with pytest.raises(MCPError, match="initialize one"):
                anyio.run(Calls().admitted, context, "run")

    @pytest.mark.parametrize("how", ["the client says so", "the server is told to stop"])
    def test_what_a_connection_had_ends_with_it(self, how: str, records: Records) -> None:
        """Its jars, and with the server everybody's; in the log, too."""
        with http() as served, Raw(served) as first, Raw(served) as second:
            first.call("run", code="x = 1", session="s")
            second.call("run", code="x = 1", session="s")
            if how == "the client says so":
                assert first.client.delete(served["url"]).status_code == 200
                _wait_for(records, "finished")
                assert second.call("run", code="x", session="s")["structuredContent"]["value"] == "1"
        assert len(records("finished")) == len(records("created")) == 2

    STOPS = [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)]

    def test_slow_clients_lock_nobody_out(self) -> None:
        """More of them than the server may open files: those that came first are closed, and a client gets in."""
        with http(files=200) as served, contextlib.ExitStack() as stack:
            url = httpx.URL(served["url"])
            address = (url.host, url.port or 0)
            slow = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(300)]
            for number, client in enumerate(slow):
                with contextlib.suppress(ConnectionError):
                    client.sendall([b"", b"POST /mcp HTTP/1.1\r\nHost: x\r\nX: "][number % 2])
            with Raw(served) as asking:
                assert asking.call("run", code="print(1)")
                assert _closed(slow[0])
                with contextlib.suppress(ConnectionError):
                    slow[-1].sendall(b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
                assert asking.call("run", code="print(1)")

    def test_who_has_to_go(self) -> None:
        """Of those that have not shown the token, the first; of those that have, none."""
        closed: list[str] = []
        door = Admission(TOKEN, most=4, strangers=2)
        clients = {name: asyncio.Protocol() for name in "abcdef"}
        for name in "ab":
            door.opened(clients[name], functools.partial(closed.append, name))
        door.shown(clients["a"])
        for name in "cd":
            door.opened(clients[name], functools.partial(closed.append, name))
        assert closed == ["b"]
        door.shown(clients["c"])
        door.shown(clients["d"])
        door.opened(clients["e"], functools.partial(closed.append, "e"))
        assert (closed, door.knows(clients["a"])) == (["b"], True)
        door.shown(clients["e"])
        door.opened(clients["f"], functools.partial(closed.append, "f"))
        assert closed == ["b", "f"]
        for client in clients.values():
            door.closed(client)
        assert not door.knows(clients["a"])

    @pytest.mark.parametrize(("number", "code"), STOPS, ids=str)
    @pytest.mark.parametrize("way", ["http", "stdio"])
    def test_a_server_that_is_told_to_stop_ends_its_jars(
        self, way: str, number: signal.Signals, code: int, records: Records
    ) -> None:
        """In the middle of a call; what ended is in the log."""
        given = {"name": "run", "arguments": {"code": "import time; time.sleep(600)", "session": "s"}}
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": given}
        words = ["--http", "0"] if way == "http" else []
        with subprocess.Popen(
            [*BELLJAR, "mcp", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "BELLJAR_MCP_TOKEN": TOKEN},
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            if way == "stdio":
                begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                process.stdin.write("".join(json.dumps(line) + "\n" for line in (INITIALIZE, begun, asked)))
                process.stdin.flush()
                _wait_for(records, "started")
            else:
                url = process.stderr.readline().split()[-1]
                with Raw({"url": url, "token": TOKEN}) as client:
                    with pytest.raises(httpx.TimeoutException):
                        client.client.post(url, json=asked, timeout=0.3)
                    _wait_for(records, "started")
            process.send_signal(number)
            assert process.wait(30) == code
            assert "Traceback" not in process.stderr.read()
        assert len(records("finished")) == len(records("created")) == 1

    def test_nobody_else_gets_the_port_before_it_serves(self) -> None:
        """Whoever listens there gets the token of the first client."""
        with listen("127.0.0.1", 0) as listener, socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(listener.getsockname())

    WRONG = [
        (["--http", "http"], "wanted a port"),
        (["--http", "99999"], "wanted a port"),
        (["--http", "0", "--token-file", "/does/not/exist"], "can't be read"),
        (["--token-file", "x"], "--token-file is for --http"),
        (["surplus"], "a word too many"),
    ]

    @pytest.mark.parametrize(("words", "message"), WRONG, ids=[message for _words, message in WRONG])
    def test_what_makes_no_sense(self, words: list[str], message: str) -> None:
        told = subprocess.run([*BELLJAR, "mcp", *words], capture_output=True, text=True, check=False)

        assert message in told.stderr
        assert "Traceback" not in told.stderr

    def test_a_short_token_is_refused(self) -> None:
        told = subprocess.run(
            [*BELLJAR, "mcp", "--http", "0"],
            env={**os.environ, "BELLJAR_MCP_TOKEN": "short"},
            capture_output=True,
            text=True,
            check=False,
        )

        assert "shorter than 16 characters" in told.stderr
        assert "serving at" not in told.stderr


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
