"""Objects and refs on their way into the host's repository: a kill, a full disk, others who work there meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_runs import Home, git, make_home
from commit_runs import COMMIT, apply_all, kept, on_host, refs, sound, subjects, worked

from belljar.audit import killswitch
from belljar.coding_agents.inside import Wanted, prepare
from belljar.coding_agents.review import Review
from belljar.sandbox.repository.host_git import HostGit

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]

_RECEIVE = """
import os, sys
from belljar.sandbox.repository import moving, receiving
from belljar.sandbox.repository.host_git import HostGit
git, pack, old, new, steps = HostGit(sys.argv[1] + "/.git", sys.argv[1] + "/.git", sys.argv[1]), *sys.argv[2:6]
left = int(steps)
def kill_at(event, _arguments):
    global left
    if event in ("os.mkdir", "os.rename", "os.link", "os.remove", "subprocess.Popen", "os.listdir", "shutil.rmtree"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(kill_at)
receiving.receive_pack(git, pack)
receiving.update_refs(git, {"refs/belljar/run/heads/main": (None, new), "refs/belljar/run/tags/x": (None, new)}, "run")
moving.move_head(git, old, new, "run", started=b"")
"""


@pytest.fixture
def commit(home: Home, tmp_path: Path) -> tuple[str, str, Path]:
    """A commit that the project does not have yet: its parent, its id, and a pack of it of 100 kB."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(home.project), str(clone))
    (clone / "noise").write_bytes(os.urandom(100_000))
    (clone / "sums.py").write_text("fixed\n")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "fixed")
    old, new = (git(clone, "rev-parse", name).strip() for name in ("HEAD~1", "HEAD"))
    names = f"{new}\n^{old}\n"
    packed = subprocess.run(
        ["git", "pack-objects", "-q", "--revs", "--stdout"],
        cwd=clone,
        input=names.encode(),
        capture_output=True,
        check=True,
    )
    (tmp_path / "new.pack").write_bytes(packed.stdout)
    return old, new, tmp_path / "new.pack"


def received(project: Path, commit: tuple[str, str, Path], *, kill_at: int = 0, around: tuple[str, ...] = ()) -> int:
    """Receive in a process of its own; all that it started is gone afterwards."""
    old, new, pack = commit
    alone = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--die-with-parent", *around]
    words = [*alone, sys.executable, "-c", _RECEIVE, str(project), str(pack), old, new, str(kill_at)]
    return subprocess.run(words, capture_output=True, check=False, timeout=60).returncode


def test_a_kill_at_any_step(home: Home, commit: tuple[str, str, Path], tmp_path: Path) -> None:
    """Git finds the repository whole after each, with refs that are as before or as after."""
    outcomes = []
    for step in range(1, 60):
        project = tmp_path / f"copy{step}"
        shutil.copytree(home.project, project)
        code = received(project, commit, kill_at=step)
        git(project, "fsck", "--strict")
        found = refs(project)
        assert found["refs/heads/main"] in commit
        assert found.keys() - {"refs/heads/main"} in (set(), {"kept/heads/main", "kept/tags/x"})
        outcomes.append(found["refs/heads/main"] == commit[1])
        if code == 0:
            break
    assert code == 0
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 5


