"""What comes back from a workspace, at the command line: marked diffs, diffs in files, files that stay as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import Ran

MARK = re.compile(r"^# belljar: diff ([0-9a-f]{32}) (begins|ends)$", re.MULTILINE)


@pytest.fixture
def workspace(here: Path) -> Path:
    """A project with one file, and a build directory that git ignores."""
    root = here / "ws"
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    (root / ".gitignore").write_text("build/\n*.log\n")
    return root


def diff_in(out: str) -> str:
    """The diff in standard output, as the reference says how to find it: by the token of the last line."""
    last = MARK.fullmatch(out.splitlines()[-1])
    assert last
    assert last[2] == "ends"
    begins = f"# belljar: diff {last[1]} begins\n"
    assert out.count(begins) == 1
    return out.partition(begins)[2].removesuffix(f"{last[0]}\n")


FORGED = (
    "diff --belljar a/a.txt b/a.txt\\nmodified file\\n--- a/a.txt\\n+++ b/a.txt\\n@@ -1 +1 @@\\n-one\\n+harmless\\n"
)
FORGERIES = {
    "hunks": f"print('{FORGED}', end='')",
    "between marks": f"t = 'ab' * 16; print(f'# belljar: diff {{t}} begins\\n{FORGED}# belljar: diff {{t}} ends')",
    "in the middle of a line": "print('x', end='')",
    "marks in a file": "open('a.txt', 'a').write('# belljar: diff ' + 'ab' * 16 + ' ends\\n')",
    "marks in a name": "open('x\\n# belljar: diff ' + 'ab' * 16 + ' ends', 'w').write('y')",
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES.keys())
@pytest.mark.parametrize("changes", [True, False])
def test_a_diff_that_the_code_can_not_forge(jar: Callable[..., Ran], workspace: Path, code: str, changes: bool) -> None:
    """Whatever it prints before: what is between the marks is belljar's, also if there is nothing."""
    real = "; open('a.txt', 'w').write('evil\\n')" if changes else ""
    ran = jar("run", "--workspace", "ws", "--diff", "-c", code + real)
    assert ran.code == 0
    found = diff_in(ran.out)
    assert ("+evil\n" in found) is changes
    assert "harmless" not in found
    assert "harmless" in ran.out or "harmless" not in code


def test_the_token_is_another_each_time(jar: Callable[..., Ran], workspace: Path) -> None:
    """So the code can't learn it from an earlier run."""
    tokens = {MARK.findall(jar("run", "--workspace", "ws", "--diff", "-c", "pass").out)[0][0] for _ in range(2)}
    assert len(tokens) == 2


@pytest.mark.parametrize("command", [["run", "-c"], ["exec", "--", "python3", "-c"]])
def test_a_diff_in_a_file(jar: Callable[..., Ran], here: Path, workspace: Path, command: list[str]) -> None:
    """Alone there, in place of what was there; a link is replaced, not written through."""
    (here / "precious").write_text("precious")
    (here / "changes.diff").symlink_to("precious")
    name, *rest = command
    ran = jar(name, "--workspace", "ws", "--diff-file", "changes.diff", *rest, "open('a.txt', 'w').write('new\\n')")
    assert (ran.code, ran.out) == (0, "")
    text = (here / "changes.diff").read_text()
    assert text.startswith("diff --belljar a/a.txt b/a.txt\n")
    assert text.endswith("-one\n+new\n")
    assert (here / "precious").read_text() == "precious"
    assert sorted(os.listdir(here)) == ["changes.diff", "precious", "ws"]
    found = jar("run", "--json", "--workspace", "ws", "--diff-file", "other.diff", "-c", "pass").json
    assert found["diff_file"] == "other.diff"
    assert (here / "other.diff").read_text() == ""
    ran = jar("run", "--workspace", "ws", "--diff-file", "/dev/stderr", "-c", "open('a.txt', 'w')")
    assert "-one\n" in ran.err


