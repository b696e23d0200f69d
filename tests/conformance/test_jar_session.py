"""Sessions: the same on every backend, because a session is one long run of an ordinary jar."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar import Session
from belljar.errors import UsageError
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Artifact, Outcome
from belljar.sandbox.session.step import Shown, StepFinished

OpenSession = Callable[..., Session]


class TestVariables:
    """What stays."""

    def test_they_stay_and_values_come_back(self, session: Session) -> None:
        """From one step to the next: variables, functions, imports, classes that can be pickled."""
        assert session.run("import json\nx = 20").value is None
        assert session.run("def double(n):\n    return 2 * n\ndouble(x) + 2").value == "42"
        assert session.run("class C: pass\nimport pickle; type(pickle.loads(pickle.dumps(C()))) is C").value == "True"
        assert session.run("_").value == "True"
        assert session.run("json.dumps([x]);").value is None, "a semicolon means: do not show"

    def test_a_coroutine_is_awaited(self, session: Session) -> None:
        """As in a notebook: at the top level, in one event loop."""
        assert session.run("import asyncio\nawait asyncio.sleep(0, 'a')").value == "'a'"
        assert session.run("task = asyncio.ensure_future(asyncio.sleep(0, 'b')); await asyncio.sleep(0.01)").ok
        assert session.run("await task").value == "'b'"

    def test_a_fork_of_state_goes_on_from_the_same_variables(self, session: Session) -> None:
        """In the same jar, and says so: files are one, variables are not."""
        session.run("x = [1]; open('shared', 'w').write('before')")
        fork = session.fork(state=True)
        assert fork.shares_jar_with == session.id
        assert "fork" in repr(fork)
        assert fork.run("x.append(2); open('shared', 'w').write('by the fork'); x").value == "[1, 2]"
        assert session.run("x").value == "[1]"
        assert session.run("open('shared').read()").value == "'by the fork'"
        again = fork.fork(state=True)
        assert again.run("x.append(3); x").value == "[1, 2, 3]"
        assert fork.run("import os; os._exit(3)").state_lost
        assert (fork.state, session.run("x").value, again.run("x").value) == ("crashed", "[1]", "[1, 2, 3]")
        again.close()

    def test_a_fork_of_state_has_an_event_loop_of_its_own(self, session: Session) -> None:
        """Two that wait on the same descriptors would wake each other, and themselves not."""
        wakes = (
            "import asyncio, os; os.fstat((await asyncio.sleep(0, asyncio.get_running_loop()))._ssock.fileno()).st_ino"
        )
        before = session.run(wakes).value
        fork = session.fork(state=True)
        assert before != fork.run(wakes).value
        assert fork.run("await asyncio.to_thread(abs, -1)", timeout=5).value == "1"
        assert session.run(wakes).value == before
        assert session.run("await asyncio.to_thread(abs, -1)", timeout=5).value == "1"


class TestOutput:
    """What comes back."""

    def test_streams(self, session: Session) -> None:
        """Output arrives as it is printed, in order with what is shown; the result has it once more."""
        seen = list(session.stream("import sys\nprint('a')\ndisplay({'k': 1})\nprint('b', file=sys.stderr)\n7"))
        kinds = [type(event) for event in seen]
        assert kinds.index(Output) < kinds.index(Shown) < kinds.index(StepFinished)
        assert isinstance(seen[-1], StepFinished)
        result = seen[-1].result
        assert (result.stdout, result.stderr, result.value, result.outcome) == ("a\n", "b\n", "7", Outcome.OK)
        assert [(rich.mime, rich.text) for rich in result.results] == [("application/json", '{"k": 1}')]

    def test_output_arrives_while_the_step_runs(self, session: Session) -> None:
        """Before its end: here the step waits for a file that the reader of its output makes."""
        code = "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.01)"
        for event in session.stream(code):
            if isinstance(event, Output):
                session.files.write("go", "")
            elif isinstance(event, StepFinished):
                assert event.result.ok

    def test_processes_print_into_the_same_step(self, session: Session) -> None:
        """A child's output is the step's."""
        assert session.run("import subprocess; subprocess.run(['echo', 'from a child'])").stdout == "from a child\n"

    def test_rich_forms(self, session: Session) -> None:
        """A value that can show itself does, in every form it has."""
        code = """
class Table:
    def _repr_html_(self): return "<table>"
    def _repr_png_(self): return b"\\x89PNG"
    def _repr_json_(self): return {"rows": 2}
    def _repr_latex_(self): raise ValueError
