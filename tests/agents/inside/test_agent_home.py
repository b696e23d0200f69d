"""The next call remembers: an agent has a home for each project. Hostile code wrote it, and no credential is in it."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
from pathlib import Path

import pytest
from agent_runs import SECRET, Home, Ran, make_home
from model_endpoint import ModelEndpoint, say
from scripted_claude import Calls

from belljar.backends.contract import ChangedTree
from belljar.coding_agents import kept_home
from belljar.coding_agents.home_store import forget, place
from belljar.coding_agents.kept_home import KeptHome

# --- the real Claude Code ---


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.usefixtures("claude")
def test_a_conversation_goes_on_in_the_next_call(home: Home) -> None:
    """With --continue and --resume ID the second call's question holds the first one; after --reset none does."""
    with ModelEndpoint([say("It is plum.")]) as model:
        extra = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": model.url}

        def ask(*words: str) -> tuple[Ran, str]:
            ran = home.belljar("claude", *words, **extra)
            return ran, json.dumps(model.questions[-1].json["messages"])

        first, _ = ask("-p", "the word is plum", "--output-format", "json")
        session = json.loads(first.out)["session_id"]
        _, continued = ask("--continue", "-p", "which word?")
        _, resumed = ask("--resume", session, "-p", "once more?")
        reset = home.belljar("claude", "--reset")
        after, _ = ask("--resume", session, "-p", "which word?")
    assert first.code == 0, first.err
    assert "the word is plum" in continued
    assert "It is plum." in continued
    assert "the word is plum" in resumed
    assert (reset.code, reset.err) == (0, "belljar: its home is forgotten\n")
    assert "No conversation found" in after.err + after.out


# --- a program by that name ---


