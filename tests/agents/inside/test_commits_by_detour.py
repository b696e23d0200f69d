"""Files that were refused, and come with commits in a roundabout way: no branch of the user's moves to them."""

from __future__ import annotations

import pytest
from agent_runs import Home, git
from commit_runs import COMMIT, kept, on_host, refs, worked

from belljar.coding_agents.review import Review
from belljar.sandbox.repository.incoming import Moved

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]

_EVIL = "echo 'use evil' > .envrc && git add -f .envrc && git commit -qm evil && git rm -q --cached .envrc && rm .envrc"


def _all_that_may(review: Review) -> Moved:
    return review.move(review.apply(None, protected=()).applied)


AGAIN = [
    ("the same commit", "git reset -q --soft EVIL"),
    ("a merge of it", "git merge -q -s ours --no-commit EVIL; git read-tree EVIL; git commit -qm merged"),
    ("its child", "git update-ref refs/heads/main $(git commit-tree -p EVIL -m child HEAD^{tree})"),
]


@pytest.mark.parametrize(("what", "script"), AGAIN, ids=[row[0] for row in AGAIN])
def test_a_commit_that_an_earlier_run_left(home: Home, what: str, script: str) -> None:
    """What is in `refs/belljar` was never agreed to, so that it is as new as on the first day."""
    before = git(home.project, "rev-parse", "main")
    with worked(home, _EVIL) as review:
        assert _all_that_may(review).left
    [name] = kept(home.project)
    evil = git(home.project, "rev-parse", name).strip()
    with worked(home, script.replace("EVIL", evil)) as review:
        moved = _all_that_may(review)
    assert moved.moved == ()
    assert ".envrc" in moved.left[0][1]
    assert git(home.project, "rev-parse", "main") == before


def test_a_branch_of_the_users_with_a_file_that_is_refused(home: Home) -> None:
    """The commits are the user's own. That their branch gets the file is not."""
    on_host(
        home.project,
        "git checkout -qb other; echo 'use x' > .envrc; git add -f .envrc; git commit -qm other; git checkout -q main",
    )
    before = git(home.project, "rev-parse", "main")
    with worked(home, "git merge -q --ff-only other && rm .envrc") as review:
        moved = _all_that_may(review)
    assert moved.moved == ()
    assert ".envrc" in moved.left[0][1]
    assert git(home.project, "rev-parse", "main") == before


def test_two_refs_that_look_alike(home: Home) -> None:
    """A yes to the branch `tags/v1` is none to the tag `v1`."""
    on_host(home.project, "git tag v1")
    before = git(home.project, "rev-parse", "v1")
    with worked(
        home,
        f"{COMMIT}; git branch tags/v1; git update-ref refs/tags/v1 HEAD; git update-ref refs/heads/heads/tags/v1 HEAD",
    ) as review:
        names = {move.name: move.short for move in review.commits.moves}
        assert len(set(names.values())) == len(names)
        yes = [names["refs/heads/tags/v1"]]
        review.move(review.apply(None, protected=()).applied, yes, although=yes)
    assert git(home.project, "rev-parse", "refs/tags/v1") == before
    assert "refs/heads/tags/v1" in refs(home.project)


def test_a_commit_outside_of_the_project(home: Home) -> None:
    """The project is a directory of a repository. The agent never had the files beside it."""
    on_host(
        home.project, "mkdir part other; echo a > part/a; echo a > other/a; git add part other; git commit -qm parts"
    )
    before = git(home.project, "rev-parse", "main")
    script = """
        blob=$(echo evil | git hash-object -w --stdin)
        git update-index --cacheinfo 100644,$blob,other/a
        git commit -qm beside"""
    with worked(home, script, home.project / "part") as review:
        moved = _all_that_may(review)
    assert moved.moved == ()
    assert "other/a" in moved.left[0][1]
    assert git(home.project, "rev-parse", "main") == before


def test_a_submodule_at_a_commit_that_stayed(home: Home) -> None:
    """`git submodule update` would check out what was refused."""
    url = home.directory / "lib"
    url.mkdir()
    on_host(url, "git init -qb main; echo 1 > lib.py; git add .; git commit -qm lib")
    on_host(home.project, f"git -c protocol.file.allow=always submodule --quiet add {url} lib; git commit -qm with")
    before = git(home.project, "rev-parse", "main")
    with worked(home, f"cd lib; {_EVIL}; cd ..; git commit -qam bump") as review:
        moved = _all_that_may(review)
    assert git(home.project, "rev-parse", "main") == before, moved
    assert moved.moved == ()


