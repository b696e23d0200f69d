"""fs.deny_globs: denied names are not there, by whatever path, in every mount, now and later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jars import OpenJar, finish, sh, told
from trees import fingerprint, plant

SECRET = "sentinel-secret"

TREE = {
    "plain": "visible",
    ".env": SECRET,
    "sub/.env": SECRET,
    "sub/plain": "visible",
    "sub/deep/er/.env.local": SECRET,
    "sub/deep/er/plain": "visible",
    ".ssh/id_rsa": SECRET,
    ".ssh/config": SECRET,
    "keys/one.key": SECRET,
    "keys/plain": "visible",
    "private/notes": SECRET,
    "private/more/notes": SECRET,
    "id_ed25519.pub": SECRET,
    "a b/.env": SECRET,
    "link-to-env": "-> .env",
    "link-to-deep": "-> sub/deep/er/.env.local",
    "link-to-directory": "-> private",
    "link-to-plain": "-> plain",
}
GLOBS = ["**/*.key", "**/private/**"]
VISIBLE = ["plain", "sub/plain", "sub/deep/er/plain", "keys/plain", "link-to-plain"]
KINDS = {"read-only": {}, "copy-on-write": {"rw": True, "cow": True}}

EVERY_WAY = r"""
cd /data
find . ! -type d -exec cat -- {} + 2>/dev/null
set -- link-to-directory/notes link-to-directory/more/notes "a b/.env"
for f in .env sub/.env .ssh/id_rsa keys/one.key private/notes private/more/notes id_ed25519.pub \
  sub/deep/er/.env.local; do
  set -- "$@" "$f" "./$f" "sub/../$f" "/data/$f" "//data//$f" "/proc/self/root/data/$f" "/proc/self/cwd/$f" \
    "/proc/$$/cwd/$f" "/workspace/../data/$f" "sub/deep/../../$f"
  (cd "$(dirname "$f")" 2>/dev/null && cat -- "$(basename "$f")" 2>/dev/null)
