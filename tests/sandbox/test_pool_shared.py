"""What the runs of a pool share, their interpreter and what it has preloaded; and that they share nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar import Pool, RunResult, SandboxUnavailableError

pytestmark = pytest.mark.backend("bubblewrap")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One for all tests that leave it as it was: that they can is what is tested."""
    with Pool(size=3, timeout="20s") as made:
        yield made


def told(result: RunResult) -> str:
    """What the code printed, if it ran to its end."""
    assert result.ok, result
    return result.stdout


# --- a run finds no trace of another ---------------------------------------------------------------------------------

LEAVES = """
import builtins, json, os, random, socket, subprocess, sys, tempfile
builtins.left = json.left = "mine"
os.environ["LEFT"] = "mine"
sys.path.append("/left")
sys.modules["left"] = json
for path in ("/workspace/left", "/tmp/left", "/dev/shm/left", "/tmp/home/left"):
    open(path, "w").write("mine")
end = socket.socket(socket.AF_UNIX)
end.bind("\\0left")
end.listen()
server = socket.create_server(("127.0.0.1", 4000))
subprocess.Popen(["sleep", "300"], start_new_session=True)
os.umask(0)
print("left")
"""
FINDS = """
import builtins, glob, json, os, socket, sys
found = [name for name in ("builtins", "json") if hasattr(sys.modules[name], "left")]
found += [name for name in ("LEFT",) if name in os.environ]
found += [path for path in sys.path if "left" in path] + [name for name in sys.modules if name == "left"]
found += glob.glob("/workspace/*") + glob.glob("/tmp/*") + glob.glob("/dev/shm/*") + glob.glob("/tmp/home/*")
for family, place in ((socket.AF_UNIX, "\\0left"), (socket.AF_INET, ("127.0.0.1", 4000))):
    try:
        socket.socket(family).connect(place)
        found.append(str(place))
    except OSError:
        pass
found += [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]
found += [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3]
found += [hex(os.umask(0o22))] if os.umask(0o22) != 0o22 else []
print(json.dumps(found))
"""


def test_nothing_of_a_run_is_found_by_the_next(pool: Pool) -> None:
    """Neither after it nor beside it. In the run itself the same search finds everything."""
    alone = json.loads(told(pool.run(LEAVES + FINDS)).splitlines()[-1])
    assert {"builtins", "json", "LEFT", "/left", "left", "/workspace/left", "/tmp/left", "/dev/shm/left"} <= set(alone)
    assert json.loads(told(pool.run(FINDS))) == ["/tmp/home"]
    with pool.stream(LEAVES + "import time; time.sleep(60)") as events:
        next(events)
        for _ in range(4):
            assert json.loads(told(pool.run(FINDS))) == ["/tmp/home"]


def test_terminals_flags_and_groups_are_the_runs_own(pool: Pool) -> None:
    """A terminal of one run is not there for another, nor what it did to its input; and no group is named."""
    opens = "import os, time; os.openpty(); print(os.listdir('/dev/pts'), flush=True); time.sleep(60)"
    with pool.stream(opens) as events:
        assert b"'0'" in next(events).data  # type: ignore[union-attr]
        assert told(pool.run("import os; print(os.listdir('/dev/pts'))")) == "['ptmx']\n"
    flags = (
        "import fcntl; f = fcntl.fcntl(0, fcntl.F_GETFL); print(f & 0o6000); fcntl.fcntl(0, fcntl.F_SETFL, f | 0o6000)"
    )
    assert [told(pool.run(flags)) for _ in range(2)] == ["0\n", "0\n"]
    groups = told(pool.run("print(open('/proc/self/cgroup').read())")).split()
    assert not [line for line in groups if "belljar" in line]


def test_openssl_is_not_the_same_twice(environment: str) -> None:
    """Though it was used before the copies were made; neither in a run nor in a process that a run starts."""
    code = """
import os, ssl
print(ssl.RAND_bytes(16).hex(), flush=True)
for _ in range(3):
    if os.fork() == 0:
        print(ssl.RAND_bytes(16).hex(), flush=True)
        os._exit(0)
    os.wait()
import multiprocessing
print(multiprocessing.current_process().authkey.hex())
"""
    with Pool({"python": {"venv": environment}}, preload=["usesssl", "multiprocessing"]) as pool:
        said = [word for _ in range(3) for word in told(pool.run(code)).split()]
    assert len(set(said)) == 15, said


def test_what_is_random_differs() -> None:
    """Though all are copies of one process."""
    code = "import random, tempfile; print(random.random(), tempfile.mktemp(), random.Random().random())"
    with Pool(preload=["random", "tempfile"]) as pool:
        said = [told(pool.run(code)).split() for _ in range(4)]
    for column in zip(*said, strict=True):
        assert len(set(column)) == 4, said


