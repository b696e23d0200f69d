"""`Pool`: every run is fresh, ends alone, leaves nothing, and is like any other run but for its speed."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar import PolicyError, Pool, RunResult, Sandbox, SandboxUnavailableError
from belljar.errors import UsageError
from belljar.sandbox.record.result import Outcome

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


# --- like any Python -------------------------------------------------------------------------------------------------


def test_output_arguments_input_and_exit_code(pool: Pool) -> None:
    """As `python main.py a b < input`."""
    code = "import sys; print(sys.argv, input(), __name__, __file__); print('err', file=sys.stderr); sys.exit(7)"
    result = pool.run(code, args=["a", "b"], stdin="typed\n")
    assert (result.outcome, result.exit_code) == (Outcome.FAILED, 7)
    assert result.stdout == "['/run/jar/main.py', 'a', 'b'] typed __main__ /run/jar/main.py\n"
    assert result.stderr == "err\n"


ENDS = {
    "an error": ("def f():\n    1/0\nf()", 1, None, "ZeroDivisionError: division by zero\n"),
    "a message": ("raise SystemExit('so long')", 1, None, "so long\n"),
    "exit without a code": ("raise SystemExit", 0, None, ""),
    "a large code": ("raise SystemExit(256 + 3)", 3, None, ""),
    "a code that no C long holds": ("raise SystemExit(2**70)", 255, None, ""),
    "another, below": ("raise SystemExit(-2**70)", 255, None, ""),
    "the lowest that fits": ("raise SystemExit(-2**63)", 0, None, ""),
    "no syntax": ("def", 1, None, "SyntaxError: invalid syntax\n"),
    "a NUL": (
        "x = 1\ny = 2; a = '\0'\n",
        1,
        None,
        '  File "/run/jar/main.py", line 2\n    y = 2; a = \'\nSyntaxError: source code cannot contain null bytes\n',
    ),
    "os._exit": ("import os; os._exit(9)", 9, None, ""),
    "a signal": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143, "SIGTERM", ""),
    "an interrupt": ("raise KeyboardInterrupt", 130, "SIGINT", "KeyboardInterrupt\n"),
    "a code like an interrupt's": ("raise SystemExit(130)", 130, None, ""),
    "a crash": ("import ctypes; ctypes.string_at(0)", 139, "SIGSEGV", ""),
    "recursion in C": ("l = []\nfor _ in range(10**6): l = [l]\nprint(repr(l))", 1, None, ""),
}


@pytest.mark.parametrize("how", list(ENDS))
def test_how_it_ends(pool: Pool, how: str) -> None:
    """And the next run is not the worse for it."""
    code, exit_code, signalled, last = ENDS[how]
    result = pool.run(code)
    assert (result.exit_code, result.signal) == (exit_code, signalled), result
    assert result.stderr.endswith(last)
    assert "zygote" not in result.stderr
    assert told(pool.run("print('fine')")) == "fine\n"


def test_traceback_shows_the_code(pool: Pool) -> None:
    """Its lines, its file's name, and nothing of belljar's."""
    result = pool.run("def f():\n    raise ValueError('no')\nf()", name="mine.py")
    assert result.stderr == (
        'Traceback (most recent call last):\n  File "/run/jar/mine.py", line 3, in <module>\n    f()\n'
        "  File \"/run/jar/mine.py\", line 2, in f\n    raise ValueError('no')\nValueError: no\n"
    )


def test_exit_functions_and_threads_run_to_their_end(pool: Pool) -> None:
    """In the order in which Python has them."""
    code = """
import atexit, threading, time
atexit.register(lambda: print("at exit"))
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("main")
"""
    assert told(pool.run(code)) == "main\nthread\nat exit\n"


def as_a_file(code: str) -> tuple[int | None, str, str]:
    """What Python itself makes of it, in a jar: exit code, output and errors."""
    with Sandbox(timeout="20s") as jar:
        jar.files.write("main.py", code)
        result = jar.exec(["python3", "/workspace/main.py"])
    return result.exit_code, *(text.replace("/workspace/", "/run/jar/") for text in (result.stdout, result.stderr))


@pytest.mark.parametrize("target", ["work", "time.sleep, args=(60,)"], ids=["the program's", "another's"])
def test_threads_that_do_not_end(pool: Pool, target: str) -> None:
    """Daemon threads do not see how the program is taken apart; finalizers run if Python runs them."""
    code = f"""
