"""Attacks on the stage, which is asked about forbidden calls and refused files while the code runs."""

from __future__ import annotations

from collections.abc import Callable

from attack_control import control, python, python_control

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]
MOST_DENIALS = 100

REFUSALS = r"""
import os
refused = 0
for i in range(700):
    try: open(f"/usr/{'x' * 200}{i}", "w")
    except OSError: refused += 1
for i in range(700):
    try: os.stat(b"/%d/" % i + b"/".join([b"\xff" * 200] * 19))
    except OSError: refused += 1
print(refused)
"""


def test_observer_is_not_exhausted(open_jar: OpenJar) -> None:
    """Hundreds of different refusals with the longest paths there are: a bounded report, and no fault of ours.

    The control: the same program meets as many refusals where nobody counts them.
    """
    result = open_jar().run(REFUSALS, explain_denials=True)
    assert result.stdout == "1400\n"
    assert 0 < len(result.denials) <= MOST_DENIALS
    assert python_control(REFUSALS) == "1400\n"


CALLS = """
import ctypes, os
libc = ctypes.CDLL(None)
for _ in range(10):
    if os.fork() == 0:
        while True: libc.syscall(101, 0, 0, 0, 0)
os.wait()
"""


def test_many_forbidden_calls_do_not_hold_up_the_clock(open_jar: OpenJar) -> None:
    """Processes that do nothing but forbidden calls keep the supervisor busy; the run still ends on time.

    The control: outside, the same program goes on until someone ends it.
    """
    result = open_jar(overrides=["proc.timeout_ms=2s"]).run(CALLS)
    assert result.outcome == "timeout"
    assert result.duration < 10
    assert [denial.target for denial in result.denials if denial.kind == "syscall"] == ["ptrace"]
    end = 'timeout 0.5 "$@"; echo ended by $?'
    said = control(["sh", "-c", end, "sh", python(), "-I", "-c", CALLS.replace("101, 0", "101, 99")])
    assert "ended by 124" in said
