"""What comes back from a workspace: artifacts, the list of changes, the diff, and what `apply` brings home."""

from __future__ import annotations

import json
import os
import stat
import tracemalloc
from pathlib import Path

import pytest
from jars import OpenJar, sh, stays, told
from trees import contents, fingerprint, plant

from belljar import RunResult, Sandbox
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.backends.hostile_files import MAX_NAMES
from belljar.errors import UsageError
from belljar.sandbox.files.changes import Changes


def artifacts(result: RunResult) -> dict[str, int]:
    return {artifact.path: artifact.size for artifact in result.artifacts}


LONG_NAMES = """
import os
current = os.open(".", os.O_RDONLY)
for _ in range(190):
    os.mkdir("d" * 255, dir_fd=current)
    current, above = os.open("d" * 255, os.O_RDONLY, dir_fd=current), current
    os.close(above)
for number in range(1500):
    os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=current))
"""
"""Fifteen hundred paths of 48 kB each."""


class TestArtifacts:
    """The regular files that a run made or changed."""

    def test_new_and_changed_are_listed_and_nothing_else(self, jar: Sandbox) -> None:
        """Sorted, with sizes; directories, links, pipes and what was only read are not."""
        told(sh(jar, "echo a > kept; echo a > changed; echo a > removed; echo a > touched-by-reading"))
        result = sh(
            jar,
            "cat kept touched-by-reading > /dev/null; echo bb > changed; rm removed; mkdir -p sub/deep;"
            "echo ccc > sub/deep/new;"
            "ln -s kept link; mkfifo pipe; echo d > 'a b'; : > empty",
        )
        assert artifacts(result) == {"a b": 2, "changed": 3, "empty": 0, "sub/deep/new": 4}
        assert list(artifacts(result)) == sorted(artifacts(result))

    def test_each_run_has_its_own(self, jar: Sandbox) -> None:
        """Run after run without a pause between them."""
        seen = [artifacts(sh(jar, f"echo x > made{number}")) for number in range(5)]
        assert seen == [{f"made{number}": 2} for number in range(5)]

    def test_what_the_host_wrote_before_is_none(self, jar: Sandbox) -> None:
        """Input is not output, however short before the run it was written."""
        for number in range(5):
            jar.files.write("input", f"input {number}")
            assert artifacts(sh(jar, "cat input")) == {}

    def test_a_failed_run_has_artifacts_too(self, open_jar: OpenJar) -> None:
        """They are often the reason why one looks."""
        assert artifacts(sh(open_jar(), "echo x > log; exit 1")) == {"log": 2}
        assert artifacts(sh(open_jar(timeout="2s"), "echo x > log; exec sleep 600")) == {"log": 2}

    def test_of_a_copy_on_write_workspace(self, open_jar: OpenJar, project: Path) -> None:
        """The host's own files are none unless they were changed."""
        plant(project, {"kept": "x", "changed": "x", "sub/kept": "x"})
        result = sh(open_jar(workspace=project), "cat kept; echo y >> changed; echo z > sub/new")
        assert artifacts(result) == {"changed": 3, "sub/new": 2}

    def test_long_names_do_not_fill_the_hosts_memory(self, open_jar: OpenJar, project: Path) -> None:
        """The code chooses how much memory a path takes. The host keeps few of them, and says that there are more."""
        plant(project, {"kept": "x", "sub/kept": "x"})
        jar = open_jar(workspace=project)
        tracemalloc.start()
        try:
            result = jar.run(LONG_NAMES)
            assert result.ok, result.stderr
            listed = list(jar.files.list(recursive=True))
            _now, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 100 << 20
        with jar.changes() as changes:
            found = list(changes)
        for paths in (artifacts(result), [entry.path for entry in listed], [change.path for change in found]):
            assert 0 < sum(map(len, paths)) <= MAX_NAMES
        assert "." in {change.path for change in found if change.refusal}
        assert not any(change.kind == "deleted" for change in found)
        told_of = [record for record in records(directory()) if record["event"] == "artifacts"]
        assert 0 < len(json.dumps(told_of)) < 100_000

    def test_saving_copies_them(self, jar: Sandbox, tmp_path: Path) -> None:
        """Into a directory that is made for it; bytes as they are, no link followed."""
        result = sh(jar, r"mkdir sub; printf 'a\0\377' > sub/bytes; echo x > text; ln -s text link")
        saved = jar.save_artifacts(result, tmp_path / "out" / "put")
        assert sorted(saved) == [str(tmp_path / "out/put/sub/bytes"), str(tmp_path / "out/put/text")]
        assert (tmp_path / "out/put/sub/bytes").read_bytes() == b"a\0\xff"
        assert (tmp_path / "out/put/text").read_text() == "x\n"

    SWAPS = {
        "a link to a file of the host": "rm out; ln -s {victim} out",
        "a link as directory": "rm -r sub; ln -s {directory} sub; rm out",
        "a pipe": "rm out; mkfifo out",
        "nothing": "rm out",
        "a directory": "rm out; mkdir out",
    }

    @pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS.keys())
    def test_what_became_of_them_is_not_trusted(self, jar: Sandbox, tmp_path: Path, swap: str) -> None:
        """A later run puts something else in their place: the host is not led astray, and does not wait."""
        victim = plant(tmp_path, {"host/inner": "sentinel"}) / "host/inner"
        result = sh(jar, "mkdir sub; echo x > sub/inner; echo x > out")
        told(sh(jar, swap.format(victim=victim, directory=victim.parent)))
        jar.save_artifacts(result, tmp_path / "saved")
        assert "sentinel" not in str(contents(tmp_path / "saved").values())

    def test_links_in_the_target_are_not_followed(self, jar: Sandbox, tmp_path: Path) -> None:
        """Whoever put a link where an artifact goes does not choose what is overwritten."""
        plant(tmp_path, {"victim": "precious", "saved/": None, "saved/out": "-> ../victim"})
        result = sh(jar, "echo evil > out")
        saved = jar.save_artifacts(result, tmp_path / "saved")
        assert (saved, saved.refused) == ([], [("out", "there is a file of that name already")])
        assert jar.save_artifacts(result, tmp_path / "saved", overwrite=True) == [str(tmp_path / "saved/out")]
        assert not (tmp_path / "saved/out").is_symlink()
        assert (tmp_path / "victim").read_text() == "precious"

    def test_closed_files_are_saved(self, jar: Sandbox, tmp_path: Path) -> None:
        """Mode 000, in a directory of mode 000: the code can't keep its output from its caller."""
        result = sh(jar, "mkdir d; echo x > d/f; chmod 000 d/f d")
        assert artifacts(result) == {"d/f": 2}
        jar.save_artifacts(result, tmp_path / "saved")
        assert contents(tmp_path / "saved") == {"d/": "", "d/f": "x\n"}

    def test_too_many_are_cut(self, jar: Sandbox) -> None:
        """A thousand, and the run is not held up by more."""
        assert len(sh(jar, "seq 1100 | sed 's/^/f/' | xargs touch").artifacts) == 1000


