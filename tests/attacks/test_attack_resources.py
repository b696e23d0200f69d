"""Attacks on the machine's resources: the limit holds, the whole tree is gone, the host answers meanwhile.

Every probe is bounded: 200 processes, 200 MB, 50 MB of disk. A control runs it as an ordinary user, where it succeeds.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from attack_control import namespaces, ordinary_user, own_tmp, python, python_control
from attack_probe import escaped, held, python_probe

from belljar import RunResult, Sandbox
from belljar.backends.contract import Status

OpenJar = Callable[..., Sandbox]
RESPONSIVE_SECONDS = 3.0
"""The tests run on small and busy machines; a host that a bomb has reached takes far longer, or never answers."""


@contextmanager
def responsive_host() -> Iterator[None]:
    """Meanwhile, a small program on the host starts and ends, again and again, and never takes long."""
    stop = threading.Event()
    slowest = [0.0]

    def look() -> None:
        while not stop.wait(0.02):
            started = time.monotonic()
            subprocess.run(["/bin/true"], check=True)
            slowest[0] = max(slowest[0], time.monotonic() - started)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert slowest[0] < RESPONSIVE_SECONDS


def marked(marker: str) -> list[int]:
    """Processes of the host whose command line has the marker, but this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if marker.encode() in file.read():
                        found.append(int(name))
            except OSError:
                continue
    return found


