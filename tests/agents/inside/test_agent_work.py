"""The work of an agent's run is kept, shown, merged, applied as a whole, and never after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_runs import BELLJAR, Home, Ran, git
from scripted_model import Records

from belljar.coding_agents.inside import Wanted, prepare
from belljar.coding_agents.review import Review

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]

_TEXT = "".join(f"line {number}\n" for number in range(30))


def run_of(ran: Ran) -> str:
    return str(ran.json["kept"]["run"])


def started(home: Home, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*BELLJAR, *words],
        cwd=home.project,
        env=home.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


ENDS = [("kill", "--all"), ("killswitch", "on", "--reason", "test"), ("quarantine", "RUN")]


@pytest.mark.parametrize("words", ENDS, ids=[words[0] for words in ENDS])
def test_who_ends_a_run_keeps_its_work_and_applies_nothing(home: Home, words: tuple[str, ...]) -> None:
    """Whatever `--apply` says. The same run that ends by itself is applied: `test_all_or_nothing` shows that."""
    script = "echo half > half.txt; echo ready; exec sleep 600"
    with started(home, "agent", "--apply", "all", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        run = home.belljar("ps", "--json").json[0]["run"]
        done = home.belljar(*[run if word == "RUN" else word for word in words])
        assert done.code == 0, done.err
        _out, err = process.communicate(timeout=60)
    try:
        assert process.returncode == 137, err
        assert b"nothing was applied; the work is kept" in err
        assert not (home.project / "half.txt").exists()
        (kept,) = home.belljar("review", "--json").json
        assert (kept["run"], kept["state"]) == (run, "refused")
        if words[0] == "killswitch":
            refused = home.belljar("apply", run)
            assert refused.code == 125
            assert "the kill switch is on" in refused.err
            assert not (home.project / "half.txt").exists()
    finally:
        home.belljar("killswitch", "off")
    assert home.belljar("apply", run).code == 0
    assert (home.project / "half.txt").read_text() == "half\n"


def test_a_run_that_is_killed_applies_nothing_either(home: Home) -> None:
    """`belljar exec --apply`: the work is kept the same way."""
    words = ["exec", "--workspace", ".", "--apply", "--", "sh", "-c", "echo half > half.txt; echo ready; sleep 600"]
    with started(home, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert home.belljar("kill", "--all").code == 0
        _out, err = process.communicate(timeout=60)
    assert process.returncode == 137, err
    assert b"belljar: not applied: .: the run was killed: " in err
    assert not (home.project / "half.txt").exists()
    assert home.belljar("apply", home.kept(err.decode())).code == 0
    assert (home.project / "half.txt").read_text() == "half\n"


def test_a_belljar_that_is_killed_loses_the_run_and_nothing_else(home: Home) -> None:
    """SIGKILL can't be heard. The changes were in the jar's memory; the project and the repository are as before."""
    before = home.files()
    script = "echo half > half.txt; git add half.txt; git commit -qm half; echo ready; exec sleep 600"
    with started(home, "agent", "--apply", "all", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        assert process.stdout.read() == b"", "the jar ends with it, which closes its output"
    assert home.files() == before
    git(home.project, "fsck", "--strict")
    assert [one for one in home.belljar("review", "--json").json if one["project"] == str(home.project)] == []
    title = f"sh in {home.project}"
    runs = [run for run in home.belljar("ps", "--all", "--json").json if title in str(run)]
    assert [run["state"] for run in runs] == ["unfinished"]
    assert home.agent("echo again", "--apply", "all").code == 0


def test_both_changed_a_text(home: Home) -> None:
    """Other lines are merged; the same line is a conflict, which touches nothing and can be left out."""
    for name in ("merged.txt", "conflict.txt"):
        (home.project / name).write_text(_TEXT)
    script = "sed -i 's/line 3$/by the agent/' merged.txt conflict.txt; echo new > new.txt"
    run = run_of(home.agent(script, "--json"))
    (home.project / "merged.txt").write_text(_TEXT.replace("line 25", "by the user"))
    (home.project / "conflict.txt").write_text(_TEXT.replace("line 3\n", "by the user\n"))
    before = home.files()
    ran = home.belljar("apply", run)
    assert ran.code == 3
    assert ran.out == ""
    assert "belljar: conflict: conflict.txt: it was changed on the host meanwhile" in ran.err
    assert home.files() == before
    assert home.belljar("review", "--json").json[0]["state"] == "pending"
    hint = ran.err.partition("`belljar apply ")[2].partition("`")[0]
    ran = home.belljar("apply", *hint.split())
    assert ran.code == 3
    assert ran.out == "merged.txt (merged with your own changes)\nnew.txt\n"
    merged = _TEXT.replace("line 25", "by the user").replace("line 3\n", "by the agent\n")
    assert (home.project / "merged.txt").read_text() == merged
    assert (home.project / "conflict.txt").read_text() == before["conflict.txt"]


def test_edited_while_the_agent_runs(home: Home) -> None:
    """By a program that sets the clock of the file back: inode and time of change tell, not the time it names."""
    (home.project / "text.txt").write_text(_TEXT)
    script = "echo agent >> text.txt; echo x > other.txt; echo ready; read line"
    with started(home, "agent", "--apply", "all", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        old = (home.project / "text.txt").stat()
        (home.project / "text.txt").write_text(f"{_TEXT}user\n")
        os.utime(home.project / "text.txt", ns=(old.st_atime_ns, old.st_mtime_ns))
        _out, err = process.communicate(b"go\n", timeout=60)
    assert process.returncode == 3, err
    assert (home.project / "text.txt").read_text() == f"{_TEXT}user\n"
    assert not (home.project / "other.txt").exists(), "all of it, or nothing"
    run = home.kept(err.decode())
    assert "+agent\n" in home.belljar("review", run).out
    assert f"belljar apply {run} --skip-conflicts" in err.decode()


@pytest.mark.parametrize("state", ["staged and edited", "committed and edited", "untracked", "in no repository"])
def test_edited_while_the_agent_runs_and_not_in_git(home: Home, state: str) -> None:
    """belljar has what such a file was when the run began, so both changes are merged."""
    project = home.directory / "plain" if state == "in no repository" else home.project
    project.mkdir(exist_ok=True)
    text = project / "text.txt"
    if " and " in state:
        text.write_text("before\n")
        git(project, "add", "text.txt")
    if "committed" in state:
        git(project, "commit", "-qm", "text")
    text.write_text(_TEXT)
    script = "sed -i 's/line 3$/by the agent/' text.txt"
    agent = prepare(Wanted(("sh", "-c", script), project=str(project), environ=home.environment()))
    with agent.opened() as jar:
        assert jar.exec(agent.argv).ok
        with jar.changes(agent.project.place) as changes:
            assert changes.content_before("text.txt") == (_TEXT.encode(), 0o644)
        text.write_text(_TEXT.replace("line 25", "by the user"))
        with Review(jar, agent) as review:
            review.keep({})
            done = review.apply(None, protected=())
    assert (done.merged, done.conflicts) == (("text.txt",), ())
    assert text.read_text() == _TEXT.replace("line 25", "by the user").replace("line 3\n", "by the agent\n")


@pytest.mark.parametrize("where", ["the repository", "a directory of it", "a worktree"])
def test_edited_while_the_agent_runs_and_in_git(home: Home, where: str) -> None:
    """Git has what the file was when the run began, so both changes are merged."""
    project = home.project
    if where == "a worktree":
        project = home.directory / "trees/fix"
        git(home.project, "worktree", "add", "-q", "-b", "fix", str(project))
    elif where == "a directory of it":
        project = home.project / "part"
        project.mkdir()
    text = project / "text.txt"
    text.write_text(_TEXT)
    git(project, "add", "text.txt")
    script = "sed -i 's/line 3$/by the agent/' text.txt; echo ready; read line"
    words = ["agent", "--project", str(project), "--apply", "all", "--", "sh", "-c", script]
    with started(home, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        text.write_text(_TEXT.replace("line 25", "by the user"))
        git(project, "status")  # as an editor does
        _out, err = process.communicate(b"go\n", timeout=60)
    assert process.returncode == 0, err
    assert b"applied: text.txt (merged with your own changes)" in err
    assert text.read_text() == _TEXT.replace("line 25", "by the user").replace("line 3\n", "by the agent\n")


def test_all_or_nothing(home: Home) -> None:
    """A file that can't be written leaves all others as they were, and the exit code says so."""
    blocked = home.project / "blocked"
    blocked.mkdir()
    (blocked / "old.txt").write_text("old\n")
    before = home.files()
    full = f'mount -t tmpfs -o size=64k none {blocked} && echo old > {blocked}/old.txt && exec "$@"'
    script = "echo new > a.txt; head -c 300000 /dev/zero | tr '\\\\0' x > blocked/large; rm sums.py"
    run = run_of(home.agent(script, "--json"))
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", full, "sh", *BELLJAR, "apply", run]
    done = subprocess.run(words, cwd=home.project, env=home.environment(), capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    assert done.returncode == 3, done.stderr
    assert "nothing was applied: No space left on device" in done.stderr
    assert home.files() == before
    assert not list(home.project.rglob(".belljar*"))
    assert home.belljar("apply", run).code == 0
    assert (home.project / "a.txt").exists()
    assert not (home.project / "sums.py").exists()


def test_killed_while_it_applies(home: Home, state_directory: str) -> None:
    """The next `review` undoes what was done."""
    run = run_of(home.agent("echo new > a.txt; echo new > sums.py; mkdir d; echo x > d/x", "--json"))
    before = home.files()
    killed = f"""
import os, signal
real, count = os.rename, 0
def rename(*words, **options):
    global count
    count += "dst_dir_fd" in options
    if count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*words, **options)
os.rename = rename
from belljar.cli.main import main
main(["apply", {run!r}])
"""
    done = subprocess.run([sys.executable, "-c", killed], env=home.environment(), capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    assert home.files() != before, "it was in the middle"
    ran = home.belljar("review")
    assert "was interrupted, and has been undone" in ran.err
    assert home.files() == before
    assert os.listdir(Path(state_directory) / "journals") == ["lock"]
    assert home.belljar("apply", run).code == 0
    assert (home.project / "sums.py").read_text() == "new\n"


def test_what_is_kept(home: Home, records: Records) -> None:
    """Binary files, links, modes, deletions, names of any kind, holes: all of it comes back, later, and by parts."""
    gone = home.project / "gone"
    gone.mkdir()
    (gone / "one").write_text("1\n")
    (home.project / "tool").write_text("#!/bin/sh\n")
    script = r"""
        printf '\0\377' > binary; ln -s sums.py link; chmod +x tool; rm -r gone; printf 'x' > "$(printf 'a\nb \351')"
        truncate -s 900M hole; mkdir -p build; echo o > build/o; mkdir empty; : > nothing
    """
    run = run_of(home.agent(script, "--json"))
    listed = home.belljar("review", run, "--names").out
    assert "\\n" in listed
    assert "empty/" in listed
    patch = home.patch(run)
    ran = home.belljar("apply", run[-8:], "build", "link")
    assert (ran.code, ran.out) == (0, "build/o\nlink\n"), ran.err
    assert home.belljar("review", "--json").json[0]["state"] == "partly applied"
    git(home.project, "init", "-q", "-b", "main", "../copy")
    copy = home.directory / "copy"
    (copy / "gone").mkdir()
    (copy / "gone/one").write_text("1\n")
    (copy / "tool").write_text("#!/bin/sh\n")
    git(copy, "apply", patch)
    ran = home.belljar("apply", run)
    assert ran.code == 0, ran.err
    assert home.belljar("review", "--json").json[0]["state"] == "applied"
    for project in (home.project, copy):
        assert (project / "binary").read_bytes() == b"\0\xff"
        assert os.readlink(project / "link") == "sums.py"
        assert (project / "tool").stat().st_mode & 0o111
        assert not (project / "gone").exists()
        assert Path(os.fsdecode(os.fsencode(project) + b"/a\nb \xe9")).read_text() == "x"
        assert (project / "nothing").read_text() == ""
    assert (home.project / "empty").is_dir()
    assert (home.project / "hole").stat().st_size == 900 << 20
    assert (home.project / "hole").stat().st_blocks < 100
    told = [record for record in records("apply") if record["run"] == run]
    assert [len(record["paths"]) for record in told] == [2, told[1]["count"]]
    assert dict(told[0]["paths"])["build/o"] != ""


def test_two_at_once_and_discard(home: Home) -> None:
    """Both keep theirs; what is discarded is gone, and still named."""
    script = "echo $0 > mine.txt; echo ready; read line"
    both = [started(home, "agent", "--", "sh", "-c", script, name) for name in ("one", "two")]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    told = [process.communicate(b"\n", timeout=60)[1].decode() for process in both]
    first, second = map(home.kept, told)
    assert first != second
    assert {one["run"] for one in home.belljar("review", "--json").json} == {first, second}
    assert home.belljar("discard", first).out == f"{first}\n"
    assert "mine.txt" in home.belljar("review", first).out
    ran = home.belljar("apply", first)
    assert ran.code == 2
    assert "was discarded" in ran.err
    assert home.belljar("apply", second).code == 0
    assert (home.project / "mine.txt").read_text() == "two\n"


def test_discard_removes_commits(home: Home) -> None:
    """The refs that keep them in the repository, and those of no other run."""
    script = "echo fixed > sums.py && git commit -qam fixed"
    first, second = (home.kept(home.agent(script).err) for _ in range(2))
    assert home.belljar("discard", first).code == 0
    kept = git(home.project, "for-each-ref", "--format=%(refname)", "refs/belljar").split()
    assert kept == [f"refs/belljar/{second}/heads/main"]


def test_many_new_files_are_one_line(home: Home) -> None:
    """In the summary and in the review; protected files come first, and nothing hidden reaches a terminal."""
    script = r"""
        mkdir -p build/deep; i=0; while [ $i -lt 1200 ]; do : > build/deep/$i; i=$((i+1)); done; echo x > zzz
        echo evil > CLAUDE.md; printf '\033[31mred\n' > "$(printf 'a\033[2Kb')"
    """
    ran = home.agent(script)
    assert "  + build/ (1,200 files)\n" in ran.err
    assert "build/deep/1" not in ran.err
    run = home.kept(ran.err)
    lines = home.belljar("review", run, "--names").out.splitlines()
    names = [line for line in lines if line.startswith("  ")]
    assert names[0].startswith("  + CLAUDE.md: ")
    assert len(names) == 4
    assert "\x1b" not in home.belljar("review", run).out
    assert "\\x1b[31mred" in home.belljar("review", run).out
    assert {one["path"] for one in home.belljar("review", run, "--json").json["changes"]} >= {
        "CLAUDE.md",
        "build/deep/7",
    }


def test_old_work_is_pruned(home: Home, state_directory: str) -> None:
    """With the days of the log."""
    run = run_of(home.agent("echo x > x", "--json"))
    kept = Path(state_directory, "changes", run)
    assert home.belljar("prune", "--older", "30d").code == 0
    assert kept.exists()
    os.utime(kept, (1, 1))
    assert json.loads(home.belljar("prune", "--older", "30d", "--json").out)["files"] == [str(kept)]
    assert not kept.exists()


MISTAKES = [
    (("apply",), "which run?"),
    (("apply", "nothing"), "no work of a run 'nothing' is kept"),
    (("review", "nothing"), "no work of a run 'nothing' is kept"),
    (("review", "--patch"), "which run?"),
    (("discard", "nothing"), "no work of a run 'nothing' is kept"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_mistakes(home: Home, words: tuple[str, ...], said: str) -> None:
    """With what to type instead."""
    ran = home.belljar(*words)
    assert ran.code == 2
    assert said in ran.err
    assert "hint:" in ran.err
