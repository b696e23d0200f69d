"""What comes back from an agent, and by whose word. The agents here are shell scripts: no model is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_runs import BELLJAR, Home, git
from scripted_model import Records

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]

_CHANGES = """
    echo 'def add(a, b): return a + b' > sums.py; mkdir -p docs/empty; echo text > docs/new.md
    echo '#!/bin/sh' > .git/hooks/pre-push; mkdir -p .github/workflows; echo 'on: push' > .github/workflows/ci.yml
"""


def test_protected_files_need_a_word_of_their_own(home: Home) -> None:
    """`--apply all` brings back the rest, and no directory of theirs; with the other word they come, too."""
    ran = home.agent(_CHANGES, "--apply", "all")
    assert ran.code == 3, ran.err
    assert "belljar: hook pre-push: hooks stay in the jar\n" in ran.err
    assert (home.project / "docs/new.md").read_text() == "text\n"
    listed = [line for line in ran.err.splitlines() if line.startswith("  ")]
    assert listed == ["  + docs/empty/", "  + docs/new.md", "  ~ sums.py"], "no directory of what needs another word"
    assert (home.project / "docs/empty").is_dir()
    assert not (home.project / ".github").exists()
    assert not (home.project / ".git/hooks/pre-push").exists()
    ran = home.agent(_CHANGES, "--apply", "all", "--apply-protected")
    assert "not applied" not in ran.err
    assert ran.code == 0
    assert "kept" not in ran.err, "nothing is left to decide"
    assert (home.project / ".github/workflows/ci.yml").read_text() == "on: push\n"
    assert not (home.project / ".git/hooks/pre-push").exists(), "by no word"


def test_an_agent_without_a_network_is_told_what_to_type(home: Home) -> None:
    """The host that it asked for is not known, so the line has an example, which works."""
    ran = home.agent("getent hosts example.org || true")
    (line,) = [line for line in ran.err.splitlines() if line.startswith("belljar: to allow")]
    words = line.removeprefix("belljar: to allow").partition(",")[0].split()
    assert words == ["belljar", "allow", "pypi.org", "--for-project"]
    assert home.belljar(*words[1:]).code == 0
    assert home.belljar("allow", "--remove", *words[2:]).code == 0


def test_git_takes_the_patch_of_what_is_kept(home: Home) -> None:
    """Of what did not come back, binary files included. Protected files are in it only if that is said."""
    script = """
        echo 'def add(a, b): return a + b' > sums.py; mkdir -p sub; echo new > sub/new.txt; printf '\\0' > binary
        echo x > .git/hooks/pre-push; echo x > CLAUDE.md; ln -s sums.py link; chmod +x sub/new.txt
    """
    run = home.agent(script, "--json").json["kept"]["run"]
    assert "CLAUDE.md" not in Path(home.patch(run)).read_text()
    assert "CLAUDE.md" in Path(home.patch(run, "--protected")).read_text()
    git(home.project, "apply", home.patch(run))
    assert (home.project / "sums.py").read_text() == "def add(a, b): return a + b\n"
    assert (home.project / "sub/new.txt").read_text() == "new\n"
    assert os.access(home.project / "sub/new.txt", os.X_OK)
    assert (home.project / "binary").read_bytes() == b"\0"
    assert os.readlink(home.project / "link") == "sums.py"
    assert not (home.project / "CLAUDE.md").exists()


def test_live_changes_the_project_itself(home: Home) -> None:
    """Which includes what tools act on, so it has to be said."""
    ran = home.agent("echo now > sums.py", "--live")
    assert ran.code == 2
    assert "--live --apply-protected" in ran.err
    ran = home.agent("echo now > sums.py", "--live", "--apply-protected")
    assert ran.code == 0, ran.err
    assert (home.project / "sums.py").read_text() == "now\n"


def test_home_is_empty_and_there_is_no_network(home: Home) -> None:
    """An agent that nobody wrote a profile for."""
    ran = home.agent("ls -A ~; cat ~/.gitconfig; cat .env; curl -sS -m 3 https://example.org", "--json")
    result = ran.json
    assert result["stdout"].splitlines()[0] == ".gitconfig"
    assert "ada@example.com" in result["stdout"]
    assert "of-the-project" not in result["stdout"]
    assert result["reached"] == []
    assert result["exit_code"] != 0
    assert ran.code == result["exit_code"]


def test_a_commit_in_a_worktree_comes_back(home: Home, tmp_path: Path) -> None:
    """Its repository lies elsewhere: its branch moves, its settings and hooks do not change, by no word."""
    tree = tmp_path / "elsewhere/fix"
    git(home.project, "worktree", "add", "-q", "-b", "fix", str(tree))
    link = (tree / ".git").read_text()
    script = """
        echo fixed > sums.py && git commit -qam fixed && git log --format=%s && git branch --show-current
        hooks=$(git rev-parse --git-common-dir)/hooks; echo evil > $hooks/pre-commit; git config core.pager evil
    """
    ran = home.agent(script, "--apply", "all", "--apply-protected", cwd=tree)
    assert ran.code == 0, ran.err
    assert ran.out.split() == ["fixed", "first", "fix"]
    assert (tree / ".git").read_text() == link
    assert git(tree, "log", "--format=%s", "fix").split() == ["fixed", "first"]
    assert git(tree, "status", "--short") == ""
    assert git(home.project, "log", "--format=%s", "main").split() == ["first"]
    assert not (home.project / ".git/hooks/pre-commit").exists()
    assert "evil" not in (home.project / ".git/config").read_text()
    assert "belljar: hook pre-commit: hooks stay in the jar\n" in ran.err


def test_a_worktree_that_was_made_in_the_jar(home: Home) -> None:
    """Its branch comes back; the worktree itself stays in the jar."""
    script = """
        git worktree add -q -b feature .claude/worktrees/one && cd .claude/worktrees/one
        echo new > sums.py && git commit -qam feature
    """
    ran = home.agent(script, "--apply", "all", "--apply-protected")
    assert ran.code == 0, ran.err
    assert "belljar: moved: feature\n" in ran.err
    assert not (home.project / ".git/worktrees").exists()
    assert git(home.project, "log", "--format=%s", "feature").split() == ["feature", "first"]
    git(home.project, "fsck", "--strict")


def test_another_copy_is_not_the_project(home: Home) -> None:
    """A policy may show more directories copy on write; of those nothing comes back, and nobody is asked."""
    (home.directory / "data").mkdir()
    mounts = "[{path: /data, source: ./data, rw: true, cow: true}]"
    (home.directory / "two.yaml").write_text(f"version: 1\non_degraded: allow\nfs: {{mounts: {mounts}}}\n")
    policy = str(home.directory / "two.yaml")
    ran = home.agent("echo x > /data/x; echo y > y", "--policy", policy, "--live", "--apply-protected")
    assert ran.code == 0, ran.err
    assert "kept" not in ran.err
    assert [*(home.directory / "data").iterdir()] == []
    assert (home.project / "y").read_text() == "y\n"


@pytest.mark.parametrize("way", ["the repository", "a worktree of it", "one that was made up"])
def test_a_repository_is_believed_only_if_it_says_the_same(home: Home, tmp_path: Path, way: str) -> None:
    """A `.git` that came with someone's files must not open another repository of the user's."""
    stranger = tmp_path / "stranger"
    made_up = stranger / "worktrees/x"
    made_up.mkdir(parents=True)
    (made_up / "gitdir").write_text(f"{stranger}/.git\n")
    (made_up / "commondir").write_text(f"{home.project}/.git\n")
    (made_up / "HEAD").write_text("ref: refs/heads/main\n")
    git(home.project, "worktree", "add", "-q", "-b", "fix", str(tmp_path / "fix"))
    own = {"the repository": "", "a worktree of it": "/worktrees/fix"}
    named = f"{home.project}/.git{own[way]}" if way in own else made_up
    (stranger / ".git").write_text(f"gitdir: {named}\n")
    ran = home.agent("ls -d /repository-objects; git log", cwd=stranger)
    assert ran.code != 0
    assert ran.out == "", "nothing of the repository is there"


def test_home_itself_is_no_project(home: Home) -> None:
    """An agent that starts there, or above it, would see everything."""
    for directory in (home.directory, home.directory.parent, Path("/")):
        ran = home.agent("true", cwd=directory)
        assert ran.code == 2
        assert "is no project" in ran.err


def test_no_policy_of_the_project_is_read(home: Home) -> None:
    """Whoever wrote the project would say what its agent may do."""
    (home.project / "open.yaml").write_text("version: 1\nnet: {enabled: true, allowlist: ['*']}\n")
    (home.directory / "outside.yaml").write_text("version: 1\nenv: {set: {FROM: outside}}\n")
    for option in ("--policy", "--profile"):
        ran = home.agent("true", option, "./open.yaml")
        assert ran.code == 125, ran.err
        assert "open.yaml" in ran.err
        ran = home.agent("echo $FROM", option, str(home.directory / "outside.yaml"))
        assert (ran.code, ran.out) == (0, "outside\n"), ran.err


def test_old_work_goes(home: Home, state_directory: str) -> None:
    """The last hundred stay; what an older version kept counts."""
    old = Path(state_directory) / "changes"
    old.mkdir()
    for number in range(120):
        (old / f"{number:012x}-00000000.diff").write_text("old")
    run = home.agent("echo x > new", "--json").json["kept"]["run"]
    assert len(list(old.iterdir())) == 100
    assert (old / run / "after/new").read_text() == "x\n"


STOPS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")]


@pytest.mark.parametrize(("number", "code", "said"), STOPS, ids=[said for _number, _code, said in STOPS])
def test_whoever_stops_the_agent_keeps_its_work(
    home: Home, number: signal.Signals, code: int, said: str, records: Records
) -> None:
    """The project is as it was; what was done can be read, and its end is in the log."""
    words = ["agent", "--", "sh", "-c", "echo half > half.txt; echo ready; exec sleep 600"]
    before = home.files()
    with started(home, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, number)
        _out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert said in err.decode()
    assert home.files() == before
    run = home.kept(err.decode())
    assert "+half\n" in home.belljar("review", run).out
    assert home.belljar("apply", run).out == "half.txt\n"
    assert (home.project / "half.txt").read_text() == "half\n"
    assert [record["outcome"] for record in records("finished")] == ["killed"]


def test_a_pipe_that_nobody_reads_keeps_the_work(home: Home) -> None:
    """As in `belljar agent -- … | head -1`."""
    words = ["agent", "--", "sh", "-c", "echo half > half.txt; echo ready; while echo more; do sleep 0.02; done"]
    with started(home, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read().decode()
        assert process.wait(60) == 141
    assert "+half\n" in home.belljar("review", home.kept(err)).out


def test_what_nohup_ignores_stays_ignored(home: Home) -> None:
    """A hangup is nothing to an agent that was started so."""
    words = ["agent", "--", "sh", "-c", "echo ready; sleep 0.5; echo done"]
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with started(home, *words, **ignored) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGHUP)
        out, _err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"done\n")


def started(home: Home, *words: str, **more: Any) -> subprocess.Popen[bytes]:
    """`belljar WORDS…` in the project, while it runs."""
    return subprocess.Popen(
        [*BELLJAR, *words],
        cwd=home.project,
        env=home.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


MISTAKES = [
    # words, what is said
    (("agent",), "which agent?"),
    (("agent", "--apply", "some", "--", "true"), "wanted one of ask, all, none"),
    (("agent", "--apply-protected", "--", "true"), "--apply-protected needs --apply all"),
    (("agent", "--profile", "cloude", "--", "true"), "there is no profile 'cloude'"),
    (("agent", "--project", "/does/not/exist", "--", "true"), "/does/not/exist: there is no such directory"),
    (("agent", "--project", "sums.py", "--", "true"), "sums.py: it is no directory"),
    (("agent", "--", "no-such-agent"), "no-such-agent is not installed on this host"),
    (("claude", "-p", "x"), "no key for claude"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_mistakes_are_told_before_anything_starts(home: Home, words: tuple[str, ...], said: str) -> None:
    """With what to type instead."""
    ran = home.belljar(*words)
    assert ran.code in (2, 125)
    assert said in ran.err
    assert "hint:" in ran.err or said.startswith("no-such")
    assert "Traceback" not in ran.err


def test_agents_of_python_and_node_run(home: Home, tmp_path: Path) -> None:
    """One in a virtual environment, called by a link to it; one in a package of npm's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    aider = tmp_path / "venv/bin/my-aider"
    aider.write_text(f"#!{tmp_path}/venv/bin/python\nimport sys\nprint(sys.prefix, *sys.argv[1:])\n")
    aider.chmod(0o755)
    package = home.directory / "lib/node_modules/my-gemini"
    package.mkdir(parents=True)
    (package / "data.json").write_text('{"said": "from beside it"}')
    (package / "index.js").write_text(
        "#!/usr/bin/env node\nconsole.log(require('./data.json').said, process.argv[2])\n"
    )
    (package / "index.js").chmod(0o755)
    (tmp_path / "my-aider").symlink_to(aider)
    (tmp_path / "my-gemini").symlink_to(package / "index.js")
    ran = home.belljar("agent", "--", str(tmp_path / "my-aider"), "--yes")
    assert (ran.code, ran.out) == (0, f"{tmp_path}/venv --yes\n"), ran.err
    ran = home.belljar("agent", "--", str(tmp_path / "my-gemini"), "--yolo")
    assert (ran.code, ran.out) == (0, "from beside it --yolo\n"), ran.err


