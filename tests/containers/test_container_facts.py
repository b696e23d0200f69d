"""What an engine says of itself, and whether its runc has a known escape."""

from __future__ import annotations

import dataclasses
import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from belljar.backends.container.engine import patch_level as patch_level_module
from belljar.backends.container.engine.engine import Engine, find_engine, find_program
from belljar.backends.container.engine.escapes import ESCAPES, EscapeVerdict, Use, judge
from belljar.backends.container.engine.facts import (
    Facts,
    docker_facts,
    facts,
    podman_facts,
    require_sound_runtime,
    runtime_problem,
)
from belljar.backends.container.engine.patch_level import PatchLevel
from belljar.backends.container.probe import known_checks, probe
from belljar.errors import PrerequisiteError

OF_2024 = "CVE-2024-21626"
OF_2025 = ("CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881")
OF_2026 = "CVE-2026-41579"
FIXED, UNREACHABLE, REACHABLE, UNKNOWN = EscapeVerdict
NEVER: frozenset[str] = frozenset()

# A runc: what the engine tells, the package's version, what the package's changelog names; and the verdict.
RUNCS = [
    # as upstream numbers them
    ("1.0.0-rc92", "", NEVER, REACHABLE),
    ("1.1.11", "", NEVER, REACHABLE),
    ("v1.1.11-0-g4bccb38c", "", NEVER, REACHABLE),
    ("1.1.12", "", NEVER, UNREACHABLE),
    ("v1.1.12-0-g51d5e946", "", NEVER, UNREACHABLE),
    ("1.1.15", "", NEVER, UNREACHABLE),
    ("1.2.0-rc.1", "", NEVER, UNREACHABLE),
    ("1.2.7", "", NEVER, UNREACHABLE),
    ("1.2.8", "", NEVER, UNREACHABLE),
    ("1.3.2", "", NEVER, UNREACHABLE),
    ("1.3.5", "", NEVER, UNREACHABLE),
    ("1.3.6", "", NEVER, FIXED),
    ("1.4.0-rc.2", "", NEVER, UNREACHABLE),
    ("1.4.2", "", NEVER, UNREACHABLE),
    ("1.4.3", "", NEVER, FIXED),
    ("1.5.0-rc.2", "", NEVER, UNREACHABLE),
    ("1.5.0-rc.3", "", NEVER, FIXED),
    ("1.5.2", "", NEVER, FIXED),
    ("2.0.0", "", NEVER, FIXED),
    # as distributions patch them: by the number of the package
    ("1.1.5+ds1", "1.1.5+ds1-1", NEVER, REACHABLE),
    ("1.1.5+ds1", "1.1.5+ds1-1+deb12u1", NEVER, UNREACHABLE),
    ("1.1.5+ds1-1+deb12u1", "", NEVER, UNREACHABLE),
    ("1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u2", NEVER, REACHABLE),
    ("1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u3", NEVER, UNREACHABLE),
    ("1.1.7", "1.1.7-0ubuntu1~22.04.1", NEVER, REACHABLE),
    ("1.1.7-0ubuntu1~22.04.2", "1.1.7-0ubuntu1~22.04.2", NEVER, UNREACHABLE),
    ("1.1.7-0ubuntu1~22.04.10", "", NEVER, UNREACHABLE),
    # by its changelog
    ("1.1.5+ds1", "1.1.5+ds1-1+other1", frozenset({OF_2024}), UNREACHABLE),
    ("1.1.5+ds1", "1.1.5+ds1-1+deb12u9", frozenset({OF_2024, *OF_2025}), UNREACHABLE),
    ("1.1.5+ds1", "1.1.5+ds1-1+deb12u9", frozenset({OF_2024, *OF_2025, OF_2026}), FIXED),
    ("1.1.9", "1.1.9-1.el9", frozenset({"CVE-2019-5736"}), REACHABLE),
    # a package that is not the runc in use proves nothing
    ("1.1.5", "1.1.4-1+x", frozenset({OF_2024}), REACHABLE),
    ("1.1.5", "1.3.6-1", NEVER, REACHABLE),
    # nobody tells
    ("", "", NEVER, UNKNOWN),
    ("a2f5ee3", "", NEVER, UNKNOWN),
    ("", "1.3.6-1", NEVER, FIXED),
]


