"""`run`, `exec`, `explain` and `doctor`, end to end in real jars."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import BELLJAR, Ran, environment

pytestmark = pytest.mark.host

SUGGESTION = "belljar: hint: if the jar may be why, --explain-denials names what it refused\n"

CODES = [
    ("ok", ["run", "-c", "pass"], 0),
    ("the code's own", ["run", "-c", "import sys; sys.exit(3)"], 3),
    ("an exception", ["run", "-c", "1/0"], 1),
    ("125 of the code's own", ["run", "-c", "import sys; sys.exit(125)"], 125),
    ("a signal", ["run", "-c", "import os; os.kill(os.getpid(), 11)"], 128 + 11),
    ("out of time", ["run", "--timeout", "500ms", "-c", "while True: pass"], 124),
    ("out of memory", ["run", "--set", "proc.mem_mb=64", "-c", "x = bytearray(300 << 20)"], 137),
    ("too much output", ["run", "--set", "proc.output_mb=1", "-c", "print('x' * (3 << 20))"], 137),
    ("refused", ["run", "--set", "backend=unconfined", "-c", "pass"], 125),
    ("a command that is not there", ["exec", "--", "no-such-command"], 127),
    ("a wrong policy", ["run", "--set", "proc.mem_mb=-1", "-c", "pass"], 125),
    ("a wrong word", ["run", "--nonsense"], 2),
]


@pytest.mark.parametrize(("words", "code"), [row[1:] for row in CODES], ids=[row[0] for row in CODES])
def test_exit_codes(jar: Callable[..., Ran], words: list[str], code: int) -> None:
    """Whose fault it is, in one number."""
    assert jar(*words).code == code


OUTPUT = [
    (["run", "-c", "print(1 + 1)"], b"", "2\n"),
    (["run", "-"], b"print('from stdin')", "from stdin\n"),
    (["run", "-", "--lang", "bash"], b"echo $1", "\n"),
    (["run", "-", "a", "b"], b"import sys; print(sys.argv[1:])", "['a', 'b']\n"),
    (["run", "-c", "import sys; print(sys.argv[1:])", "a", "--", "--json"], b"", "['a', '--json']\n"),
    (["run", "-c", "print(input())"], b"a line\n", "a line\n"),
    (["run", "-c", "echo $0 $1 >&1", "--lang", "bash", "x"], b"", "/run/jar/main.sh x\n"),
    (["run", "script.py", "x", "--", "-v"], b"", "script.py ['x', '-v']\n"),
    (["run", "no-suffix"], b"", "by shebang\n"),
    (["run", "data.txt", "--lang", "python"], b"", "by option\n"),
    (["exec", "--", "sh", "-c", "cat; echo $1", "sh", "one"], b"in\n", "in\none\n"),
    (["exec", "echo", "--json"], b"", "--json\n"),
]


@pytest.mark.parametrize(("words", "stdin", "out"), OUTPUT, ids=[" ".join(words) for words, _, _ in OUTPUT])
def test_output(jar: Callable[..., Ran], here: Path, words: list[str], stdin: bytes, out: str) -> None:
    """Whatever it is given as, it runs, and its output is all there is on standard output."""
    (here / "script.py").write_text("import sys, os; print(os.path.basename(sys.argv[0]), sys.argv[1:])")
    (here / "no-suffix").write_text("#!/usr/bin/env -S python3 -u\nprint('by shebang')")
    (here / "data.txt").write_text("print('by option')")
    assert jar(*words, stdin=stdin) == Ran(0, out, "")


def test_streams_stay_apart(jar: Callable[..., Ran]) -> None:
    """The code's standard error is belljar's; bytes pass unchanged where there is no terminal."""
    ran = jar("run", "-c", r"import sys; print('\x1b[31mout'); print('err', file=sys.stderr)")
    assert (ran.out, ran.err) == ("\x1b[31mout\n", "err\n")


def test_a_failed_run_suggests_where_the_jar_may_be_why(jar: Callable[..., Ran]) -> None:
    """One line, and none if the error speaks of nothing that a jar refuses, or belljar was told to be quiet."""
    refused = "raise SystemExit('x: Permission denied')"
    assert jar("run", "-c", refused).err == f"x: Permission denied\n{SUGGESTION}"
    for words in (["-c", "raise SystemExit(1)"], ["-q", "-c", refused], ["--explain-denials", "-c", refused]):
        assert "belljar" not in jar("run", *words).err


def test_a_crash_is_named(jar: Callable[..., Ran]) -> None:
    """By its signal."""
    ran = jar("run", "-c", "import os; os.kill(os.getpid(), 11)")
    assert ran.err == "belljar: crashed: the program was ended by SIGSEGV\n"


def test_a_limit_says_how_to_raise_it(jar: Callable[..., Ran]) -> None:
    """The reason, the rule, and what to type: `--timeout` beats `--set`, so that would not help."""
    assert jar("run", "--timeout", "300ms", "-c", "while True: pass").err == (
        "belljar: out of time: it ran longer than 0.3 s (proc.timeout_ms, --timeout)\n  to allow: --timeout 600ms\n"
    )
    assert jar("run", "--timeout", "0", "-c", "pass").err == (
        "belljar: error: --timeout: proc.timeout_ms: wanted a time from 1 ms to 168 h, in ms or like '30s', found '0'\n"
    )


def test_a_refused_connection_needs_no_hint(jar: Callable[..., Ran]) -> None:
    """It is named already; --explain-denials would add nothing."""
    ran = jar("run", "-c", "import socket; socket.create_connection(('nowhere.test', 443))")
    assert ran.code == 1
    assert "belljar: denied: look up a host name\n" in ran.err
    assert SUGGESTION not in ran.err


def test_artifacts_into_a_file(jar: Callable[..., Ran], here: Path) -> None:
    """Says what is wrong with the path."""
    (here / "taken").write_text("mine")
    for path in ("taken", "taken/out"):
        ran = jar("run", "--artifacts", path, "-c", "open('a', 'w')")
        assert (ran.code, ran.err.splitlines()[0]) == (
            2,
            f"belljar: error: {path}: there is a file where a directory was wanted",
        )


def test_denials(jar: Callable[..., Ran]) -> None:
    """What was tried, which rule, what would allow it."""
    ran = jar("run", "-c", "import socket; socket.create_connection(('192.0.2.1', 443))")
    lines = ran.err.splitlines()
    at = lines.index("belljar: denied: connect 192.0.2.1:443")
    assert lines[at + 1].startswith("  rule:     net.enabled (preset aicode:")
    assert lines[at + 2].startswith("  to allow: --set net.enabled=true")


def test_a_refused_file_is_named(jar: Callable[..., Ran], here: Path) -> None:
    """`--explain-denials`, on a file that a pattern hides and whose name is an escape sequence."""
    (here / "ws").mkdir()
    (here / "ws/.env.\x1b[2J.local").write_text("KEY=1")
    code = "import os, sys; os.path.lexists('.env.\\x1b[2J.local') or open('.env.\\x1b[2J.local')"
    ran = jar("run", "--workspace", "ws", "--explain-denials", "-c", f"try: {code}\nexcept OSError: sys.exit(1)")
    assert ran.code == 1
    lines = ran.err.splitlines()
    assert "\x1b" not in ran.err
    assert any(line.startswith("belljar: denied: read /workspace/.env.\\x1b[2J.local") for line in lines)
    assert any("**/.env.*.local (preset aicode:" in line for line in lines)
    assert any(line.startswith("  to allow: --set 'fs.deny_globs=") for line in lines)


def test_json(jar: Callable[..., Ran], here: Path) -> None:
    """The fields of RunResult, nothing else on standard output, and the exit code as ever."""
    ran = jar("run", "--json", "-c", "open('f', 'w').write('x'); print(5); raise SystemExit(4)")
    assert ran.code == 4
    found = ran.json
    assert set(found) >= {
        *("run_id", "outcome", "exit_code", "signal", "stdout", "stderr", "truncated", "duration", "usage", "denials"),
        *("artifacts", "policy_digest", "enforcement", "backend", "reason"),
    }
    assert (found["outcome"], found["exit_code"], found["stdout"]) == ("failed", 4, "5\n")
    assert found["artifacts"] == [{"path": "f", "size": 1}]
    assert ran.err == ""


def test_json_of_a_refusal(jar: Callable[..., Ran]) -> None:
    """A refusal is a result, so it is JSON too."""
    ran = jar("run", "--json", "--set", "backend=unconfined", "-c", "pass")
    assert (ran.code, ran.json["outcome"], ran.err) == (125, "refused", "")


FIX = "import mod, sys\nopen('a.txt', 'a').write('more\\n')\nopen('new.txt', 'w').write('n\\n')\nprint(sys.argv[0])\n"


@pytest.fixture
def workspace(here: Path) -> Path:
    """A project: a file, and a script that imports its neighbour and changes things."""
    root = here / "ws"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("one\n")
    (root / "sub/fix.py").write_text(FIX)
    (root / "sub/mod.py").write_text("")
    return root


def test_diff(jar: Callable[..., Ran], workspace: Path) -> None:
    """The changes on standard output after the code's own; the directory itself is untouched."""
    ran = jar("run", "ws/sub/fix.py", "--workspace", "ws", "--diff")
    assert ran.code == 0
    assert ran.out.startswith("/workspace/sub/fix.py\n")
    assert "+more\n" in ran.out
    assert sorted(os.listdir(workspace)) == ["a.txt", "sub"]
    assert os.listdir(workspace / "sub") == ["fix.py", "mod.py"] or os.listdir(workspace / "sub") == [
        "mod.py",
        "fix.py",
    ]