def test_a_submodule_without_a_branch(home: Home) -> None:
    """As `git submodule update` leaves it. Its commit moves with what it has checked out, and the project follows."""
    url = home.directory / "lib"
    url.mkdir()
    on_host(url, "git init -qb main; echo 1 > lib.py; git add .; git commit -qm lib")
    on_host(home.project, f"git -c protocol.file.allow=always submodule --quiet add {url} lib; git commit -qm with")
    on_host(home.project / "lib", "git checkout -q --detach")
    script = "cd lib; echo 2 > lib.py; git commit -qam more; cd ..; git commit -qam bump"
    with worked(home, script) as review:
        moved = _all_that_may(review)
    assert moved.moved == ("lib: HEAD", "main"), moved
    assert git(home.project, "rev-parse", "main:lib") == git(home.project / "lib", "rev-parse", "HEAD")


def test_new_names_that_hide_others(home: Home) -> None:
    """`git merge v1` would take the tag. They need a yes of their own."""
    on_host(
        home.project,
        "git branch topic; git update-ref refs/remotes/origin/main main; git update-ref refs/remotes/up/x main",
    )
    new = ["refs/tags/topic", "refs/heads/origin/main", "refs/heads/up", "refs/heads/-f", "refs/tags/HEAD"]
    script = "".join(f"git update-ref {name} HEAD; " for name in [*new, "refs/heads/plain"])
    with worked(home, script) as review:
        moved = _all_that_may(review)
    assert moved.moved == ("plain",)
    assert len(moved.left) == len(new)
    assert not set(new) & set(refs(home.project))


def test_commands_to_type_are_quoted(home: Home) -> None:
    """A name of a branch may hold a command for the shell, and people copy what they are told to type."""
    name = "x$(touch${IFS}pwned);y"
    with worked(home, f"{COMMIT}; git branch '{name}'") as review:
        told = review.commits.lines()
    assert any(f"heads/{name}'`" in line and "'refs/belljar/" in line for line in told)


def test_a_diff_larger_than_it_looks(home: Home) -> None:
    """In the repository it takes a few kilobytes. The host would need memory for all of its lines."""
    script = "yes line | head -c 30000000 > big; for n in 1 2 3; do yes $n | head -c 900000 > $n; done"
    script += "; git add .; git commit -qm big"
    with worked(home, script) as review:
        [move] = review.commits.moves
        shown = review.commits.diff(move)
    assert "Binary files /dev/null and b/big differ" in shown
    assert "+3\n" in shown
    assert len(shown) < 8 << 20


def _deep(levels: int) -> str:
    """A commit with a path that is so many directories deep."""
    return f"""
        tree=$(printf '100644 blob %s\\tfile\\n' $(git hash-object -w sums.py) | git mktree)
        for level in $(seq {levels}); do tree=$(printf '040000 tree %s\\ta\\n' $tree | git mktree); done
        git update-ref refs/heads/main $(git commit-tree -p HEAD -m deep $tree)"""


def test_a_path_deeper_than_any_directory(home: Home) -> None:
    """It is refused, and the files are kept."""
    before = git(home.project, "rev-parse", "main")
    with worked(home, f"echo work > work; {_deep(1200)}") as review:
        assert review.commits.moves == []
        assert "directories deep" in review.commits.problems[0]
        assert review.work is not None
    assert git(home.project, "rev-parse", "main") == before


def test_many_refs_to_many_files(home: Home) -> None:
    """What is known of a commit is there once, however many refs name it."""
    script = """
        mkdir many; cd many; seq 2000 | xargs touch; cd ..; git add .; git commit -qm many
        id=$(git rev-parse HEAD); for n in $(seq 300); do echo $id refs/heads/$n; done > .git/packed-refs"""
    with worked(home, script) as review:
        moves = review.commits.moves
        assert len(moves) == 301
        assert len({id(move.paths) for move in moves}) == 1
        assert len(moves[0].paths) == 2000
