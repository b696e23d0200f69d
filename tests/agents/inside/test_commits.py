"""Commits of an agent, as they come back: checked, judged, kept, and moved by whose word. Agents are shell scripts."""

from __future__ import annotations

import os

import pytest
from agent_runs import Home, git
from commit_runs import COMMIT, apply_all, kept, on_host, refs, sound, subjects, worked

from belljar.sandbox.repository.incoming import incoming
from belljar.sandbox.repository.making import jar_repositories
from belljar.sandbox.run.sandbox import Sandbox

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]


def test_the_jar_has_a_repository_of_its_own(home: Home) -> None:
    """Log, remote-tracking refs and status work; settings that execute, hooks and credentials are not there."""
    project = home.project
    git(project, "remote", "add", "origin", "https://ada:s3cret@example.com/r.git")
    git(project, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(project, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    git(project, "config", "core.fsmonitor", "touch /tmp/pwned")
    git(project, "config", "alias.x", "!touch /tmp/pwned")
    (project / ".git/hooks/pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (project / ".git/hooks/pre-commit").chmod(0o755)
    script = """
        git log --format=%s origin; git status --short; git remote get-url origin; ls .git/hooks
        git config --list --local; git var GIT_AUTHOR_IDENT; git commit -q --allow-empty -m empty && git log --format=%s
    """
    ran = home.agent(script, "--apply", "all")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[:2] == ["first", "https://example.com/r.git"]
    assert lines[-2:] == ["empty", "first"]
    assert "ada@example.com" in ran.out
    assert "s3cret" not in ran.out
    assert "fsmonitor" not in ran.out
    assert "alias" not in ran.out
    assert subjects(project, "main") == ["empty", "first"]


def test_git_in_the_jar_reads_no_file_again_that_the_host_knows_to_be_unchanged(home: Home) -> None:
    """`diff-files` lists what git would have to read. A file as new as the host's index is read again."""
    index, file = home.project / ".git/index", home.project / "sums.py"
    recorded = (index.stat().st_mtime - 10,) * 2
    os.utime(file, recorded)
    git(home.project, "update-index", "--refresh")
    assert home.agent("git diff-files --name-only").out == ""
    file.write_text("def add(a, b):\n    return a + b\n")
    for one in (file, index):
        os.utime(one, recorded)
    assert home.agent("git status --short").out == " M sums.py\n"


def test_nothing_moves_without_a_yes(home: Home) -> None:
    """The commits are in the repository as refs of belljar's, and the last lines say how to look at them."""
    before = refs(home.project)
    ran = home.agent(f"{COMMIT}; git branch side; git tag v1; git tag -a -m annotated v2")
    assert ran.code == 0, ran.err
    found = refs(home.project)
    assert {name for name in found if name not in before} == {
        *("kept/heads/main", "kept/heads/side", "kept/tags/v1", "kept/tags/v2"),
    }
    assert found["refs/heads/main"] == before["refs/heads/main"]
    sound(home.project)
    command = ran.err.partition("belljar: kept: main, 1 new commit: `")[2].partition("`")[0]
    assert git(home.project, *command.split()[1:], "--format=%s").split() == ["fixed", "first"]


def test_a_yes_moves_branches_and_tags(home: Home) -> None:
    """With one word: the current branch and its index, others, tags; refs of belljar's that are done with go."""
    script = f"{COMMIT}; git branch side; git tag -a -m annotated v2; git notes add -m note; git stash list"
    ran = home.agent(script, "--apply", "all")
    assert ran.code == 0, ran.err
    found = refs(home.project)
    assert found.keys() == {"refs/heads/main", "refs/heads/side", "refs/tags/v2", "kept/notes/commits"}
    assert subjects(home.project, "main") == ["fixed", "first"]
    assert "belljar: run" in git(home.project, "reflog", "-1", "main")
    sound(home.project)


MARKED = [
    # name, content, what is said, whether --apply-protected is a yes
    (".env", "echo TOKEN=x > .env && git add -f .env", "its name is denied by fs.deny_globs", False),
    (".github/workflows/ci.yml", "mkdir -p .github/workflows && echo on > .github/workflows/ci.yml", "acts", True),
    ("a link", "ln -s /etc/passwd link", "leads out of the repository", False),
    (".gitmodules", "echo > .gitmodules", "git on the host would act on it", True),
    (
        "a gitlink",
        "mkdir sub; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub",
        "it is a submodule",
        True,
    ),
    ("bytecode", "mkdir __pycache__ && echo > __pycache__/x.pyc", "nobody can read it", False),
]


@pytest.mark.parametrize(("name", "script", "said", "protected"), MARKED, ids=[row[0] for row in MARKED])
def test_commits_are_judged_like_files(home: Home, name: str, script: str, said: str, protected: bool) -> None:
    """Also if a later commit takes the file away: checking out the first would write it."""
    before, env = refs(home.project, "refs/heads"), (home.project / ".env").read_text()
    script += "; git add -A -f . ; git commit -qm bad; git rm -rfq --cached . ; git add sums.py; git commit -qm good"
    with worked(home, script) as review:
        decided = review.move((), protected=False)
        assert decided.moved == ()
        assert said.replace("acts", "would act") in decided.left[0][1], name
        assert refs(home.project, "refs/heads") == before
        assert subjects(home.project, kept(home.project)[0]) == ["good", "bad", "first"]
        git(home.project, "fsck", "--strict")
        everything = [change.path for change in (*review.files, *review.protected, *review.refused)]
        decided = review.move(everything, protected=True)
        assert bool(decided.moved) == protected, decided
    assert (home.project / ".env").read_text() == env


def test_a_file_that_stays_holds_its_commits(home: Home) -> None:
    """A no to a file is a no to the branch whose commits change it."""
    other = "git checkout -qb other; echo x > x; git add x; git commit -qm x; git checkout -q main"
    with worked(home, f"{other}; {COMMIT}") as review:
        decided = review.move(())
    assert decided.moved == ("other",)
    assert "its commits change sums.py, which did not come back" in dict(decided.left)["main"]
    assert subjects(home.project, "main") == ["first"]


SHAPES = [
    # what the host's repository is like, how it is made, its status before and after
    ("an unborn branch", "rm -rf .git; git init -q -b start; git add sums.py", "A  sums.py\n?? .env\n"),
    ("a detached head", "git checkout -q --detach", "?? .env\n"),
    ("something staged", "echo staged > other; git add other; echo dirty >> other", "AM other\n?? .env\n"),
    ("packed refs", "git branch more; git pack-refs --all; git gc -q", "?? .env\n"),
    ("a split index", "git update-index --split-index", "?? .env\n"),
    ("sha256", "rm -rf .git; git init -q -b main --object-format=sha256; git add sums.py; git commit -qm first", None),
    (
        "a shallow clone",
        "git commit -q --allow-empty -m 2; git clone -q --depth 1 file://$PWD/.git ../s; rm -rf .git; mv ../s/.git .",
        None,
    ),
    (
        "a sparse checkout",
        "mkdir away; echo a > away/a; git add .; git commit -qm away; git sparse-checkout set in",
        "",
    ),
    ("commit graph", "git commit-graph write --reachable", None),
]


@pytest.mark.parametrize(("what", "made", "status"), SHAPES, ids=[row[0] for row in SHAPES])
def test_repositories_of_many_shapes(home: Home, what: str, made: str, status: str | None) -> None:
    """In each the agent commits one file, and what else the user has stays as it was."""
    on_host(home.project, made)
    before = git(home.project, "status", "--porcelain")
    with worked(
        home, "git status --porcelain > /tmp/status; echo fixed > sums.py; git commit -qm fixed sums.py"
    ) as review:
        decided = apply_all(review)
    assert len(decided.moved) == 1, (what, decided, review.commits.problems)
    assert subjects(home.project, "HEAD")[0] == "fixed"
    expected = before.replace("A  sums.py\n", "")
    sound(home.project, status=expected)
    assert status is None or before == status


def test_a_submodule(home: Home) -> None:
    """Its commits come back into its own repository, and before those of the project, which name them."""
    on_host(home.directory, "git init -q -b main lib; cd lib; echo l > l; git add l; git commit -qm lib")
    url = home.directory / "lib"
    on_host(
        home.project, f"git -c protocol.file.allow=always submodule --quiet add {url} 'my lib'; git commit -qm with"
    )
    script = """
        git status --porcelain; cd 'my lib' && git log --format=%s && echo more > l && git commit -qam more && cd .. &&
        git commit -qam bump && git status --porcelain
    """
    with worked(home, script) as review:
        assert [move.short for move in review.commits.moves] == ["my lib: main", "main"]
        told = [(commit.author.endswith(" 1 <ada@example.com>"), commit.subject) for commit in review.commits.commits]
        assert told == [(True, "more"), (True, "bump")]
        decided = apply_all(review)
    assert decided.moved == ("my lib: main", "main"), (decided, review.commits.problems)
    assert subjects(home.project, "main") == ["bump", "with", "first"]
    assert subjects(home.project / "my lib", "main") == ["more", "lib"]
    sound(home.project)
    sound(home.project / "my lib", status="")


def test_a_submodule_that_can_not_be_shown(home: Home) -> None:
    """It is told: git in the jar does not work with it."""
    on_host(home.directory, "git init -q -b main lib; cd lib; echo l > l; git add l; git commit -qm lib")
    on_host(home.project, "git -c protocol.file.allow=always submodule --quiet add ../lib lib; git commit -qm with")
    on_host(home.project, "git -C lib config core.repositoryformatversion 1; git -C lib config extensions.odd true")
    with worked(home, "true") as review:
        assert review.commits.notes == ["lib: its repository was not in the jar"]


def test_a_branch_that_is_deleted_in_the_jar(home: Home) -> None:
    """The host's stays, and that is told."""
    on_host(home.project, "git branch old")
    with worked(home, f"git branch -qD old; {COMMIT}") as review:
        assert review.commits.notes == ["refs/heads/old was deleted in the jar; yours stays"]
        assert apply_all(review).moved == ("main",)
    assert "refs/heads/old" in refs(home.project)


def test_a_directory_of_a_repository(home: Home) -> None:
    """The jar sees that directory only. Files beside it are neither deleted nor changed by a commit."""
    project = home.project / "part one"
    on_host(home.project, "mkdir 'part one'; echo a > 'part one/a'; git add 'part one'; git commit -qm part")
    repositories = jar_repositories(str(project), "/workspace/part one")
    mounts = [{"path": "/workspace/part one", "source": str(project), "rw": True, "cow": True}, *repositories.mounts]
    script = (
        "git status --porcelain; echo b > a; git -c user.name=x -c user.email=x commit -qam b; git status --porcelain"
    )
    fs = {"mounts": mounts, "workdir": "/workspace/part one"}
    with Sandbox({"fs": fs, "env": {"set": repositories.variables}}, one_shot=True) as jar:
        for path, data in repositories.files.items():
            jar.files.write(f"{repositories.mount}/{path}", data)
        result = jar.exec(["sh", "-c", script])
        assert (result.stdout, result.ok) == ("", True), result.stderr
        arrived = incoming(jar, repositories, "run", globs=(), jar_project="/workspace/part one")
    assert [move.paths for move in arrived.moves] == [{"a"}]
    assert arrived.move(held=("a",)).moved == ()
    assert arrived.move().moved == ("main",)
    sound(home.project, status=' M "part one/a"\n?? .env\n')
    assert git(home.project, "ls-tree", "--name-only", "main").split("\n")[:2] == ["part one", "sums.py"]


NO_REPOSITORY_SHOWN = [
    ("objects of another repository", "echo /elsewhere > .git/objects/info/alternates", "borrows objects"),
    ("another repository", "echo ../../other/.git > .git/commondir", "lies elsewhere"),
    ("a format of the future", "git config core.repositoryformatversion 1; git config extensions.x y", "extension x"),
]


@pytest.mark.parametrize(("what", "made", "said"), NO_REPOSITORY_SHOWN, ids=[row[0] for row in NO_REPOSITORY_SHOWN])
def test_what_the_jar_does_not_get(home: Home, what: str, made: str, said: str) -> None:
    """Its `.git` is empty then, and the reason is told."""
    on_host(home.project, made)
    ran = home.agent("ls -A .git; git log")
    assert ran.out == "", what
    assert ran.code == 128
    assert said in ran.err
