"""What the host's git acts on in a project because its settings say so, as the real git writes and reads them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from belljar.backends.contract import ChangedTree
from belljar.sandbox.files import git_ignore
from belljar.sandbox.files.changes import Changes
from belljar.sandbox.files.git_ignore import Ignored, parse
from belljar.sandbox.files.git_settings import ActedPaths, Repositories, settings_in


def git(directory: Path, *words: str, **extra: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", **extra}
    done = subprocess.run(["git", *words], cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and a user without settings."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    git(tmp_path / "project", "init", "-q", "-b", "main")
    return tmp_path / "project"


NAMED = [
    # key, value, the paths that git acts on, some that it does not
    ("core.hooksPath", "scripts/hooks", ["scripts/hooks/pre-commit", "scripts/hooks/sub/x"], ["scripts/x", "hooks/x"]),
    ("core.hooksPath", "./scripts/../hooks/", ["hooks/pre-push"], ["scripts/hooks/x"]),
    ("core.hooksPath", ".", ["pre-commit", "post-checkout"], ["main.py", "sub/pre-commit"]),
    ("core.hooksPath", "{project}/tools", ["tools/pre-commit"], ["tool"]),
    ("core.hooksPath", "/elsewhere", [], ["pre-commit"]),
    ("core.hooksPath", "../elsewhere", [], ["elsewhere/pre-commit"]),
    ("include.path", "../.gitsettings", [".gitsettings"], ["gitsettings"]),
    ("include.path", "{project}/team/git.inc", ["team/git.inc"], ["team/x"]),
    ("includeIf.onbranch:main.path", "../conf/main", ["conf/main"], ["conf/x"]),
    ("core.attributesFile", "conf/attributes", ["conf/attributes"], ["conf/x"]),
    ("core.excludesFile", "conf/ignore", ["conf/ignore"], ["conf/x"]),
    ("core.fsmonitor", "tools/monitor.sh", ["tools/monitor.sh", "tools/monitor.sh/x"], ["tools/x"]),
    ("core.fsmonitor", "monitor", ["monitor"], ["monitor/x", "x"]),
    ("filter.tidy.clean", "sh tidy.sh --fast", ["tidy.sh"], ["sh.py"]),
    ("diff.pdf.textconv", "python tools/pdf.py", ["tools/pdf.py"], ["tools/x.py"]),
    ("merge.own.driver", "./merge %A %B", ["merge"], ["x"]),
    ("alias.go", "!sh -c 'cd sub; ./tools/go.sh'", ["tools/go.sh"], ["x"]),
    ("credential.helper", "!{project}/bin/helper", ["bin/helper"], ["bin/x"]),
    ("init.defaultBranch", "main", [], ["main", "main/x"]),
    ("core.autocrlf", "input", [], ["input"]),
    ("remote.origin.url", "src/lib", [], ["src/lib"]),
]


@pytest.mark.parametrize(("key", "value", "acted", "others"), NAMED)
def test_what_settings_name(project: Path, key: str, value: str, acted: list[str], others: list[str]) -> None:
    """In the repository's own settings, and in those of the user."""
    value = value.format(project=project)
    git(project, "config", key, value)
    found = ActedPaths(str(project))
    assert [path for path in acted if not found.why(path, is_directory=False)] == []
    assert [path for path in others if found.why(path, is_directory=False)] == []
    if not key.startswith("include"):  # a relative one is relative to the file that says it
        git(project, "config", "--unset", key)
        git(project, "config", "--file", str(project.parent / "home/.gitconfig"), key, value)
        found = ActedPaths(str(project))
        assert [path for path in acted if not found.why(path, is_directory=False)] == []


