"""The zygote of a pool: a Python that is up, with modules imported, from which every run's jar is cloned.

It runs inside an outer jar, has no secret and opens nothing of a run's. For each jar it clones a child into namespaces
of its own (`cloning`); that one is the jar's pid 1: it mounts what is the run's alone, gives up every capability, puts
on the filters, and forks the process that becomes the code (`pooled_code`), which waits for what to run.

    stage ── "clone" or "hurry", a socket for the run, the control groups' files ──▶ zygote
    pid 1 ── listener of its filter, directory of its files ──▶ stage
    code  ── "ready" ──▶ stage, which looks into the jar, and has it wait
    stage ── its end of the run's socket ──▶ host
    host  ── what to run, with its input and outputs ──▶ code, which closes the socket and is the code
    pid 1 ── how the code ended ──▶ host
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import ctypes
import gc
import os
import sys

TYPE_CHECKING = False  # see jar_steps
if TYPE_CHECKING:
    from typing import Any

    from belljar.guest.pool import cloning, pooled_code
else:
    import cloning  # which lies beside this file
    import pooled_code

PLACE = "/run/jar"
"""Where this file lies, with its settings; and, in a run's jar, the code."""

_PR_SET_NAME = 15
_SIG_IGN = 1
_OURS = ("cloning", "jar_steps", "pooled_code")
_MOST_WHY = 2000
_ZYGOTE_PID = os.getpid()
_libc = ctypes.PyDLL(None)


def main() -> None:
    """Serve the stage until its socket closes."""
    control = _socket.socket(fileno=cloning.CONTROL_FD)
    with open(f"{PLACE}/settings", encoding="utf-8") as file:
        settings: dict[str, Any] = eval(file.read(), {})  # noqa: S307 - the stage's own words, and no need of `json`
    _libc.prctl(_PR_SET_NAME, b"belljar-zygote", 0, 0, 0)
    for name in _OURS:
        del sys.modules[name]  # a program may have one of this name
    if why := _preload(settings["preload"], _beside(settings), control):
        control.send(b"error " + why.encode(errors="replace"))
        os._exit(1)
    maker = cloning.maker(settings)
    sys.path_importer_cache.clear()
    os.environ.clear()  # of the runs, from now on
    os.environ.update(settings["env"])
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_IGN)  # as Python has them
    gc.collect()
    gc.freeze()  # what is here now is shared with every child: a collection there need not touch it
    pooled_code.practise()
    gc.freeze()
    _libc.malloc_trim(0)
    _libc.signal(int(_signal.SIGCHLD), _SIG_IGN)  # behind Python's back: a program finds what it is in every Python
    gate, place, hurried = maker.serve(lambda: control.send(b"up"))
    control.detach()  # it is closed
    end = _socket.socket(fileno=gate)
    pooled_code.be_code(end, place, settings["env"], counted=settings["counted"], hurried=hurried)


def _preload(names: list[str], beside: list[str], control: _socket.socket) -> str:
    """Import what the pool was told to; why that can't be, in words, if it can't.

    The stage is told of each beforehand: if that is the last that it hears, it knows which one it was.
    """
    sys.path[1:1] = beside
    before = _Shared()
    for name in names:
        control.send(b"importing " + name.encode(errors="replace"))
        why = ""
        try:
            __import__(name)
        except BaseException as error:  # noqa: BLE001 - whatever a module does
            why = f"{type(error).__name__}: {error}"
        if os.getpid() != _ZYGOTE_PID:  # it has forked, and this is the copy: two would answer on one socket
            os._exit(0)
        if why := why or before.against(_Shared()):
            return f"{name} can't be preloaded: {why[:_MOST_WHY]}"
    for entry in beside:
        if entry in sys.path:
            sys.path.remove(entry)  # each run has its own
    return ""


def _beside(settings: dict[str, Any]) -> list[str]:
    """Where the policy has Python look for modules, but for what is a run's: nothing of a workspace is opened here."""
    of_runs = [f"{path.rstrip('/')}/" for path in (settings["workdir"], *settings["fresh"])]
    entries = settings["env"].get("PYTHONPATH", "").split(":")
    return [entry for entry in entries if entry[:1] == "/" and not f"{entry}/".startswith(tuple(of_runs))]


class _Shared:
    """What a copy of this process would lack, or have in common with all others, as it is now."""

    def __init__(self) -> None:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            self.memory = {line.split(" ", 1)[0] for line in file if _is_shared(line)}
        self.processes = {name for name in os.listdir("/proc") if name.isdecimal()}
        self.threads = len(os.listdir("/proc/self/task"))
        self.files = len(os.listdir("/proc/self/fd"))

    def against(self, later: _Shared) -> str:
        """What is wrong with what has been added since."""
        if later.processes - self.processes:
            return "it leaves a process behind, which would belong to no run"
        if later.threads > self.threads:
            return f"it starts {later.threads - self.threads} threads, which a copy would not have"
        if later.memory - self.memory:
            return "it holds memory that all copies would share, a lock between processes for example"
        if later.files != self.files:
            return "it holds a file or a socket open, which all copies would share"
        return ""


def _is_shared(line: str) -> bool:
    """Whether a line of /proc/self/maps is of memory that copies write to in common, or could.

    What is only read may become writable again if its file was opened so; that of a file which nobody can write to is
    as harmless as the file.
    """
    _place, access, _offset, _device, _inode, *path = line.split(maxsplit=5)
    if access[3] != "s":
        return False
    name = path[0].rstrip("\n") if path else ""
    return access[1] == "w" or name.endswith(" (deleted)") or os.access(name, os.W_OK)


if __name__ == "__main__":
    main()
