"""The two ends of HTTP/2 as the proxy plays them: h2's, with bounds on what one header block costs."""

from __future__ import annotations

from typing import Any

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import DenialOfServiceError
from hpack import Encoder
from hyperframe.frame import GoAwayFrame, HeadersFrame

MAX_BLOCK = 16 << 10
"""Bytes of a header block as it is sent: decoding it takes some milliseconds, in which nothing else is served."""
_TABLE_SIZE = 4096


class _PlainEncoder(Encoder):
    """Writes header blocks without Huffman's code: hpack needs time quadratic to a field for that."""

    def encode(self, headers: Any, huffman: bool = False) -> bytes:  # noqa: ARG002, FBT001, FBT002 as its parent has it
        """Encode these headers."""
        return super().encode(headers, huffman=False)

    @property
    def header_table_size(self) -> int:
        """The size of the table. A peer may make it smaller, not larger: each field is looked for in all of it."""
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        Encoder.header_table_size.fset(self, min(value, _TABLE_SIZE))  # type: ignore[attr-defined]


class _Bounded(H2Connection):
    """A connection that breaks off when a header block is too large."""

    def __init__(self, *, client_side: bool) -> None:
        super().__init__(H2Configuration(client_side=client_side, header_encoding=None))
        self.encoder = _PlainEncoder()

    def receive_data(self, data: Any) -> list[Event]:
        """Take what has come. Raises ProtocolError."""
        events = super().receive_data(data)
        held = self.incoming_buffer._headers_buffer  # noqa: SLF001 h2 bounds their number only
        if held and sum(len(frame.data) for frame in held) > MAX_BLOCK:
            raise _too_large()
        return events

    def _receive_headers_frame(self, frame: HeadersFrame) -> Any:
        if len(frame.data) > MAX_BLOCK:
            raise _too_large()
        return super()._receive_headers_frame(frame)


def _too_large() -> DenialOfServiceError:
    return DenialOfServiceError(f"a header block larger than {MAX_BLOCK >> 10} KiB")


class ToClient(_Bounded):
    """The proxy as the server of a jar."""

    def __init__(self) -> None:
        super().__init__(client_side=False)


class ToServer(_Bounded):
    """The proxy as the client of a host."""

    def __init__(self) -> None:
        super().__init__(client_side=True)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> Any:
        """Go on with the streams that were begun: h2 takes a GOAWAY for the end of everything."""
        came = super()._receive_goaway_frame(frame)
        if frame.error_code == ErrorCodes.NO_ERROR:
            self.state_machine.state = ConnectionState.CLIENT_OPEN
        return came