import threading, time
class Slow:
    def __del__(self, sleep=time.sleep, print=print):
        sleep(0.3)
        print("finalized")
def step(): pass
def work():
    while True: step()
for _ in range(4): threading.Thread(target={target}, daemon=True).start()
slow = Slow()
raise SystemExit(3)
"""
    result = pool.run(code)
    assert (result.exit_code, result.stdout, result.stderr) == as_a_file(code)


def test_the_program_is_a_file_of_pythons(pool: Pool) -> None:
    """Its module has what `python FILE` gives it, and what the compiler warns of is shown."""
    code = """
print({name: type(value).__name__ for name, value in sorted(globals().items())})
print(__builtins__.len("ab"), __loader__.get_filename(), __loader__.name)
if 1 is 1: print("warned")
"""
    result = pool.run(code)
    assert (result.exit_code, result.stdout, result.stderr) == as_a_file(code)
    assert "SyntaxWarning" in result.stderr


def test_what_is_open_at_the_end_is_written(pool: Pool, tmp_path: Path) -> None:
    """Files, files in files, and finalizers: as the interpreter does at its end."""
    code = """
import gzip
class Thing:
    def __del__(self): print("finalized")
thing = Thing()
plain = open("plain", "w"); plain.write("hello")
packed = gzip.open("packed", "wb"); packed.write(b"x" * 100)
open("lost", "w").write("not lost")
"""
    result = pool.run(code, artifacts=tmp_path)
    assert told(result) == "finalized\n"
    assert (tmp_path / "plain").read_text() == "hello"
    assert (tmp_path / "lost").read_text() == "not lost"
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"x" * 100


def test_hooks_that_fail(pool: Pool) -> None:
    """Both errors are shown, and the exit code is Python's."""
    result = pool.run("import sys\nsys.excepthook = lambda *_: 1/0\nraise ValueError('mine')")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr
    assert "ValueError: mine" in result.stderr
    assert pool.run("import sys; sys.stdout.close()").exit_code == 0


@pytest.mark.parametrize("name", ["zygote.py", "rehearsal.py", "ü.py"])
def test_any_name(pool: Pool, name: str) -> None:
    """Is a name like any other."""
    result = pool.run("import atexit; atexit.register(print, 'end'); 1/0", name=name)
    assert (result.exit_code, result.stdout) == (1, "end\n")
    assert f'File "/run/jar/{name}", line 1' in result.stderr


def test_variables_of_python_itself() -> None:
    """Those of the policy hold, from the interpreter's start; and nothing is compiled into the workspace."""
    with Pool({"env": {"set": {"PYTHONHASHSEED": "0", "PYTHONOPTIMIZE": "1"}}}, size=1) as pool:
        result = pool.run("import mod, sys; print(hash('x'), sys.flags.optimize)", files={"mod.py": "x = 1"})
        assert result.artifacts == ()
        command = [sys.executable, "-c", "print(hash('x'), 1)"]
        outside = subprocess.run(command, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True)
        assert told(result) == outside.stdout


def test_programs_and_processes(pool: Pool) -> None:
    """`subprocess`, and multiprocessing by fork and by spawn, which reads the file again."""
    code = """
import multiprocessing, subprocess, sys
def double(n):
    return 2 * n
if __name__ == "__main__":
    print(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True).stdout, end="")
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(2) as pool:
            print(how, pool.map(double, [1, 2, 3]))
"""
    assert told(pool.run(code)) == "1\nfork [2, 4, 6]\nspawn [2, 4, 6]\n"


def test_files_in_and_out(pool: Pool, tmp_path: Path) -> None:
    """What it is given lies in its workspace; what it makes or changes is told, and copied if wanted."""
    code = (
        "open('out/made', 'w').write(open('data/in').read().upper()); open('changed', 'w').write('b'); open('e', 'w')"
    )
    given = {"data/in": "text", "changed": b"a", "out/x": ""}
    result = pool.run(code, files=given, artifacts=tmp_path / "kept")
    told(result)
    assert [(made.path, made.size) for made in result.artifacts] == [("changed", 1), ("e", 0), ("out/made", 4)]
    assert (tmp_path / "kept/out/made").read_text() == "TEXT"
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["changed", "e", "out"]


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../b", "", "a/", "a//b", "n\0"])
def test_a_file_goes_nowhere_else(pool: Pool, path: str) -> None:
    with pytest.raises(UsageError, match="no path in the workspace"):
        pool.run("pass", files={path: "x"})


