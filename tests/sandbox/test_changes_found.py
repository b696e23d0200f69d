"""Changes, on plain directories: what the backend hands over is either an upper layer or a whole copy."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar.backends.contract import ChangedTree
from belljar.sandbox.files.changes import CUT, Changes, leaves
from belljar.sandbox.files.trusted_names import acted_upon, link_acted_upon

Compare = Callable[..., Changes]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The host's directory."""
    path = tmp_path / "host"
    (path / "sub").mkdir(parents=True)
    for name, text in {"kept": "kept", "edited": "old", "gone": "gone", "sub/a": "a", "sub/b": "b"}.items():
        (path / name).write_text(text)
    return path


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    """What the code left."""
    path = tmp_path / "jar"
    path.mkdir()
    return path


@pytest.fixture
def compare(host: Path, jar: Path) -> Iterator[Compare]:
    """Compares the two, and closes."""
    opened: list[Changes] = []

    def make(*globs: str, layered: bool = False, since_ns: int = 0) -> Changes:
        tree = ChangedTree(os.open(jar, os.O_RDONLY | os.O_DIRECTORY), layered)
        since_ns = since_ns or time.time_ns() + 10**12
        changes = Changes(tree, str(host), "/workspace", globs, since_ns=since_ns, applied={})
        opened.append(changes)
        return changes

    yield make
    for changes in opened:
        changes.close()


def copy(host: Path, jar: Path) -> None:
    """As a backend without overlayfs does it."""
    for path in host.rglob("*"):
        target = jar / path.relative_to(host)
        if path.is_dir():
            target.mkdir()
        else:
            target.write_bytes(path.read_bytes())
            target.chmod(stat.S_IMODE(path.stat().st_mode))


def kinds(changes: Changes) -> dict[str, str]:
    return {change.path: change.kind for change in changes}


