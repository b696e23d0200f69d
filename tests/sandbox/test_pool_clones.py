"""How a pool's jars are cloned: by a program that is no Python, or by Python itself. A run sees no difference."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar import Pool, SandboxUnavailableError
from belljar.backends.bubblewrap.host import compile_pool
from belljar.backends.pool_contract import does_not_fit
from belljar.errors import UsageError
from belljar.guest.pool.native import _compiled
from leftovers import descendants

ROOT = Path(__file__).resolve().parents[2]
HAS_NATIVE = os.uname().machine in _compiled.JAR
WAYS = ("native", "python") if HAS_NATIVE else ("python",)
PATIENCE = """
import time
def until(holds):
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end: time.sleep(0.005)
    return holds()
"""


def take(way: str, patch: pytest.MonkeyPatch) -> None:
    if way == "python":
        patch.setattr(compile_pool, "_native", lambda: None)


@pytest.fixture(scope="module", params=WAYS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        take(request.param, patch)
        pool = Pool(size=2)
    with pool:
        yield pool


def said(pool: Pool, code: str) -> str:
    result = pool.run(PATIENCE + code)
    assert result.ok, result.stderr
    return result.stdout.strip()


def _is_pid_one(entry: Path) -> bool:
    """Of a jar that was made without Python."""
    try:
        return entry.joinpath("exe").readlink().name == "jar.so"
    except OSError:
        return False


# --- the code's process is a Python as any other -------------------------------------------------------------------


def test_its_name_and_its_parent(pool: Pool) -> None:
    code = "import os; print(os.getpid() > 300, os.getppid(), open('/proc/self/comm').read())"
    *others, name = said(pool, code).split()
    assert others == ["True", "1"]
    assert name.startswith("python")


def test_its_signals_are_as_python_has_them(pool: Pool) -> None:
    code = """
import signal, subprocess, sys
special = {number: signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}}
print(sorted((int(number), str(handler)) for number, handler in special.items() if handler is not signal.SIG_DFL))
lines = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
print(lines["SigBlk"], lines["SigCgt"], int(lines["SigIgn"], 16) & ((1 << 31) - 1))
"""
    outside = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert said(pool, code).splitlines()[0] == outside.splitlines()[0]
    assert said(pool, code).splitlines()[1] == outside.splitlines()[1]


def test_its_children_can_be_waited_for(pool: Pool) -> None:
    """The zygote ignores the end of its own; the code does not."""
    assert said(pool, "import subprocess; print(subprocess.run(['sh', '-c', 'exit 7']).returncode)") == "7"
    code = (
        "import os\npid = os.fork()\nif not pid: os._exit(9)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert said(pool, code) == "9"


def test_its_main_thread_is_known_to_the_c_library(pool: Pool) -> None:
    """Which remembers its number: a copy that was not told of it would send the signal to nobody."""
    code = """
import signal, threading
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(threading.current_thread() is threading.main_thread()))
main = threading.main_thread().ident
other = threading.Thread(target=lambda: signal.pthread_kill(main, signal.SIGUSR1))
other.start(); other.join()
print(until(lambda: heard) and heard, threading.get_native_id() == __import__("os").getpid())
"""
    assert said(pool, code) == "[True] True"


def test_it_knows_on_which_processor_it_is(pool: Pool) -> None:
    """The kernel writes that to where the C library asked it to, in each thread; a copy has to ask again."""
    code = """
import ctypes, os
libc, seen = ctypes.CDLL(None), []
for processor in sorted(os.sched_getaffinity(0)) * 3:
    os.sched_setaffinity(0, {processor})
    seen.append(libc.sched_getcpu() == processor)
print(all(seen), len(seen) >= 3)
"""
    assert said(pool, code) == "True True"


def test_threads_and_locks(pool: Pool) -> None:
    code = """