def test_what_an_included_file_names(project: Path) -> None:
    """A file that is included includes another, which names hooks; a ring of them has an end."""
    git(project, "config", "include.path", "../one")
    (project / "one").write_text("[include]\n\tpath = sub/two\n")
    (project / "sub").mkdir()
    (project / "sub/two").write_text('[core]\n\thooksPath = "my hooks" ; comment\n[include] path = ../one\n')
    found = ActedPaths(str(project))
    for path in ("one", "sub/two", "my hooks/pre-commit", "MY HOOKS/pre-commit"):
        assert found.why(path, is_directory=False), path


def test_links_of_the_host(project: Path) -> None:
    """A hook that is a link to a script, a directory of hooks that is a link, and a project reached by a link."""
    (project / "tools").mkdir()
    (project / ".git/hooks").mkdir(exist_ok=True)
    (project / ".git/hooks/pre-commit").symlink_to("../../tools/check.sh")
    (project / "hooks").symlink_to("tools/githooks")
    git(project, "config", "core.hooksPath", "hooks")
    (project.parent / "link").symlink_to(project)
    for place in (project, project.parent / "link"):
        found = ActedPaths(str(place))
        assert found.why("tools/check.sh", is_directory=False)
        assert found.why("tools/githooks/pre-push", is_directory=False)
        assert not found.why("tools/other", is_directory=False)


def test_a_part_of_a_repository(project: Path) -> None:
    """Settings are those of the repository above, and paths in them begin at its top."""
    (project / "packages/web").mkdir(parents=True)
    git(project, "config", "core.hooksPath", "packages/web/hooks")
    assert ActedPaths(str(project / "packages/web")).why("hooks/pre-commit", is_directory=False)


def test_settings_are_read_as_git_reads_them(project: Path) -> None:
    """Quotes, comments, continued lines, several on one line."""
    text = (
        '[core] hooksPath = "a b" # c\n[ALIAS]\n\tx = one\\\n two ; three\n[filter "a.b"]\n clean="say \\"x\\" \\\\"\n'
        "# a comment does not go on \\\nsmudge = one ; nor does this \\\nprocess = two\n"
    )
    (project / ".git/config").write_text(text)
    theirs = [line.partition("=") for line in git(project, "config", "--file", ".git/config", "--list").splitlines()]
    mine = list(settings_in(text))
    assert [value for _key, _, value in theirs] == [setting.value for setting in mine]
    assert [setting.key for setting in mine] == [
        "core.hookspath", "alias.x", "filter.clean", "filter.smudge", "filter.process",
    ]  # fmt: skip


# --- what is a repository ---