@pytest.mark.parametrize(("version", "package", "named", "verdict"), RUNCS)
def test_a_runc_is_judged(version: str, package: str, named: frozenset[str], verdict: EscapeVerdict) -> None:
    """By its number, its package's, and what the package's changelog names."""
    judgement = judge(version, package=package, named=named)
    assert judgement.verdict is verdict
    assert bool(judgement.hint) is (verdict is not FIXED)


# What a plan does, and which escapes of an old but patched runc that brings within reach.
USES: list[tuple[set[Use], set[str]]] = [
    (set(), set()),
    ({Use.TERMINAL}, {"CVE-2025-52565"}),
    ({Use.MOUNT}, set(OF_2025)),
    ({Use.IMAGE}, {*OF_2025, OF_2026}),
]


@pytest.mark.parametrize(("uses", "reachable"), USES)
def test_what_a_plan_brings_within_reach(uses: set[Use], reachable: set[str]) -> None:
    """An escape counts if the plan has what it needs."""
    judgement = judge("1.1.5+ds1", package="1.1.5+ds1-1+deb12u1", uses=frozenset(uses))
    assert set(judgement.open) == {*OF_2025, OF_2026}
    assert judgement.verdict is (REACHABLE if reachable else UNREACHABLE)
    assert not reachable or all(cve in judgement.text for cve in reachable)


def test_the_newest_runc_has_every_fix() -> None:
    """So the table does not forget a series."""
    assert all(judge(escape.fixed[-1]).verdict in (FIXED, UNREACHABLE) for escape in ESCAPES)
    assert judge("9.0.0").verdict is FIXED


# --- patch levels ----------------------------------------------------------------------------------------------------


@pytest.fixture
def dpkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system of packages where runc is one."""
    info, doc = tmp_path / "info", tmp_path / "doc"
    info.mkdir()
    doc.mkdir()
    (tmp_path / "runc").touch()
    (info / "runc.list").write_text(f"/.\n{os.path.realpath(tmp_path)}/runc\n")
    monkeypatch.setattr(patch_level_module, "_DPKG", str(info))
    monkeypatch.setattr(patch_level_module, "_CHANGELOGS", (f"{doc}/changelog.Debian.gz",))
    patch_level_module.patch_level.cache_clear()
    return tmp_path


def test_a_changelog_is_read(dpkg: Path) -> None:
    """The newest entry's version, and every CVE that is named."""
    text = "runc (1.1.5+ds1-1+deb12u1) bookworm-security; urgency=high\n\n  * CVE-2024-21626: leaked fds\n"
    (dpkg / "doc/changelog.Debian.gz").write_bytes(gzip.compress(text.encode()))
    level = patch_level_module.patch_level(str(dpkg / "runc"))
    assert level == PatchLevel("runc", "1.1.5+ds1-1+deb12u1", frozenset({OF_2024}))


def test_a_torn_changelog_names_nothing(dpkg: Path) -> None:
    """Then only numbers count."""
    (dpkg / "doc/changelog.Debian.gz").write_bytes(gzip.compress(b"x" * 1000)[:30])
    assert patch_level_module.patch_level(str(dpkg / "runc")).fixed == frozenset()


def test_a_program_of_nobodys(dpkg: Path) -> None:
    """What was put there by hand has no patch level."""
    (dpkg / "mine").touch()
    assert patch_level_module.patch_level(str(dpkg / "mine")) == PatchLevel()