class TestWholeDirectories:
    """A directory that goes takes with it what must not go by itself."""

    @pytest.mark.parametrize("name", [".husky/pre-commit", "deep/.git/HEAD", ".gitlab-ci.yml", "AGENTS.md"])
    @pytest.mark.parametrize("becomes", ["nothing", "a file", "a link"])
    def test_with_a_file_that_tools_act_upon(
        self, host: Path, jar: Path, compare: Compare, name: str, becomes: str
    ) -> None:
        """To delete its directory is to delete the file."""
        copy(host, jar)
        (host / "app" / name).parent.mkdir(parents=True)
        (host / "app" / name).write_text("x")
        if becomes == "a file":
            (jar / "app").write_text("x")
        elif becomes == "a link":
            (jar / "app").symlink_to("sub")
        changes = compare()
        assert [(change.path, change.protected) for change in changes] == [("app", True)]
        assert "goes with it" in dict(changes.apply().refused)["app"]
        assert (host / "app" / name).exists()
        assert compare().apply(protected=True).applied == ("app",)
        assert not (host / "app" / name).exists()

    def test_with_bytecode_or_ignored_by_git(self, host: Path, jar: Path, compare: Compare) -> None:
        """Bytecode is made again. For what git ignores there is another question."""
        (host / ".gitignore").write_text("node_modules/\n")
        copy(host, jar)
        for name in ("pkg/__pycache__/x.pyc", "node_modules/x/.npmrc"):
            (host / name).parent.mkdir(parents=True)
            (host / name).write_text("x")
        assert [(change.path, change.ignored) for change in compare()] == [("node_modules", True), ("pkg", False)]
        assert compare().apply(ignored=True).applied == ("node_modules", "pkg")

    def test_with_the_state_directory(
        self, host: Path, jar: Path, compare: Compare, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The log of what happened stays, whatever anybody says."""
        copy(host, jar)
        log = host / "own/state/audit/2020-01-01.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text("{}")
        monkeypatch.setenv("BELLJAR_STATE_DIR", str(host / "own/state"))
        assert "belljar keeps its state there" in dict(compare().apply(protected=True).refused)["own"]
        assert log.exists()


class TestCopied:
    """The workspace was copied: both trees are whole."""

    def test_the_same_is_the_same(self, host: Path, jar: Path, compare: Compare) -> None:
        """Nothing was done."""
        copy(host, jar)
        assert kinds(compare()) == {}

    def test_every_kind(self, host: Path, jar: Path, compare: Compare) -> None:
        """Added, modified, deleted, mode."""
        copy(host, jar)
        (jar / "edited").write_text("new")
        (jar / "gone").unlink()
        (jar / "made").write_text("new")
        (jar / "kept").chmod(0o755)
        (jar / "sub" / "a").unlink()
        found = {"edited": "modified", "gone": "deleted", "made": "added", "kept": "mode", "sub/a": "deleted"}
        assert kinds(compare()) == found

    def test_a_directory_that_is_gone_is_one_deletion(self, host: Path, jar: Path, compare: Compare) -> None:
        """What was in it goes without saying."""
        copy(host, jar)
        for name in ("a", "b"):
            (jar / "sub" / name).unlink()
        (jar / "sub").rmdir()
        assert kinds(compare()) == {"sub": "deleted"}

    def test_a_directory_that_became_a_file_is_one_change(self, host: Path, jar: Path, compare: Compare) -> None:
        """As with an upper layer."""
        copy(host, jar)
        for name in ("a", "b"):
            (jar / "sub" / name).unlink()
        (jar / "sub").rmdir()
        (jar / "sub").write_text("file")
        assert kinds(compare()) == {"sub": "modified"}
        assert compare().apply().refused == ()
        assert (host / "sub").read_text() == "file"

    def test_denied_files_were_not_copied_and_are_not_deleted(self, host: Path, jar: Path, compare: Compare) -> None:
        """They are missing in the copy because the code may not see them."""
        copy(host, jar)
        (host / ".env").write_text("secret")
        changes = compare("**/.env")
        assert kinds(changes) == {}
        changes.apply()
        assert (host / ".env").read_text() == "secret"


class TestLayered:
    """An upper layer: only what differs is in it."""

    def test_only_what_is_there_counts(self, jar: Path, compare: Compare) -> None:
        """What the layer lacks is unchanged."""
        (jar / "edited").write_text("new")
        (jar / "kept").write_text("kept")
        assert kinds(compare(layered=True)) == {"edited": "modified"}

    def test_a_pipe_is_no_whiteout(self, jar: Path, compare: Compare) -> None:
        """Anything that is no file is named and refused."""
        os.mkfifo(jar / "gone")
        (change,) = compare(layered=True)
        assert (change.path, change.kind, change.what) == ("gone", "modified", "other")
        assert "pipe" in change.refusal


class TestRefusals:
    """What must not come back."""

    @pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6755, 0o4644])
    def test_setuid_and_setgid(self, host: Path, jar: Path, compare: Compare, mode: int) -> None:
        """Whether the file is new or only its mode is."""
        (jar / "made").write_text("x")
        (jar / "kept").write_text("kept")
        for name in ("made", "kept"):
            (jar / name).chmod(mode)
        applied = compare(layered=True).apply()
        assert {path for path, why in applied.refused if "setuid" in why} == {"made", "kept"}
        assert not (host / "made").exists()
        assert stat.S_IMODE((host / "kept").stat().st_mode) & 0o6000 == 0

    def test_changed_meanwhile(self, host: Path, jar: Path, compare: Compare) -> None:
        """A file whose change time is after the start."""
        (jar / "edited").write_text("jar")
        applied = compare(layered=True, since_ns=(host / "edited").stat().st_ctime_ns - 1).apply()
        assert applied.refused == (("edited", "it was changed on the host meanwhile"),)
        assert (host / "edited").read_text() == "old"

    def test_a_link_on_the_hosts_side_is_not_written_through(
        self, host: Path, jar: Path, compare: Compare, tmp_path: Path
    ) -> None:
        """Neither as a directory on the way nor as the file itself."""
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("precious")
        (host / "out").symlink_to(outside)
        (host / "link").symlink_to(outside / "file")
        (jar / "out").mkdir()
        (jar / "out" / "file").write_text("evil")
        (jar / "out" / "new").write_text("evil")
        (jar / "link").write_text("evil")
        compare(layered=True).apply()
        assert sorted(path.name for path in outside.iterdir()) == ["file"]
        assert (outside / "file").read_text() == "precious"

    def test_nothing_half_written_is_left(self, host: Path, jar: Path, compare: Compare) -> None:
        """No temporary name stays, whether a file is new or replaced."""
        (jar / "edited").write_text("new")
        (jar / "made").write_text("new")
        compare(layered=True).apply()
        assert sorted(path.name for path in host.iterdir()) == ["edited", "gone", "kept", "made", "sub"]


LINKS = [
    # the link, its target, whether it leaves
    ("link", "file", False),
    ("link", "./sub/./file", False),
    ("link", "sub/../file", True),  # `sub` may be a link itself by then
    ("sub/link", "../file", False),
    ("a/b/c/link", "../../../file", False),
    ("link", "..", True),
    ("link", "../project/file", True),
    ("sub/link", "../../file", True),
    ("link", "sub/../../x", True),
    ("link", "/etc/passwd", True),
    ("link", "/", True),
    ("link", "//etc", True),
    ("link", "..x/file", False),
    ("link", "...", False),
]


@pytest.mark.parametrize(("path", "target", "out"), LINKS)
def test_links_that_leave(path: str, target: str, out: bool) -> None:
    """By their text alone."""
    assert leaves(path, target) is out


ACTED_UPON = [
    # path, directory, refused
    ("src/main.py", False, False),
    (".git", True, True),
    (".git", False, True),
    (".git/objects/ab/cdef", False, True),
    (".git/refs/heads/main", False, True),
    (".git/HEAD", False, True),
    (".git/index", False, True),
    (".git/config", False, True),
    (".git/hooks", True, True),
    (".git/hooks/pre-commit", False, True),
    (".git/info/attributes", False, True),
    (".git/modules/x/config", False, True),
    ("vendor/x/.git/hooks/post-checkout", False, True),
    ("hooks/pre-commit", False, False),
    (".vscode/tasks.json", False, True),
    (".claude/settings.json", False, True),
    (".mcp.json", False, True),
    ("docs/.mcp.json.md", False, False),
    (".GIT/hooks/pre-commit", False, True),
    ("CLAUDE.md", False, True),
    ("packages/web/AGENTS.md", False, True),
    ("docs/agents.md.txt", False, False),
    (".github", True, False),
    (".github/workflows", True, False),
    (".github/workflows/ci.yml", False, True),
    (".github/ISSUE_TEMPLATE/bug.md", False, False),
    ("workflows/ci.yml", False, False),
    (".gitlab-ci.yml", False, True),
    ("Jenkinsfile", False, True),
    ("src/__pycache__/main.cpython-311.pyc", False, True),
    (".git/objects/info", True, True),
    (".git/objects/info/packs", False, True),
    (".git/objects/info/alternates", False, True),
    (".git/refs/replace/0123", False, True),
    (".g\u200cit/config", False, True),
    (".git./config", False, True),
    ("git~1/config", False, True),
    (".v\u017fcode/tasks.json", False, True),
    (".clinerules/one.md", False, True),
    (".clinerules", False, True),
    (".zed/tasks.json", False, True),
    (".githooks/pre-commit", False, True),
    (".github/dependabot.yml", False, True),
    (".envrc", False, True),
    ("my.code-workspace", False, True),
    (".cargo/config.toml", False, True),
    (".yarnrc.yml", False, True),
    (".gitmodules", False, True),
    (".gitignore", False, False),
    ("docs/environment.rst", False, False),
]


@pytest.mark.parametrize(("path", "directory", "refused"), ACTED_UPON)
def test_what_tools_of_the_host_act_upon(path: str, directory: bool, refused: bool) -> None:
    """What makes a tool do something does not come back by itself, and neither does anything in a `.git`."""
    assert bool(acted_upon(path, is_directory=directory)) is refused


DELETED = [
    # path, directory, refused
    (".git", True, True),
    (".git/hooks/pre-commit", False, True),
    (".git/refs/heads/old", False, True),
    (".claude", True, True),
    (".github", True, True),
    (".github/workflows", True, True),
    (".github/CODEOWNERS", False, False),
    ("src", True, False),
]


@pytest.mark.parametrize(("path", "directory", "refused"), DELETED)
def test_to_delete_such_a_file_is_to_change_what_a_tool_does(path: str, directory: bool, refused: bool) -> None:
    """A hook that forbids, a setting that denies, a check that would have failed."""
    assert bool(acted_upon(path, is_directory=directory, kind="deleted")) is refused


def test_some_changes_come_back_and_others_do_not(compare: Compare, host: Path, jar: Path) -> None:
    """Those that are named; the rest is neither applied nor called refused."""
    (jar / "edited").write_text("new")
    (jar / "fresh").write_text("fresh")
    changes = compare(layered=True)
    done = changes.apply({"edited"})
    assert (done.applied, done.refused) == (("edited",), ())
    assert (host / "edited").read_text() == "new"
    assert not (host / "fresh").exists()
    assert "b/fresh" not in changes.diff({"edited"})


def test_what_a_tool_acts_upon_needs_a_yes_of_its_own(compare: Compare, host: Path, jar: Path) -> None:
    """And what is refused for another reason stays refused even then."""
    (jar / ".github/workflows").mkdir(parents=True)
    (jar / ".github/workflows/ci.yml").write_text("on: push\n")
    (jar / "out").symlink_to("/etc")
    by_path = {change.path: change for change in compare(layered=True)}
    assert by_path[".github/workflows/ci.yml"].protected
    assert not by_path["out"].protected
    assert ".github/workflows/ci.yml" in dict(compare(layered=True).apply().refused)
    done = compare(layered=True).apply(protected=True)
    assert ".github/workflows/ci.yml" in done.applied
    assert list(dict(done.refused)) == ["out"]
    assert (host / ".github/workflows/ci.yml").read_text() == "on: push\n"
    assert not (host / "out").is_symlink()


LINKS = [
    # path, target, whether it needs a word of its own
    (".git/COMMIT_EDITMSG", "config", True),
    (".git/logs/HEAD", "../hooks/pre-commit", True),
    ("notes", ".git/config", True),
    ("src/notes", "../.git", True),
    ("src/notes", "../src/../x", False),
    ("ci", ".github", True),
    ("rules", "docs/CLAUDE.md", True),
    ("latest", "docs/one.md", False),
]


@pytest.mark.parametrize(("path", "target", "refused"), LINKS)
def test_links_to_what_tools_act_on(path: str, target: str, refused: bool) -> None:
    """Whoever writes to the link's name, as git does to COMMIT_EDITMSG, writes the settings that it leads to."""
    assert bool(link_acted_upon(path, target)) is refused


def test_git_does_not_write_its_settings_through_a_link(compare: Compare, host: Path, jar: Path) -> None:
    """`git commit --amend` writes the message, which may be the code's, to COMMIT_EDITMSG."""
    (host / ".git").mkdir()
    (jar / ".git").mkdir()
    (jar / ".git/COMMIT_EDITMSG").symlink_to("config")
    (jar / "notes").symlink_to(".git/config")
    done = compare(layered=True).apply()
    assert done.applied == ()
    assert not (host / ".git/COMMIT_EDITMSG").is_symlink()
    assert not (host / "notes").is_symlink()


def test_a_directory_that_is_a_repository_in_two_parts(compare: Compare, jar: Path) -> None:
    """HEAD and `commondir` in one directory, the rest in another: neither looks like a repository."""
    for path in ("sub/HEAD", "sub/commondir", "elsewhere/config", "elsewhere/objects/x", "elsewhere/refs/x"):
        (jar / path).parent.mkdir(parents=True, exist_ok=True)
        (jar / path).write_text("x")
    refused = {change.path for change in compare(layered=True) if change.protected}
    assert refused == {"sub/commondir"}


def test_a_repository_that_comes_in_two_runs(compare: Compare, host: Path, jar: Path) -> None:
    """Each of which looks harmless by itself."""
    for path in ("d/HEAD", "d/config"):
        (host / path).parent.mkdir(exist_ok=True)
        (host / path).write_text("x")
    for path in ("d/objects/x", "d/refs/x"):
        (jar / path).parent.mkdir(parents=True)
        (jar / path).write_text("x")
    assert compare(layered=True).apply().applied == ()
    assert not (host / "d/objects").exists()


def test_what_changed_while_a_person_thought_stays(compare: Compare, host: Path, jar: Path) -> None:
    """The diff was shown, then someone saved the file in an editor: that is not overwritten."""
    (jar / "edited").write_text("the agent's")
    (jar / "fresh").write_text("the agent's")
    since_ns = time.time_ns()
    changes = compare(layered=True, since_ns=since_ns)
    assert not any(change.refusal for change in changes)
    for path in (host / "edited", host / "fresh"):
        path.write_text("a person's")
        while path.stat().st_ctime_ns <= since_ns:  # a file system's clock ticks more slowly
            path.write_text("a person's")
    done = changes.apply()
    assert done.applied == ()
    assert [path for path, _why in done.refused] == ["edited", "fresh"]
    assert (host / "edited").read_text() == (host / "fresh").read_text() == "a person's"


def test_a_diff_has_an_end(compare: Compare, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beyond it are named, so that nobody takes it for all there is."""
    for name in ("a", "b", "c"):
        (jar / name).write_text("line\n" * 100)
    monkeypatch.setattr("belljar.sandbox.files.changes.MAX_DIFF", 900)
    text = compare(layered=True).diff()
    assert text.count("+line\n") == 200
    assert text.endswith(f"diff --belljar a/c b/c\nadded file\n{CUT} (0 MiB of text)\n")


def test_names_have_an_end(compare: Compare, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand files may lie two hundred long names deep. What was not looked at was not deleted."""
    (jar / ("d" * 200)).mkdir()
    for number in range(50):
        (jar / ("d" * 200) / f"{number}").write_text("")
    monkeypatch.setattr("belljar.backends.hostile_files.MAX_NAMES", 2000)
    for layered in (True, False):
        changes = list(compare(layered=layered))
        assert len(changes) < 15
        assert [change.path for change in changes if change.refusal] == ["."]
        assert not any(change.kind == "deleted" for change in changes)


def test_tree_that_is_not_whole_tells_of_no_deletion(host: Path, jar: Path) -> None:
    """A backend that copies says so when it has not looked at everything: what it left out was not deleted."""
    (jar / "made").write_text("")
    for whole in (True, False):
        tree = ChangedTree(os.open(jar, os.O_RDONLY | os.O_DIRECTORY), layered=False, whole=whole)
        with Changes(tree, str(host), "/workspace", (), since_ns=time.time_ns() + 10**12, applied={}) as changes:
            assert any(change.kind == "deleted" for change in changes) == whole
            assert [change.path for change in changes if change.refusal] == ([] if whole else ["."])
            changes.apply()
        assert (host / "kept").exists() != whole
        (host / "kept").write_text("kept")


def test_directories_that_look_like_parts_of_repositories_are_looked_at_once(compare: Compare, jar: Path) -> None:
    """600 files, each in 120 directories called `info`: each was asked about from the root, which took minutes."""
    deepest = jar.joinpath(*["info"] * 120)
    deepest.mkdir(parents=True)
    for number in range(300):
        (deepest / str(number)).mkdir()
        (deepest / str(number) / "info").write_text("x")
        (deepest / str(number) / "other").write_text("x")
    before = time.monotonic()
    found = compare(layered=True)
    assert len(found) == 120 + 3 * 300
    assert not any(change.refusal for change in found)
    assert time.monotonic() - before < 15  # a second; it was a minute and a half


def test_a_repository_above_is_seen_from_every_depth(compare: Compare, jar: Path) -> None:
    """What is remembered of directories says the same as looking at each."""
    (jar / "bare/info/deep/er").mkdir(parents=True)
    for name in ("HEAD", "bare/HEAD", "bare/info/deep/er/file", "bare/plain"):
        (jar / name).write_text("x")
    for name in ("objects", "refs"):
        (jar / "bare" / name).mkdir()
    told = {change.path: bool(change.refusal) for change in compare(layered=True)}
    assert told["bare/HEAD"]
    assert told["bare/info/deep/er/file"]
    assert told["bare/info/deep"]
    assert told["bare/objects"]
    assert not told["bare/plain"]
    assert not told["HEAD"]


def test_looking_for_changes_has_an_end(compare: Compare, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the code made: the rest is left out, and that is said."""
    (jar / "a").write_text("x")
    monkeypatch.setattr("belljar.sandbox.files.changes._MOST_SECONDS", -1.0)
    (change,) = compare(layered=True)
    assert change.path == "."
    assert "not all were looked at" in change.refusal
    assert "not all were looked at" in compare(layered=True).diff()


@pytest.mark.parametrize(
    ("limit", "value", "said"), [("_MOST_READ", 1, "MiB read"), ("_MOST_DIFF_SECONDS", -1.0, "-1 s")]
)
def test_a_diff_reads_only_so_much(
    compare: Compare, host: Path, jar: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, said: str
) -> None:
    """Files of zeros make no text, and were read all the same: 100,000 hard links to one of them took minutes."""
    for name in ("a", "b", "c"):
        (jar / name).write_bytes(bytes(1000))
    monkeypatch.setattr(f"belljar.sandbox.files.changes.{limit}", value)
    text = compare(layered=True).diff()
    assert f"diff --belljar a/c b/c\nadded file\n{CUT} (" in text
    assert said in text


def test_texts_that_are_slow_to_compare(
    compare: Compare, host: Path, jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When searching took too long, what differs is shown whole, and that is said."""
    (host / "edited").write_text("a\nb\nc\n")
    (jar / "edited").write_text("x\nb\ny\n")
    assert " b\n" in compare(layered=True).diff()
    monkeypatch.setattr("belljar.sandbox.files.changes._MOST_SEARCH_SECONDS", 0.0)
    text = compare(layered=True).diff()
    assert "not searched" in text
    assert "-a\n-b\n-c\n+x\n+b\n+y\n" in text


def test_a_file_with_holes_is_compared_by_its_data(compare: Compare, host: Path, jar: Path) -> None:
    """A terabyte of nothing on both sides is a moment's work."""
    for root in (host, jar):
        with open(root / "image", "wb") as file:
            os.truncate(file.fileno(), 1 << 40)
            os.pwrite(file.fileno(), b"data", 1 << 39)
    assert "image" not in kinds(compare(layered=True))
    with open(jar / "image", "r+b") as file:
        os.pwrite(file.fileno(), b"x", 1 << 38)
    assert kinds(compare(layered=True))["image"] == "modified"


@pytest.mark.parametrize("protected", [False, True])
def test_data_of_git_never_comes_back_as_files(compare: Compare, host: Path, jar: Path, protected: bool) -> None:
    """Not a ref, not an object, not the index, not a hook: by no word. The reason says what brings commits back."""
    subprocess.run(["git", "init", "--quiet", str(host)], check=True)
    for path in (".git/index", ".git/refs/heads/main", ".git/objects/ab/cd", ".git/hooks/pre-commit", ".git/config"):
        (jar / path).parent.mkdir(parents=True, exist_ok=True)
        (jar / path).write_bytes(b"x")
    done = compare(layered=True).apply(protected=protected)
    assert done.applied == ()
    assert all("`belljar agent -- COMMAND` brings commits back" in why for _path, why in done.refused)
    assert not (host / ".git/hooks/pre-commit").exists()


def test_what_is_denied_by_its_name_by_its_directory_or_by_one_above(jar: Path, compare: Compare) -> None:
    """Answers are kept for the last directory: a neighbour must not get another's."""
    denied = {".env", "a/secrets/deep/plain", "a/secrets/plain", "b/.env", "b/key.pem", "gone/one.pem"}
    plain = {"a/plain", "b/plain", "c/secrets.txt", "gone/plain", "plain", "sub/new"}
    for name in denied | plain:
        (jar / name).parent.mkdir(parents=True, exist_ok=True)
        (jar / name).write_text("x")
    changes = compare("**/.env", "**/secrets/**", "**/*.pem", layered=True)
    files = {change.path: change.refusal for change in changes if change.what == "file"}
    assert {path for path, why in files.items() if "deny_globs" in why} == denied
    assert {path for path, why in files.items() if not why} == plain