BEFORE = {
    "kept": "kept\n",
    "edited": "one\ntwo\nthree\n",
    "gone": "gone\n",
    "touched": "same\n",
    "tool": "#!/bin/sh\n",
    "link": "-> kept",
    "file-to-directory": "x\n",
    "directory-to-file/inner": "x\n",
    "file-to-link": "x\n",
    "gone-directory/a": "a\n",
    "gone-directory/b/c": "c\n",
    "anew/a": "a\n",
    "anew/b": "b\n",
    "anew/same": "same\n",
    "sub/deep/edited": "x\n",
    "a b/edited": "x\n",
}
WORK = r"""set -e
printf 'one\n2\nthree\n' > edited; rm gone; touch touched; chmod 755 tool; ln -sfn edited link
rm file-to-directory; mkdir file-to-directory; echo y > file-to-directory/inner
rm -r directory-to-file; echo y > directory-to-file
rm file-to-link; ln -s kept file-to-link
rm -r gone-directory
rm -r anew; mkdir anew; echo a2 > anew/a; echo same > anew/same; echo new > anew/c
echo y > sub/deep/edited; echo y > 'a b/edited'
echo new > new; mkdir -p made/deep; echo new > made/deep/new; ln -s ../new made/link; printf 'a\0b' > binary
"""
EXPECTED = {
    ("a b/edited", "modified", "file"),
    ("anew/a", "modified", "file"),
    ("anew/b", "deleted", "file"),
    ("anew/c", "added", "file"),
    ("binary", "added", "file"),
    ("directory-to-file", "modified", "file"),
    ("edited", "modified", "file"),
    ("file-to-directory", "modified", "directory"),
    ("file-to-directory/inner", "added", "file"),
    ("file-to-link", "modified", "link"),
    ("gone", "deleted", "file"),
    ("gone-directory", "deleted", "directory"),
    ("link", "modified", "link"),
    ("made", "added", "directory"),
    ("made/deep", "added", "directory"),
    ("made/deep/new", "added", "file"),
    ("made/link", "added", "link"),
    ("new", "added", "file"),
    ("sub/deep/edited", "modified", "file"),
    ("tool", "mode", "file"),
}
AFTER = {
    "a b/": "", "a b/edited": "y\n", "anew/": "", "anew/a": "a2\n", "anew/c": "new\n", "anew/same": "same\n",
    "binary": "a\0b", "directory-to-file": "y\n", "edited": "one\n2\nthree\n", "file-to-directory/": "",
    "file-to-directory/inner": "y\n", "file-to-link": "-> kept", "kept": "kept\n", "link": "-> edited", "made/": "",
    "made/deep/": "", "made/deep/new": "new\n", "made/link": "-> ../new", "new": "new\n", "sub/": "", "sub/deep/": "",
    "sub/deep/edited": "y\n", "tool": "#!/bin/sh\n", "touched": "same\n",
}  # fmt: skip


