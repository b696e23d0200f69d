"""Jars of a pool that wait at the host: what a run has to do with the stage, which is next to nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar import Pool, RunResult
from belljar.backends.bubblewrap.host.client import LAUNCHER
from belljar.backends.bubblewrap.host.pool_process import PooledProcess
from belljar.backends.contract import Status
from belljar.errors import AuditError, UsageError
from belljar.sandbox.record import recording
from belljar.sandbox.record.result import Outcome

pytestmark = pytest.mark.backend("bubblewrap")


@pytest.fixture
def pool() -> Iterator[Pool]:
    """One with jars that wait."""
    with Pool(size=3, timeout="20s") as made:
        told(made.run("pass"))
        assert wait_for(lambda: made.statistics().waiting >= 3), made.statistics()
        yield made


def told(result: RunResult) -> str:
    """What the code printed, if it ran to its end."""
    assert result.ok, (result.outcome, result.reason, result.stderr)
    return result.stdout


def wait_for(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def below(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            yield child
            yield from below(child)


def named(name: str) -> set[int]:
    """Processes of this name, of all that the launcher has started."""
    found = set()
    for pid in below(LAUNCHER._pid):
        with contextlib.suppress(OSError):
            found |= {pid} if Path(f"/proc/{pid}/comm").read_text().strip() == name else set()
    return found


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_a_run_needs_no_stage(pool: Pool) -> None:
    """One that stands still holds up neither a run's beginning nor its end."""
    if pool.run("pass").enforcement.clause("proc.mem_mb").status is not Status.ENFORCED:
        pytest.skip("without a control group it is the stage that watches the memory, and is asked what it saw")
    assert wait_for(lambda: pool.statistics().waiting >= 3)
    stages = named("belljar-stage")
    for stage in stages:
        os.kill(stage, signal.SIGSTOP)
    try:
        assert [told(pool.run(f"print({number})")) for number in range(3)] == ["0\n", "1\n", "2\n"]
    finally:
        for stage in stages:
            os.kill(stage, signal.SIGCONT)
    assert told(pool.run("print('on')")) == "on\n"


def test_jars_that_died_while_they_waited(pool: Pool) -> None:
    """Are no reason for a run to fail: it gets another one."""
    jars = named("init")
    assert len(jars) >= 3
    for pid in jars:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not any(lives(pid) for pid in jars))
    assert [told(pool.run("print(1)")) for _ in range(4)] == ["1\n"] * 4


