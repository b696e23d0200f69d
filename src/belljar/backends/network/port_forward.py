"""A port forward into a jar: connects, from inside the jar's network, to a server of the code's, for someone outside.

A child of one thread stays in the jar's user and network namespaces (and in no other of the jar's: the code sees no
process of it). It is asked for a port on a socket, and answers with a connection to that port of the jar's loopback, on
a socket that comes with the question: a server that does not accept holds nobody else up. It ends when the first does.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import signal
import socket
import struct
import time

from belljar.backends import kernel

_CONNECT_SECONDS = 5.0
_MOST_WAITING = 256
_PORT, _CODE = struct.Struct("=H"), struct.Struct("=i")
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


def open_port_forward(pid: int) -> tuple[int, int]:
    """Make a port forward into the jar of process `pid`. Return a descriptor to ask on, and a child to wait for.

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
    """Be the port forward into the jar of process `pid`, until the socket closes."""
    _enter(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC), control.fileno())
    _serve(control)


def _enter(network: int, control: int) -> None:
    kernel.set_name("belljar-door")
    kernel.enter_owner(network)
    kernel.setns(network, kernel.CLONE_NEWNET)
    os.closerange(3, control)
    os.closerange(control + 1, 1 << 20)


class _Caller:
    """Someone who waits for a connection to a port of the jar."""

    def __init__(self, port: int, answer: socket.socket) -> None:
        self._port = port
        self._answer = answer
        self._left = list(_LOOPBACK)
        self.deadline = time.monotonic() + _CONNECT_SECONDS
        self.connection: socket.socket | None = None
        self.go_on(errno.ECONNREFUSED)

    def go_on(self, code: int) -> None:
        """The last attempt ended so: begin the next one, or tell of it."""
        if self.connection is not None and code == 0:
            descriptors = array.array("i", [self.connection.fileno()])
            with contextlib.suppress(OSError):
                self._answer.sendmsg([_CODE.pack(0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            self.close()
            return
        self._forget()
        while self._left:
            family, address = self._left.pop(0)
            try:
                self.connection = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:  # no such family here, or too many descriptors
                code = error.errno or errno.EIO
                continue
            self.connection.setblocking(False)  # noqa: FBT003
            code = self.connection.connect_ex((address, self._port))
            if code in (0, errno.EINPROGRESS):
                return
            self._forget()
        with contextlib.suppress(OSError):
            self._answer.send(_CODE.pack(code))
        self.close()

    def _forget(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """Nothing more comes of it."""
        self._forget()
        self._answer.close()


def _serve(control: socket.socket) -> None:
    waiting: list[_Caller] = []
    while True:
        poll = select.poll()
        if len(waiting) < _MOST_WAITING:
            poll.register(control, select.POLLIN)
        by_number = {caller.connection.fileno(): caller for caller in waiting if caller.connection is not None}
        for number in by_number:
            poll.register(number, select.POLLOUT)
        soonest = min((caller.deadline for caller in waiting), default=float("inf")) - time.monotonic()
        for number, _events in poll.poll(None if soonest == float("inf") else max(0, soonest * 1000)):
            if caller := by_number.get(number):
                assert caller.connection is not None
                caller.go_on(caller.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            elif (asked := _asked(control)) is None:
                return
            else:
                waiting += asked
        for caller in waiting:
            if caller.connection is not None and time.monotonic() >= caller.deadline:
                caller.close()
        waiting = [caller for caller in waiting if caller.connection is not None]


def _asked(control: socket.socket) -> list[_Caller] | None:
    """Who asks; None when nobody will any more."""
    try:
        request, descriptors, _flags, _address = socket.recv_fds(control, 16, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:  # as when there is no room for a descriptor
        return [] if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR) else None
    if not request:
        return None
    return [_Caller(_PORT.unpack(request)[0], socket.socket(fileno=descriptor)) for descriptor in descriptors]


def ask(forward: socket.socket, port: int) -> socket.socket:
    """A connection to the port. For whoever has the descriptor; many may ask at once.

    Raises:
        OSError: nobody listens there, or accepts, or the jar is gone.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here:
        with there:
            socket.send_fds(forward, [_PORT.pack(port)], [there.fileno()])
        answer, ancillary, _flags, _address = here.recvmsg(16, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    if not answer:
        raise OSError(errno.ETIMEDOUT, "nobody accepts there, or the jar is gone")
    if code := _CODE.unpack(answer)[0]:
        raise OSError(code, os.strerror(code))
    return socket.socket(fileno=struct.unpack("i", ancillary[0][2][:4])[0])