@pytest.fixture
def trees(project: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The host's directory, and what the jar holds of it."""
    (tmp_path / "jar").mkdir()
    return project, tmp_path / "jar"


def changes(host: Path, jar: Path) -> Changes:
    tree = ChangedTree(os.open(jar, os.O_RDONLY | os.O_DIRECTORY), True)
    return Changes(tree, str(host), "/workspace", (), since_ns=2**62, applied={})


EMBEDDED = {
    "a directory": "mkdir -p sub/.git/objects sub/.git/refs; echo x > sub/.git/HEAD",
    "a file": "mkdir sub; echo 'gitdir: ../x' > sub/.git",
    "a link": "mkdir -p x sub; ln -s ../x sub/.git",
    "bare": "mkdir -p d/objects d/refs; echo x > d/HEAD; echo x > d/config",
    "bare, of links": "mkdir -p o r d; echo x > h; ln -s ../h d/HEAD; ln -s ../o d/objects; ln -s ../r d/refs",
    "bare, of links to nothing": "mkdir d; ln -s refs/heads/main d/HEAD; ln -s o d/objects; ln -s r d/refs",
    "bare, partly of links": "mkdir -p o d/refs; echo x > d/HEAD; ln -s ../o d/objects",
    "bare, in capitals": "mkdir -p d/OBJECTS d/REFS; echo x > d/head",
    "in two parts": "mkdir d; echo x > d/HEAD; echo ../x > d/commondir",
}


@pytest.mark.parametrize("script", EMBEDDED.values(), ids=EMBEDDED.keys())
def test_an_embedded_repository_needs_a_word_of_its_own(trees: tuple[Path, Path], script: str) -> None:
    """Whatever it is made of. What is left of it is none."""
    host, jar = trees
    subprocess.run(["sh", "-ec", script], cwd=jar, check=True)
    with changes(host, jar) as found:
        assert any(change.protected for change in found)
        found.apply()
    for directory in ("sub", "d"):
        assert not os.path.lexists(host / directory / ".git")
        names = {name.lower() for name in os.listdir(host / directory)} if (host / directory).exists() else set()
        assert not {"head", "objects", "refs"} <= names
        assert "commondir" not in names


def test_a_repository_where_the_host_has_none(tmp_path: Path) -> None:
    """`git init` in the jar, in a part of a larger repository for example: that is an embedded one, too."""
    (tmp_path / "host").mkdir()
    for path in ("HEAD", "objects/ab/cd", "refs/heads/main"):
        (tmp_path / "jar/.git" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "jar/.git" / path).write_text("x")
    with changes(tmp_path / "host", tmp_path / "jar") as found:
        assert found.apply().applied == ()
    assert list((tmp_path / "host").iterdir()) == []


def test_a_ref_in_the_projects_own_repository_does_not_come_back_as_a_file(trees: tuple[Path, Path]) -> None:
    """Commits come back through git alone."""
    host, jar = trees
    (jar / ".git/refs/heads").mkdir(parents=True)
    (jar / ".git/refs/heads/topic").write_text("0" * 40 + "\n")
    with changes(host, jar) as found:
        assert ".git/refs/heads/topic" in dict(found.apply(protected=True).refused)


def test_a_name_of_the_hosts_that_leads_to_ordinary_files(trees: tuple[Path, Path]) -> None:
    """`CLAUDE.md` is a link to docs/guide.md: who writes that writes the agent's instructions."""
    host, jar = trees
    (host / "docs").mkdir()
    (host / "docs/guide.md").write_text("x")
    (host / "CLAUDE.md").symlink_to("docs/guide.md")
    (host / ".github").mkdir()
    (host / ".github/workflows").symlink_to("../ci")
    (jar / "docs").mkdir()
    (jar / "ci").mkdir()
    for path in ("docs/guide.md", "docs/other.md", "ci/x.yml"):
        (jar / path).write_text("new")
    with changes(host, jar) as found:
        assert [change.path for change in found if change.protected] == ["ci/x.yml", "docs/guide.md"]


def test_a_link_in_the_place_of_a_directory_that_tools_know(trees: tuple[Path, Path]) -> None:
    """`.github -> x` and x/workflows/ci.yml: neither looks like much."""
    host, jar = trees
    (jar / "x/workflows").mkdir(parents=True)
    (jar / "x/workflows/ci.yml").write_text("on: push\n")
    for name in (".github", "tools", ".venv", ".claude"):
        (jar / name).symlink_to("x")
    with changes(host, jar) as found:
        assert {change.path for change in found if change.protected} == {".github", "tools", ".venv", ".claude"}


def test_repositories_are_found_in_no_time() -> None:
    """Each directory is asked about once, however deep the tree is."""
    asked: list[str] = []
    found = Repositories(lambda path: bool(asked.append(path)))
    deep = "/".join(["info"] * 190)
    assert not any(found.holds(f"{deep}/{number}") for number in range(20_000))
    assert len(asked) < 2000


# --- what git ignores ---

IGNORE = {
    "": "*.log\n/build/\n!keep.log\ndoc/**/*.tmp\n\\#x\n# comment\nfoo/*\n!foo/bar\n*\\ \n[ab].o\n"
    "[x\\]y]1\n[[:alpha:]]2\n[![:digit:]-]3\n[]a-]4\n[z-a]5\n[a6\n[[:no:]]7\ne**/*\np/***/8\ndir[/x]l\n",
    "sub": "!x.log\nlocal\n/only\n",
}
PATHS = """
    x.log keep.log build/a sub/build/a doc/a.tmp doc/a/b/c.tmp #x foo/a foo/bar/x a.o c.o sub/x.log
    sub/deep/x.log sub/deep/local/y sub/only sub/deep/only plain build foo/bar/y.log
    x1 ]1 y1 z1 a2 é2 22 a3 33 ]4 b4 z5 [a6 a6 a7 :7 evil e/a/b dir/l p/q/8 p/8
"""


def test_what_git_ignores(project: Path) -> None:
    """The same as git says."""
    for directory, text in IGNORE.items():
        (project / directory).mkdir(exist_ok=True)
        (project / directory / ".gitignore").write_text(text)
    (project / ".git/info").mkdir(exist_ok=True)
    (project / ".git/info/exclude").write_text("secret.txt\n")
    (project / "sub/deep").mkdir()
    paths = [*PATHS.split(), "secret.txt"]
    theirs = git(project, "check-ignore", "--no-index", *paths).split("\n")
    root = os.open(project, os.O_RDONLY)
    ignored = Ignored(root, str(project), [])
    assert [path for path in paths if ignored(path, is_directory=False)] == [path for path in paths if path in theirs]
    part = os.open(project / "sub", os.O_RDONLY)
    below = Ignored(part, str(project / "sub"), [])
    assert [below(path, is_directory=False) for path in ("deep/local/y", "y.log", "x.log")] == [True, True, False]
    os.close(part)
    os.close(root)


@pytest.mark.parametrize("line", ["a/" + "**/a*a*a*a/" * 60 + "b", "*a" * 120 + "b", "**/" * 100 + "b"])
def test_patterns_take_no_time(line: str) -> None:
    """A repository that somebody else wrote can't hold up the host."""
    rule = parse(line)
    assert rule is not None
    assert rule.pattern.fullmatch("a/" + "aaaaaaaaaaaaaaaaaaaaaaaaa/" * 200 + "c") is None


TOO_MUCH = {
    "rules": "".join(f"{number:x}*\n" for number in range(150_000)),
    "bytes": "# \u00e4\n" * 220_000 + "evil\n",
    "a line": f"{'x' * 2000}\nevil\n",
}


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_passes_the_limits_is_ignored(
    trees: tuple[Path, Path], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rule is looked at after that, and a person is asked for every path, the first one too."""
    parsed: list[str] = []
    monkeypatch.setattr(git_ignore, "parse", lambda line: parsed.append(line) or parse(line))
    host, _jar = trees
    (host / ".gitignore").write_text(text)
    root = os.open(host, os.O_RDONLY)
    ignored = Ignored(root, str(host), [])
    assert ignored("evil", is_directory=False)
    assert ignored("other", is_directory=False)
    assert len(parsed) < 25_000
    os.close(root)


def test_ignored_files_need_a_word_of_their_own(trees: tuple[Path, Path]) -> None:
    """By the host's own .gitignore: that of the jar may say anything."""
    host, jar = trees
    (host / ".gitignore").write_text("build/\n*.log\n")
    (jar / ".gitignore").write_text("!*\nother\n")
    (jar / "build/deep").mkdir(parents=True)
    for path in ("build/tool", "build/deep/x", "x.log", "other", "main.py"):
        (jar / path).write_text("x")
    with changes(host, jar) as found:
        assert found.ignored_groups() == ["build/ (2 files)", "x.log"]
        done = found.apply()
        assert done.applied == (".gitignore", "main.py", "other")
        assert "git ignores it" in dict(done.refused)["build/tool"]
    (host / ".gitignore").write_text("build/\n*.log\n")
    with changes(host, jar) as found:
        assert {"build/tool", "build/deep/x", "x.log"} <= set(found.apply(ignored=True).applied)
