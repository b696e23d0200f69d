"""Views with the names that were there when they were made, and no others (`backends/bubblewrap/stage/frozen.py`)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.backends.bubblewrap.host.facts import kernel_version
from belljar.backends.bubblewrap.stage import frozen
from belljar.backends.contract import Status
from belljar.sandbox.record.result import RunResult

pytestmark = [
    pytest.mark.backend("bubblewrap"),
    pytest.mark.skipif(kernel_version() < (6, 16), reason="overlayfs can't do this for an ordinary user before 6.16"),
]
GLOBS = ["**/.env", "**/*.key", "**/vault/**"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with something of everything."""
    top = tmp_path / "project"
    for name, content in {
        "plain": "plain", ".env": "SECRET", "a.key": "SECRET", "vault/deep/x": "SECRET", "sub/deep/file": "deep",
        "sub/.env": "SECRET", "empty": "", "name with ä : \\ and\nmore": "odd",
    }.items():  # fmt: skip
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (top / "link").symlink_to("sub/deep")
    (top / "out").symlink_to("/etc/shadow")
    (top / "run").write_text("#!/bin/sh\necho ran\n")
    (top / "run").chmod(0o755)
    (top / "sub/read-only").mkdir()
    (top / "sub/read-only/file").write_text("x")
    (top / "sub/read-only").chmod(0o555)
    os.mkfifo(top / "pipe")
    os.utime(top / "plain", ns=(10**18, 10**18 + 7))
    return top


@pytest.fixture
def jar(project: Path) -> Iterator[Sandbox]:
    """On a copy-on-write view of it."""
    with Sandbox({"fs": {"deny_globs": GLOBS}}, workspace=project) as made:
        yield made


def sh(jar: Sandbox, script: str) -> RunResult:
    return jar.run(script, language="bash")


def test_all_that_is_not_denied_is_there(jar: Sandbox, project: Path) -> None:
    """With its content, its mode and its time; what is denied is not, by no path, nor is a pipe of the host's."""
    listed = set(sh(jar, "find . -not -name 'name*' | sort").stdout.split())
    wanted = {".", "./plain", "./sub", "./sub/deep", "./sub/deep/file", "./empty", "./link", "./out", "./run"}
    assert listed == wanted | {"./sub/read-only", "./sub/read-only/file"}
    seen = sh(jar, "cat plain link/file name*; ./run; stat -c '%a %Y %s' plain sub/read-only run; readlink out")
    assert seen.stdout.startswith("plaindeepoddran\n644 1000000000 5\n555 ")
    assert seen.stdout.endswith("\n/etc/shadow\n")
    assert jar.plan(argv=["true"]).report.clause("fs.deny_globs").status is Status.ENFORCED


def test_what_the_host_makes_later_is_not(jar: Sandbox, project: Path) -> None:
    """In new directories and in old ones; what it changes in a file that was there, is."""
    assert sh(jar, "ls").ok
    (project / "new").mkdir()
    for name in ("new/.env", "new/file", "sub/b.key", "later", "sub/deep/.env"):
        (project / name).write_text("SECRET")
    (project / "sub/deep/file").write_text("DEEP")
    result = sh(jar, "find . ; cat new/.env sub/b.key later sub/deep/.env; cat sub/deep/file")
    assert "SECRET" not in result.stdout
    assert not {"./new", "./later", "./sub/b.key"} & set(result.stdout.splitlines())
    assert result.stdout.endswith("DEEP")


def test_changes_are_found_and_applied(jar: Sandbox, project: Path) -> None:
    """As in any copy-on-write view: content, modes, deletions, what is new; and the host's directory is untouched."""
    script = (
        "echo more >> plain; rm sub/deep/file; mkdir made; echo x > made/x; chmod 600 empty; mv run ran; rm -r link"
    )
    assert sh(jar, script).ok
    assert (project / "plain").read_text() == "plain"
    changes = jar.changes()
    kinds = {change.path: str(change.kind) for change in changes}
    assert kinds["plain"] == "modified"
    assert {path for path, kind in kinds.items() if kind == "deleted"} == {"sub/deep/file", "run", "link"}
    assert {"made/x", "ran"} <= kinds.keys()
    changes.apply()
    assert (project / "plain").read_text() == "plainmore\n"
    assert not (project / "sub/deep/file").exists()
    assert (project / "ran").read_text().startswith("#!/bin/sh")
    assert stat.S_IMODE((project / "empty").stat().st_mode) == 0o600
    assert (project / ".env").read_text() == "SECRET"


def test_read_only_mounts(project: Path) -> None:
    """Have the same names, and can't be written to."""
    mounts = [{"path": "/workspace", "rw": True}, {"path": "/data", "source": str(project)}]
    with Sandbox({"fs": {"deny_globs": GLOBS, "mounts": mounts}}) as jar:
        assert sh(jar, "cat /data/plain /data/sub/deep/file").stdout == "plaindeep"
        (project / "new").mkdir()
        (project / "new/.env").write_text("SECRET")
        assert sh(jar, "cat /data/new/.env /data/.env /data/a.key; touch /data/x; ls /data").stdout.count("new") == 0


def test_too_many_names(project: Path) -> None:
    """Then names are denied by whiteouts, and the report says what is lost; `on_degraded` says whether that will do."""
    (project / "many").mkdir()
    for number in range(frozen.MOST_NAMES):
        (project / "many" / str(number)).touch()
    with Sandbox({"fs": {"deny_globs": GLOBS}}, workspace=project) as jar:
        result = sh(jar, "cat plain .env")
        assert result.stdout == "plain"
        assert "fs.deny_globs" in [clause.key for clause in result.enforcement.shortfalls()]
    policy = {"fs": {"deny_globs": GLOBS}, "on_degraded": ["proc.mem_mb", "proc.cpu_quota"]}
    with Sandbox(policy, workspace=project) as jar:
        assert "fs.deny_globs" in sh(jar, "true").reason


def test_words_of_overlayfs_are_not_the_projects_or_the_codes_to_say(project: Path) -> None:
    """What says where a file's data lies is belljar's own layer's: the same words lead nowhere on other files."""
    for name, value in (("metacopy", b""), ("redirect", b"/.env")):
        os.setxattr(project / "plain", f"user.overlay.{name}", value)
    plant = "import os\nopen('mine', 'w').write('SECRET')\nos.mkdir('made')\n"
    for name, path in (("mine", "/.env"), ("plain", "/.env"), ("made", "/vault")):
        plant += f"os.setxattr({name!r}, 'user.overlay.metacopy', b'')\n"
        plant += f"os.setxattr({name!r}, 'user.overlay.redirect', b'{path}')\n"
    with Sandbox({"fs": {"deny_globs": GLOBS}}, workspace=project) as jar:
        assert sh(jar, "cat plain").stdout == "plain"
        jar.run(plant)
        assert sh(jar, "cat plain; ls made").stdout == "plain"
        assert jar.plan(argv=["true"]).report.clause("fs.deny_globs").status is Status.ENFORCED
