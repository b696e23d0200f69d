"""The jar of a run that is the only one gets what to run when it is asked for; it runs when somebody waits for it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from belljar import Pool, RunResult
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.backends.bubblewrap.host.pool_process import PooledProcess
from belljar.errors import UsageError
from belljar.sandbox.record.events import Finished
from belljar.sandbox.record.stream import Stream

pytestmark = pytest.mark.backend("bubblewrap")


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[PooledProcess]:
    """Every jar that was given something so."""
    jars: list[PooledProcess] = []
    give = PooledProcess.give_at_once

    def noted(jar: PooledProcess, body: bytes) -> None:
        jars.append(jar)
        give(jar, body)

    monkeypatch.setattr(PooledProcess, "give_at_once", noted)
    monkeypatch.setattr("belljar.sandbox.pool.zygote_runs._MAY_WAKE", True)
    return jars


@pytest.fixture
def pool(early: list[PooledProcess]) -> Iterator[Pool]:
    """One that has made its jars: for the first run there is a pool to be made."""
    with Pool(size=2, timeout="20s") as made:
        assert made.run("pass").ok
        settle(made)
        early.clear()
        yield made


def settle(pool: Pool) -> None:
    """Until all its jars wait here, not only in the stage."""
    until(lambda: pool._zygote_runs is not None and len(pool._zygote_runs._jars._ready_jars._jars) >= pool._size)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def recorded() -> int:
    return sum(1 for _ in records(directory()))


def ended(stream: Stream) -> RunResult:
    with stream as events:
        *_output, finished = events
    assert isinstance(finished, Finished)
    return finished.result


def test_only_for_a_run_that_is_alone(pool: Pool, early: list[PooledProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside another run, a jar that stays awake would take the processor from it."""
    assert pool.run("import sys; print(sys.argv)", args=["x"], name="it.py").stdout == "['/run/jar/it.py', 'x']\n"
    assert len(early) == 1
    for given in ({"stdin": "for that one jars are taken in turn"}, {"files": {"a": "b"}}):
        settle(pool)
        assert pool.run("print(1)", **given).ok
    settle(pool)
    assert pool.run("#" * 62_000 + "\nprint(1)").stdout == "1\n"
    assert len(early) == 1
    settle(pool)
    with pool.stream("print(1, flush=True); import time; time.sleep(60)") as other:
        next(other)
        assert len(early) == 2
        settle(pool)
        assert pool.run("print(1)").ok
    monkeypatch.setattr("belljar.sandbox.pool.zygote_runs._MAY_WAKE", False)
    settle(pool)
    assert pool.run("print(1)").ok
    assert len(early) == 2


def test_nothing_runs_before_somebody_waits_for_it(pool: Pool, early: list[PooledProcess]) -> None:
    """However long that takes; and it is in the log then, and not before."""
    stream = pool.stream("import time; print(time.time())")
    assert len(early) == 1
    before = recorded()
    subprocess.run([sys.executable, "-c", "import asyncio"], check=True)  # which takes longer than a run
    assert recorded() == before
    asked = time.time()
    assert float(ended(stream).stdout) > asked
    assert recorded() > before


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_one_for_which_nobody_ever_waits(pool: Pool, early: list[PooledProcess], leave: str) -> None:
    """Its jar is let go of, with all that it has open here."""
    assert pool.run("pass").ok
    settle(pool)
    before = open_files()
    for number in range(5):
        stream = pool.stream("print(1)")
        assert len(early) == 2 + number
        if leave == "close":
            stream.close()
        del stream
        gc.collect()
        settle(pool)
    until(lambda: open_files() <= before)
    assert pool.run("print(1)").stdout == "1\n"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("many", [1, 2, 50])
def test_many_for_which_nobody_waits_yet(pool: Pool, early: list[PooledProcess], many: int) -> None:
    """They do not keep jars from others, and each still gets its run."""
    streams = [pool.stream(f"print({number})") for number in range(many)]
    assert len(early) == 1
    assert pool.run("print('other')").stdout == "other\n"
    order = [many - 1, *range(many - 1)]
    assert [ended(streams[number]).stdout for number in order] == [f"{number}\n" for number in order]


def test_one_whose_jar_has_gone_meanwhile(pool: Pool, early: list[PooledProcess]) -> None:
    """The kill switch has had every jar dropped, or it died: the run gets another one."""
    stream = pool.stream("print(1)")
    pool.drop_waiting()
    assert ended(stream).stdout == "1\n"
    settle(pool)
    stream = pool.stream("print(2)")
    assert len(early) == 2
    early[-1].kill("gone")
    time.sleep(0.1)
    assert ended(stream).stdout == "2\n"


def test_one_whose_pool_has_closed(early: list[PooledProcess]) -> None:
    """It is told so, and nothing is in the log."""
    with Pool(size=1) as closed:
        assert closed.run("pass").ok
        settle(closed)
        early.clear()
        stream = closed.stream("print(1)")
        assert len(early) == 1
        before = recorded()
    with pytest.raises(UsageError, match="closed"):
        next(stream)
    assert recorded() == before


def test_one_that_a_forked_process_has_too(pool: Pool, early: list[PooledProcess]) -> None:
    """It lets go of its copy, whatever other threads held when it was made; the run is ours."""
    stream = pool.stream("print(1)")
    assert len(early) == 1
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._zygote_runs._jars._ready_jars._lock:  # type: ignore[union-attr]
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        stream.close()
        del stream
        os._exit(0)
    release.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert ended(stream).stdout == "1\n"


@pytest.mark.parametrize("args", [["😀" * 20_000], ["a"] * 19_000, [""] * 300_000], ids=["large", "many", "empty"])
def test_what_does_not_fit_into_a_packet(pool: Pool, args: list[str]) -> None:
    """All of it comes, whatever makes it large: half a program would be another one."""
    code = f"import sys\n{'#' * 27_000}\nprint(len(sys.argv), len(sys.argv[-1])); raise SystemExit(7)"
    result = pool.run(code, args=args)
    assert (result.stdout, result.exit_code) == (f"{len(args) + 1} {len(args[-1])}\n", 7)


def test_a_packet_that_is_cut_off_does_not_run(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should one ever be too large: it is refused, with the reason."""
    monkeypatch.setattr("belljar.backends.bubblewrap.host.pool.MOST_INLINE", 1 << 20)
    with pytest.raises(UsageError, match="what to run: Message too long"):
        pool.run("print(1)\n" + "#" * 70_000 + "\nprint(2)")


def test_a_forked_process_can_not_run_it(pool: Pool) -> None:
    """It is told that the pool is another's; the run is the first one's, all of it."""
    stream = pool.stream("for number in range(9): print(number)")
    if (child := os.fork()) == 0:
        try:
            next(stream)
        except UsageError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert ended(stream).stdout == "".join(f"{number}\n" for number in range(9))
