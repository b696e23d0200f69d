"""The user that the code is in a container: a number of the Sandbox's own, with a name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.guest.container.user_files import USER_FILE_BYTES, write_user_files

OpenJar = Callable[..., Sandbox]
USER = 0x70000123
LOOK = """
import getpass, grp, os, pwd
print(os.getuid(), os.getgid(), os.getgroups())
print(pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name, getpass.getuser())
print(pwd.getpwuid(os.getuid()).pw_dir == os.path.expanduser("~"), os.stat("/workspace").st_uid == os.getuid())
for path in ("/etc/passwd", "/etc/group"):
    for attempt in (lambda: open(path, "a"), lambda: os.chmod(path, 0o666), lambda: os.unlink(path)):
        try:
            attempt()
            print("changed", path)
        except OSError:
            pass
"""


def kernel_users() -> dict[int, int]:
    """The user of each process on this machine, by its number."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(name)] = os.stat(f"/proc/{name}").st_uid
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("backend", ["docker", "podman"], scope="session", indirect=True)
class TestOwnUser:
    """Engines whose containers are users of this machine."""

    def test_each_sandbox_is_a_user_of_its_own_and_has_a_name(self, open_jar: OpenJar) -> None:
        """No two are the same, and none is a user of this machine; `whoami` and Python find a name."""
        jars = [open_jar(), open_jar()]
        if "of the Sandbox's own" not in jars[0].plan(argv=["true"]).report.clause("proc.uid").by:
            pytest.skip("this engine's containers are in a user namespace")
        users = []
        for jar in jars:
            first, *rest = jar.run(LOOK).stdout.splitlines()
            assert rest == ["jar jar jar", "True True"]
            user, group, groups = first.split(" ", 2)
            assert (user, groups) == (group, f"[{group}]")
            assert jar.exec(["whoami"]).stdout == "jar\n"
            assert jar.exec(["id", "-u"]).stdout == f"{user}\n"  # the same in every run
            users.append(int(user))
        assert len(set(users)) == 2
        assert min(users) >= 0x70000000
        if os.path.exists("/proc/1/cgroup"):
            assert set(users) <= set(kernel_users().values())

    def test_files_are_the_codes_and_come_back(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """What the host copies in can be changed by the code, and the host reads what it made and closed."""
        (tmp_path / "given").write_text("given")
        (tmp_path / "given").chmod(0o600)
        jar = open_jar(workspace=tmp_path)
        said = jar.run(
            "open('given', 'a').write(' more')\nopen('closed', 'w').write('x')\nimport os\nos.chmod('closed', 0)"
        )
        assert said.ok, said
        assert jar.files.read("given") == b"given more"
        assert jar.files.read("closed") == b"x"
        jar.files.write("late", b"1")
        assert jar.run("open('late', 'a').write('2')").ok
        assert jar.files.read("late") == b"12"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can show a directory's owner as another user")
    def test_live_files_stay_their_owners(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """In a live directory of somebody else's, the code is its owner, and so are the files that it makes."""
        (tmp_path / "old").write_text("old")
        for path in (tmp_path, tmp_path / "old"):
            os.chown(path, 4321, 4321)
        jar = open_jar(workspace=tmp_path, live=True, overrides=["on_degraded=allow"])
        said = jar.run("open('old', 'a').write(' new')\nopen('made', 'w').write('x')")
        assert said.ok, said
        assert (tmp_path / "old").read_text() == "old new"
        assert (tmp_path / "made").stat().st_uid == 4321

    def test_policy_that_names_a_user_gets_it(self, open_jar: OpenJar) -> None:
        """Any number but the presets'."""
        jar = open_jar(overrides=["proc.uid=4321"])
        assert jar.exec(["id", "-u"]).stdout == "4321\n"


PASSWD = "root:x:0:0:root:/:/bin/sh\nnode:x:1000:1000::/home/node:/bin/bash\n"
LISTS = {
    "the name of 1000": (PASSWD, "node:x:1000:\nstaff:x:50:node\n", f"node:x:{USER}:{USER}::/home/node:/bin/bash"),
    "no such user": ("root:x:0:0::/:/bin/sh\n", "root:x:0:\n", f"jar:x:{USER}:{USER}:jar:/tmp/home:/bin/sh"),
    "a line of podman's": (
        f"{USER}:*:{USER}:{USER}:user:/:/bin/sh\n",
        "",
        f"jar:x:{USER}:{USER}:jar:/tmp/home:/bin/sh",
    ),
    "no list": (None, None, f"jar:x:{USER}:{USER}:jar:/tmp/home:/bin/sh"),
    "a list that is too long": (
        "x:x:1:1::/:/bin/sh\n" * 999,
        "x:x:1:\n" * 999,
        f"jar:x:{USER}:{USER}:jar:/tmp/home:/bin/sh",
    ),
    "lines that are none": ("\n:\n::\n:::\n\udcff\n", "\n::\n", f"jar:x:{USER}:{USER}:jar:/tmp/home:/bin/sh"),
}


@pytest.mark.parametrize(("passwd", "group", "line"), LISTS.values(), ids=LISTS.keys())
def test_lists_of_users(tmp_path: Path, passwd: str | None, group: str | None, line: str) -> None:
    """The user has the name that the image gives to number 1000, or one of belljar's; each list fits into a page."""
    image, made = tmp_path / "image", tmp_path / "made"
    for directory in (image, made):
        directory.mkdir()
    for name, content in (("passwd", passwd), ("group", group)):
        if content is not None:
            (image / name).write_text(content, errors="surrogateescape")
    descriptor = os.open(made, os.O_RDONLY)
    try:
        write_user_files(descriptor, USER, instead_of=1000, home="/tmp/home", image=str(image))
    finally:
        os.close(descriptor)
    written = (made / "passwd").read_text(errors="surrogateescape").splitlines()
    assert [one for one in written if f":{USER}:{USER}:" in one] == [line]
    groups = (made / "group").read_text().splitlines()
    assert [one.split(":")[0] for one in groups if one.split(":")[2:3] == [str(USER)]] == [line.partition(":")[0]]
    for name in ("passwd", "group"):
        assert (made / name).stat().st_size <= USER_FILE_BYTES
