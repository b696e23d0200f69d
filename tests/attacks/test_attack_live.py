"""Attacks through a live directory: links left for the next Sandbox, and doors to processes of the host."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from attack_control import python_control
from attack_probe import escaped, held, python_probe
from attack_search import SECRET

from belljar import BelljarError, PolicyError, Sandbox, SandboxUnavailableError, Session
from belljar.errors import UsageError
from belljar.sandbox.files.host_directory import open_target
from belljar.sandbox.files.restoring import restore
from belljar.sandbox.files.snapshot_files import SnapshotFiles

OpenJar = Callable[..., Sandbox]

LIVE = {"on_degraded": "allow"}
READ = python_probe("def attack(path): return open(path, 'rb').read(20)")


@pytest.fixture
def secret(arena: Path) -> Path:
    """A directory that no policy names, with a secret in it that everyone may read."""
    path = arena / "secret"
    path.mkdir()
    (path / "key").write_text(SECRET)
    return path


@pytest.fixture
def swap(open_jar: OpenJar, project: Path, secret: Path) -> Callable[[str], Path]:
    """One run with a live directory, which puts a link in the place of a directory of it."""
    project.chmod(0o777)

    def done(name: str) -> Path:
        (project / name).mkdir()
        if os.geteuid() == 0:
            project.chmod(0o755)
        code = f"import os; os.rmdir({name!r}); os.symlink({str(secret)!r}, {name!r})"
        assert open_jar(LIVE, workspace=project, live=True).run(code).ok
        assert (project / name).readlink() == secret
        return project / name

    return done


# --- links -----------------------------------------------------------------------------------------------------------


def test_a_mount_is_not_swapped_for_a_link(open_jar: OpenJar, swap: Callable[[str], Path], secret: Path) -> None:
    """The next Sandbox, with another policy, mounts no place of the code's choice. The control follows the link."""
    link = swap("data")
    assert escaped(python_control(READ, str(link / "key")))
    mount = {"path": "/data", "source": str(link)}
    with pytest.raises(PolicyError, match="a link in a directory that code could write") as raised:
        open_jar({"fs": {"mounts": [mount]}}).run("print(1)")
    advised = str(raised.value).rpartition("name the place itself: ")[2].splitlines()[0]
    assert advised == str(secret)
    jar = open_jar({"fs": {"mounts": [{**mount, "source": advised}]}})
    assert jar.exec(["cat", "/data/key"]).stdout == SECRET


@pytest.mark.parametrize("words", ["{link}", "{link}/.", "{project}/sub/../data", "{link}/../secret", "{beside}/data"])
def test_by_no_way_of_writing_the_path(
    open_jar: OpenJar, swap: Callable[[str], Path], project: Path, arena: Path, words: str
) -> None:
    """With `..` behind the link, and by a link of the user's own that leads to the live directory."""
    link = swap("data")
    (project / "sub").mkdir()
    (arena / "beside").symlink_to(project)
    source = words.format(link=link, project=project, beside=arena / "beside")
    with pytest.raises(PolicyError, match="code could write"):
        open_jar({"fs": {"mounts": [{"path": "/data", "source": source}]}}).run("print(1)")


def test_a_link_of_the_users_own_is_followed(open_jar: OpenJar, project: Path, secret: Path, arena: Path) -> None:
    """What lies in no live directory is the user's word."""
    (arena / "mine").symlink_to(secret)
    jar = open_jar({"fs": {"mounts": [{"path": "/data", "source": str(arena / "mine")}]}}, workspace=project)
    assert jar.exec(["cat", "/data/key"]).stdout == SECRET


def test_a_workspace_is_not_swapped(open_jar: OpenJar, swap: Callable[[str], Path]) -> None:
    """Nor is the next one's, beneath the live directory."""
    with pytest.raises(PolicyError, match="code could write"):
        open_jar(workspace=swap("data")).run("print(1)")


def test_a_virtual_environment_is_not_swapped(open_jar: OpenJar, swap: Callable[[str], Path], secret: Path) -> None:
    """Its name stays as it is written, so the link would be its last part."""
    subprocess.run(["/usr/bin/python3", "-I", "-m", "venv", "--without-pip", secret], check=True)
    with pytest.raises(PolicyError, match="code could write"):
        open_jar({"python": {"venv": str(swap("venv"))}}).run("print(1)")


def test_artifacts_are_not_saved_through_a_link(open_jar: OpenJar, swap: Callable[[str], Path], secret: Path) -> None:
    """The directory that the host writes to."""
    link = swap("out")
    jar = open_jar()
    result = jar.run("open('made', 'w').write('x')")
    with pytest.raises((UsageError, PolicyError), match="code could write"):
        jar.save_artifacts(result, link)
    assert sorted(os.listdir(secret)) == ["key"]


