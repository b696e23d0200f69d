"""All modules of a run from one file: made by the first, used by the next, and never instead of today's sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import environment

SOURCE = Path(__file__).resolve().parents[2] / "src/belljar"
IMPORT = "from belljar._startup import bytecode_cache\n"
START = "import os, sys; sys.path.append({place!r})\n"
USED = """
from belljar._startup import bytecode_cache
used = bytecode_cache.use()
from belljar.policy import problems
print(used is not None, type(problems.__loader__).__name__, bool(used and used.stale), problems.found(1))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of the tests' own, whose sources may change."""
    copied = tmp_path / "place/belljar"
    shutil.copytree(SOURCE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    return copied


@pytest.fixture
def python(package: Path, tmp_path: Path) -> Callable[..., str]:
    """Run code with that package."""

    def run(code: str, *arguments: str, **extra: str) -> str:
        done = subprocess.run(
            [sys.executable, "-S", "-c", START.format(place=str(package.parent)) + code, *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**environment(tmp_path), **extra},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def caches(package: Path) -> list[Path]:
    """Those in the state directory. In the package, where code in a jar may work, there is none."""
    python = {".py", ".pyc"}
    assert [path for path in package.rglob("*bundle*") if path.is_file() and path.suffix not in python] == []
    return sorted((package.parents[1] / "state/bytecode").glob("*"))


@pytest.fixture
def bytecode_cache(package: Path, python: Callable[..., str]) -> Path:
    """The file, made."""
    python(IMPORT + "from belljar.policy import problems; bytecode_cache.keep(None)")
    (made,) = caches(package)
    return made


@pytest.mark.backend("bubblewrap")
def test_a_run_makes_it_and_the_next_uses_it(package: Path, python: Callable[..., str]) -> None:
    """With the same output; a run that fails makes none."""
    command = "from belljar.cli.main import command; command()"
    python(command.replace("command()", "sys.argv.append('--version'); command()"))
    assert caches(package) == []
    assert python(command, "run", "--quiet", "-c", "print(7)") == "7\n"
    (made,) = caches(package)
    assert made.stat().st_mode & 0o777 == 0o600
    assert made.parent.stat().st_mode & 0o777 == 0o700
    before = made.stat().st_mtime_ns
    assert python(command, "run", "--quiet", "-c", "print(8)") == "8\n"
    assert made.stat().st_mtime_ns == before
    assert python(USED) == "True _Loader False 1\n"


def test_a_source_that_has_changed(package: Path, bytecode_cache: Path, python: Callable[..., str]) -> None:
    """Python finds today's, and the file is made anew."""
    source = package / "policy/problems.py"
    source.write_text(source.read_text() + "\n\ndef found(value):\n    return 'today'\n")
    assert python(USED) == "True SourceFileLoader True today\n"
    python(IMPORT + "used = bytecode_cache.use(); from belljar.policy import problems; bytecode_cache.keep(used)")
    assert python(USED) == "True _Loader False today\n"


def test_a_source_that_is_gone(package: Path, bytecode_cache: Path, python: Callable[..., str]) -> None:
    """Then there is no such module."""
    (package / "policy/problems.py").unlink()
    code = IMPORT + "bytecode_cache.use()\nimport belljar.policy\nfrom importlib.util import find_spec\n"
    code += "print(find_spec('belljar.policy.problems'))"
    assert python(code) == "None\n"


STANDARD = """
from belljar._startup import bytecode_cache
used = bytecode_cache.use()
import selectors, contextlib, struct
print(*(type(module.__loader__).__name__ for module in (contextlib, struct, selectors)), bool(used.stale))
cached = bytecode_cache.bootstrap.cache_from_source(struct.__file__)
print(struct.__file__ == struct.__spec__.origin, struct.__cached__ == cached)
"""


def test_the_standard_library(bytecode_cache: Path, python: Callable[..., str]) -> None:
    """What a run and its launcher have of it comes from the file too; anything else Python finds as ever."""
    assert bytecode_cache.exists()
    assert python(STANDARD) == "_Loader _Loader SourceFileLoader False\nTrue True\n"


def test_another_standard_library(bytecode_cache: Path, python: Callable[..., str], tmp_path: Path) -> None:
    """Bytecode of one Python is not used by another of the same version, also not under the name of the other's."""
    other = f"import os; os.__file__ = {str(tmp_path / 'os.py')!r}\n"
    code = IMPORT + "print(bytecode_cache.use() is not None, bytecode_cache.path())"
    used, path = python(other + code).split()
    assert (used, path != str(bytecode_cache)) == ("False", True)
    bytecode_cache.rename(path)
    assert python(other + code).split()[0] == "False"


def test_another_package(package: Path, bytecode_cache: Path, python: Callable[..., str], tmp_path: Path) -> None:
    """A copy of belljar, in a project's virtual environment for example, has a file of its own."""
    shutil.copytree(package, tmp_path / "other/belljar")
    moved = f"sys.path[:] = [place for place in sys.path if place != {str(package.parent)!r}]\n"
    moved += f"sys.path.append({str(tmp_path / 'other')!r})\n"
    assert python(moved + USED) == "False SourceFileLoader False 1\n"
    assert python(USED) == "True _Loader False 1\n"


def test_old_ones_go(package: Path, bytecode_cache: Path, python: Callable[..., str]) -> None:
    """Those of packages and interpreters that have not been used for longest."""
    for number in range(12):
        (bytecode_cache.parent / f"old-{number}").write_bytes(b"")
        os.utime(bytecode_cache.parent / f"old-{number}", (number, number))
    python(IMPORT + "bytecode_cache.keep(None)")
    assert [path.name for path in caches(package)] == [bytecode_cache.name, *sorted(f"old-{n}" for n in range(5, 12))]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[: len(content) // 40],
        lambda content: content[:40] + b"\0" * 40 + content[80:],
        lambda content: b"another 1\n" + content[10:],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-200_000] + bytes(200_000),
    ],
    ids=["empty", "no table", "half a table", "a wrong table", "another kind", "half of it", "zeroes"],
)
def test_damage(damage: Callable[[bytes], bytes], bytecode_cache: Path, python: Callable[..., str]) -> None:
    """What is damaged is not used; the sources are."""
    bytecode_cache.write_bytes(damage(bytecode_cache.read_bytes()))
    code = USED.replace(
        "from belljar.policy import problems", "import belljar.policy.load.resolve\nfrom belljar.policy import problems"
    )
    assert python(code).endswith(" 1\n")


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_others_could_have_written_it(mode: int, bytecode_cache: Path, python: Callable[..., str]) -> None:
    """Then it is not used."""
    bytecode_cache.chmod(mode)
    assert python(USED) == "False SourceFileLoader False 1\n"


