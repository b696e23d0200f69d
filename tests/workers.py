"""Tests side by side (pytest-xdist): a control group for each worker, the order of work, and a look at what all left.

A worker runs in a control group of its own where it may make one, so that the launchers of its tests find stale groups
of its own tests only. What can't be attributed to a worker, such as an orphan, is looked for when all have ended.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pytest

from belljar.limits.detect import Mechanism, detect
from belljar.limits.naming import group_name
from leftovers import ENGINE_PATIENCE_SECONDS, Engines, Leftovers, wait_until_empty

_LEAVE_SECONDS = 5.0
_SHARES = 4096
"""Of the processors, where every process outside has 1024: a group has as much as one, whatever is in it."""
_SWEEPS = (
    "tests/attacks/bubblewrap/test_bubblewrap_parts.py",
    "tests/attacks/test_attack_kill.py",
    "tests/audit/test_ends_of_runs.py",
    "tests/audit/test_killed_in_phases.py",
    "tests/limits/test_control_groups.py",
    "tests/sandbox/test_launcher_killed.py",
)
"""Tests of killed launchers, of orphans and of what removes them. Every new launcher removes what is stale, and would
make a neighbour's test pass."""


def is_worker() -> bool:
    """Return True in a process that pytest-xdist started to run tests."""
    return "PYTEST_XDIST_WORKER" in os.environ


class OwnGroup:
    """A control group for this process and all that it starts; only with cgroup v1, where root may make groups."""

    KEY = pytest.StashKey["OwnGroup"]()

    def __init__(self, directories: list[str], name: str) -> None:
        self._directories, self._name = directories, name

    @classmethod
    def entered(cls) -> OwnGroup:
        """Make one in each hierarchy and move there. By its name belljar finds and removes it if we are killed."""
        support = detect()
        found = list(dict.fromkeys(support.directories.values())) if support.mechanism is Mechanism.V1 else []
        group = cls(found, group_name(os.getpid(), "tests"))
        for directory in group._directories:
            own = f"{directory}/{group._name}"
            os.mkdir(own)
            if os.path.exists(f"{own}/cpu.shares"):
                _write(f"{own}/cpu.shares", _SHARES)
            _move_to(own)
        return group

    @property
    def exists(self) -> bool:
        """False where groups can't be made."""
        return bool(self._directories)

    def leave(self) -> None:
        """Move back and remove it. Raises OSError if somebody is still there."""
        for directory in self._directories:
            _move_to(directory)
            _remove(f"{directory}/{self._name}")


def _move_to(directory: str) -> None:
    _write(f"{directory}/cgroup.procs", os.getpid())


def _write(path: str, number: int) -> None:
    with open(path, "w") as file:
        file.write(str(number))


def _remove(directory: str) -> None:
    deadline = time.monotonic() + _LEAVE_SECONDS
    while True:
        try:
            return os.rmdir(directory)
        except OSError:  # the last process is on its way out
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def group_of(nodeid: str) -> str:
    """Return the name of the group of tests that this one runs in: in one worker, one after the other.

    What runs on one container engine is a group, which shares a jar; else a file is.
    """
    path, _, rest = nodeid.partition("::")
    if path in _SWEEPS:
        return "sweeps"
    words = set(re.split(r"[\[\]-]", rest.partition("[")[2]))
    return next((engine for engine in ("docker", "gvisor", "podman") if engine in words), path)


def first_the_long_ones(items: list[pytest.Item]) -> None:
    """Put the groups with slow tests first, so that none of them is what everybody waits for at the end."""
    slow = {group_of(item.nodeid) for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: group_of(item.nodeid) not in slow)


class Controller:
    """The process that starts the workers: fails the run for a worker that died, and for what is left by all."""

    def __init__(self) -> None:
        self._before = Leftovers()
        self._engines = Engines(dead=True)
        self._faults: list[str] = []

    def pytest_sessionstart(self) -> None:
        self._before = Leftovers.here(groups=True, lost=True)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Hand out whole groups. xdist's own `loadgroup` changes node ids, which has no effect from pytest 9.2 on."""
        from xdist.scheduler import LoadScopeScheduling

        class Groups(LoadScopeScheduling):  # type: ignore[misc]
            def _split_scope(self, nodeid: str) -> str:
                return group_of(nodeid)

        config.option.loadscopereorder = False  # `first_the_long_ones` has seen to it
        return Groups(config, log)

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._faults.append(f"the worker {node.gateway.id} died: {error}")
        for engine, had in getattr(node, "workeroutput", {}).get("engines", {}).items():
            self._engines.before[engine] = self._engines.before.get(engine, frozenset(had)) & frozenset(had)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        left = wait_until_empty(lambda: Leftovers.here(groups=True, lost=True, launcher=True).beyond(self._before))
        left = left or wait_until_empty(self._engines.left, ENGINE_PATIENCE_SECONDS)
        if left:
            self._faults.append(f"the tests left behind: {left}")
        if self._faults:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for fault in self._faults:
            terminalreporter.write_line(f"ERROR {fault}", red=True)
