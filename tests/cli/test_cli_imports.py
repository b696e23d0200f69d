"""What a plain run imports, by name: every module is a tenth of a millisecond of every start, and some are many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import environment

PACKAGE = str(Path(__file__).resolve().parents[2] / "src")
START = f"import os, sys; sys.path.append({PACKAGE!r}); before = set(sys.modules)\n"
TELL = "print(*(set(sys.modules) - before), file=sys.stderr)\n"

STANDARD = {
    "__future__", "_collections", "_functools", "_json", "_operator", "_sha2", "_sha256", "_socket", "_stat",
    "_weakref", "atexit", "collections", "contextlib", "errno", "fcntl", "functools", "gc", "itertools",
    "keyword", "operator", "reprlib", "select", "types",
}  # fmt: skip
"""Of the standard library, in the command's own process."""

OF_THE_LAUNCHER = {"_ctypes", "_struct", "resource", "struct"}
"""What the launcher has besides: system calls, an event loop."""

OWN = {
    "belljar", "belljar.errors", "belljar.state", "belljar.guest", "belljar.guest.tree",
    *(f"belljar._startup{name}" for name in ("", ".json_text", ".records", ".sockets")),
    *(f"belljar.audit{name}" for name in ("", ".chain", ".killswitch", ".log", ".stored")),
    *(f"belljar.backends{name}" for name in (
        "", ".clauses", ".contract", ".hidden_names", ".hostile_files", ".installations", ".machine", ".network",
        ".network.clauses", ".registry", ".runtimes",
    )),
    *(f"belljar.backends.bubblewrap{name}" for name in (
        "", ".host", ".host.backend", ".host.client", ".host.compile", ".host.facts", ".host.report", ".shared",
        ".shared.layout", ".shared.stage_plan", ".shared.wire",
    )),
    *(f"belljar.cli{name}" for name in (
        "", ".commands", ".jar_options", ".main", ".parsing", ".run", ".run.launching", ".run.request", ".run.run",
        ".run.run_to_exit_code", ".terminal", ".terminal.sink", ".terminal.standard_input", ".terminal.style",
    )),
    *(f"belljar.limits{name}" for name in ("", ".detect", ".naming", ".proc_files", ".values")),
    *(f"belljar.policy{name}" for name in (
        "", ".digest", ".layer", ".load", ".load.assemble", ".load.merge", ".load.resolve", ".mapping", ".models",
        ".paths", ".presets", ".presets._compiled", ".problems",
    )),
    *(f"belljar.sandbox{name}" for name in (
        "", ".record", ".record.control", ".record.events", ".record.inputs", ".record.recording",
        ".record.redacting", ".record.result", ".record.stream", ".record.tracing", ".run", ".run.backend_choice",
        ".run.lifecycle", ".run.sandbox", ".run.watch",
    )),
}  # fmt: skip
"""Of belljar, in the command's own process."""

SAYS_MORE = {
    "belljar.cli.run.outcome",
    "belljar.cli.terminal.safe_text",
    "belljar.limits.detect_v2",
    "belljar.sandbox.record.sampling",
    "signal",
}
"""Where the host can't hold every clause the command says so, and where it has cgroup v2 it looks there. A run that
lasts for a second, on a busy machine, is sampled."""


def imported(code: str, directory: Path) -> set[str]:
    """The modules that a bare interpreter has after `code` and had not before."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", START + code + TELL],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment(directory),
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def imported_again(code: str, directory: Path) -> set[str]:
    """The same for a second time: the first run searches an interpreter outside of /usr for denied names."""
    imported(code, directory)
    return imported(code, directory)


def outermost(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.backend("bubblewrap")
def test_a_plain_run(tmp_path: Path) -> None:
    """Nothing is imported that is not in these lists. Before you add to them: can it wait until it is needed?"""
    found = imported_again("from belljar.cli.main import main\nmain(['run', '--quiet', '-c', 'pass'])\n", tmp_path)
    own = {name for name in found if name.startswith("belljar")}
    assert own - SAYS_MORE <= OWN
    assert outermost(found - own) - SAYS_MORE <= STANDARD


@pytest.mark.backend("bubblewrap")
def test_a_run_with_options(tmp_path: Path) -> None:
    """To read a key of the policy takes the table of all keys, and nothing more of the standard library."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", venv], check=True)
    words = ["run", "--quiet", "--set", f"python.venv={venv}", "-c", "pass"]
    found = imported_again(f"from belljar.cli.main import main\nmain({words!r})\n", tmp_path)
    assert outermost({name for name in found if not name.startswith("belljar")}) - SAYS_MORE <= STANDARD


def test_the_launcher(tmp_path: Path) -> None:
    """It imports beside the command, on another processor if there is one; a jar without a network needs little."""
    found = imported("import belljar.backends.bubblewrap.launcher.launcher\n", tmp_path)
    own = {name for name in found if name.startswith("belljar")}
    assert outermost(found - own) <= STANDARD | OF_THE_LAUNCHER
    assert not [name for name in own if name.startswith(("belljar.cli", "belljar.sandbox", "belljar.egress"))]
    assert {name for name in own if ".network" in name} <= {
        "belljar.backends.network",
        "belljar.backends.network.addresses",
    }
    libseccomp = {f"belljar.backends.seccomp.{name}" for name in ("building", "conditions", "libseccomp", "prefix")}
    assert not own & libseccomp or os.uname().machine != "x86_64"
    assert not own & {"belljar.backends.contract", "belljar.policy.models", "belljar.policy.load.resolve"}
