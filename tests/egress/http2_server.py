"""An HTTP/2 server on loopback, one thread a connection, that remembers what it was asked."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import h2.events
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.exceptions import ProtocolError


class Http2Server:
    """`handle` is for `proxy_bench.serving`: it answers each request with what it was, or as its path says."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []

    def handle(self, sock: socket.socket) -> None:
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.initiate_connection()
        sock.sendall(connection.data_to_send())
        requests: dict[int, tuple[dict[str, str], bytearray]] = {}
        sending: dict[int, bytes] = {}
        while data := sock.recv(65536):
            try:
                events = connection.receive_data(data)
            except ProtocolError:
                sock.sendall(connection.data_to_send())
                return
            for event in events:
                with contextlib.suppress(ProtocolError):  # a stream that was reset meanwhile
                    self._take(connection, event, requests, sending)
            _send(connection, sending)
            sock.sendall(connection.data_to_send())

    def _take(self, connection: H2Connection, event: Any, requests: Any, sending: dict[int, bytes]) -> None:
        if isinstance(event, h2.events.RequestReceived):
            requests[event.stream_id] = (dict(event.headers), bytearray())
        elif isinstance(event, h2.events.DataReceived):
            requests[event.stream_id][1].extend(event.data)
            connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            headers, body = requests.pop(event.stream_id)
            path, method = headers[":path"], headers[":method"]
            self.seen.append((method, path, headers, bytes(body)))
            if path == "/reset":
                connection.reset_stream(event.stream_id, 2)
            elif path == "/trailers":
                connection.send_headers(event.stream_id, [(":status", "200")])
                connection.send_data(event.stream_id, b"message")
                connection.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
            elif path == "/reflect":
                key = headers.get("x-api-key", "")
                connection.send_headers(event.stream_id, [(":status", "200"), ("x-head", key)])
                connection.send_data(event.stream_id, f"body: {key}\n".encode())
                connection.send_headers(event.stream_id, [("x-trailer", key)], end_stream=True)
            elif path == "/goaway":
                connection.send_headers(event.stream_id, [(":status", "200")])
                sending[event.stream_id] = b"last"
                connection.close_connection()
                connection.state_machine.state = ConnectionState.SERVER_OPEN  # it says goodbye, and goes on
            else:
                said = f"{method} {path} ".encode() + bytes(body)
                connection.send_headers(event.stream_id, [(":status", "200"), ("content-length", str(len(said)))])
                sending[event.stream_id] = said


def _send(connection: H2Connection, sending: dict[int, bytes]) -> None:
    for stream_id in list(sending):
        while data := sending[stream_id]:
            try:
                room = min(connection.local_flow_control_window(stream_id), connection.max_outbound_frame_size)
                if room <= 0:
                    break
                connection.send_data(stream_id, data[:room], end_stream=len(data) <= room)
            except ProtocolError:
                room = len(data)
            sending[stream_id] = data[room:]
        if not sending[stream_id]:
            del sending[stream_id]
