"""For every test: a state directory of its own, backends that must work, an end, and nothing left behind.

The suites that every backend has to pass (conformance, attacks) take the fixtures `backend`, `open_jar` or `jar`; a
backend joins them by adding its name to BACKENDS.

`@pytest.mark.backend("bubblewrap")`, or the fixture `need_backend("bubblewrap")`, skips a test with the reason where
the backend does not work. In `BELLJAR_MUST_WORK=bubblewrap,…` such a skip is a failure: so CI can't pass by skipping.

`make test` starts container engines for the tests where it can (tests/engines); elsewhere they use what is there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any
from zlib import crc32

import pytest

from belljar import BelljarError, Policy, Sandbox
from leftovers import (
    ENGINE_PATIENCE_SECONDS,
    PATIENCE_SECONDS,
    STAGE,
    Engines,
    Leftovers,
    descendants,
    wait_until_empty,
)
from leftovers import name as name_of
from workers import Controller, OwnGroup, first_the_long_ones, is_worker

BACKENDS = ("bubblewrap", "docker", "gvisor", "podman")
"""The backends that the conformance tests and the attacks run on."""

ENGINE_VARIABLES = ("PATH", "HOME", "DOCKER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "XDG_RUNTIME_DIR")
OpenJar = Callable[..., Sandbox]
NeedBackend = Callable[[str], None]
_TEST_SECONDS = int(os.environ.get("BELLJAR_TEST_SECONDS", "200"))
"""After this long a test has failed: far longer than any takes, under emulation too. `slow` ones have thrice that."""
_ENGINES = {"docker": ("docker",), "podman": ("podman",), "gvisor": ("docker", "podman")}
"""The container engines that a backend uses."""


# --- backends --------------------------------------------------------------------------------------------------------


@cache
def why_not(name: str) -> str:
    """Why the backend `name` does not work here; empty if it does. Asked once a session."""
    from belljar.backends.registry import availability

    found = availability(name, state=os.devnull)
    return "" if found.available else f"{found.reason} (hint: {found.hint})"


def _must_work() -> set[str]:
    return {name.strip() for name in os.environ.get("BELLJAR_MUST_WORK", "").split(",") if name.strip()}


def _need(name: str) -> None:
    if not (reason := why_not(name)):
        for engine in _ENGINES.get(name, ()):
            _engines.look_at(engine)
        return
    if name in _must_work():
        pytest.fail(f"the backend {name} must work here (BELLJAR_MUST_WORK): {reason}", pytrace=False)
    pytest.skip(f"the backend {name} does not work here: {reason}")


@pytest.fixture(scope="session")
def need_backend() -> NeedBackend:
    """Skips, or fails where the backend must work."""
    return _need


@pytest.fixture(scope="session")
def engine_environment() -> dict[str, str]:
    """The variables that lead to the container engines, for a program that is started with no others."""
    return {name: os.environ[name] for name in ENGINE_VARIABLES if name in os.environ}


@pytest.fixture(params=BACKENDS, scope="session")
def backend(request: pytest.FixtureRequest, need_backend: NeedBackend) -> str:
    """The backend under test."""
    need_backend(request.param)
    return str(request.param)


@pytest.fixture
def open_jar(backend: str) -> Iterator[OpenJar]:
    """Opens jars on the backend under test, and closes each of them."""
    with ExitStack() as stack:

        def open_one(policy: Any = None, **options: Any) -> Sandbox:
            if not isinstance(policy, Policy):
                options.setdefault("backend", backend)
            return stack.enter_context(Sandbox(policy, **options))

        yield open_one


@pytest.fixture
def jar(request: pytest.FixtureRequest, backend: str) -> Sandbox:
    """A jar with the default policy and an empty workspace.

    Opening one on a container engine takes seconds: there the tests share it, as long as it comes back in order.
    """
    if backend in _ENGINES:
        shared: SharedJar = request.getfixturevalue("shared_jar")
        return shared.emptied()
    opened: Sandbox = request.getfixturevalue("open_jar")()
    return opened


@pytest.fixture(scope="session")
def shared_jar(backend: str) -> Iterator[SharedJar]:
    """The jar of the tests that use `jar` on the same engine."""
    shared = SharedJar(backend)
    yield shared
    shared.close()


class SharedJar:
    """A jar with the default policy; a new one when a test has closed or broken the one before."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._jar: Sandbox | None = None

    def emptied(self) -> Sandbox:
        if self._jar is None or not self._empty(self._jar):
            self.close()
            self._jar = Sandbox(backend=self._backend)
        return self._jar

    def _empty(self, jar: Sandbox) -> bool:
        with suppress(BelljarError, OSError):
            for entry in jar.files.list():
                jar.files.remove(entry.path)
            jar.files.write("probe", b"")  # which is then the only entry, in a directory that can be written
            found = [entry.path for entry in jar.files.list()]
            jar.files.remove("probe")
            return found == ["probe"]
        return False

    def close(self) -> None:
        if self._jar is not None:
            self._jar.close()
            self._jar = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The marker's side of `need_backend`."""
    for marker in item.iter_markers("backend"):
        _need(*marker.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """BELLJAR_CONTAINER_TESTS=sample: of what runs on every engine, each runs a twelfth, with one row of each table.

    All of it takes an hour (`make test-containers`). The share of each engine is the same from run to run.
    """
    if os.environ.get("BELLJAR_CONTAINER_TESTS", "all") == "sample":
        seen: set[str] = set()
        dropped = [item for item in items if not _is_sampled(item, seen)]
        config.hook.pytest_deselected(items=dropped)
        gone = set(dropped)
        items[:] = [item for item in items if item not in gone]
    if is_worker():
        first_the_long_ones(items)


_SAMPLE = 4
"""Of so many tests, one runs on one of the engines."""


_NOT_SAMPLED = ("test_container_faults.py", "test_container_kept.py")
"""Engines that are killed, frozen and filled, and containers that stay: only `make test-containers` has them."""


def _is_sampled(item: pytest.Item, seen: set[str]) -> bool:
    if item.path.name in _NOT_SAMPLED:
        return False
    engine = _engine_of(item)
    if engine is None:
        return True
    function = item.nodeid.partition("[")[0]
    turn = crc32(function.encode()) % (_SAMPLE * len(_ENGINES))
    if item.get_closest_marker("slow") or function in seen or dict(enumerate(_ENGINES)).get(turn) != engine:
        return False
    seen.add(function)
    return True


def _engine_of(item: pytest.Item) -> str | None:
    """The container backend that this row of a table is for."""
    return next((name for name in _ENGINES if name in getattr(getattr(item, "callspec", None), "_idlist", ())), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what is skipped, each reason once: an engine that is absent skips hundreds."""
    skipped: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped[reason.removeprefix("Skipped: ")] += 1
    for reason, count in skipped.most_common():
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}")


# --- side by side ----------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """A worker has a control group of its own; who starts workers looks for what they left."""
    if is_worker():
        group = config.stash[OwnGroup.KEY] = OwnGroup.entered()
        config.add_cleanup(group.leave)
        # A worker has a thread that speaks with the controller; what tests fork touches nothing of that thread's.
        config.addinivalue_line("filterwarnings", "ignore:This process .* is multi-threaded:DeprecationWarning")
    elif config.pluginmanager.hasplugin("dsession"):
        config.pluginmanager.register(Controller(), "belljar-controller")


# --- state -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def state_directory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """A state directory for this test alone: nothing of the user's is read or written."""
    path = str(tmp_path_factory.mktemp("state"))
    monkeypatch.setenv("BELLJAR_STATE_DIR", path)
    return path


# --- nothing hangs ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def an_end_to_every_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that waits for what never comes fails, and the others still run."""
    seconds = _TEST_SECONDS * (3 if request.node.get_closest_marker("slow") else 1)

    def too_long(_signal: int, _frame: object) -> None:
        pytest.fail(f"the test was still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# --- nothing is left behind ------------------------------------------------------------------------------------------

_engines = Engines(dead=not is_worker())


@pytest.fixture(autouse=True)
def nothing_left_by_the_test() -> Iterator[None]:
    """No process and no mount that was not there before, but belljar's one launcher.

    A Sandbox that tests share is known by its stage: its fixture has to run something first, so that there is one.
    """
    before = Leftovers.here()
    shared = frozenset(pid for pid in descendants(os.getpid()) if name_of(pid) == STAGE)
    yield
    left = wait_until_empty(lambda: Leftovers.here(shared=shared).beyond(before))
    assert not left, f"the test left behind: {left}"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_by_the_session(pytestconfig: pytest.Config) -> Iterator[None]:
    """No process at all once the launcher is told to end, no group of a dead launcher, no orphan, no container.

    A worker judges its own processes, and the groups beneath a control group of its own; workers.py judges the rest.
    """
    alone = not is_worker()
    groups = alone or pytestconfig.stash[OwnGroup.KEY].exists
    before = Leftovers.here(groups=groups, lost=alone)
    yield
    from belljar.backends.bubblewrap.host.client import LAUNCHER

    LAUNCHER.stop()
    if client := sys.modules.get("belljar.egress.client.client"):
        client.PROXY.stop()
    if cleanup := sys.modules.get("belljar.backends.container.engine.cleanup_process"):
        cleanup.CLEANUP_PROCESS.stop()
    patience = ENGINE_PATIENCE_SECONDS if _engines.before else PATIENCE_SECONDS  # the keeper removes what is left
    left = wait_until_empty(lambda: Leftovers.here(groups=groups, lost=alone, launcher=True).beyond(before), patience)
    assert not left, f"the tests left behind: {left}"
    left = wait_until_empty(_engines.left, ENGINE_PATIENCE_SECONDS)
    if not alone:
        pytestconfig.workeroutput["engines"] = {name: sorted(had) for name, had in _engines.before.items()}  # type: ignore[attr-defined]
    assert not left, f"the tests left behind: {left}"
