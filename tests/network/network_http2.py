"""A server that speaks HTTP/2 only: it answers each request with its method and path."""

from __future__ import annotations

import socket

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from network_servers import Server


def serve_http2(connection: socket.socket, server: Server) -> None:
    """One connection."""
    state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    state.initiate_connection()
    connection.sendall(state.data_to_send())
    asked: dict[int, str] = {}
    while data := connection.recv(1 << 16):
        try:
            events = state.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            server.note(f"broken: {error}")
            return
        for event in events:
            if isinstance(event, h2.events.RequestReceived):
                headers = {str(name): str(value) for name, value in event.headers or ()}
                asked[event.stream_id or 0] = f"{headers[':method']} {headers[':authority']}{headers[':path']}"
                server.note(asked[event.stream_id or 0])
            elif isinstance(event, h2.events.DataReceived):
                state.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
                server.note((event.data or b"").decode(errors="replace"))
            elif isinstance(event, h2.events.StreamEnded):
                stream = event.stream_id or 0
                body = f"h2 {asked[stream]}\n".encode()
                state.send_headers(stream, [(":status", "200"), ("content-length", str(len(body)))])
                state.send_data(stream, body, end_stream=True)
        connection.sendall(state.data_to_send())
