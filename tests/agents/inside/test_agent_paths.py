"""Where a jar has an agent's project, and with which Python: at the project's own path, with its own environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import Home, git, make_home

from belljar.coding_agents.project import find_project, repository_top, why_not_at
from belljar.errors import UsageError

PYTHON = os.path.realpath(sys._base_executable)


@pytest.fixture
def real_home() -> Iterator[Home]:
    """A home outside of /tmp: in that of the user who runs the tests."""
    directory = tempfile.mkdtemp(prefix=".belljar-test-", dir=os.path.expanduser("~"))
    yield make_home(Path(directory, "home"))
    shutil.rmtree(directory)


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize("where", ["in /tmp", "in a home"])
@pytest.mark.parametrize("name", ["project", "a project with spaces"])
def test_the_project_is_at_its_own_path(request: pytest.FixtureRequest, where: str, name: str) -> None:
    """Of what is above it and beside it, nothing is there but the names on the way."""
    home: Home = request.getfixturevalue("home" if where == "in /tmp" else "real_home")
    (home.directory / "notes.txt").write_text("OF-THE-USER")
    home.project.rename(home.directory / name)
    look = "pwd; ls -A ..; cat ../notes.txt ../.ssh/id_ed25519 .env; git log --format=%s; ls -d /workspace"
    ran = home.agent(f"{look}; echo new > new.txt", "--apply", "all", cwd=home.directory / name)
    assert ran.out.splitlines() == [str(home.directory / name), name, "first"]
    assert "USER" not in ran.out + ran.err
    assert (home.directory / name / "new.txt").read_text() == "new\n"


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_the_project_at_another_path(home: Home) -> None:
    """As `--at` says."""
    ran = home.agent("pwd; cat sums.py .env; ls /tmp", "--at", "/workspace")
    assert ran.out.startswith("/workspace\ndef add")
    assert "of-the-project" not in ran.out
    assert "pytest" not in ran.out
    for at, said in (("/usr/x", "/usr is the jar's own"), ("/home/agent/x", "/home/agent is the agent's own")):
        ran = home.agent("true", "--at", at)
        assert ran.code != 0
        assert said in ran.err
        assert "hint: --at /workspace" in ran.err


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("/usr/src/x", "/usr is the jar's own"),
        ("/var/lib/x", "/var is the jar's own"),
        ("/run/x", "/run is the jar's own"),
        ("/proc/1/cwd", "/proc is the jar's own"),
        ("/tmp", "/tmp is the jar's own"),
        ("/home/agent", "/home/agent is the agent's own"),
        ("/home/agent/x", "/home/agent is the agent's own"),
        ("/home", "/home/agent is the agent's own"),
        ("/opt/agent/x", "/opt/agent is the agent's own"),
        ("/srv/a\nb", "a\\nb"),
        ("/tmp/x", ""),
        ("/home/agents/x", ""),
        ("/srv/x y", ""),
    ],
)
def test_paths_that_a_jar_needs_itself(directory: str, why: str) -> None:
    """The project is /workspace then."""
    found = why_not_at(directory, temporary=True)
    assert why in found if why else not found
    assert why_not_at("/tmp/x", temporary=False)


def test_a_project_where_the_jar_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note says so."""
    monkeypatch.chdir(tmp_path)
    project = find_project("/usr/share", None)
    assert (project.place, project.start) == ("/workspace", "/workspace")
    assert project.notes == (
        "the project is shown as /workspace, not at its own path: /usr/share: /usr is the jar's own",
    )


# --- a subdirectory of a repository ----------------------------------------------------------------------------------


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_git_works_from_a_subdirectory(home: Home) -> None:
    """The project is the repository, and the agent starts where the caller is."""
    (home.project / "deep/er").mkdir(parents=True)
    script = "pwd; echo x > here.txt; git add here.txt; git status --short; cat ../../sums.py"
    ran = home.agent(script, "--diff", cwd=home.project / "deep/er")
    assert ran.out.startswith(f"{home.project}/deep/er\nA  here.txt\ndef add"), ran.err
    assert f"the project is {home.project}, the repository's top; the agent starts in {home.project}/deep/er" in ran.err
    assert "b/deep/er/here.txt" in ran.out
    ran = home.agent("pwd; ls -A ..", "--project", ".", cwd=home.project / "deep")
    assert ran.out.splitlines() == [f"{home.project}/deep", ".git", "deep"], "named, it is taken literally"