Table()
"""
        forms = {rich.mime: rich.data for rich in session.run(code).results}
        assert forms == {"text/html": b"<table>", "image/png": b"\x89PNG", "application/json": b'{"rows": 2}'}

    def test_tracebacks_begin_at_the_code(self, session: Session) -> None:
        """With the lines of the step that each function was written in, and nothing of belljar's."""
        session.run("def divide(n):\n    return 1 / n")
        result = session.run("print('before')\ndivide(0)")
        assert result.outcome is Outcome.FAILED
        assert result.error is not None
        assert result.error.type == "ZeroDivisionError"
        files = [line.split('"')[1] for line in result.error.traceback.splitlines() if '  File "' in line]
        assert files == ["<step 2>", "<step 1>"]
        assert "return 1 / n" in result.error.traceback
        assert "belljar" not in result.error.traceback
        assert result.stdout == "before\n"
        told = session.run("1 / 0").error
        assert told is not None
        assert "    1 / 0\n    ~~^~~\n" in told.traceback  # the carets are where Python has them

    def test_a_mistake_is_told(self, session: Session) -> None:
        """Code that is no Python, and an exception whose text can't be had."""
        wrong = session.run("if")
        assert wrong.error is not None
        assert wrong.error.type == "SyntaxError"
        assert session.run("class E(Exception):\n    def __str__(self): 1/0\nraise E").outcome is Outcome.FAILED
        assert (
            session.run("class R:\n    def __repr__(self): 1/0\nR()").value == "<R: its repr raised ZeroDivisionError>"
        )

    def test_exit_ends_the_step_alone(self, session: Session) -> None:
        """Not the session."""
        session.run("x = 1")
        assert (session.run("import sys; sys.exit(3)").exit_code, session.run("x").value) == (3, "1")
        assert session.run("sys.exit()").ok
        assert session.run("sys.exit('why')").stderr == "why\n"
        assert [session.run(f"sys.exit({status})").exit_code for status in ("2**70", "-2**70", "-1", "256 + 7")] == [
            255,
            255,
            255,
            7,
        ]
        wordless = session.run("class W:\n    def __str__(self): 1/0\nsys.exit(W())")
        assert (wordless.exit_code, wordless.state_lost) == (1, False)

    def test_input(self, session: Session) -> None:
        """What it is given, and an end of file otherwise."""
        assert session.run("input() + input()", stdin="a\nb\n").value == "'ab'"
        error = session.run("input()").error
        assert error is not None
        assert error.type == "EOFError"

    def test_artifacts_are_those_of_the_step(self, session: Session, tmp_path: Path) -> None:
        """Each told once, not again by the next; what the host or a command wrote is not the step's."""
        assert session.run("open('a', 'w').write('1')").artifacts == (Artifact("a", 1),)
        session.files.write("host", "x")
        for _time in range(5):  # the command begins within a tick of the clock that gives files their times
            session.run("open('c', 'w').close()")
            assert session.exec(["true"]).artifacts == ()
        assert session.exec(["sh", "-c", "echo >command"]).artifacts == (Artifact("command", 1),)
        result = session.run("open('b', 'w').write('22'); {'shown': 1}")
        assert result.artifacts == (Artifact("b", 2),)
        written = session.save_results(result, tmp_path / "out")
        assert sorted(Path(path).name for path in written) == ["b", "step-7-result-1.json"]