@pytest.fixture
def worked(open_jar: OpenJar, project: Path) -> Sandbox:
    """A jar whose code did one of everything to a copy-on-write workspace."""
    plant(project, BEFORE)
    jar = open_jar(workspace=project)
    told(sh(jar, WORK))
    return jar


class TestChanges:
    """Each difference once, and no other."""

    def test_one_of_everything(self, worked: Sandbox) -> None:
        """Added, modified, deleted, mode; files, directories, links; one that became another, one made anew."""
        with worked.changes() as changes:
            assert {(change.path, change.kind, change.what) for change in changes} == EXPECTED
            assert len(changes) == len(EXPECTED)
            assert [change.refusal for change in changes if change.refusal] == []

    def test_no_change_is_no_change(self, open_jar: OpenJar, project: Path) -> None:
        """Reading, touching, writing the same, changing a mode and back, making and removing."""
        plant(project, BEFORE)
        jar = open_jar(workspace=project)
        with jar.changes() as changes:
            assert list(changes) == []
        told(
            sh(
                jar,
                "cat kept; touch kept; cat kept > x; cat x > kept; rm x; chmod 700 tool; chmod 644 tool;"
                "mkdir d; rmdir d; mv gone g; mv g gone",
            )
        )
        with jar.changes() as changes:
            assert [(change.path, change.kind) for change in changes] == []

    def test_they_add_up_over_runs(self, open_jar: OpenJar, project: Path) -> None:
        """The list is of the workspace, not of one run."""
        jar = open_jar(workspace=plant(project, {"file": "x"}))
        told(sh(jar, "echo 1 > a"))
        told(sh(jar, "echo 2 > b; rm file"))
        with jar.changes() as changes:
            assert {(change.path, change.kind) for change in changes} == {
                ("a", "added"),
                ("b", "added"),
                ("file", "deleted"),
            }

    def test_closed_directories_hide_nothing(self, open_jar: OpenJar, project: Path) -> None:
        """Mode 000, pipes and 150 levels of depth."""
        jar = open_jar(workspace=project)
        deep = "d=$(printf 'd/%.0s' $(seq 150)); mkdir -p $d; echo x > ${d}bottom"
        closed = "mkdir closed; echo x > closed/file; mkfifo closed/pipe pipe; chmod 0 closed/file closed"
        told(sh(jar, f"{closed}; ({deep})"))
        with jar.changes() as changes:
            paths = {change.path: change for change in changes}
        assert paths["closed/file"].kind == "added"
        if stays(jar, "pipe"):
            assert "pipe" in paths["closed/pipe"].refusal
        assert "d/" * 150 + "bottom" in paths

    def test_without_a_workspace_there_are_none(self, jar: Sandbox) -> None:
        """Told as the caller's mistake."""
        with pytest.raises(UsageError, match="copy-on-write"):
            jar.changes()


class TestDiff:
    """Text for a person."""

    def test_it_reads_as_a_diff(self, worked: Sandbox) -> None:
        """Old and new lines, names, and words where lines make no sense."""
        with worked.changes() as changes:
            text = changes.diff()
        assert "--- a/edited\n+++ b/edited\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n" in text
        assert "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n" in text
        assert "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n" in text
        assert "a/tool b/tool\nmode file\nnew mode 0755\n" in text
        assert "a/binary b/binary\nadded file\nbinary or large file, not shown\n" in text
        assert "-link to kept\n+link to edited\n" in text

    def test_names_cannot_forge_lines(self, open_jar: OpenJar, project: Path) -> None:
        """A newline or an escape in a name is shown, not obeyed."""
        jar = open_jar(workspace=project)
        told(jar.run(r"open('a\n+++ forged', 'w').write('x')" "\n" r"open('\x1b[2Jx', 'w').write('x')"))
        with jar.changes() as changes:
            text = changes.diff()
        assert "\n+++ forged" not in text
        assert "\x1b" not in text.replace("+x", "")

    def test_a_missing_newline_is_said(self, open_jar: OpenJar, project: Path) -> None:
        """As every diff does."""
        jar = open_jar(workspace=plant(project, {"file": "old"}))
        told(sh(jar, "printf new > file"))
        with jar.changes() as changes:
            end = "\\ No newline at end of file\n"
            assert changes.diff().endswith(f"-old\n{end}+new\n{end}")


