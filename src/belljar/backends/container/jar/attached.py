"""One container with belljar's program in it, and the engine's client through which it is spoken to."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from typing import Any

from belljar.backends.container.engine.cleanup_process import CLEANUP_PROCESS
from belljar.backends.container.engine.engine import Engine
from belljar.backends.container.engine.faults import fault, no_answer, says_something, stopped, went_away
from belljar.backends.container.jar.guest_program import bundle
from belljar.errors import BelljarError, PrerequisiteError, SandboxUnavailableError
from belljar.guest.container import wire

START_SECONDS = 120.0
_SILENT_SECONDS = 120.0
"""How long the other side may say nothing when something is expected of it, or take nothing."""
_ASK_SECONDS = 10.0
_MOST_COMPLAINT = 16384
_NOWHERE = "/proc"
"""Where podman's client is: its monitor makes a file `oom` wherever it was started, if that can be written."""


class ForgedFrameError(SandboxUnavailableError):
    """Someone else than the gate has written to us: the code, which is not heard any further."""


class Attached:
    """A container whose stdin and stdout are ours. Frames may be sent by any thread, and read by one at a time."""

    def __init__(self, engine: Engine, arguments: list[str], name: str) -> None:
        self.engine = engine
        self.name = name
        self._sending = threading.Lock()
        self._parser = wire.Parser()
        self._frames: list[tuple[bytes, bytes]] = []
        self._is_up = False
        self._complaint = os.memfd_create("belljar-client", os.MFD_CLOEXEC)
        self.monitored: str | None = None
        """A directory for the file of podman's monitor, where nothing else tells that memory ran out."""
        if engine.name == "podman" and engine.runtime == "runsc":
            self.monitored = tempfile.mkdtemp(prefix="belljar-monitor-")
            self._forget = weakref.finalize(self, shutil.rmtree, self.monitored, ignore_errors=True)
        CLEANUP_PROCESS.add(engine.command(), "container", name)
        self._client = subprocess.Popen(
            engine.command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaint,
            bufsize=0,
            env=_absolute(engine.environment()),
            cwd=self.monitored or (_NOWHERE if engine.name == "podman" and os.path.isdir(_NOWHERE) else None),
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._stdin, self.stdout = self._client.stdin.fileno(), self._client.stdout.fileno()
        os.set_blocking(self._stdin, False)

    def configure(self, **config: Any) -> None:
        """Send the program and what it shall be. It answers with `ready`, whenever it is up."""
        self._key = os.urandom(wire.KEY_SIZE)
        self._watched = config["role"] == "gate"
        self.send(bundle(relay=bool(config.get("relay"))) + self._key + wire.message(config))

    def ready(self) -> dict[str, Any]:
        """Wait until the program is up: what it found.

        Raises:
            PrerequisiteError, SandboxUnavailableError: the engine could not start it, and says why.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self._frames:
            if not _happens(self.stdout, select.POLLIN, deadline - time.monotonic()):
                raise SandboxUnavailableError(
                    f"the container was not ready after {START_SECONDS:.0f} s", hint="run `belljar doctor`"
                )
            self.read()
        found: dict[str, Any] = json.loads(self._frames.pop(0)[1])["ready"]
        if self._watched:  # from now on, code may be beside the gate: only what has the gate's seal is believed
            self._parser.expect(wire.Seal(self._key))
        return found

    def read(self) -> None:
        """Take what has arrived; waits if nothing has. Raises what became of the container if it is gone."""
        if not _happens(self.stdout, select.POLLIN, _SILENT_SECONDS):
            raise no_answer(self.engine, _SILENT_SECONDS)
        data = os.read(self.stdout, wire.CHUNK)
        if not data:
            raise self.lost()
        self._is_up = True
        try:
            self._frames += self._parser.feed(data)
        except wire.FrameError as error:
            self._frames += error.before
            raise ForgedFrameError(f"the container's program does not speak our language: {error}") from error

    def frames(self) -> list[tuple[bytes, bytes]]:
        """What has been read and not yet been looked at."""
        frames, self._frames = self._frames, []
        return frames

    def next(self) -> tuple[bytes, bytes]:
        """Wait for the next frame."""
        while not self._frames:
            self.read()
        return self._frames.pop(0)

    def send(self, frames: bytes) -> None:
        """Send frames. Raises what became of the container if it is gone."""
        try:
            self._write(frames)
        except OSError as error:
            raise self.lost() from error

    def offer(self, data: bytes | bytearray) -> int:
        """Write as much as is taken at once. For whoever alone writes, and has to read meanwhile: an engine that
        can't get rid of what it brings may not take what it is given.

        Raises what became of the container if it is gone.
        """
        try:
            return os.write(self._stdin, data[: wire.CHUNK])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self.lost() from error

    @property
    def stdin(self) -> int:
        """Writable when something more is taken."""
        return self._stdin

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._sending:
            while view:
                if not _happens(self._stdin, select.POLLOUT, _SILENT_SECONDS):
                    raise no_answer(self.engine, _SILENT_SECONDS)
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._stdin, view[: wire.MAX_FRAME]) :]

    @property
    def is_over(self) -> bool:
        """Whether the client has ended: the container has, or its daemon."""
        return self._client.poll() is not None

    def lost(self) -> BelljarError:
        """Why the client ended: in its words, or if it has none, as the engine sees the container now."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._client.wait(5)
        complaint = b"" if self._complaint < 0 else os.pread(self._complaint, _MOST_COMPLAINT, 0)
        text = complaint.decode(errors="replace")
        if says_something(text):
            return fault(self.engine, text, self._client.returncode or 1)
        try:
            state = self.state()
        except PrerequisiteError:  # it was there when the container was started
            return went_away(self.engine)
        except BelljarError as error:
            return error
        return stopped(state.get("ExitCode"))

    def state(self) -> dict[str, Any]:
        """What the engine says of the container. Raises if there is none, or the engine does not answer."""
        shown = ("inspect", "--type", "container", "--format", "{{json .State}}", self.name)
        found: dict[str, Any] = json.loads(self.engine.run(*shown, timeout=_ASK_SECONDS))
        return found

    def let_go(self) -> None:
        """Close the channel: the program in the container ends by itself, and with it the container."""
        stdin, stdout = self._client.stdin, self._client.stdout
        assert stdin is not None
        assert stdout is not None
        self._is_up = self._is_up or (not stdout.closed and _happens(self.stdout, select.POLLIN, 0))
        for pipe in (stdin, stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    def settle(self) -> bool:
        """After `let_go`: wait until the container is there, or never will be; whether that is so now.

        Removed before that it would still come, and the engine, told to force it, would not say that it was not there.
        """
        if not self._is_up:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._client.wait(_ASK_SECONDS)
        return self._is_up or self.is_over

    def bury(self) -> None:
        """The container is removed: wait for the client and let go of everything."""
        self.let_go()
        try:
            self._client.wait(5)
        except subprocess.TimeoutExpired:
            self._client.kill()
            self._client.wait()
        if self._complaint >= 0:
            os.close(self._complaint)
            self._complaint = -1
        if self.monitored is not None:
            self._forget()


def _happens(descriptor: int, event: int, seconds: float) -> bool:
    """Whether it can be read or written within this time, or is broken."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _absolute(environment: dict[str, str]) -> dict[str, str]:
    """The same, for a program that is started elsewhere."""
    names = {"CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"} & environment.keys()
    return {**environment, **{name: os.path.abspath(environment[name]) for name in names}}
