"""Repositories that are not plain: LFS pointers, partial clones, a merge in progress, clones inside of the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_runs import Home, git
from commit_runs import COMMIT, apply_all, on_host, sound, subjects, worked

from belljar.sandbox.repository.making import jar_repositories

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]

_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n"


def test_files_of_lfs_stay_pointers_in_commits(home: Home) -> None:
    """The work tree has the content, and the index a pointer. A commit of other files leaves that as it is."""
    clean = _POINTER.format("0" * 64).replace("\n", "\\n")
    on_host(
        home.project,
        f"""git config filter.lfs.clean "printf '{clean}'"; git config filter.lfs.smudge 'echo data'
        git config filter.lfs.required true; echo '*.bin filter=lfs -text' > .gitattributes; echo data > large.bin
        git add .; git reset -q .env; git commit -qm lfs""",
    )
    assert git(home.project, "show", "HEAD:large.bin") == _POINTER.format("0" * 64)
    with worked(home, f"cat large.bin; git status --short; {COMMIT}; git status --short") as review:
        (told,) = jar_repositories(str(home.project), str(home.project)).told
        assert told == "git in the jar takes 1 file as unchanged, for passing a filter such as LFS"
        (move,) = review.commits.moves
        assert move.paths == {"sums.py"}
        apply_all(review)
    assert git(home.project, "show", "HEAD:large.bin") == _POINTER.format("0" * 64)
    sound(home.project)


def test_a_partial_clone_fetches_nothing(home: Home) -> None:
    """Git in the jar says what is missing, and starts no fetch. What needs no missing object works, and comes back."""
    on_host(
        home.project, "for n in 1 2; do echo $n > $n.txt; git add $n.txt; git commit -qm $n; git rm -q $n.txt; done"
    )
    on_host(home.project, "git commit -qm last; git config uploadpack.allowFilter true")
    clone = home.directory / "clone"
    on_host(home.directory, f"git clone -q --filter=blob:none file://{home.project} clone")
    look = f"GIT_TRACE=$PWD/trace.txt git log -p > log.txt 2>&1; {COMMIT}"
    with worked(home, look, clone) as review:
        assert review.commits.problems == []
        apply_all(review)
    assert subjects(clone, "main") == ["fixed", "last", "2", "1", "first"]
    assert "fatal: " in (clone / "log.txt").read_text()
    assert "fetch" not in (clone / "trace.txt").read_text()
    (told,) = jar_repositories(str(clone), str(clone)).told
    assert told.startswith("a partial clone: git in the jar fetches nothing")
    hint = told.partition("`")[2].partition("`")[0]
    on_host(clone, hint)
    assert "fatal" not in git(clone, "-c", "protocol.allow=never", "log", "-p")


def test_a_merge_that_is_in_progress_goes_on(home: Home) -> None:
    """The agent resolves it, and its commit has both parents. The host's merge is over then."""
    on_host(
        home.project,
        """git checkout -q -b other; echo theirs > sums.py; git commit -qam theirs; git checkout -q main
        echo ours > sums.py; git commit -qam ours; git merge -q other || true""",
    )
    assert (home.project / ".git/MERGE_HEAD").exists()
    with worked(home, "git status | head -3; echo both > sums.py; git commit -qam merged") as review:
        apply_all(review)
    assert git(home.project, "log", "-1", "--format=%s %p").split()[0] == "merged"
    assert len(git(home.project, "log", "-1", "--format=%P").split()) == 2
    assert not (home.project / ".git/MERGE_HEAD").exists()
    sound(home.project)


def test_a_merge_that_the_agent_did_not_finish_stays(home: Home) -> None:
    """A commit without the other parent would undo what was merged: the branch stays, with the reason."""
    on_host(
        home.project,
        """git checkout -q -b other; echo theirs > other.py; git add other.py; git commit -qam theirs
        git checkout -q main; echo ours > own.py; git add own.py; git commit -qam ours
        git merge -q --no-commit other""",
    )
    with worked(home, "git merge --quit; echo x > new; git add new; git commit -qm alone") as review:
        decided = apply_all(review)
    ((name, why),) = decided.left
    assert name == "main"
    assert "a merge is in progress" in why
    assert subjects(home.project, "main") == ["ours", "first"]
    assert (home.project / ".git/MERGE_HEAD").exists()


def test_a_submodule_whose_repository_is_broken(home: Home) -> None:
    """Git works for the project itself, and the submodule is named."""
    on_host(home.directory, "git init -q -b main lib; cd lib; echo 1 > one; git add .; git commit -qm lib")
    on_host(home.project, f"git -c protocol.file.allow=always submodule --quiet add {home.directory}/lib lib")
    on_host(home.project, "git commit -qm with; echo '[extensions]\n\tunknown = 1' >> .git/modules/lib/config")
    on_host(home.project, "git config core.repositoryformatversion 0; chmod 755 .git")
    with worked(home, COMMIT) as review:
        assert any(note.startswith("lib: its repository was not in the jar") for note in review.commits.notes)
        apply_all(review)
    assert subjects(home.project, "main")[0] == "fixed"


def test_a_clone_inside_of_the_project(home: Home) -> None:
    """The jar works on a copy of its `.git`. Nothing of that comes back, by no word, and nothing of it runs."""
    inner = home.project / "vendor/lib"
    on_host(
        home.project, "git init -q -b main vendor/lib; cd vendor/lib; echo 1 > one; git add .; git commit -qm inner"
    )
    before = {str(path): path.read_bytes() for path in (inner / ".git").rglob("*") if path.is_file()}
    mark = home.directory / "ran"
    script = f"""cd vendor/lib; echo 'touch {mark}' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit
        git config core.fsmonitor 'touch {mark}'; echo 2 > one; git -c core.fsmonitor=false commit -qam two"""
    ran = home.agent(script, "--apply", "all", "--apply-protected")
    after = {str(path): path.read_bytes() for path in (inner / ".git").rglob("*") if path.is_file()}
    assert after == before, ran.err
    assert (inner / "one").read_text() == "2\n", ran.err
    assert not mark.exists()
    assert "vendor/lib/.git" in ran.err
    assert Path(inner, ".git/config").read_text().count("fsmonitor") == 0
