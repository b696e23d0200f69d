"""Files of the host's, denied names, links and trees, with a container: the tables of the other attacks."""

from __future__ import annotations

import os
import socket
import stat
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from attack_batch import Row, escapes, run_all
from attack_probe import held, python_probe
from attack_search import SEARCH, SECRET
from test_attack_files import DENIED, READ, SECRETS, WAYS_AROUND
from test_attack_links import FORBIDDEN, LEAVING, LINKS, MAKE, PATHS, SWAP
from test_attack_trees import SPARSE, TREES

from belljar import BelljarError, PolicyError, Sandbox

OpenJar = Callable[..., Sandbox]
UsageErrors = (OSError, BelljarError)

NOWHERE = """
def attack(*extra):
    made = []
    for path in (*extra, *"/ /usr /usr/bin /etc /bin /lib /run /dev /var /opt /proc /sys /home /root /depot".split()):
        try:
            os.close(os.open(f"{path}/belljar-attack", os.O_CREAT | os.O_WRONLY))
            made.append(path)
        except OSError:
            pass
    if not made:
        raise OSError(errno.EROFS, "nowhere")
    return made
"""
SAME = """
def attack(path, inode, text):
    status = os.stat(path)
    if f"{status.st_dev} {status.st_ino}" == inode or (text and text in open(path, errors="replace").read()):
        return "the host's own"
    raise OSError(errno.ENOENT, "another file")
"""


