"""The code's process in a jar of a pool: gets ready, waits for what to run, and is it.

Forked from the jar's pid 1 (`zygote`), with no capability and every filter on. Until it has closed the socket it is
belljar's own; nothing of the run is in it before.

    host ── one packet: arguments, files and code, with its outputs (and input, and a memory file if it is large) ──▶
    host ── "G" ──▶ only now it runs: the host writes down that it does, while the code is put in its place and compiled
"""

from __future__ import annotations

import _io
import _signal  # type: ignore[import-not-found]
import _socket
import _thread
import atexit
import builtins
import ctypes
import gc
import os
import struct
import sys
from _frozen_importlib_external import SourceFileLoader  # as `importlib.machinery` has it

TYPE_CHECKING = False  # a program finds the modules that `python FILE` has, and those that the pool was told to preload
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, NoReturn

PLACE = "/run/jar"
"""Where the code lies."""
MAIN = "main.py"
"""What its file is called, if nobody says."""
LEAVING = int(_signal.SIGRTMIN)
"""What Python that has run to its end sends to pid 1, just before it exits."""
CLONE, HURRY = b"clone", b"hurry"
"""What the zygote is asked for: a jar; or one that somebody waits for, which loses no time on being quicker later."""
INLINE, SPILLED = b"J", b"S"
"""How what to run comes: in the packet itself; or in a memory file."""
AWAKE = b"A"
"""In the packet, and the word to run it follows at once: there is nothing to sleep for."""
GO = b"G"
UNFIT = b"U"
"""With why: what was given can't be put into the jar."""
MOST_INLINE = 60 << 10
"""What travels in the packet itself."""

_PR_SET_DUMPABLE = 4
_INTERRUPTED = -1
"""What no program can exit with."""
_MOST_PACKET = MOST_INLINE + 1
_UNWANTED_SECONDS = 0.01
_EMFILE, _EMSGSIZE = 24, 90
_LOOKS = 600
_NONE = -1
_MANY_FILES = 16
"""Where a process may have so many open, one that waits may have one for nothing."""
_ROOM = _socket.CMSG_SPACE(4 * 4)

_libc = ctypes.PyDLL(None, use_errno=True)
_HAS_ANNOTATIONS = "__annotations__" in vars(sys.modules["__main__"])
"""Whether this Python gives some to a program from the start, as it did to the zygote."""
_MOST_STATUS = (1 << 63) - 1


def be_code(gate: _socket.socket, place: int, env: dict[str, str], *, counted: bool, hurried: bool) -> NoReturn:
    """Get ready, wait for the word, and be the code. `place` is the directory in which its file is to lie.

    The fewer objects it touches before it waits, the less memory a jar that waits has of its own. If it is hurried,
    someone waits for it, and it rehearses only when nobody has come after all.
    """
    code, file = 125, _NONE
    try:
        _reseed()
        if not hurried:
            file = _rehearse(gate, place)
        gc.freeze()  # what is here now is not the run's, and need not be looked at when it ends
        gate.send(b"ready")
        if hurried and not _is_wanted(gate):
            file = _rehearse(gate, place)
            gc.freeze()
        body, descriptors, awake = _receive(gate)
        source = _unpack(body, gate, place, file)
        os.close(place)
        _connect(descriptors)  # before it is compiled: the compiler may have something to say
        program = _prepared(*source, env)
        _may_be_looked_at(1)  # nobody is here yet who could
        if ((_at_once(gate) if awake else b"") or gate.recv(1)) != GO:  # nobody wants it any more
            os._exit(125)
        gate.close()
        os.closerange(3, 1 << 20)  # nothing else is open from here on
        code = _python(program)
        if counted:  # else what it used is known only when it has ended
            _libc.sigqueue(1, LEAVING, ctypes.c_void_p(code))
    finally:
        os._exit(code)


def _connect(descriptors: list[int]) -> None:
    """Have the outputs, and the input, in their places."""
    for wanted, descriptor in zip((1, 2, 0), descriptors, strict=False):
        os.dup2(descriptor, wanted)


def _may_be_looked_at(so: int) -> None:
    _libc.prctl(_PR_SET_DUMPABLE, so, 0, 0, 0)


def _is_wanted(gate: _socket.socket) -> bool:
    """Whether it is told what to run in a moment."""
    gate.settimeout(_UNWANTED_SECONDS)
    try:
        gate.recv(1, _socket.MSG_PEEK)
    except TimeoutError:
        return False
    finally:
        gate.settimeout(None)
    return True


