"""Repositories that an agent made in bad faith: what the host's git has afterwards is what it had before."""

from __future__ import annotations

import subprocess

import pytest
from agent_runs import Home, git
from commit_runs import COMMIT, apply_all, kept, on_host, refs, sound, subjects, worked

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]

_LYING_INDEX = r"""
import glob, hashlib, os, struct, subprocess
def git(*words, **more):
    return subprocess.run(["git", *words], capture_output=True, check=True, **more).stdout
first = git("rev-parse", "HEAD").decode().strip()
evil = git("commit-tree", "-m", "evil", git("mktree", input=b"").decode().strip()).decode().strip()
name = git("pack-objects", ".git/objects/pack/pack", input=f"{evil}\n".encode()).decode().strip()
index = f".git/objects/pack/pack-{name}.idx"
data = open(index, "rb").read()
assert data[:8] == b"\xfftOc\0\0\0\2" and struct.unpack(">I", data[8 + 1020 : 8 + 1024]) == (1,)
told = bytes.fromhex(first)  # the index says that the pack holds the host's own commit
fanout = b"".join(struct.pack(">I", int(byte >= told[0])) for byte in range(256))
body = data[:8] + fanout + told + data[8 + 1024 + 20 : -20]
os.chmod(index, 0o600)
open(index, "wb").write(body + hashlib.sha1(body).digest())
os.unlink(f".git/objects/{evil[:2]}/{evil[2:]}")
print(git("log", "-1", "--format=%s", first).decode())
"""


def test_a_pack_whose_index_lies(home: Home) -> None:
    """In the jar, history is another one behind the same ids. On the host it is what it was."""
    ids = git(home.project, "rev-list", "--objects", "--all")
    script = f"{COMMIT}; cat > /tmp/lie.py <<'END'\n{_LYING_INDEX}\nEND\n"
    script = script.replace("HEAD", "HEAD~1") + "python3 /tmp/lie.py > lied"
    with worked(home, script) as review:
        assert "+evil\n" in review.diff(["lied"]), "the attack works in the jar"
        apply_all(review)
    assert subjects(home.project, "main") == ["fixed", "first"]
    assert set(ids.splitlines()) <= set(git(home.project, "rev-list", "--objects", "--all").splitlines())
    sound(home.project, status="?? .env\n?? lied\n")


_LYING_LOOSE = """
import os, subprocess, zlib
blob = subprocess.run(["git", "rev-parse", "HEAD:sums.py"], capture_output=True, text=True, check=True).stdout.strip()
path = f".git/objects/{blob[:2]}/{blob[2:]}"
os.chmod(path, 0o600)
open(path, "wb").write(zlib.compress(b"blob 5\\0evil\\n"))
"""


def _bomb(levels: int) -> str:
    """A tree of trees that is tiny in objects, and has 10^levels files."""
    one = 'for name in 0 1 2 3 4 5 6 7 8 9; do printf "$mode $tree\\t$name\\n"; done | git mktree'
    return f"""
        tree=$(git hash-object -w --stdin </dev/null); mode="100644 blob"
        for level in $(seq {levels}); do tree=$({one}); mode="040000 tree"; done
        git update-ref refs/heads/main $(git commit-tree -p HEAD -m bomb $tree)"""


_FOLDED = "printf '100644 blob %s\\t.GiT\\n' $(git hash-object -w sums.py) | git mktree"
_MANY = "id=$(git rev-parse HEAD); for n in $(seq 10001); do echo $id refs/heads/$n; done > .git/packed-refs"
_BLOB = "git rev-parse HEAD:sums.py > .git/refs/heads/b"
_INSIDE = f"{COMMIT}; git branch x; echo $(git rev-parse HEAD) refs/heads/x/y > .git/packed-refs"
REFUSED = [
    # what, how, what is said
    ("a loose object under another's name", f"{COMMIT}; cat > /tmp/x <<'E'\n{_LYING_LOOSE}\nE\npython3 /tmp/x", "git"),
    ("a missing object", f"{COMMIT}; rm -rf .git/objects/$(git rev-parse HEAD:sums.py | cut -c1-2)", "git refuses"),
    ("a tree of 10^10 files", _bomb(10), "they change more paths than the host looks at"),
    ("too many refs", _MANY, "more than 10000 refs"),
    ("a tree with .git in it", f"git update-ref refs/heads/main $(git commit-tree -m x $({_FOLDED}))", "git refuses"),
    ("a branch that is a blob", _BLOB, "names no commit"),
    ("one name inside of another", _INSIDE, "cannot"),
]


