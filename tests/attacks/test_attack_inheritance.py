"""Attacks through what a process is born with: descriptors, environment, a controlling terminal, a gate."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_control import ordinary_user, python, python_control
from attack_probe import answer, escaped, held, python_probe

import belljar
from belljar import PolicyError, Sandbox

OpenJar = Callable[..., Sandbox]
SECRET = "BEGIN-BELLJAR-SECRET"
PACKAGE = str(Path(belljar.__file__).parent.parent)


# --- descriptors (CVE-2024-21626) ------------------------------------------------------------------------------------

DESCRIPTORS = python_probe(
    """
    def attack(secret):
        for number in range(3, 1024):
            try:
                kind = os.fstat(number)
            except OSError:
                continue
            try:
                where = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                where = "?"
            if where.startswith(("/proc/", "/run/jar", "/dev/null")) or where.endswith(".py"):
                continue
            return number, where
        raise OSError(errno.EBADF, "nothing but stdin, stdout and stderr")
    """
)


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 9, 100, 200])
def test_descriptor_of_the_caller_is_not_inherited(backend: str, arena: Path, number: int) -> None:
    """An open file or directory of the program that uses belljar does not reach the code, whatever number it has."""
    (arena / "secret").write_text(SECRET)
    code = (
        "import os, sys\n"
        f"sys.path.insert(0, {PACKAGE!r})\n"
        f"os.dup2(os.open({str(arena)!r}, os.O_RDONLY), {number}, inheritable=True)\n"
        f"os.dup2(os.open({str(arena / 'secret')!r}, os.O_RDWR), {number + 1}, inheritable=True)\n"
        "from belljar import Sandbox\n"
        f"with Sandbox(backend={backend!r}) as jar:\n"
        "    print(jar.run(sys.stdin.read(), args=['x']).stdout)\n"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-c", code],
        input=DESCRIPTORS,
        capture_output=True,
        text=True,
        check=True,
        close_fds=False,
    ).stdout
    assert not escaped(said), said
    outside = subprocess.run(
        [*ordinary_user(), python(), "-I", "-c", DESCRIPTORS, "x"],
        pass_fds=[descriptor := os.open(arena, os.O_RDONLY)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    os.close(descriptor)
    assert escaped(outside), outside


def test_standard_input_is_not_the_callers(backend: str) -> None:
    """Without input, stdin is empty, and not what the caller has there; a plain child reads that."""
    look = "import sys; print(sys.stdin.read())"
    use = f"with Sandbox(backend={backend!r}) as jar: print(jar.run({look!r}).stdout)"
    program = f"import sys\nsys.path.insert(0, {PACKAGE!r})\nfrom belljar import Sandbox\n{use}"
    command = [sys.executable, "-I", "-c", program]
    assert subprocess.run(command, input=SECRET, capture_output=True, text=True, check=True).stdout.strip() == ""
    child = ["sh", "-c", '"$@"', "sh", python(), "-I", "-c", look]
    outside = subprocess.run([*ordinary_user(), *child], input=SECRET, capture_output=True, text=True, check=True)
    assert outside.stdout.strip() == SECRET


# --- environment (CVE-2026-22708) ------------------------------------------------------------------------------------

MARKER_SOURCE = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    int out = open(MARKER, O_CREAT | O_WRONLY | O_APPEND, 0666);
    if (out >= 0) dprintf(out, "loaded by %d\n", getpid());
}
"""