def test_whose_repository_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one above the home, not what is no repository; with a repository in a repository, the inner one."""
    deep = tmp_path / "home/outer/inner/deep"
    deep.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GIT_DIR", raising=False)
    assert repository_top(str(deep)) is None
    for directory, top in (("home", None), ("home/outer", "home/outer"), ("home/outer/inner", "home/outer/inner")):
        git(tmp_path / directory, "init", "-q")
        assert repository_top(str(deep)) == (str(tmp_path / top) if top else None)
    shutil.rmtree(deep.parent / ".git")
    (deep.parent / ".git").mkdir()
    assert repository_top(str(deep)) is None, "what is no repository hides the one above, as with git"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("part", ["", ".git"])
def test_a_repository_of_somebody_else_is_no_project(tmp_path: Path, part: str) -> None:
    """Whoever may write above the current directory could have had all beneath shown: `/tmp/.git`."""
    (tmp_path / "mine").mkdir()
    git(tmp_path, "init", "-q")
    assert repository_top(str(tmp_path / "mine")) == str(tmp_path)
    os.chown(tmp_path / part, 12345, 12345)
    assert repository_top(str(tmp_path / "mine")) is None


def test_the_home_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what holds it."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for path in (tmp_path, tmp_path / "home"):
        with pytest.raises(UsageError, match="all that is yours"):
            find_project(str(path), None)


# --- a virtual environment -------------------------------------------------------------------------------------------


def make_environment(directory: Path, python: str = PYTHON) -> Path:
    """A virtual environment with a program of its own, as pip makes one."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(directory)], check=True)
    (library,) = (directory / "lib").glob("python3*/site-packages")
    (library / "tool.py").write_text("import sys\nprint('tool in', sys.prefix)\n")
    (directory / "bin/tool").write_text(f"#!{directory}/bin/python\nimport tool\n")
    (directory / "bin/tool").chmod(0o755)
    return directory


EACH_WAY = ".venv/bin/tool; .venv/bin/python -m tool; . .venv/bin/activate; tool; python -m tool"


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize("base", ["itself", "behind a link"])
def test_an_environment_in_the_project(home: Home, tmp_path: Path, base: str) -> None:
    """Whether its Python is named by its directory or, as uv does, by a link to that."""
    python = PYTHON
    if base == "behind a link":
        if PYTHON.startswith("/usr/"):
            pytest.skip("the Python here is the system's, which nobody links to")
        (tmp_path / "uv/python").mkdir(parents=True)
        (tmp_path / "uv/python/cpython-3").symlink_to(os.path.dirname(os.path.dirname(PYTHON)))
        python = f"{tmp_path}/uv/python/cpython-3/bin/{os.path.basename(PYTHON)}"
    environment = make_environment(home.project / ".venv", python)
    ran = home.agent(f"tool; {EACH_WAY}; echo $VIRTUAL_ENV; touch .venv/lib/new && echo writable", "--apply", "none")
    assert ran.out.splitlines() == [f"tool in {environment}"] * 5 + [str(environment), "writable"], ran.err


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_an_environment_elsewhere_that_is_active(home: Home, tmp_path: Path) -> None:
    """It is the caller's choice, and read-only."""
    environment = make_environment(tmp_path / "environments/mine")
    (environment / "bin/.env").write_text("TOKEN=1\n")
    script = f"tool; echo $VIRTUAL_ENV; touch {environment}/lib/new; cat {environment}/bin/.env"
    ran = home.agent(script, VIRTUAL_ENV=str(environment))
    assert ran.out.splitlines() == [f"tool in {environment}", str(environment)], ran.err


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_an_environment_that_names_no_python(home: Home) -> None:
    """Whoever wrote it has nothing shown by that, and the agent starts all the same."""
    make_environment(home.project / ".venv")
    (home.project / ".venv/pyvenv.cfg").write_text(f"home = {home.directory}/.ssh/bin\n")
    ran = home.agent(f"python3 -c 'print(6 * 7)'; ls -A {home.directory}")
    assert (ran.code, ran.out) == (0, "42\nproject\n"), ran.err
    assert f"the virtual environment {home.project}/.venv is not used: " in ran.err