done
cat -- "$@" 2>/dev/null
tar -cf - . 2>/dev/null | cat
true
"""


@pytest.fixture
def tree(project: Path) -> Path:
    """A project with secrets in it, one of them with a second name."""
    plant(project, TREE)
    os.link(project / ".env", project / "innocent")
    os.link(project / "keys" / "one.key", project / "sub" / "innocent")
    return project


def policy(source: Path, how: dict[str, bool], globs: list[str] = GLOBS) -> dict[str, Any]:
    return {"fs": {"mounts": [{"path": "/data", "source": str(source), **how}], "deny_globs": globs}}


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS.keys())
class TestDenied:
    """In a read-only mount and in a copy-on-write one."""

    def test_by_no_path(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """Files, directories, links to them, hard links; absolute, relative, through /proc, through an archive."""
        result = sh(open_jar(policy(tree, how)), EVERY_WAY)
        assert result.ok
        assert SECRET not in result.stdout
        assert "visible" in result.stdout

    def test_the_rest_is_there(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """The control: by the same ways, what is not denied is read."""
        jar = open_jar(policy(tree, how))
        script = 'cd /data; for f; do cat "$f"; cat "/proc/self/root/data/$f"; cat "sub/../$f"; done'
        assert told(sh(jar, script, *VISIBLE)) == "visible" * 3 * len(VISIBLE)

    def test_without_the_patterns_it_is_read(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """The control: the same ways lead to the secrets when nothing denies them."""
        given = open_jar().policy.fs.deny_globs
        jar = open_jar(policy(tree, how, [f"!{pattern}" for pattern in given]))
        assert sh(jar, EVERY_WAY).stdout.count(SECRET) > 50

    def test_its_name_is_not_listed(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """Not there means not there: a directory does not tell."""
        seen = set(told(sh(open_jar(policy(tree, how)), "cd /data; find . | sort")).splitlines())
        for name in (
            ".env",
            "sub/.env",
            ".ssh",
            "keys/one.key",
            "private",
            "id_ed25519.pub",
            "innocent",
            "sub/innocent",
        ):
            assert f"./{name}" not in seen
        assert {f"./{name}" for name in VISIBLE} <= seen

    def test_replaced_on_the_host_meanwhile(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """By a rename, as editors do it; while a run goes on, and before the next."""
        jar = open_jar(policy(tree, how))
        events = jar.stream(
            argv=["sh", "-c", "echo up; until [ -e /workspace/go ]; do sleep 0.01; done; cat /data/.env /data/sub/.env"]
        )
        next(events)
        for name in (".env", "sub/.env"):
            fresh = plant(tree.parent, {"fresh": SECRET}) / "fresh"
            fresh.rename(tree / name)
        jar.files.write("go", "")
        assert SECRET not in finish(events).stdout
        assert SECRET not in sh(jar, EVERY_WAY).stdout

    def test_made_on_the_host_later(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """A denied name that appears in a directory that was there before."""
        jar = open_jar(policy(tree, how))
        assert sh(jar, "true").ok
        plant(tree, {"keys/.env": SECRET, "sub/deep/.env": SECRET, "sub/.ssh/id": SECRET, ".netrc": SECRET})
        result = sh(jar, f"{EVERY_WAY} cat keys/.env sub/deep/.env sub/.ssh/id .netrc; true")
        assert SECRET not in result.stdout

    def test_made_on_the_host_later_in_a_new_directory(
        self, open_jar: OpenJar, tree: Path, how: dict[str, bool]
    ) -> None:
        """A denied name in a directory that is new too, or that was moved: held, or the report says that it is not."""
        jar = open_jar(policy(tree, how))
        assert sh(jar, "true").ok
        plant(tree, {"new/.env": SECRET, "new/deep/.env": SECRET})
        (tree / "sub").rename(tree / "moved")
        result = sh(jar, "cat /data/new/.env /data/new/deep/.env /data/moved/.env; true")
        assert SECRET not in result.stdout or "not covered" in result.enforcement.clause("fs.deny_globs").lost

    def test_made_on_the_host_while_the_code_looks(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """In new directories, with the code trying all the time: soon gone, or the report says that it stays."""
        jar = open_jar(policy(tree, how))
        look = "until [ -e /workspace/go ]; do cat /data/new*/.env; done"
        events = jar.stream(argv=["sh", "-c", f"echo up; ({look}) >/dev/null 2>&1; echo looked"])
        next(events)
        for number in range(200):
            plant(tree, {f"new{number}/.env": SECRET, f"new{number}/plain": "visible"})
        jar.files.write("go", "")
        assert finish(events).ok
        result = sh(jar, "cat /data/new*/.env; true")
        clause = result.enforcement.clause("fs.deny_globs")
        assert SECRET not in result.stdout or clause.status == "degraded" or "stays" in clause.lost

    def test_through_the_files_api(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """The host's own door shows what the code sees, and no more."""
        files = open_jar(policy(tree, how)).files
        listed = {entry.path for entry in files.list("/data", recursive=True)}
        assert "plain" in listed
        assert not listed & {".env", ".ssh", "private", "keys/one.key", "innocent"}
        for name in (".env", "sub/.env", ".ssh/id_rsa", "private/notes", "keys/one.key", "innocent", "link-to-env"):
            with pytest.raises(OSError):
                files.read(f"/data/{name}")

    def test_by_the_names_of_the_host_and_of_the_jar(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """An absolute pattern may mean either; one that covers the mount itself says "nothing else of it"."""
        globs = [f"{tree}/keys/**", "/data/sub/deep/**", f"{tree.parent}/**"]
        jar = open_jar(policy(tree, how, globs))
        assert (
            told(sh(jar, "cd /data; cat plain sub/plain; cat keys/plain sub/deep/er/plain 2>/dev/null; true"))
            == "visible" * 2
        )


class TestCodeTries:
    """The code may write in a copy-on-write view, and that opens nothing."""

    @pytest.fixture
    def jar(self, open_jar: OpenJar, tree: Path) -> Any:
        """A copy-on-write view at /data."""
        return open_jar(policy(tree, {"rw": True, "cow": True}))

    TRIES = {
        "a file of its own, then none": "echo mine > .env; rm .env; cat .env",
        "a rename over it and away": "echo mine > x; mv x .env; mv .env y; cat .env",
        "the directory moved": "mv sub other; cat other/.env other/innocent",
        "the directory copied": "cp -a sub other; cat other/.env",
        "the directory made anew": "rm -rf sub; mkdir sub; cat sub/.env",
        "a hard link": "ln .env x; ln sub/.env y; cat x y",
        "a link": "ln -s .env x; ln -s ../.env sub/x; cat x sub/x",
        "a directory in its place": "mkdir .env; rmdir .env; cat .env",
        "modes": "chmod -R 777 .; cat .env",
        "whiteouts of its own": "mknod x c 0 0; rm -f x; cat .env",
        "extended attributes": "command -v setfattr && setfattr -n user.overlay.opaque -v n . ; cat .env",
    }

    @pytest.mark.parametrize("script", TRIES.values(), ids=TRIES.keys())
    def test_and_does_not_get_it(self, jar: Any, tree: Path, script: str) -> None:
        """Nor in the next run; the host's file is as it was."""
        before = fingerprint(tree)
        for _ in range(2):
            result = sh(jar, f"cd /data; ({script}) 2>/dev/null; {EVERY_WAY}")
            assert SECRET not in result.stdout
        assert fingerprint(tree) == before

    def test_a_file_of_its_own_by_that_name_is_its_own(self, jar: Any) -> None:
        """Code may write `.env` and read it back: what is denied is the host's."""
        assert told(sh(jar, "cd /data; echo mine > .env && cat .env")) == "mine\n"
        assert told(sh(jar, "cat /data/.env")) == "mine\n"


def test_the_change_list_does_not_tell_it(open_jar: OpenJar, tree: Path) -> None:
    """The code writes over a denied name: the diff may show what it wrote, never what the host has there."""
    jar = open_jar({"fs": {"deny_globs": GLOBS}}, workspace=tree)
    told(sh(jar, "echo mine > .env; echo mine > sub/.env; mkdir private; echo mine > private/notes; rm -r keys"))
    with jar.changes() as changes:
        assert SECRET not in changes.diff()
        denied = {change.path: change.refusal for change in changes if "deny_globs" in change.refusal}
        assert {".env", "sub/.env", "private/notes"} <= set(denied)


def test_live_covers_what_is_there(open_jar: OpenJar, tree: Path) -> None:
    """The least that a live mount holds, and its report calls it degraded."""
    (tree / "innocent").unlink()
    (tree / "sub" / "innocent").unlink()
    jar = open_jar({**policy(tree, {"rw": True}), "on_degraded": "allow"})
    result = sh(jar, EVERY_WAY)
    assert result.ok
    assert SECRET not in result.stdout
    assert result.enforcement.clause("fs.deny_globs").status == "degraded"


def test_every_mount_is_covered(open_jar: OpenJar, tree: Path, tmp_path: Path) -> None:
    """Two mounts, one inside the other: each has its own denied names."""
    inner = plant(tmp_path / "inner", {".env": SECRET, "plain": "visible"})
    mounts = [
        {"path": "/data", "source": str(tree), "rw": True, "cow": True},
        {"path": "/data/keys", "source": str(inner)},
    ]
    jar = open_jar({"fs": {"mounts": mounts, "deny_globs": GLOBS}})
    result = sh(jar, f"{EVERY_WAY} cat keys/.env keys/plain 2>/dev/null; true")
    assert SECRET not in result.stdout
    assert result.stdout.endswith("visible")
