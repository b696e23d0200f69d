"""Code and commands: languages, arguments, names, environment, working directory, imports."""

from __future__ import annotations

import json
import os
import shutil
import sys
import venv
from pathlib import Path

import pytest
from jars import OpenJar, is_promised, sh, told
from trees import plant

from belljar import Sandbox
from belljar.errors import BelljarError, PolicyError, UsageError

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed on this host")

LANGUAGES = [
    pytest.param("python", "import sys; print('python', sys.argv[1:])", "python ['a b', '--c']\n", id="python"),
    pytest.param("py", "import sys; print('python', sys.argv[1:])", "python ['a b', '--c']\n", id="py"),
    pytest.param("bash", 'echo "bash $# $1 $2" "${BASH_VERSION:+yes}"', "bash 2 a b --c yes\n", id="bash"),
    pytest.param("sh", 'echo "$#"', "2\n", id="sh"),
    pytest.param(
        "javascript",
        "console.log('js', process.argv.slice(2))",
        "js [ 'a b', '--c' ]\n",
        id="javascript",
        marks=needs_node,
    ),
]


class TestLanguages:
    """What code can be written in."""

    @pytest.mark.parametrize(("language", "code", "expected"), LANGUAGES)
    def test_each_runs_with_its_arguments(self, jar: Sandbox, language: str, code: str, expected: str) -> None:
        """Arguments are the code's, even if they look like options of the interpreter."""
        assert told(jar.run(code, language=language, args=["a b", "--c"])) == expected

    ERRORS = [
        pytest.param("python", "x = 1\nraise ValueError(x)", "analysis.py", 'analysis.py", line 2', id="python"),
        pytest.param("bash", "echo\nno-such-command", "build.sh", "build.sh: line 2", id="bash"),
        pytest.param("javascript", "\nthrow new Error(1)", "page.js", "page.js:2", id="javascript", marks=needs_node),
    ]

    @pytest.mark.parametrize(("language", "code", "name", "expected"), ERRORS)
    def test_errors_name_the_script_and_the_line(
        self, jar: Sandbox, language: str, code: str, name: str, expected: str
    ) -> None:
        """A traceback is of use only if it says where."""
        result = jar.run(code, language=language, name=name)
        assert result.outcome == "failed"
        assert expected in result.stderr

    NAMES = {
        "none": ("", "main.py"),
        "a path": ("/home/me/project/tool.py", "tool.py"),
        "climbing": ("../../../etc/passwd", "passwd"),
        "spaces": ("my tool.py", "my tool.py"),
        "letters": ("größe€.py", "größe€.py"),
        "a dash first": ("-c.py", "-c.py"),
        "dots": ("..", "main.py"),
        "control characters": ("a\nb.py", "main.py"),
    }

    @pytest.mark.parametrize(("name", "seen"), NAMES.values(), ids=NAMES.keys())
    def test_a_name_is_only_a_name(self, jar: Sandbox, name: str, seen: str) -> None:
        """It says what the file is called in the jar, and nothing about where it lies."""
        assert told(jar.run("print(__file__.rpartition('/')[2])", name=name)) == f"{seen}\n"

    @pytest.mark.parametrize("name", ["x" * 300 + ".py", "ü" * 200 + ".py"], ids=["300 letters", "400 bytes"])
    def test_a_name_too_long_for_a_file_breaks_nothing(self, jar: Sandbox, name: str) -> None:
        """It runs under a shorter name, or the caller is told; and the jar is as good as before."""
        try:
            assert told(jar.run("print('ran')", name=name)) == "ran\n"
        except BelljarError:
            pass
        assert told(jar.run("print('next')")) == "next\n"

    CODES = {
        "empty": ("", "ok"),
        "bytes": (b"print('\xc3\xa9')", "ok"),
        "another encoding": ("# -*- coding: latin-1 -*-\nprint('\xe9')".encode("latin-1"), "ok"),
        "a byte order mark": (b"\xef\xbb\xbfprint(1)", "ok"),
        "windows lines": (b"if 1:\r\n    print(1)\r\n", "ok"),
        "no syntax": ("def", "failed"),
        "one megabyte": ("# " + "x" * (1 << 20) + "\nprint(1)", "ok"),
    }

    @pytest.mark.parametrize(("code", "outcome"), CODES.values(), ids=CODES.keys())
    def test_whatever_the_code_is_it_has_a_result(self, jar: Sandbox, code: str | bytes, outcome: str) -> None:
        """Bad code is a failed run, never an exception."""
        assert jar.run(code).outcome == outcome

    def test_the_code_does_not_lie_in_the_workspace(self, jar: Sandbox) -> None:
        """The workspace holds what was put there, and __main__ can be read all the same."""
        assert told(
            jar.run("import os, inspect, __main__; print(os.listdir('.'), len(inspect.getsource(__main__)) > 9)")
        )
        assert jar.files.list() == []

    @pytest.mark.slow
    def test_multiprocessing_and_threads_work(self, jar: Sandbox) -> None:
        """Ordinary programs use more than one process."""
        code = """
import multiprocessing, concurrent.futures
def square(x): return x * x
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(square, range(4)))
    with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(square, range(3)))
    with concurrent.futures.ThreadPoolExecutor(4) as threads: print(list(threads.map(square, range(4))))
"""
        assert told(jar.run(code)) == "[0, 1, 4, 9]\n[0, 1, 4]\n[0, 1, 4, 9]\n"


