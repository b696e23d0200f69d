"""Attacks on the host's files from inside: secrets, ways around the root, denied names in a workspace."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from attack_control import control, forgetful_root, open_file, python_control
from attack_probe import escaped, held, python_probe
from attack_search import SEARCH, SECRET, search_later

from belljar import PolicyError, Sandbox, SandboxUnavailableError

OpenJar = Callable[..., Sandbox]

READ = python_probe("def attack(path): return open(path, 'rb').read(20)")
STAT = python_probe("def attack(path): return os.stat(path)")


# --- what is outside -------------------------------------------------------------------------------------------------

SECRETS = (
    ".ssh/id_rsa",
    ".ssh/config",
    ".env",
    ".aws/credentials",
    ".config/gcloud/credentials.db",
    ".azure/accessTokens.json",
    ".kube/config",
    ".docker/config.json",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".gnupg/secring.gpg",
    ".claude/.credentials.json",
    ".bash_history",
    ".local/state/belljar/ca.key",
)


@pytest.fixture
def home(arena: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory full of secrets that every user may read: only a jar hides them."""
    path = arena / "home"
    for secret in SECRETS:
        (path / secret).parent.mkdir(parents=True, exist_ok=True)
        (path / secret).write_text(SECRET)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("BELLJAR_STATE_DIR")
    return path


def test_secrets_of_home_are_not_there(open_jar: OpenJar, home: Path) -> None:
    """Keys, cloud and cluster credentials, histories and belljar's own state: none can be opened."""
    code = python_probe(
        """
        def attack(home, *names):
            tops = (home, os.path.expanduser("~"))
            found = [name for name in names for top in tops if os.path.lexists(f"{top}/{name}")]
            if not found:
                raise OSError(errno.ENOENT, "nothing")
            return found if set(found) < set(names) else "all of them"
        """
    )
    assert held(open_jar().run(code, args=[str(home), *SECRETS]))
    assert "ESCAPED: all of them" in python_control(code, str(home), *SECRETS)


