"""Attacks by way of files that the host saves: artifacts, what a pool's run or a session made, a restored snapshot.

Each has a control: whoever copies the same files with `cp` gets what the attack wants.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_control import control, ordinary_user

from belljar import Pool, Sandbox, Session
from belljar.errors import UsageError
from belljar.sandbox.files.restoring import restore
from belljar.sandbox.files.snapshot_files import SnapshotFiles

pytestmark = pytest.mark.backend("bubblewrap")

PLANTED = {
    ".git/config": '[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "touch {marker}; false"\n',
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/objects/x": "",
    ".git/refs/x": "",
    ".vscode/tasks.json": "{{}}",
    ".bashrc": "touch {marker}\n",
    "bare/HEAD": "ref: refs/heads/main\n",
    "bare/objects/x": "",
    "bare/refs/x": "",
    "bare/config": '[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "touch {marker}; false"\n',
    "pkg/__pycache__/mod.cpython-311.pyc": "bytecode",
    ".env": "KEY=evil",
    "report.txt": "mine",
}  # fmt: skip
SAVED = ["report.txt"]


def _script(marker: Path) -> str:
    files = {path: text.format(marker=marker) for path, text in PLANTED.items()}
    return (
        f"import os\nfor path, text in {files!r}.items():\n"
        "    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n    open(path, 'w').write(text)\n"
    )


def _by_sandbox(code: str, place: Path) -> dict[str, str]:
    with Sandbox() as jar:
        return dict(jar.save_artifacts(jar.run(code), place).refused)


def _by_pool(code: str, place: Path) -> dict[str, str]:
    with Pool(size=1) as pool:
        return dict(pool.run(code, artifacts=place).not_saved)


def _by_other_pool(code: str, place: Path) -> dict[str, str]:
    with Pool(size=1) as pool:
        script = f"python3 - <<'EOF'\n{code}\nEOF"
        return dict(pool.run(script, language="bash", artifacts=place).not_saved)


def _by_session(code: str, place: Path) -> dict[str, str]:
    with Session() as session:
        return dict(session.save_results(session.run(code), place).refused)


def _by_restore(code: str, place: Path) -> dict[str, str]:
    with Session() as session:
        session.run(code)
        session.snapshot("planted")
    with SnapshotFiles("planted") as files:
        done = restore(files, str(place))
    return dict(done.refused)


WAYS: dict[str, Callable[[str, Path], dict[str, str]]] = {
    "Sandbox": _by_sandbox,
    "Pool": _by_pool,
    "Pool, bash": _by_other_pool,
    "Session": _by_session,
    "restore": _by_restore,
}


def _files(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("way", WAYS)
def test_what_tools_act_on_is_not_saved(arena: Path, way: str) -> None:
    """Nor a repository, bytecode, or a name that the policy denies; each is told, with the reason."""
    place, marker = arena / "out", arena / "marker"
    refused = WAYS[way](_script(marker), place)
    saved = [path for path in _files(place) if way != "restore" or path != ".env"]  # a snapshot knows no policy
    assert saved == SAVED
    told = {path for path in PLANTED if path not in (*SAVED, ".env")}
    assert told <= set(refused)
    assert "Python" in refused["pkg/__pycache__/mod.cpython-311.pyc"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("where", ["", "bare"])
def test_git_runs_nothing_where_artifacts_were_saved(arena: Path, where: str) -> None:
    """`git status` there is nobody's command; in a plain copy of the files it is the code's."""
    place, marker = arena / "out", arena / "marker"
    _by_sandbox(_script(marker), place)
    (place / where).mkdir(exist_ok=True)
    words = ["git", "-c", "safe.directory=*", "-C", where or ".", "--work-tree=.", "status"]
    clean = {"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(arena), "HOME": str(arena)}
    subprocess.run([*ordinary_user(), *words], cwd=place, env=clean, capture_output=True, check=False)
    assert not marker.exists()
    copy = arena / "copy"
    copy.mkdir()
    copy.chmod(0o777)
    said = control(
        ["python3", "-c", f"{_script(marker)}import subprocess; subprocess.run({words!r})"], cwd=str(copy), env=clean
    )
    assert marker.exists(), said


@pytest.mark.parametrize("way", [name for name in WAYS if name != "restore"])
def test_nothing_is_overwritten(arena: Path, way: str) -> None:
    """Not a file, not what another name of it, or whoever has it open, reads; the control is `cp`."""
    place = arena / "out"
    place.mkdir()
    keys = arena / "authorized_keys"
    keys.write_text("precious")
    os.link(keys, place / "report.txt")
    refused = WAYS[way]("open('report.txt', 'w').write('evil')", place)
    assert refused == {"report.txt": "there is a file of that name already"}
    assert keys.read_text() == (place / "report.txt").read_text() == "precious"
    keys.chmod(0o666)
    control(["sh", "-c", "echo evil > /tmp/evil; cp /tmp/evil out/report.txt"], cwd=str(arena))
    assert keys.read_text() == "evil\n"


def test_overwriting_takes_the_place_of_a_file(arena: Path) -> None:
    """If it is asked for: other names of the file, and links, keep what they had."""
    place = arena / "out"
    place.mkdir()
    for name in ("hard", "soft"):
        (arena / name).write_text("precious")
    os.link(arena / "hard", place / "hard")
    (place / "soft").symlink_to(arena / "soft")
    (place / "directory").mkdir()
    code = "for name in ('hard', 'soft', 'directory'): open(name, 'w').write('new')"
    with Sandbox() as jar, open(place / "hard") as reader:
        saved = jar.save_artifacts(jar.run(code), place, overwrite=True)
        assert reader.read() == "precious"
    assert sorted(saved) == [str(place / "hard"), str(place / "soft")]
    assert [path for path, _why in saved.refused] == ["directory"]
    assert (place / "hard").read_text() == (place / "soft").read_text() == "new"
    assert not (place / "soft").is_symlink()
    assert (arena / "hard").read_text() == (arena / "soft").read_text() == "precious"
    assert _files(place) == ["hard", "soft"], "no temporary name stays"


def test_a_sandbox_replaces_what_it_wrote_itself(arena: Path) -> None:
    """Step after step, as long as nobody else changed the file."""
    place = arena / "out"
    with Session() as session:
        for number in range(3):
            step = session.run(f"open('table.csv', 'w').write('{number}')")
            assert session.save_results(step, place).refused == []
        assert (place / "table.csv").read_text() == "2"
        (place / "table.csv").write_text("a person's")
        step = session.run("open('table.csv', 'w').write('3')")
        assert [path for path, _why in session.save_results(step, place).refused] == ["table.csv"]
    assert (place / "table.csv").read_text() == "a person's"


CONTEXT = {
    "hooks of git": (".git/hooks", "pre-commit"),
    "workflows, from above": (".github", "workflows/ci.yml"),
    "commands of an agent": (".claude/commands", "go.md"),
    "keys": (".ssh", "config"),
    "belljar's state": ("{state}", "runs.sqlite-x"),
    "belljar's bytecode": ("{state}/bytecode", "cpython-311-0"),
}


@pytest.mark.parametrize(("directory", "path"), CONTEXT.values(), ids=CONTEXT.keys())
def test_a_directory_that_tools_know(arena: Path, state_directory: str, directory: str, path: str) -> None:
    """The name that counts is that on the host, not that in the jar."""
    place = arena / directory.format(state=state_directory)
    with Sandbox() as jar:
        result = jar.run(
            f"import os\nos.makedirs(os.path.dirname({path!r}) or '.', exist_ok=True)\nopen({path!r}, 'w')"
        )
        assert [artifact.path for artifact in result.artifacts] == [path]
        assert jar.save_artifacts(result, place) == []
    assert not (place / path).exists()


@pytest.mark.parametrize("where", ["", "hooks", "hooks/deep"])
def test_no_part_of_a_bare_repository_is_written(arena: Path, where: str) -> None:
    """Git runs a server's hooks at every push. A worktree in the repository is a directory like any other."""
    bare = arena / "server.git"
    subprocess.run(["git", "init", "-q", "--bare", bare], check=True)
    (bare / where).mkdir(exist_ok=True)
    worktree = bare / "work"
    worktree.mkdir()
    (worktree / ".git").write_text("gitdir: ../worktrees/work\n")
    with Sandbox(backend="bubblewrap") as jar:
        result = jar.run("open('post-receive', 'w').write('#!/bin/sh')")
        assert dict(jar.save_artifacts(result, bare / where).refused).keys() == {"post-receive"}
        assert list(jar.save_artifacts(result, worktree)) == [str(worktree / "post-receive")]
    assert not (bare / where / "post-receive").exists()


