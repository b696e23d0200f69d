"""`belljar shell`: steps from standard input, and a conversation at a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_process import Ran

from belljar.cli.run.shell_loop import is_whole, whole_statements

pytestmark = pytest.mark.host

SCRIPTS = {
    "variables stay": ("x = 20\ndef f(n):\n    return n + 2\n\nf(x) * 2\n", 0, "44\n"),
    "until one fails": ("print(1)\n1/0\nprint(2)\n", 1, "1\n"),
    "its own status": ("import sys\nsys.exit(7)\n", 7, ""),
    "a command": ("open('f', 'w').write('in f');\n!cat f; exit 3\n", 3, "in f"),
    "files": ("open('f', 'w').write('12345');\n%files\n", 0, "           5  f\n"),
    "restart": ("x = 1\n%restart\n'x' in globals()\n", 0, "False\n"),
    "snapshot": (
        "open('f', 'w').write('a');\n%snapshot one\nopen('f', 'w').write('b');\n%restore one\nopen('f').read()",
        0,
        "'a'\n",
    ),
    "an order that there is not": ("%nonsense\n", 2, ""),
    "what is no Python": ("if\n", 1, ""),
    "a decorator": ("def d(f): return lambda: 5\n@d\ndef g():\n    pass\n\ng()", 0, "5\n"),
    "escape sequences are shown where they would act": ("print('\\x1b[31mred')", 0, "\x1b[31mred\n"),
    "nothing": ("", 0, ""),
}


@pytest.mark.parametrize(("script", "code", "out"), SCRIPTS.values(), ids=SCRIPTS)
def test_scripts(jar: Callable[..., Ran], script: str, code: int, out: str) -> None:
    """What is no terminal gets each statement's output, and the exit code of the one that failed."""
    ran = jar("shell", stdin=script.encode())
    assert (ran.code, ran.out) == (code, out), ran.err


def test_json(jar: Callable[..., Ran]) -> None:
    """One document a step."""
    ran = jar("shell", "--json", stdin=b"x = 1\nprint('out'); x + 1\n1/0\n")
    steps = [json.loads(line) for line in ran.out.splitlines()]
    assert [(step["outcome"], step["value"], step["stdout"]) for step in steps] == [
        ("ok", None, ""),
        ("ok", "2", "out\n"),
        ("failed", None, ""),
    ]
    assert (steps[2]["error"]["type"], ran.code, ran.err) == ("ZeroDivisionError", 1, "")


def test_artifacts(jar: Callable[..., Ran], tmp_path: Path) -> None:
    """What the code makes and shows becomes files."""
    code = b"class P:\n    def _repr_png_(self): return b'png'\n\nopen('made', 'w').write('m');\nP()\n"
    ran = jar("shell", "--artifacts", str(tmp_path / "kept"), stdin=code)
    assert ran.code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == {
        "made": b"m",
        "step-3-figure-1.png": b"png",
    }


WHOLE = {
    "x = 1": True,
    "for n in x:": False,
    "for n in x:\n    print(n)": False,
    "for n in x:\n    print(n)\n": True,
    "(1 +": False,
    "'''text": False,
    "1 +* 2": True,
    "await f()": True,
    "%files": True,
    "!ls": True,
}


@pytest.mark.parametrize("text", WHOLE)
def test_when_a_statement_is_whole(text: str) -> None:
    """As Python's own prompt has it."""
    assert is_whole(text) is WHOLE[text]


def test_statements_of_a_script() -> None:
    """Each with its decorators and comments' lines; orders by themselves; two on one line together."""
    text = "x = 1\n# why\n@d\ndef f():\n    pass\n%files\na = 1; b = 2\n"
    assert list(whole_statements(text)) == [
        "x = 1\n# why\n",
        "@d\ndef f():\n    pass\n",
        "%files\n",
        "a = 1; b = 2\n",
    ]


class Terminal:
    """`belljar shell` at a terminal of its own."""

    def __init__(self, *options: str) -> None:
        pid, self._master = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "belljar", "shell", *options])
        self._pid = pid
        self.seen = b""

    def wait_for(self, text: bytes) -> bytes:
        """What came until the text, and the text."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 1)[0]:
                self.seen += os.read(self._master, 4096)
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def press_until(self, keys: bytes, text: bytes) -> None:
        """Press keys, again if nothing happens: Python may miss a Ctrl-C in the moment in which its prompt begins."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self.type(keys)
            while text not in self.seen and select.select([self._master], [], [], 2)[0]:
                self.seen += os.read(self._master, 4096)

    def type(self, text: bytes) -> None:
        """Press keys."""
        os.write(self._master, text)

    def end(self) -> int:
        """Its exit code."""
        status = os.waitpid(self._pid, 0)[1]
        os.close(self._master)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """If it has not ended."""
        try:
            if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
        except ChildProcessError:
            return


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """One with a prompt."""
    opened = Terminal()
    opened.wait_for(b">>> ")
    yield opened
    opened.kill()


def test_a_conversation(terminal: Terminal) -> None:
    """Lines that go on, values, errors, Ctrl-C that keeps the variables, Ctrl-D."""
    terminal.type(b"x = 41\n")
    terminal.wait_for(b">>> ")
    terminal.type(b"for n in range(2):\n")
    terminal.wait_for(b"... ")
    terminal.type(b"    print('n', n)\n\n")
    assert b"n 0\r\nn 1\r\n" in terminal.wait_for(b">>> ")
    terminal.type(b"import time; print('running', flush=True); time.sleep(1000)\n")
    terminal.wait_for(b"\nrunning")
    terminal.type(b"\x03")
    assert b"KeyboardInterrupt" in terminal.wait_for(b">>> ")
    terminal.type(b"print('\\x1b[31mred'); x + 1\n")
    shown = terminal.wait_for(b">>> ")
    assert b"\\x1b[31mred" in shown
    assert b"42\r\n" in shown
    terminal.press_until(b"abc\x03", b"KeyboardInterrupt\r\n>>> ")
    terminal.type(b"\x04")
    assert terminal.end() == 0


def test_giving_up_a_step(terminal: Terminal) -> None:
    """Code that is deaf to Ctrl-C is killed after the third, and the loss of the variables is told."""
    terminal.type(b"import time; x = 1\ndef deaf():\n  while True:\n    try: print('go', flush=True); time.sleep(99)\n")
    terminal.type(b"    except KeyboardInterrupt: pass\n\ndeaf()\n")
    for _time in range(3):
        terminal.wait_for(b"go\r\n")
        terminal.type(b"\x03")
    assert b"variables are gone" in terminal.wait_for(b"KeyboardInterrupt\r\n>>> ")
    terminal.type(b"'x' in globals()\n")
    terminal.wait_for(b"False\r\n")


def test_help_and_exit(terminal: Terminal) -> None:
    """What one would type first."""
    terminal.type(b"%help\n")
    assert b"%snapshot" in terminal.wait_for(b">>> ")
    terminal.type(b"%exit\n")
    assert terminal.end() == 0


def test_nothing_is_left(tmp_path: Path) -> None:
    """Not in the directory it was started from, and no process."""
    done = subprocess.run(
        [sys.executable, "-m", "belljar", "shell"],
        input=b"open('x', 'w')\n",
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []
