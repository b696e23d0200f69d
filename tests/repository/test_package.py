"""What users install: a wheel with all that is needed, and a package that costs little to import."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ("strict", "development", "testing", "production", "docker", "unrestricted", "webscraping", "aicode")
HEAVY = {
    "anyio", "argparse", "asyncio", "click", "ctypes", "dataclasses", "inspect", "jsonschema", "logging", "pydantic",
    "rich", "socket", "sqlite3", "subprocess", "typing", "yaml",
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in the wheel that pip builds from this tree, with nothing fetched."""
    directory = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", directory, ROOT],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = directory.glob("belljar-*.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("name", ["belljar/py.typed", *(f"belljar/policy/presets/{name}.yaml" for name in PRESETS)])
def test_wheel_holds(wheel: set[str], name: str) -> None:
    """The types' marker and every preset are in the wheel."""
    assert name in wheel


def test_wheel_holds_the_package_and_nothing_else(wheel: set[str]) -> None:
    """No tests, scripts or settings are installed into anyone's site-packages."""
    assert {name.partition("/")[0].partition("-")[0] for name in wheel} == {"belljar"}
    assert not [name for name in wheel if "__pycache__" in name]
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/belljar").rglob("*.py")}
    assert sources <= wheel


def test_licence_and_command(wheel: set[str]) -> None:
    """The licence goes along, and so does the command."""
    assert any(name.endswith("/licenses/LICENSE") for name in wheel)
    assert any(name.endswith(".data/scripts/belljar") for name in wheel)


def imported_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after `statement` and had not before, by their first names."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    command = [sys.executable, "-I", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return {module.partition(".")[0] for module in found.split()}


def test_import_is_light() -> None:
    """`import belljar` brings in nothing but itself and `typing`."""
    assert imported_by("import belljar") & (HEAVY - {"typing"}) == set()


def test_public_names() -> None:
    """Every name that the package promises is there."""
    import belljar

    assert [name for name in belljar.__all__ if not hasattr(belljar, name)] == []


def test_version_is_the_metadatas() -> None:
    """The version in the package and the one that is installed are the same."""
    from importlib.metadata import version

    import belljar

    assert version("belljar") == belljar.__version__
