"""Attacks on what the host does with a workspace: links, odd files and names that wait for a host that trusts them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from attack_control import control, forgetful_root, ordinary_user

from belljar import BelljarError, Sandbox

OpenJar = Callable[..., Sandbox]
SECRET = "BEGIN-BELLJAR-SECRET"
UsageErrors = (OSError, BelljarError)


@pytest.fixture
def secret(arena: Path) -> Path:
    """A file of the host's that a link in a workspace points to."""
    path = arena / "secret"
    path.write_text(SECRET)
    return path


LINKS = """
ln -s {secret} file
ln -s {directory} directory
ln -s /proc/self/root{secret} magic
ln -s directory/secret chain
mkdir real; ln -s ../../../../../../../..{secret} real/up
mkfifo pipe
"""
PATHS = (
    "file",
    "directory/secret",
    "magic",
    "chain",
    "real/up",
    "real/../file",
    "pipe",
    "../secret",
    "../../../..{secret}",
    "{secret}",
)


@pytest.mark.parametrize("path", PATHS)
def test_file_api_follows_nothing(open_jar: OpenJar, project: Path, secret: Path, path: str) -> None:
    """CVE-2026-39861: reading, writing and listing by the host go through no link of the code's, past no border."""
    jar = open_jar(workspace=project)
    jar.run(LINKS.format(secret=secret, directory=secret.parent), language="bash")
    path = path.format(secret=secret)
    with pytest.raises(UsageErrors):
        jar.files.read(path)
    with pytest.raises(UsageErrors):
        jar.files.write(path, b"overwritten")
    with pytest.raises(UsageErrors):
        jar.files.list(f"{path}/.")
    assert secret.read_text() == SECRET
    # The control: a reader that follows whatever it meets reads the secret, or hangs at the pipe.
    project.chmod(0o777)
    follow = f"{LINKS.format(secret=secret, directory=secret.parent)}\ntimeout 0.3 cat {path} || echo ended: $?"
    assert control(["bash", "-c", follow], cwd=str(project)).strip() == ("ended: 124" if path == "pipe" else SECRET)


def test_removal_stays_inside(open_jar: OpenJar, project: Path, secret: Path) -> None:
    """Removing a link, or a tree with links in it, removes the links; the control removes what `rm -r link/` finds."""
    jar = open_jar(workspace=project)
    jar.run(
        f"mkdir tree; ln -s {secret.parent} tree/out; ln -s {secret} tree/file; ln -s {secret.parent} out",
        language="bash",
    )
    jar.files.remove("tree")
    jar.files.remove("out")
    assert jar.files.list() == []
    assert secret.exists()
    (project / "out").symlink_to(secret.parent)
    os.unlink(project / "out" / "secret")
    assert not secret.exists()


def test_artifacts_are_plain_files_only(open_jar: OpenJar, project: Path, secret: Path, arena: Path) -> None:
    """Links and pipes are no artifacts; a link that lies in the target directory already is not written through."""
    jar = open_jar(workspace=project)
    result = jar.run(LINKS.format(secret=secret, directory=secret.parent) + "echo mine > plain", language="bash")
    assert [artifact.path for artifact in result.artifacts] == ["plain"]
    target = arena / "artifacts"
    target.mkdir()
    (target / "plain").symlink_to(secret)
    with suppress(*UsageErrors):
        assert jar.save_artifacts(result, target) == []
    assert secret.read_text() == SECRET
    (target / "plain").write_text("mine")  # the control: an ordinary write does go through the link
    assert secret.read_text() == "mine"


def _open_directory(path: Path) -> Path:
    """A directory for a control to write in."""
    path.mkdir()
    path.chmod(0o777)
    return path


def _apply(jar: Sandbox) -> tuple[set[str], set[str]]:
    with jar.changes() as changes:
        done = changes.apply()
    return set(done.applied), {path for path, _why in done.refused}


LEAVING = {
    "absolute": "ln -s {secret} link",
    "upwards": "ln -s ../secret link",
    "far upwards": "ln -s ../../../../../../..{secret} link",
    "down and up": "mkdir d; ln -s d/../../secret link",
    "through another link": "mkdir -p sub/deep; ln -s ../.. sub/deep/top; ln -s sub/deep/top/../secret link",
    "through another, below": "mkdir -p s/d; ln -s ../.. s/d/top; ln -s top/../secret s/d/link; ln -s s/d/link link",
    "through /proc": "ln -s /proc/self/cwd/../secret link",
}


@pytest.mark.parametrize("name", LEAVING)
def test_no_link_that_leaves_is_applied(open_jar: OpenJar, project: Path, secret: Path, name: str) -> None:
    """After `apply`, no path in the host's directory leads out of it; the control shows that the link does lead out."""
    script = LEAVING[name].format(secret=secret)
    jar = open_jar(workspace=project)
    assert jar.run(script, language="bash").ok
    _apply(jar)
    for path in [path for path in project.rglob("*") if path.is_symlink()]:
        assert path.resolve().is_relative_to(project.resolve()), f"{path} -> {path.readlink()}"
    copy = _open_directory(project.parent / "copy")
    assert SECRET in control(["bash", "-c", f"{script}; cat link"], cwd=str(copy))