ARGUMENTS = [
    "",
    " ",
    "a b",
    "$(id)",
    "`id`",
    "*",
    "'",
    '"',
    "\\",
    "\n",
    "--",
    "-c",
    "é€😀",
    "=",
    "{run}",
    "%s",
    "x" * 100_000,
]


def test_arguments_arrive_as_they_are(jar: Sandbox) -> None:
    """No shell, no template and no option parser touches them, in a command or in code."""
    show = "import sys, json; print(json.dumps(sys.argv[1:]))"
    assert json.loads(told(jar.run(show, args=ARGUMENTS))) == ARGUMENTS
    jar.files.write("show.py", show)
    assert json.loads(told(sh(jar, 'exec python3 show.py "$@"', *ARGUMENTS))) == ARGUMENTS


@pytest.mark.parametrize("size", [200_000, 5_000_000], ids=["one too long", "a message too long"])
def test_an_argument_too_long_for_the_kernel_breaks_nothing(jar: Sandbox, size: int) -> None:
    """The caller is told, or the run fails; and the jar is as good as before."""
    try:
        assert jar.exec(["echo", "x" * size]).outcome == "failed"
    except BelljarError:
        pass
    assert told(sh(jar, "echo next")) == "next\n"


MISTAKES = {
    "code and command": ({"code": "1", "argv": ["true"]}, "either code or argv"),
    "neither": ({}, "either code or argv"),
    "a string for a command": ({"argv": "ls -l"}, "list of words"),
    "an empty command": ({"argv": []}, "empty"),
    "NUL in the command": ({"argv": ["echo", "a\0b"]}, "NUL"),
    "NUL in the arguments": ({"code": "1", "args": ["a\0"]}, "NUL"),
    "no such language": ({"code": "1", "language": "cobol"}, "cobol"),
    "a word that is no text": ({"argv": ["echo", 1]}, "text"),
    "a string for arguments": ({"code": "1", "args": "abc"}, "list of words"),
}