def test_a_link(bytecode_cache: Path, python: Callable[..., str], tmp_path: Path) -> None:
    """It lies there itself, or not at all."""
    bytecode_cache.rename(tmp_path / "elsewhere")
    bytecode_cache.symlink_to(tmp_path / "elsewhere")
    assert python(USED) == "False SourceFileLoader False 1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["the file", "the directory"])
def test_another_owner(package: Path, bytecode_cache: Path, python: Callable[..., str], whose: str) -> None:
    """Both belong to the user who runs it, or it is not used; in a directory of another's none is made."""
    os.chown(bytecode_cache if whose == "the file" else bytecode_cache.parent, 12345, 12345)
    assert python(USED) == "False SourceFileLoader False 1\n"
    if whose == "the directory":
        bytecode_cache.unlink()
        python(IMPORT + "bytecode_cache.keep(None)")
        assert caches(package) == []


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_others_could_have_put_it_there(mode: int, bytecode_cache: Path, python: Callable[..., str]) -> None:
    """Then it is not used."""
    bytecode_cache.parent.chmod(mode)
    assert python(USED) == "False SourceFileLoader False 1\n"


def test_it_can_not_be_written(package: Path, python: Callable[..., str], tmp_path: Path) -> None:
    """Then nothing is made, and nothing is left."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/bytecode").write_text("in the way")
    python(IMPORT + "bytecode_cache._made = lambda: 1 / 0; bytecode_cache.keep(None)")
    (tmp_path / "state/bytecode").unlink()
    code = IMPORT + "def fail():\n    raise OSError\nbytecode_cache._made = fail; bytecode_cache.keep(None)"
    python(code)
    assert caches(package) == []


@pytest.mark.parametrize("variable", ["PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"])
def test_where_python_keeps_no_bytecode(
    variable: str, package: Path, python: Callable[..., str], tmp_path: Path
) -> None:
    """Nor does this."""
    python(IMPORT + "bytecode_cache.keep(None)", **{variable: str(tmp_path / "x")})
    assert caches(package) == []