def test_a_policy_of_the_codes_is_not_read(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """A file in a directory that was live, or behind a link there, also when that is no workspace now."""
    policy = project / "own.policy.yaml"
    policy.write_text("version: 1\n")
    assert open_jar(policy).run("print(1)").ok
    jar = open_jar(LIVE, workspace=project, live=True)
    assert jar.run("open('own.policy.yaml', 'a').write('extends: unrestricted\\n')").ok
    with pytest.raises(PolicyError, match="never read") as raised:
        open_jar(policy).run("print(1)")
    assert raised.value.hint == f"read it, and move it out of {project}"
    assert open_jar(policy.rename(arena / "own.policy.yaml"), backend="bubblewrap").policy


def test_a_link_that_comes_after_the_policy_was_read(open_jar: OpenJar, project: Path, secret: Path) -> None:
    """Between reading the policy and mounting: the stage follows no link at all."""
    (project / "data").mkdir()
    jar = open_jar({"fs": {"mounts": [{"path": "/data", "source": str(project / "data")}]}})
    (project / "data").rmdir()
    (project / "data").symlink_to(secret)
    with pytest.raises(SandboxUnavailableError, match="somebody put a link there"):
        jar.exec(["cat", "/data/key"])
    (project / "data").unlink()
    (project / "data").mkdir()
    assert jar.exec(["ls", "/data"]).ok


def test_a_live_place_of_any_name_is_remembered(open_jar: OpenJar, arena: Path, secret: Path) -> None:
    """With a newline, a backslash, and bytes that are no text."""
    place = arena / os.fsdecode(b"a\nb\\n\\c\xff")
    place.mkdir()
    assert open_jar(LIVE, workspace=place, live=True).exec(["ln", "-s", str(secret), "data"]).ok
    with pytest.raises(BelljarError, match="code could write"):
        open_jar(workspace=place / "data").run("print(1)")


def test_nothing_is_applied_through_a_link(open_jar: OpenJar, swap: Callable[[str], Path], secret: Path) -> None:
    """A workspace beneath the live directory of another Sandbox, which is swapped after it was opened."""
    place = swap("sub")
    place.unlink()
    place.mkdir()
    (secret / "main.py").write_text("old")
    jar = open_jar(workspace=place, backend="bubblewrap")
    assert jar.run("open('main.py', 'w').write('new')").ok
    place.rmdir()
    place.symlink_to(secret)
    with pytest.raises(UsageError, match="somebody put a link on the way"):
        jar.changes()
    assert (secret / "main.py").read_text() == "old"


def test_a_link_that_comes_while_artifacts_are_saved(
    arena: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory on the way is swapped after the path was looked at."""
    (arena / "a").mkdir()
    (secret / "out").mkdir()

    def swapped(path: str, *, exist_ok: bool) -> None:
        assert (path, exist_ok) == (str(arena / "a/out"), True)
        (arena / "a").rmdir()
        (arena / "a").symlink_to(secret)

    monkeypatch.setattr(os, "makedirs", swapped)
    with pytest.raises(UsageError, match="somebody put a link on the way"):
        open_target(str(arena / "a/out"))


def test_a_snapshot_is_not_restored_through_a_link(
    open_jar: OpenJar, swap: Callable[[str], Path], secret: Path
) -> None:
    """The directory above the new one is the code's choice."""
    link = swap("out")
    with Session(backend="bubblewrap") as session:
        session.run("open('made', 'w').write('x')")
        session.snapshot("one")
    with SnapshotFiles("one") as files, pytest.raises(UsageError, match="code could write"):
        restore(files, str(link / "new"))
    assert sorted(os.listdir(secret)) == ["key"]


# --- the state directory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        ("project/state", "can't be live: belljar's state directory"),
        ("project", "is belljar's own: its keys are in it"),
        (".", "lies in belljar's own directory"),
    ],
)
def test_the_state_directory_is_never_live(
    open_jar: OpenJar, project: Path, monkeypatch: pytest.MonkeyPatch, state: str, refusal: str
) -> None:
    """The bytecode there is executed outside of any jar. A link to the state directory changes nothing."""
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(project.parent / state))
    with pytest.raises(PolicyError, match=refusal):
        open_jar(LIVE, workspace=project, live=True).run("open('state/bytecode/x', 'w')")
    (project.parent / "own").symlink_to(project.parent / state)
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(project.parent / "own"))
    with pytest.raises(PolicyError, match=refusal):
        open_jar(LIVE, workspace=project, live=True).run("print(1)")


