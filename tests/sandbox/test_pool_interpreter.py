"""What code finds in an interpreter of a pool: what Python itself has at its start, however its jar was made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from belljar import Pool, RunResult, Sandbox

pytestmark = pytest.mark.backend("bubblewrap")

MODULES = "import sys; names = sorted(sys.modules); import json; print(json.dumps(names))"
OURS = {"__future__", "_ctypes", "_socket", "_struct", "atexit", "ctypes", "ctypes._endian", "gc", "struct", "types"}
"""What is there besides: what making a jar takes, and every jar is a copy."""
SEEN = """\
names = dict(globals())
import gc, os, sys
modules = sorted(sys.modules)
frozen = gc.get_freeze_count() > 0
import json
told = {
    "globals": {name: repr(value) for name, value in names.items() if name != "__loader__"},
    "modules": modules, "frozen": frozen, "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path,
    "importers": sorted(entry for entry in sys.path_importer_cache if "run" in entry or "tmp" in entry),
    "beside": os.listdir("/run/jar"), "here": os.listdir("."), "tmp": sorted(os.listdir("/tmp")),
    "descriptors": os.listdir("/proc/self/fd"), "enabled": gc.isenabled(), "threshold": gc.get_threshold(),
    "stdout": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
}
print(json.dumps(told))
"""


@pytest.fixture
def pool() -> Iterator[Pool]:
    """One for each test: what it had to do before decides how its jars are made."""
    with Pool(size=3, timeout="20s") as made:
        yield made


def told(result: RunResult) -> str:
    """What the code printed, if it ran to its end."""
    assert result.ok, (result.outcome, result.reason, result.stderr)
    return result.stdout


def test_no_more_modules_than_pythons_own(pool: Pool) -> None:
    """The control: what is preloaded is there."""
    with Sandbox(timeout="20s") as sandbox:
        plain = set(json.loads(told(sandbox.run(MODULES))))
    assert set(json.loads(told(pool.run(MODULES)))) - plain <= OURS
    with Pool(size=1, timeout="20s", preload=["decimal"]) as other:
        assert "decimal" in json.loads(told(other.run(MODULES)))


def test_a_jar_that_somebody_waits_for_is_like_any_other(pool: Pool) -> None:
    """It has had no rehearsal, or had it later: the code sees nothing of either."""
    waited = _seen(pool.run(SEEN))
    _wait(pool)
    hurried = [_seen(result) for result in pool.map([SEEN] * 24, concurrency=4)]
    time.sleep(0.1)  # those that are left have found that nobody wants them, and rehearsed after all
    later = [_seen(pool.run(SEEN)) for _ in range(3)]
    for seen in (*hurried, *later):
        assert seen == waited


def test_nothing_lies_beside_the_code(pool: Pool) -> None:
    """Whatever its file is called: jars that wait have one already, of the name that most have."""
    code = "import os, sys; print(sys.argv[0], os.listdir('/run/jar'), open(sys.argv[0]).read())"
    for _ in range(5):
        _wait(pool)
        for name in ("main.py", "other.py"):
            assert told(pool.run(code, name=name)) == f"/run/jar/{name} ['{name}'] {code}\n"


def _seen(result: RunResult) -> dict[str, object]:
    seen: dict[str, object] = json.loads(told(result))
    return seen


def _wait(pool: Pool) -> None:
    deadline = time.monotonic() + 20
    while pool.statistics().waiting < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
