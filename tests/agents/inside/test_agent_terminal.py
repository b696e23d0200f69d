"""An agent at a real terminal (a pty): it has one of its own, and a person approves what it did."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Self

import pytest
from agent_runs import BELLJAR, SECRET, Home, git
from model_endpoint import ModelEndpoint, say, use

from belljar.cli.terminal.screen_filter import RESTORED, ScreenFilter

_PATIENCE = 60.0


class Terminal:
    """belljar with a terminal of 30 rows and 100 columns."""

    def __init__(self, home: Home, *words: str, **variables: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.seen = b""
        self.process = subprocess.Popen(
            [*BELLJAR, *words],
            cwd=home.project,
            env=home.environment(TERM="xterm-256color", **variables),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def until(self, wanted: bytes) -> None:
        """Read until it is there; what is before it is done with."""
        deadline = time.monotonic() + _PATIENCE
        while wanted not in self.seen:
            assert self._more(deadline - time.monotonic()), self.seen
        self.seen = self.seen.partition(wanted)[2]

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self) -> None:
        """Close it, as a window is closed; what is written to it goes nowhere from now on."""
        os.close(self.ours)
        self.ours = os.open(os.devnull, os.O_RDONLY)

    def end(self) -> int:
        while self._more(_PATIENCE):
            pass
        return self.process.wait(_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Whatever the test found, nothing stays."""
        os.close(self.ours)
        self.process.kill()
        self.process.wait()

    def _more(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.ours], [], [], max(0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self.ours, 1 << 16)
        except OSError:  # EIO: nobody holds the other side any more
            return False
        self.seen += data
        return bool(data)