def test_apply(jar: Callable[..., Ran], workspace: Path) -> None:
    """The changes come back, and it says which."""
    ran = jar("run", "ws/sub/fix.py", "--workspace", "ws", "--set", "fs.snapshot=true", "--apply")
    assert ran == Ran(0, "/workspace/sub/fix.py\n", "belljar: applied: a.txt\nbelljar: applied: new.txt\n")
    assert (workspace / "a.txt").read_text() == "one\nmore\n"


def test_apply_refuses(jar: Callable[..., Ran], workspace: Path) -> None:
    """What must not come back does not, the exit code says so, and a line even when quiet."""
    code = "import os; os.symlink('/etc/passwd', 'out'); open('ok', 'w').close()"
    ran = jar("run", "-q", "--workspace", "ws", "--apply", "-c", code)
    assert ran.code == 3
    assert ran.err.startswith("belljar: not applied: out: ")
    assert (workspace / "ok").exists()
    assert not (workspace / "out").is_symlink()


def test_diff_and_apply_in_json(jar: Callable[..., Ran], workspace: Path) -> None:
    """The same, for a program."""
    found = jar("run", "ws/sub/fix.py", "--workspace", "ws", "--diff", "--apply", "--json").json
    assert "+more" in found["diff"]
    assert (found["applied"], found["not_applied"]) == (["a.txt", "new.txt"], [])