def test_a_jar_that_dies_when_it_has_the_code(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the code while it is written down that it runs, and may not run it yet: so it has not; another does."""
    begin, deaths = recording.begin, []

    def deadly(*arguments: Any, **details: Any) -> None:
        begin(*arguments, **details)
        for pid in named("init") if not deaths else ():
            deaths.append(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: not any(lives(pid) for pid in deaths))

    monkeypatch.setattr(recording, "begin", deadly)
    assert told(pool.run("print('once')")) == "once\n"
    assert len(deaths) >= 3


def test_code_that_crashes_the_compiler(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process dies before it may run, and its jar's pid 1 tells so: that is the run's end, in no other jar."""
    begin, deaths = recording.begin, []

    def deadly(*arguments: Any, **details: Any) -> None:
        begin(*arguments, **details)
        first = named("init")
        for pid in first:
            deaths.extend(below(pid))
        for pid in deaths:
            os.kill(pid, signal.SIGSEGV)
        assert wait_for(lambda: not any(lives(pid) for pid in first))

    with monkeypatch.context() as patch:
        patch.setattr(recording, "begin", deadly)
        result = pool.run("print('never')")
    assert (result.outcome, result.signal, result.stdout) == (Outcome.FAILED, "SIGSEGV", "")
    assert told(pool.run("print('on')")) == "on\n"


def test_what_may_not_run_does_not(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that can't be written down is none, though a jar has its code: that one ends, and nothing is in its way."""

    def unwritable(*_arguments: Any, **_details: Any) -> None:
        raise AuditError("the disk is full")

    assert wait_for(lambda: len(named("init")) == 3)  # three jars, and nothing of the run before
    jars = named("init")
    with monkeypatch.context() as patch:
        patch.setattr(recording, "begin", unwritable)
        with pytest.raises(AuditError):
            pool.run("while True: pass")
    assert wait_for(lambda: len(jars & named("init")) == len(jars) - 1)
    assert told(pool.run("print('on')")) == "on\n"


CRASHING = {"nested": "(" * 5000 + ")" * 5000, "not Python": "1 +", "a NUL": "print(1)\0"}


@pytest.mark.parametrize("code", CRASHING.values(), ids=CRASHING.keys())
def test_what_can_not_be_compiled_is_the_codes_fault(pool: Pool, code: str) -> None:
    """It is compiled before it runs, and told as `python FILE` does."""
    result = pool.run(code)
    assert (result.outcome, result.exit_code) == (Outcome.FAILED, 1)
    assert "Error" in result.stderr


SIZES = (100, 60 << 10, 61 << 10, 1 << 20)


@pytest.mark.parametrize("size", SIZES)
def test_code_and_files_of_any_size(pool: Pool, size: int) -> None:
    """Whether they fit a packet or not; and the code's own file is as it was given."""
    code = f"print(len(open('data/in', 'rb').read()), len(open(__file__).read()))\n#{'x' * size}"
    result = pool.run(code, files={"data/in": b"\0" * size, "other": b""}, args=["a"], stdin="input")
    assert told(result) == f"{size} {len(code)}\n"
    assert result.artifacts == ()


@pytest.mark.parametrize("language", ["python", "bash"])
def test_files_that_there_is_no_room_for(language: str) -> None:
    """An error in words, which is the run's alone: the jar is in order, and what was given is not."""
    with Pool({"fs": {"size_mb": 2}}, size=1) as pool:
        with pytest.raises(UsageError, match="can't be put into its jar: big: No space left") as raised:
            pool.run("true", language=language, files={"big": b"x" * (4 << 20)})
        assert "fs.size_mb" in raised.value.hint
        with pytest.raises(UsageError, match="name too long"):
            pool.run("true", language=language, files={"a" * 300: b""})
        with pytest.raises(UsageError, match="'a/b' can't be a file and hold 'a/b/c/d' as well"):
            pool.run("true", language=language, files={"a/b": b"", "a/b/c/d": b""})
        assert told(pool.run("print(1)")) == "1\n"


def test_files_that_do_not_fit_are_not_tried_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the jar is told to begin: by then it has said why it can't, and is gone."""
    tries: list[str] = []
    start = PooledProcess.start

    def late(jar: PooledProcess, timeout_seconds: float) -> None:
        tries.append(jar.name)
        gone = select.poll()
        gone.register(jar.gate, 0)  # its end only
        assert gone.poll(20_000)
        assert len(tries) < 3
        start(jar, timeout_seconds)

    monkeypatch.setattr(PooledProcess, "start", late)
    with pytest.raises(UsageError, match="name too long"):
        pool.run("pass", files={"a" * 300: b""})
    assert len(tries) == 1


def test_what_is_refused_last_is_told(pool: Pool) -> None:
    """Though nobody waits for the stage, which has seen it: in every one of many runs."""
    code = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os._exit(3)"
    for result in pool.map([code] * 12, concurrency=2):
        assert (result.exit_code, [denial.target for denial in result.denials]) == (3, ["ptrace"])


def test_what_was_used_is_told(pool: Pool) -> None:
    """By the run itself and by what it started; that one ran before takes nothing from it."""
    quick = pool.run("pass")
    code = """
import os, time
x = bytearray(40 << 20)
if os.fork() == 0:
    while time.process_time() < 0.2: pass
    os._exit(0)
os.wait()
"""
    result = pool.run(code)
    told(result)
    assert 0.2 <= result.usage.cpu_seconds < 5
    assert (result.usage.peak_memory_bytes or 0) > 40 << 20
    assert quick.usage.cpu_seconds < 0.2
    assert (quick.usage.peak_memory_bytes or 0) < 40 << 20


def test_a_limit_that_ends_a_run_is_told_as_such(pool: Pool) -> None:
    """Pid 1 is gone then, and can't tell: the stage does."""
    with Pool({"proc": {"timeout_ms": "300ms"}}, size=2) as short:
        results = list(short.map(["import time; time.sleep(60)"] * 4, concurrency=2))
    assert {result.outcome for result in results} == {Outcome.TIMEOUT}
    assert all(0.25 < result.duration < 10 for result in results)


def _memory_of_jars() -> int:
    """Bytes of all processes of the pools that there are, what they share counted once."""
    total = 0
    for zygote in named("belljar-zygote"):
        for pid in (zygote, *below(zygote)):
            total += 1024 * int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("Pss:")[2].split()[0])
    return total


@pytest.mark.skipif(os.geteuid() != 0, reason="the memory of a jar's processes is nobody's to see but root's")
def test_a_jar_that_waits_has_little_memory_of_its_own() -> None:
    """Most of it is shared with the interpreter from which all are copied: one more is less than four megabytes."""
    seen = []
    for size in (2, 10):
        with Pool(size=size) as pool:
            assert wait_for(lambda pool=pool, size=size: pool.statistics().waiting == size)  # type: ignore[misc]
            seen.append(_memory_of_jars())
    assert (seen[1] - seen[0]) / 8 < 4 << 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a socket that nobody closed
def test_a_pool_that_is_lost_ends() -> None:
    """Nobody has to close it: what it had goes with it."""
    before = named("belljar-stage")
    pool = Pool(size=2)
    told(pool.run("pass"))
    stages = named("belljar-stage") - before
    assert len(stages) == 1
    del pool
    gc.collect()
    assert wait_for(lambda: not named("belljar-stage") & stages)


def test_a_pool_is_not_a_forked_childs(pool: Pool) -> None:
    """Both would give code to the same jars; the parent's is none the worse."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pool.run("print('child')")
        except UsageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader) as file:
        assert "another process's" in file.read()
    assert told(pool.run("print('parent')")) == "parent\n"


def test_the_runs_module_names_are_its_own(pool: Pool) -> None:
    """What starts the code is no module of the program's."""
    code = "import sys\nprint([name for name in sys.modules if 'pooled' in name])\nimport pooled_code"
    result = pool.run(code)
    assert result.stdout == "[]\n"
    assert "ModuleNotFoundError: No module named 'pooled_code'" in result.stderr