class TestLimits:
    """A step ends when it must; the variables stay if the code lets itself be interrupted."""

    def test_interrupt(self, session: Session) -> None:
        """From another thread, at once; the next step is not the one that was meant."""
        session.run("x = 5")
        for event in session.stream("import time\nprint('running')\ntime.sleep(100)"):
            if isinstance(event, Output):
                assert session.interrupt()
            elif isinstance(event, StepFinished):
                assert (event.result.outcome, event.result.interrupted) == (Outcome.KILLED, True)
                assert event.result.error is not None
                assert event.result.error.type == "KeyboardInterrupt"
                assert "belljar" not in event.result.error.traceback
        assert not session.interrupt(), "nothing runs"
        assert session.run("x").value == "5"

    RENDERED = {
        "its text": "class R:\n    def __repr__(self): wait()\nR()",
        "another form of it": "class R:\n    def _repr_html_(self): wait()\nR()",
        "an error's text": "class R(Exception):\n    def __str__(self): wait()\nraise R",
        "an exit's text": "class R:\n    def __str__(self): wait()\nraise SystemExit(R())",
    }

    @pytest.mark.parametrize("code", RENDERED.values(), ids=RENDERED)
    def test_interrupt_of_what_renders_a_value(self, session: Session, code: str) -> None:
        """That is the code's own, too."""
        session.run("x = 5\nimport time\ndef wait(): print('running', flush=True); time.sleep(8)")
        for event in session.stream(code):
            if isinstance(event, Output) and event.data == b"running\n":
                assert session.interrupt()
            elif isinstance(event, StepFinished):
                assert (event.result.outcome, event.result.reason) == (Outcome.KILLED, "it was interrupted")
        assert session.run("x").value == "5"

    LATER = {"timeout": ("pass", Outcome.TIMEOUT), "output": ("print('y' * 1000)", Outcome.KILLED)}

    @pytest.mark.parametrize(("code", "outcome"), LATER.values(), ids=LATER)
    def test_limits_hold_after_an_interrupt(self, open_session: OpenSession, code: str, outcome: Outcome) -> None:
        """Code that catches it, and goes on, is stopped by the limit that it reaches then."""
        session = open_session({"proc": {"output_mb": 1, "timeout_ms": "4s"}})
        caught = (
            "import time\ntry:\n    print('running'); time.sleep(60)\nexcept KeyboardInterrupt: pass\n"
            f"until = time.monotonic() + 60\nwhile time.monotonic() < until: {code}"
        )
        for event in session.stream(caught):
            if isinstance(event, Output) and event.data == b"running\n":
                assert session.interrupt()
            elif isinstance(event, StepFinished):
                assert (event.result.outcome, event.result.interrupted) == (outcome, True)
                assert (event.result.truncated, event.result.state_lost) == (outcome is Outcome.KILLED, False)

    def test_many_interrupts_hit_no_other_step(self, session: Session) -> None:
        """One that comes too late, at the end of a step, is for nobody."""
        session.run("count = 0")
        stop = threading.Event()

        def disturb() -> None:
            while not stop.is_set():
                session.interrupt()
                time.sleep(0.0005)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            results = [session.run("count += 1") for _ in range(40)]
        finally:
            stop.set()
            thread.join()
        done = sum(result.ok for result in results)
        assert all(result.ok or result.interrupted for result in results)
        assert int(session.run("count").value or -1) >= done
        assert session.run("1").ok

    def test_time(self, open_session: OpenSession) -> None:
        """A loop is interrupted; what can't be is killed, and the session says that its state is lost."""
        session = open_session({"proc": {"timeout_ms": "4s"}})
        assert session.run("x = 1").ok
        result = session.run("while True: pass")
        assert (result.outcome, result.state_lost) == (Outcome.TIMEOUT, False)
        assert "proc.timeout_ms" in result.reason
        assert session.run("x").value == "1"
        deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        result = session.run(deaf, timeout=0.5)
        assert (result.outcome, result.state_lost) == (Outcome.TIMEOUT, True)
        with pytest.raises(UsageError, match="has ended"):
            session.run("x")
        session.restart()
        assert session.run("'x' in globals()").value == "False"

    def test_an_interrupt_that_is_lost_comes_again(self, session: Session) -> None:
        """Code that catches everything once, and goes on, does not cost the session its variables."""
        session.run("x = 1")
        deaf_once = "try:\n    while True: pass\nexcept BaseException: pass\nwhile True: pass"
        result = session.run(deaf_once, timeout=0.5)
        assert (result.outcome, result.state_lost) == (Outcome.TIMEOUT, False)
        assert session.run("x").value == "1"

    def test_output(self, open_session: OpenSession) -> None:
        """A flood is stopped, and the session goes on."""
        session = open_session({"proc": {"output_mb": 1}})
        session.run("x = 1")
        result = session.run("while True: print('y' * 1000)")
        assert (result.outcome, result.truncated, result.state_lost) == (Outcome.KILLED, True, False)
        assert len(result.stdout) <= 1 << 20
        assert session.run("print(x)").stdout.endswith("1\n")

    def test_shown_things_count_as_output(self, open_session: OpenSession) -> None:
        """The host keeps no more of them than of what is printed."""
        session = open_session({"proc": {"output_mb": 1}})
        result = session.run("for n in range(100): display('z' * 100_000)")
        assert (result.truncated, result.state_lost) == (True, False), result.reason
        assert session.run("1").value == "1"

    def test_an_interrupt_does_not_cut_what_is_being_shown(self, open_session: OpenSession) -> None:
        """Most of the time such code has written half a frame, and the rest must come before the interrupt."""
        session = open_session({"proc": {"output_mb": 1}})
        session.run("text = 'z' * 2_000_000\nclass Page:\n    def _repr_html_(self): return text\npage = Page()")
        for _time in range(8):
            result = session.run("while True: display(page)")
            assert (result.truncated, result.state_lost) == (True, False)
        assert session.run("1").value == "1"

    def test_threads_show_whole_things(self, open_session: OpenSession) -> None:
        """What two show at once does not mix."""
        session = open_session({"proc": {"output_mb": 32}})
        result = session.run(
            "import threading\n"
            "class Page:\n"
            "    def __init__(self, letter): self.text = letter * 300_000\n"
            "    def _repr_html_(self): return self.text\n"
            "def show(letter):\n"
            "    for _ in range(10): display(Page(letter))\n"
            "threads = [threading.Thread(target=show, args=(letter,)) for letter in 'abc']\n"
            "for thread in threads: thread.start()\n"
            "for thread in threads: thread.join()\n"
        )
        assert result.ok, result.reason
        pages = [rich.text for rich in result.results]
        assert sorted(pages) == sorted(letter * 300_000 for letter in "abc" for _ in range(10))

    def test_memory(self, open_session: OpenSession, backend: str) -> None:
        """The jar's limit is the interpreter's."""
        session = open_session({"proc": {"mem_mb": 150}}, restart=True)
        result = session.run("x = bytearray(1 << 30)")
        if result.error is None:
            assert result.state_lost
            assert result.outcome in (Outcome.OOM, Outcome.FAILED), backend
        assert session.run("1").value == "1"

    def test_leaving_early_interrupts(self, session: Session) -> None:
        """Nobody waits for it any more; the next step does not have to either."""
        session.run("x = 9")
        for event in session.stream("print('one', flush=True)\nimport time\ntime.sleep(300)"):
            assert isinstance(event, Output)
            break
        assert session.run("x").value == "9"