def _at_once(gate: _socket.socket) -> bytes:
    """The word that comes within a millisecond, for which one does not sleep; else nothing."""
    for _ in range(_LOOKS):
        try:
            return gate.recv(1, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()  # to whoever has it under way, if there is no other processor
    return b""


def _receive(gate: _socket.socket) -> tuple[bytes, list[int], bool]:
    """What to run, its descriptors, and whether the word follows at once. What is large comes in a memory file."""
    packet, ancillary, flags, _address = gate.recvmsg(_MOST_PACKET, _ROOM)
    if not packet:  # nobody will come
        os._exit(125)
    if flags & _socket.MSG_CTRUNC:  # not all of what came with it: its errors, or its input, would go nowhere
        gate.send(UNFIT + f"its outputs and its input: {os.strerror(_EMFILE)}".encode())
        os._exit(125)
    if flags & _socket.MSG_TRUNC:  # nor a part of the code
        gate.send(UNFIT + f"what to run: {os.strerror(_EMSGSIZE)}".encode())
        os._exit(125)
    descriptors = list(struct.unpack(f"{len(ancillary[0][2]) // 4}i", ancillary[0][2])) if ancillary else []
    kind = packet[:1]
    if kind != SPILLED:
        return packet[1:], descriptors, kind == AWAKE
    with open(descriptors.pop(), "rb") as spill:
        spill.seek(0)
        return spill.read(), descriptors, False


def _unpack(body: bytes, gate: _socket.socket, place: int, file: int = _NONE) -> tuple[str, list[str], bytes]:
    """Put the files where the code finds them; its path, its arguments and its text. `file` is MAIN, if it is there.

    Ten digits say how long the first part is: words that end in NUL. The name of the code, how many arguments it has,
    they, and for each file its path and its size. The content of the files follows, and then the code.
    """
    start = 10 + int(body[:10])
    words = body[10 : start - 1].decode("utf-8", "surrogateescape").split("\0")
    name, first_file = words[0], 2 + int(words[1])
    content = body[start:]
    try:
        for path, size in zip(words[first_file::2], map(int, words[first_file + 1 :: 2]), strict=True):
            if "/" in path:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            _write(path, content[:size], _created(path))
            content = content[size:]
        if file != _NONE and name != MAIN:
            os.close(file)
            os.unlink(MAIN, dir_fd=place)
            file = _NONE
        _write(name, content, _created(name, place) if file == _NONE else file)
    except OSError as error:  # it was given what does not fit
        gate.send(UNFIT + f"{error.filename or name}: {error.strerror or error}".encode(errors="replace")[:500])
        os._exit(125)
    return f"{PLACE}/{name}", words[2:first_file], content


def _created(path: str, directory: int | None = None) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=directory)


def _write(path: str, content: bytes, descriptor: int) -> None:
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError as error:
        error.filename = path
        raise
    os.close(descriptor)


def _rehearse(gate: _socket.socket, place: int) -> int:
    """Go through what a run does once, for nothing: what is touched here for the first time is copied now, not then.

    The file MAIN, empty, if there may be one.
    """
    kept = _state()
    here, there = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    there.send(AWAKE + _REHEARSAL)
    there.send(GO)
    there.close()  # a run may have very few files open
    body, _none, _awake = _receive(here)
    source = _unpack(body, gate, place)
    _connect([1, 2])
    program = _prepared(*source, {"PYTHONPATH": "/tmp"})
    _may_be_looked_at(0)
    _at_once(here)
    here.close()
    os.closerange(1 << 16, 1 << 20)
    _python(program, rehearses=True)
    os.unlink("rehearsal.py", dir_fd=place)
    _put_back(kept)
    _let_go({"nothing": []})
    _carefully(sys.stdout.flush)
    gc.collect()
    return _created(MAIN, place) if os.sysconf("SC_OPEN_MAX") >= _MANY_FILES else _NONE


def _state() -> tuple[Any, ...]:
    """What a program has of the interpreter's, as it is."""
    return sys.argv[:], sys.orig_argv[:], sys.path[:], sys.excepthook, sys.modules["__main__"]


def _put_back(state: tuple[Any, ...]) -> None:
    sys.argv[:], sys.orig_argv[:], sys.path[:] = state[:3]
    sys.excepthook, sys.modules["__main__"] = state[3:]
    sys.path_importer_cache.clear()


def practise() -> None:
    """In the zygote: go through much of it many times.

    Python writes to its instructions as it learns what they work on. What it knows then, no copy has to learn, and to
    copy what is written to for that.
    """
    kept = _state()
    here, there = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    for _ in range(_PRACTICES):
        there.send(AWAKE + _REHEARSAL)
        _receive(here)
        program = _prepared(f"{PLACE}/{MAIN}", ["x"], _PRACTICE, {"PYTHONPATH": "/tmp"})
        _run_code(program, sys.modules["__main__"].__dict__)
        _let_go({"nothing": []})
        _carefully(sys.stdout.flush)
        _put_back(kept)
    here.close()
    there.close()


_REHEARSAL = b"""        17rehearsal.py\x001\0x\0
import sys
print(f"{1}")
sys.stdout.flush()
"""
"""What almost every program does. What others do costs memory in every jar that waits, and would save them little."""
_PRACTICE = b"import sys\nif len(sys.argv) > 2: print(sys.argv)\n"
_PRACTICES = 30
"""More than Python takes to know."""