def test_output_comes_as_it_is_made(pool: Pool) -> None:
    """And leaving the stream ends the run."""
    with pool.stream("import time\nprint('one', flush=True)\ntime.sleep(60)") as events:
        assert next(events).data.startswith(b"one")  # type: ignore[union-attr]
        before = time.monotonic()
    assert time.monotonic() - before < 10


# --- limits ----------------------------------------------------------------------------------------------------------


def test_limits_hold() -> None:
    """Each with its own outcome, in one pool, and the pool is none the worse."""
    with Pool({"proc": {"timeout_ms": "2s", "mem_mb": 128, "pids": 16, "output_mb": 1}, "fs": {"size_mb": 8}}) as pool:
        assert pool.run("while True: pass").outcome is Outcome.TIMEOUT
        assert pool.run("x = bytearray(500 << 20); print(sum(x[::4096]))").outcome is Outcome.OOM
        assert pool.run("while True: print('x' * 1000)").reason.startswith("it wrote more than")
        bomb = pool.run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
        assert bomb.outcome in (Outcome.TIMEOUT, Outcome.OOM)  # what they share is counted for each, without a group
        full = pool.run("f = open('big', 'wb')\nfor _ in range(100): f.write(bytes(1 << 20))")
        assert "No space left" in full.stderr
        assert told(pool.run("open('big', 'wb').write(bytes(6 << 20))")) == "", "the next one has all of it"


def test_processes_are_counted_as_in_any_jar() -> None:
    """So many, and no more; with a group the kernel counts, and so does the result."""
    code = """
import os, time
made = 0
try:
    while made < 50:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        made += 1
except OSError:
    pass
print(made + 1)
"""
    with Pool({"proc": {"pids": 8}}, size=1) as pool:
        result = pool.run(code)
        if "cgroup" in result.enforcement.clause("proc.pids").by:
            assert told(result) == "8\n"
            assert result.usage.processes == 8


HOLDS = """
import socket, time
kept = []
try:
    while True:
        one, other = socket.socketpair()
        kept.append((one, other))
        for _ in range(3): socket.send_fds(one, [b"x"], [0] * 200)
except OSError:
    print("full", flush=True)
    time.sleep(2)
"""


def test_a_run_that_takes_what_all_share() -> None:
    """Descriptors under way are counted for the user: others wait for it to end, and the pool lives on."""
    with Pool({"proc": {"timeout_ms": "20s"}}, size=2) as pool:
        with pool.stream(HOLDS) as events:
            next(events)
            assert told(pool.run("print(1)")) == "1\n"
            told(pool.run("print(1)"))
        for _ in range(4):
            told(pool.run("print(1)"))


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.kill(1, 2)",
        "import ctypes, signal; ctypes.CDLL(None).sigqueue(1, signal.SIGRTMIN, ctypes.c_void_p(0x800000))",
        "import os, signal\nfor n in set(range(1, 32)) - {9, 19}: os.kill(1, n)",
    ],
)
def test_signals_to_the_first_process(pool: Pool, code: str) -> None:
    """Neither end it nor make it tell nonsense: the run has a result."""
    assert pool.run(code).outcome in (Outcome.OK, Outcome.FAILED)


def test_many_jars_wait() -> None:
    """So many that their descriptors have numbers beyond a thousand."""
    with Pool(size=70) as pool:
        deadline = time.monotonic() + 60
        while pool.statistics().waiting < 70 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [told(result) for result in pool.map(["print(1)"] * 80, concurrency=8)] == ["1\n"] * 80


def test_more_runs_than_there_may_be_jars() -> None:
    """They wait, and all are run."""
    with Pool(size=1) as pool:
        assert [told(result) for result in pool.map(["print(1)"] * 100, concurrency=90)] == ["1\n"] * 100


def test_a_kill_from_another_thread(pool: Pool) -> None:
    """Ends the run, and the pool goes on."""
    threading.Timer(0.5, pool.kill).start()
    assert pool.run("import time; time.sleep(60)").outcome is Outcome.KILLED
    told(pool.run("pass"))


