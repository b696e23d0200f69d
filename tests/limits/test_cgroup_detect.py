"""Which mechanism is found on which host: recorded /proc texts, with a made-up /sys beneath a temporary root."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belljar.limits.detect import CgroupSupport, Mechanism, detect
from belljar.limits.naming import group_name, is_stale
from belljar.limits.proc_files import hierarchies

V1_HYBRID = (
    "9:name=systemd:/\n8:pids:/\n4:memory:/some_service/f601\n2:cpu,cpuacct:/\n0::/\n",
    (
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
        "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    ),
)
V1_DOCKER = (
    "4:memory:/docker/abc\n",
    "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid shared:7 master:3 - cgroup cgroup rw,memory\n",
)
SESSION = "/user.slice/user-1000.slice/session-3.scope"
USER_SERVICE = "/user.slice/user-1000.slice/user@1000.service"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V2_READ_ONLY = "640 639 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n"
ALL = "cpuset cpu io memory pids\n"


def host(root: Path, cgroup: str, mountinfo: str, files: dict[str, str] | None = None) -> str:
    """A root directory with these texts in its /proc and these files beneath it."""
    texts = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo, **(files or {})}
    for name, text in texts.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def group(
    path: str, *, controllers: str = ALL, subtree: str = "", procs: str = "1\n", kind: str = "domain\n"
) -> dict[str, str]:
    """The files of one v2 group."""
    base = f"/sys/fs/cgroup{path}"
    files = {"controllers": controllers, "subtree_control": subtree, "procs": procs, "type": kind}
    return {f"{base}/cgroup.{name}": text for name, text in files.items()}


def test_v1_paths_are_joined_with_their_mounts() -> None:
    """Controllers that share a mount, a hierarchy without controllers, and the hybrid's v2 are told apart."""
    found = {",".join(sorted(one.controllers)): one.directory for one in hierarchies(*V1_HYBRID)}
    assert found == {
        "cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
        "memory": "/sys/fs/cgroup/memory/some_service/f601",
        "pids": "/sys/fs/cgroup/pids",
        "name=systemd": "/sys/fs/cgroup/systemd",
        "": "/sys/fs/cgroup/unified",
    }


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/docker/abc", "/docker/abc", "/cg"),
        ("/docker/abc/x", "/docker/abc", "/cg/x"),
        ("/docker/abcd", "/docker/abc", ""),
        ("/../../system.slice", "/", ""),
        ("/a", "/../..", ""),
        ("/a b", "/", "/cg/a b"),
    ],
)
def test_a_group_outside_of_the_mount_is_not_ours(path: str, root: str, expected: str) -> None:
    """A container sees a part of the hierarchy, or its own group from a namespace that it is not in."""
    (found,) = hierarchies(f"0::{path}\n", f"30 23 0:26 {root} /cg rw - cgroup2 cgroup2 rw\n")
    assert found.directory == expected


def test_v1_without_the_proving_file_is_none(tmp_path: Path) -> None:
    """A directory in which groups can be made but have no limits is no control group."""
    root = host(tmp_path, *V1_HYBRID)
    for name in ("cpu,cpuacct", "memory/some_service/f601", "pids", "unified"):
        (tmp_path / "sys/fs/cgroup" / name).mkdir(parents=True)
    found = detect(root=root)
    assert found.mechanism is Mechanism.NONE
    assert found.missing["memory"].endswith("has no memory.limit_in_bytes")
    assert not list(tmp_path.rglob("belljar-*"))


def test_v1_read_only_says_so(tmp_path: Path) -> None:
    found = detect(root=host(tmp_path, *V1_DOCKER))
    assert found.mechanism is Mechanism.NONE
    assert found.missing["memory"] == "/sys/fs/cgroup/memory is mounted read-only"
    assert found.missing["pids"] == "no cgroup v1 hierarchy has the controller pids"
    assert found.hint


def user_session(root: Path, offered: str) -> CgroupSupport:
    """An ordinary user logged in through ssh: in root's session scope, with a user manager of their own."""
    tools = {"usr/bin/systemd-run": "", "run/systemd/system/x": "", "run/user/1000/systemd/private": ""}
    files = {**group(""), **group(SESSION), **group(USER_SERVICE, controllers=offered), **tools}
    text = host(root, f"0::{SESSION}\n", V2_MOUNT, files)
    (root / "usr/bin/systemd-run").chmod(0o755)
    return detect(root=text, euid=1000, environ={"PATH": f"{root}/usr/bin"})


