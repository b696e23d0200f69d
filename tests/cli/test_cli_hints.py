"""What `run` and `exec` suggest after a program failed. Each hint is then typed as it stands."""

from __future__ import annotations

import re
import shlex
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import Ran

pytestmark = pytest.mark.host


def files(here: Path) -> None:
    (here / "script.py").write_text("import sys; print(open(sys.argv[1]).read(), end='')")
    (here / "input.csv").write_text("a,b\n")
    (here / "main.py").write_text("import neighbour; print(neighbour.VALUE)")
    (here / "neighbour.py").write_text("VALUE = 'found'")


MISSING = [
    ("a file", ["run"], ["script.py", "input.csv"], "input.csv is not in the jar: ", "a,b\n"),
    ("a module", ["run"], ["main.py"], "neighbour lies beside main.py: ", "found\n"),
    ("a command's file", ["exec"], ["--", "cat", "input.csv"], "input.csv is not in the jar: ", "a,b\n"),
]


@pytest.mark.parametrize(
    ("command", "words", "says", "out"), [row[1:] for row in MISSING], ids=[row[0] for row in MISSING]
)
def test_what_lies_beside_the_script(
    jar: Callable[..., Ran], here: Path, command: list[str], words: list[str], says: str, out: str
) -> None:
    files(here)
    failed = jar(*command, *words)
    assert failed.code != 0
    (hint,) = re.findall(r"^belljar: hint: (.*)$", failed.err, re.MULTILINE)
    assert hint.startswith(says)
    options = re.search(r"--workspace \S+", hint)
    assert options is not None
    assert jar(*command, *options[0].split(), *words) == Ran(0, out, "")


@pytest.fixture
def environment(here: Path) -> Path:
    """A virtual environment with one package and one program."""
    venv.create(here / ".venv", symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(here / ".venv")}))
    (packages / "onlyhere.py").write_text("print('imported')")
    program = here / ".venv/bin/tool"
    program.write_text(f"#!{here}/.venv/bin/python\nimport onlyhere\n")
    program.chmod(0o755)
    return here / ".venv"


@pytest.mark.parametrize("words", [["run", "-c", "import onlyhere"], ["exec", "--", ".venv/bin/tool"]])
@pytest.mark.usefixtures("environment")
def test_a_virtual_environment(jar: Callable[..., Ran], words: list[str]) -> None:
    failed = jar(*words)
    assert failed.code != 0
    (hint,) = re.findall(r"^belljar: hint: (.*)$", failed.err, re.MULTILINE)
    options = shlex.split(hint.partition(": ")[2].removesuffix(" shows it"))
    assert "python.venv=.venv" in options
    command, *rest = words
    assert jar(command, *options, *rest).out == "imported\n"


def test_a_package_that_is_nowhere(jar: Callable[..., Ran]) -> None:
    failed = jar("run", "-c", "import no_such_package")
    assert "python3 -m venv .venv && .venv/bin/pip install no_such_package" in failed.err


LIMITS = [
    ("fs.size_mb=4", "open('f', 'wb').write(bytes(6 << 20))", "fs.size_mb=8"),
    ("fs.inodes=100", "[open(f'f{n}', 'w').close() for n in range(120)]", "fs.inodes=200"),
    ("proc.open_files=64", "kept = [open('/dev/null') for _ in range(80)]", "proc.open_files=128"),
    ("proc.file_size_mb=4", "open('f', 'wb').write(bytes(6 << 20))", "proc.file_size_mb=8"),
]


@pytest.mark.parametrize(("setting", "code", "advice"), LIMITS, ids=[row[0] for row in LIMITS])
def test_limits(jar: Callable[..., Ran], setting: str, code: str, advice: str) -> None:
    """The error that a full limit causes names the key, and twice as much is enough here."""
    failed = jar("run", "--set", setting, "-c", code)
    assert failed.code != 0
    assert f"--set {advice}" in failed.err
    assert jar("run", "--set", setting, "--set", advice, "-c", code).code == 0