def _reseed() -> None:
    """What is random in a program must not be the same in all copies of it; `random` sees to that itself."""
    if (mtrand := sys.modules.get("numpy.random.mtrand")) is not None:
        mtrand._rand.seed()  # noqa: SLF001 - what `numpy.random.seed` calls
    if (openssl := sys.modules.get("_ssl")) is not None:
        openssl.RAND_add(os.urandom(32), 32.0)
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    if (tempfile := sys.modules.get("tempfile")) is not None:
        tempfile.__dict__["_name_sequence"] = None  # made anew when next asked for


def _prepared(path: str, arguments: list[str], source: bytes, env: dict[str, str]) -> Any:
    """All that `python FILE ARGUMENTS…` does before it runs the file; its code, or what is wrong with it."""
    sys.argv[:] = [path, *arguments]
    sys.orig_argv[:] = [sys.executable, path, *arguments]
    beside = [entry for entry in env.get("PYTHONPATH", "").split(":") if entry]
    ours = [entry for entry in sys.path if entry != PLACE]
    sys.path[:] = ours  # the compiler imports codecs, and what it shows a warning with: nothing of the run's, before GO
    sys.excepthook = _without_us
    module = type(sys)("__main__")
    loader = SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None, __loader__=loader)
    if _HAS_ANNOTATIONS:
        module.__annotations__ = {}
    sys.modules["__main__"] = module
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001 - it is no Python, has a NUL in it, or is nested too deeply
        return _with_a_nul(source, path) if b"\0" in source else error
    finally:
        sys.path[:] = [os.path.dirname(path), *beside, *ours]
        sys.path_importer_cache.clear()


def _with_a_nul(source: bytes, path: str) -> SyntaxError:
    """What Python says of a file that has one; of a text, it says less."""
    before = source[: source.index(b"\0")]
    text = before[before.rfind(b"\n") + 1 :].decode(errors="replace")
    return SyntaxError("source code cannot contain null bytes", (path, before.count(b"\n") + 1, 0, text))


def _python(code: Any, *, rehearses: bool = False) -> int:
    """What `python FILE ARGUMENTS…` would do, in a Python that is up already: to its exit code."""
    space = sys.modules["__main__"].__dict__
    if isinstance(code, Exception):
        _show(code)
        return 1
    status = _run_code(code, space)
    if rehearses:
        return status
    if (threading := sys.modules.get("threading")) is not None:
        _carefully(threading._shutdown)  # noqa: SLF001
    _carefully(atexit._run_exitfuncs)  # noqa: SLF001
    if _thread._count() and status != _INTERRUPTED:  # noqa: SLF001
        # Only the interpreter's own end, which takes its time, stops threads that go on before things go away.
        del space  # the program's names are held by itself alone, as there
        _libc.Py_Exit(status)
    _let_go({} if _thread._count() else space)  # noqa: SLF001
    out = sys.stdout
    if out is not None and not out.closed and not _carefully(out.flush):
        status = 120
    if sys.stderr is not None and not sys.stderr.closed:
        _carefully(sys.stderr.flush)
    if status == _INTERRUPTED:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    return status


def _run_code(code: Any, space: dict[str, Any]) -> int:
    """Run it as the interpreter runs a script, to its exit code."""
    try:
        exec(code, space)  # noqa: S102 - that is the point
    except SystemExit as leaving:
        return _exit_code(leaving)
    except KeyboardInterrupt as error:
        _show(error)
        return _INTERRUPTED
    except BaseException as error:  # noqa: BLE001
        _show(error)
        return 1
    return 0


def _let_go(space: dict[str, Any]) -> None:
    """What the interpreter does at its end, as far as someone may wait for it: run finalizers, write open files."""
    names = [name for name in space if not (name.startswith("__") and name.endswith("__"))]
    for name in sorted(names, key=lambda name: not name.startswith("_")):
        space[name] = None
    _carefully(gc.collect)
    for thing in gc.get_objects():
        if issubclass(type(thing), _io._IOBase) and thing not in (sys.stdout, sys.stderr):  # noqa: SLF001
            try:
                if not thing.closed and thing.writable():
                    thing.flush()
            except BaseException:  # noqa: BLE001, S110 - the program's own
                pass


def _show(error: BaseException) -> None:
    """By the program's own hook; if that one fails, both errors are shown."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as other:  # noqa: BLE001 - the program's own
        try:
            print("Error in sys.excepthook:", file=sys.stderr)
            _without_us(type(other), other, other.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            _without_us(type(error), error, error.__traceback__)
        except BaseException:  # noqa: BLE001, S110 - its stderr
            pass


def _carefully(step: Callable[[], object]) -> bool:
    try:
        step()
    except BaseException as error:  # noqa: BLE001 - the program's own
        _show(error)
        return False
    return True


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        fits = -_MOST_STATUS - 1 <= leaving.code <= _MOST_STATUS  # in C, where what does not is -1
        return leaving.code & 0xFF if fits else 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _without_us(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an uncaught error as Python does, without the frames in which belljar started the code."""
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)
