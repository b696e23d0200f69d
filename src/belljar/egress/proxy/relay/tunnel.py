"""Carrying bytes both ways between two ends: all that is seen of them is their number, and canary tokens."""

from __future__ import annotations

from collections.abc import Callable

from belljar.egress.proxy.channel import Channel
from belljar.egress.proxy.relay.passing import ByteMeter


class Tunnel:
    """Two channels, each the other's source. Ends when both have, or when one is lost."""

    def __init__(
        self,
        client: Channel,
        server: Channel,
        *,
        on_closed: Callable[[], None],
        meter: ByteMeter | None = None,
    ) -> None:
        self.client = client
        self.server = server
        self._on_closed = on_closed
        self._meter = meter
        self._done = False

    @property
    def bytes_out(self) -> int:
        """What the server was sent."""
        return self.server.sent

    @property
    def bytes_in(self) -> int:
        """What the client was sent."""
        return self.client.sent

    def start(self) -> None:
        """Begin to carry."""
        client, server = self.client, self.server
        client.on_gone = server.on_gone = self._gone
        client.on_data, server.on_data = self._from_client, self._from_server
        client.on_end, server.on_end = self._client_ended, self._server_ended
        client.on_lost = server.on_lost = self.close
        client.on_drained, server.on_drained = server.start, client.start
        client.start()
        server.start()

    def _from_client(self, data: bytes) -> None:
        if self._meter is not None and not self._meter.outgoing(data):
            self.close()
            return
        self.server.write(data)
        if self.server.full:
            self.client.pause()

    def _from_server(self, data: bytes) -> None:
        if self._meter is not None and not self._meter.incoming(data):
            self.close()
            return
        self.client.write(data)
        if self.client.full:
            self.server.pause()

    def _client_ended(self) -> None:
        if self.server.tls:  # has no half-closed connections
            self._finish()
        else:
            self.server.end()
            self._finish_if_ended()

    def _server_ended(self) -> None:
        if self.client.tls:
            self._finish()
        else:
            self.client.end()
            self._finish_if_ended()

    def _finish_if_ended(self) -> None:
        if self.client.ended and self.server.ended:
            self._finish()

    def _finish(self) -> None:
        if not self._done:
            self._done = True
            self.client.finish()
            self.server.finish()

    def check(self, now: float) -> None:
        """A tunnel may idle for as long as its run lives."""

    def close(self) -> None:
        """End at once; both sides see a reset."""
        self._done = True
        self.client.reset()
        self.server.reset()

    def _gone(self) -> None:
        if self.client.closed and self.server.closed:
            self._on_closed()