@pytest.mark.parametrize(("what", "script", "said"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_is_refused_changes_nothing(home: Home, what: str, script: str, said: str) -> None:
    """Not one object and no ref; the reason is told, and what the jar made is kept."""
    before = refs(home.project)
    with worked(home, script) as review:
        assert review.commits.moves == [], what
        assert len(review.commits.problems) == 1
        assert said in review.commits.problems[0]
        assert "not brought back" in review.commits.problems[0]
    assert refs(home.project) == before
    sound(home.project)


LEFT_OUT = [
    # refs that are ignored, and a commit beside them that comes back
    "ln -s /etc/passwd .git/refs/heads/link; ln -s /etc .git/refs/heads/directory",
    "mkfifo .git/refs/heads/pipe; echo 'ref: refs/heads/main' > .git/refs/heads/symbolic",
    "echo $(git rev-parse HEAD) refs/heads/../../config >> .git/packed-refs",
    "printf '%s refs/heads/a\\033[31m b\\n' $(git rev-parse HEAD) >> .git/packed-refs",
    "echo $(git rev-parse HEAD) refs/heads/x.lock >> .git/packed-refs; echo nonsense > .git/refs/heads/y",
    "git replace HEAD~1 HEAD; git update-ref refs/remotes/origin/main HEAD; git update-ref refs/other/x HEAD",
    "echo /etc > .git/objects/info/alternates; echo /repository-objects/0 >> .git/objects/info/alternates",
    "git config core.worktree /; git config include.path /etc/passwd; echo '[alias' >> .git/config",
    "rm -f .git/index .git/config; echo x > .git/commondir",
]


@pytest.mark.parametrize("script", LEFT_OUT)
def test_hostile_names_stay_in_the_jar(home: Home, script: str) -> None:
    """Only branches, tags and notes with names that git allows come back."""
    with worked(home, f"{COMMIT}; {script}") as review:
        decided = apply_all(review)
        assert all(problem.isprintable() for problem in review.commits.problems)
    assert decided.moved == ("main",), (decided, review.commits.problems)
    assert refs(home.project).keys() == {"refs/heads/main"}
    assert subjects(home.project, "main") == ["fixed", "first"]
    sound(home.project)


def test_a_thousand_branches(home: Home) -> None:
    """They are no attack, and come in one transaction."""
    many = "for n in $(seq 1000); do echo create refs/heads/b$n HEAD; done | git update-ref --stdin"
    with worked(home, f"{COMMIT}; {many}") as review:
        decided = apply_all(review)
    assert len(decided.moved) == 1001
    assert len(refs(home.project)) == 1001
    sound(home.project)


def test_the_hosts_hooks_and_settings_run_nothing(home: Home) -> None:
    """Hooks, fsmonitor, filters and includes of the host's own repository: commits come back around them."""
    ran = home.directory / "ran"
    for name in ("reference-transaction", "post-index-change", "post-commit", "update", "post-checkout"):
        hook = home.project / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        hook.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "filter.x.clean",
        "filter.x.smudge",
        "diff.external",
        "core.alternateRefsCommand",
    ):
        git(home.project, "config", key, f"echo {key} >> {ran}; false")
    (home.directory / "fetch").write_text(f"#!/bin/sh\necho fetched >> {ran}\n")
    (home.directory / "fetch").chmod(0o755)
    on_host(
        home.project,
        f"""
        git config remote.far.url "ext::{home.directory}/fetch"; git config remote.far.promisor true
        git config protocol.ext.allow always; git config core.repositoryformatversion 1
        git config extensions.partialclone far; blob=$(git rev-parse HEAD:sums.py)
        rm -f .git/objects/$(echo $blob | cut -c1-2)/$(echo $blob | cut -c3-)""",
    )
    control = subprocess.run(["git", "show", "HEAD:sums.py"], cwd=home.project, capture_output=True, check=False)
    assert control.returncode != 0
    assert ran.exists(), "the same settings run a command for git as users call it"
    ran.unlink()
    (home.project / ".gitattributes").write_text("*.py filter=x\n")
    with worked(home, COMMIT) as review:
        review.commits.diff(review.commits.moves[0])
        decided = review.move(("sums.py",))
    assert decided.moved == ("main",), decided
    assert not ran.exists(), ran.read_text()
    assert kept(home.project) == []
