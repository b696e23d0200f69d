"""The files API: the host's door into the workspace. Everything in there is the guest's, and may be a trap."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jars import OpenJar, sh, stays, told
from trees import contents, plant

from belljar import Sandbox
from belljar.errors import UsageError


class TestPlain:
    """Read, write, list, remove."""

    def test_what_is_written_is_read(self, jar: Sandbox) -> None:
        """By the host and by the code, text and bytes, directories are made."""
        jar.files.write("text", "é€")
        jar.files.write("deep/er/bytes", b"\0\xff")
        jar.files.write("/workspace/absolute", "x")
        jar.files.write("empty", b"")
        assert jar.files.read("text") == "é€".encode()
        assert jar.files.read("./deep/../deep/er/bytes") == b"\0\xff"
        assert told(sh(jar, "cat text absolute; wc -c < deep/er/bytes; wc -c < empty")) == "é€x2\n0\n"

    def test_the_code_may_change_what_the_host_wrote(self, jar: Sandbox) -> None:
        """It is the same user's file."""
        jar.files.write("d/file", "host")
        told(sh(jar, "echo jar > d/file; echo jar > d/other; mv d e"))
        assert jar.files.read("e/file") == b"jar\n"

    def test_writing_replaces(self, jar: Sandbox) -> None:
        """Shorter content leaves no rest."""
        jar.files.write("file", "long content")
        jar.files.write("file", "short")
        assert jar.files.read("file") == b"short"

    def test_listing(self, jar: Sandbox) -> None:
        """Kinds and sizes; one level, or all of them."""
        told(sh(jar, "echo x > file; mkdir -p d/e; echo xx > d/e/f; ln -s file link; mkfifo pipe"))
        listed = [(entry.path, entry.kind) for entry in jar.files.list()]
        pipe = ["pipe"] if stays(jar, "pipe") else []
        assert listed == [("d", "directory"), ("file", "file"), ("link", "link"), *((name, "other") for name in pipe)]
        assert [entry.path for entry in jar.files.list(recursive=True)] == ["d", "d/e", "d/e/f", "file", "link", *pipe]
        assert [(entry.path, entry.size) for entry in jar.files.list("d/e")] == [("f", 3)]
        assert jar.files.list("/workspace/d/e") == jar.files.list("d/e")

    def test_removing(self, jar: Sandbox) -> None:
        """Files, links themselves, and whole directories, closed ones too."""
        told(
            sh(
                jar,
                "echo x > file; echo x > target; ln -s target link; mkdir -p d/e; echo x > d/e/f; chmod 0 d/e d",
            )
        )
        for name in ("file", "link", "d"):
            jar.files.remove(name)
        assert [entry.path for entry in jar.files.list()] == ["target"]

    def test_removing_a_directory_of_the_host_from_a_view(self, open_jar: OpenJar, project: Path) -> None:
        """In a copy-on-write workspace the host's stays."""
        jar = open_jar(workspace=plant(project, {"d/e/file": "x", "file": "x"}))
        jar.files.remove("d")
        jar.files.remove("file")
        assert jar.files.list() == []
        assert contents(project) == {"d/": "", "d/e/": "", "d/e/file": "x", "file": "x"}

    def test_names_of_every_kind(self, jar: Sandbox) -> None:
        """Spaces, quotes, newlines, dashes; and bytes that are no text."""
        for name in ("a b", "a\nb", "-rf", "'\"", "é€", "{run}", "..a"):
            jar.files.write(f"d/{name}", name)
            assert jar.files.read(f"d/{name}") == name.encode()
        told(jar.run(r"open(b'd/\xff', 'w').write('raw')"))
        raw = os.fsdecode(b"\xff")
        assert raw in {entry.path for entry in jar.files.list("d")}
        assert jar.files.read(f"d/{raw}") == b"raw"
        jar.files.remove(f"d/{raw}")
        assert len(jar.files.list("d")) == 7

    def test_other_mounts(self, open_jar: OpenJar, project: Path) -> None:
        """Every mount of the policy can be reached, as the policy allows it."""
        plant(project, {"file": "x"})
        jar = open_jar(
            {"fs": {"mounts": [{"path": "/data", "source": str(project)}, {"path": "/scratch", "rw": True}]}}
        )
        assert jar.files.read("/data/file") == b"x"
        jar.files.write("/scratch/a", "y")
        assert told(sh(jar, "cat /scratch/a")) == "y"
        for change in (lambda: jar.files.write("/data/new", "x"), lambda: jar.files.remove("/data/file")):
            with pytest.raises(OSError, match="Read-only"):
                change()
        assert contents(project) == {"file": "x"}

    def test_large_files(self, open_jar: OpenJar) -> None:
        """Whole up to the limit that the caller gives, an error beyond it."""
        jar = open_jar()
        content = os.urandom(5 << 20)
        jar.files.write("big", content)
        assert jar.files.read("big") == content
        assert jar.files.read("big", limit=5 << 20) == content
        with pytest.raises(UsageError, match="larger than"):
            jar.files.read("big", limit=(5 << 20) - 1)

    def test_a_sparse_giant_is_not_read(self, open_jar: OpenJar) -> None:
        """A size that the guest only claims costs the host nothing."""
        jar = open_jar({"proc": {"file_size_mb": "1g"}})
        told(sh(jar, "truncate -s 900M giant"))
        with pytest.raises(UsageError, match="larger than"):
            jar.files.read("giant", limit=1 << 20)


