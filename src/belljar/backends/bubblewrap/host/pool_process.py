"""A jar that the host has been lent, and the run in it. The host speaks with the jar itself.

What it is given goes in one packet to the process that waits in it, which gets ready; a second one has it run. How that
ended, the jar's pid 1 says. The stage is told that it began, and is asked only if there is something to know: the jar
was ended, or something was refused in it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from belljar.backends.bubblewrap.host.backend import BubblewrapJar, BubblewrapProcess
from belljar.backends.bubblewrap.shared import wire
from belljar.backends.bubblewrap.shared.wire import FIRST_SAMPLE_SECONDS, LOST, write_all
from belljar.backends.contract import End, JarGoneError, never_started
from belljar.backends.pool_contract import Prepared, does_not_fit
from belljar.guest.pool.pooled_code import AWAKE, GO, INLINE, MAIN, MOST_INLINE, SPILLED, UNFIT
from belljar.limits.counters import Counter, read_counters

_END = struct.Struct("=ciQQ")
"""As the jar's pid 1 packs it (`guest/pool/zygote.py`)."""
_MOST_SAID = 1024


class PooledProcess(BubblewrapProcess):
    """A jar that waits, until `start`; from then on a run."""

    def __init__(self, message: wire.Message, descriptors: list[int], pool: BubblewrapJar, helpers: int) -> None:
        gate, events, self.workspace, *self._counting = descriptors
        super().__init__(-1, -1, wire.received(events), pool, name=message["run"])
        self.gate = wire.received(gate)
        self.watched = select.poll()
        """For what says that it waits no more."""
        self.watched.register(gate, select.POLLIN)
        self._inside: tuple[int, ...] = ()
        """The ends of its outputs that it is given."""
        self.prepared: Prepared | None = None
        self.generation: int = message["zygote"]
        self._counters = _counters(message["counters"])
        self._counted: bool = message["counted"]
        """Whether the files of its group say what it used; else the stage looks, now and then."""
        self._helpers = helpers
        self._started = 0.0
        self._told: tuple[int, float, int] | None = None
        """What pid 1 said: wait status, seconds of processor time, bytes of memory."""
        self._problem = ""
        self._unfit = ""
        """Why what it was given could not be put into it."""
        self._unread = False

    def give(
        self, code: bytes, name: str, arguments: Sequence[str], files: Mapping[str, bytes], stdin: int | None
    ) -> None:
        """Give it what to run, which it does not do yet. Raises JarGoneError."""
        if not self._inside:
            self.have_outputs()
        self._send(packed(code, name, arguments, files), self._inside if stdin is None else (*self._inside, stdin))

    def give_at_once(self, body: bytes) -> None:
        """The same, packed, if that has at most MOST_INLINE bytes and is started in a moment: it stays awake.

        Raises JarGoneError.
        """
        if not self._inside:
            self.have_outputs()
        self._send_packet(AWAKE + body, self._inside)

    def have_outputs(self) -> None:
        """Make its outputs, if that has not been done while nobody waited."""
        if not self._inside:
            self.stdout, output = os.pipe2(os.O_CLOEXEC)
            self._inside = (output,)
            self.stderr, errors = os.pipe2(os.O_CLOEXEC)
            self._inside = (output, errors)

    def _close_inside(self) -> None:
        for descriptor in self._inside:
            os.close(descriptor)
        self._inside = ()

    def start(self, timeout_seconds: float) -> None:
        """Have it run what it was given. Raises JarGoneError, or as `end` UsageError, and then nothing has run.

        What need not be done before it runs is done while it wakes up.
        """
        try:
            self.gate.send(GO)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._hear()
            if self._unfit:  # nor would it fit into another
                raise does_not_fit(self._unfit) from None
            if self._told is None:  # else the code has ended its process while it was compiled, as it would another's
                raise JarGoneError from error
        self._started = time.monotonic()
        try:
            self._events.send(_begun(timeout_seconds))
        except OSError:
            pass  # then the stage is gone, and that is heard of
        self._close_inside()

    def _send(self, body: bytes, descriptors: tuple[int, ...]) -> None:
        if len(body) <= MOST_INLINE:
            self._send_packet(INLINE + body, descriptors)
            return
        with open(os.memfd_create("belljar-run", os.MFD_CLOEXEC), "wb", buffering=0) as spill:
            write_all(spill.fileno(), body)
            self._send_packet(SPILLED, (*descriptors, spill.fileno()))

    def _send_packet(self, packet: bytes, descriptors: tuple[int, ...]) -> None:
        passed = struct.pack(f"{len(descriptors)}i", *descriptors)
        try:
            self.gate.sendmsg((packet,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, passed),))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise JarGoneError from error

    def begin(self) -> None:
        """Its network is served; it waits on."""

    def fileno(self) -> int:
        """Readable when the run has ended: its pid 1 has told how, or is gone."""
        return self.gate.fileno()

    def end(self) -> End:
        """Wait for the end, and tell it.

        Raises:
            JarGoneError: it died by itself, and nothing has run.
            UsageError: nothing has run, because what it was given does not fit into it.
        """
        self._hear()
        if self._unfit:
            raise does_not_fit(self._unfit)
        if self._problem:
            return never_started("gate", self._problem)
        if self._told is None:
            return self._as_the_stage_says()
        sampled = not self._counted and time.monotonic() - self._started >= FIRST_SAMPLE_SECONDS
        return self._as_the_stage_says() if sampled or _has_word(self._events) else self._as_told()

    def _hear(self) -> None:
        if self._told is not None or self._problem or self._unfit:
            return
        try:
            said = self.gate.recv(_MOST_SAID)
        except ConnectionResetError:  # the kernel's word for what we sent and nobody read; then comes what was said
            self._unread = True
            said = self.gate.recv(_MOST_SAID)
        if len(said) == _END.size and said[:1] == b"E":
            _word, status, microseconds, most_bytes = _END.unpack(said)
            self._told = status, microseconds / 1e6, most_bytes
        elif said[:1] == b"F":
            self._problem = said[1:].decode(errors="replace")
        elif said[:1] == UNFIT:
            self._unfit = said[1:].decode(errors="replace")

    def _as_told(self) -> End:
        """Its pid 1 has told, and the stage has nothing to add: what it used is in the files of its group."""
        assert self._told is not None
        status, cpu_seconds, most_bytes = self._told
        counted = read_counters(self._counters, self._counting)
        code, number = _split(status)
        peak = counted.get("pids_peak")
        return End(
            exit_code=code,
            signal=number,
            ended_by="",
            problems=(),
            started=True,
            cpu_seconds=max(counted.get("cpu_seconds", 0.0), cpu_seconds),
            peak_memory_bytes=int(counted.get("memory_peak_bytes") or most_bytes),
            processes=max(1, int(peak) - self._helpers) if peak else None,
            bytes_read=None,
            bytes_written=None,
            oom_kills=int(counted.get("oom_kills", 0)),
            pids_refused=int(counted.get("pids_refused", 0)),
            observations=(),
            began=self._started,
        )

    def _as_the_stage_says(self) -> End:
        """It ended the jar, or saw something: with what pid 1 told, if it could still."""
        from dataclasses import replace

        end = super().end()
        if self._told is None:
            if self._unread and end.ended_by in ("", *LOST):
                raise JarGoneError
            return replace(end, started=True, began=self._started)
        status, cpu_seconds, most_bytes = self._told
        code, number = _split(status)
        lost = end.ended_by in LOST  # to the stage; pid 1 had told
        return replace(
            end,
            exit_code=code,
            signal=number,
            started=True,
            began=self._started,
            ended_by="" if lost else end.ended_by,
            problems=() if lost else end.problems,
            cpu_seconds=max(end.cpu_seconds, cpu_seconds),
            peak_memory_bytes=max(end.peak_memory_bytes or 0, most_bytes),
        )

    def _received_end(self) -> wire.Message:
        while True:
            message = super()._received_end()
            if "noted" not in message:
                return message

    def close(self) -> None:
        """Let go; a run that is still alive is ended by its stage."""
        super().close()
        self._close_inside()
        self.gate.close()
        for listener in self.listeners:
            os.close(listener.descriptor)
        self.listeners = ()
        if self.prepared is not None:
            self.prepared.abandon()
        for descriptor in (self.workspace, *self._counting):
            if descriptor >= 0:
                os.close(descriptor)
        self.workspace, self._counting = -1, []


