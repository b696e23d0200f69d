"""Mounts: which files of the host the code sees, and which of its own come back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jars import OpenJar, finish, sh, told
from lifeline import Lifeline
from trees import contents, fingerprint, plant

from belljar import Sandbox
from belljar.errors import PolicyError
from belljar.sandbox.record.result import Outcome


def mounted(source: Path, path: str = "/data", **how: bool) -> dict[str, Any]:
    """A policy with one more mount."""
    return {"fs": {"mounts": [{"path": path, "source": str(source), **how}]}}


LIVE = {"on_degraded": "allow"}


class TestKinds:
    """Read-only, copy-on-write, live, ephemeral."""

    def test_read_only_is_read_and_not_written(self, open_jar: OpenJar, project: Path) -> None:
        """Every way to write fails, and the host's directory is as it was to the last bit."""
        plant(project, {"file": "old", "directory/inner": "x", "link": "-> file"})
        before = fingerprint(project)
        jar = open_jar(mounted(project))
        assert told(sh(jar, "cat /data/file /data/link /data/directory/inner")) == "oldoldx"
        attempts = [
            "echo x > file", "echo x > new", "mkdir new", "rm file", "mv file other", "chmod 777 file", "ln file hard",
            "ln -s x new", "rmdir directory", "touch file", "truncate -s 0 file", "touch .", "mkfifo new",
        ]  # fmt: skip
        script = "cd /data\n" + "\n".join(f"({attempt}) 2>/dev/null && echo '{attempt}'" for attempt in attempts)
        assert told(sh(jar, script + "\ntrue")) == ""
        assert fingerprint(project) == before

    def test_copy_on_write_is_written_and_the_host_untouched(self, open_jar: OpenJar, project: Path) -> None:
        """The code sees its changes, in this run and the next; the host sees none."""
        plant(project, {"file": "old", "gone": "x", "directory/inner": "x"})
        before = fingerprint(project)
        jar = open_jar(mounted(project, rw=True, cow=True))
        told(sh(jar, "cd /data && echo new > file && rm gone && rm -r directory && echo x > made && chmod 700 ."))
        assert told(sh(jar, "cd /data && ls && cat file")) == "file\nmade\nnew\n"
        assert fingerprint(project) == before

    def test_live_writes_through(self, open_jar: OpenJar, project: Path) -> None:
        """What the code writes is the host's at once, and belongs to the directory's owner."""
        plant(project, {"file": "old", "gone": ""})
        jar = open_jar({**mounted(project, rw=True), **LIVE})
        told(sh(jar, "cd /data && echo new > file && rm gone && mkdir sub && echo x > sub/made"))
        assert contents(project) == {"file": "new\n", "sub/": "", "sub/made": "x\n"}
        owner = project.stat()
        for path in (project / "sub", project / "sub" / "made"):
            assert (path.stat().st_uid, path.stat().st_gid) == (owner.st_uid, owner.st_gid)

    def test_the_host_writes_and_the_code_sees_it(self, open_jar: OpenJar, project: Path) -> None:
        """In a live mount, in both directions, while the code runs."""
        jar = open_jar({**mounted(project, rw=True), **LIVE})
        events = jar.stream(argv=["sh", "-c", "echo up; until [ -e /data/go ]; do sleep 0.01; done; cat /data/go"])
        next(events)
        staged = project.parent / "go"
        staged.write_text("from the host")
        staged.rename(project / "go")
        assert told(finish(events)) == "up\nfrom the host"

    def test_ephemeral_is_empty_and_its_own(self, open_jar: OpenJar) -> None:
        """A mount without a source is there for the life of the Sandbox."""
        jar = open_jar({"fs": {"mounts": [{"path": "/scratch", "rw": True}]}})
        assert told(sh(jar, "find /scratch -mindepth 1; echo kept > /scratch/file")) == ""
        assert told(sh(jar, "cat /scratch/file")) == "kept\n"
        assert (
            told(sh(open_jar({"fs": {"mounts": [{"path": "/scratch", "rw": True}]}}), "find /scratch -mindepth 1"))
            == ""
        )

    def test_workspace_option_is_copy_on_write(self, open_jar: OpenJar, project: Path) -> None:
        """`workspace=DIR` shows DIR at /workspace and never changes it."""
        plant(project, {"file": "old"})
        before = fingerprint(project)
        jar = open_jar(workspace=project)
        assert told(sh(jar, "pwd; cat file; echo new > file; cat file")) == "/workspace\noldnew\n"
        assert fingerprint(project) == before

    def test_live_option_writes_through(self, open_jar: OpenJar, project: Path) -> None:
        """`live=True` shows the directory itself."""
        told(sh(open_jar(LIVE, workspace=project, live=True), "echo x > made"))
        assert contents(project) == {"made": "x\n"}

    def test_live_is_refused_unless_it_is_accepted(self, open_jar: OpenJar, project: Path) -> None:
        """Wildcard patterns can't hold there, so the policy has to say that this is fine."""
        plant(project, {"file": "old"})
        before = fingerprint(project)
        result = sh(open_jar(workspace=project, live=True), "echo new > file")
        assert result.outcome is Outcome.REFUSED
        assert "fs.deny_globs" in result.reason
        assert fingerprint(project) == before