@pytest.mark.parametrize(("call", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_call_that_makes_no_sense_is_a_usage_error(jar: Sandbox, call: dict[str, object], words: str) -> None:
    """Named at once, before anything is started."""
    with pytest.raises(UsageError, match=words):
        list(jar.stream(**call))  # type: ignore[arg-type]


class TestEnvironment:
    """Made from nothing; what is set and what is passed comes from the policy."""

    def test_nothing_of_the_callers_gets_in(self, jar: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither a secret nor what would change how programs start."""
        for name in (
            "AWS_SECRET_ACCESS_KEY",
            "LD_LIBRARY_PATH",
            "PYTHONSTARTUP",
            "BASH_ENV",
            "NODE_OPTIONS",
            "X_SECRET",
        ):
            monkeypatch.setenv(name, "sentinel-of-the-host")
        assert "sentinel-of-the-host" not in told(sh(jar, "env"))
        assert "sentinel-of-the-host" not in told(jar.run("import os; print(dict(os.environ))"))

    def test_what_programs_rely_on_is_there(self, jar: Sandbox) -> None:
        """A home that can be written, a path that finds programs, a user that has a name."""
        script = 'set -e; touch "$HOME/file" "$TMPDIR/file"; command -v ls > /dev/null; id -un; echo "$LANG"'
        assert told(sh(jar, script)) == "jar\nC.UTF-8\n"

    VALUES = {
        "PLAIN": "v",
        "EMPTY": "",
        "SPACES": " a b ",
        "LINES": "a\nb",
        "SIGNS": "a=b;$(id) 'x' \"y\" {run}",
        "LETTERS": "é€",
    }

    def test_set_is_what_the_code_sees(self, open_jar: OpenJar) -> None:
        """Values as written."""
        jar = open_jar({"env": {"set": self.VALUES}})
        seen = json.loads(told(jar.run("import os, json; print(json.dumps(dict(os.environ)))")))
        assert {name: seen.get(name) for name in self.VALUES} == self.VALUES

    def test_pass_takes_only_the_named_ones(self, open_jar: OpenJar, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that is named and set, one that is named and not set, one that is set and not named."""
        monkeypatch.setenv("WANTED", "value")
        monkeypatch.setenv("UNWANTED", "value")
        monkeypatch.delenv("MISSING", raising=False)
        jar = open_jar({"env": {"pass": ["WANTED", "MISSING"]}})
        assert told(sh(jar, 'echo "${WANTED-none} ${MISSING-none} ${UNWANTED-none}"')) == "value none none\n"

    def test_set_wins_over_pass(self, open_jar: OpenJar, monkeypatch: pytest.MonkeyPatch) -> None:
        """The policy's word is the last."""
        monkeypatch.setenv("BOTH", "host")
        jar = open_jar({"env": {"set": {"BOTH": "policy"}, "pass": ["BOTH"]}})
        assert told(sh(jar, 'echo "$BOTH"')) == "policy\n"


class TestWorkingDirectory:
    """fs.workdir."""

    def test_it_is_the_workspace(self, jar: Sandbox) -> None:
        """For commands and for code, and it can be written."""
        assert told(sh(jar, "pwd; touch here; ls")) == "/workspace\nhere\n"
        assert told(jar.run("import os; print(os.getcwd(), os.environ['PWD'])")) == "/workspace /workspace\n"

    def test_another_mount_can_be_it(self, open_jar: OpenJar) -> None:
        """Files of the API are relative to it, and artifacts come from it."""
        jar = open_jar({"fs": {"mounts": [{"path": "/data/in side", "rw": True}], "workdir": "/data/in side"}})
        jar.files.write("given", "1")
        result = sh(jar, "pwd; cat given; echo x > made")
        assert told(result) == "/data/in side\n1"
        assert [artifact.path for artifact in result.artifacts] == ["made"]

    def test_one_that_is_not_there_is_told(self, open_jar: OpenJar) -> None:
        """By the policy or when the jar is made, with its name."""
        with pytest.raises(BelljarError, match="/nowhere"):
            told(sh(open_jar({"fs": {"workdir": "/nowhere"}}), "pwd"))


class TestImports:
    """Modules from the workspace and from a virtual environment."""

    def test_modules_of_the_workspace_import(self, jar: Sandbox) -> None:
        """Plain modules and packages, wherever the script itself is."""
        jar.files.write("helper.py", "VALUE = 1")
        jar.files.write("package/__init__.py", "")
        jar.files.write("package/inner.py", "from helper import VALUE\nTWICE = VALUE * 2")
        assert told(jar.run("import helper; from package.inner import TWICE; print(helper.VALUE, TWICE)")) == "1 2\n"

    def test_importing_leaves_no_files(self, jar: Sandbox) -> None:
        """No __pycache__ among the artifacts."""
        jar.files.write("helper.py", "VALUE = 1")
        assert jar.run("import helper").artifacts == ()

    @staticmethod
    def _environment(path: Path) -> Path:
        venv.EnvBuilder(with_pip=False, symlinks=True).create(path)
        (site,) = path.glob("lib/python3*/site-packages")
        plant(site, {"tiny_local.py": "NAME = 'tiny'", "tiny_package/__init__.py": "from tiny_local import NAME"})
        return path

    CODE = "import sys, tiny_package; print(tiny_package.NAME, sys.prefix)"

    def test_packages_of_a_virtual_environment_import(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """python.venv: its interpreter, its packages, and the standard library beneath."""
        path = self._environment(tmp_path / "environment")
        jar = open_jar({"python": {"venv": str(path)}})
        if not is_promised(jar, "python.venv"):
            return
        assert told(jar.run(self.CODE)) == f"tiny {path}\n"
        assert told(sh(jar, f'python -c "{self.CODE}"')) == f"tiny {path}\n"

    def test_it_cannot_be_changed(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """The mount is read-only: the host runs what lies there."""
        path = self._environment(tmp_path / "environment")
        jar = open_jar({"python": {"venv": str(path)}})
        if is_promised(jar, "python.venv"):
            attempt = f"echo evil > {path}/bin/evil || echo evil >> {path}/bin/activate"
            assert sh(jar, attempt).outcome == "failed"
        assert not (path / "bin" / "evil").exists()

    def test_one_in_a_closed_directory(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """Beneath a directory of mode 0700, whoever started us."""
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        path = self._environment(closed / "environment")
        jar = open_jar({"python": {"venv": str(path)}})
        if is_promised(jar, "python.venv"):
            assert told(jar.run(self.CODE)) == f"tiny {path}\n"

    def test_one_that_was_made_with_a_closed_umask(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """Every directory 0700 and every file 0600: as a careful root makes it."""
        before = os.umask(0o077)
        try:
            path = self._environment(tmp_path / "environment")
        finally:
            os.umask(before)
        jar = open_jar({"python": {"venv": str(path)}})
        if is_promised(jar, "python.venv"):
            assert told(jar.run(self.CODE)) == f"tiny {path}\n"

    def test_something_else_is_a_policy_error(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """Named, with its place."""
        with pytest.raises(PolicyError, match=r"python\.venv"):
            open_jar({"python": {"venv": str(tmp_path)}}).run("1")

    def test_an_interpreter_by_name(self, open_jar: OpenJar) -> None:
        """python.interpreter: this very one."""
        jar = open_jar({"python": {"interpreter": os.path.realpath(sys.executable)}})
        if is_promised(jar, "python.interpreter"):
            assert told(jar.run("import sys; print(sys.version)")) == f"{sys.version}\n"