def packed(code: bytes, name: str, arguments: Sequence[str], files: Mapping[str, bytes]) -> bytes:
    """As `guest/pool/pooled_code.py` unpacks it: words that end in NUL, the content of the files, the code."""
    if name == MAIN and not arguments and not files:
        return _PLAIN + code
    words = [name, str(len(arguments)), *arguments]
    for path, content in files.items():
        words += (path, str(len(content)))
    head = "\0".join((*words, "")).encode("utf-8", "surrogateescape")
    return b"".join((b"%10d" % len(head), head, *files.values(), code))


_PLAIN = b"%10d%s\x000\0" % (len(MAIN) + 3, MAIN.encode())
"""What comes before most code."""
_KNOWN: list[tuple[list[Any], list[Counter]]] = []


def _counters(told: list[Any]) -> list[Counter]:
    """What a jar's files count: mostly the same as the last one's."""
    for known, counters in _KNOWN:
        if known == told:
            return counters
    counters = [Counter(*counter) for counter in told]
    _KNOWN[:] = [(told, counters)]
    return counters


@cache
def _begun(timeout_seconds: float) -> bytes:
    """What the stage is told, of which every run of a pool has the same."""
    return wire.packet({"begin": timeout_seconds})


def _has_word(events: socket.socket) -> bool:
    poll = select.poll()
    poll.register(events, select.POLLIN)
    return bool(poll.poll(0))


def _split(status: int) -> tuple[int, int | None]:
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