def test_artifacts(jar: Callable[..., Ran], here: Path) -> None:
    """Files that the code made, copied out."""
    ran = jar("run", "--artifacts", "out", "-c", "open('made.txt', 'w').write('x')")
    assert ran.code == 0
    assert (here / "out/made.txt").read_text() == "x"


def test_live(jar: Callable[..., Ran], workspace: Path) -> None:
    """The directory itself; what that weakens stops the run until it is accepted, and is then told."""
    words = ("run", "--workspace", "ws", "--live", "-c", "open('live.txt', 'w').close()")
    assert jar(*words).code == 125
    ran = jar(*words, "--set", "on_degraded=allow")
    assert ran.code == 0
    assert ran.err.startswith("belljar: degraded: fs.deny_globs, ")
    assert (workspace / "live.txt").exists()


def test_a_project_file_is_not_picked_up(jar: Callable[..., Ran], here: Path) -> None:
    """A repository could have brought it: it is only mentioned, and used when it is named."""
    (here / "sandbox.policy.yaml").write_text("proc: {pids: 7}\n")
    note = "belljar: sandbox.policy.yaml is not used unless you name it: --policy sandbox.policy.yaml\n"
    assert jar("run", "-c", "pass").err == note
    assert jar("run", "-q", "-c", "pass").err == ""
    assert "sandbox.policy.yaml" not in jar("run", "--workspace", ".", "-c", "pass").err
    named = jar("run", "--policy", "sandbox.policy.yaml", "--json", "-c", "pass")
    assert named.err == ""
    other = jar("run", "--json", "-c", "pass", BELLJAR_POLICY="sandbox.policy.yaml")
    assert (
        named.json["policy_digest"]
        == other.json["policy_digest"]
        != jar("run", "--json", "-c", "pass").json["policy_digest"]
    )