class TestForkedByTheCode:
    """`os.fork()` in a step makes a process, and no second interpreter."""

    ENDS = {"nothing": ("pass", 0, ""), "exit": ("sys.exit(3)", 3, ""), "error": ("1/0", 1, "ZeroDivisionError")}

    @pytest.mark.parametrize(("code", "status", "words"), ENDS.values(), ids=ENDS)
    def test_the_child_ends_with_the_step(self, session: Session, code: str, status: int, words: str) -> None:
        """With the status of a script that does the same; the parent's variables are those that stay."""
        fork = (
            "import os, sys\npid, who = os.fork(), 'parent'\nif pid == 0:\n"
            f"    who = 'child'; display(who)\n    {code}\n"
            "else:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
        )
        result = session.run(fork, timeout=10)
        assert (result.outcome, result.stdout, result.results) == (Outcome.OK, f"{status}\n", ())
        assert words in result.stderr
        assert session.run("who").value == "'parent'"


class TestCrash:
    """An interpreter that ends is told, and a new one starts clean if asked."""

    CRASHES = (
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os._exit(7)", "status 7"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", ""),
        ("import os; os.closerange(3, 200); os.write(2, b'gone')", ""),
    )

    @pytest.mark.parametrize(("code", "words"), CRASHES, ids=["segfault", "exit", "abort", "supervisor", "closed"])
    def test_told_and_started_again(self, open_session: OpenSession, code: str, words: str) -> None:
        """With the reason; files stay, variables do not."""
        session = open_session(restart=True)
        session.run("x = 1; open('kept', 'w').write('k')")
        result = session.run(f"print('last words')\n{code}")
        assert result.state_lost
        assert not result.ok
        assert words in result.reason
        assert result.stdout == "last words\n" or "getppid" in code, "what the supervisor held dies with it"
        assert session.run("'x' in globals(), open('kept').read()").value == "(False, 'k')"

    def test_a_forged_word_of_the_keepers(self, open_session: OpenSession) -> None:
        """Code that takes the supervisor's place can break its own session, and nothing else."""
        session = open_session(restart=True)
        forged = "import os\nfd = os.open(f'/proc/{os.getppid()}/fd/1', os.O_WRONLY)\nos.write(fd, b'nonsense' * 100)"
        result = session.run(f"{forged}\nimport time; time.sleep(50)", timeout=20)
        assert not result.ok
        assert session.run("1").value == "1"


def test_mistakes(session: Session) -> None:
    """What can't be meant is told at once, and costs nothing."""
    with pytest.raises(UsageError, match="text"):
        session.run(b"1")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="surrogate"):
        session.run("'\ud800'")
    with pytest.raises(UsageError, match="timeout"):
        session.run("1", timeout=0)
    with pytest.raises(UsageError, match="snapshot"):
        session.snapshot("../x")
    with pytest.raises(UsageError, match="session"):
        Session.resume("../x")
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run("1")
    assert session.state == "closed"