def gone(marker: str, seconds: float = 5.0) -> bool:
    """Whether no process with the marker is left, after a little patience."""
    deadline = time.monotonic() + seconds
    while marked(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not marked(marker)


def as_attack(body: str) -> str:
    """A probe whose attack is to get through these lines. Python's own refusals (ValueError) count as the kernel's."""
    lines = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    refused = "    except ValueError as error:\n        raise OSError(errno.EPERM, str(error))"
    return python_probe(f"def attack():\n    try:\n{lines}\n{refused}\n    return 'past the limit'")


# --- processes -------------------------------------------------------------------------------------------------------

FORKS = python_probe(
    """
    def attack(*_marker):
        children = []
        try:
            for _ in range(200):
                pid = os.fork()
                if pid == 0:
                    time.sleep(30)
                    os._exit(0)
                children.append(pid)
        finally:
            for pid in children:
                os.kill(pid, 9)
        return f"{len(children)} processes"
    """
)
THREADS = python_probe(
    """
    def attack(*_marker):
        import threading
        stop = threading.Event()
        try:
            for _ in range(200):
                threading.Thread(target=stop.wait, daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error))
        finally:
            stop.set()
        return "200 threads"
    """
)


@pytest.mark.parametrize("code", [FORKS, THREADS], ids=["processes", "threads"])
def test_processes_are_limited(open_jar: OpenJar, code: str) -> None:
    """More processes or threads than proc.pids are refused; an ordinary user gets 200 of them."""
    with responsive_host():
        assert held(open_jar(overrides=["proc.pids=32"]).run(code))
    assert escaped(python_control(code))


def test_fork_bomb_is_contained_and_gone(open_jar: OpenJar) -> None:
    """A bomb that forks without end meets its limit, the host answers, and after the timeout not one of them lives."""
    marker = f"bomb-{secrets.token_hex(8)}"
    jar = open_jar(overrides=["proc.pids=32", "proc.timeout_ms=2s"])
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    seen: list[int] = []
    watcher = threading.Timer(1.0, lambda: seen.extend(marked(marker)))
    watcher.start()
    with responsive_host():
        result = jar.run(bomb, args=[marker])
    watcher.join()
    assert result.outcome == "timeout"
    assert result.duration < 10
    assert 1 < len(seen) <= 48  # the control of the next line: while it ran, they could be found
    assert gone(marker)


SURVIVORS = {
    "ignores SIGTERM": """
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        time.sleep(60)
    """,
    "blocks every signal": """
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        time.sleep(60)
    """,
    "forks twice and ends": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: time.sleep(60)
            os._exit(0)
        os.wait()
    """,
    "closes its output": """
        for number in range(3): os.close(number)
        time.sleep(60)
    """,
    "daemon that closes its output": """
        if os.fork() == 0:
            os.setsid()
            for number in range(3): os.close(number)
            time.sleep(60)
        os._exit(0)
    """,
    "stops itself": "os.kill(os.getpid(), 19)",
    "stops its siblings": """
        child = os.fork()
        if child == 0: time.sleep(60)
        os.kill(child, 19)
        os.kill(0, 19)
    """,
    "turns the processor": "while True: pass",
    "waits for nothing": "os.read(os.pipe()[0], 1)",
    "vfork": """
        if os.fork() == 0: ctypes.CDLL(None).syscall(58) or time.sleep(60)
        time.sleep(60)
    """,
    "changes its limits": """
        for number in (0, 5, 6, 7):
            try: resource.setrlimit(number, (-1, -1))
            except (OSError, ValueError): pass
        time.sleep(60)
    """,
    "lowers its own priority": """
        os.nice(19)
        while True: pass
    """,
}


SURVIVE_SIGTERM = {
    "ignores SIGTERM",
    "blocks every signal",
    "forks twice and ends",
    "daemon that closes its output",
    "stops itself",
    "stops its siblings",
    "vfork",
}
LIVES_ON = """
def attack(code, marker, terminate):
    for patience in (0.3, 2, 10):  # on a busy machine it may take a while until it has done its trick
        process = subprocess.Popen([sys.executable, "-I", "-c", code, marker], start_new_session=True, stdout=2)
        time.sleep(patience)
        if terminate:
            process.terminate()
            time.sleep(0.1)
        process.poll()
        for name in filter(str.isdigit, os.listdir("/proc")):
            if int(name) != os.getpid() and marker in open(f"/proc/{name}/cmdline").read():
                return name
    raise OSError(errno.ESRCH, "nobody")
"""


@pytest.mark.parametrize("name", SURVIVORS)
def test_nothing_outlives_its_run(open_jar: OpenJar, name: str) -> None:
    """Whatever a process does to live on, it is gone when the run has ended, and the run ends on time.

    In a control it does live on: when it was told to end, if that is its trick, or else as long as nobody tells it.
    """
    marker = f"survivor-{secrets.token_hex(8)}"
    jar = open_jar(overrides=["proc.timeout_ms=1s"])
    code = f"import ctypes, os, resource, signal, time\n{textwrap.dedent(SURVIVORS[name])}"
    result = jar.run(code, args=[marker])
    assert result.outcome in ("timeout", "ok", "failed")
    assert result.duration < 8
    assert not marked(marker)  # at once: the end of a run is verified, not hoped for
    said = python_control(python_probe(LIVES_ON), code, marker, "SIGTERM" if name in SURVIVE_SIGTERM else "")
    assert escaped(said), said


# --- memory ----------------------------------------------------------------------------------------------------------

MEMORY = {
    "anonymous": """
        data = bytearray(200 << 20)
        for i in range(0, len(data), 4096): data[i] = 1
    """,
    "many processes": """
        children = []
        for _ in range(5):
            children.append(os.fork())
            if children[-1] == 0:
                data = bytearray(b"x" * (40 << 20))
                time.sleep(1.5)
                os._exit(0)
        for child in children:
            if os.waitpid(child, 0)[1]: raise OSError(errno.ENOMEM, "killed")
    """,
    "shared mapping": """
        import mmap
        area = mmap.mmap(-1, 200 << 20)
        for i in range(0, 200 << 20, 4096): area[i] = 1
    """,
    "memfd": """
        end = os.memfd_create("x")
        for _ in range(200): os.write(end, bytes(1 << 20))
    """,
    "/dev/shm": """
        end = open("/dev/shm/belljar-attack", "wb")
        os.unlink(end.name)
        for _ in range(200): end.write(bytes(1 << 20))
    """,
    "/tmp": """
        end = open("/tmp/belljar-attack-memory", "wb")
        os.unlink(end.name)
        for _ in range(200): end.write(bytes(1 << 20))
    """,
    "System V": """
        libc.shmat.restype = ctypes.c_void_p
        key = libc.shmget(0, 200 << 20, 0o1600)
        at = libc.shmat(key, None, 0)
        libc.shmctl(key, 0, None)
        ctypes.memset(at, 1, 200 << 20)
    """,
    "sockets": """
        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        ends, total = [], 0
        while total < 200 << 20:
            one, two = socket.socketpair()
            one.setsockopt(1, 7, 1 << 22)
            one.setblocking(False)
            ends += [one, two]
            try:
                while True: total += one.send(bytes(65536))
            except BlockingIOError: pass
    """,
}
SEEN_WITHOUT_A_GROUP = {"anonymous", "many processes", "shared mapping", "System V"}


def memory_probe(name: str) -> str:
    return as_attack(MEMORY[name])


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_limited(open_jar: OpenJar, name: str) -> None:
    """200 MB of any kind in a jar of 64: out of memory. Where no group counts, the report says what is not seen."""
    jar = open_jar(overrides=["proc.mem_mb=64", "proc.timeout_ms=20s", "proc.open_files=4096", "proc.file_size_mb=512"])
    with responsive_host():
        result = jar.run(memory_probe(name))
    enforced = result.enforcement.clause("proc.mem_mb").status is Status.ENFORCED
    if enforced or name in SEEN_WITHOUT_A_GROUP:
        assert result.outcome == "oom", result
        assert "ESCAPED" not in result.stdout
    else:
        assert "not seen" in result.enforcement.clause("proc.mem_mb").lost
    assert escaped(python_control(memory_probe(name), setup=own_tmp("size=256m")))


def test_memory_that_files_hold_is_bounded_even_without_a_group(open_jar: OpenJar) -> None:
    """/tmp, /dev/shm and the workspace are memory too: fs.size_mb bounds them together, with a group or without."""
    jar = open_jar(overrides=["fs.size_mb=16"])
    code = python_probe(
        """
        def attack(*paths):
            for path in paths:
                with open(f"{path}/belljar-attack-fill", "wb") as end:
                    try:
                        for _ in range(10):
                            end.write(bytes(1 << 20))
                    finally:
                        end.flush()
            return "all of it"
        """
    )
    assert held(jar.run(code, args=["/workspace", "/tmp", "/dev/shm"]))
    assert escaped(python_control(code, "/tmp", "/dev/shm", setup=own_tmp()))


# --- disk, descriptors, output, processor ----------------------------------------------------------------------------


class Limit(NamedTuple):
    """A limit, the override that sets it low, and a probe that passes it."""

    name: str
    override: str
    body: str


LIMITS = (
    Limit(
        "disk",
        "fs.size_mb=16",
        """
        end = open("fill", "wb", 0)
        for _ in range(50): end.write(bytes(1 << 20))
        os.unlink("fill")
        """,
    ),
    Limit("inodes", "fs.inodes=500", "for i in range(1000): os.close(os.open(f'file{i}', os.O_CREAT))"),
    Limit("directories", "fs.inodes=500", "for i in range(1000): os.makedirs(f'directories/{i}')"),
    Limit("links", "fs.inodes=500", "for i in range(1000): os.symlink('x', f'link{i}')"),
    Limit("descriptors", "proc.open_files=64", "ends = [os.open('/dev/null', 0) for _ in range(200)]"),
    Limit(
        "descriptors, raised first",
        "proc.open_files=64",
        """
        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, 300), max(hard, 300)))
        ends = [os.open("/dev/null", 0) for _ in range(200)]
        """,
    ),
    Limit(
        "file size",
        "proc.file_size_mb=4",
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        end = open("big", "wb", 0)
        for _ in range(20): end.write(bytes(1 << 20))
        os.unlink("big")
        """,
    ),
    Limit(
        "file size, sparse",
        "proc.file_size_mb=4",
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        open("big", "wb", 0).truncate(1 << 30)
        """,
    ),
    Limit("disk, reserved", "fs.size_mb=16", "os.posix_fallocate(os.open('big', os.O_CREAT | os.O_RDWR), 0, 50 << 20)"),
    Limit(
        "inotify",
        "proc.pids=64",
        """
        made = [libc.inotify_init() for _ in range(100)]
        if min(made) < 0: raise OSError(errno.EMFILE, "no more")
        """,
    ),
    Limit(
        "message queues",
        "proc.pids=64",
        """
        if libc.mq_open(b"/belljar-attack", 0o102, 0o600, None) < 0: raise OSError(ctypes.get_errno(), "mq_open")
        libc.mq_unlink(b"/belljar-attack")
        """,
    ),
)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_limit_holds(open_jar: OpenJar, arena: Path, limit: Limit) -> None:
    """The limit refuses what is past it; an ordinary user without it gets through."""
    code = as_attack(limit.body)
    assert held(open_jar(overrides=[limit.override]).run(code))
    if limit.name == "inotify" and int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) <= 100:
        pytest.skip("this host gives no user so many, so there is no control")
    assert escaped(python_control(code, cwd=str(arena)))


def test_output_flood_is_cut(open_jar: OpenJar) -> None:
    """Output past proc.output_mb ends the run; what is kept is bounded, and the host keeps up."""
    marker = f"flood-{secrets.token_hex(8)}"
    code = "import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)"
    with responsive_host():
        result = open_jar(overrides=["proc.output_mb=2", "proc.timeout_ms=20s"]).run(code, args=[marker])
    assert result.outcome == "killed"
    assert result.truncated
    assert len(result.stdout) + len(result.stderr) <= 2 << 20
    assert gone(marker)
    flood = "import os, signal\nfor _ in range(64): os.write(1, b'x' * 65536)"
    assert len(python_control(flood)) > 2 << 20


def test_processor_is_shared(open_jar: OpenJar) -> None:
    """Processes that spin in a jar with a fifth of a processor use no more; outside they use what there is."""
    jar = open_jar(overrides=["proc.cpu_quota=0.2", "proc.timeout_ms=2s"])
    spin = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    with responsive_host():
        result = jar.run(spin)
    assert result.outcome == "timeout"
    if result.enforcement.clause("proc.cpu_quota").status is Status.ENFORCED:
        assert result.usage.cpu_seconds < _a_fifth_of_a_processor(result.duration)
    else:
        assert result.enforcement.clause("proc.cpu_quota").lost
    shares = (float(python_control(SPIN_A_SECOND)) for _attempt in range(10))  # others may want the processors too
    assert any(share > _a_fifth_of_a_processor(1) for share in shares)


def _a_fifth_of_a_processor(seconds: float) -> float:
    """What a fifth of a processor comes to in this time, with something for what is measured around it."""
    return 0.2 * seconds * 1.3 + 0.1


SPIN_A_SECOND = """
import os, resource, time
started = time.monotonic()
for _ in range(16):
    if os.fork() == 0:
        os.setsid()  # a busy machine's processors are shared out by session
        while time.monotonic() < started + 1: pass
        os._exit(0)
for _ in range(16): os.wait()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print((used.ru_utime + used.ru_stime) / (time.monotonic() - started))
"""
"""How many processors they use."""


@pytest.mark.parametrize("name", ["timeout_ms=500ms", "timeout_ms=1s"])
def test_clock_can_not_be_held(open_jar: OpenJar, name: str) -> None:
    """Neither a slow reader, nor input that never ends, nor a stopped process holds up the end of a run."""
    jar = open_jar(overrides=[f"proc.{name}"])
    reader, writer = os.pipe()
    started = time.monotonic()
    code = "import sys, os\nos.kill(os.getppid(), 19) if os.getppid() > 1 else None\nsys.stdin.read()"
    result = jar.run(code, stdin=reader)
    assert result.outcome == "timeout"
    assert time.monotonic() - started < 6
    with subprocess.Popen([*ordinary_user(), *namespaces(root=False, network=False), python(), "-I", "-c", code],
                          stdin=reader) as outside:  # fmt: skip
        with pytest.raises(subprocess.TimeoutExpired):  # the control: nobody ends it
            outside.wait(float(name.removeprefix("timeout_ms=").replace("500ms", "0.5s").removesuffix("s")))
        outside.kill()
    os.close(reader)
    os.close(writer)


HOLD = """
import socket, time
end = socket.socket(socket.AF_UNIX)
end.bind("hold")
end.listen()
kept = socket.recv_fds(end.accept()[0], 1, 4)
print("kept", flush=True)
time.sleep(4)
"""
GIVE = """
import os, socket, time
while not os.path.exists("hold"): time.sleep(0.01)
end = socket.socket(socket.AF_UNIX)
end.connect("hold")
socket.send_fds(end, [b"x"], [1, 2])
time.sleep(0.2)
"""


def test_end_of_a_run_is_not_held_up_by_another(open_jar: OpenJar) -> None:
    """A run that gave its output to another run of the same Sandbox ends when its own processes do."""
    jar = open_jar()
    kept: list[RunResult] = []
    holder = threading.Thread(target=lambda: kept.append(jar.run(HOLD)))
    holder.start()
    started = time.monotonic()
    assert jar.run(GIVE).ok
    took = time.monotonic() - started
    jar.kill()
    holder.join()
    assert "kept" in kept[0].stdout  # the control: it did hold the other's output
    assert took < 3
