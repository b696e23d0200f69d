"""Slices of results, and the handles by which the whole is found: `RUN/stdout`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import belljar
from belljar import Pool, Sandbox, Session
from belljar.errors import UsageError
from belljar.sandbox.record.handles import Name, parse
from belljar.sandbox.record.kept_outputs import OUTPUTS

LINES = "".join(f"line {number}\n" for number in range(100))
PRINTS = "print(*(f'line {number}' for number in range(100)), sep='\\n')"
ALL = {"logging": {"sample_ratio": 1}}


@pytest.mark.parametrize(
    ("handle", "name"),
    [
        ("a1b2", Name("a1b2", None, None)),
        ("a1b2/stderr", Name("a1b2", None, "stderr")),
        ("a1b2/3", Name("a1b2", 3, None)),
        ("a1b2/3/stdout", Name("a1b2", 3, "stdout")),
    ],
)
def test_handles(handle: str, name: Name) -> None:
    """What they mean."""
    assert parse(handle) == name


@pytest.mark.parametrize(
    "handle", ["", "/stdout", "a/b/stdout", "a/stdin", "a/3/4/stdout", "../../etc/passwd", "a/1" + "0" * 99]
)
def test_no_handles(handle: str) -> None:
    """What has no meaning is told."""
    with pytest.raises(UsageError):
        parse(handle)


@pytest.mark.backend("bubblewrap")
class TestOfResults:
    """A handle leads to the whole: in this process, in the one that runs it, or where it was stored."""

    def test_in_this_process(self) -> None:
        """Of what was cut, while there is room."""
        with Pool({"logging": {"sample_ratio": 0}}) as pool:
            result = pool.run(PRINTS)
            other = pool.run(PRINTS)
        piece = result.slice(head=2, tail=1)
        assert piece.handle == f"{result.run_id}/stdout"
        assert (piece.head, piece.tail) == ("line 0\nline 1\n", "line 99\n")
        assert belljar.output(piece.handle) == LINES
        assert belljar.output(piece.handle, 7, 6) == "line 1"
        with pytest.raises(UsageError, match="was not stored"):
            belljar.output(f"{other.run_id}/stdout")

    def test_later(self) -> None:
        """From any process, if it was stored."""
        with Sandbox(ALL) as jar:
            handle = jar.run(PRINTS).slice(head=2, tail=1).handle
        code = f"import belljar; print(belljar.output({handle!r}), end='')"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == LINES
        done = subprocess.run(
            [sys.executable, "-m", "belljar", "logs", handle], capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == (LINES, "")

    def test_of_steps(self) -> None:
        """Each has its own."""
        with Session(ALL) as session:
            steps = [session.run(f"{PRINTS}; print({number})") for number in range(2)]
            handles = [step.slice(head=1, tail=1).handle for step in steps]
            assert handles == [f"{step.run_id}/{step.step}/stdout" for step in steps]
            for handle in handles:
                OUTPUTS._kept.pop(handle)
            assert [belljar.output(handle) for handle in handles] == [f"{LINES}0\n", f"{LINES}1\n"], "of the live run"
        assert [belljar.output(handle) for handle in handles] == [f"{LINES}0\n", f"{LINES}1\n"], "stored"

    def test_unknown(self) -> None:
        """Is told."""
        with pytest.raises(UsageError, match="knows no run"):
            belljar.output("01a1e4e2ffbe-8c01c265/stdout")