def test_no_home_is_written_to(arena: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where any name may be acted upon, as bin/ls."""
    monkeypatch.setenv("HOME", str(arena / "home/me"))
    (arena / "home/me").mkdir(parents=True)
    with Sandbox() as jar, Pool(size=1) as pool:
        result = jar.run("open('x', 'w')")
        for place in (arena / "home/me", arena / "home", arena / "home/me/../../home"):
            with pytest.raises(UsageError, match="home"):
                jar.save_artifacts(result, place)
            with pytest.raises(UsageError, match="home"):
                pool.run("open('x', 'w')", artifacts=place)
        assert len(jar.save_artifacts(result, arena / "home/me/out")) == 1
    assert os.listdir(arena / "home/me") == ["out"]


def test_bytecode_never_comes_back(arena: Path, project: Path) -> None:
    """Not with any word; one line tells of a whole directory. The control: `cp` takes it."""
    (project / "old/__pycache__").mkdir(parents=True)
    (project / "old/__pycache__/x.pyc").write_text("the host's")
    code = (
        "import os\nfor d in ('old', 'new'):\n    os.makedirs(f'{d}/__pycache__', exist_ok=True)\n"
        "    for n in ('x.pyc', 'bundle.cpython-311'): open(f'{d}/__pycache__/{n}', 'w').write('evil')\n"
        "open('new/x.py', 'w')"
    )
    with Sandbox(workspace=project) as jar:
        assert jar.run(code).ok
        with jar.changes() as changes:
            done = changes.apply(protected=True, ignored=True)
    assert [path for path, _why in done.refused] == ["new/__pycache__", "old/__pycache__"]
    assert _files(project) == ["new/x.py", "old/__pycache__/x.pyc"]
    assert (project / "old/__pycache__/x.pyc").read_text() == "the host's"
    copy = arena / "copy"
    copy.mkdir()
    copy.chmod(0o777)
    control(["python3", "-c", code], cwd=str(copy))
    assert (copy / "new/__pycache__/bundle.cpython-311").read_text() == "evil"
