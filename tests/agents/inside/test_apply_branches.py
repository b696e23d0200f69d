"""Commits that were not wanted at the end of a run come in later: `belljar apply RUN --branches`, by the same rules."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from agent_runs import BELLJAR, Home, Ran, git
from commit_runs import COMMIT, kept, on_host, sound, subjects, worked

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]


def _run(home: Home, script: str) -> str:
    """Run an agent of which nothing is applied."""
    with worked(home, script) as review:
        assert review.work is not None
        return review.work.run


def _apply(home: Home, run: str, *options: str) -> Ran:
    return home.belljar("apply", run, *options)


def test_branches_move_with_the_option_and_stay_without(home: Home) -> None:
    """The current branch with its index, a new one and a tag. The refs of the run are gone then, and again is fine."""
    run = _run(home, f"{COMMIT}; git branch feature; git tag v1; echo more >> sums.py; git commit -qam more")
    assert "commits  refs/heads/main" in home.belljar("review", run, "--names").out
    ran = _apply(home, run)
    assert (ran.code, ran.out) == (0, "sums.py\n")
    assert f"hint: `belljar apply {run} --branches` moves your branches" in ran.err
    assert subjects(home.project, "main") == ["first"]
    ran = _apply(home, run, "--branches")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == ["sums.py", "moved: feature", "moved: tags/v1", "moved: main"]
    assert subjects(home.project, "main") == ["more", "fixed", "first"]
    assert subjects(home.project, "feature") == subjects(home.project, "v1") == ["fixed", "first"]
    assert kept(home.project) == []
    sound(home.project)
    again = _apply(home, run, "--branches")
    assert (again.code, again.out, again.err) == (0, "sums.py\n", "")


@pytest.mark.parametrize(
    ("script", "meanwhile", "options", "why"),
    [
        (COMMIT, "git commit -q --allow-empty -m mine", [], "it was moved on the host meanwhile; `git merge "),
        ("mkdir .claude; echo x > .claude/settings.json; git add .; git commit -qm a", "", [], ".claude/settings.json"),
        ("echo x > .env.local; git add -f .env.local; git commit -qm a", "", ["--apply-protected"], ".env.local"),
        (COMMIT, "echo mine > sums.py", [], "the files were not applied"),
        ("git commit -q --amend -m rewritten --allow-empty", "", [], "its history was rewritten"),
    ],
    ids=["moved meanwhile", "protected", "denied", "conflict", "rewritten"],
)
def test_a_branch_stays_for_the_reasons_of_a_run(
    home: Home, script: str, meanwhile: str, options: list[str], why: str
) -> None:
    """The exit code says so, and nothing of the user's moved."""
    run = _run(home, script)
    on_host(home.project, meanwhile)
    before = subjects(home.project, "main")
    ran = _apply(home, run, "--branches", *options)
    assert ran.code == 3
    assert "belljar: not moved: main: " in ran.err
    assert why in ran.err
    assert subjects(home.project, "main") == before
    git(home.project, "fsck", "--strict")


def test_protected_files_in_commits_come_with_their_word(home: Home) -> None:
    """`--apply-protected` is a yes to the files, and to the commits that hold them."""
    run = _run(home, "mkdir .claude; echo x > .claude/settings.json; git add .; git commit -qm settings")
    ran = _apply(home, run, "--branches", "--apply-protected")
    assert ran.code == 0, ran.err
    assert subjects(home.project, "main") == ["settings", "first"]
    sound(home.project)


@pytest.mark.parametrize("when", ["before the end", "later"])
def test_another_branch_is_checked_out_by_now(home: Home, when: str) -> None:
    """The branch of the run moves. HEAD, the index and the branch of the user's stay, at the same commit or not."""
    if when == "later":
        run = _run(home, COMMIT)
        git(home.project, "checkout", "-q", "-b", "mine")
        assert _apply(home, run, "--branches").code == 0
    else:
        with worked(home, COMMIT) as review:
            git(home.project, "checkout", "-q", "-b", "mine")
            assert review.move(review.apply(None, protected=()).applied).moved == ("main",)
    assert git(home.project, "branch", "--show-current") == "mine\n"
    assert subjects(home.project, "mine") == ["first"]
    assert subjects(home.project, "main") == ["fixed", "first"]
    sound(home.project, status=" M sums.py\n?? .env\n")


@pytest.mark.parametrize(("answer", "moved"), [("y", ["fixed", "first"]), ("n", ["first"])])
def test_a_person_is_asked_about_each_branch(home: Home, answer: str, moved: list[str]) -> None:
    """At a terminal, with what the move is."""
    run = _run(home, COMMIT)
    controller, terminal = pty.openpty()
    words = [*BELLJAR, "apply", run]
    with subprocess.Popen(
        words, cwd=home.project, env=home.environment(), stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        os.write(controller, f"{answer}\n".encode())
        shown = _read_all(controller)
    assert process.returncode == 0, shown
    assert "belljar: move main? [y/N]" in shown
    assert subjects(home.project, "main") == moved
    assert Path(home.project, "sums.py").read_text() == "fixed\n"


def _read_all(controller: int) -> str:
    found = b""
    try:
        while piece := os.read(controller, 4096):
            found += piece
    except OSError:
        pass  # the other side is closed
    os.close(controller)
    return found.decode(errors="replace")