NAMES = {
    "space": "a b",
    "colon": "a:b",
    "comma": "a,b",
    "backslash": "a\\b",
    "octal": "a\\040b",
    "quotes": "a'\"b",
    "letters": "grün€😀",
    "letters and space": "grün € 😀",
    "signs": "a=$(id);`id`&|<>*?[x]{y}~#!%s",
    "option": "--bind",
    "dots": "..a",
}


class TestNames:
    """A name is a name, whatever is in it."""

    @pytest.mark.parametrize("name", [*NAMES.values(), "a\nb", "a\tb", " a "], ids=[*NAMES, "newline", "tab", "around"])
    def test_of_a_source(self, open_jar: OpenJar, tmp_path: Path, name: str) -> None:
        """Read-only and copy-on-write, with a denied file in it."""
        source = plant(tmp_path / name, {"file": "content", ".env": "secret", f"{name}.txt": "same"})
        policy = {"fs": {"mounts": [{"path": "/r", "source": str(source)},
                                    {"path": "/c", "source": str(source), "rw": True, "cow": True}]}}  # fmt: skip
        jar = open_jar(policy)
        script = 'cd /r && cat file "./$1.txt"; cat .env; cd /c && echo x >> file && cat file "./$1.txt"; cat .env'
        result = sh(jar, f"{script}; true", name)
        assert told(result) == "contentsamecontentx\nsame"

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
    def test_of_a_place_in_the_jar(self, open_jar: OpenJar, project: Path, name: str) -> None:
        """The mount lies where the policy says."""
        plant(project, {"file": "content"})
        jar = open_jar(mounted(project, f"/mnt/{name}"))
        assert told(sh(jar, 'cat "/mnt/$1/file"', name)) == "content"

    @pytest.mark.parametrize("name", ["/a\nb", "/a\tb", "relative", "/a/../../etc", "/etc", "/usr/x", "/proc", "/"])
    def test_places_that_cannot_be(self, open_jar: OpenJar, project: Path, name: str) -> None:
        """What is the jar's own, or could be misread, is the policy's mistake."""
        with pytest.raises(PolicyError, match=r"fs\.mounts"):
            open_jar(mounted(project, name))

    def test_files_of_every_name_come_and_go(self, open_jar: OpenJar, project: Path) -> None:
        """Also names that are no text at all."""
        raw = os.fsencode(project) + b"/\xff\xfe"
        Path(os.fsdecode(raw)).write_text("x")
        plant(project, dict.fromkeys(NAMES.values(), "x"))
        jar = open_jar(workspace=project)
        count = len(NAMES) + 1
        assert (
            told(sh(jar, 'ls -A | wc -l; for f in * .[!.]* ..?*; do [ -e "./$f" ] && echo y > "./$f"; done; true'))
            == f"{count}\n"
        )
        with jar.changes() as changes:
            assert len(changes) == count
            assert {change.kind for change in changes} == {"modified"}
            assert len(changes.apply().applied) == count
        assert {path.read_text() for path in project.iterdir()} == {"y\n"}


