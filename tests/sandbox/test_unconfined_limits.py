"""`unconfined` is no sandbox, but the limits of its policy are tried: with control groups, and without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.backends.contract import Status
from belljar.backends.unconfined import UnconfinedBackend
from belljar.errors import UsageError
from belljar.limits.detect import CgroupSupport, Mechanism, detect

MEMORY = "held = bytearray(200 << 20)\nimport time\nprint('had it', flush=True)\ntime.sleep(5)"
FORKS = """
import os, time
made = 0
for _ in range(10):
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
    except OSError:
        break
print(made)
"""
POLICY = {"extends": "unrestricted", "proc": {"mem_mb": 64, "pids": 3, "cpu_quota": 1, "timeout_ms": 20_000}}
NO_GROUPS = CgroupSupport(Mechanism.NONE)


def groups_work() -> bool:
    """Whether belljar may make control groups here, in this very process."""
    found = detect()
    wanted = {"memory", "pids"} <= set(found.controllers) and not found.occupants
    return wanted and found.mechanism in (Mechanism.V1, Mechanism.V2_DELEGATED)


@pytest.fixture(params=["groups", "no groups"])
def jar(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """With what this host has, and as on a host without control groups."""
    if request.param == "groups" and not groups_work():
        pytest.skip("no control groups can be made here")
    if request.param == "no groups":
        monkeypatch.setattr("belljar.backends.unconfined.detect", lambda: NO_GROUPS)
    with Sandbox(POLICY) as one:
        yield one


def test_memory_has_a_limit(jar: Sandbox) -> None:
    """It ends as out of memory, whoever noticed."""
    result = jar.run(MEMORY)
    assert result.outcome == "oom", result
    assert jar.run("print(1)").stdout == "1\n"


def test_processes_have_a_limit(jar: Sandbox) -> None:
    """A fork is refused; and what is left of the run when it ends is gone."""
    clause = jar.plan(argv=["true"]).report.clause("proc.pids")
    assert clause.status is Status.DEGRADED
    made = int(jar.run(FORKS).stdout)
    if "RLIMIT" not in clause.by:
        assert made == 2
    elif os.geteuid() != 0:
        assert made < 10


def test_descriptors_and_input_are_as_before(jar: Sandbox) -> None:
    """The starter leaves nothing behind: no descriptor, and its caller's directory and words."""
    look = "import os, sys; print(sorted(os.listdir('/proc/self/fd')), sys.argv[1:], sys.stdin.read())"
    assert jar.run(look, args=["a b", "-c"], stdin="given").stdout == "['0', '1', '2', '3'] ['a b', '-c'] given\n"
    assert jar.exec(["sh", "-c", "exit 7"]).exit_code == 7
    with pytest.raises(UsageError, match="can't run /nowhere: No such file"):
        jar.exec(["/nowhere"])


def test_time_and_what_left_its_group(jar: Sandbox, tmp_path: Path) -> None:
    """The time limit holds. A child with a session of its own ends with its control group, where there is one."""
    code = (
        f"import subprocess; print(subprocess.Popen(['setsid', 'sleep', '987'], cwd={str(tmp_path)!r}).pid, flush=True)"
    )
    if "control group" not in jar.plan(argv=["true"]).report.clause("proc.pids").by:
        code = "print(0, flush=True)"
    result = jar.run(f"{code}\nimport time\ntime.sleep(0.3)")
    assert result.ok, result
    assert not Path(f"/proc/{result.stdout.strip()}/exe").exists()
    with Sandbox({**POLICY, "proc": {"timeout_ms": 500}}) as other:
        assert other.exec(["sleep", "60"]).outcome == "timeout"


def test_report_says_what_is_tried() -> None:
    """Nothing is called enforced that the code could undo."""
    from belljar.backends.contract import RunRequest
    from belljar.policy.load.resolve import resolve

    policy = resolve(layers=[POLICY], managed=None)
    for support in (NO_GROUPS, CgroupSupport(Mechanism.V1, ("memory", "cpu", "pids"), {"memory": "/nowhere"})):
        report = UnconfinedBackend(support).compile(policy, RunRequest(argv=("true",))).report
        for key in ("proc.mem_mb", "proc.cpu_quota", "proc.pids"):
            assert report.clause(key).status is not Status.ENFORCED
            assert ("control group" in report.clause(key).by) == bool(support.controllers)


def test_command_line_says_no_sandbox(state_directory: str, tmp_path: Path) -> None:
    """On standard error, before each run, quiet or not; not where the run is refused."""
    env = {**os.environ, "BELLJAR_STATE": state_directory}
    base = [sys.executable, "-m", "belljar", "run"]
    for more in ([], ["--quiet"], ["--json"]):
        words = [*base, "--policy", "unrestricted", *more, "-c", "print(6)"]
        told = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert told.stderr.startswith("belljar: NO SANDBOX: the code runs as you"), told.stderr
    words = [*base, "--set", "backend=unconfined", "-c", "print(6)"]
    told = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 125
    assert "NO SANDBOX" not in told.stderr