def test_a_full_disk(home: Home, commit: tuple[str, str, Path]) -> None:
    """Wherever it becomes full: nothing has changed, or all of it is there."""
    script = """
        cp -a "$1/." /mnt; shift; python=$1; shift
        for room in 0 8 40 80 100 104 108 112 116 120 124 128 140 200 400; do
            rm -rf /mnt/fill; fill=$(( $(stat -f -c %a /mnt) * 4 - room )); head -c ${fill}k /dev/zero > /mnt/fill
            before=$(git -C /mnt rev-parse main); code=0; said=$("$python" "$@" 0 2>&1) || code=$?
            git -C /mnt fsck --strict >/dev/null 2>&1 || { echo "broken with $room"; exit 1; }
            [ $code = 0 ] && { echo "done with $room"; git -C /mnt log --format=%s main; exit; }
            [ "$(git -C /mnt rev-parse main)" = $before ] || { echo "moved with $room: $said"; exit 1; }
            ls /mnt/.git/objects | grep tmp_objdir && exit 1
            git -C /mnt for-each-ref --format='delete %(refname)' refs/belljar | git -C /mnt update-ref --stdin
            echo "full with $room"
        done"""
    old, new, pack = commit
    words = ["sh", "-c", script, "sh", str(home.project), sys.executable, "-c", _RECEIVE, "/mnt", str(pack), old, new]
    alone = ["bwrap", "--dev-bind", "/", "/", "--size", str(1 << 20), "--tmpfs", "/mnt"]
    environment = {
        **os.environ,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    ran = subprocess.run(
        [*alone, "--unshare-pid", "--die-with-parent", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert sum(line.startswith("full with") for line in lines) >= 3, lines
    assert lines[-2:] == ["fixed", "first"]


def test_two_at_once(home: Home) -> None:
    """The second finds that the branch moved: it stays, and the command that is told merges it."""
    with worked(home, COMMIT) as one, worked(home, "echo x > x; git add x; git commit -qm other") as two:
        assert apply_all(one).moved == ("main",)
        decided = apply_all(two)
    assert decided.moved == ()
    command = decided.left[0][1].partition("`")[2].partition("`")[0]
    assert command.startswith("git merge refs/belljar/")
    (home.project / "x").unlink()
    git(home.project, *command.split()[1:], "-q", "-m", "merged")
    assert set(subjects(home.project, "main")) == {"merged", "fixed", "other", "first"}
    sound(home.project)


def test_an_editor_that_asks_for_the_status(home: Home) -> None:
    """It writes the index meanwhile: neither stops the other."""
    ended = threading.Event()
    failed: list[str] = []

    def ask() -> None:
        while not ended.is_set():
            (home.project / "sums.py").touch()
            done = subprocess.run(["git", "status"], cwd=home.project, capture_output=True, text=True, check=False)
            failed.extend([done.stderr] if done.returncode else [])

    editor = threading.Thread(target=ask)
    with worked(home, "echo x > x; git add x; git commit -qm x") as review:
        editor.start()
        try:
            decided = review.move(("x",))
        finally:
            ended.set()
            editor.join()
    assert decided.moved == ("main",), decided
    assert failed == []
    sound(home.project, status=" D x\n?? .env\n")


def test_what_is_staged_meanwhile_is_not_lost(home: Home) -> None:
    """If it is in the way of a commit, the branch stays; if it is not, it stays staged."""
    with worked(home, COMMIT) as review:
        on_host(home.project, "echo mine > sums.py; git add sums.py")
        decided = review.move(("sums.py",))
        assert decided.moved == ()
        assert "sums.py" in decided.left[0][1]
        sound(home.project, status="M  sums.py\n?? .env\n")
        on_host(home.project, "git reset -q; git checkout -q sums.py; echo mine > mine; git add mine")
        assert review.move(("sums.py",)).moved == ("main",)
    sound(home.project, status="A  mine\n M sums.py\n?? .env\n")


REWRITTEN = [
    ("amended", "git commit -q --amend -m other", "its history was rewritten"),
    (
        "a tag that was there",
        "git commit -q --allow-empty -m x; git tag -f v1 HEAD; git reset -q --hard v1~1",
        "the tag names",
    ),
    ("checked out elsewhere", "git checkout -q side; git commit -q --allow-empty -m x", "another worktree has it"),
]


@pytest.mark.parametrize(("what", "script", "said"), REWRITTEN, ids=[row[0] for row in REWRITTEN])
def test_what_needs_a_person(home: Home, what: str, script: str, said: str) -> None:
    """It is kept, and stays where it is."""
    on_host(home.project, "git tag v1; git worktree add -q -b side ../side")
    before = refs(home.project)
    with worked(home, script) as review:
        decided = apply_all(review)
    assert decided.moved == (), what
    assert said in decided.left[0][1]
    assert {name: one for name, one in refs(home.project).items() if not name.startswith("kept")} == before
    assert len(kept(home.project)) == 1
    sound(home.project)


def test_the_branch_that_the_agent_ended_on(home: Home) -> None:
    """Its files are those of that branch: with a yes the user is on it, too."""
    with worked(home, f"git checkout -q -b feature; {COMMIT}") as review:
        decided = apply_all(review)
    assert "feature" in decided.moved
    assert git(home.project, "branch", "--show-current") == "feature\n"
    assert subjects(home.project, "main") == ["first"]
    sound(home.project)


def test_with_the_kill_switch_on(home: Home) -> None:
    """No jar starts, not even to check the commits: they are kept as the agent's jar made them."""
    agent = prepare(Wanted(("sh", "-c", COMMIT), project=str(home.project), environ=home.environment()))
    with agent.opened() as jar:
        assert jar.exec(agent.argv).ok
        killswitch.turn_on("a test")
        try:
            with Review(jar, agent) as review:
                assert review.commits.moves == []
                (problem,) = review.commits.problems
        finally:
            killswitch.turn_off()
    assert "not brought back: the kill switch is on: a test; its objects, unchecked, are in " in problem
    place = Path(problem.rpartition(" ")[2])
    assert "refs/heads/main" in (place / "refs").read_text()
    assert len([*place.glob("loose/*/*")]) == 3
    sound(home.project)


@pytest.fixture
def of_another(request: pytest.FixtureRequest) -> Iterator[Home]:
    """A home that belongs to another user, who can reach it."""
    if os.geteuid() != 0:
        pytest.skip("only root runs belljar in a directory of someone else's")
    directory = Path(tempfile.mkdtemp(prefix="belljar-test-"))
    directory.chmod(0o755)
    home = make_home(directory / "home")
    for path in (directory, *directory.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    yield home
    shutil.rmtree(directory)


def test_as_root_in_a_repository_of_someone_else(of_another: Home) -> None:
    """Everything that comes back belongs to its owner."""
    with worked(of_another, f"{COMMIT}; git branch side") as review:
        decided = apply_all(review)
    assert set(decided.moved) == {"main", "side"}
    owners = {path.lstat().st_uid for path in of_another.project.rglob("*")}
    assert owners == {12345}
    sound(of_another.project)


def test_host_git_says_why(tmp_path: Path) -> None:
    """Git's own words."""
    from belljar.sandbox.repository.host_git import GitError

    with pytest.raises(GitError, match="not a git repository"):
        HostGit(str(tmp_path), str(tmp_path), str(tmp_path)).run("rev-parse", "HEAD")