@pytest.fixture
def library(arena: Path) -> Path:
    """A shared library that leaves a mark wherever it is loaded."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    source = arena / "marker.c"
    source.write_text(f'#define MARKER "{arena}/marker"\n{MARKER_SOURCE}')
    built = arena / "marker.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source], check=True)
    built.chmod(0o755)
    return built


def _hostile_environment(arena: Path, library: Path | None) -> dict[str, str]:
    """Variables that make a helper run someone's code, each with a mark to leave."""
    mark = f"open({str(arena / 'marker')!r}, 'a').write('python')"
    for name in ("sitecustomize.py", "usercustomize.py", "json.py", "socket.py", "belljar.py", "startup.py"):
        (arena / name).write_text(mark)
    (arena / "require.js").write_text(f"require('fs').appendFileSync({str(arena / 'marker')!r}, 'node')")
    (arena / "env.sh").write_text(f"printf shell >> {arena / 'marker'}\n")
    return {
        **({"LD_PRELOAD": str(library), "LD_AUDIT": str(library)} if library else {}),
        "LD_LIBRARY_PATH": str(arena),
        "PYTHONPATH": str(arena),
        "PYTHONSTARTUP": str(arena / "startup.py"),
        "PYTHONHOME": str(arena),
        "NODE_OPTIONS": f"--require {arena / 'require.js'}",
        "BASH_ENV": str(arena / "env.sh"),
        "ENV": str(arena / "env.sh"),
        "BASH_FUNC_echo%%": f"() {{ . {arena / 'env.sh'}; }}",
        "GIT_SSH_COMMAND": f"sh {arena / 'env.sh'}",
        "GIT_EXTERNAL_DIFF": f"sh {arena / 'env.sh'}",
        "PAGER": f"sh {arena / 'env.sh'}",
        "EDITOR": f"sh {arena / 'env.sh'}",
        "TMPDIR": str(arena),
    }


USE = f"""
import os, sys
sys.path.insert(0, {PACKAGE!r})
os.environ.update(dict(line.split("=", 1) for line in sys.stdin.read().splitlines()))
from belljar import Sandbox
with Sandbox(backend=sys.argv[2], workspace=sys.argv[1]) as jar:
    print(jar.run("import os; print(sorted(os.environ)); open('f', 'w')").stdout)
    print(jar.run("env", language="bash").stdout)
    with jar.changes() as changes:
        print(changes.diff())
"""


def test_environment_reaches_no_helper(backend: str, arena: Path, project: Path, library: Path) -> None:
    """Variables of the caller reach neither the launcher, nor bubblewrap, nor the gate, nor the code."""
    hostile = _hostile_environment(arena, library)
    lines = "\n".join(f"{name}={value}" for name, value in hostile.items())
    command = [sys.executable, "-I", "-c", USE, project, backend]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=arena, check=False)
    assert done.returncode == 0, done.stderr
    assert not (arena / "marker").exists(), (arena / "marker").read_text()
    assert not any(name in done.stdout for name in hostile if name not in ("PYTHONPATH", "TMPDIR", "ENV"))
    assert str(arena) not in done.stdout.replace(str(project), "")
    subprocess.run([*ordinary_user(), "bash", "-c", "true"], env={"PATH": "/usr/bin:/bin", **hostile}, check=False)
    assert (arena / "marker").exists()


