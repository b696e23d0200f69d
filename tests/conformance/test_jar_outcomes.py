"""How a run can end, and what the result says of it."""

from __future__ import annotations

import platform
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from jars import OpenJar, finish, sh, told
from lifeline import Lifeline

from belljar import Sandbox
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Outcome

ENDS = [
    # name, script, outcome, exit code, signal
    ("ok", "exit 0", "ok", 0, None),
    ("code 1", "exit 1", "failed", 1, None),
    ("code 3", "exit 3", "failed", 3, None),
    ("code 124, which is no timeout", "exit 124", "failed", 124, None),
    ("code 125, which is no failure of ours", "exit 125", "failed", 125, None),
    ("code 126", "exit 126", "failed", 126, None),
    ("code 255", "exit 255", "failed", 255, None),
    ("SIGTERM", "kill -TERM $$", "failed", 143, "SIGTERM"),
    ("SIGKILL by its own hand", "kill -KILL $$", "failed", 137, "SIGKILL"),
    ("SIGSEGV", "kill -SEGV $$", "failed", 139, "SIGSEGV"),
    ("SIGABRT", "kill -ABRT $$", "failed", 134, "SIGABRT"),
    ("a child is killed, the code goes on", "sh -c 'kill -KILL $$'; exit 4", "failed", 4, None),
    ("no such command", "exec /no/such/command", "failed", 127, None),
]


@pytest.mark.parametrize(
    ("script", "outcome", "code", "signal"), [end[1:] for end in ENDS], ids=[end[0] for end in ENDS]
)
def test_the_end_that_the_code_chose(jar: Sandbox, script: str, outcome: str, code: int, signal: str | None) -> None:
    """Exit codes and signals come back as the code's own, with an outcome that fits."""
    result = sh(jar, script)
    assert (result.outcome, result.exit_code, result.signal) == (outcome, code, signal)
    assert result.ok == (outcome == "ok")
    assert not result.truncated


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split("+")[0].split(".")[:2])


@pytest.mark.skipif(_kernel() < (6, 15), reason="before Linux 6.15 nothing tells `exit 137` from SIGKILL")
@pytest.mark.parametrize("code", [130, 137, 143])
def test_a_code_that_looks_like_a_signal_is_none(jar: Sandbox, code: int) -> None:
    """`exit 137` is not SIGKILL."""
    result = sh(jar, f"exit {code}")
    assert (result.outcome, result.exit_code, result.signal) == ("failed", code, None)


COMMANDS = [
    ("missing", ["no-such-command-anywhere"], 127),
    ("missing, with a path", ["/no/such/command"], 127),
    ("a directory", ["/usr"], 126),
    ("a file that is no program", ["/etc/passwd"], 126),
]


@pytest.mark.parametrize(("argv", "code"), [row[1:] for row in COMMANDS], ids=[row[0] for row in COMMANDS])
def test_a_command_that_cannot_be_run_is_a_failed_run(jar: Sandbox, argv: list[str], code: int) -> None:
    """As in a shell: 127 if it is not there, 126 if it can't be executed. Not an exception, and stderr says why."""
    result = jar.exec(argv)
    assert (result.outcome, result.exit_code) == ("failed", code)
    assert argv[0] in result.stderr