def test_denials_are_told(pool: Pool) -> None:
    """What the jar refuses comes back with its rule."""
    code = """
import ctypes, socket
ctypes.CDLL(None).ptrace(0, 0, 0, 0)
try: socket.create_connection(("192.0.2.1", 443), 1)
except OSError: pass
"""
    result = pool.run(code)
    assert {denial.target for denial in result.denials} == {"ptrace", "connect 192.0.2.1:443"}


# --- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_many_at_once(pool: Pool, ordered: bool) -> None:
    """More than jars wait, in order or as they finish; every one its own answer."""
    taken: list[int] = []

    def codes() -> Iterator[str]:
        for number in range(30):
            taken.append(number)
            yield f"import time; time.sleep({(30 - number) % 3 * 0.05}); print({number})"

    results = pool.map(codes(), concurrency=3, ordered=ordered)
    first = next(results)
    assert len(taken) <= 7, "whoever makes them waits for whoever takes the results"
    said = [int(told(result)) for result in (first, *results)]
    assert sorted(said) == list(range(30))
    assert not ordered or said == sorted(said)


def test_leaving_a_map_early_ends_its_runs(pool: Pool) -> None:
    """Those that run, and those that wait for a jar."""
    results = pool.map(["print(1)", *["import time; time.sleep(60)"] * 9], concurrency=4)
    told(next(results))
    before = time.monotonic()
    results.close()
    assert time.monotonic() - before < 10


def test_callers_take_turns() -> None:
    """Whoever has one run is not behind the many of another."""
    with Pool(size=1, timeout="60s") as pool:
        many = pool.map(["import time; time.sleep(0.01)"] * 150, concurrency=150, ordered=False)
        told(next(many))
        deadline = time.monotonic() + 20
        while (seen := pool.statistics()).runs + seen.running + seen.queued < 140 and time.monotonic() < deadline:
            time.sleep(0.001)  # until they have come to the queue
        told(pool.run("pass"))
        left = pool.statistics().queued
        many.close()
        assert left > seen.queued / 2, (seen, left)


def test_a_run_that_waits_for_a_jar_can_be_called_off() -> None:
    """It never starts."""
    with Pool(size=1) as pool:
        streams = [pool.stream("import time; time.sleep(60)") for _ in range(12)]
        threads = [threading.Thread(target=list, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        pool.kill()
        time.sleep(0.05)
        pool.kill()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        told(pool.run("pass"))
        assert set(pool.statistics().by_outcome) == {"killed", "ok"}


def test_statistics_are_readable(pool: Pool) -> None:
    told(pool.run("pass"))
    seen = pool.statistics()
    assert seen.runs >= seen.by_outcome["ok"] >= 1
    assert 0 < seen.p50 <= seen.p95
    assert "runs (" in str(seen)


# --- what it is not for ----------------------------------------------------------------------------------------------


def test_a_policy_that_shares(tmp_path: Path) -> None:
    mount = {"source": str(tmp_path), "path": "/data", "rw": True}
    with pytest.raises(PolicyError, match="share nothing"):
        Pool({"fs": {"mounts": [mount]}})


def test_a_policy_with_a_mount_in_a_mount(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="can't lie in another mount"):
        Pool({"fs": {"mounts": [{"path": "/workspace/data", "source": str(tmp_path)}]}})


def test_a_read_only_directory_of_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("the host's")
    with Pool({"fs": {"mounts": [{"path": "/data", "source": str(tmp_path)}]}}, size=1) as pool:
        assert told(pool.run("print(open('/data/file').read())")) == "the host's\n"


def test_a_policy_that_publishes_a_port() -> None:
    with pytest.raises(PolicyError, match="can't publish a port"):
        Pool({"net": {"publish": ["8000"]}})


def test_a_closed_pool() -> None:
    """Runs nothing more, and says what it has done."""
    pool = Pool(size=1)
    told(pool.run("pass"))
    pool.close()
    with pytest.raises((UsageError, SandboxUnavailableError)):
        pool.run("pass")
    seen = pool.statistics()
    assert (seen.runs, seen.waiting, seen.running) == (1, 0, 0)
    assert pool.state() == {}
