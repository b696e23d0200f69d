"""For every test: a state directory of its own, backends that must work, an end, and nothing left behind.

The suites that every backend has to pass (conformance, attacks) take the fixtures `backend`, `open_jar` or `jar`; a
backend joins them by adding its name to BACKENDS.

`@pytest.mark.backend("bubblewrap")`, or the fixture `need_backend("bubblewrap")`, skips a test with the reason where
the backend does not work. In `BELLJAR_MUST_WORK=bubblewrap,…` such a skip is a failure: so CI can't pass by skipping.

`make test` starts container engines for the tests where it can (tests/engines); elsewhere they use what is there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from zlib import crc32

import pytest

from belljar import BelljarError, Policy, Sandbox

BACKENDS = ("bubblewrap", "docker", "gvisor", "podman")
"""The backends that the conformance tests and the attacks run on."""

ENGINE_VARIABLES = ("PATH", "HOME", "DOCKER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "XDG_RUNTIME_DIR")
OpenJar = Callable[..., Sandbox]
NeedBackend = Callable[[str], None]
_TEST_SECONDS = int(os.environ.get("BELLJAR_TEST_SECONDS", "200"))
"""After this long a test has failed: far longer than any takes, under emulation too. `slow` ones have thrice that."""
_PATIENCE_SECONDS = 5.0
"""How long what a test ended may take to be gone: belljar verifies the end of a jar, not that of its launcher."""
_ENGINE_PATIENCE_SECONDS = 30.0
"""The same for containers and volumes: an engine takes half a second for each, on a machine at rest."""


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
        _look_at_engines(name)
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
    if os.environ.get("BELLJAR_CONTAINER_TESTS", "all") != "sample":
        return
    seen: set[str] = set()
    dropped = [item for item in items if not _is_sampled(item, seen)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in set(dropped)]


_SAMPLE = 4
"""Of so many tests, one runs on one of the engines."""


_NOT_SAMPLED = ("test_container_faults.py", "test_container_kept.py")
"""Engines that are killed, frozen and filled, and containers that stay: only `make test-containers` has them."""


def _is_sampled(item: pytest.Item, seen: set[str]) -> bool:
    if item.path.name in _NOT_SAMPLED:
        return False
    engine = next((name for name in _ENGINES if name in getattr(getattr(item, "callspec", None), "_idlist", ())), None)
    if engine is None:
        return True
    function = item.nodeid.partition("[")[0]
    turn = crc32(function.encode()) % (_SAMPLE * len(_ENGINES))
    if item.get_closest_marker("slow") or function in seen or dict(enumerate(_ENGINES)).get(turn) != engine:
        return False
    seen.add(function)
    return True


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


@pytest.fixture(autouse=True)
def nothing_left_by_the_test() -> Iterator[None]:
    """No process and no mount that was not there before, but belljar's one launcher.

    A Sandbox that tests share is known by its stage: its fixture has to run something first, so that there is one.
    """
    before = Leftovers.here()
    shared = frozenset(pid for pid in descendants(os.getpid()) if _name(pid) == _STAGE)
    yield
    left = _wait_until_empty(lambda: Leftovers.here(shared=shared).beyond(before))
    assert not left, f"the test left behind: {left}"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_by_the_session() -> Iterator[None]:
    """No process at all once the launcher is told to end, no group of a dead launcher, no orphan, no container."""
    before = Leftovers.here(groups=True)
    yield
    from belljar.backends.bubblewrap.host.client import LAUNCHER

    LAUNCHER.stop()
    if client := sys.modules.get("belljar.egress.client.client"):
        client.PROXY.stop()
    if cleanup := sys.modules.get("belljar.backends.container.engine.cleanup_process"):
        cleanup.CLEANUP_PROCESS.stop()
    patience = _ENGINE_PATIENCE_SECONDS if _engines_before else _PATIENCE_SECONDS  # the keeper removes what is left
    left = _wait_until_empty(lambda: Leftovers.here(groups=True, launcher=True).beyond(before), patience)
    assert not left, f"the tests left behind: {left}"
    left = _wait_until_empty(containers_left, _ENGINE_PATIENCE_SECONDS)
    assert not left, f"the tests left behind: {left}"


def _wait_until_empty(look: Callable[[], str], seconds: float = _PATIENCE_SECONDS) -> str:
    deadline = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


# --- looking for what is left ----------------------------------------------------------------------------------------
# Only what is ours to judge: our own descendants, processes of our belljar that have lost their parent, mounts that we
# see ourselves, and groups of dead launchers beneath our own. Other runs on this machine are not mistaken for ours.

_LAUNCHER, _STAGE = "belljar-launch", "belljar-stage"
_OURS = (_LAUNCHER, "belljar-egress", "belljar-keeper", "docker", "podman", "conmon")
"""What lives as long as the program that uses belljar, or ends in its own time: engines are asked, not waited for."""


@dataclass(frozen=True)
class Leftovers:
    """One look."""

    processes: frozenset[str] = frozenset()
    mounts: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    @classmethod
    def here(cls, *, groups: bool = False, launcher: bool = False, shared: frozenset[int] = frozenset()) -> Leftovers:
        """What is here now; `launcher` counts belljar's launcher too, `groups` control groups and orphans.

        What is beneath the stages `shared` is theirs: a stage keeps a jar ready for its next run.
        """
        own = [pid for pid in descendants(os.getpid(), but=shared) if launcher or _name(pid) not in _OURS]
        lost = orphans() if groups else []
        return cls(
            frozenset(text for pid in {*own, *lost} if (text := _describe(pid))),
            frozenset(mounts()),
            frozenset(stale_groups() if groups else ()),
        )

    def beyond(self, before: Leftovers) -> str:
        """What is here and was not there `before`, in words; empty if nothing."""
        kinds = (
            ("processes", self.processes - before.processes),
            ("mounts", self.mounts - before.mounts),
            ("control groups", self.groups - before.groups),
        )
        return "; ".join(f"{kind}: {', '.join(sorted(found))}" for kind, found in kinds if found)


def descendants(pid: int, but: frozenset[int] = frozenset()) -> list[int]:
    """Every living process below `pid`, `but` not these and those below them; unburied dead do not count."""
    found = []
    for child in _children(pid):
        if child in but:
            continue
        if _state(child) not in ("Z", "X", ""):
            found.append(child)
        found += descendants(child, but)
    return found


def orphans() -> list[int]:
    """Processes of our belljar whose parent is gone: a launcher under pid 1, a stage without a launcher."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        name, parent = _name(pid), _parent(pid)
        lost = (name == _LAUNCHER and parent == 1) or (name == _STAGE and _name(parent) not in (_LAUNCHER, _STAGE))
        if lost and os.path.dirname(_program(pid)) == os.path.dirname(sys.executable):
            found.append(pid)
    return found