@pytest.mark.parametrize(
    ("offered", "controllers"),
    [("cpu memory pids\n", ("memory", "cpu", "pids")), ("memory pids\n", ("memory", "pids"))],
)
def test_a_user_session_gets_a_scope(tmp_path: Path, offered: str, controllers: tuple[str, ...]) -> None:
    """The user's manager is asked, for what it was given itself; what it lacks has its reason and a hint."""
    found = user_session(tmp_path, offered)
    assert (found.mechanism, found.manager, found.controllers) == (Mechanism.V2_SYSTEMD, "user", controllers)
    assert set(found.missing) == {"memory", "cpu", "pids"} - set(controllers)
    assert bool(found.hint) is bool(found.missing)


def test_a_user_without_a_manager_has_none(tmp_path: Path) -> None:
    """`su` or cron: no user manager runs."""
    root = host(tmp_path, f"0::{SESSION}\n", V2_MOUNT, {**group(""), **group(SESSION)})
    found = detect(root=root, euid=1000, environ={})
    assert found.mechanism is Mechanism.NONE
    assert "enable-linger" in found.hint


def test_a_container_with_a_read_only_mount_has_none(tmp_path: Path) -> None:
    found = detect(root=host(tmp_path, "0::/\n", V2_READ_ONLY, group("")))
    assert (found.mechanism, found.missing["cpu"]) == (Mechanism.NONE, "/sys/fs/cgroup is mounted read-only")


@pytest.mark.parametrize(("procs", "usable"), [("{own}\n", True), ("1\n{own}\n", False)])
def test_a_writable_container_is_used_when_we_are_alone_in_it(tmp_path: Path, procs: str, usable: bool) -> None:
    """Processes that are not ours are not ours to move."""
    found = detect(root=host(tmp_path, "0::/\n", V2_MOUNT, group("", procs=procs.format(own=os.getpid()))), environ={})
    assert (found.mechanism is Mechanism.V2_DELEGATED) is usable
    assert found.occupants == ((os.getpid(),) if usable else ())


@pytest.mark.parametrize("in_own_scope", [True, False])
def test_our_own_scope_is_delegated_without_a_mark(tmp_path: Path, in_own_scope: bool) -> None:
    """A scope is systemd's own business, unless it is the one that we asked for."""
    scope = f"{USER_SERVICE}/app.slice/run-r1.scope"
    files = {**group(""), **group(scope, procs=f"{os.getpid()}\n")}
    found = detect(root=host(tmp_path, f"0::{scope}\n", V2_MOUNT, files), environ={}, in_own_scope=in_own_scope)
    assert (found.mechanism is Mechanism.V2_DELEGATED) is in_own_scope


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    """A kernel without them, and one where nothing is mounted."""
    assert detect(root=str(tmp_path)).mechanism is Mechanism.NONE
    found = detect(root=host(tmp_path, "", "22 1 8:1 / / rw - ext4 /dev/root rw\n"))
    assert found.mechanism is Mechanism.NONE
    assert set(found.missing) == {"memory", "cpu", "pids"}
    assert found.hint


def test_support_survives_json(tmp_path: Path) -> None:
    found = user_session(tmp_path, "memory pids\n")
    assert CgroupSupport.from_json(found.to_json()) == found


@pytest.mark.host
def test_an_ordinary_user_on_v1_has_none(as_ordinary_user: Callable[[Callable[[], Any]], Any]) -> None:
    """Only root makes groups on v1; the reason names the directory."""
    if detect().mechanism is not Mechanism.V1:
        pytest.skip("not a v1 host, or not started by root")
    found = CgroupSupport.from_json(as_ordinary_user(lambda: detect().to_json()))
    assert found.mechanism is Mechanism.NONE
    assert "Permission denied" in found.missing["memory"]
    assert "root" in found.hint


def test_names_tell_the_living_from_the_dead() -> None:
    """A pid that was given to another process since, is dead; another pid namespace can't be judged."""
    mine = group_name(os.getpid(), 3)
    belljar, namespace, pid, started, number = mine.split("-")
    table = {
        mine: False,
        "-".join([belljar, namespace, pid, str(int(started) + 1), number]): True,
        "-".join([belljar, str(int(namespace) + 1), pid, "1", number]): False,
        "belljar-launcher": False,
        "belljar-1-2-3-4-5": False,
        "user.slice": False,
    }
    assert {name: is_stale(name) for name in table} == table
