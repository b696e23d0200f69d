"""A session's supervisor: the first process of its jar. An interpreter runs the steps, and it passes on what that says.

It runs inside, as the code's own user, and could be stopped or replaced by the code: the host believes nothing of what
it says, and bounds everything. Because it is another process than the interpreter, it can interrupt it, can tell when
it crashed, and can have several: forks of one that go on from the same variables.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import struct
from typing import Any

from belljar.guest.session.steps import DONE, FORK, HEAD, SHOWN, SLOT, STEP, UP, Interpreter

FRAME = struct.Struct("!cHI")
"""Between the host and a supervisor: kind, interpreter, length."""
INTERRUPT, END, STDOUT, STDERR, GONE = b"I", b"X", b"o", b"e", b"G"
MOST_INTERPRETERS = 64
_PIECE = 1 << 16
_PATIENCE_MS = 200
"""How often interpreters are looked at that are nobody's children."""


class Branch:
    """One interpreter: its process, its socket and its pipes."""

    def __init__(self, number: int, channel: socket.socket, stdout: int, stderr: int, pid: int) -> None:
        self.number = number
        self.channel = channel
        self.pipes = {stdout: STDOUT, stderr: STDERR}
        self.pid = pid
        self.step = 0
        self.heard = bytearray()

    def close(self) -> None:
        """Let go of everything."""
        self.channel.close()
        for pipe in self.pipes:
            os.close(pipe)