def test_files_of_the_host_are_out_of_reach(open_jar: OpenJar, arena: Path, project: Path) -> None:
    """No secret, no way around the root, no link that leads out, no place to write; and denied names are not there."""
    (arena / "secret").write_text(SECRET)
    (project / "absolute").symlink_to(arena / "secret")
    (project / "relative").symlink_to("../secret")
    (project / "out").symlink_to(arena)
    for name in (*DENIED, "README"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(SECRET)
    os.link(project / ".env", project / "harmless.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(project / "agent.sock"))
        listener.listen()
        jar = open_jar(workspace=project, overrides=["proc.timeout_ms=60s"])
        rows = [Row(way, READ, [way.format(path=f"{arena}/secret")]) for way in WAYS_AROUND]
        rows += [Row(f"home: {name}", READ, [os.path.expanduser(f"~/{name}")]) for name in SECRETS]
        rows += [Row(path, READ, [f"/workspace/{path}"]) for path in ("absolute", "relative", "out/secret")]
        rows += [Row(f"denied: {name}", READ, [f"/workspace/{name}"]) for name in (*DENIED, "harmless.txt")]
        rows.append(Row("write", python_probe(NOWHERE), ["/workspace/out", str(arena)]))
        for path in ("/etc/machine-id", "/etc/passwd", "/etc/shadow", "/proc/sys/kernel/random/boot_id"):
            with suppress(OSError):
                status = os.stat(path)
                rows.append(Row(path, python_probe(SAME), [path, f"{status.st_dev} {status.st_ino}", ""]))
        connect = "def attack(): socket.socket(socket.AF_UNIX).connect('agent.sock'); return 'connected'"
        rows.append(Row("agent.sock", python_probe(connect)))
        found = escapes(run_all(jar, rows))
    found.pop("/proc/sys/kernel/random/boot_id", None)
    assert not found
    assert jar.run(SEARCH, language="bash").stdout.split() == ["./README"]
    assert not (arena / "belljar-attack").exists()


def test_denied_name_that_appears_later(open_jar: OpenJar, project: Path) -> None:
    """CVE-2026-25725: denied names that were made after the start, in the workspace and in a read-only mount."""
    (project / "sub").mkdir()
    (project / "sub" / "README").write_text(SECRET)
    mounts = [{"path": "/workspace", "rw": True}, {"path": "/deps", "source": str(project)}]
    jar = open_jar({"fs": {"mounts": mounts}}, workspace=project)
    script = f"{SEARCH}; cd /deps; {SEARCH}"
    before = jar.run(script, language="bash").stdout.split()
    for name in (".env", "sub/.env", "sub/id_rsa"):
        (project / name).write_text(SECRET)
    assert before == ["./sub/README", "./sub/README"]
    assert jar.run(script, language="bash").stdout.split() == before


@pytest.mark.parametrize("workdir", ["/etc", "/workspace/../..", "/proc/self/fd/7", "/workspace/link"])
def test_chosen_working_directory(open_jar: OpenJar, workdir: str) -> None:
    """CVE-2025-59532 and CVE-2024-21626: a working directory that someone chose, or that is a link of the code's."""
    try:
        jar = open_jar({"fs": {"workdir": workdir}})
    except PolicyError:
        return
    if workdir == "/workspace/link":
        with suppress(*UsageErrors):
            jar.exec(["sh", "-c", "ln -s /proc/self/fd/7/../../.. /workspace/link"])
    with suppress(BelljarError):
        result = jar.run(python_probe("def attack(): return open('planted', 'w'), os.getcwd()"))
        assert result.outcome != "ok" or held(result)


# --- what the host does with a workspace -----------------------------------------------------------------------------


def test_file_api_follows_nothing(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """CVE-2026-39861: reading, writing, listing, removing and saving by the host go through no link of the code's."""
    secret = arena / "secret"
    secret.write_text(SECRET)
    jar = open_jar(workspace=project)
    script = LINKS.format(secret=secret, directory=arena)
    result = jar.run(f"{script}\nmkdir tree; ln -s {arena} tree/out; echo mine > plain", language="bash")
    assert [artifact.path for artifact in result.artifacts] == ["plain"]
    kept = jar.exec(["test", "-e", "pipe"]).ok  # gVisor keeps pipes in its own memory
    for path in (path.format(secret=secret) for path in PATHS if kept or path != "pipe"):
        for act in (jar.files.read, lambda path: jar.files.write(path, b"x"), lambda path: jar.files.list(f"{path}/.")):
            with pytest.raises(UsageErrors):
                act(path)
    jar.files.remove("tree")
    jar.files.remove("directory")
    assert secret.read_text() == SECRET


def test_nothing_that_acts_or_leaves_is_applied(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """Links that lead out, denied names, what git would obey, pipes and odd modes: `apply` brings none of them back."""
    (arena / "secret").write_text(SECRET)
    (project / "became").mkdir()
    jar = open_jar(workspace=project)
    links = "; ".join(
        f"mkdir -p l{number}; cd l{number}; {script.format(secret=arena / 'secret')}; cd .."
        for number, script in enumerate(LEAVING.values())
    )
    made = [path for path in FORBIDDEN.values() if path not in (".git", "sub/.git")]
    jar.run(f"{links}; mkfifo pipe; umask 0; echo x > sticky; chmod 1777 sticky; echo x > became/new", language="bash")
    assert jar.exec(["sh", "-c", f'for each; do set -- "$each"; {MAKE}; done', "sh", *made]).ok
    (project / "became").rmdir()
    (project / "became").symlink_to(arena)
    with jar.changes() as changes:
        changes.apply()
    assert not (arena / "new").exists()
    (project / "became").unlink()
    assert not [path for path in made if os.path.lexists(project / path)]
    for path in project.rglob("*"):
        assert not path.is_fifo()
        assert not path.is_symlink() or path.resolve().is_relative_to(project.resolve())
        assert path.is_symlink() or not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)


def test_host_looks_at_anything_and_lives(open_jar: OpenJar, project: Path) -> None:
    """Whatever tree the code leaves: the run returns, the host lists, compares and removes, and the next run works."""
    jar = open_jar(workspace=project, overrides=["proc.timeout_ms=60s"])
    enter = "os.mkdir('/workspace/{0}'); os.chdir('/workspace/{0}')\n{1}"
    bodies = [enter.format(f"tree{number}", textwrap.dedent(body)) for number, body in enumerate(TREES.values())]
    result = jar.run("import os, socket\n" + "\n".join(bodies))
    assert result.ok, result.stderr
    assert len(jar.files.list(recursive=True)) > 5000
    for entry in jar.files.list():
        jar.files.remove(entry.path)
    assert jar.files.list() == []
    trees = ("closed directories", "names that are not text", "links in a ring", "pipes and sockets")
    assert jar.run("import os, socket\n" + "\n".join(textwrap.dedent(TREES[name]) for name in trees)).ok
    with jar.changes() as changes:
        assert len(changes) > 0
        changes.diff()
    assert jar.run("print('alive')").stdout == "alive\n"


LONG = r"""
import os
os.mkdir("deep"); os.chdir("deep")
for _ in range(40):
    os.mkdir(b"\xff" * 250); os.chdir(b"\xff" * 250)
for i in range(300): open(str(i), "w")
"""
MANY_NAMES = """
import os
with open("big", "wb") as file:
    for _ in range(12): file.write(os.urandom(1 << 20))
for i in range(50): os.link("big", f"name{i}")
"""


def test_nothing_fills_the_hosts_disk_or_its_messages(
    open_jar: OpenJar, project: Path, arena: Path, state_directory: str
) -> None:
    """Sparse files, a file of many names, and paths of ten thousand odd bytes: bounded on the host as in the jar."""
    jar = open_jar(workspace=project, overrides=["fs.size_mb=16", "proc.file_size_mb=64", "proc.timeout_ms=60s"])
    assert jar.run(MANY_NAMES).ok
    assert jar.run(SPARSE).ok
    with jar.changes() as changes:
        assert len(changes) == 55
        assert _disk(Path(state_directory)) < 32 << 20  # the control: 51 names of 12 MB, one by one, are 612
    for entry in jar.files.list():
        jar.files.remove(entry.path)
    result = jar.run(LONG)
    assert len(result.artifacts) == 300
    assert len(jar.files.list(recursive=True)) == 341


def _disk(directory: Path) -> int:
    seen = {(status.st_ino): status.st_blocks * 512 for path in directory.rglob("*") for status in [path.lstat()]}
    return sum(seen.values())


# --- a host that looks while the code runs ---------------------------------------------------------------------------

STAND = """
import os, time
os.makedirs("d/e"); os.chdir("d/e")
print("go", flush=True)
deadline = time.monotonic() + 3
i = 0
while time.monotonic() < deadline:
    i += 1
    try: open(str(i % 50), "w").close()
    except OSError: pass
for up in ("..", "../..", "../../.."):
    try: found = os.listdir(up)
    except OSError as error: found = []
    print(up, [name for name in found if name.startswith(("m0", "tmp-", "code-", "gone"))], flush=True)
"""
KINDS = """
import os
print("go", flush=True)
while True:
    for make in (lambda: open("x", "w").write("y" * 100), lambda: os.mkfifo("x"), lambda: os.mkdir("x"),
                 lambda: os.symlink("/etc/passwd", "x")):
        make()
        try: os.unlink("x")
        except OSError: os.rmdir("x")
"""


def test_directory_that_is_removed_under_the_code(open_jar: OpenJar) -> None:
    """The depot moves what it removes out of the mount: the code that stands in it sees nothing of the volume."""
    jar = open_jar(overrides=["proc.timeout_ms=30s"])
    events = iter(jar.stream(STAND))
    next(events)
    jar.files.remove("d")
    jar.files.write("d/again", b"x")
    jar.files.remove("d")
    said = "".join(event.data.decode() for event in events if hasattr(event, "data"))
    assert said.strip().splitlines() == [".. []", "../.. []", "../../.. []"], said
    assert jar.run("print('alive')").stdout == "alive\n"


@pytest.mark.parametrize("swap", ["link", "kind"])
def test_race_against_the_depot(open_jar: OpenJar, project: Path, arena: Path, swap: str) -> None:
    """A name that is a directory, a link, a pipe and a file in turn while the host looks: nothing is followed."""
    secret = arena / "secret"
    secret.write_text(SECRET)
    jar = open_jar(workspace=project, overrides=["proc.timeout_ms=30s"])
    events = iter(jar.stream(SWAP.format(victim=str(arena), mode=0o700) if swap == "link" else KINDS))
    next(events)
    seen: set[object] = set()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        for look in (lambda: jar.files.read("d/secret"), lambda: jar.files.read("x"), lambda: jar.files.list("d")):
            with suppress(*UsageErrors):
                seen |= set(look()) if isinstance(look(), list) else {look()}
        with jar.changes() as changes:  # must not raise, whatever the code does meanwhile
            seen |= {change.path for change in changes if "secret" in change.path}
    jar.kill()
    for _event in events:
        pass
    assert secret.read_text() == SECRET
    assert not {text for text in seen if isinstance(text, bytes) and (SECRET.encode() in text or b"root:" in text)}
