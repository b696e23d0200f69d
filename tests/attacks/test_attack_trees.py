"""Attacks on the host's patience and disk: trees, names and sizes made to hurt whoever looks at them."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_control import python_control

from belljar import BelljarError, Sandbox

OpenJar = Callable[..., Sandbox]
PATIENCE_SECONDS = 10.0

TREES = {
    "3,000 deep": """
        for _ in range(3000):
            os.mkdir("a")
            os.chdir("a")
    """,
    "deep and broad at the bottom": """
        for _ in range(1900):
            os.mkdir("a")
            os.chdir("a")
        for i in range(2000): os.mkdir(str(i))
    """,
    "closed directories": """
        for i in range(100):
            os.makedirs(f"c{i}/inner")
            open(f"c{i}/inner/f", "w")
            os.chmod(f"c{i}/inner", 0)
            os.chmod(f"c{i}", 0)
    """,
    "closed files": "for i in range(50): os.close(os.open(f'f{i}', os.O_CREAT, 0))",
    "5,000 files": "for i in range(5000): open(str(i), 'w')",
    "long names": "for i in range(20): os.makedirs('/'.join(['n' * 250 + str(i)] * 12))",
    "names that are not text": r"for i in range(50): open(b'\xff\xfe\n\x1b[2J\r%d' % i, 'w')",
    "names of options and specials": """
        for name in ("-rf", "--", "$(id)", "`id`", "*", "~", " ", "\\n", ".whiteout", ".wh.x", ".belljar-x", "{run}"):
            open(name, "w")
    """,
    "pipes and sockets": """
        for i in range(50):
            os.mkfifo(f"p{i}")
            socket.socket(socket.AF_UNIX).bind(f"s{i}")
    """,
    "links in a ring": """
        for i in range(50): os.symlink(f"r{(i + 1) % 50}", f"r{i}")
        os.symlink(".", "self")
        os.symlink("/", "root")
    """,
    "one file under 500 names": """
        open("f", "w")
        for i in range(500): os.link("f", f"f{i}")
    """,
    "huge and empty": """
        for i in range(20): open(f"s{i}", "wb").truncate(200 << 20)
    """,
}


@pytest.mark.parametrize("layered", [True, False], ids=["copy-on-write", "ephemeral"])
@pytest.mark.parametrize("name", TREES)
def test_host_looks_at_anything_and_lives(open_jar: OpenJar, project: Path, name: str, layered: bool) -> None:
    """Whatever tree the code leaves: the run returns, the host lists, compares and removes, and the next run works."""
    jar = open_jar(workspace=project) if layered else open_jar()
    started = time.monotonic()
    result = jar.run(f"import os, socket\n{textwrap.dedent(TREES[name])}")
    assert result.ok, result.stderr
    entries = jar.files.list(recursive=True)
    assert entries
    if layered:
        with jar.changes() as changes:
            assert len(changes) > 0
            changes.diff()
    for entry in jar.files.list():
        if entry.path in ("a", "c0", "f0", "r0", "self", "-rf", "p0", "s0") or entry.kind == "directory":
            jar.files.remove(entry.path)
    assert time.monotonic() - started < PATIENCE_SECONDS
    assert jar.run("print('alive')").stdout == "alive\n"


def test_sparse_artifacts_do_not_fill_the_disk(open_jar: OpenJar, arena: Path) -> None:
    """Files of a huge apparent size cost the host no more than the jar's own quota when they are saved."""
    jar = open_jar(overrides=["fs.size_mb=16", "proc.file_size_mb=64"])
    code = "for i in range(4):\n f = open(f's{i}', 'wb'); f.truncate(64 << 20)"
    result = jar.run(code)
    try:
        jar.save_artifacts(result, arena / "saved")
    except BelljarError:
        pass
    assert _disk(arena / "saved") <= 32 << 20
    (arena / "c").mkdir()
    (arena / "c").chmod(0o777)
    python_control(
        f"import shutil\n{code}\n f.close(); open(f'd{{i}}', 'wb').write(open(f's{{i}}', 'rb').read())",
        cwd=str(arena / "c"),
    )
    assert _disk(arena / "c") > 32 << 20  # a copy that is not careful


def test_sparse_changes_do_not_fill_the_disk(open_jar: OpenJar, project: Path) -> None:
    """The same when changes are applied; the control is above."""
    jar = open_jar(workspace=project, overrides=["fs.size_mb=16", "proc.file_size_mb=64"])
    assert jar.run("for i in range(4):\n f = open(f's{i}', 'wb'); f.truncate(64 << 20)").ok
    with jar.changes() as changes:
        changes.apply()
    assert _disk(project) <= 32 << 20


