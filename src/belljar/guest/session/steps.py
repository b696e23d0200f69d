"""A session's interpreter: runs one step after the other in one namespace. Inside the jar, in the code's own process.

The host believes nothing of what it says. What it does well, it does for the code: variables stay, the value of the
last expression comes back, tracebacks begin at the step's own code.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import signal
import socket
import struct
import sys
import traceback
from _thread import allocate_lock, get_ident
from types import CodeType, FrameType
from typing import Any, NoReturn

from belljar.guest.session import rich

HEAD = struct.Struct("!cI")
"""Between a supervisor and its interpreters: kind, length."""
STEP, FORK, UP, SHOWN, DONE = b"S", b"F", b"U", b"D", b"R"
SLOT = struct.Struct("!Q")
_COROUTINE = 0x80
_NO_STDIN = "/dev/null"
_LONG = 1 << 63


class Interpreter:
    """The code's process. Everything it tells goes over its socket; what the code prints goes into its pipes."""

    def __init__(self, channel: socket.socket, marks: Any, slot: int) -> None:
        self._channel = channel
        self._marks = marks
        """Shared with the supervisor: for each interpreter, the step that is to be interrupted."""
        self._slot = slot
        self._step = 0
        self._running = False
        """Whether code of the step's runs, which may be interrupted: its own, and what renders its value."""
        self._pid = os.getpid()
        """The process that the supervisor leads. A child that a step forked has all this, too, and is led by nobody."""
        self._thread = get_ident()
        """The one that runs the steps, and that an interrupt is for."""
        self._telling = allocate_lock()
        self._loop: Any = None
        self._others_loops: list[Any] = []
        """Those of the interpreters that this one was forked from, kept for ever: to close one would disturb them."""
        self.main = type(sys)("__main__")
        self.main.__dict__.update(__builtins__=builtins, display=self._display)

    def serve(self) -> None:
        """Do what comes, until the supervisor is gone."""
        self._settle()
        self._tell(UP, {"pid": os.getpid(), "python": sys.version.split()[0]})
        while True:
            kind, payload, descriptors = self._receive()
            if kind == FORK:
                self._fork(payload, descriptors)
            elif kind == STEP:
                order = json.loads(payload)
                try:
                    done = self._do(order)
                except KeyboardInterrupt:  # while an error was being told, whose text is the code's own, too
                    self._running = False
                    done = {"step": self._step, "error": _told(KeyboardInterrupt()), "interrupted": True}
                self._flush()
                if os.getpid() != self._pid:
                    _end_as_child(done)
                self._tell(DONE, done)

    def _settle(self) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "belljar"]:
            del sys.modules[name]
        sys.modules["__main__"] = self.main
        sys.meta_path.append(rich.FigureBackendFinder(self._show_figures))
        os.environ.setdefault("MPLBACKEND", f"module://{rich.FIGURES}")
        sys.path[0] = ""
        sys.argv[:] = [""]
        self._open_streams()

    def _open_streams(self) -> None:
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    # --- a step ---

    def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        self._step = order["step"]
        self._give_input(order.get("stdin"))
        signal.signal(signal.SIGINT, self._interrupt)
        done: dict[str, Any] = {"step": self._step}
        try:
            value = self._run(order["code"])
            if value is not None:
                self.main.__dict__["_"] = value
                done |= {"value": rich.text_of(value), "bundle": rich.bundle_of(value)}
            self._show_figures()
        except SystemExit as error:
            done["exit"] = _status(error)
        except BaseException as error:  # noqa: BLE001 - whatever the code raises is told
            done |= {"error": _told(error), "interrupted": isinstance(error, KeyboardInterrupt)}
        finally:
            self._running = False
        return done

    def _run(self, source: str) -> Any:
        """Run it, and return the value of its last expression."""
        name = f"<step {self._step}>"
        # Every line ends in a newline, as in a file: without it, `traceback` puts its carets one column off.
        linecache.cache[name] = (len(source), None, f"{source}\n".splitlines(keepends=True), name)
        body = ast.parse(source, name)
        last: ast.Expression | None = None
        if body.body and isinstance(body.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
            last = ast.Expression(body.body.pop().value)  # type: ignore[attr-defined]
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        codes = [compile(body, name, "exec", flags, dont_inherit=True)]
        if last is not None:
            codes.append(compile(last, name, "eval", flags, dont_inherit=True))
        self._running = True
        self._check_mark()
        value = None
        for code in codes:
            value = self._evaluate(code)
        return value

    def _evaluate(self, code: CodeType) -> Any:
        value = eval(code, self.main.__dict__)  # noqa: S307 - that is the point
        if not code.co_flags & _COROUTINE:
            return value
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(value)
        try:
            return self._loop.run_until_complete(task)
        finally:
            if not task.done():
                task.cancel()

    def _give_input(self, text: str | None) -> None:
        if text is None:
            descriptor = os.open(_NO_STDIN, os.O_RDONLY)
        else:
            descriptor = os.memfd_create("stdin")
            with open(os.dup(descriptor), "wb") as file:
                file.write(text.encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)  # type: ignore[misc]  # noqa: SIM115

    # --- interrupting ---

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._running:
            self._check_mark()

    def _check_mark(self) -> None:
        """A signal alone may be a late one, for the step before: the mark says which step is meant."""
        if SLOT.unpack_from(self._marks, self._slot * SLOT.size)[0] == self._step:
            SLOT.pack_into(self._marks, self._slot * SLOT.size, 0)
            raise KeyboardInterrupt

    # --- telling ---

    def _display(self, *values: object) -> None:
        """`display(value, …)`: show values before the step has ended."""
        self._flush()
        for value in values:
            self._tell(SHOWN, {"text": rich.text_of(value), "bundle": rich.bundle_of(value)})

    def _show_figures(self) -> None:
        for figure in rich.figures():
            self._flush()
            self._tell(SHOWN, {"text": "<figure>", "bundle": figure})

    def _flush(self) -> None:
        for stream in {id(one): one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}.values():
            try:
                stream.flush()  # type: ignore[union-attr]
            except Exception:  # noqa: BLE001, S110 - the code may have put anything there, or closed it
                pass

    def _tell(self, kind: bytes, what: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return  # a child's words between its parent's would make nonsense of both
        payload = json.dumps(what).encode()
        interruptible = self._running and get_ident() == self._thread
        if interruptible:
            self._running = False  # an interrupt waits until it is told: half a frame would make nonsense of all others
        try:
            with self._telling:
                self._channel.sendall(HEAD.pack(kind, len(payload)) + payload)
        finally:
            if interruptible:
                self._running = True
                self._check_mark()

    def _receive(self) -> tuple[bytes, bytes, list[int]]:
        data, descriptors = b"", []
        while len(data) < HEAD.size:
            piece, more, _flags, _address = socket.recv_fds(self._channel, HEAD.size - len(data), 3)
            if not piece:
                os._exit(0)
            data += piece
            descriptors += more
        kind, length = HEAD.unpack(data)
        payload = bytearray()
        while len(payload) < length:
            piece = self._channel.recv(min(1 << 20, length - len(payload)))
            if not piece:
                os._exit(0)
            payload += piece
        return kind, bytes(payload), descriptors

    # --- a fork of all that it holds ---

    def _fork(self, payload: bytes, descriptors: list[int]) -> None:
        """Another interpreter with the same variables, that answers over a socket and pipes of its own."""
        self._flush()
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            for descriptor in descriptors:
                os.close(descriptor)
            return
        if os.fork():  # so that it is no child of the code's, which may wait for its own
            os._exit(0)
        self._pid = os.getpid()
        self._telling = allocate_lock()  # a thread may have had it, and is no more
        self._channel.close()
        self._channel = socket.socket(fileno=descriptors[0])
        self._slot = int(payload)
        for number, descriptor in enumerate(descriptors[1:], start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        self._open_streams()
        self._leave_loop()
        self._tell(UP, {"pid": os.getpid(), "python": sys.version.split()[0]})

    def _leave_loop(self) -> None:
        """A copy of an event loop waits on the same descriptors as the other, and each takes what wakes the other."""
        if self._loop is not None:
            import asyncio

            self._others_loops.append(self._loop)
            self._loop = None
            asyncio.set_event_loop(None)


def _end_as_child(done: dict[str, Any]) -> NoReturn:
    """In a process that a step forked and that has come to the step's end: it ends as a script's would."""
    if error := done.get("error"):
        os.write(2, error["traceback"].encode(errors="backslashreplace"))
    os._exit(done.get("exit", 1 if error else 0))


def _status(error: SystemExit) -> int:
    """As Python's own: a number, where it is one that fits, or a text on standard error."""
    try:
        if error.code is None or isinstance(error.code, int):
            status = int(error.code or 0)
            return status & 0xFF if -_LONG <= status < _LONG else 0xFF
        sys.stderr.write(f"{error.code}\n")
    except Exception:  # noqa: BLE001, S110 - the code's own text, or what it put in the place of standard error
        pass
    return 1


def _told(error: BaseException) -> dict[str, str]:
    """An error as Python would show it, without the frames that are ours."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<step "):
        trace = trace.tb_next
    try:
        told = traceback.TracebackException(type(error), error, trace)
        told.stack[:] = [frame for frame in told.stack if frame.filename != "<belljar>"]
        lines = list(told.format())
        message = str(error)
    except Exception:  # noqa: BLE001 - the code's own error, which may do anything
        lines, message = [f"{type(error).__name__}\n"], ""
    return {"type": type(error).__name__, "message": message, "traceback": "".join(lines)}
