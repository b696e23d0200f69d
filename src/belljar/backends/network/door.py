"""The door of a jar: connects, from inside the jar's network, to a server of the code's, for someone outside.

A child of one thread stays in the jar's user and network namespaces (and in no other of the jar's: the code sees no
process of it). It is asked for a port on a socket, and answers with a connection to that port of the jar's loopback.
It ends when the socket does.
"""

from __future__ import annotations

import array
import errno
import os
import signal
import socket
import struct

from belljar.backends import kernel

_CONNECT_SECONDS = 2.0
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


def open_door(pid: int) -> tuple[int, int]:
    """The door of the jar of process `pid`: a descriptor to ask on, and the child's pid, for the caller to wait for.

    Forks: for a process of one thread.

    Raises:
        OSError: with what could not be done.
    """
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        try:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            _enter(network, theirs.fileno())
            _serve(theirs)
        finally:
            os._exit(0)
    os.close(network)
    theirs.close()
    return ours.detach(), child


def stay(control: socket.socket, pid: int) -> None:
    """Be the door of the jar of process `pid`, until the socket closes."""
    _enter(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC), control.fileno())
    _serve(control)


def _enter(network: int, control: int) -> None:
    kernel.set_name("belljar-door")
    kernel.enter_owner(network)
    kernel.setns(network, kernel.CLONE_NEWNET)
    os.closerange(3, control)
    os.closerange(control + 1, 1 << 20)


def _serve(control: socket.socket) -> None:
    while request := control.recv(16):
        port = struct.unpack("=H", request)[0]
        try:
            connection = _connect(port)
        except OSError as error:
            control.send(struct.pack("=i", error.errno or errno.EIO))
            continue
        with connection:
            descriptors = array.array("i", [connection.fileno()])
            control.sendmsg([struct.pack("=i", 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


def _connect(port: int) -> socket.socket:
    last: OSError = OSError(errno.ECONNREFUSED, "refused")
    for family, address in _LOOPBACK:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect((address, port))
        except OSError as error:
            last = error
            connection.close()
        else:
            return connection
    raise last


def ask(door: socket.socket, port: int) -> socket.socket:
    """A connection to the port. For whoever has the descriptor; one at a time.

    Raises:
        OSError: nobody listens there, or the jar is gone.
    """
    door.send(struct.pack("=H", port))
    answer, ancillary, _flags, _address = door.recvmsg(16, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    if not answer:
        raise OSError(errno.EPIPE, "the jar is gone")
    if code := struct.unpack("=i", answer)[0]:
        raise OSError(code, os.strerror(code))
    return socket.socket(fileno=struct.unpack("i", ancillary[0][2][:4])[0])