def test_explain(jar: Callable[..., Ran]) -> None:
    """The plan and every clause, for people and for programs; 125 if it would be refused."""
    text = jar("explain", "-c", "pass").out
    assert "\nEvery clause of the policy" in text
    assert "fs.mounts " in text
    found = jar("explain", "--json", "--", "ls", "-l").json
    assert found["plan"]["argv"] == ["ls", "-l"]
    assert {clause["status"] for clause in found["plan"]["report"]["clauses"]} <= {"enforced", "degraded"}
    refused = jar("explain", "--backend", "unconfined")
    assert refused.code == 125
    assert "This run would be refused" in refused.out


def test_doctor(jar: Callable[..., Ran]) -> None:
    """What works, and what would be used."""
    ran = jar("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert "bubblewrap: works: " in ran.out
    assert "\n`belljar run` uses bubblewrap: " in ran.out
    found = jar("doctor", "--json").json
    assert (found["works"], found["choice"]["backend"]) == (True, "bubblewrap")
    assert {check["name"] for check in found["host"]} >= {"language python", "managed policy"}


def test_doctor_where_nothing_works(belljar: Callable[..., Ran], here: Path) -> None:
    """1, with what to type."""
    (here / "p.yaml").write_text("backend: seatbelt")
    ran = belljar("doctor", "--policy", "p.yaml")
    assert ran.code == 1
    assert "`belljar run` would not run anything: " in ran.out


@pytest.mark.parametrize("place", ["a file", "a closed directory", "/proc"])
def test_doctor_where_nothing_can_be_recorded(belljar: Callable[..., Ran], here: Path, place: str) -> None:
    """Backends that work don't help then; and the hint, followed literally, does. By its mode, root may write /proc."""
    (here / "a file").write_text("")
    (here / "a closed directory").mkdir(mode=0o500)
    if place == "a closed directory" and os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    state = {"BELLJAR_STATE_DIR": str(here / place / "state")}
    ran = belljar("doctor", **state)
    assert ran.code == 1
    assert "`belljar run` would not run anything: state directory: " in ran.out
    hint = "export BELLJAR_STATE_DIR=$HOME/.belljar"
    assert ran.out.endswith(f"hint: {hint}\n")
    refused = belljar("run", "-c", "pass", **state)
    assert (refused.code, hint in refused.err) == (125, True)
    assert belljar("run", "-c", "pass", BELLJAR_STATE_DIR=str(here / ".belljar")).code == 0


def test_doctor_without_user_namespaces(here: Path) -> None:
    """The trial agrees with the setting: it makes the namespaces that a jar needs."""
    forbidding = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbidding, "sh", *BELLJAR, "doctor"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment(here))
    assert ran.returncode == 1
    assert re.search(r"^  no +user namespaces: user.max_user_namespaces = 0$", ran.stdout, re.MULTILINE)
    assert re.search(r"^  no +trial: bwrap failed", ran.stdout, re.MULTILINE)


def test_a_policy_with_another_image_is_asked_for_that_one(belljar: Callable[..., Ran], here: Path) -> None:
    text = "version: 1\nbackend: podman\nfallback: [docker]\ncontainer: {image: 'mine.example.com/other:2'}\n"
    (here / "p.yaml").write_text(text)
    ran = belljar("run", "--policy", "p.yaml", "-c", "pass")
    assert ran.code == 125
    assert "belljar-base" not in ran.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_workspace_that_may_not_be_read(belljar: Callable[..., Ran], here: Path) -> None:
    (here / "closed").mkdir(mode=0)
    told = belljar("run", "--workspace", "closed", "-c", "pass").err
    assert told.startswith("belljar: error: --workspace: wanted a directory that you may read, found ")


def test_a_whole_home_is_warned_of(jar: Callable[..., Ran], here: Path) -> None:
    """And neither a project in it, nor anything if belljar was told to be quiet."""
    (here / "project").mkdir()
    told = {
        words: "is your home directory" in jar("run", *words, "-c", "pass", HOME=str(here)).err
        for words in (("--workspace", "."), ("--workspace", "project"), ("-q", "--workspace", "."))
    }
    assert list(told.values()) == [True, False, False]
