"""Attacks on the host's patience and disk: trees, names and sizes made to hurt whoever looks at them."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from attack_control import ordinary_user, own_tmp, python, python_control
from attack_probe import escaped, python_probe

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
        with open("f", "w") as file: file.write("x" * 10_000)
        for i in range(500): os.link("f", f"f{i}")
    """,
    "huge and empty": """
        for i in range(20): open(f"s{i}", "wb").truncate(200 << 20)
    """,
}


CARELESS = {
    "3,000 deep": ("os.stat('/tmp/' + 'a/' * 3000)", "OSError"),
    "deep and broad at the bottom": (
        "walk = lambda at: [walk(each.path) for each in os.scandir(at) if each.is_dir()]; walk('/tmp')",
        "RecursionError",
    ),
    "closed directories": ("os.listdir('c0')", "PermissionError"),
    "closed files": ("open('f0')", "PermissionError"),
    "5,000 files": ("[open(name) for name in os.listdir()]", "OSError"),
    "long names": ("open(os.listdir()[0] + '.backup', 'w')", "OSError"),
    "names that are not text": ("os.listdir()[0].encode()", "UnicodeEncodeError"),
    "names of options and specials": (
        "assert len(subprocess.check_output(['ls']).split()) == len(os.listdir())",
        "AssertionError",
    ),
    "pipes and sockets": ("open('p0')", "TimeoutError"),
    "links in a ring": ("open('r0')", "OSError"),
    "one file under 500 names": ("assert sum(map(os.path.getsize, os.listdir())) < 100_000", "AssertionError"),
    "huge and empty": ("open('s0', 'rb').read()", "MemoryError"),
}
"""How a reader who does not expect such a tree looks at it, and what becomes of that: the control."""

HURT = """
def attack():
    import resource
    def late(*_): raise TimeoutError
    signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
    {make}
    os.chdir("/tmp")
    resource.setrlimit(resource.RLIMIT_AS, (160 << 20, 160 << 20))
    signal.setitimer(signal.ITIMER_REAL, 5 if {error} is not TimeoutError else 0.2)
    try:
        {look}
    except {error} as error:
        return f"hurt by {{type(error).__name__}}"
    raise OSError(errno.EPERM, "unhurt")
"""


def _hurt(name: str) -> str:
    look, error = CARELESS[name]
    make = textwrap.indent(textwrap.dedent(TREES[name]).strip(), "    ").lstrip()
    return python_probe(HURT.format(make=make, look=look, error=error))


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
    assert escaped(python_control(_hurt(name), setup=own_tmp()))


SPARSE = "for i in range(4):\n f = open(f's{i}', 'wb'); f.truncate(64 << 20)"


def _copy_carelessly(place: Path) -> int:
    """What a copy that is not careful makes of one such file on the disk: the control."""
    place.mkdir()
    place.chmod(0o777)
    copy = "open('s0', 'wb').truncate(36 << 20); open('d0', 'wb').write(open('s0', 'rb').read())"
    python_control(copy, cwd=str(place))
    return _disk(place)


def test_sparse_artifacts_do_not_fill_the_disk(open_jar: OpenJar, arena: Path) -> None:
    """Files of a huge apparent size cost the host no more than the jar's own quota when they are saved."""
    jar = open_jar(overrides=["fs.size_mb=16", "proc.file_size_mb=64"])
    result = jar.run(SPARSE)
    assert result.ok
    with suppress(BelljarError):
        jar.save_artifacts(result, arena / "saved")
    assert _disk(arena / "saved") <= 32 << 20
    assert _copy_carelessly(arena / "careless") > 32 << 20


def test_sparse_changes_do_not_fill_the_disk(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """The same when changes are applied."""
    jar = open_jar(workspace=project, overrides=["fs.size_mb=16", "proc.file_size_mb=64"])
    assert jar.run(SPARSE).ok
    with jar.changes() as changes:
        changes.apply()
    assert _disk(project) <= 32 << 20
    assert _copy_carelessly(arena / "careless") > 32 << 20


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


NO_ROOM = """
def attack(place):
    try:
        exec({code!r}, {{}})
    except OSError as error:
        assert error.errno == errno.ENOSPC
    try:
        with open(f"{{place}}/again", "w") as file:
            file.write("x")
    except OSError as error:
        return error.strerror
    raise OSError(errno.EEXIST, "there is room")
"""


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
    # The control: in one place with such a quota, and nobody who empties it, there is no room for the next run.
    place = "/dev/shm" if "/dev/shm" in code else "/tmp"
    setup = own_tmp("size=8m,nr_inodes=200")
    assert escaped(python_control(python_probe(NO_ROOM.format(code=code)), place, setup=setup))


NOT_TEXT = "import sys\nsys.stdout.buffer.write(b'\\xff\\x00\\x1b[2J' * 100)\nprint('x' * 500000)"


def test_output_that_is_not_text_arrives_as_text(open_jar: OpenJar) -> None:
    """Bytes that are no text, and a line without an end, arrive as text; a reader that expects text fails of them."""
    result = open_jar(overrides=["proc.output_mb=1"]).run(NOT_TEXT)
    assert result.ok
    assert "\ufffd" in result.stdout
    with pytest.raises(UnicodeDecodeError):
        subprocess.run(
            [*ordinary_user(), python(), "-I", "-c", NOT_TEXT], stdout=subprocess.PIPE, text=True, check=True
        )


@pytest.mark.parametrize("size", [200_000, 3_000_000])
def test_large_code_and_arguments(open_jar: OpenJar, size: int) -> None:
    """Code of megabytes is a file, not an argument, and runs; arguments that the kernel refuses are an error."""
    jar = open_jar()
    code = f"x = '{'y' * size}'\nprint(len(x))"
    assert jar.run(code).stdout == f"{size}\n"
    try:
        result = jar.exec(["/bin/echo", "x" * size])
        assert not result.ok or len(result.stdout) == size + 1
    except BelljarError:
        pass
    assert jar.run("print('alive')").stdout == "alive\n"
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run([*ordinary_user(), python(), "-I", "-c", code], check=False)


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
