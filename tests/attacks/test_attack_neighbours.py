"""Attacks of one run on another: one after the other and at once, in different Sandboxes, neither finds the other.

Also: what lives on when a thread ends.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_control import python_control
from attack_probe import escaped, held, python_probe

from belljar import Sandbox
from belljar.sandbox.record.events import Finished

OpenJar = Callable[..., Sandbox]

LEAVE = """
import ctypes, os, socket, sys, time
word = sys.argv[1]
libc = ctypes.CDLL(None)
for place in ("/workspace", "/tmp", "/dev/shm", os.path.expanduser("~")):
    try:
        os.makedirs(place, exist_ok=True)
        open(f"{place}/{word}", "w").write(word)
    except OSError:
        pass
libc.shmget(int(word[:6], 16), 4096, 0o1666)
libc.msgget(int(word[:6], 16), 0o1666)
libc.semget(int(word[:6], 16), 1, 0o1666)
end = socket.socket(socket.AF_UNIX)
end.bind(f"\\0{word}")
end.listen()
server = socket.socket()
server.bind(("127.0.0.1", 20000 + int(word[:3], 16)))
server.listen()
print("ready", flush=True)
sys.stdin.read()
"""
FIND = python_probe(
    """
    def attack(word, seconds="0"):
        found = []
        for place in ("/workspace", "/tmp", "/dev/shm", os.path.expanduser("~")):
            if os.path.exists(f"{place}/{word}"):
                found.append(place)
        key = int(word[:6], 16)
        for name in ("shmget", "msgget", "semget"):
            if getattr(libc, name)(key, *((0, 0) if name != "msgget" else (0,))) >= 0:
                found.append(name)
        port = 20000 + int(word[:3], 16)
        for family, address in ((socket.AF_UNIX, f"\\0{word}"), (socket.AF_INET, ("127.0.0.1", port))):
            try:
                socket.socket(family).connect(address)
                found.append(str(address))
            except OSError:
                pass
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if word in open(f"/proc/{pid}/cmdline").read() and int(pid) != os.getpid():
                    found.append(f"process {pid}")
            except OSError:
                pass
        for name in filter(os.path.exists, ("/proc/self/mountinfo", "/proc/locks")):
            if word in open(name).read():
                found.append(name)
        if not found:
            raise OSError(errno.ENOENT, "no trace")
        return found
    """
)


def leave(jar: Sandbox, word: str) -> tuple[int, object]:
    """Start a run that leaves every kind of trace and waits."""
    reader, writer = os.pipe()
    events = iter(jar.stream(LEAVE, args=[word], stdin=reader))
    assert b"ready" in next(events).data  # type: ignore[union-attr]
    os.close(reader)
    return writer, events


def end_run(writer: int, events: object) -> None:
    os.close(writer)
    last = list(events)[-1]  # type: ignore[call-overload]
    assert isinstance(last, Finished)
    assert last.result.ok, last.result


def test_two_sandboxes_at_once_share_nothing(open_jar: OpenJar) -> None:
    """While one jar has files, queues, sockets, a server and a process, another finds none of them."""
    word = secrets.token_hex(8)
    first, second = open_jar(), open_jar()
    running = leave(first, word)
    assert held(second.run(FIND, args=[word]))
    end_run(*running)


def test_one_sandbox_after_another_shares_nothing(open_jar: OpenJar) -> None:
    """What a closed Sandbox left is not in the next one, nor on the host."""
    word = secrets.token_hex(8)
    first = open_jar()
    end_run(*leave(first, word))
    first.close()
    assert held(open_jar().run(FIND, args=[word]))
    assert not any(word in name for place in ("/tmp", "/dev/shm", "/run") for name in os.listdir(place))


def test_two_runs_of_one_sandbox_share_the_workspace_only(open_jar: OpenJar) -> None:
    """A second run sees the workspace of the first and nothing else: no process, queue, socket, temporary file."""
    word = secrets.token_hex(8)
    jar = open_jar()
    running = leave(jar, word)
    said = jar.run(FIND, args=[word]).stdout
    assert said.strip() == "ESCAPED: ['/workspace']", said
    end_run(*running)
    jar.files.remove(word)
    assert held(jar.run(FIND, args=[word]))


def test_traces_of_those_tests_can_be_found() -> None:
    """The control: in one place without a jar, the second program finds what the first one left."""
    both = f"""
import os, subprocess, sys, tempfile
os.environ["HOME"] = tempfile.mkdtemp()
command = [sys.executable, "-I", "-c", {LEAVE!r}, sys.argv[1]]
first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
first.stdout.read(1)
subprocess.run([sys.executable, "-I", "-c", {FIND!r}, sys.argv[1]])
word = sys.argv[1]
for place in ("/tmp", "/dev/shm", os.environ["HOME"]):
    if os.path.exists(f"{{place}}/{{word}}"): os.unlink(f"{{place}}/{{word}}")