def test_the_state_directory_is_in_no_view(open_jar: OpenJar, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other runs were given is there, and belljar's keys. The control reads them in another directory."""
    for name in ("state [x], {1}", "other"):
        (project / "deep" / name).mkdir(parents=True, mode=0o755)
        (project / "deep" / name / "digests.key").write_text(SECRET)
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(project / "deep/state [x], {1}"))
    jar = open_jar(workspace=project)
    assert jar.exec(["cat", "deep/other/digests.key"]).stdout == SECRET
    assert jar.exec(["ls", "deep"]).stdout == "other\n"
    with jar.changes() as changes:
        assert not list(changes)


# --- doors -----------------------------------------------------------------------------------------------------------

KNOCK = python_probe(
    """
    def attack(directory):
        opened = []
        for name in ("door", "deep/door"):
            try:
                socket.socket(socket.AF_UNIX).connect(f"{directory}/{name}")
                opened.append(name)
            except OSError:
                pass
        try:
            os.write(os.open(f"{directory}/pipe", os.O_WRONLY | os.O_NONBLOCK), b"word")
            opened.append("pipe")
        except OSError:
            pass
        if not opened:
            raise OSError(errno.ENOENT, "nothing")
        return opened
    """
)


@pytest.fixture
def doors(project: Path) -> Iterator[Path]:
    """A directory with sockets that a process of the host listens on, and a pipe that it reads."""
    (project / "deep").mkdir()
    for path in (project, project / "deep"):
        path.chmod(0o777)
    os.mkfifo(project / "pipe")
    reader = os.open(project / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with closing(socket.socket(socket.AF_UNIX)) as one, closing(socket.socket(socket.AF_UNIX)) as two:
        for end, path in ((one, project / "door"), (two, project / "deep" / "door")):
            end.bind(str(path))
            end.listen()
            path.chmod(0o777)
        (project / "pipe").chmod(0o777)
        yield project
    os.close(reader)


KINDS = {
    "live": ({}, True),
    "copy on write": ({}, False),
    "read-only": ({"rw": False}, None),
    "live, without patterns": ({"globs": []}, True),
    "read-only, without patterns": ({"rw": False, "globs": []}, None),
}


@pytest.mark.parametrize(("how", "live"), KINDS.values(), ids=KINDS.keys())
def test_no_door_to_the_host_opens(open_jar: OpenJar, doors: Path, how: dict[str, object], live: bool | None) -> None:
    """Neither sockets nor named pipes, in no kind of mount. In the control all of them open."""
    policy: dict[str, object] = dict(LIVE)
    if "globs" in how:
        policy["fs"] = {"deny_globs": [f"!{pattern}" for pattern in open_jar().policy.fs.deny_globs]}
    if live is None:
        policy["fs"] = {**policy.get("fs", {}), "mounts": [{"path": "/data", "source": str(doors)}]}  # type: ignore[dict-item]
        result = open_jar(policy).run(KNOCK, args=["/data"])
    else:
        result = open_jar(policy, workspace=doors, live=live).run(KNOCK, args=["/workspace"])
    assert held(result), result
    assert "ESCAPED: ['door', 'deep/door', 'pipe']" in python_control(KNOCK, str(doors))


def test_the_codes_own_doors_work(open_jar: OpenJar, doors: Path) -> None:
    """In a live directory the code may listen, and connect to itself. The host's files are as they were."""
    code = """
import socket
end = socket.socket(socket.AF_UNIX); end.bind("own"); end.listen()
socket.socket(socket.AF_UNIX).connect("own")
print("connected")
"""
    assert open_jar(LIVE, workspace=doors, live=True).run(code).stdout == "connected\n"
    assert (doors / "door").is_socket()
    assert (doors / "pipe").is_fifo()


def test_a_door_that_appears_later_is_reported(open_jar: OpenJar, doors: Path) -> None:
    """No kernel of today hides it: so the clause is degraded, with or without patterns, and says why."""
    globs = [f"!{pattern}" for pattern in open_jar().policy.fs.deny_globs]
    for policy in (LIVE, {**LIVE, "fs": {"deny_globs": globs}}):
        clause = open_jar(policy, workspace=doors, live=True).plan(argv=["true"]).report.clause("fs.deny_globs")
        assert clause.status == "degraded"
        assert "a socket or named pipe of the host that appears later can be opened" in clause.lost


def test_too_many_doors_are_an_error(open_jar: OpenJar, project: Path) -> None:
    """Rather than a few that stay open."""
    for number in range(501):
        os.mkfifo(project / f"pipe-{number}")
    with pytest.raises(SandboxUnavailableError, match="501 denied files, sockets and pipes"):
        open_jar(LIVE, workspace=project, live=True).run("print(1)")