def mounts() -> list[str]:
    """Mounts of belljar's in the namespace of the tests, where none belongs."""
    with open("/proc/self/mountinfo") as file:
        lines = [line.rstrip("\n") for line in file]
    return [line for line in lines if line.partition(" - ")[2].split(" ")[1:2] == ["belljar"]]


def stale_groups() -> list[str]:
    """Control groups of launchers that are dead."""
    from belljar.limits.detect import detect
    from belljar.limits.naming import is_stale

    found = []
    for directory in set(detect().directories.values()):
        with suppress(OSError):
            found += [f"{directory}/{name}" for name in os.listdir(directory) if is_stale(name)]
    return found


_ENGINES = {"docker": ("docker",), "podman": ("podman",), "gvisor": ("docker", "podman")}
_engines_before: dict[str, frozenset[str]] = {}
"""What each engine that a test asked for had of belljar's when the first one asked."""


def _look_at_engines(backend: str) -> None:
    for engine in _ENGINES.get(backend, ()):
        if engine not in _engines_before:
            _engines_before[engine] = labelled(engine)


def containers_left() -> str:
    """Containers and volumes of belljar's that were not there when a test first asked for their engine, in words."""
    found = [name for engine, before in _engines_before.items() for name in sorted(labelled(engine) - before)]
    return f"containers and volumes: {', '.join(found)}" if found else ""


def labelled(engine: str) -> frozenset[str]:
    """The names of the containers and volumes with belljar's label, but not of another program that is alive.

    None of an engine that does not answer.
    """
    found: set[str] = set()
    program = shutil.which(engine)
    for look in (
        ["ps", "--all", "--format", "{{.Names}} {{.Labels}}"],
        ["volume", "ls", "--format", "{{.Name}} {{.Labels}}"],
    ):
        if program is not None:
            command = [program, *look, "--filter", "label=belljar=1"]
            told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            lines = [line for line in told.stdout.splitlines() if not _is_anothers(line)]
            found.update(f"{engine} {look[0]} {line.partition(' ')[0]}" for line in lines)
    return frozenset(found)


def _is_anothers(line: str) -> bool:
    """Whether the process that made it is neither dead nor ours: other tests may use the same engine."""
    from belljar.limits.naming import is_dead

    owner = re.search(r"belljar\.owner[=:]\d+-(\d+-(\d+)-\d+)", line)
    return owner is not None and not is_dead(owner[1]) and int(owner[2]) not in (os.getpid(), *descendants(os.getpid()))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _stat(pid: int) -> list[str]:
    """The fields after the name: state, parent, …, the start time at 19."""
    with suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
    return []


def _state(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _name(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().rstrip("\n")
    return ""


def _program(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", errors="replace") as file:
        return file.read().partition("\0")[0]
    return ""


def _describe(pid: int) -> str:
    """A text that names a process once and for all: a recycled pid has another start time."""
    fields = _stat(pid)
    return f"{_name(pid)} (pid {pid}, started at tick {fields[19]})" if len(fields) > 19 else ""