import concurrent.futures, logging, random, threading
with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, range(-50, 50))))
logging.warning("there")
__import__("json")
print(threading.active_count(), threading.current_thread().name)
"""
    assert said(pool, code).splitlines() == ["2500", "1 MainThread"]


def test_hooks_for_a_fork_have_run() -> None:
    """What modules of the zygote's asked to be done in a copy is done, once, in the code's process."""
    seen = set()
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            take(way, patch)
            with Pool(size=2, preload=["random", "logging", "threading"]) as pool:
                seen |= {said(pool, "import random; print(random.random())") for _ in range(4)}
    assert len(seen) == 4 * len(WAYS)


# --- its end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", (0, None)),
        ("import sys; sys.exit(7)", (7, None)),
        ("import os; os._exit(300)", (44, None)),
        ("import os; os.abort()", (134, "SIGABRT")),
        ("import os; os.kill(os.getpid(), 9)", (137, "SIGKILL")),
        ("import ctypes; ctypes.string_at(0)", (139, "SIGSEGV")),
        ("import os; os.execvp('sh', ['sh', '-c', 'exit 3'])", (3, None)),
    ],
)
def test_how_it_ended(pool: Pool, code: str, expected: tuple[int, str | None]) -> None:
    result = pool.run(code)
    assert (result.exit_code, result.signal) == expected


def test_what_it_used_is_told(pool: Pool) -> None:
    used = pool.run("import os\nx = bytearray(64 << 20)\nfor _ in range(3_000_000): pass\nos._exit(0)").usage
    assert used.cpu_seconds is not None
    assert used.cpu_seconds > 0.02
    assert (used.peak_memory_bytes or 0) > 60 << 20


def test_orphans_come_to_pid_1_which_lets_go_of_them(pool: Pool) -> None:
    code = """
import os
for _ in range(20):
    pid = os.fork()
    if not pid:
        if not os.fork(): os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
def others():
    return [name for name in os.listdir("/proc") if name.isdecimal() and name not in ("1", str(os.getpid()))]
print(until(lambda: not others()))
"""
    assert said(pool, code) == "True"


def test_nothing_that_it_left_goes_on(pool: Pool) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '4711']).pid > 1)"
    assert said(pool, code) == "True"
    deadline = time.monotonic() + 10  # a run is told of before everything of it is gone
    while (left := b"sleep\x004711\0" in _commands()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def _commands() -> list[bytes]:
    return [_read(entry / "cmdline") for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# --- its first process ----------------------------------------------------------------------------------------------


def test_pid_1_takes_no_orders(pool: Pool) -> None:
    """Of the code, which can see neither its memory nor its descriptors, and can't end it."""
    code = """
import os, signal
for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGRTMIN}):
    os.kill(1, number)
os.kill(1, signal.SIGKILL)
os.kill(1, signal.SIGSTOP)
print(os.listdir("/proc/1"))
"""
    assert said(pool, code) == "[]"


@pytest.mark.skipif(not HAS_NATIVE or os.geteuid() != 0, reason="needs the program, and root to see its memory")
def test_pid_1_has_nothing_of_the_zygote() -> None:
    """Neither its memory nor its files: it executes a program of two pages."""
    with Pool(size=1) as pool, pool.stream("print('here', flush=True); import time; time.sleep(60)") as events:
        next(events)
        ours = [entry for pid in descendants(os.getpid()) if _is_pid_one(entry := Path(f"/proc/{pid}"))]
        assert ours
        for entry in ours:
            status = dict(line.split(":\t") for line in (entry / "status").read_text().splitlines() if ":\t" in line)
            assert int(status["VmSize"].split()[0]) < 1000
            assert "python" not in (entry / "maps").read_text()
            assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapEff"], 16)) == ("1", "2", 0)


@pytest.mark.skipif(not HAS_NATIVE, reason="there is no such program for this machine")
def test_the_program_is_nothing_but_a_pid_1(tmp_path: Path) -> None:
    """Whoever else executes it gets nothing: it ends every process that it may, and must not do that anywhere else."""
    program = tmp_path / "jar.so"
    program.write_bytes(base64.b64decode(_compiled.JAR[os.uname().machine]))
    program.chmod(0o755)
    for words in ([], ["1"], ["3", "4", "5", "1", "34"]):
        assert subprocess.run([program, *words], check=False).returncode == 125


def test_a_step_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "covered", lambda _policy: {"/proc/nothing": "null"})
    with pytest.raises(SandboxUnavailableError, match="mount /proc/nothing: No such file or directory"), Pool() as pool:
        pool.run("pass")