@pytest.mark.skipif(not os.path.exists("/usr/share/doc/runc/changelog.Debian.gz"), reason="not Debian's runc")
def test_debians_own_runc_has_the_fix_of_2024() -> None:
    """Its number alone would say otherwise."""
    patch_level_module.patch_level.cache_clear()
    level = patch_level_module.patch_level(find_program("runc") or "")
    assert level.package == "runc"
    assert judge(level.version, package=level.version, named=level.fixed).verdict in (FIXED, UNREACHABLE)


# --- what engines say ------------------------------------------------------------------------------------------------

DOCKER_INFO: dict[str, Any] = {
    "Driver": "overlay2",
    "CgroupDriver": "cgroupfs",
    "CgroupVersion": "1",
    "KernelVersion": os.uname().release,
    "Name": os.uname().nodename,
    "OSType": "linux",
    "Architecture": "x86_64",
    "ServerVersion": "20.10.24+dfsg1",
    "Runtimes": {"runc": {"path": "runc"}, "runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=none"]}},
    "DefaultRuntime": "runc",
    "RuncCommit": {"ID": "1.1.5+ds1-1+deb12u1"},
    "SecurityOptions": ["name=seccomp,profile=default"],
}
PODMAN_INFO: dict[str, Any] = {
    "host": {
        "arch": "amd64",
        "cgroupManager": "systemd",
        "cgroupVersion": "v2",
        "kernel": "6.1",
        "os": "linux",
        "ociRuntime": {"name": "crun", "path": "/usr/bin/crun", "version": "crun version 1.8.1\ncommit: f8a0"},
        "serviceIsRemote": False,
        "security": {"rootless": True, "seccompEnabled": True, "apparmorEnabled": False},
    },
    "store": {"graphDriverName": "overlay"},
    "version": {"APIVersion": "4.3.1", "Version": "4.3.1"},
}


def _docker(runtime: str | None = None, *, near: bool = True, **changes: Any) -> Facts:
    return docker_facts({**DOCKER_INFO, **changes}, runtime, near=near)


def test_what_docker_says() -> None:
    """All in one answer."""
    known = _docker()
    assert (known.version, known.runtime, known.runtime_version) == ("20.10.24+dfsg1", "runc", "1.1.5+ds1-1+deb12u1")
    assert (known.cgroup_version, known.cgroup_driver, known.storage_driver) == ("1", "cgroupfs", "overlay2")
    assert (known.seccomp, known.rootless, known.user_namespace, known.local) == (True, False, False, True)
    assert known.runtimes == {"runc": "runc", "runsc": "/usr/bin/runsc"}
    assert _docker("runsc").runtime_path == "/usr/bin/runsc"


def test_newer_dockers_tell_the_version_of_runc() -> None:
    """Among the runtime's features; the commit may be a bare hash."""
    features = '{"annotations": {"org.opencontainers.runc.version": "1.3.6"}}'
    runtimes = {"runc": {"path": "runc", "status": {"org.opencontainers.runtime-spec.features": features}}}
    assert _docker(Runtimes=runtimes, RuncCommit={"ID": "a2f5ee3"}).runtime_version == "1.3.6"


@pytest.mark.parametrize("change", [{"near": False}, {"Name": "elsewhere"}, {"KernelVersion": "6.6-linuxkit"}])
def test_a_daemon_elsewhere_is_not_local(change: dict[str, Any]) -> None:
    """By TCP, through a forwarded socket, or in a virtual machine."""
    assert not _docker(**change).local


