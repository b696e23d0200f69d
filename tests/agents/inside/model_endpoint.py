"""A model endpoint on loopback that says what a test wrote: the messages API, streamed or not.

The turn is chosen by how many results of tools a conversation holds, so that a request that is made twice gets the same
answer. Requests without tools (a title, a summary) are answered with a word.
"""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Arrived:
    """A request as the endpoint read it."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes = field(repr=False, default=b"")

    @property
    def json(self) -> dict[str, Any]:
        """The body of a question."""
        found: dict[str, Any] = json.loads(self.body)
        return found


def say(text: str) -> list[dict[str, Any]]:
    """A turn that ends the conversation."""
    return [{"type": "text", "text": text}]


def use(tool: str, **words: Any) -> list[dict[str, Any]]:
    """A turn that calls a tool."""
    return [{"type": "tool_use", "id": f"toolu_{tool}_{abs(hash(json.dumps(words))):x}", "name": tool, "input": words}]


def bash(command: str) -> list[dict[str, Any]]:
    """A turn that runs a command."""
    return use("Bash", command=command, description="as the test says")


class ModelEndpoint:
    """Answers with the test's turns, and remembers what reached it."""

    def __init__(self, turns: Sequence[list[dict[str, Any]]], *, tls: ssl.SSLContext | None = None) -> None:
        self.turns = list(turns)
        self.arrived: list[Arrived] = []
        self.counted = threading.Event()
        """Set when someone had tokens counted."""
        endpoint = self

        class Handler(_Handler):
            model = endpoint

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "https" if tls else "http"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def port(self) -> int:
        """Of 127.0.0.1."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """For ANTHROPIC_BASE_URL."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def questions(self) -> list[Arrived]:
        """The requests of the conversation itself."""
        return [one for one in self.arrived if one.path.startswith("/v1/messages") and one.json.get("tools")]

    def results(self) -> list[str]:
        """What the tools answered, as the last question tells it."""
        return list(_tool_results(self.questions[-1].json)) if self.questions else []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _tool_results(question: dict[str, Any]) -> Iterator[str]:
    for message in question.get("messages", ()):
        if isinstance(message["content"], list):
            for block in message["content"]:
                if block.get("type") == "tool_result":
                    content = block.get("content", "")
                    parts = content if isinstance(content, list) else [{"text": content}]
                    yield "".join(str(part.get("text", "")) for part in parts)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ModelEndpoint

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is printed."""

    def _take(self) -> Arrived:
        length = int(self.headers.get("content-length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        arrived = Arrived(self.command, self.path, headers, self.rfile.read(length))
        self.model.arrived.append(arrived)
        return arrived

    def do_GET(self) -> None:
        """Nothing is here."""
        self._take()
        self._answer(404, {"type": "error", "error": {"type": "not_found_error", "message": "nothing here"}})

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def do_POST(self) -> None:
        """A question, or something that does not belong here."""
        arrived = self._take()
        path = arrived.path.partition("?")[0]
        if path == "/v1/messages/count_tokens":
            self._answer(200, {"input_tokens": 10})
            self.model.counted.set()
        elif path == "/v1/messages":
            self._speak(arrived.json)
        else:
            self._answer(200, {"stored": True})  # a real one would keep it

    def _speak(self, question: dict[str, Any]) -> None:
        content = say("ok")
        if question.get("tools"):
            turn = len(list(_tool_results(question)))
            content = self.model.turns[turn] if turn < len(self.model.turns) else say("done")
        message = _message(question.get("model", "model"), content)
        if not question.get("stream"):
            self._answer(200, message)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in _events(message):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        self.close_connection = True

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _message(model: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    return {
        "id": "msg_test",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 10},
    }


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 10}}
    yield {"type": "message_stop"}