def _careless(text: str) -> str:
    """What becomes of a text in a launcher that puts it into a script, and the script into a template: the control."""
    script = f"printf %s {text}".replace("{run}", "$(id)").replace("\0", "\n")
    return subprocess.run([*ordinary_user(), "sh", "-c", script], capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("value", ["x\0--bind\0/\0/host", "a\nb", "{run}", "$(id)", "a;id", "\x1b[2J *"])
def test_odd_value_of_a_variable_is_only_text(open_jar: OpenJar, value: str) -> None:
    """A value can't become an argument of bubblewrap or a word of the shell: it arrives as it is, or is refused."""
    assert _careless(value) != value
    try:
        jar = open_jar({"env": {"set": {"ODD": value}}})
    except PolicyError:
        return
    result = jar.run("import os; print(ascii(os.environ['ODD'])); print(os.path.exists('/host'))")
    assert result.stdout == f"{value!a}\nFalse\n"


@pytest.mark.parametrize(
    "argv",
    [["$(id)"], ["`id`", "'", '"'], ["-n", "--", ";id"], ["a\nexit 0\n"], ["{run}"], ["\\", "*", "~"], ["", " "]],
)  # fmt: skip
def test_odd_argument_is_only_text(jar: Sandbox, argv: list[str]) -> None:
    """The gate's shell passes words on, and reads none of them."""
    expected = subprocess.run(["/bin/echo", *argv], capture_output=True, text=True, check=True).stdout
    assert _careless(" ".join(argv)) != expected.removesuffix("\n")
    assert jar.exec(["/bin/echo", *argv]).stdout == expected


@pytest.mark.parametrize(
    ("argv", "careless"),
    [(["-c", "id"], "sh"), (["-pc", "id"], "sh"), (["--", "id"], "env"), (["-i", "id"], "env")],
)
def test_command_that_looks_like_an_option(jar: Sandbox, argv: list[str], careless: str) -> None:
    """A program that is named like an option of whoever starts it is a failure of the code, and no option."""
    result = jar.exec(argv)
    assert not result.ok
    assert "uid=" not in result.stdout
    outside = subprocess.run([*ordinary_user(), careless, *argv], capture_output=True, text=True, check=True)
    assert "uid=" in outside.stdout


# --- exit codes ------------------------------------------------------------------------------------------------------

FORGED = {
    124: ["timeout", "0.1", "sleep", "5"],
    125: ["timeout", "no number", "true"],
    126: ["env", "/"],
    127: ["env", "/nowhere/program"],
    137: ["sh", "-c", "sh -c 'kill -9 $$'; exit $?"],
}
"""Exit codes that mean a timeout, a refusal or a kill to whoever trusts them: the commands that really end so."""


@pytest.mark.parametrize("code", FORGED)
def test_exit_code_can_not_be_forged(jar: Sandbox, code: int) -> None:
    """The code's own exit code says only that: no code of its own looks like a timeout, a refusal or a kill."""
    result = jar.run(f"import os; os._exit({code})")
    assert result.outcome == "failed"
    assert result.exit_code == code
    assert result.signal is None or code > 128
    assert subprocess.run([*ordinary_user(), *FORGED[code]], capture_output=True, check=False).returncode == code


LATE = "import os, time\nif os.fork() == 0:\n    time.sleep(0.2); print('late'); os._exit(0)\nos._exit(3)"
WHO_ENDS_LAST = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0: exec(sys.argv[1])
try:
    while True: last = os.wait()[1]
except ChildProcessError:
    print("told", os.waitstatus_to_exitcode(last))
"""


def test_child_can_not_answer_for_the_code(jar: Sandbox) -> None:
    """A child that outlives the code, or ends with another code, changes nothing of the result.

    The control asks whoever ends last, and is told by the child.
    """
    assert jar.run(LATE).exit_code == 3
    assert "told 0" in python_control(WHO_ENDS_LAST, LATE)


# --- the controlling terminal (CVE-2017-5226) ------------------------------------------------------------------------

PUSH = python_probe(
    """
    def attack():
        import fcntl
        ends = [0, 1, 2]
        try:
            ends.append(os.open("/dev/tty", os.O_RDWR))
        except OSError:
            pass
        refused = OSError(errno.ENOTTY, "no terminal")
        for end in ends:
            for request in (0x5412, 0x5412 | 1 << 32, 0x541C):
                try:
                    fcntl.ioctl(end, request & 0xFFFFFFFF, b"x") if request < 1 << 32 else call(16, end, request, b"x")
                    return f"descriptor {end}, request {request:#x}"
                except OSError as error:
                    refused = error
        raise refused
    """
)


def at_a_terminal(home: Path) -> dict[str, str]:
    own = {"HOME": str(home), "BELLJAR_STATE_DIR": str(home / "state"), "PYTHONPATH": PACKAGE}
    return {"PATH": "/usr/bin:/bin", "TERM": "xterm", **own}


def belljar_run(backend: str) -> list[str]:
    return [sys.executable, "-m", "belljar", "run", "--backend", backend]


def on_a_terminal(argv: list[str], env: dict[str, str]) -> tuple[str, bytes]:
    """What a command prints on a terminal of its own, and what lies in that terminal's input when it has ended."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execvpe(argv[0], argv, env)
        finally:
            os._exit(127)
    settings = termios.tcgetattr(terminal)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    output = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            output += data
    waiting = bytearray(4)
    try:
        fcntl.ioctl(terminal, termios.FIONREAD, waiting)
    except OSError:
        pass
    os.close(terminal)
    os.waitpid(pid, 0)
    return output.decode(errors="replace"), bytes(waiting)


def test_nothing_is_typed_into_the_users_terminal(backend: str, arena: Path) -> None:
    """Code that `belljar run` started at a terminal can't push input into it; a program started there could."""
    (arena / "push.py").write_text(PUSH)
    env = at_a_terminal(arena)
    inside, _waiting = on_a_terminal([*belljar_run(backend), str(arena / "push.py")], env)
    assert not escaped(inside.replace("\r", "")), inside
    said, _waiting = on_a_terminal([*ordinary_user(), python(), "-I", str(arena / "push.py")], env)
    if "HELD: EIO" in said:  # dev.tty.legacy_tiocsti is off: nobody may, and the jar's answer is still its own
        assert answer(inside.replace("\r", "")) != "EIO"
    else:
        assert escaped(said.replace("\r", "")), said


ESCAPES = r"\033]0;owned\007\033[2J\033]52;c;ZXZpbA==\007\033[6n\033P$q\033\\\233 5n\r\b\033[?1049h"


def test_escape_sequences_do_not_reach_the_terminal(backend: str, arena: Path) -> None:
    """Output at a terminal has no control sequence of the code's; written outright, the terminal gets every one."""
    (arena / "escape.sh").write_text(f"printf '{ESCAPES}'; printf '{ESCAPES}' >&2; echo end\n")
    env = at_a_terminal(arena)
    said, _waiting = on_a_terminal([*belljar_run(backend), str(arena / "escape.sh")], env)
    assert "end" in said
    for forbidden in ("\x1b]", "\x1b[2J", "\x1b[6n", "\x1bP", "\x9b", "\x07", "\x08", "\x1b[?1049h"):
        assert forbidden not in said, (forbidden, said)
    said, _waiting = on_a_terminal([*ordinary_user(), "sh", str(arena / "escape.sh")], env)
    assert "\x1b[2J" in said


NAMES = """
import os
open('\\x1b[2Jname\\x07', 'w').write('\\x1b]0;x\\x07')
os.mkdir('d\\x1b[6n')
try: open('/root/\\x1b[2J\\x07')
except OSError as error: raise SystemExit('\\x1b[2J')
"""


def test_escape_sequences_in_names_do_not_reach_the_terminal(backend: str, arena: Path, project: Path) -> None:
    """The same for what the code chose in other ways: names of files in a diff, paths in denials, its own arguments."""
    (arena / "names.py").write_text(NAMES)
    forbidden = ("\x1b[2J", "\x1b]", "\x1b[6n", "\x07")
    env = at_a_terminal(arena)
    options = ["--workspace", str(project), "--diff", "--explain-denials"]
    said, _waiting = on_a_terminal([*belljar_run(backend), *options, str(arena / "names.py")], env)
    assert "name" in said
    assert [sequence for sequence in forbidden if sequence in said] == []
    (arena / "own").mkdir()
    (arena / "own").chmod(0o777)
    show = f"cd {arena}/own; {python()} -I ../names.py; printf '%s ' *; cat *name*"
    said, _waiting = on_a_terminal([*ordinary_user(), "bash", "-c", show], env)
    assert [sequence for sequence in forbidden if sequence in said] == list(forbidden)


def test_terminal_of_another_run_is_out_of_reach(open_jar: OpenJar) -> None:
    """A terminal that one jar opened is not in another jar's /dev/pts; in its own it is."""
    first, second = open_jar(), open_jar()
    code = (
        "import os, pty, sys\nmain, other = pty.openpty()\nname = os.ttyname(other)\n"
        "os.open(name, os.O_RDWR | os.O_NOCTTY)\nprint(name, flush=True)\nsys.stdin.read()"
    )  # the control: in its own jar it can be opened by name
    reader, writer = os.pipe()
    events = iter(first.stream(code, stdin=reader))
    name = next(events).data.decode().strip()  # type: ignore[union-attr]
    look = python_probe("def attack(name): return os.open(name, os.O_RDWR | os.O_NOCTTY)")
    assert held(second.run(look, args=[name]))
    os.close(writer)
    for _event in events:
        pass
    os.close(reader)