os.rmdir(os.environ["HOME"])
first.kill()
"""
    word = secrets.token_hex(8)
    said = python_control(
        f"import fcntl, socket, struct\nfcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH22x', b'lo', 1))\n{both}",
        word,
        root=True,
    )
    assert escaped(said)
    for trace in ("/tmp", "shmget", "msgget", "semget", "process", "127.0.0.1"):
        assert trace in said


RANDOM = """
import os, random, tempfile, uuid
print(random.random(), os.urandom(4).hex(), uuid.uuid4(), tempfile.mktemp(), hash("x"), flush=True)
"""


def test_random_numbers_differ_between_runs(open_jar: OpenJar) -> None:
    """Two runs of one Sandbox, one of them in a jar that was waiting, have no state in common that could be guessed."""
    jar = open_jar()
    values = [jar.run(RANDOM).stdout.split() for _ in range(4)]
    for column in zip(*values, strict=True):
        assert len(set(column)) == 4, column
    # The control: copies of one process that was waiting have its hashes in common.
    copies = f"import os\nfor _ in range(2):\n if os.fork() == 0:\n  exec({RANDOM!r}); os._exit(0)\n os.wait()"
    assert len({line.split()[-1] for line in python_control(copies).splitlines()}) == 1


# --- what the kernel counts for each user ----------------------------------------------------------------------------


USE_UP = """
import ctypes, os, signal, socket, sys
libc = ctypes.CDLL(None)
pairs, used = [], 0
try:
    while used < 2000:
        pairs.append(socket.socketpair())
        for _ in range(2):
            socket.send_fds(pairs[-1][0], [b"x"], [0] * 250)
            used += 250
except OSError:
    pass
while len(pairs) < 1000 and libc.inotify_init1(0o2000000) >= 0:
    pairs.append(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
while libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), None) == 0:
    pass
print("ready", flush=True)
sys.stdin.read()
"""
"""Has descriptors in flight, inotify instances and queued signals, as many as there may be, and waits."""
NEED = python_probe(
    """
    import resource
    def attack():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        refused = []
        one, other = socket.socketpair()
        try:
            socket.send_fds(one, [b"x"], [0])
        except OSError:
            refused.append("descriptors in flight")
        if libc.inotify_init1(0) < 0:
            refused.append("inotify instances")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
        if libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), None) < 0:
            refused.append("queued signals")
        if not refused:
            raise OSError(errno.ENOENT, "nothing is lacking")
        return refused
    """
)
"""Needs one of each. The attack has succeeded where there is none."""


def use_up(jar: Sandbox) -> tuple[int, object]:
    """Start a run that uses up what the kernel counts for its user, and waits."""
    reader, writer = os.pipe()
    events = iter(jar.stream(USE_UP, stdin=reader))
    assert b"ready" in next(events).data  # type: ignore[union-attr]
    os.close(reader)
    return writer, events


def test_one_sandbox_does_not_use_up_what_another_needs(open_jar: OpenJar) -> None:
    """Another one opens and runs. Where root started it, its user's counters are its own, too."""
    running = use_up(open_jar())
    needs = open_jar().run(NEED)
    assert held(needs) or os.geteuid() != 0, needs
    end_run(*running)


def test_one_user_can_use_up_what_another_process_needs() -> None:
    """The control: two processes of one user share the counters."""
    both = f"""
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
resource.setrlimit(resource.RLIMIT_SIGPENDING, (1024, 1024))
first = subprocess.Popen([sys.executable, "-I", "-c", {USE_UP!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
first.stdout.read(1)
subprocess.run([sys.executable, "-I", "-c", {NEED!r}])
first.kill()
"""
    said = python_control(both)
    assert escaped(said)
    for lacking in ("descriptors", "inotify", "signals"):
        assert lacking in said, said


# --- threads ---------------------------------------------------------------------------------------------------------


TIED = """
import ctypes, os, threading
libc = ctypes.CDLL(None)
def worker():
    global child
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        libc.prctl(1, 9, 0, 0, 0)
        os.write(writer, b"x")
        libc.pause()
    os.read(reader, 1)
thread = threading.Thread(target=worker)
thread.start()
thread.join()
print("ended by", os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
"""The control of the next test: a child that asked to die with its parent dies with the thread that made it."""


def test_run_goes_on_when_its_thread_ends(open_jar: OpenJar) -> None:
    """PDEATHSIG follows the thread that launched: a run that a worker started lives on when the worker has ended."""
    jar = open_jar()
    reader, writer = os.pipe()
    started: list[object] = []

    def worker() -> None:
        events = iter(jar.stream("import sys; print('started', flush=True); print(sys.stdin.read())", stdin=reader))
        next(events)
        started.append(events)

    for _ in range(2):  # the second worker finds a launcher, and perhaps a jar, that another thread made
        thread = threading.Thread(target=worker)
        thread.start()
        thread.join()
        os.close(reader)
        os.write(writer, b"still here")
        os.close(writer)
        last = list(started.pop())[-1]  # type: ignore[call-overload]
        assert last.result.ok
        assert "still here" in last.result.stdout
        reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    assert "ended by 9" in python_control(TIED)


def _all_at_once(one: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("count", [8])
def test_many_at_once_do_not_mix(backend: str, project: Path, arena: Path, count: int) -> None:
    """Runs in many threads and Sandboxes: each gets its own output, code and files; in one directory they mix."""
    results: dict[int, str] = {}

    def in_a_jar(number: int) -> None:
        with Sandbox(backend=backend, workspace=project) as jar:
            jar.files.write("own", str(number))
            results[number] = jar.run(f"print({number}, open('own').read())").stdout

    _all_at_once(in_a_jar, count)
    assert results == {number: f"{number} {number}\n" for number in range(count)}
    assert list(project.iterdir()) == []

    written = threading.Barrier(count)

    def in_one_place(number: int) -> None:
        (arena / "own").write_text(str(number))
        written.wait()
        results[number] = f"{number} {(arena / 'own').read_text()}\n"

    _all_at_once(in_one_place, count)
    assert results != {number: f"{number} {number}\n" for number in range(count)}