class TestPlaces:
    """Mounts beneath others, and beneath closed directories."""

    def test_deep_places(self, open_jar: OpenJar, project: Path) -> None:
        """Directories on the way are made, and can't be written."""
        plant(project, {"file": "x"})
        jar = open_jar(mounted(project, "/one/two/three"))
        assert (
            told(sh(jar, "cat /one/two/three/file; cd /one; echo *; touch /one/new 2>/dev/null; echo *"))
            == "xtwo\ntwo\n"
        )

    def test_a_mount_inside_the_workspace(self, open_jar: OpenJar, project: Path) -> None:
        """Dependencies shown read-only in a workspace that can be written."""
        plant(project, {"file": "x"})
        jar = open_jar(mounted(project, "/workspace/deps"))
        assert (
            told(sh(jar, "cat deps/file; echo y > deps/file 2>/dev/null; cat deps/file; echo z > own; cat own"))
            == "xxz\n"
        )

    @pytest.mark.parametrize("how", [{}, {"rw": True, "cow": True}], ids=["read-only", "copy-on-write"])
    def test_a_mount_inside_a_source(self, open_jar: OpenJar, tmp_path: Path, how: dict[str, bool]) -> None:
        """Where the place exists in the outer one already; the host's is covered, not changed."""
        outer = plant(tmp_path / "outer", {"file": "outer", "inner/file": "covered"})
        inner = plant(tmp_path / "inner", {"file": "inner"})
        before = fingerprint(tmp_path)
        mounts = [{"path": "/data", "source": str(outer), **how}, {"path": "/data/inner", "source": str(inner)}]
        assert told(sh(open_jar({"fs": {"mounts": mounts}}), "cat /data/file /data/inner/file")) == "outerinner"
        assert fingerprint(tmp_path) == before

    def test_a_mount_at_a_place_that_the_workspace_lacks(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """The mount point is the jar's own; none appears in the host's directory."""
        outer = plant(tmp_path / "outer", {"file": "outer"})
        inner = plant(tmp_path / "inner", {"file": "inner"})
        before = fingerprint(outer)
        jar = open_jar(mounted(inner, "/workspace/sub/inner"), workspace=outer)
        assert told(sh(jar, "cat file sub/inner/file")) == "outerinner"
        with jar.changes() as changes:
            assert [change.path for change in changes if "inner" in change.path and change.what == "file"] == []
        assert fingerprint(outer) == before

    def test_the_order_in_the_policy_does_not_matter(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """The inner one is written first, and is inside all the same."""
        outer = plant(tmp_path / "outer", {"file": "outer", "inner/file": "covered"})
        inner = plant(tmp_path / "inner", {"file": "inner"})
        mounts = [{"path": "/data/inner", "source": str(inner)}, {"path": "/data", "source": str(outer)}]
        assert told(sh(open_jar({"fs": {"mounts": mounts}}), "cat /data/file /data/inner/file")) == "outerinner"

    KINDS = {"read-only": {}, "copy-on-write": {"rw": True, "cow": True}, "live": {"rw": True}}

    @pytest.mark.parametrize("how", KINDS.values(), ids=KINDS.keys())
    def test_closed_directories_and_files_read_as_outside(
        self, open_jar: OpenJar, tmp_path: Path, how: dict[str, bool]
    ) -> None:
        """Beneath a directory of mode 0700; directories 0700 and files 0600 of the owner's are the code's to read."""
        closed = tmp_path / "closed"
        source = plant(closed / "project", {"file": "content", "directory/inner": "inner"})
        for path, mode in ((closed, 0o700), (source / "file", 0o600), (source / "directory", 0o700), (source, 0o700)):
            path.chmod(mode)
        jar = open_jar({**mounted(source, **how), **LIVE})
        assert told(sh(jar, "cd /data && cat file directory/inner")) == "contentinner"
        if how:
            assert told(sh(jar, "cd /data && echo more >> file && cat file && touch directory/new")) == "contentmore\n"

    def test_a_source_of_another_user(self, open_jar: OpenJar, project: Path, as_root: bool) -> None:
        """Started by root: the owner's closed files are read, and what is written live is the owner's."""
        if not as_root:
            pytest.skip("only root can make a directory of another user")
        plant(project, {"file": "content"})
        (project / "file").chmod(0o600)
        for path in (project, project / "file"):
            os.chown(path, 12345, 54321)
        jar = open_jar({**mounted(project, rw=True), **LIVE})
        assert told(sh(jar, "cd /data && cat file && echo x > made && [ -O file ] && echo mine")) == "contentmine\n"
        status = (project / "made").stat()
        assert (status.st_uid, status.st_gid) == (12345, 54321)

    def test_a_file_as_source(self, open_jar: OpenJar, project: Path) -> None:
        """Mounts are directories; a file is the policy's mistake, and it says so."""
        plant(project, {"file": "x"})
        with pytest.raises(PolicyError, match="wanted a directory"):
            open_jar(mounted(project / "file"))

    @pytest.mark.parametrize("source", ["/", "/proc", "/sys", "/dev", "/no/such/directory", "~"])
    def test_sources_that_cannot_be(self, open_jar: OpenJar, source: str) -> None:
        """The host itself, and what is not there."""
        with pytest.raises(PolicyError, match=r"fs\.mounts"):
            open_jar({"fs": {"mounts": [{"path": "/data", "source": source}]}})


class TestNothingOfTheHost:
    """What no mount shows is not there."""

    def test_files_of_the_host_are_not_there(self, jar: Sandbox, tmp_path: Path) -> None:
        """A file that anyone may read on the host, by its path and through /proc."""
        secret = plant(tmp_path, {"secret": "sentinel"}) / "secret"
        tmp_path.chmod(0o755)
        script = f"cat {secret} /proc/self/root{secret} /proc/1/root{secret} /proc/*/root{secret} /proc/*/cwd/{secret}"
        result = sh(jar, f"{script}; true")
        assert result.stdout == ""

    def test_users_of_the_host_are_not_named(self, jar: Sandbox) -> None:
        """/etc/passwd is the jar's own."""
        seen = told(sh(jar, "cut -d: -f1 /etc/passwd; cat /etc/shadow 2>/dev/null; hostname")).split()
        assert "jar" in seen
        assert set(seen) <= {"root", "jar", "nobody"}

    def test_only_the_writable_can_be_written(self, jar: Sandbox) -> None:
        """Every directory that can be written is one of the four, or an engine's, where nothing can be made."""
        script = (
            "(find / -xdev -type d -writable -not -path '/proc/*'; find / -maxdepth 2 -type d -writable) 2>/dev/null"
        )
        seen = {line for line in sh(jar, script).stdout.splitlines() if not line.startswith(("/proc", "/tmp/"))}
        assert seen <= {"/workspace", "/tmp", "/dev/shm", "/dev/pts", "/dev/mqueue"}
        assert sh(jar, "! touch /dev/mqueue/queue 2>/dev/null").ok

    def test_other_processes_are_not_seen(self, jar: Sandbox) -> None:
        """Neither the host's nor those of another run of the same Sandbox."""
        with Lifeline() as line:
            other = jar.stream(argv=["sh", "-c", "echo up; exec sleep 4321"], stdin=line.stdin)
            next(other)
            seen = told(sh(jar, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))
            assert "4321" not in seen
            assert "pytest" not in seen
            assert int(told(sh(jar, "set -- /proc/[0-9]*; echo $#"))) < 10
            jar.kill()
            finish(other)


class TestFresh:
    """What stays between runs, and what does not."""

    @pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "$HOME"])
    def test_it_is_fresh_for_each_run(self, jar: Sandbox, place: str) -> None:
        """One run's temporary files are not the next one's."""
        told(sh(jar, f"echo x > {place}/left && mkdir {place}/directory && chmod 0 {place}/directory"))
        assert told(sh(jar, f'[ ! -e "{place}/left" ] && [ ! -e "{place}/directory" ] && echo fresh')) == "fresh\n"

    def test_runs_at_the_same_time_have_their_own(self, jar: Sandbox) -> None:
        """/tmp is not shared, the workspace is."""
        first = jar.stream(
            argv=["sh", "-c", "echo x > /tmp/mine; echo x > ours; echo up; until [ -e go ]; do sleep 0.01; done"]
        )
        next(first)
        assert told(sh(jar, "[ ! -e /tmp/mine ] && [ -e ours ] && echo so; touch go")) == "so\n"
        assert finish(first).ok

    def test_the_workspace_stays(self, jar: Sandbox) -> None:
        """Files, modes and links, for as long as the Sandbox lives."""
        told(sh(jar, "mkdir d; echo x > d/f; chmod 700 d/f; ln -s f d/l"))
        assert told(sh(jar, "cat d/l; [ -x d/f ] && echo executable")) == "x\nexecutable\n"

    def test_two_sandboxes_do_not_see_each_other(self, open_jar: OpenJar, project: Path) -> None:
        """Not even over the same directory."""
        one, two = open_jar(workspace=project), open_jar(workspace=project)
        told(sh(one, "echo x > made; echo x > /tmp/made"))
        assert told(sh(two, "find /workspace -mindepth 1; [ ! -e /tmp/made ]")) == ""


