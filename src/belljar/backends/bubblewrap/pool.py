"""A pool's stage, from belljar's side."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from belljar.backends.bubblewrap import wire
from belljar.backends.bubblewrap.backend import BubblewrapJar, BubblewrapProcess
from belljar.errors import UsageError


class PooledProcess(BubblewrapProcess):
    """A run of a pool."""

    workspace = -1
    """The directory in which it worked, once it has ended."""

    def take_descriptors(self, descriptors: list[int]) -> None:
        """What came with the word of its end."""
        for descriptor in descriptors:
            self.workspace = descriptor

    def close(self) -> None:
        """Let go; a run that is still alive is ended by its stage."""
        super().close()
        if self.workspace >= 0:
            os.close(self.workspace)
            self.workspace = -1


class BubblewrapPool(BubblewrapJar):
    """Starts runs, each in a jar of its own that has waited for it."""

    def __init__(self, control: socket.socket, answer: wire.Message, *, connects: bool) -> None:
        super().__init__(control, answer)
        self._connects = connects

    def start(
        self,
        code: bytes,
        *,
        name: str,
        arguments: Sequence[str],
        files: Mapping[str, bytes],
        stdin: int,
        timeout_seconds: float,
    ) -> PooledProcess:
        """Start a run. It begins when there is a jar for it, and its listeners are served. Any thread may call."""
        message = {
            "do": "run",
            "code": code.decode("latin-1"),
            "name": name,
            "args": list(arguments),
            "files": {path: content.decode("latin-1") for path, content in files.items()},
            "timeout_seconds": timeout_seconds,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, output_inside = os.pipe2(os.O_CLOEXEC)
        errors, errors_inside = os.pipe2(os.O_CLOEXEC)
        process = PooledProcess(output, errors, ours, self)
        try:
            with theirs, self._lock:
                if self._control.fileno() < 0:
                    raise UsageError("this Pool is closed")
                wire.send(self._control, message, (theirs.fileno(), stdin, output_inside, errors_inside))
        except OSError as error:
            process.close()
            raise self.last_words() from error
        except BaseException:
            process.close()
            raise
        finally:
            os.close(output_inside)
            os.close(errors_inside)
        if self._connects:
            process.await_listeners()
        return process

    def statistics(self) -> dict[str, int]:
        """How many jars wait and run, how many runs wait for one, and how many zygotes there have been."""
        answer, _descriptors = self._ask({"do": "statistics"})
        return {name: int(value) for name, value in answer.items() if name != "number"}
