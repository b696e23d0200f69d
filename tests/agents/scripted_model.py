"""A model that does what a script says: the messages API on loopback, streamed, for the real Claude Code command.

A script is a list of turns. The turn that is played is the one after as many as the conversation already has, so that
conversations do not disturb each other; which script it is, the first message says: `script:NAME …`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Records = Callable[..., list[dict[str, Any]]]
"""Reads the audit log: see the fixture `records`."""
Block = dict[str, Any]
Turn = list[Block]

PNG = """
import struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
with open("dot.png", "wb") as file:
    file.write(b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)))
    file.write(chunk(b"IDAT", zlib.compress(b"\\0\\xff\\0\\0")) + chunk(b"IEND", b""))
"""


def say(text: str) -> Block:
    return {"type": "text", "text": text}


def use(name: str, /, **given: Any) -> Block:
    return {"type": "tool_use", "name": name, "input": given}


class Model:
    """The endpoint. `results` has what came back from each tool, in order, by script."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[Turn]] = {}
        self.any_script: list[Turn] | None = None
        """For a conversation with tools that names none: it is called `any`."""
        self.tools: dict[str, list[str]] = {}
        self.results: dict[str, list[Block]] = {}
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._count = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def text_of(self, script: str, index: int = -1) -> str:
        """The text that the model got back from a tool."""
        content = self.results[script][index]["content"]
        if isinstance(content, str):
            return content
        return "\n".join(block["text"] for block in content if block["type"] == "text")

    def answer(self, request: dict[str, Any]) -> Turn:
        """What the model says next."""
        with self._lock:
            self.requests.append(request)
            messages = request.get("messages", [])
            found = re.search(r"script:(\w+)", json.dumps(messages[:1]))
            name = found[1] if found else "any"
            scripts = {**self.scripts, **({"any": self.any_script} if self.any_script and request.get("tools") else {})}
            if name not in scripts or not request.get("stream"):
                return [say("ok")]
            self.tools[name] = [tool.get("name", "") for tool in request.get("tools", [])]
            self.results[name] = [
                block
                for message in messages
                if message["role"] == "user" and isinstance(message["content"], list)
                for block in message["content"]
                if block["type"] == "tool_result"
            ]
            turns = scripts[name]
            index = sum(message["role"] == "assistant" for message in messages)
            return turns[index] if index < len(turns) else [say("done")]

    def numbered(self) -> int:
        with self._lock:
            self._count += 1
            return self._count


def _events(model: Model, turn: Turn, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": f"msg_{model.numbered()}", "type": "message", "role": "assistant", "model": name, "content": []}
    yield "message_start", {"message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    for index, block in enumerate(turn):
        if block["type"] == "text":
            yield "content_block_start", {"index": index, "content_block": {"type": "text", "text": ""}}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            started = {**block, "id": f"toolu_{model.numbered():08d}", "input": {}}
            yield "content_block_start", {"index": index, "content_block": started}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    reason = "tool_use" if any(block["type"] == "tool_use" for block in turn) else "end_turn"
    yield "message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield "message_stop", {}


def _handler(model: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_words: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._send(200, "text/plain", b"")

        def do_GET(self) -> None:
            model.paths.append(self.path)
            self._send(404, "application/json", b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            model.paths.append(self.path)
            model.headers.append(dict(self.headers))
            path = self.path.partition("?")[0]
            if path == "/v1/messages/count_tokens":
                self._send(200, "application/json", b'{"input_tokens": 1}')
            elif path != "/v1/messages":
                self._send(404, "application/json", b"{}")
            else:
                self._message(json.loads(body))

        def _message(self, request: dict[str, Any]) -> None:
            turn = model.answer(request)
            name = str(request.get("model"))
            if not request.get("stream"):
                whole = {"id": "msg_0", "type": "message", "role": "assistant", "model": name, "content": turn}
                usage = {"input_tokens": 1, "output_tokens": 1}
                whole |= {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
                self._send(200, "application/json", json.dumps(whole).encode())
                return
            events = _events(model, turn, name)
            text = "".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in events)
            self._send(200, "text/event-stream", text.encode())

        def _send(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