_TALK = r"""
    tty; stty size; trap 'stty size; echo resized' WINCH; echo a >> sums.py; echo b > other.txt
    printf '\033]52;c;cGFzdGVk\007\033[31mred\033[0m\033]0;title\007\n'
    while ! read line; do :; done; echo "said $line"
    stty raw -echo; printf 'key '; dd bs=1 count=1 2>/dev/null | od -An -tx1; exit 7
"""


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_it_has_a_terminal_of_its_own(home: Home) -> None:
    """With the size of ours, from which it is told; keys are its, Ctrl-C too; it draws, and writes no clipboard."""
    with Terminal(home, "agent", "--", "sh", "-c", _TALK) as terminal:
        terminal.until(b"/dev/pts/0\r\n30 100\r\n")
        terminal.until(b"\x1b[31mred\x1b[0m\r\n")
        terminal.resize(31, 101)
        terminal.until(b"31 101\r\nresized")
        terminal.type(b"hello\r")
        terminal.until(b"said hello\r\n")
        terminal.until(b"key ")
        terminal.type(b"\x03")
        terminal.until(b"03")
        terminal.until(RESTORED)
        terminal.until(b"apply the changes?")
        terminal.type(b"f\n")
        terminal.until(b"added other.txt: apply? [y/N]")
        terminal.type(b"n\n")
        terminal.until(b"modified sums.py: apply? [y/N]")
        terminal.type(b"y\n")
        terminal.until(b"applied: sums.py")
        assert terminal.end() == 7
    assert (home.project / "sums.py").read_text().endswith("a\n")
    assert not (home.project / "other.txt").exists()


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_protected_files_are_asked_for_one_by_one(home: Home) -> None:
    """Also after `all`; who closes the terminal's input has said no."""
    script = "echo x > plain.txt; echo x > CLAUDE.md; echo y > .mcp.json"
    with Terminal(home, "agent", "--", "sh", "-c", script) as terminal:
        terminal.until(b"apply the changes?")
        terminal.type(b"d\n")
        terminal.until(b"+++ b/plain.txt")
        terminal.until(b"apply the changes?")
        terminal.type(b"a\n")
        terminal.until(b"added .mcp.json (an agent on the host would act on it: it starts the servers")
        terminal.until(b"): apply? [y/N]")
        terminal.type(b"y\n")
        terminal.until(b"): apply? [y/N]")
        terminal.type(b"\x04")
        assert terminal.end() == 0
    assert b"not applied: CLAUDE.md" in terminal.seen
    names = {path.name for path in home.project.iterdir()}
    assert names == {".git", ".env", "sums.py", "plain.txt", ".mcp.json"}


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize("answer", ["y", "n"])
def test_what_git_ignores_is_listed_and_asked_for_apart(home: Home, answer: str) -> None:
    """After the protected files, of which `q` leaves out the rest; the diff can be seen first."""
    (home.project / ".gitignore").write_text("build/\n")
    script = "echo x > plain.txt; mkdir build; echo tool > build/tool; touch .exrc .mcp.json AGENTS.md"
    with Terminal(home, "agent", "--", "sh", "-c", script) as terminal:
        terminal.until(b"apply the changes?")
        terminal.type(b"a\n")
        terminal.until(b"): apply? [y/N]")
        terminal.type(b"y\n")
        terminal.until(b"or q for none of the 2 that are left]")
        terminal.type(b"q\n")
        terminal.until(b"git ignores these")
        terminal.until(b"  build/ (1 file)")
        terminal.until(b"apply them? [y/N], show the [d]iff:")
        terminal.type(b"d\n")
        terminal.until(b"+tool")
        terminal.until(b"apply them?")
        terminal.type(answer.encode() + b"\n")
        assert terminal.end() == 0
    names = {path.name for path in home.project.iterdir()} - {".git", ".env", ".gitignore", "sums.py"}
    assert names == {"plain.txt", ".exrc"} | ({"build"} if answer == "y" else set())


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_branch_that_something_speaks_against_is_asked_for(home: Home, answer: str) -> None:
    """With its commits, the reason and, on request, the diff; the others move with the word for all."""
    script = """git branch plain; mkdir -p .github/workflows; echo on > .github/workflows/ci.yml; git add .github
        git commit -qm workflow; git checkout -q plain; git commit -q --allow-empty -m nothing; git checkout -q main"""
    with Terminal(home, "agent", "--", "sh", "-c", script) as terminal:
        terminal.until(b"apply the changes?")
        terminal.type(b"a\n")
        terminal.until(b"ci.yml (")
        terminal.until(b"): apply? [y/N]")
        terminal.type(b"y\n")
        terminal.until(b": workflow")
        terminal.until(b"holds .github/workflows/ci.yml: a build service")
        terminal.until(b"move main? [y/N], show the [d]iff:")
        terminal.type(b"d\n")
        terminal.until(b"+on")
        terminal.until(b"move main?")
        terminal.type(answer.encode() + b"\n")
        terminal.until(b"moved: ")
        assert terminal.end() == 0
    assert git(home.project, "log", "-1", "--format=%s", "plain") == "nothing\n"
    assert git(home.project, "log", "-1", "--format=%s", "main") == ("workflow\n" if answer == "y" else "first\n")


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize("when", ["while it runs", "at the question"])
def test_a_terminal_that_is_closed_keeps_the_work(home: Home, state_directory: str, when: str) -> None:
    """Whoever closes the window has not seen the question, or not answered it."""
    script = "echo half > half.txt; echo ready" + ("; exec sleep 600" if when == "while it runs" else "")
    with Terminal(home, "agent", "--", "sh", "-c", script) as terminal:
        terminal.until(b"ready" if when == "while it runs" else b"apply the changes?")
        terminal.hang_up()
        assert terminal.process.wait(_PATIENCE) == 129
    (kept,) = Path(state_directory, "changes").iterdir()
    assert (kept / "after/half.txt").read_text() == "half\n"


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize("how", ["belljar is told to end", "the run is killed"])
def test_the_terminal_is_left_clean_after_a_kill(home: Home, how: str) -> None:
    """Modes that the program set do not outlive it, nor does the raw terminal."""
    script = r"printf '\033[?1049h\033[?1000h\033[?2004h\033[?25l\033[31mready'; exec sleep 600"
    with Terminal(home, "agent", "--", "sh", "-c", script) as terminal:
        terminal.until(b"ready")
        if how == "the run is killed":
            assert home.belljar("kill", "--all").code == 0
        else:
            terminal.process.send_signal(signal.SIGTERM)
        terminal.until(RESTORED)
        terminal.end()
        assert terminal.process.returncode == (137 if how == "the run is killed" else 143)
        assert b"\x1b[?" not in terminal.seen
        flags = termios.tcgetattr(terminal.ours)[3]
        assert flags & termios.ECHO
        assert flags & termios.ICANON


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_ctrl_c_at_the_question_keeps_the_work(home: Home) -> None:
    """It is no answer, and what was done is not lost."""
    with Terminal(home, "agent", "--", "sh", "-c", "echo half > half.txt") as terminal:
        terminal.until(b"apply the changes?")
        terminal.type(b"\x03")
        terminal.until(b"nothing was applied; the work is kept: ")
        assert terminal.end() == 130
    assert not (home.project / "half.txt").exists()


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_a_patch_at_a_terminal_moves_no_cursor(home: Home) -> None:
    """In a file it is what `git apply` takes, byte for byte."""
    run = home.kept(home.agent(r"printf 'a\033]0;title\007b\n' > new").err)
    with Terminal(home, "review", run, "--patch") as terminal:
        terminal.until(rb"+a\x1b]0;title\x07b")
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.seen
    assert b"\x1b]0;title\x07" in home.raw("review", run, "--patch")


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_the_diff_is_in_the_pager(home: Home) -> None:
    """At the question, and for `review`; in colours, with nothing of the agent's hidden in it."""
    pager = home.directory / "pager"
    pager.write_text('#!/bin/sh\necho "PAGED $LESSSECURE"; cat\n')
    pager.chmod(0o755)
    script = "printf '\\033[2Khidden\\n' > half.txt"
    with Terminal(home, "agent", "--", "sh", "-c", script, PAGER=str(pager)) as terminal:
        terminal.until(b"\x1b[32m  + half.txt\x1b[0m")
        terminal.until(b"apply the changes?")
        terminal.type(b"d\n")
        terminal.until(b"PAGED 1")
        terminal.until(b"\x1b[32m+\\x1b[2Khidden\x1b[0m")
        terminal.until(b"apply the changes?")
        terminal.type(b"n\n")
        assert terminal.end() == 0
    with Terminal(home, "review", home.kept(), PAGER=str(pager)) as terminal:
        terminal.until(b"PAGED 1")
        terminal.until(b"\x1b[32m+\\x1b[2Khidden\x1b[0m")
        assert terminal.end() == 0
    with Terminal(home, "review", home.kept(), PAGER=str(pager), NO_COLOR="1") as terminal:
        terminal.until(b"+\\x1b[2Khidden")
        assert terminal.end() == 0


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.usefixtures("claude")
def test_a_conversation_with_claude(home: Home) -> None:
    """It asks nothing at its start, works, and ends as it does anywhere."""
    turns = [use("Write", file_path=f"{home.project}/hello.txt", content="hello\n"), say("ALL-IS-WRITTEN")]
    with (
        ModelEndpoint(turns) as model,
        Terminal(home, "claude", ANTHROPIC_API_KEY=SECRET, ANTHROPIC_BASE_URL=model.url) as terminal,
    ):
        terminal.until(b"bypass permissions")
        terminal.type(b"write")
        terminal.until(b"write")
        terminal.type(b"\r")
        terminal.until(b"ALL-IS-WRITTEN")
        terminal.type(b"/exit")
        terminal.until(b"exit")
        terminal.type(b"\r")
        terminal.until(b"denied     nothing")
        terminal.until(b"apply the changes?")
        terminal.type(b"a\n")
        terminal.until(b"applied: hello.txt")
        assert terminal.end() == 0
    assert (home.project / "hello.txt").read_text() == "hello\n"


