"""The time limit holds against code that spins in many processes, at whatever priority.

Code that gives its pid 1 the lowest priority and spins keeps it from every processor: pid 1 then neither keeps the
clock nor dies when it is killed. So the code may change no other's priority, and belljar kills each process itself.

An idle machine ends such a run within a second of its limit. How late an end is depends on how busy the machine is, so
the test measures that: how much longer than its processor time a short computation takes, before and after; and how
late the end of a run with one process is. Without the protection an end was 40 s late.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from jars import OpenJar, is_enforced

from belljar import Pool, Sandbox
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Outcome

LIMIT_SECONDS = 1.5
LATE_SECONDS = 1.0
PROCESSES = 60
OVERRIDES = [f"proc.timeout_ms={LIMIT_SECONDS}s", "proc.pids=100", "proc.mem_mb=1024"]

SPIN = """
import ctypes, os, sys
priority, count, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def lower(pid, priority):
    if priority == "nice":
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    elif priority != "normal":
        policy = {"idle": os.SCHED_IDLE, "batch": os.SCHED_BATCH}[priority]
        os.sched_setscheduler(pid, policy, os.sched_param(0))

for attempt in (
    lambda: lower(1, "nice"),
    lambda: lower(1, "idle"),
    lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(0))}),
):
    try:
        attempt()
    except OSError:
        pass
ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
os.write(1, b"on\\n")
for _ in range(count - 1):
    if os.fork() == 0:
        break
lower(0, priority)
while True:
    pass
"""


def late(jar: Any, priority: str, count: int, *, meanwhile: Callable[[str], None] = lambda _name: None) -> float:
    """Seconds from the limit to the end of a run that spins, counted from the code's first word."""
    name = f"spin{secrets.token_hex(5)}"
    began = 0.0
    outcome = None
    for event in jar.stream(SPIN, args=[priority, str(count), name]):
        if isinstance(event, Output):
            began = time.monotonic()
            meanwhile(name)
        else:
            outcome = event.result.outcome
    ended = time.monotonic()
    assert outcome is Outcome.TIMEOUT
    assert began
    return ended - began - LIMIT_SECONDS


def busy() -> float:
    """How much longer a computation takes than it would on an idle machine."""
    wall, used = time.monotonic(), time.thread_time()
    while time.thread_time() < used + 0.03:
        pass
    return max(1.0, (time.monotonic() - wall) / 0.03)


def assert_in_time(control: float, spin: Callable[[], float]) -> None:
    before = busy()
    found = spin()
    allowed = LATE_SECONDS * max(before, busy()) + 3 * max(0.0, control)
    assert found < allowed, f"{found:.2f} s after the limit; a plain run {control:.2f} s; {allowed:.2f} s are allowed"


PRIORITIES = ("normal", "nice", "idle", "batch")


def test_the_time_limit_holds_at_every_priority(open_jar: OpenJar) -> None:
    jar = open_jar(overrides=OVERRIDES)
    control = late(jar, "normal", 1)
    for priority in PRIORITIES:
        assert_in_time(control, partial(late, jar, priority, PROCESSES))


@pytest.fixture
def pool(need_backend: Callable[[str], None]) -> Iterator[Pool]:
    need_backend("bubblewrap")
    with Pool(size=2, overrides=OVERRIDES) as opened:
        yield opened


def test_the_time_limit_of_a_pool_holds_at_every_priority(pool: Pool) -> None:
    control = late(pool, "normal", 1)
    for priority in PRIORITIES:
        assert_in_time(control, partial(late, pool, priority, PROCESSES))


# --- a pid 1 that is at idle priority all the same -------------------------------------------------------------------


def starve(name: str) -> None:
    """Give the pid 1 of the jar in which a process has this name idle priority, from outside."""
    inside = {os.readlink(f"/proc/{pid}/ns/pid") for pid in _processes() if _comm(pid) == name}
    assert len(inside) == 1, inside
    first = [pid for pid in _processes() if _is_first_in(pid, inside)]
    assert len(first) == 1, first
    os.sched_setscheduler(first[0], os.SCHED_IDLE, os.sched_param(0))


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _comm(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
    return ""


def _is_first_in(pid: int, namespaces: set[str]) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        numbers = next(line for line in file if line.startswith("NSpid:")).split()
        return numbers[-1] == "1" and len(numbers) > 2 and os.readlink(f"/proc/{pid}/ns/pid") in namespaces
    return False


def _can_starve(jar: Sandbox, backend: str) -> bool:
    """Whether pid 1 is a process of this host's, and competes with the code alone: else others may starve it."""
    return backend != "gvisor" and os.geteuid() == 0 and is_enforced(jar, "proc.cpu_quota")


def test_a_starved_pid_1_does_not_put_off_the_end(open_jar: OpenJar, backend: str) -> None:
    jar = open_jar(overrides=OVERRIDES)
    if not _can_starve(jar, backend):
        pytest.skip("pid 1 can't be starved here")
    control = late(jar, "normal", 1)
    assert_in_time(control, partial(late, jar, "normal", PROCESSES, meanwhile=starve))


def test_a_starved_pid_1_does_not_put_off_the_end_in_a_pool(pool: Pool, open_jar: OpenJar, backend: str) -> None:
    if backend != "bubblewrap" or not _can_starve(open_jar(overrides=OVERRIDES), backend):
        pytest.skip("pid 1 can't be starved here")
    control = late(pool, "normal", 1)
    assert_in_time(control, partial(late, pool, "normal", PROCESSES, meanwhile=starve))