class TestApply:
    """Bringing it home."""

    def test_everything_comes_back(self, worked: Sandbox, project: Path) -> None:
        """The host's directory is what the code made of it, nothing else is in it, and modes are kept."""
        with worked.changes() as changes:
            applied = changes.apply()
        assert applied.refused == ()
        assert set(applied.applied) == {path for path, _kind, _what in EXPECTED}
        assert contents(project) == AFTER
        assert stat.S_IMODE((project / "tool").stat().st_mode) == 0o755
        assert {path.lstat().st_uid for path in project.rglob("*")} == {project.stat().st_uid}

    def test_afterwards_there_is_nothing_to_apply(self, worked: Sandbox, project: Path) -> None:
        """The list is empty, and applying again does nothing."""
        with worked.changes() as changes:
            changes.apply()
        before = fingerprint(project)
        with worked.changes() as changes:
            assert [(change.path, change.kind) for change in changes] == []
            changes.apply()
        assert fingerprint(project) == before

    def test_work_goes_on_after_it(self, open_jar: OpenJar, project: Path) -> None:
        """Run, apply, run, apply: what belljar itself wrote is not taken for someone else's change."""
        jar = open_jar(workspace=plant(project, {"file": "0", "gone": "x"}))
        for number in range(1, 4):
            told(sh(jar, f"echo {number} > file; echo {number} > new; rm -f gone"))
            with jar.changes() as changes:
                assert changes.apply().refused == ()
            assert contents(project) == {"file": f"{number}\n", "new": f"{number}\n"}

    REFUSED = {
        "a denied name": ("echo evil > .env", ".env", "fs.deny_globs"),
        "a denied name below": ("mkdir -p a/b; echo evil > a/b/id_rsa", "a/b/id_rsa", "fs.deny_globs"),
        "a link to the host": ("ln -s /etc/passwd out", "out", "leads out"),
        "a link that climbs": ("mkdir d; ln -s ../../x d/out", "d/out", "leads out"),
        "a link that climbs slyly": ("mkdir d; ln -s ./../d/../../x d/out", "d/out", "leads out"),
        "a link in place of a file": ("rm file; ln -s /etc/passwd file", "file", "leads out"),
        "a pipe": ("mkfifo pipe", "pipe", "pipe"),
        "a hook": ("mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit", ".git/hooks/pre-commit", "git"),
        "git's settings": ("mkdir -p .git; echo evil > .git/config", ".git/config", "git"),
        "a hook of a module": ("mkdir -p x/.git/hooks; echo evil > x/.git/hooks/h", "x/.git/hooks/h", "git"),
    }

    @pytest.mark.parametrize(("script", "path", "words"), REFUSED.values(), ids=REFUSED.keys())
    def test_what_must_not_come_back(
        self, open_jar: OpenJar, project: Path, script: str, path: str, words: str
    ) -> None:
        """It is named with the reason, it is not there, and the rest comes back all the same."""
        jar = open_jar(workspace=plant(project, {"file": "x"}))
        told(sh(jar, f"echo fine > fine; {script}"))
        before = (project / "file").read_text()
        with jar.changes() as changes:
            applied = changes.apply()
        refused = dict(applied.refused)
        if words == "pipe" and not stays(jar, path):
            assert path not in refused
        else:
            assert words in refused[path]
        assert "fine" in applied.applied
        assert (project / "fine").read_text() == "fine\n"
        assert (project / "file").read_text() == before
        assert path == "file" or not os.path.lexists(project / path)

    def test_links_that_stay_come_back(self, open_jar: OpenJar, project: Path) -> None:
        """The control: a link inside the workspace is harmless."""
        jar = open_jar(workspace=plant(project, {"file": "x"}))
        told(sh(jar, "mkdir d; ln -s ../file d/link; ln -s d/link chain"))
        with jar.changes() as changes:
            assert changes.apply().refused == ()
        assert (project / "chain").read_text() == "x"

    def test_no_setuid_bit_comes_back(self, open_jar: OpenJar, project: Path) -> None:
        """Whether the jar refuses to make one or apply does: none is on the host."""
        jar = open_jar(workspace=project)
        sh(
            jar,
            "cp /bin/true tool; chmod 6755 tool; cp /bin/true other; chmod u+s other; chmod g+s other;"
            "mkdir d; chmod 2777 d; chmod 755 tool",
        )
        with jar.changes() as changes:
            changes.apply()
        bits = stat.S_ISUID | stat.S_ISGID
        assert [path.name for path in project.rglob("*") if path.stat().st_mode & bits] == []

    @pytest.mark.parametrize("does", ["writes", "replaces", "makes", "removes"])
    def test_what_the_host_changed_meanwhile_stays(self, open_jar: OpenJar, project: Path, does: str) -> None:
        """Nobody's work is overwritten: the host's version stays and the refusal says why."""
        jar = open_jar(workspace=plant(project, {"file": "old", "gone": "old"}))
        told(sh(jar, "echo jar > file; echo jar > made; rm gone"))
        if does == "writes":
            (project / "file").write_text("host")
            (project / "gone").write_text("host")
        elif does == "replaces":
            (plant(project.parent, {"fresh": "host"}) / "fresh").rename(project / "file")
        elif does == "makes":
            (project / "made").write_text("host")
        else:
            (project / "gone").unlink()
        with jar.changes() as changes:
            applied = changes.apply()
        touched = {"writes": {"file", "gone"}, "replaces": {"file"}, "makes": {"made"}, "removes": set()}[does]
        assert {path for path, _why in applied.refused} == touched
        assert all("meanwhile" in why for _path, why in applied.refused)
        for path in touched:
            assert (project / path).read_text() == "host"

    def test_a_link_that_the_host_put_in_the_way(self, open_jar: OpenJar, project: Path) -> None:
        """A directory became a link out of the project: nothing is written through it."""
        outside = plant(project.parent / "outside", {"file": "precious"})
        jar = open_jar(workspace=plant(project, {"sub/file": "old"}))
        told(sh(jar, "echo jar > sub/file; echo jar > sub/new; rm -f sub/none"))
        (project / "sub").rename(project / "moved")
        (project / "sub").symlink_to(outside)
        with jar.changes() as changes:
            changes.apply()
        assert contents(outside) == {"file": "precious"}

    def test_denied_files_survive_the_removal_of_their_directory(self, open_jar: OpenJar, project: Path) -> None:
        """The code could not see them, so it can't have meant them."""
        jar = open_jar(workspace=plant(project, {"sub/file": "x", "sub/.env": "secret", "whole/file": "x"}))
        told(sh(jar, "rm -r sub whole"))
        with jar.changes() as changes:
            applied = changes.apply()
        assert contents(project) == {"sub/": "", "sub/.env": "secret"}
        assert "denied" in dict(applied.refused)["sub"]

    def test_denied_files_survive_a_file_in_place_of_their_directory(self, open_jar: OpenJar, project: Path) -> None:
        """The same when something else stands there now."""
        jar = open_jar(workspace=plant(project, {"sub/.env": "secret"}))
        told(sh(jar, "rm -r sub; echo x > sub"))
        with jar.changes() as changes:
            assert "sub" in dict(changes.apply().refused)
        assert contents(project) == {"sub/": "", "sub/.env": "secret"}

    def test_new_files_belong_to_the_owner(self, open_jar: OpenJar, project: Path, as_root: bool) -> None:
        """Started by root on someone's project: they can work with what comes back."""
        if not as_root:
            pytest.skip("only root can make a directory of another user")
        plant(project, {"file": "x"})
        for path in (project, project / "file"):
            os.chown(path, 12345, 54321)
        jar = open_jar(workspace=project)
        told(sh(jar, "echo y > file; mkdir d; echo x > d/new; ln -s new d/link"))
        with jar.changes() as changes:
            assert changes.apply().refused == ()
        assert {(path.lstat().st_uid, path.lstat().st_gid) for path in project.rglob("*")} == {(12345, 54321)}

    def test_before_it_nothing_is_touched(self, worked: Sandbox, project: Path) -> None:
        """Listing and showing are not doing."""
        before = fingerprint(project)
        with worked.changes() as changes:
            changes.diff()
            assert isinstance(changes, Changes)
        assert fingerprint(project) == before
