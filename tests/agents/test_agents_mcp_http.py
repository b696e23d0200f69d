"""`belljar mcp --http`: who is let in, what is held back, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import anyio
import httpx
import pytest
from mcp import ClientSession
from mcp_clients import BELLJAR, TOKEN, text_of
from scripted_model import Records

from belljar.tools.mcp_http import Admission, listen

pytestmark = pytest.mark.backend("bubblewrap")


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