SHOWN = [
    # what comes, what passes
    (b"plain \xc3\xa9 text\r\n", b"plain \xc3\xa9 text\r\n"),
    (b"\x1b[1;31mred\x1b[0m", b"\x1b[1;31mred\x1b[0m"),
    (b"\x1b[?1049h\x1b[2J\x1b[10;5H", b"\x1b[?1049h\x1b[2J\x1b[10;5H"),
    (b"\x1b]52;c;aGk=\x07after", b"after"),
    (b"\x1b]0;title\x1b\\after", b"after"),
    (b"\x1b]8;;http://example.com\x1b\\link\x1b]8;;\x1b\\", b"link"),
    (b"\x1bP$q m\x1b\\after", b"after"),
    (b"\x1b_app\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\\x1bktitle\x1b\\after", b"after"),
    (b"\x1b[21t\x1b[3;0;0tafter", b"after"),
    (b"\x1b[1;1;1;1;1;1*yafter", b"after"),
    (b"\x1b[5iafter", b"after"),
    (b"\x1bcafter", b"after"),
    (b"\xc2\x9d52;c;aGk=\x07after", b"52;c;aGk=\x07after"),
    (b"\x9b31mafter", b"\xef\xbf\xbd31mafter"),
    (b"\x1b]52;c;\x18after", b"after"),
    (b"\x1b[\x1b]0;title\x07after", b"after"),
    (b"\x1b[" + b"1;" * 100 + b"mafter", None),
    (b"\x00\x0e\x0f\x7fafter", b"after"),
    (b'\x1b[61"pafter', b"after"),
    (b"\x1b7\x1b8\x1b(Bafter", b"\x1b7\x1b8\x1b(Bafter"),
]


@pytest.mark.parametrize(("come", "passes"), SHOWN, ids=[repr(come[:20]) for come, _ in SHOWN])
def test_what_may_reach_the_terminal(come: bytes, passes: bytes | None) -> None:
    """However the stream is cut."""
    whole = ScreenFilter().feed(come)
    cut = ScreenFilter()
    assert b"".join(cut.feed(bytes([byte])) for byte in come) == whole
    if passes is None:
        assert b"\x1b" not in whole
    else:
        assert whole == passes


LASTING = [
    # what passes, and would change how a diff looks that is shown next; what undoes it
    (b"\x1b[?7l", b"\x1b[?7h"),
    (b"\x1b(0", b"\x1b(B"),
    (b"\x1b[4h", b"\x1b[4l"),
    (b"\x1b[2h", b"\x1b[2l"),
    (b"\x1b[20h", b"\x1b[20l"),
    (b"\x1b[?69h\x1b[1;9s", b"\x1b[?69l"),
    (b"\x1b[1;2r", b"\x1b[r"),
    (b"\x1b[8m", b"\x1b[0m"),
    (b"\x1b[?2l", b"\x1b<"),
]


@pytest.mark.parametrize(("passes", "undone"), LASTING)
def test_nothing_that_it_set_stays(passes: bytes, undone: bytes) -> None:
    """With no new rows, the end of a long line is never seen, and approved unseen."""
    assert ScreenFilter().feed(passes) == passes
    assert undone in RESTORED
    saved, back = RESTORED.index(b"\x1b7"), RESTORED.index(b"\x1b8")
    assert undone in {b"\x1b[r", b"\x1b[?69l", b"\x1b<"} or RESTORED.index(undone) > back > saved