class TestTimeout:
    """proc.timeout_ms ends everything."""

    SCRIPTS = {
        "it sleeps": "exec sleep 600",
        "it computes": "while :; do :; done",
        "children hold the output": "sleep 600 <&0 & sleep 600 <&0 & wait",
        "it ignores signals": "trap '' TERM INT HUP; while :; do sleep 600; done",
        "it is a session of its own": "setsid sleep 600 <&0 & setsid -f sleep 600 <&0; sleep 600",
    }

    @pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
    def test_the_whole_tree_ends(self, open_jar: OpenJar, script: str) -> None:
        """The outcome says timeout, the reason names the rule, and no process is left."""
        jar = open_jar(timeout="300ms")
        with Lifeline() as line:
            result = jar.exec(["sh", "-c", f"echo started; {script}"], stdin=line.stdin)
            assert line.is_cut()
        assert result.outcome is Outcome.TIMEOUT
        assert "proc.timeout_ms" in result.reason
        assert "0.3 s" in result.reason
        assert result.stdout == "started\n"
        assert result.duration >= 0.3

    def test_the_next_run_has_its_own_time(self, open_jar: OpenJar) -> None:
        """A timeout is of one run, and the workspace stays."""
        jar = open_jar(timeout="2s")
        assert sh(jar, "echo kept > kept; exec sleep 600").outcome is Outcome.TIMEOUT
        assert told(sh(jar, "cat kept")) == "kept\n"


class TestMemory:
    """proc.mem_mb ends everything."""

    POLICY = {"proc": {"mem_mb": 64, "timeout_ms": "120s"}}
    SCRIPTS = {
        "the code itself": "exec tail /dev/zero",
        "a child, while the code waits": "tail /dev/zero; echo survived; exec sleep 600",
        "a child in the background": "tail /dev/zero & sleep 600",
    }

    @pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
    def test_out_of_memory_is_its_own_outcome(self, open_jar: OpenJar, script: str) -> None:
        """Whoever of the tree took it: the outcome is oom and the reason names the rule."""
        result = sh(open_jar(self.POLICY), script)
        assert result.outcome is Outcome.OOM, result
        assert "proc.mem_mb" in result.reason
        assert "64 MB" in result.reason
        assert "survived" not in result.stdout

    def test_the_next_run_is_not_harmed(self, open_jar: OpenJar) -> None:
        """Memory is counted for each run."""
        jar = open_jar(self.POLICY)
        assert sh(jar, "exec tail /dev/zero").outcome is Outcome.OOM
        assert told(sh(jar, "echo fine")) == "fine\n"


class TestKill:
    """`kill()` from another thread."""

    def test_a_run_that_waits_is_ended(self, jar: Sandbox) -> None:
        """The thread that runs it hears of it: killed, by the caller."""
        with Lifeline() as line:
            stream = jar.stream(argv=["sh", "-c", "sleep 600 <&0 & echo up; exec sleep 600"], stdin=line.stdin)
            first = next(stream)
            assert first == Output("stdout", b"up\n")
            thread = threading.Thread(target=jar.kill)
            thread.start()
            result = finish(stream)
            thread.join()
            assert line.is_cut()
        assert result.outcome is Outcome.KILLED
        assert "killed by the caller" in result.reason
        assert result.stdout == "up\n"

    def test_every_run_of_the_sandbox_is_ended_and_it_stays_usable(self, jar: Sandbox) -> None:
        """Two at once, one kill; then a third run is like any other."""
        streams = [jar.stream(argv=["sh", "-c", "echo up; exec sleep 600"]) for _ in range(2)]
        for stream in streams:
            next(stream)
        jar.kill()
        assert [finish(stream).outcome for stream in streams] == [Outcome.KILLED] * 2
        assert told(sh(jar, "echo again")) == "again\n"

    def test_with_nothing_running_it_does_nothing(self, jar: Sandbox) -> None:
        """Before the first run and after the last."""
        jar.kill()
        assert sh(jar, "exit 0").ok
        jar.kill()
        assert sh(jar, "exit 0").ok


class TestOutputLimit:
    """proc.output_mb counts both streams together."""

    @pytest.mark.parametrize("where", ["", ">&2"], ids=["stdout", "stderr"])
    def test_too_much_output_ends_the_run(self, open_jar: OpenJar, where: str) -> None:
        """Killed, truncated, and not a byte more than the limit is kept."""
        result = sh(open_jar({"proc": {"output_mb": "64k"}}), f"yes {where}")
        assert result.outcome is Outcome.KILLED
        assert result.truncated
        assert "proc.output_mb" in result.reason
        assert len(result.stdout) + len(result.stderr) == 64 << 10

    def test_both_streams_share_it(self, open_jar: OpenJar) -> None:
        """Half in each is the whole."""
        result = sh(
            open_jar({"proc": {"output_mb": "64k"}}),
            "head -c 50000 /dev/zero; head -c 50000 /dev/zero >&2; exec sleep 600",
        )
        assert result.outcome is Outcome.KILLED
        assert len(result.stdout) + len(result.stderr) == 64 << 10

    def test_the_limit_itself_is_allowed(self, open_jar: OpenJar) -> None:
        """Exactly as much as the policy says."""
        result = sh(open_jar({"proc": {"output_mb": "64k"}}), "head -c 65536 /dev/zero")
        assert (result.outcome, result.truncated, len(result.stdout)) == ("ok", False, 65536)

    def test_the_reason_tells_a_small_limit_right(self, open_jar: OpenJar) -> None:
        """64 KB are not called 0 MB."""
        result = sh(open_jar({"proc": {"output_mb": "64k"}}), "yes")
        assert "0 MB" not in result.reason


class TestRefused:
    """A clause that can't be held stops the run before it starts, unless that is accepted."""

    @pytest.fixture
    def live(self, tmp_path: Path) -> dict[str, Any]:
        """A policy with a live directory, in which no backend can hold every clause."""
        return {
            "fs": {"mounts": [{"path": "/workspace", "rw": True}, {"path": "/d", "source": str(tmp_path), "rw": True}]}
        }

    def test_nothing_is_run(self, open_jar: OpenJar, live: dict[str, Any]) -> None:
        """A result and not an exception: no exit code, and the reason names the clause."""
        jar = open_jar(live)
        result = sh(jar, "echo ran > /workspace/ran; echo ran")
        assert result.outcome is Outcome.REFUSED
        assert (result.exit_code, result.signal, result.stdout, result.stderr) == (None, None, "", "")
        assert "fs.deny_globs" in result.reason

    def test_what_the_reason_advises_works(self, open_jar: OpenJar, live: dict[str, Any], tmp_path: Path) -> None:
        """The line that it tells to add is one that the policy takes, and with it the code runs."""
        tmp_path.chmod(0o777)
        jar = open_jar(live)
        refused = jar.plan(argv=["true"]).report.refused_by(jar.policy)
        advice = re.search(r"add to the policy: on_degraded: \[(.*?)\]", sh(jar, "true").reason)
        assert advice is not None
        keys = advice[1].split(", ")
        assert {clause.key for clause in refused} <= set(keys)
        assert told(sh(open_jar({**live, "on_degraded": keys}), "echo ran")) == "ran\n"

    def test_accepting_everything_works(self, open_jar: OpenJar, live: dict[str, Any], tmp_path: Path) -> None:
        """`on_degraded: allow` runs it, and the report still tells what does not hold."""
        tmp_path.chmod(0o777)
        jar = open_jar({**live, "on_degraded": "allow"})
        result = sh(jar, "echo ran")
        assert told(result) == "ran\n"
        assert jar.plan(argv=["true"]).report.clause("fs.deny_globs") in result.enforcement.clauses

    def test_accepting_another_clause_is_not_enough(self, open_jar: OpenJar, live: dict[str, Any]) -> None:
        """What was accepted is what is written, and nothing beside it."""
        jar = open_jar({**live, "on_degraded": ["fs.size_mb", "proc.mem_mb", "proc.cpu_quota"]})
        assert sh(jar, "true").outcome is Outcome.REFUSED


def test_the_code_ends_and_its_children_with_it(jar: Sandbox) -> None:
    """A child in the background that holds stdout does not keep the run alive, and does not outlive it."""
    with Lifeline() as line:
        script = "sleep 600 <&0 & setsid sleep 600 <&0 & echo done"
        result = jar.exec(["sh", "-c", script], stdin=line.stdin)
        assert line.is_cut()
    assert told(result) == "done\n"
    assert result.duration < 60