class Supervisor:
    """Reads orders from descriptor 0 and tells on descriptor 1."""

    def __init__(self) -> None:
        self._orders = bytearray()
        self._marks = mmap.mmap(-1, MOST_INTERPRETERS * SLOT.size)
        self._branches: dict[int, Branch] = {}
        self._wake, wake = os.pipe()
        for descriptor in (self._wake, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def start(self) -> Interpreter | None:
        """Make the first interpreter. In its process, returns it."""
        ours, theirs, pipes = _ends()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ours.close()
            for number, (reader, writer) in enumerate(pipes, start=1):
                os.dup2(writer, number)
                os.close(reader)
                os.close(writer)
            return Interpreter(theirs, self._marks, 0)
        self._take(0, ours, theirs, pipes, pid)
        return None

    def _take(
        self, number: int, ours: socket.socket, theirs: socket.socket, pipes: list[tuple[int, int]], pid: int
    ) -> None:
        theirs.close()
        for reader, writer in pipes:
            os.set_blocking(reader, False)
            os.close(writer)
        self._branches[number] = Branch(number, ours, pipes[0][0], pipes[1][0], pid)

    def serve(self) -> None:
        """Until the host is gone, or no interpreter is left."""
        while self._branches:
            poll = select.poll()
            poll.register(0, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            for branch in self._branches.values():
                poll.register(branch.channel, select.POLLIN)
                for pipe in branch.pipes:
                    poll.register(pipe, select.POLLIN)
            for descriptor, _event in poll.poll(_PATIENCE_MS if len(self._branches) > 1 else None):
                if descriptor == 0:
                    self._read_orders()
                elif descriptor == self._wake:
                    os.read(self._wake, _PIECE)
                else:
                    self._hear(descriptor)
            self._bury()

    # --- from the host ---

    def _read_orders(self) -> None:
        data = os.read(0, _PIECE)
        if not data:
            os._exit(0)
        self._orders += data
        while len(self._orders) >= FRAME.size:
            kind, number, length = FRAME.unpack_from(self._orders)
            if len(self._orders) < FRAME.size + length:
                return
            payload = bytes(self._orders[FRAME.size : FRAME.size + length])
            del self._orders[: FRAME.size + length]
            self._obey(kind, number, payload)

    def _obey(self, kind: bytes, number: int, payload: bytes) -> None:
        branch = self._branches.get(number)
        if branch is None:
            self._tell(GONE, number, b'{"status": null}')
        elif kind == STEP:
            branch.step = json.loads(payload)["step"]
            self._send(branch, STEP, payload)
        elif kind == INTERRUPT and int(payload) == branch.step:
            SLOT.pack_into(self._marks, number * SLOT.size, branch.step)
            self._signal(branch, signal.SIGINT)
        elif kind == FORK:
            self._fork(branch, int(payload))
        elif kind == END:
            self._signal(branch, signal.SIGKILL)

    def _fork(self, branch: Branch, number: int) -> None:
        ours, theirs, pipes = _ends()
        given = [theirs.fileno(), *(writer for _reader, writer in pipes)]
        self._send(branch, FORK, b"%d" % number, given)
        self._take(number, ours, theirs, pipes, 0)

    def _send(self, branch: Branch, kind: bytes, payload: bytes, descriptors: list[int] | None = None) -> None:
        try:
            head = HEAD.pack(kind, len(payload))
            sent = socket.send_fds(branch.channel, [head], descriptors or [])
            branch.channel.sendall(head[sent:] + payload)
        except OSError:
            pass  # it has ended, which is told where it is buried

    def _signal(self, branch: Branch, number: int) -> None:
        try:
            if branch.pid:
                os.kill(branch.pid, number)
        except ProcessLookupError:
            pass

    # --- from the interpreters ---

    def _hear(self, descriptor: int) -> None:
        for branch in list(self._branches.values()):
            if descriptor in branch.pipes:
                self._pass_on(branch, descriptor)
            elif descriptor == branch.channel.fileno():
                self._listen(branch)

    def _pass_on(self, branch: Branch, pipe: int) -> int:
        """A piece of what the code printed. How much it was."""
        try:
            data = os.read(pipe, _PIECE)
        except BlockingIOError:
            return 0
        if data:
            self._tell(branch.pipes[pipe], branch.number, data)
        else:
            del branch.pipes[pipe]
            os.close(pipe)
        return len(data)

    def _drain(self, branch: Branch) -> None:
        """All that was printed until now; what is printed meanwhile by others may wait."""
        for pipe in list(branch.pipes):
            self._pass_on(branch, pipe)

    def _listen(self, branch: Branch) -> None:
        try:
            data = branch.channel.recv(_PIECE)
        except OSError:
            data = b""
        if not data:
            if branch.pid in (0, -1):  # a fork that never came up, or whose end nobody else sees
                self._lose(branch, None)
            else:
                self._signal(branch, signal.SIGKILL)  # it closed what it is led by
            return
        branch.heard += data
        while len(branch.heard) >= HEAD.size:
            kind, length = HEAD.unpack_from(branch.heard)
            if len(branch.heard) < HEAD.size + length:
                return
            payload = bytes(branch.heard[HEAD.size : HEAD.size + length])
            del branch.heard[: HEAD.size + length]
            if kind == UP:
                branch.pid = int(json.loads(payload)["pid"])
            if kind in (UP, SHOWN, DONE):
                self._drain(branch)
                branch.step = 0 if kind == DONE else branch.step
                self._tell(kind, branch.number, payload)

    # --- the end of one ---

    def _bury(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for branch in list(self._branches.values()):
                if branch.pid == pid:
                    self._lose(branch, os.waitstatus_to_exitcode(status))
        for branch in list(self._branches.values()):
            if branch.number and branch.pid:  # a fork: somebody else's child
                try:
                    os.kill(branch.pid, 0)
                except ProcessLookupError:
                    self._lose(branch, None)

    def _lose(self, branch: Branch, status: int | None) -> None:
        self._drain(branch)
        del self._branches[branch.number]
        branch.close()
        self._tell(GONE, branch.number, json.dumps({"status": status}).encode())

    def _tell(self, kind: bytes, number: int, payload: bytes) -> None:
        rest = memoryview(FRAME.pack(kind, number, len(payload)) + payload)
        while rest:
            rest = rest[os.write(1, rest) :]


def _ends() -> tuple[socket.socket, socket.socket, list[tuple[int, int]]]:
    """A socket for the supervisor, one for an interpreter, and two pipes for what it prints."""
    ours, theirs = socket.socketpair()
    return ours, theirs, [os.pipe(), os.pipe()]


def main() -> Any:
    """The program. In the supervisor it does not return; in an interpreter, returns it."""
    supervisor = Supervisor()
    interpreter = supervisor.start()
    if interpreter is None:
        supervisor.serve()
        os._exit(0)
    return interpreter
