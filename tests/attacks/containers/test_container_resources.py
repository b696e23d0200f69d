"""Limits in a container: the tables of test_attack_resources. The whole tree is gone, the host answers meanwhile."""

from __future__ import annotations

import os
import secrets
import textwrap
import threading
import time
from collections.abc import Callable

import pytest
from attack_batch import Row, escapes, run_all
from test_attack_resources import (
    FORKS,
    GIVE,
    HOLD,
    LIMITS,
    SURVIVORS,
    THREADS,
    as_attack,
    gone,
    marked,
    memory_probe,
    responsive_host,
)

from belljar import RunResult, Sandbox
from belljar.backends.contract import Status

OpenJar = Callable[..., Sandbox]
PATIENCE_SECONDS = 15.0
"""An engine on a small and busy machine takes its time to start a container; a run that is held up never ends."""

SMALL = ["proc.pids=32", "fs.size_mb=16", "fs.inodes=500", "proc.open_files=64", "proc.timeout_ms=60s"]
_COUNTED_BY_USER = {"inotify"}
"""Where the engine has no user namespace, the kernel counts these for the user, and the container's is a real one."""
_COUNTED_AS_MEMORY = {"message queues"}
"""In gVisor, whose kernel is the container's own and has no limit for them but that of its memory."""
_NEED_A_FRESH_JAR = {"disk", "inodes", "directories", "links", "disk, reserved"}


def test_limits_hold(open_jar: OpenJar, backend: str) -> None:
    """Processes, threads, bytes, files, descriptors, sizes: what is past the limit is refused; the Sandbox goes on."""
    jar = open_jar(overrides=[*SMALL, "proc.file_size_mb=4"])
    rows = [Row("processes", FORKS), Row("threads", THREADS)]
    rows += [Row(limit.name, as_attack(limit.body)) for limit in LIMITS if limit.name not in _NEED_A_FRESH_JAR]
    with responsive_host():
        found = escapes(run_all(jar, rows))
    assert not set(found) - _COUNTED_BY_USER - (_COUNTED_AS_MEMORY if backend == "gvisor" else set()), found
    jar = open_jar(overrides=SMALL)
    for limit in LIMITS:
        if limit.name in _NEED_A_FRESH_JAR:
            result = jar.run(as_attack(limit.body))
            assert "HELD: ENOSPC" in result.stdout, (limit.name, result)
            assert jar.run("print('alive')").stdout == "alive\n", limit.name
            for entry in jar.files.list():
                jar.files.remove(entry.path)


def test_fork_bomb_is_contained_and_gone(open_jar: OpenJar, backend: str) -> None:
    """A bomb that forks without end meets its limit, the host answers, and after the timeout not one of them lives."""
    marker = f"bomb-{secrets.token_hex(8)}"
    bomb = f"sleep 60 {marker} & while :; do sleep 60 & done"
    jar = open_jar(overrides=["proc.pids=32", "proc.timeout_ms=2s"])
    seen: list[int] = []

    def watch() -> None:  # the container has to come up first
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not seen and not over.is_set() and time.monotonic() < deadline:
            seen.extend(marked(marker))
            over.wait(0.05)

    over = threading.Event()
    watcher = threading.Thread(target=watch)
    with responsive_host():
        watcher.start()
        result = jar.run(bomb.replace("sleep 60 " + marker, f"python3 -c 'import time; time.sleep(60)' {marker}"),
                         language="bash")  # fmt: skip
    over.set()
    watcher.join()
    assert result.outcome in ("timeout", "failed")
    assert result.duration < PATIENCE_SECONDS
    assert seen or backend == "gvisor"  # whose processes are no processes of the host's
    assert gone(marker)


SURVIVE = (
    "blocks every signal",
    "forks twice and ends",
    "daemon that closes its output",
    "stops its siblings",
    "vfork",
)


def test_nothing_outlives_its_run(open_jar: OpenJar) -> None:
    """Whatever a process does to live on, it is gone when the run has ended, and the run ends on time."""
    jar = open_jar(overrides=["proc.timeout_ms=1s"])
    for name in SURVIVE:
        marker = f"survivor-{secrets.token_hex(8)}"
        code = f"import ctypes, os, resource, signal, time\n{textwrap.dedent(SURVIVORS[name])}"
        result = jar.run(code, args=[marker])
        assert result.outcome in ("timeout", "ok", "failed"), name
        assert result.duration < PATIENCE_SECONDS
        assert not marked(marker), name


def test_memory_is_limited(open_jar: OpenJar) -> None:
    """200 MB of any kind in a jar of 96: out of memory, or told in the report; and the next run is not hurt."""
    jar = open_jar(overrides=["proc.mem_mb=96", "proc.timeout_ms=30s", "proc.open_files=4096", "proc.file_size_mb=512"])
    for name in ("anonymous", "many processes", "shared mapping", "memfd", "/dev/shm"):
        with responsive_host():
            result = jar.run(memory_probe(name))
        if result.enforcement.clause("proc.mem_mb").status is Status.ENFORCED:
            assert result.outcome == "oom", (name, result)
        assert "ESCAPED" not in result.stdout, name
        assert jar.run("print('alive')").stdout == "alive\n"


def test_output_processor_and_clock(open_jar: OpenJar) -> None:
    """A flood is cut, a fifth of a processor is a fifth, and no input that never ends holds up the end."""
    jar = open_jar(overrides=["proc.output_mb=2", "proc.timeout_ms=3s", "proc.cpu_quota=0.2"])
    flood = "import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)"
    with responsive_host():
        result = jar.run(flood)
    assert result.outcome in ("killed", "timeout")
    assert len(result.stdout) + len(result.stderr) <= 2 << 20
    reader, writer = os.pipe()
    started = time.monotonic()
    result = jar.run("import os, sys\nfor _ in range(3): os.fork()\nwhile True: pass", stdin=reader)
    os.close(reader)
    os.close(writer)
    assert result.outcome == "timeout"
    assert time.monotonic() - started < PATIENCE_SECONDS
    if result.enforcement.clause("proc.cpu_quota").status is Status.ENFORCED:
        assert result.usage.cpu_seconds < 0.2 * result.duration * 1.3 + 0.5


def test_end_of_a_run_is_not_held_up_by_another(open_jar: OpenJar, backend: str) -> None:
    """A run that gave its output to another run of the same Sandbox ends when its own processes do."""
    if backend == "gvisor":
        pytest.skip("a socket of one gVisor can't be reached from another: nothing can be given")
    jar = open_jar()
    kept: list[RunResult] = []
    holder = threading.Thread(target=lambda: kept.append(jar.run(HOLD.replace("sleep(4)", "sleep(120)"))))
    holder.start()
    started = time.monotonic()
    assert jar.run(GIVE).ok
    took = time.monotonic() - started
    jar.kill()
    holder.join()
    assert "kept" in kept[0].stdout  # the control: it did hold the other's output
    assert took < PATIENCE_SECONDS