DEADLY = """
import ctypes, os
callback = ctypes.CFUNCTYPE(None)(lambda: os._exit(3) if os.getpid() == 1 else None)
ctypes.CDLL(None).__register_atfork(callback, None, None, None)
"""


@pytest.mark.parametrize("way", WAYS)
def test_one_that_dies_within_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The pool does not try for ever, and says the same whether the zygote ends with the copy or lives on.

    Without Python the copy leaves locks behind in the zygote's memory, so the zygote ends too.
    """
    take(way, monkeypatch)
    tmp_path.chmod(0o755)
    (tmp_path / "deadly.py").write_text(DEADLY)
    policy = {"fs": {"mounts": [{"path": "/deps", "source": str(tmp_path)}]}, "env": {"set": {"PYTHONPATH": "/deps"}}}
    started = time.monotonic()
    with (
        pytest.raises(SandboxUnavailableError, match="the pool's interpreter ends when it makes a jar"),
        Pool(policy, size=1, preload=["deadly"]) as pool,
    ):
        pool.run("pass")
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("way", WAYS)
def test_as_few_open_files_as_a_policy_may_have(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a jar is made with is not open in the code's process."""
    take(way, monkeypatch)
    with Pool({"proc": {"open_files": 8}}, size=1) as pool:
        assert said(pool, "print(1)") == "1"
        assert said(pool, "#" * 100_000 + "\nprint(2)") == "2"
        assert pool.run("print(open('a').read())", files={"a": "3"}).stdout == "3\n"
        with pytest.raises(UsageError, match="Too many open files"):  # large code and input are two more
            pool.run("#" * 100_000 + "\nprint(input())", stdin="4")


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        ("main.py: Too many open files", "raise proc.open_files"),
        ("a: No space left on device", "give less, or raise fs.size_mb and fs.inodes"),
        ("a: File name too long", "rename it"),
    ],
)
def test_what_is_not_taken_is_told_with_what_to_do_about_it(why: str, hint: str) -> None:
    error = does_not_fit(why)
    assert why in error.message
    assert error.hint == hint


@pytest.mark.skipif(not HAS_NATIVE, reason="there is no program that could be forbidden")
def test_where_it_may_not_be_executed_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = base64.b64encode(b"\x7fELF, and no more").decode()
    monkeypatch.setattr(compile_pool, "_native", lambda: broken)
    with Pool(size=1) as pool:
        assert said(pool, "print(4)") == "4"


def test_the_program_is_what_its_source_says() -> None:
    """Byte for byte, by the compiler that made it."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from generate import native_program  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    try:
        compiler, program = native_program()
    except FileNotFoundError:
        pytest.skip("no gcc")
    if compiler != _compiled.COMPILER or os.uname().machine != "x86_64":
        pytest.skip(f"it was made by {_compiled.COMPILER}; this is {compiler}")
    assert base64.b64decode(_compiled.JAR["x86_64"]) == program


def other_pythons() -> list[Path]:
    """Those of other versions that this machine has, and that run belljar's part of a jar."""
    here = f"python3.{sys.version_info.minor}"
    places = [Path(place) for place in os.environ.get("PATH", "").split(":")]
    places += [*Path.home().glob(".pyenv/versions/*/bin"), Path("/usr/bin")]
    found = {path.name: path for place in places for path in place.glob("python3.1[1-9]") if path.name != here}
    return [found[name] for name in sorted(found) if found[name].resolve().parent.name == "bin"]


@pytest.mark.parametrize("way", WAYS)
def test_other_versions_of_python(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interpreter does about a fork is its own affair, and is not the same in all of them."""
    if not (others := other_pythons()):
        pytest.skip("this machine has no other Python")
    take(way, monkeypatch)
    code = "import concurrent.futures, sys, threading\nwith concurrent.futures.ThreadPoolExecutor(2) as pool:"
    code += " list(pool.map(abs, range(9)))\nimport subprocess; subprocess.run(['true'], check=True)"
    for other in others:
        with Pool({"python": {"interpreter": str(other)}}, size=2, preload=["threading", "logging"]) as pool:
            assert said(pool, f"{code}\nprint('python3.%d' % sys.version_info.minor)") == other.name
            assert all(result.ok for result in pool.map([code] * 6))
            assert pool.run("import os; os.abort()").signal == "SIGABRT"
