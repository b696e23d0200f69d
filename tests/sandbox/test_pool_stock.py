"""A pool where nothing is cloned: other languages, and container engines. Whole Sandboxes wait there."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar import Pool, RunResult, Sandbox
from belljar.errors import UsageError
from belljar.sandbox.pool.sandbox_stock import SandboxStock
from belljar.sandbox.record.events import Finished
from belljar.sandbox.record.result import Outcome

LANGUAGES = {
    "bash": "cat in; echo made > out; echo $#; exit 3",
    "javascript": "const fs = require('fs'); process.stdout.write(fs.readFileSync('in', 'utf8'));"
    "fs.writeFileSync('out', 'made\\n'); console.log(process.argv.length - 2); process.exit(3)",
    "python": "import sys; print(open('in').read(), end=''); open('out', 'w').write('made\\n');"
    "print(len(sys.argv) - 1); sys.exit(3)",
}


@pytest.fixture(params=["bubblewrap", "docker"])
def pool(request: pytest.FixtureRequest, need_backend: Callable[[str], None]) -> Iterator[Pool]:
    """On a backend that clones Python, and on one that does not. One for each test: what waits in it is not left."""
    need_backend(request.param)
    with Pool(backend=request.param, size=1, timeout="30s") as made:
        yield made


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not what() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert what()


@pytest.mark.parametrize("language", list(LANGUAGES))
def test_a_language(pool: Pool, tmp_path: Path, language: str) -> None:
    """Files in, arguments, output, exit code, files out; and the next run finds nothing of it."""
    if language == "javascript" and not shutil.which("node"):
        pytest.skip("node is not installed")
    for _ in range(2):
        result = pool.run(
            LANGUAGES[language], language=language, args=["a", "b"], files={"in": "given\n"}, artifacts=tmp_path
        )
        assert (result.outcome, result.exit_code) == (Outcome.FAILED, 3), result
        assert result.stdout == "given\n2\n"
        assert [artifact.path for artifact in result.artifacts] == ["out"]
        assert (tmp_path / "out").read_text() == "made\n"
    assert result.backend == pool.backend_name


def test_one_waits_and_is_used_once(pool: Pool) -> None:
    """For a language that was asked for; another is made in its place."""
    assert pool.run("echo $$", language="bash").ok
    until(lambda: pool.statistics().waiting >= 1)
    assert pool.run("ls -A /workspace", language="bash").stdout == ""
    until(lambda: pool.statistics().waiting >= 1)


def test_kill_and_early_ends(pool: Pool) -> None:
    """As for every run."""
    with pool.stream("echo on; sleep 60", language="bash") as events:
        assert next(events).data == b"on\n"  # type: ignore[union-attr]
        pool.kill()
        *_output, finished = events
    assert isinstance(finished, Finished)
    assert finished.result.outcome is Outcome.KILLED
    with pool.stream("echo on; sleep 60", language="bash") as events:
        assert next(events).data == b"on\n"  # type: ignore[union-attr]
    assert pool.run("echo on", language="bash").stdout == "on\n"


def test_a_language_that_nobody_knows(pool: Pool) -> None:
    with pytest.raises(UsageError, match="cobol"):
        pool.run("x", language="cobol")
    assert pool.statistics().runs >= 0


@pytest.mark.backend("bubblewrap")
def test_more_runs_than_there_may_be_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond wait their turn, and can be called off."""
    monkeypatch.setattr("belljar.sandbox.pool.sandbox_stock._MOST_RUNNING", 1)
    results: list[RunResult] = []
    with Pool(size=1, timeout="30s") as pool, pool.stream("echo on; sleep 60", language="bash") as first:
        assert next(first).data == b"on\n"  # type: ignore[union-attr]
        threads = [
            threading.Thread(target=lambda: results.append(pool.run("echo $0", language="bash"))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        until(lambda: pool.statistics().queued == 3)
        assert pool.statistics().running == 1
        pool.kill()
        for thread in threads:
            thread.join(20)
        assert [result.outcome for result in results] == [Outcome.KILLED] * 3
        ended = [event for event in first if isinstance(event, Finished)]
        assert ended[0].result.outcome is Outcome.KILLED
        assert pool.run("echo on", language="bash").stdout == "on\n"
        assert (pool.statistics().running, pool.statistics().queued) == (0, 0)


@pytest.mark.backend("bubblewrap")
def test_a_place_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which was given none, and gets the one of a run that ends; with a pool that closes, it gets none."""
    monkeypatch.setattr("belljar.sandbox.pool.sandbox_stock._MOST_RUNNING", 1)
    said: list[str] = []
    with Pool(size=1, timeout="30s") as pool:
        thread = threading.Thread(target=lambda: said.append(pool.run("echo next", language="bash").stdout))
        with pool.stream("echo on; sleep 60", language="bash") as first:
            next(first)
            thread.start()
            until(lambda: pool.statistics().queued == 1)
        thread.join(20)
    assert said == ["next\n"]


@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize("error", [UsageError("no"), OSError("no")], ids=["ours", "the system's"])
def test_a_language_that_can_not_be_prepared(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Does not keep jars from waiting for another."""
    prepare = Sandbox.prepare
    tried = threading.Event()

    def picky(jar: Sandbox, *, language: str = "python") -> None:
        if language == "javascript":
            tried.set()
            raise error
        prepare(jar, language=language)

    monkeypatch.setattr(Sandbox, "prepare", picky)
    with Sandbox() as jar:
        stock = SandboxStock(jar.policy, 1, None)
    try:
        stock.ask_for("javascript")
        assert tried.wait(20)
        stock.ask_for("bash")
        until(lambda: stock.waiting == 1)
    finally:
        stock.close()


@pytest.mark.backend("bubblewrap")
def test_a_closed_pool_has_nothing_left() -> None:
    """Neither a Sandbox that waited nor a thread."""
    before = threading.active_count()
    with Pool(size=2) as pool:
        assert pool.run("true", language="bash").ok
    assert threading.active_count() <= before
    with pytest.raises(UsageError, match="closed"):
        pool.run("true", language="bash")