def test_docker_without_root() -> None:
    """As it says itself."""
    assert _docker(SecurityOptions=["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]).rootless
    assert _docker(SecurityOptions=["name=userns"]).user_namespace


def test_what_podman_says() -> None:
    """The same facts in other words."""
    known = podman_facts(PODMAN_INFO)
    assert (known.version, known.api_version, known.runtime, known.runtime_version) == (
        "4.3.1",
        "4.3.1",
        "crun",
        "1.8.1",
    )
    assert (known.cgroup_version, known.cgroup_driver, known.storage_driver) == ("2", "systemd", "overlay")
    assert (known.seccomp, known.rootless, known.local) == (True, True, True)


@pytest.mark.parametrize("answer", [{}, {"Runtimes": None, "SecurityOptions": None, "ClientInfo": 7}])
def test_an_engine_that_tells_little(answer: dict[str, Any]) -> None:
    """Nothing is assumed: not local, no seccomp."""
    for known in (docker_facts(answer, None, near=True), podman_facts({**answer, "host": {"serviceIsRemote": True}})):
        assert (known.version, known.seccomp, known.local) == ("", False, False)


def test_an_old_runc_is_refused() -> None:
    """With what to install. Nothing asks for a policy's consent: this is an escape."""
    known = _docker(RuncCommit={"ID": "v1.1.11-0-g4bccb38c"}, near=False)
    with pytest.raises(PrerequisiteError, match=OF_2024) as caught:
        require_sound_runtime(known)
    assert "install" in caught.value.hint


def test_a_patched_runc_is_refused_for_a_plan_that_exposes_it() -> None:
    """The same runc serves a plain jar."""
    known = _docker(near=False)
    assert require_sound_runtime(known).verdict is UNREACHABLE
    with pytest.raises(PrerequisiteError, match=OF_2025[0]):
        require_sound_runtime(known, frozenset({Use.MOUNT}))


def test_other_runtimes_are_not_judged_as_runc() -> None:
    """crun and runsc have their own history; what wraps runc has runc's."""
    assert runtime_problem(podman_facts(PODMAN_INFO)).verdict is UNKNOWN
    assert runtime_problem(_docker("runsc")).verdict is UNKNOWN
    old = {"ID": "1.1.0"}
    wrapped = {"nvidia": {"path": "nvidia-container-runtime"}}
    assert runtime_problem(_docker("nvidia", Runtimes=wrapped, RuncCommit=old, near=False)).verdict is REACHABLE


# --- doctor ----------------------------------------------------------------------------------------------------------

# What is changed about a sound engine, and the check that then is not ok.
UNSOUND: list[tuple[dict[str, Any], str]] = [
    ({"version": "19.03.1"}, "daemon"),
    ({"runtime": "crun"}, "runtime"),
    ({"runtime_version": "1.1.11", "local": False}, "known escapes"),
    ({"seccomp": False}, "seccomp"),
    ({"rootless": True}, "control groups"),
]


@pytest.mark.parametrize(("change", "name"), UNSOUND)
def test_what_doctor_finds_wrong(change: dict[str, Any], name: str) -> None:
    """Each with what it means or what to type."""
    known = dataclasses.replace(_docker(), **change)
    wrong = [check for check in known_checks(Engine("docker", "/d"), known) if not check.ok]
    assert [check.name for check in wrong] == [name]
    assert wrong[0].hint


def test_doctor_finds_nothing_wrong() -> None:
    """With a sound engine."""
    assert all(check.ok for check in known_checks(Engine("docker", "/d"), _docker(near=False)))


def test_doctor_without_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Says how to get one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("belljar.backends.container.engine.engine._PLACES", ())
    for name in ("docker", "podman", "gvisor"):
        found = probe(name)
        assert (found.available, bool(found.hint), found.checks[0].name) == (False, True, "engine")


@pytest.mark.backend("docker")
def test_a_real_docker() -> None:
    """Is asked once."""
    engine = find_engine("docker")
    known = facts(engine)
    assert known.version
    assert known.seccomp
    assert known.cgroup_version in ("1", "2")
    assert facts(dataclasses.replace(engine, program=engine.program)) == known


@pytest.mark.backend("podman")
def test_a_real_podman() -> None:
    """With the runtime that it will use."""
    known = facts(find_engine("podman"))
    assert known.local
    assert known.runtime in ("crun", "runc")
    assert known.runtime_version


@pytest.mark.backend("gvisor")
def test_a_real_gvisor() -> None:
    """Is runsc."""
    assert facts(find_engine("gvisor")).runtime == "runsc"
