"""Messages between belljar, its launcher and its stages: one JSON object a packet, descriptors beside it.

All ends of these sockets are belljar's own processes. Nothing from inside a jar ever holds one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from belljar._startup import json_text
from belljar._startup import sockets as socket

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

LAUNCHER_DIED = {
    "message": "belljar's launcher process has died, and every jar that it had started with it",
    "hint": "open a new Sandbox; it starts a new launcher",
}
"""What the stage says last, and the host where no stage is left to say it."""

FIRST_SAMPLE_SECONDS = 0.01
"""Without a control group: of a run that was shorter, the stage knows nothing about its memory."""
LOST = ("internal", "pid1")
"""Why a pool's run ended whose pid 1 is gone without the stage's doing: with its zygote, or alone."""
ZYGOTE_KILLED = "the interpreter that the jar was cloned from was killed"

MAX_MESSAGE = 4 << 20
_MAX_DESCRIPTORS = 250
_INT = 4
_ROOM = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT)

Message = dict[str, "Any"]


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that keep message borders and report the other's death as an empty message."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE)
    return ours, theirs


def write_all(descriptor: int, content: bytes) -> None:
    """write(2) until everything is written: a full tmpfs writes a part first and fails only then."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def send(end: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message.

    Large ones (a policy with hundreds of mounts) travel in a memory file, because a packet has to fit a socket buffer.
    """
    body = json_text.dumps(message).encode()
    if len(body) <= 64 << 10:
        _send_packet(end, body, descriptors)
        return
    spill = os.memfd_create("belljar-message", os.MFD_CLOEXEC)
    try:
        while body:
            body = body[os.write(spill, body) :]
        _send_packet(end, b"", (spill, *descriptors), spilled=True)
    finally:
        os.close(spill)


def received(descriptor: int) -> socket.socket:
    """An end that came from another process: what it is need not be asked of the kernel."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, descriptor)


def packet(message: Message) -> bytes:
    """A short message as it is sent, without descriptors: for one that is sent again and again."""
    return b"J" + json_text.dumps(message).encode()


def _send_packet(end: socket.socket, body: bytes, descriptors: tuple[int, ...], *, spilled: bool = False) -> None:
    packet = (b"S" if spilled else b"J") + body
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed(descriptors))] if descriptors else []
    end.sendmsg([packet], ancillary)


def _receive_packet(end: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    packet, ancillary, _flags, _address = end.recvmsg((64 << 10) + 1, _ROOM, socket.MSG_CMSG_CLOEXEC)
    return packet, ancillary


def packed(descriptors: Iterable[int]) -> bytes:
    """Descriptors as the kernel takes them: ints in its own order of bytes."""
    return b"".join([descriptor.to_bytes(_INT, sys.byteorder) for descriptor in descriptors])


def _unpacked(data: bytes) -> list[int]:
    whole = len(data) - len(data) % _INT
    return memoryview(data[:whole]).cast("i").tolist()


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors, or None when the other end is gone."""
    try:
        packet, ancillary = _receive_packet(end)
    except ConnectionResetError:  # it left something of ours unread; what it said before is still there
        try:
            packet, ancillary = _receive_packet(end)
        except ConnectionResetError:
            return None
    passed: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            passed += _unpacked(data)
    if not packet:
        return None
    if packet[:1] == b"J":
        return json_text.loads(packet[1:].decode()), passed
    spill = passed.pop(0)
    try:
        return json_text.loads(os.pread(spill, os.fstat(spill).st_size, 0).decode()), passed
    finally:
        os.close(spill)