def test_apply_writes_through_no_link_of_the_host(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """A directory that became a link on the host while the code ran is not written through."""
    (project / "sub").mkdir()
    outside = arena / "outside"
    outside.mkdir()
    jar = open_jar(workspace=project)
    assert jar.run("echo planted > sub/planted; echo planted > top", language="bash").ok
    (project / "sub").rmdir()
    (project / "sub").symlink_to(outside)
    _apply(jar)
    assert list(outside.iterdir()) == []
    (project / "follow").symlink_to(outside)
    (project / "follow" / "planted").write_text("control")
    assert list(outside.iterdir())


FORBIDDEN = {
    "a denied name": ".env",
    "a denied directory": ".ssh/authorized_keys",
    "a git hook": ".git/hooks/post-checkout",
    "git's settings": ".git/config",
    "git's settings, in common": ".git/commondir",
    "git's settings, of a module": ".git/modules/m/config",
    "git's settings, of a work tree": ".git/worktrees/w/config.worktree",
    "git's settings, below": "sub/.git/config",
    "git's settings, elsewhere": ".git",
    "git's attributes": ".git/info/attributes",
    "a rebase that goes on": ".git/rebase-merge/git-rebase-todo",
    "a module's own": "sub/.git",
}
MAKE = """mkdir -p "$(dirname "$1")"; echo 'gitdir: elsewhere' > "$1"; chmod +x "$1" """


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_would_act_on_the_host_is_not_applied(open_jar: OpenJar, project: Path, name: str) -> None:
    """Denied names, and what the host's git would obey, are refused by `apply`; the script does make them."""
    path = FORBIDDEN[name]
    jar = open_jar(workspace=project)
    assert jar.exec(["sh", "-c", MAKE, "sh", path]).ok
    _applied, refused = _apply(jar)
    assert not os.path.lexists(project / path)
    assert any(path == found or path.startswith(f"{found}/") for found in refused)
    copy = _open_directory(project.parent / "copy")
    control(["sh", "-c", MAKE, "sh", path], cwd=str(copy))
    assert os.path.lexists(copy / path)


@pytest.mark.parametrize(
    "script", ["mkfifo it", "mkdir g; ln -s g .git", "mkdir -p g/hooks; ln -s ../g sub; mv sub .git"]
)
def test_pipe_or_link_that_would_act_is_not_applied(open_jar: OpenJar, project: Path, script: str) -> None:
    """Pipes, and links that stand in for git's directory, stay in the jar; the script does make them."""
    jar = open_jar(workspace=project)
    assert jar.run(script, language="bash").ok
    _apply(jar)
    special = [path for path in project.iterdir() if path.is_symlink() or path.is_fifo()]
    assert special == []
    copy = _open_directory(project.parent / "copy")
    control(["sh", "-c", script], cwd=str(copy))
    assert [path for path in copy.iterdir() if path.is_symlink() or path.is_fifo()]


REPOSITORY = """
mkdir -p g/objects g/refs; echo 'ref: refs/heads/main' > g/HEAD
printf '[core]\\nrepositoryformatversion = 0\\nworktree = {project}\\nfsmonitor = "touch {marker}; false"\\n' > g/config
echo 'gitdir: g' > .git; echo x > tracked
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_on_the_host_runs_nothing_of_the_code(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """`git status` after `apply` starts no program of the code's choice; with the same files made outright it does."""
    marker = arena / "marker"
    script = REPOSITORY.format(project=project, marker=marker)
    jar = open_jar(workspace=project)
    assert jar.run(script, language="bash").ok
    _apply(jar)
    git = [*ordinary_user(), "git", "-c", "safe.directory=*", "status"]
    clean = {"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(arena), "HOME": str(arena)}
    subprocess.run(git, cwd=project, env=clean, capture_output=True, check=False)
    assert not marker.exists()
    copy = _open_directory(arena / "copy")
    script = REPOSITORY.format(project=copy, marker=marker)
    said = control(["bash", "-c", f"{script}\ngit -c 'safe.directory=*' status"], cwd=str(copy), env=clean)
    assert marker.exists(), said


MODES = "umask 0; echo x > f; chmod 1777 f; mkdir d; chmod 1777 d; echo x > d/g"


def _set_bits(directory: Path) -> list[Path]:
    bits = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
    return [path for path in directory.rglob("*") if path.stat().st_mode & bits]


def test_modes_that_matter_are_not_applied(open_jar: OpenJar, project: Path) -> None:
    """What `apply` writes has no set-id or sticky bit and belongs to the owner of the directory, not to the jar's user.

    The control: `cp -a` brings every bit along.
    """
    jar = open_jar(workspace=project)
    assert jar.run(MODES, language="bash").ok
    _apply(jar)
    assert len(list(project.rglob("*"))) == 3
    assert _set_bits(project) == []
    assert {path.stat().st_uid for path in project.rglob("*")} == {project.stat().st_uid}
    copy = _open_directory(project.parent / "copy")
    control(["bash", "-c", f"mkdir jar; cd jar; {MODES}; chmod u+s,g+s f; cp -a . ../copied"], cwd=str(copy))
    assert len(_set_bits(copy / "copied")) == 2


# --- mount points ----------------------------------------------------------------------------------------------------

NESTED = "mv /workspace/sub /workspace/moved; ln -s {target} /workspace/sub"


@pytest.mark.parametrize("prefix", ["/oldroot", "", "/proc/self/root/oldroot", "/newroot"])
def test_mount_point_replaced_by_a_link(open_jar: OpenJar, arena: Path, prefix: str) -> None:
    """The parent of a mount point is renamed and a link put in its place: the next run makes nothing on the host."""
    (arena / "deps").mkdir()
    (arena / "deps" / "lib.py").write_text("real")
    target = arena / "target"
    target.mkdir()
    target.chmod(0o777)
    mounts = [{"path": "/workspace", "rw": True}, {"path": "/workspace/sub/deps", "source": str(arena / "deps")}]
    jar = open_jar({"fs": {"mounts": mounts}})
    jar.run(NESTED.format(target=f"{prefix}{target}"), language="bash")
    for _ in range(3):
        try:
            result = jar.run("cat /workspace/sub/deps/lib.py", language="bash")
            assert result.outcome == "refused" or result.stdout in ("", "real")
        except BelljarError:
            pass
        assert list(target.iterdir()) == []
    assert sorted(os.listdir(arena / "deps")) == ["lib.py"]
    # The control: whoever makes the mount point again by its name, with the old root still there, makes it outside.
    _open_directory(arena / "root")
    script = f"mkdir -p /workspace/sub; {NESTED.format(target=f'{prefix}{target}')}; mkdir -p /workspace/sub/deps"
    setup = forgetful_root(str(arena / "root"), prefix.removeprefix("/proc/self/root") or "/oldroot")
    said = control(["bash", "-c", script], root=True, setup=setup)
    assert os.listdir(target) == ["deps"], said


def test_mount_point_that_a_repository_made_a_link(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """The same from the start: a repository whose directory for a mount is a link to elsewhere."""
    (arena / "deps").mkdir()
    target = arena / "target"
    target.mkdir()
    target.chmod(0o777)
    (project / "vendor").symlink_to(f"/oldroot{target}")
    (project / "direct").symlink_to(target)
    for inner in ("/workspace/vendor/deps", "/workspace/direct/deps"):
        mounts = [{"path": "/workspace", "rw": True}, {"path": inner, "source": str(arena / "deps")}]
        try:
            jar = open_jar({"fs": {"mounts": mounts}}, workspace=project)
            jar.run("true", language="bash")
        except BelljarError:
            pass
        assert list(target.iterdir()) == []
    os.mkdir(project / "direct" / "control")
    assert list(target.iterdir())


# --- a host that reads while the code runs ---------------------------------------------------------------------------

SWAP = """
import ctypes, os
libc = ctypes.CDLL(None)
os.mkdir("d"); os.chmod("d", {mode}); os.symlink({victim!r}, "l")
print("go", flush=True)
while True:
    libc.renameat2(-100, b"d", -100, b"l", 2)
"""


@pytest.mark.parametrize("mode", [0o700, 0])
def test_link_race_against_the_host(open_jar: OpenJar, project: Path, secret: Path, mode: int) -> None:
    """The code swaps a directory for a link without end while the host looks at it: nothing is followed."""
    secret.chmod(0o644)
    jar = open_jar(workspace=project)
    events = iter(jar.stream(SWAP.format(victim=str(secret.parent), mode=mode)))
    next(events)
    deadline = time.monotonic() + 2
    seen = set()
    while time.monotonic() < deadline:
        for look in (
            lambda: jar.files.read("d/secret"),
            lambda: jar.files.list("d"),
            lambda: jar.files.write("d/secret", "x"),
        ):
            try:
                found = look()
                seen |= {entry.path for entry in found} if isinstance(found, list) else {found}
            except UsageErrors:
                pass
        with jar.changes() as changes:  # must not raise, whatever the code does meanwhile
            seen |= {change.path for change in changes if "secret" in change.path and change.kind != "added"}
    jar.kill()
    for _event in events:
        pass
    assert secret.read_text() == SECRET
    assert stat.S_IMODE(secret.stat().st_mode) == 0o644
    assert SECRET.encode() not in seen


def test_race_of_that_test_is_real(project: Path, secret: Path) -> None:
    """The control: a reader that follows links does read the secret within the same time."""
    (project / "d").mkdir()
    (project / "l").symlink_to(secret.parent)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(project / "d", project / "x")
            os.rename(project / "l", project / "d")
            os.rename(project / "d", project / "l")
            os.rename(project / "x", project / "d")

    swapper = threading.Thread(target=swap)
    swapper.start()
    deadline = time.monotonic() + 5
    found = ""
    while not found and time.monotonic() < deadline:
        try:
            found = (project / "d" / "secret").read_text()
        except OSError:
            continue
    stop.set()
    swapper.join()
    assert found == SECRET
