"""Messages between belljar and its egress proxy: one JSON object a packet, descriptors beside it.

Both ends are belljar's own processes; nothing from inside a jar ever holds one.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

MAX_DESCRIPTORS = 200
"""Beside one packet; the kernel takes 253. Who has more sends several packets."""
_MAX_PACKET = 64 << 10

Message = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that keep message borders and report the other's death as an empty message."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ours, theirs


def send(end: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message. A large one (rules, root certificates) travels in a memory file beside an empty packet."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) < _MAX_PACKET:
        _send_packet(end, b"J" + body, descriptors)
        return
    spill = os.memfd_create("belljar-egress-message", os.MFD_CLOEXEC)
    try:
        while body:
            body = body[os.write(spill, body) :]
        _send_packet(end, b"S", (spill, *descriptors))
    finally:
        os.close(spill)


def _send_packet(end: socket.socket, packet: bytes, descriptors: tuple[int, ...]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    end.sendmsg([packet], ancillary)


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors, or None when the other end is gone."""
    packet, passed = _receive_packet(end)
    if not packet:
        return None
    if packet[:1] == b"J":
        return json.loads(packet[1:]), passed
    spill = passed.pop(0)
    try:
        return json.loads(os.pread(spill, os.fstat(spill).st_size, 0)), passed
    finally:
        os.close(spill)


def _receive_packet(end: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE((MAX_DESCRIPTORS + 1) * 4)
    for _attempt in range(2):
        try:
            packet, ancillary, _flags, _address = end.recvmsg(_MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it left something of ours unread; what it said before is still there
            continue
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        return packet, list(descriptors)
    return b"", []