def test_what_git_ignores_needs_a_word_of_its_own(home: Home) -> None:
    """`git diff` would not show it. The project's own .gitignore decides."""
    (home.project / ".gitignore").write_text("build/\n")
    script = "echo '!build/' > .gitignore; mkdir -p build; echo x > build/tool; echo y > build/two; echo z > plain.txt"
    ran = home.agent(script, "--apply", "all")
    assert "belljar: ignored    build/ (2 files)\n" in ran.err
    assert "belljar: not applied: build/ (2 files): git ignores it" in ran.err
    assert (home.project / "plain.txt").exists()
    assert not (home.project / "build").exists()
    (home.project / ".gitignore").write_text("build/\n")
    told = home.agent(script, "--json").json
    assert {change["path"] for change in told["changes"] if change["ignored"]} >= {"build/tool", "build/two"}
    run = told["kept"]["run"]
    assert "b/build/tool" not in Path(home.patch(run)).read_text()
    assert "b/build/tool" in Path(home.patch(run, "--ignored")).read_text()
    ran = home.agent(script, "--apply", "all", "--apply-ignored")
    assert "not applied" not in ran.err
    assert (home.project / "build/tool").read_text() == "x\n"


def test_an_agents_diff_in_a_file(home: Home) -> None:
    """What the agent prints is not in it."""
    ran = home.agent("echo '+forged'; echo new > new.txt", "--diff-file", "../changes.diff")
    assert ran.code == 0, ran.err
    text = (home.project.parent / "changes.diff").read_text()
    assert "+new\n" in text
    assert "forged" not in text
