"""Attacks on the gate: the shell of one line that waits in the finished jar, before the code is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_control import ordinary_user

from belljar import Sandbox
from belljar.backends.bubblewrap.stage import isolation_check

OpenJar = Callable[..., Sandbox]
GATE_FD = 4
LIST = ["/bin/sh", "-c", "ls /proc/self/fd"]


def test_gate_is_shut_behind_the_code(jar: Sandbox, arena: Path) -> None:
    """The descriptor of the gate, of the filter and of the arguments are gone when the code starts; 3 is ls's own."""
    assert jar.exec(LIST).stdout.split() == ["0", "1", "2", "3"]
    descriptor = os.open(arena, os.O_RDONLY)
    child = subprocess.run([*ordinary_user(), *LIST], pass_fds=[descriptor], capture_output=True, text=True, check=True)
    os.close(descriptor)
    assert len(child.stdout.split()) == 5


EARLY_SOURCE = r"""
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    int before_the_gate = fcntl(GATE, F_GETFD) >= 0 || getpid() == 1;
    close(open(before_the_gate ? PLACE "/early" : PLACE "/late", O_CREAT | O_WRONLY, 0666));
}
unsigned la_version(unsigned version) { return version; }
"""


def _library(arena: Path, place: str) -> Path:
    """A library that says when it was loaded, in a directory `place`."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    source, built = arena / "early.c", arena / "early.so"
    source.write_text(f'#define GATE {GATE_FD}\n#define PLACE "{place}"\n{EARLY_SOURCE}')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source], check=True)
    built.chmod(0o755)
    return built


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_AUDIT"])
def test_policy_environment_is_for_the_code_alone(open_jar: OpenJar, arena: Path, variable: str) -> None:
    """A variable that a policy sets is loaded by the code's process, and by nothing before the gate opens."""
    jar = open_jar({"env": {"set": {variable: "/workspace/early.so"}}})
    jar.files.write("early.so", _library(arena, "/workspace").read_bytes())
    for _ in range(3):
        jar.exec(["/bin/true"])
    assert {entry.path for entry in jar.files.list()} == {"early.so", "late"}
    library = _library(arena, str(arena))
    gate = ["sh", "-c", f"exec {GATE_FD}<.; /bin/true"]  # a gate that has the code's environment
    subprocess.run([*ordinary_user(), *gate], cwd=arena, env={"PATH": "/bin", variable: str(library)}, check=True)
    assert (arena / "early").exists()


def test_what_a_jar_asks_is_answered_while_the_canaries_wait_for_it() -> None:
    """Its pid 1 asks about files before it has put on its filter: who waits for that would wait for itself."""

    class AskedError(Exception):
        pass

    def asked() -> None:
        raise AskedError

    with pytest.raises(AskedError):  # this process has no filter
        isolation_check._settled(os.getpid(), isolation_check._status(os.getpid()), asked)