def test_namespaces_are_each_ones_own(pool: Pool) -> None:
    """Seven kinds, of two runs at once and of one after them: no two are the same, nor this process's."""
    code = (
        "import os; print([os.readlink(f'/proc/self/ns/{n}') for n in ('user','mnt','pid','net','ipc','uts','cgroup')])"
    )
    with pool.stream(code + "\nimport time; time.sleep(60)") as events:
        first = next(events).data.decode()  # type: ignore[union-attr]
        second, third = told(pool.run(code)), told(pool.run(code))
    seen = [set(eval(text)) for text in (first, second)]
    seen.append({os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")})
    assert len(seen[0] | seen[1]) == 14
    assert seen[2].isdisjoint(seen[0] | seen[1] | set(eval(third)))


# --- the zygote ------------------------------------------------------------------------------------------------------


def test_preloaded_modules_are_there() -> None:
    with Pool(preload=["decimal", "xml.dom.minidom"], size=1) as pool:
        assert told(pool.run("import sys; print({'decimal', 'xml.dom.minidom'} <= set(sys.modules))")) == "True\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A virtual environment with modules that are not like others."""
    path = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(path, symlinks=True)
    (packages,) = path.glob("lib/*/site-packages")
    (packages / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (packages / "leaves.py").write_text("raise SystemExit('not today')\n")
    (packages / "holds.py").write_text("held = open('/etc/passwd')\n")
    (packages / "maps.py").write_text("import mmap\nheld = mmap.mmap(-1, 4096)\n")
    (packages / "locks.py").write_text("import multiprocessing\nheld = multiprocessing.Lock()\n")
    (packages / "forks.py").write_text("import os\nos.fork()\n")
    (packages / "detaches.py").write_text("import os, time\nif os.fork() == 0: os.fork() or time.sleep(60)\n")
    (packages / "spawns.py").write_text("import subprocess\nheld = subprocess.Popen(['sleep', '60'])\n")
    (packages / "vanishes.py").write_text("import os\nos._exit(3)\n")
    (packages / "crashes.py").write_text("import ctypes\nctypes.string_at(0)\n")
    (packages / "asks.py").write_text("import subprocess\nsaid = subprocess.run(['true']).returncode\n")
    (packages / "usesssl.py").write_text("import ssl; ssl.create_default_context(); ssl.RAND_bytes(4)\n")
    return str(path)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("no_such_module", "ModuleNotFoundError"),
        ("threaded", "threaded can't be preloaded: it starts 1 threads"),
        ("leaves", "leaves can't be preloaded: SystemExit: not today"),
        ("holds", "holds can't be preloaded: it holds a file or a socket open"),
        ("maps", "maps can't be preloaded: it holds memory that all copies would share"),
        ("locks", "locks can't be preloaded: it holds memory that all copies would share"),
        ("forks", "forks can't be preloaded: it leaves a process behind"),
        ("detaches", "detaches can't be preloaded: it leaves a process behind"),
        ("spawns", "spawns can't be preloaded: it leaves a process behind"),
        ("vanishes", "vanishes can't be preloaded: it ends the interpreter"),
        ("crashes", "crashes can't be preloaded: it ends the interpreter"),
    ],
)
def test_what_can_not_be_preloaded(environment: str, module: str, why: str) -> None:
    """Is an error in words, before the first run."""
    with pytest.raises(SandboxUnavailableError, match=why):
        Pool({"python": {"venv": environment}}, preload=["asks", module]).close()


def test_preloading_from_where_the_policy_says(tmp_path: Path) -> None:
    """`PYTHONPATH` holds for `preload` as for the code, which finds each entry once."""
    (tmp_path / "elsewhere.py").write_text("")
    policy = {"fs": {"mounts": [{"path": "/data", "source": str(tmp_path)}]}, "env": {"set": {"PYTHONPATH": "/data"}}}
    with Pool(policy, size=1, preload=["elsewhere"]) as pool:
        code = "import sys; print('elsewhere' in sys.modules, sys.path.count('/data'))"
        assert told(pool.run(code)) == "True 1\n"


def test_packages_of_a_virtual_environment(environment: str) -> None:
    """Are there, wherever it lies: this one is beneath /tmp, where every run has a directory of its own."""
    with Pool({"python": {"venv": environment}}, size=1) as pool:
        result = pool.run("import threaded, sys; print(sys.prefix)")
        assert told(result) == f"{environment}\n"


def _zygotes() -> set[int]:
    """Processes of this name, among the descendants of this process."""
    from belljar.backends.bubblewrap.host.client import LAUNCHER

    def below(pid: int) -> Iterator[int]:
        with contextlib.suppress(OSError):
            for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                yield child
                yield from below(child)

    found = set()
    for pid in below(LAUNCHER._pid):
        with contextlib.suppress(OSError):
            found |= {pid} if "belljar-zygote" in Path(f"/proc/{pid}/comm").read_text() else set()
    return found


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_a_zygote_that_dies_is_replaced(pool: Pool) -> None:
    """The run that was in a jar of its is lost, and told; those that come after it are run."""
    told(pool.run("pass"))  # the tests' own pool is up
    before = _zygotes()
    with Pool(size=2) as short_lived:
        failed: list[BaseException | RunResult] = []

        def run() -> None:
            try:
                failed.append(short_lived.run("import time; time.sleep(60)"))
            except SandboxUnavailableError as error:
                failed.append(error)

        waiting = threading.Thread(target=run)
        waiting.start()
        while (seen := short_lived.statistics()).running < 1 or seen.waiting < 2:  # a jar in the making has its name
            time.sleep(0.02)
        (zygote,) = _zygotes() - before
        os.kill(zygote, signal.SIGKILL)
        while _is_alive(zygote):
            time.sleep(0.005)
        assert told(short_lived.run("print('on')")) == "on\n"
        waiting.join(20)
        assert len(failed) == 1
        assert "the jar was lost" in str(failed[0])
        assert short_lived.statistics().zygotes == 2