OUTSIDE = [
    "../x",
    "/etc/passwd",
    "../../etc/passwd",
    "a/../../x",
    "/",
    "/tmp/x",
    "..",
    "/workspace/../etc/passwd",
    "/workspaces",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_are_the_callers_mistake(jar: Sandbox, path: str) -> None:
    """For every verb."""
    for call in (jar.files.read, jar.files.list, jar.files.remove, lambda name: jar.files.write(name, "x")):
        with pytest.raises(UsageError, match="mount"):
            call(path)


def test_nul_is_the_callers_mistake(jar: Sandbox) -> None:
    """For every verb."""
    for call in (jar.files.read, jar.files.list, jar.files.remove, lambda name: jar.files.write(name, "x")):
        with pytest.raises(UsageError, match="NUL"):
            call("a\0b")


class TestErrors:
    """What is wrong with a file is an OSError, as `open` would raise it."""

    CALLS = {
        "read what is not there": (lambda files: files.read("none"), FileNotFoundError),
        "read a directory": (lambda files: files.read("d"), IsADirectoryError),
        "read through a file": (lambda files: files.read("file/x"), NotADirectoryError),
        "list what is not there": (lambda files: files.list("none"), FileNotFoundError),
        "list a file": (lambda files: files.list("file"), NotADirectoryError),
        "write to a directory": (lambda files: files.write("d", "x"), IsADirectoryError),
        "write through a file": (lambda files: files.write("file/x", "x"), OSError),
        "write a name too long": (lambda files: files.write("x" * 300, "x"), OSError),
        "remove what is not there": (lambda files: files.remove("none"), FileNotFoundError),
        "remove the workspace itself": (lambda files: files.remove("."), OSError),
        "remove it by its path": (lambda files: files.remove("/workspace"), OSError),
    }

    @pytest.mark.parametrize(("call", "error"), CALLS.values(), ids=CALLS.keys())
    def test_and_the_next_call_works(self, jar: Sandbox, call, error: type[OSError]) -> None:  # type: ignore[no-untyped-def]
        """An error breaks nothing."""
        jar.files.write("file", "x")
        jar.files.write("d/inner", "x")
        with pytest.raises(error):
            call(jar.files)
        assert jar.files.read("file") == b"x"
        assert told(sh(jar, "cat file d/inner")) == "xx"


class TestTraps:
    """What the code can leave for the host to step on."""

    LINKS = {
        "to a file of the host": "ln -s {victim} link",
        "that climbs": "ln -s ../../../../../../../../{victim} link",
        "to the host by /proc": "ln -s /proc/self/root/{victim} link",
        "a directory": "ln -s {parent} linked; ln -s linked/victim link",
        "a loop": "ln -s link link",
        "to the jar's own": "echo own > own; ln -s own link",
    }

    @pytest.mark.parametrize("script", LINKS.values(), ids=LINKS.keys())
    def test_links_are_not_followed(self, jar: Sandbox, tmp_path: Path, script: str) -> None:
        """Neither for reading nor for writing; removing one removes the link."""
        victim = plant(tmp_path, {"victim": "precious"}) / "victim"
        told(sh(jar, script.format(victim=victim, parent=tmp_path)))
        with pytest.raises(OSError):
            jar.files.read("link")
        with pytest.raises(OSError):
            jar.files.write("link", "evil")
        with pytest.raises(OSError):
            jar.files.list("link")
        jar.files.remove("link")
        assert victim.read_text() == "precious"
        assert "link" not in {entry.path for entry in jar.files.list()}

    def test_directories_that_are_links_are_not_entered(self, jar: Sandbox, tmp_path: Path) -> None:
        """On the way to a file."""
        victim = plant(tmp_path, {"victim": "precious"}) / "victim"
        told(sh(jar, f"ln -s {tmp_path} d"))
        for call in (
            lambda: jar.files.read("d/victim"),
            lambda: jar.files.write("d/victim", "evil"),
            lambda: jar.files.write("d/new/deep", "evil"),
            lambda: jar.files.remove("d/victim"),
            lambda: jar.files.list("d"),
        ):
            with pytest.raises(OSError):
                call()
        assert contents(tmp_path)["victim"] == "precious"
        assert victim.parent.joinpath("new").exists() is False

    def test_pipes_do_not_hold_us(self, jar: Sandbox) -> None:
        """Reading or writing one fails at once."""
        told(sh(jar, "mkfifo pipe"))
        with pytest.raises(OSError):
            jar.files.read("pipe")
        if not stays(jar, "pipe"):
            assert jar.files.list() == []
            return
        with pytest.raises(OSError):
            jar.files.write("pipe", "x")
        jar.files.remove("pipe")

    def test_sockets_are_no_files(self, jar: Sandbox) -> None:
        """Nor anything else that is not regular."""
        told(jar.run("import socket; socket.socket(socket.AF_UNIX).bind('socket')"))
        with pytest.raises(OSError):
            jar.files.read("socket")
        left = [("socket", "other")] if stays(jar, "socket") else []
        assert [(entry.path, entry.kind) for entry in jar.files.list()] == left

    def test_a_deep_tree(self, jar: Sandbox) -> None:
        """1,000 levels: the list is bounded, and it can be removed."""
        told(sh(jar, "mkdir -p $(printf 'd/%.0s' $(seq 1000))"))
        assert len(jar.files.list(recursive=True)) >= 200
        jar.files.remove("d")
        assert jar.files.list() == []

    def test_swapped_while_we_look(self, jar: Sandbox, tmp_path: Path) -> None:
        """The code swaps a file and a link as fast as it can: we read its own file or nothing, never the host's."""
        victim = plant(tmp_path, {"victim": "precious"}) / "victim"
        script = (
            f"echo own > own; ln -s {victim} evil; echo up; while :; do ln -f own x; mv x f; cp -P evil y; mv y f; done"
        )
        events = jar.stream(argv=["sh", "-c", script])
        next(events)
        seen = set()
        for _ in range(200):
            try:
                seen.add(jar.files.read("f"))
            except OSError:
                continue
        jar.kill()
        list(events)
        assert seen <= {b"own\n", b""}
        assert victim.read_text() == "precious"