def _disk(directory: Path) -> int:
    if not directory.exists():
        return 0
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


FULL = {
    "inodes": (["fs.inodes=200"], "import itertools\nfor i in itertools.count(): open(f'f{i}', 'w')"),
    "bytes": (["fs.size_mb=8"], "f = open('x', 'wb')\nwhile True: f.write(bytes(65536)); f.flush()"),
    "inodes, in /tmp": (["fs.inodes=200"], "import itertools\nfor i in itertools.count(): open(f'/tmp/f{i}', 'w')"),
    "inodes, in /dev/shm": (
        ["fs.inodes=200"],
        "import itertools\nfor i in itertools.count(): open(f'/dev/shm/f{i}', 'w')",
    ),
}


@pytest.mark.parametrize("name", FULL)
def test_full_workspace_is_not_the_end_of_a_sandbox(open_jar: OpenJar, name: str) -> None:
    """The code fills its quota: it hears ENOSPC, and the Sandbox goes on, can be read and can be emptied."""
    overrides, code = FULL[name]
    jar = open_jar(overrides=overrides)
    first = jar.run(code)
    assert "No space left" in first.stderr
    for _ in range(3):
        assert jar.run("print('alive')").stdout == "alive\n"
    for entry in jar.files.list():
        jar.files.remove(entry.path)
    assert jar.run("open('again', 'w').write('x'); print('written')").stdout == "written\n"


def test_observer_is_not_exhausted(open_jar: OpenJar) -> None:
    """Hundreds of different refusals with the longest paths there are: a bounded report, and no fault of ours."""
    code = r"""
import os
for i in range(700):
    try: os.stat(b"/%d/" % i + b"/".join([b"\xff" * 200] * 19))
    except OSError: pass
for i in range(700):
    try: open(f"/root/{'x' * 200}{i}")
    except OSError: pass
print("done")
"""
    result = open_jar().run(code, explain_denials=True)
    assert result.stdout == "done\n"
    assert len(result.denials) <= 500


def test_many_forbidden_calls_do_not_hold_up_the_clock(open_jar: OpenJar) -> None:
    """Processes that do nothing but forbidden calls keep the supervisor busy; the run still ends on time."""
    code = """
import ctypes, os
libc = ctypes.CDLL(None)
for _ in range(10):
    if os.fork() == 0:
        while True: libc.syscall(101, 0, 0, 0, 0)
os.wait()
"""
    result = open_jar(overrides=["proc.timeout_ms=2s"]).run(code)
    assert result.outcome == "timeout"
    assert result.duration < 2 + PATIENCE_SECONDS
    assert [denial.target for denial in result.denials if denial.kind == "syscall"] == ["ptrace"]


def test_output_is_bounded_and_marked(open_jar: OpenJar) -> None:
    """Bytes that are no text, and lines without an end, arrive bounded and as text."""
    result = open_jar(overrides=["proc.output_mb=1"]).run(
        "import sys\nsys.stdout.buffer.write(b'\\xff\\x00\\x1b[2J' * 100)\nprint('x' * 500000)"
    )
    assert result.ok
    assert "\ufffd" in result.stdout


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_large_code_and_arguments(open_jar: OpenJar, size: int) -> None:
    """Code of megabytes is a file, not an argument, and runs; arguments that the kernel refuses are an error."""
    jar = open_jar()
    assert jar.run(f"x = '{'y' * size}'\nprint(len(x))").stdout == f"{size}\n"
    try:
        result = jar.exec(["/bin/echo", "x" * size])
        assert not result.ok or len(result.stdout) == size + 1
    except BelljarError:
        pass
    assert jar.run("print('alive')").stdout == "alive\n"


def test_terminals_of_the_machine_are_not_used_up(open_jar: OpenJar) -> None:
    """Terminals are counted for the whole machine: one jar gets some, not all; an ordinary user gets what it asks."""
    code = """
import os, sys, time
total = 0
children = []
for _ in range(3):
    reader, writer = os.pipe()
    children.append(os.fork())
    if children[-1] == 0:
        count = 0
        try:
            while count < 200:
                os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
                count += 1
        except OSError:
            pass
        os.write(writer, b"%d" % count)
        time.sleep(30)
    total += int(os.read(reader, 10))
print(total, flush=True)
for child in children:
    os.kill(child, 9)
"""
    assert int(open_jar().run(code).stdout) <= 256
    assert "600" in python_control(
        code.replace("/dev/ptmx", "/dev/ptmx" if os.access("/dev/ptmx", os.W_OK) else "/dev/pts/ptmx")
    )
