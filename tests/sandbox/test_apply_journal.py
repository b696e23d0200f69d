"""Many files are written to the host, or none: whatever fails, and wherever the process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.sandbox.files.journal import JournalStep, apply_all, finish_interrupted

_CALLS = ("mkdir", "link", "rename", "unlink", "rmdir", "symlink")
"""What changes a directory."""


@pytest.fixture
def host(tmp_path: Path, state_directory: str) -> Path:
    """A directory with something of everything that can be replaced."""
    assert state_directory
    host = tmp_path / "host"
    (host / "gone/deep").mkdir(parents=True)
    for name in ("kept", "modified", "removed", "gone/one", "gone/deep/two", "becomes-directory"):
        (host / name).write_text(f"{name} before\n")
    (host / "link").symlink_to("kept")
    (host / "gone").chmod(0o750)
    return host


def steps(host: Path) -> list[JournalStep]:
    """A change of each kind."""

    def before(name: str) -> os.stat_result:
        return os.lstat(host / name)

    def fill(descriptor: int) -> None:
        os.write(descriptor, b"after\n")

    return [
        JournalStep("gone/deep/two", "delete", before("gone/deep/two")),
        JournalStep("gone/deep", "rmdir", before("gone/deep")),
        JournalStep("gone/one", "delete", before("gone/one")),
        JournalStep("gone", "rmdir", before("gone")),
        JournalStep("removed", "delete", before("removed")),
        JournalStep("becomes-directory", "delete", before("becomes-directory")),
        JournalStep("becomes-directory/inside", "file", fill=fill),
        JournalStep("modified", "file", before("modified"), 0o755, fill),
        JournalStep("link", "link", before("link"), text=lambda: "modified"),
        JournalStep("new/deep/file", "file", fill=fill),
        JournalStep("new/empty", "directory"),
    ]


def tree(directory: Path) -> dict[str, tuple[int, str]]:
    """Everything in it: modes, contents, links. A mode tells what kind it is."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path.relative_to(directory))] = (status.st_mode, content)
    return found


def apply(host: Path) -> None:
    root = os.open(host, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert apply_all(str(host), root, steps(host)) == {}
    finally:
        os.close(root)


def killed_at(host: Path, number: int) -> bool:
    """Apply in another process, which is killed before its call of this number; False if it made fewer."""
    child = os.fork()
    if not child:
        count = 0
        for name in _CALLS:
            real = getattr(os, name)

            def counted(*words: object, real: object = real, **options: object) -> object:
                nonlocal count
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*words, **options)  # type: ignore[operator]

            setattr(os, name, counted)
        try:
            apply(host)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_killed_anywhere(host: Path, state_directory: str) -> None:
    """At each call that changes a directory: afterwards all is as before, or all is done."""
    before = tree(host)
    inodes = {name: (host / name).lstat().st_ino for name in ("modified", "removed", "gone/one")}
    number = 1
    while killed_at(host, number):
        finish_interrupted()
        now = tree(host)
        if now != before:
            break
        assert {name: (host / name).lstat().st_ino for name in inodes} == inodes, "the files themselves come back"
        number += 1
    assert number > 20, "every step was tried"
    while killed_at(host, number) and number < 200:  # the last calls remove what was there before
        number += 1
    finish_interrupted()
    after = tree(host)
    assert "gone" not in after
    assert after["becomes-directory/inside"][1] == after["modified"][1] == after["new/deep/file"][1] == "after\n"
    assert after["link"][1] == "modified"
    assert not [name for name in after if ".belljar" in name]
    assert os.listdir(Path(state_directory) / "journals") == ["lock"]


def test_what_was_changed_after_a_kill_stays(host: Path) -> None:
    """The user goes on with a file that was written already: to undo must not overwrite that."""
    before = tree(host)
    number = 1
    while (host / "modified").read_text() != "after\n":
        finish_interrupted()
        assert killed_at(host, number)
        number += 1
    (host / "modified").write_text("by the user\n")
    assert finish_interrupted() == [str(host)]
    after = tree(host)
    assert after.pop("modified")[1] == "by the user\n"
    assert after.pop("modified.before-belljar") == before.pop("modified")
    assert after == before


def test_a_file_that_changes_at_the_last_moment(host: Path) -> None:
    """Between the decision and the write: nothing is changed."""
    wanted = steps(host)
    (host / "modified").write_text("by someone else\n")
    before = tree(host)
    root = os.open(host, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(OSError, match="modified: it was changed on the host meanwhile"):
        apply_all(str(host), root, wanted)
    (host / "modified").unlink()
    os.mkdir(host / "new")
    (host / "new/deep").mkdir()
    (host / "new/deep/file").write_text("by someone else\n")
    before = tree(host)
    with pytest.raises(OSError, match=r"meanwhile|No such file"):
        apply_all(str(host), root, wanted)
    assert tree(host) == before
    os.close(root)


_FULL = """
import os, sys
from pathlib import Path
from belljar.backends.contract import ChangedTree
from belljar.sandbox.files.changes import Changes
host, jar = Path(sys.argv[1]), Path(sys.argv[2])
(host / "a").write_text("before")
changed = os.open(jar, os.O_RDONLY | os.O_DIRECTORY)
with Changes(ChangedTree(changed, False), str(host), "/jar", (), since_ns=1 << 62, applied={}) as changes:
    done = changes.apply()
print(done.applied, {why for _path, why in done.refused}, sorted(os.listdir(host)), (host / "a").read_text())
"""


def test_a_full_disk(tmp_path: Path, state_directory: str) -> None:
    """A real one, of one megabyte: the small file before the large one is not applied either."""
    jar, host = tmp_path / "jar", tmp_path / "host"
    jar.mkdir()
    host.mkdir()
    (jar / "a").write_text("after")
    (jar / "b").write_bytes(b"x" * (2 << 20))
    (tmp_path / "full.py").write_text(_FULL)
    mounted = f'mount -t tmpfs -o size=1m none {host} && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh", sys.executable]
    done = subprocess.run(
        [*words, tmp_path / "full.py", host, jar],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "BELLJAR_STATE_DIR": state_directory},
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    assert done.stdout.strip() == "() {'nothing was applied: No space left on device'} ['a'] before", done.stderr


def test_many_files(host: Path) -> None:
    """As an agent's build leaves them."""

    def fill(descriptor: int) -> None:
        os.write(descriptor, b"x")

    root = os.open(host, os.O_RDONLY | os.O_DIRECTORY)
    apply_all(
        str(host), root, [JournalStep(f"build/{number % 50}/{number}", "file", fill=fill) for number in range(1000)]
    )
    assert sum(1 for path in (host / "build").rglob("*") if path.is_file()) == 1000
    os.close(root)