FILES = "find . -type f | sort | xargs -r grep -H ."


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_files_stay_as_they_were_left(calls: Calls) -> None:
    """Made, changed, removed, in a directory that was made anew, executable; and only those that are the agent's."""
    calls("mkdir -p a b; echo 1 > a/one; echo 2 > a/two; echo 3 > b/three; echo 4 > b/four; echo x > ~/other; date > d")
    calls("rm d a/one; rm -r b; mkdir b; echo 5 > b/five; echo more >> a/two; echo '#!/bin/sh' > run; chmod +x run")
    ran = calls(f"{FILES}; ls ~; test -x run && ln -s a/two link && echo runs")
    assert ran.out.splitlines() == ["./a/two:2", "./a/two:more", "./b/five:5", "./run:#!/bin/sh", "runs"]
    assert calls("cat link").out == "2\nmore\n"


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_what_hostile_code_leaves_is_harmless(calls: Calls) -> None:
    """No link that leads out, device, pipe, special mode, attribute or credential is on the host. A plain file is."""
    half = len(SECRET) // 2
    calls(
        "ln -s /etc/passwd absolute; ln -s ../../../../etc up; mkfifo pipe; echo x > setuid; chmod 6755 setuid; "
        "echo '{}' > .credentials.json; mkdir .ssh; echo key > .ssh/id_rsa; truncate -s 900000000 huge; "
        f"printf '%s%s' {SECRET[:half]} {SECRET[half:]} > pasted; mkdir closed; echo in > closed/file; chmod 0 closed; "
        "python3 -c \"import os; os.setxattr('setuid', 'user.x', b'1')\" 2>&1; echo fine > fine"
    )
    kept = Path(place(os.path.realpath(calls.home.project), "claude"))
    found = {path.name: path.lstat() for path in kept.rglob("*") if "home/tree/.claude/" in str(path)}
    assert set(found) == {"setuid", "fine", "closed", "file"}
    assert {stat.S_IMODE(status.st_mode) for status in found.values()} == {0o600, 0o700}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    setuid = next(path for path in kept.rglob("setuid") if "home/tree" in str(path))
    assert os.listxattr(setuid) == []
    assert not any(SECRET.encode() in path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert calls("ls -A").out.split() == ["closed", "fine", "setuid"]


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_two_at_once_both_keep_theirs(calls: Calls) -> None:
    """The one that ends later loses nothing of the other's, and of a file that both wrote the newer stays."""
    calls("echo 0 > settings; echo 0 > untouched; echo 0 > removed")
    with calls.waiting("echo first > settings; echo a > first; rm removed") as process:
        calls("echo second > settings; echo b > second; echo 1 > untouched")
        process.communicate("", timeout=60)
    ran = calls(FILES)
    assert ran.out.splitlines() == ["./first:a", "./second:b", "./settings:second", "./untouched:1"]


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.parametrize(
    "words", [("kill", "RUN"), ("quarantine", "RUN"), ("killswitch", "on", "--reason", "x")], ids=" ".join
)
def test_a_run_that_was_killed_leaves_the_home_of_before(
    calls: Calls, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes are not kept; those of a run that ended by itself are."""
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path / "state"))  # the kill switch is not for other tests
    calls("echo before > word")
    with calls.waiting("echo after > word; echo x > new") as process:
        (run,) = json.loads(calls.home.belljar("ps", "--json").out)
        done = calls.home.belljar(*(run["run"] if word == "RUN" else word for word in words))
        assert done.code == 0, done.err
        process.communicate(timeout=60)
    calls.home.belljar("killswitch", "off")
    assert calls(FILES).out == "./word:before\n"


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_a_run_that_the_user_interrupts_is_remembered(calls: Calls) -> None:
    """Ctrl-C ends the agent, not its conversation."""
    with calls.waiting("echo interrupted > word") as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert calls(FILES).out == "./word:interrupted\n"


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_each_project_has_a_home_of_its_own(calls: Calls, tmp_path: Path) -> None:
    """And --reset forgets that of one, before the task."""
    other = make_home(tmp_path / "other").project
    calls("echo mine > word")
    assert calls("ls", cwd=other).out == ""
    calls("echo other > word", cwd=other)
    assert calls("cat word").out == "mine\n"
    assert calls("ls", "--reset").out == ""
    assert calls("cat word", cwd=other).out == "other\n"
    assert calls.home.belljar("claude", "--reset", **calls.environment()).code == 0
    again = calls.home.belljar("claude", "--reset", **calls.environment())
    assert (again.code, again.err) == (0, "belljar: there was nothing to forget\n")


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_prune_forgets_homes_that_nobody_used(calls: Calls) -> None:
    """One that is in use stays."""
    calls("echo 1 > word")
    kept = place(os.path.realpath(calls.home.project), "claude")
    os.utime(os.path.join(kept, "about.json"), (0, 0))
    with calls.waiting("true") as process:
        os.utime(os.path.join(kept, "about.json"), (0, 0))
        assert json.loads(calls.home.belljar("prune", "--older", "30d", "--json").out)["homes"] == []
        process.communicate("", timeout=60)
    os.utime(os.path.join(kept, "about.json"), (0, 0))
    assert json.loads(calls.home.belljar("prune", "--older", "30d", "--json").out)["homes"] == [kept]
    assert not os.path.exists(kept)


# --- the directory itself ---


def _keep(kept: KeptHome, directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        changed = {".claude": ChangedTree(descriptor, layered=False)}
        return kept.keep(changed, {}, denied=lambda _name, _path: False, secrets=())
    finally:
        os.close(descriptor)


def test_the_newest_files_stay_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes and in number."""
    monkeypatch.setattr(kept_home, "MOST_BYTES", 100)
    monkeypatch.setattr(kept_home, "MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"file{number}").write_bytes(b"x" * (60 if number == 4 else 20))
        os.utime(tmp_path / f"file{number}", (number, number))
    kept = KeptHome("/project", "claude")
    kept.begin()
    kept.mounted()
    assert _keep(kept, tmp_path) == 2
    kept.close()
    assert sorted(os.listdir(kept.mounts[".claude"])) == ["file2", "file3", "file4"]
    assert forget("/project", "claude")


def test_a_process_that_dies_as_it_replaces_the_home_leaves_one(tmp_path: Path) -> None:
    """The home of before, at each of the steps."""
    (tmp_path / "word").write_text("before")
    kept = KeptHome("/project", "claude")
    kept.begin()
    kept.mounted()
    _keep(kept, tmp_path)
    kept.close()
    where = place("/project", "claude")
    os.makedirs(os.path.join(where, "new/tree/.claude"))  # half of the next one
    os.rename(os.path.join(where, "home"), os.path.join(where, "old-7"))
    again = KeptHome("/project", "claude")
    again.begin()
    assert (Path(again.mounts[".claude"]) / "word").read_text() == "before"
    again.close()
    assert forget("/project", "claude")
    assert not os.path.exists(where)


def test_where_it_cannot_be_written_the_home_of_before_stays(tmp_path: Path) -> None:
    """As on a full disk: the kernel refuses to write more than 100 bytes of a file."""
    before, after = tmp_path / "before", tmp_path / "after"
    for directory, length in ((before, 10), (after, 1000)):
        directory.mkdir()
        (directory / "word").write_text("x" * length)
    kept = KeptHome("/project", "claude")
    kept.begin()
    kept.mounted()
    _keep(kept, before)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            _keep(kept, after)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (Path(kept.mounts[".claude"]) / "word").read_text() == "x" * 10
    assert "new" not in os.listdir(place("/project", "claude"))
    _keep(kept, after)
    assert (Path(kept.mounts[".claude"]) / "word").read_text() == "x" * 1000
    kept.close()
    assert forget("/project", "claude")