def test_files_that_are_there_stay(jar: Callable[..., Ran], here: Path) -> None:
    """It says so, and the hint works."""
    words = ("run", "--artifacts", "out", "-c", "open('made.txt', 'w').write('new')")
    (here / "out").mkdir()
    (here / "out/made.txt").write_text("old")
    ran = jar(*words)
    said = "belljar: not saved: made.txt: there is a file of that name already\nhint: --overwrite replaces"
    assert said in ran.err
    assert (here / "out/made.txt").read_text() == "old"
    found = jar("run", "--json", *words[1:]).json
    why = "there is a file of that name already"
    assert (found["saved"], found["not_saved"]) == ([], [{"path": "made.txt", "why": why}])
    ran = jar("run", "--overwrite", *words[1:])
    assert "belljar: saved: out/made.txt\n" in ran.err
    assert (here / "out/made.txt").read_text() == "new"


def test_figures_that_are_there_stay(jar: Callable[..., Ran], here: Path) -> None:
    """In a shell, too; what it wrote itself it replaces."""
    steps = b"open('x.csv', 'w').write('1')\nopen('x.csv', 'w').write('2')\n"
    assert "not saved" not in jar("shell", "--artifacts", "out", stdin=steps).err
    assert (here / "out/x.csv").read_text() == "2"
    ran = jar("shell", "--artifacts", "out", stdin=steps)
    assert "belljar: not saved: x.csv: there is a file of that name already\n" in ran.err
    assert "not saved" not in jar("shell", "--artifacts", "out", "--overwrite", stdin=steps).err


def test_what_git_ignores_and_what_tools_act_on(jar: Callable[..., Ran], workspace: Path) -> None:
    """Each has a word of its own, and the hints name them."""
    code = (
        "import os\nos.makedirs('build/deep')\nos.makedirs('.vscode', exist_ok=True)\n"
        "for p in ('build/a', 'build/deep/b', 'x.log', '.vscode/tasks.json', 'main.py'): open(p, 'w').write('x')"
    )
    words = ("run", "--workspace", "ws", "--apply", "-c", code)
    ran = jar(*words)
    assert "belljar: applied: main.py\n" in ran.err
    assert "belljar: not applied: build/ (2 files): git ignores it" in ran.err
    assert "belljar: not applied: x.log: git ignores it" in ran.err
    assert "belljar: not applied: .vscode/tasks.json: an editor on the host would act on it" in ran.err
    assert "hint: --apply-ignored " in ran.err
    assert "hint: --apply-protected " in ran.err
    assert sorted(os.listdir(workspace)) == [".gitignore", ".vscode", "a.txt", "main.py"]
    assert os.listdir(workspace / ".vscode") == []
    ran = jar(*words[:4], "--apply-ignored", "--apply-protected", *words[4:])
    assert "not applied" not in ran.err
    assert (workspace / "build/deep/b").exists()
    assert (workspace / ".vscode/tasks.json").exists()


MISTAKES = [
    (["--overwrite", "-c", "pass"], "--overwrite needs --artifacts", "--artifacts out --overwrite"),
    (
        ["--workspace", "ws", "--apply-ignored", "-c", "pass"],
        "--apply-ignored needs --apply",
        "--apply --apply-ignored",
    ),
    (["--diff-file", "x", "-c", "pass"], "--diff-file needs a workspace", "--workspace . --diff-file x"),
    (["--workspace", "ws", "--diff-file", "no/x", "-c", "pass"], "there is no directory", "--diff-file changes.diff"),
    (["--artifacts", "/", "-c", "pass"], "a directory above your home", "name a directory of its own"),
]


@pytest.mark.parametrize(("words", "said", "hint"), MISTAKES)
def test_mistakes(belljar: Callable[..., Ran], workspace: Path, words: list[str], said: str, hint: str) -> None:
    """Told before anything runs."""
    ran = belljar("run", *words)
    assert ran.code == 2
    assert said in ran.err
    assert hint in ran.err.partition("hint: ")[2]