def test_home_as_working_directory_stays_hidden(open_jar: OpenJar, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-59532: where the caller stands widens nothing."""
    monkeypatch.chdir(home)
    code = python_probe("def attack(path): return os.listdir(path), open(f'{path}/.planted', 'w')")
    assert held(open_jar().run(code, args=[str(home)]))
    assert "HELD" in open_jar().run(READ, args=[".ssh/id_rsa"]).stdout
    assert not (home / ".planted").exists()
    home.chmod(0o777)
    assert escaped(python_control(code, str(home)))


@pytest.mark.parametrize("workdir", ["/", "/usr", "/etc", "/tmp/../etc", "/proc", "/dev", "/workspace/../.."])
def test_chosen_working_directory_is_not_writable(open_jar: OpenJar, arena: Path, workdir: str) -> None:
    """A working directory that someone chose is refused or read-only as it was; a writable one can be written."""
    code = python_probe("def attack(): return open('planted', 'w')")
    try:
        jar = open_jar({"fs": {"workdir": workdir}})
    except PolicyError:
        pass
    else:
        assert held(jar.run(code))
    assert escaped(python_control(code, cwd=str(arena)))


HIDDEN = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/machine-id",
    "/var/log",
    "/var/lib",
    "/boot",
    "/srv",
    "/sys",
    "/mnt",
    "/media",
]
HOMES = ("/root", "/home")


@pytest.mark.parametrize("path", HIDDEN)
def test_part_of_the_host_is_not_there(jar: Sandbox, path: str) -> None:
    """What the jar does not need is not merely closed: it is absent. In a control it is there, if perhaps closed."""
    assert held(jar.run(STAT, args=[path]))
    missing = not os.path.lexists(path)
    if missing and os.path.dirname(path) == "/":
        pytest.skip(f"this host has no {path}, and a control can't make one")
    assert escaped(python_control(STAT, path, root=missing, setup=open_file(path) if missing else ""))


@pytest.mark.parametrize("path", HOMES)
def test_homes_show_nothing_but_the_way_to_an_interpreter(jar: Sandbox, path: str) -> None:
    """If an interpreter lies in a home directory, that path is in the jar and nothing beside it.

    The control has homes of its own there, with a file in each.
    """
    code = python_probe(
        """
        def attack(path, interpreter):
            seen = [name for name in os.listdir(path) if not interpreter.startswith(f"{path}/{name}/")]
            if not seen:
                raise OSError(errno.ENOENT, "nobody lives here")
            return seen
        """
    )
    assert held(jar.run(code, args=[path, jar.plan("pass").argv[0]]))
    assert escaped(python_control(code, path, "/usr/bin/python3", root=True, setup=open_file(f"{path}/someone")))


def test_passwd_is_the_jars_own(jar: Sandbox) -> None:
    """`/etc/passwd` says nothing about the host's users."""
    digest = hashlib.sha256(Path("/etc/passwd").read_bytes()).hexdigest()
    code = python_probe(
        """
        def attack(digest):
            import hashlib
            if hashlib.sha256(open("/etc/passwd", "rb").read()).hexdigest() != digest:
                raise OSError(errno.ENOENT, "another file")
            return "the host's"
        """
    )
    assert held(jar.run(code, args=[digest]))
    assert escaped(python_control(code, digest))


OLD_ROOTS = ("/oldroot{path}", "/newroot{path}", "/sys/src/0{path}", "/.old_root{path}", "/run/host{path}")
WAYS_AROUND = (
    "{path}",
    "/workspace/../../../../../../../../..{path}",
    "/proc/self/root{path}",
    "/proc/self/cwd/../..{path}",
    "/proc/1/root{path}",
    "/proc/1/cwd/..{path}",
    "/proc/self/task/1/root{path}",
    "/proc/thread-self/root/../..{path}",
    "/proc/self/fd/0/../../../..{path}",
    *OLD_ROOTS,
)


@pytest.mark.parametrize("way", WAYS_AROUND)
def test_no_way_around_the_root(jar: Sandbox, arena: Path, way: str) -> None:
    """A file outside is not reached by `..`, by the links of /proc, or by the names bubblewrap uses while it builds.

    In the control, every one of these ways leads to it: nothing is hidden there, and an old root is still mounted.
    """
    (arena / "secret").write_text(SECRET)
    path = way.format(path=f"{arena}/secret")
    assert held(jar.run(READ, args=[path]))
    (arena / "root").mkdir()
    (arena / "root").chmod(0o777)
    forgotten = way.removesuffix("{path}") if way in OLD_ROOTS else "/oldroot"
    setup = f"{forgetful_root(str(arena / 'root'), forgotten)}\nexec <."  # its standard input is a directory
    assert SECRET in control(["cat", path], root=True, setup=setup)


def test_links_that_lead_out_lead_nowhere(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """A link in the workspace to a file outside of it resolves inside the jar, where that file is not."""
    (arena / "secret").write_text(SECRET)
    (project / "absolute").symlink_to(arena / "secret")
    (project / "relative").symlink_to("../secret")
    (project / "directory").symlink_to("..")
    script = "cat absolute relative directory/secret ../secret directory/../secret; true"
    assert SECRET not in open_jar(workspace=project).run(script, language="bash").stdout
    assert SECRET in control(["bash", "-c", script], cwd=str(project))


def test_nothing_outside_can_be_written(open_jar: OpenJar, project: Path, arena: Path) -> None:
    """Only the workspace, /tmp and /dev/shm take a file; in a control a directory elsewhere takes one too."""
    (project / "out").symlink_to(arena)
    code = python_probe(
        """
        def attack(*extra):
            made = []
            for path in (*extra, *"/ /usr /usr/bin /etc /bin /lib /run /run/jar /dev /var /opt /proc /sys".split()):
                try:
                    os.close(os.open(f"{path}/belljar-attack", os.O_CREAT | os.O_WRONLY))
                    made.append(path)
                except OSError:
                    pass
            if not made:
                raise OSError(errno.EROFS, "nowhere")
            return made
        """
    )
    jar = open_jar(workspace=project)
    assert held(jar.run(code, args=["/workspace/out", str(arena)]))
    assert not (arena / "belljar-attack").exists()
    assert escaped(python_control(code, str(arena)))


def test_workspace_of_the_host_is_never_changed(open_jar: OpenJar, project: Path) -> None:
    """Whatever the code writes, moves, truncates, links or removes: the host's directory stays as it was."""
    (project / "sub").mkdir()
    for name in ("a", "sub/b"):
        (project / name).write_text("before")
    project.chmod(0o777)

    def state() -> list[tuple[str, bytes, int]]:
        files = sorted(path for path in project.rglob("*") if path.is_file())
        return [(str(path), path.read_bytes(), path.stat().st_mode) for path in files]

    before = state()
    script = (
        "echo x>a; echo x>>sub/b; chmod 600 a; mv sub moved; ln a hard; rm -rf moved; echo n>new; truncate -s 0 a; ls"
    )
    assert open_jar(workspace=project).run(script, language="bash").ok
    assert state() == before
    for path in [project, *project.rglob("*")]:
        path.chmod(0o777)
    control(["bash", "-c", script], cwd=str(project))
    assert state() != before


# --- denied names in a workspace -------------------------------------------------------------------------------------

DENIED = (
    ".env",
    "sub/.env",
    "sub/deep/.env.local",
    "id_rsa",
    "sub/id_ed25519.old",
    ".ssh/config",
    ".aws/credentials",
    "sub/.netrc",
)


@pytest.fixture
def denied(project: Path) -> Path:
    """A project with denied files, and one that is not."""
    for name in (*DENIED, "README"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(SECRET)
    return project


TRICKS = {
    "read": SEARCH,
    "list": f"find . -name .env -o -name 'id_*' -o -path './.ssh/*' -o -path './.aws/*' | sed 's/$/ {SECRET}/'; true",
    "rename the directory": f"mv sub moved; {SEARCH}",
    "copy the directory": f"cp -r sub copied; {SEARCH}",
    "remove and make the directory anew": f"rm -rf sub; mkdir sub; {SEARCH}",
    "link to it": f"ln -s sub/.env visible; cat visible && echo ./{SECRET}; {SEARCH}",
    "hard link to it": f"ln sub/.env visible; ln .env visible2; {SEARCH}",
    "truncate and remove the cover": f"rm -f .env sub/.env; {SEARCH}",
    "another spelling": f"cat ./sub/../.env sub//.env /workspace/./.env | sed 's/^/.\\/x /'; {SEARCH}",
    "by the links of /proc": f"cat /proc/self/cwd/.env /proc/self/root/workspace/.env | sed 's/^/.\\/x /'; {SEARCH}",
    "from below": f"cd sub/deep; cat ../.env ../../.env | sed 's/^/.\\/x /'; {SEARCH}",
    "an archive": f"tar cf - . 2>/dev/null | grep -aq '{SECRET}.*{SECRET}' && echo ./all; {SEARCH}",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_denied_file_stays_hidden(open_jar: OpenJar, denied: Path, trick: str) -> None:
    """Denied names are not there, by whatever path the code looks; in a control they are all found."""
    found = [
        line
        for line in open_jar(workspace=denied).run(TRICKS[trick], language="bash").stdout.split()
        if SECRET in line or line.startswith("./")
    ]
    assert [line for line in found if line not in ("./README", SECRET)] == []
    for path in [denied, *denied.rglob("*")]:
        path.chmod(0o777)
    assert len(control(["bash", "-c", TRICKS[trick]], cwd=str(denied)).split()) > 1


def test_read_only_mount_hides_denied_names_too(open_jar: OpenJar, denied: Path) -> None:
    """deny_globs hold in every mount, not only in the workspace."""
    mounts = [{"path": "/workspace", "rw": True}, {"path": "/deps", "source": str(denied)}]
    assert open_jar({"fs": {"mounts": mounts}}).run(f"cd /deps; {SEARCH}", language="bash").stdout.split() == [
        "./README"
    ]
    assert len(control(["bash", "-c", SEARCH], cwd=str(denied)).split()) == len(DENIED) + 1


def test_hard_link_under_another_name_is_hidden(open_jar: OpenJar, denied: Path) -> None:
    """A second name of a denied file is denied too."""
    os.link(denied / ".env", denied / "harmless.txt")
    os.link(denied / "sub/.env", denied / "sub/notes.md")
    assert open_jar(workspace=denied).run(SEARCH, language="bash").stdout.split() == ["./README"]
    assert "./harmless.txt" in control(["bash", "-c", SEARCH], cwd=str(denied))


@pytest.mark.parametrize("name", [".env", "sub/.env", "sub/.netrc", ".ssh/id", "id_rsa", "sub/id_rsa"])
def test_denied_file_that_appears_later_is_hidden(open_jar: OpenJar, project: Path, name: str) -> None:
    """CVE-2026-25725: a denied name that did not exist when the jar was made is denied when it appears."""
    (project / "sub").mkdir()

    def appear() -> None:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(SECRET)

    assert search_later(open_jar, project, appear, patience=0) == []
    assert f"./{name}" in control(["bash", "-c", SEARCH], cwd=str(project))


def test_denied_file_replaced_on_the_host_stays_hidden(open_jar: OpenJar, denied: Path) -> None:
    """A file that editors replace by rename loses a mask; the whiteout denies the name."""

    def replace() -> None:
        for name in (".env", "sub/.env"):
            (denied / f"{name}.tmp~").write_text(SECRET)
            (denied / f"{name}.tmp~").rename(denied / name)

    assert search_later(open_jar, denied, replace, patience=0) == []
    assert {"./.env", "./sub/.env"} < set(control(["bash", "-c", SEARCH], cwd=str(denied)).split())


def test_closed_directory_hides_denied_names(open_jar: OpenJar, denied: Path) -> None:
    """A directory that its owner closed: the code owns its view and may open it, and still finds no denied name."""
    (denied / "sub").chmod(0)
    script = f"chmod -R 700 sub; {SEARCH}"
    assert open_jar(workspace=denied).run(script, language="bash").stdout.split() == ["./README"]
    for path in [denied / "sub", *(denied / "sub").rglob("*")]:
        path.chmod(0o777)
    assert "./sub/.env" in control(["bash", "-c", SEARCH], cwd=str(denied))


def test_path_too_long_to_name_hides_nothing(open_jar: OpenJar, project: Path) -> None:
    """A denied file deeper than the longest path: found by nobody's path walk, so the jar hides it or is not made."""
    name = "d" * 200
    handle = os.open(project, os.O_RDONLY)
    for _ in range(25):
        os.mkdir(name, dir_fd=handle)
        below = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    file = os.open(".env", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=handle)
    os.write(file, SECRET.encode())
    os.close(file)
    os.close(handle)
    code = python_probe(
        """
        def attack():
            for _ in range(25):
                os.chdir("d" * 200)
            return open(".env").read()
        """
    )
    with suppress(SandboxUnavailableError):
        assert held(open_jar(workspace=project).run(code))
    assert escaped(python_control(code, cwd=str(project)))


# --- what is planted in the workspace --------------------------------------------------------------------------------

PLANTED = """
version: 1
extends: aicode
proc: {timeout_ms: 7s}
fs: {mounts: [{path: /workspace, rw: true}, {path: /host, source: /}]}
"""


def test_policy_planted_in_the_workspace_is_not_read(
    open_jar: OpenJar, project: Path, arena: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2025-59536: a policy file in the code's own directory has no effect, and naming it is an error."""
    for name in ("sandbox.policy.yaml", "belljar.yaml", ".belljar.yaml", "policy.yaml"):
        (project / name).write_text(PLANTED)
    (project / "link.yaml").symlink_to(arena / "project" / "policy.yaml")
    monkeypatch.chdir(project)
    jar = open_jar(workspace=project)
    assert jar.policy.proc.timeout_seconds == 60
    assert held(jar.run(STAT, args=["/host"]))
    for name in ("sandbox.policy.yaml", "link.yaml"):
        with pytest.raises(PolicyError, match="workspace"):
            open_jar(str(project / name), workspace=project)
    (arena / "outside.yaml").write_text(PLANTED.replace("source: /}", f"source: {arena}}}"))
    assert open_jar(str(arena / "outside.yaml"), workspace=project).policy.proc.timeout_seconds == 7