ENDINGS = {
    "ok": ("true", {}),
    "failed": ("exit 3", {}),
    "killed by itself": ("kill -KILL $$", {}),
    "timeout": ("exec sleep 600", {"proc": {"timeout_ms": "500ms"}}),
    "out of memory": ("exec tail /dev/zero", {"proc": {"mem_mb": 64}}),
    "too much output": ("exec yes", {"proc": {"output_mb": "64k"}}),
    "full": ("head -c 20m /dev/zero > full; head -c 20m /dev/zero > file", {"fs": {"size_mb": 8}}),
}


@pytest.mark.parametrize(("script", "policy"), ENDINGS.values(), ids=ENDINGS.keys())
def test_the_hosts_directory_is_untouched_however_the_run_ends(
    open_jar: OpenJar, project: Path, script: str, policy: dict[str, Any]
) -> None:
    """Bytes, modes, owners and times; nothing is added, not even for a moment's work."""
    plant(project, {"file": "old", "directory/inner": "x", "link": "-> file", ".env": "secret"})
    before = fingerprint(project)
    jar = open_jar(policy, workspace=project)
    result = sh(jar, f"echo new > file; rm -r directory; rm link; echo x > made; echo x > .env; {script}")
    assert result.outcome is not Outcome.REFUSED
    assert fingerprint(project) == before
    jar.close()
    assert fingerprint(project) == before
    assert list(project.parent.iterdir()) == [project]
