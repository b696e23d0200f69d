"""The container backends' pure parts: a plan and a report for any engine, made without one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from belljar.backends.container.engine.facts import Facts
from belljar.backends.container.jar.compile import ContainerHost, compile_plan
from belljar.backends.container.jar.machine_files import HostMachine
from belljar.backends.contract import LaunchPlan, RunRequest, Status
from belljar.errors import PolicyError
from belljar.policy.keys.table import CLAUSES
from belljar.policy.load.resolve import resolve
from belljar.policy.models import Policy

FACTS = Facts(
    runtime_arguments={},
    version="24.0.7",
    api_version="",
    runtimes={"runc": "/usr/bin/runc", "runsc": "/usr/bin/runsc"},
    runtime="runc",
    runtime_path="/usr/bin/runc",
    runtime_version="1.1.12",
    rootless=False,
    user_namespace=False,
    cgroup_version="2",
    cgroup_driver="systemd",
    security=("seccomp",),
    seccomp=True,
    storage_driver="overlay2",
    os="linux",
    architecture="x86_64",
    kernel="6.1.0",
    local=True,
)
IMAGE = "sha256:" + "0" * 64
DOCKER = ContainerHost(
    backend="docker",
    engine="docker",
    program="/usr/bin/docker",
    facts=FACTS,
    run_options=(),
    image=IMAGE,
    image_name="belljar-base:1",
    image_id=IMAGE,
    profile="/state/seccomp.json",
    filters=True,
    processors=4,
    root=True,
    hard_processes=32768,
    opened="/state/opened",
    machine=HostMachine(
        mem_bytes=16 << 30, processors=(0, 1, 2, 3), cpuinfo="processor\t: 0\nflags\t: avx\n", booted=9
    ),
    secrets=("/root/.ssh",),
)
PODMAN = replace(DOCKER, backend="podman", engine="podman", program="/usr/bin/podman")
USERS_PODMAN = replace(PODMAN, root=False, facts=replace(FACTS, rootless=True))
OLD_USERS_PODMAN = replace(USERS_PODMAN, facts=replace(FACTS, rootless=True, cgroup_version="1"))
GVISOR = replace(DOCKER, backend="gvisor", run_options=("--runtime", "runsc"), facts=replace(FACTS, runtime="runsc"))
PLACES = {
    "docker": DOCKER,
    "podman": PODMAN,
    "a user's podman": USERS_PODMAN,
    "a user's podman without groups": OLD_USERS_PODMAN,
    "gvisor": GVISOR,
}
LIVE = {"fs": {"mounts": [{"path": "/workspace", "source": "/srv", "rw": True, "cow": False}]}}
each_place = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())


def policy(layer: dict[str, Any] | None = None, preset: str | None = None) -> Policy:
    return resolve(preset, layers=[layer or {}], managed=None)


def plan(
    layer: dict[str, Any] | None = None, place: ContainerHost = DOCKER, preset: str | None = None, **request: Any
) -> LaunchPlan:
    return compile_plan(policy(layer, preset), RunRequest(**(request or {"argv": ("true",)})), place)


def container(**asked: Any) -> dict[str, Any]:
    return {"container": asked}


def after(arguments: list[str], option: str) -> list[str]:
    """The word after each occurrence of an option."""
    return [arguments[at + 1] for at, word in enumerate(arguments[:-1]) if word == option]


DOCKER_RUN = """\
run --interactive --name belljar-{jar}-{run} --hostname jar
--label belljar=1 --label belljar.owner={owner} --label belljar.jar={jar}
--pull never --log-driver none --user {user}:{user} --workdir /
--cap-drop ALL --security-opt no-new-privileges --security-opt seccomp=/state/seccomp.json
"""
"""How every container of docker's begins."""


class TestPlan:
    """What would be done."""

    @each_place
    def test_it_is_plain_data_and_always_the_same(self, place: ContainerHost) -> None:
        """Two plans of the same policy, request and engine are equal, and go through JSON."""
        one, two = plan(place=place), plan(place=place)
        assert one == two
        assert json.loads(json.dumps(one.stage)) == one.stage

    def test_how_a_run_begins(self) -> None:
        """Word for word: no privilege, no network, no log, nothing pulled."""
        wanted = DOCKER_RUN.split()
        assert plan().stage["run"][: len(wanted)] == wanted

    @each_place
    def test_what_every_container_has(self, place: ContainerHost) -> None:
        """The volume server as well as the run, whatever the engine."""
        for arguments in (plan(place=place).stage["depot"], plan(place=place).stage["run"]):
            assert "--read-only" in arguments
            assert after(arguments, "--cap-drop") == ["ALL"]
            assert after(arguments, "--network") == ["none"]
            assert {"no-new-privileges", "seccomp=/state/seccomp.json"} <= set(after(arguments, "--security-opt"))
            assert after(arguments, "--user") in (["1000:1000"], ["{user}:{user}"])
            assert not {"--privileged", "--pid", "--publish", "--cap-add", "--device"} & set(arguments)
            assert IMAGE in arguments  # by its digest, so that nothing can take its place

    @pytest.mark.parametrize(
        ("place", "layer", "wanted"),
        [
            (DOCKER, {}, "{user}"),
            (DOCKER, {"proc": {"uid": 1001}}, "1001"),
            (replace(DOCKER, root=False), {}, "{user}"),
            (replace(DOCKER, root=True), LIVE, "{user}"),
            (replace(DOCKER, root=False), LIVE, "1000"),
            (replace(DOCKER, facts=replace(DOCKER.facts, user_namespace=True)), {}, "1000"),
            (GVISOR, {}, "1000"),
            (OLD_USERS_PODMAN, {}, "1000"),
        ],
        ids=["docker", "named", "as a user", "live", "live as a user", "userns-remap", "gvisor", "rootless"],
    )
    def test_where_a_sandbox_has_a_user_of_its_own(
        self, place: ContainerHost, layer: dict[str, Any], wanted: str
    ) -> None:
        """Where a number is a kernel user id, unless the policy names another or a live directory needs its owner."""
        made = plan(layer, place)
        assert after(made.stage["run"], "--user") == after(made.stage["depot"], "--user") == [f"{wanted}:{wanted}"]
        mounts = " ".join(after(made.stage["run"], "--mount"))
        assert ("dst=/etc/passwd,readonly" in mounts) == (wanted == "{user}")
        assert ("of the Sandbox's own" in made.report.clause("proc.uid").by) == (wanted == "{user}")
        if not place.facts.rootless:
            assert f"uid={wanted},gid={wanted}" in made.stage["volume"]["options"]

    def test_limits(self) -> None:
        """Memory without swap; one process more than the code may have, for the gate."""
        run = plan({"proc": {"mem_mb": 256, "pids": 9, "cpu_quota": 0.5}}).stage["run"]
        assert after(run, "--memory") == after(run, "--memory-swap") == [str(256 << 20)]
        assert after(run, "--pids-limit") == ["10"]
        assert after(run, "--cpus") == ["0.50"]

    def test_no_more_processors_than_there_are(self) -> None:
        """An engine refuses to start with more."""
        assert "--cpus" not in plan({"proc": {"cpu_quota": 64}}).stage["run"]

    def test_without_control_groups_rlimits_stand_in(self) -> None:
        """A user's podman with cgroup v1: no option that it would refuse, and the report says what is lost."""
        made = plan(place=OLD_USERS_PODMAN)
        assert not {"--memory", "--pids-limit", "--cpus"} & {*made.stage["run"], *made.stage["depot"]}
        assert {"RLIMIT_NPROC", "RLIMIT_DATA"} <= set(made.stage["rlimits"])
        assert made.report.clause("proc.mem_mb").status is Status.DEGRADED

    @pytest.mark.parametrize(("place", "least"), [(DOCKER, 32), (GVISOR, 64)], ids=["runc", "gvisor"])
    def test_too_little_memory_for_a_container(self, place: ContainerHost, least: int) -> None:
        """Told before anything is started."""
        with pytest.raises(PolicyError, match=f"needs {least} MB"):
            plan({"proc": {"mem_mb": least - 1}}, place)
        plan({"proc": {"mem_mb": least}}, place)

    def test_the_volume_holds_all_that_is_writable(self) -> None:
        """Its size is the policy's, in pages, and belljar's own files come on top."""
        volume = plan({"fs": {"size_mb": 8, "inodes": 200}}).stage["volume"]
        assert 8 << 20 <= volume["bytes"] <= (8 << 20) + (1 << 17) + 2 * 4096
        assert 200 < volume["files"] < 232
        assert f"nr_inodes={volume['files']}" in volume["options"]
        run = plan().stage["run"]
        writable = [mount for mount in after(run, "--mount") if "readonly" not in mount]
        assert all(mount.startswith("type=bind,src={files}/") for mount in writable)

    def test_gvisor_has_shared_memory_of_its_own(self) -> None:
        """Semaphores need it; it has a size, and the report does not say that the volume holds it."""
        made = plan({"fs": {"size_mb": 8}}, place=GVISOR)
        (shared,) = after(made.stage["run"], "--tmpfs")
        assert shared.startswith("/dev/shm:")
        assert shared.endswith(f",size={8 << 20}")
        assert not any("shm" in mount for mount in after(made.stage["run"], "--mount"))
        assert made.stage["expect"]["shared_bytes"] == 8 << 20
        for key in ("fs.size_mb", "fs.inodes"):
            assert "but /dev/shm" in made.report.clause(key).by
            assert "/dev/shm" not in plan().report.clause(key).by
        assert "--tmpfs" not in plan().stage["run"]
        assert plan().stage["expect"]["shared_bytes"] == plan().stage["volume"]["bytes"]

    def test_gvisor_is_asked_for_by_name(self) -> None:
        """For the volume server too: what lies in the volume was made by the code."""
        made = plan(place=GVISOR)
        assert after(made.stage["run"], "--runtime") == after(made.stage["depot"], "--runtime") == ["runsc"]


class TestLive:
    """A directory of the host's for writing."""

    LAYER = {"rw": True, "cow": False}

    def sources(self, tmp_path: Path, place: ContainerHost) -> list[str]:
        layer = {"fs": {"mounts": [{"path": "/data", "source": str(tmp_path), **self.LAYER}]}}
        stage = plan(layer, place).stage
        mounts = [*after(stage["run"], "--mount"), *after(stage["depot"], "--mount")]
        return [mount.split(",")[1] for mount in mounts if "dst=/data" in mount or "dst=/live" in mount]

    def test_root_binds_a_mount_with_the_owner_mapped(self, tmp_path: Path) -> None:
        """The run and the volume server see the same."""
        assert set(self.sources(tmp_path, DOCKER)) == {"src={live}/1"}

    def test_an_ordinary_user_binds_it_as_it_is(self, tmp_path: Path) -> None:
        """The engine can't be told to map."""
        assert set(self.sources(tmp_path, USERS_PODMAN)) == {f"src={tmp_path}"}


class TestOptions:
    """The policy's `container`."""

    def test_name(self) -> None:
        """Between belljar's prefix and what makes it unique."""
        run = plan(container(name="mine")).stage["run"]
        assert after(run, "--name") == ["belljar-mine-{jar}-{run}"]

    def test_entrypoint(self) -> None:
        """Comes before the command and before the interpreter; no waiting Python takes its place."""
        made = plan(container(entrypoint=["/bin/env", "A=1"]), argv=("true",))
        assert made.argv == ("/bin/env", "A=1", "true")
        made = plan(container(entrypoint=["/bin/env"]), code=b"1")
        assert made.argv == ("/bin/env", "python3", "/run/jar/main.py")
        assert not made.stage["python"]
        assert plan(code=b"1").stage["python"]

    def test_auto_remove(self) -> None:
        """A container that is to be kept lacks the label by which others are found and removed."""
        kept = plan(container(auto_remove=False))
        assert kept.stage["keep"]
        assert "belljar=1" not in after(kept.stage["run"], "--label")
        assert "belljar.kept=1" in after(kept.stage["run"], "--label")
        assert "belljar=1" in after(kept.stage["depot"], "--label")
        assert not plan().stage["keep"]

    def test_image(self) -> None:
        """The result has its digest."""
        assert plan().image == IMAGE

    def test_nothing_is_pulled_by_a_run(self) -> None:
        """`container.pull` is done before: a run never gets another image than was looked at."""
        for pull in ("never", "missing"):
            assert after(plan(container(pull=pull)).stage["run"], "--pull") == ["never"]

    def test_ports_are_on_loopback(self) -> None:
        """With a network, which only a dangerous policy may have."""
        made = plan(container(network="bridge", ports=["8080:80"]), preset="unrestricted")
        assert after(made.stage["run"], "--publish") == ["127.0.0.1:8080:80"]
        assert "--publish" not in made.stage["depot"]

    def test_ports_without_a_network_are_told(self) -> None:
        """Nothing is published, and the report says so."""
        assert plan(container(ports=["8080:80"])).report.clause("container.ports").status is Status.UNSUPPORTED

    def test_a_root_that_can_be_written(self) -> None:
        """Of the run only; degraded."""
        made = plan(container(read_only=False), preset="unrestricted")
        assert "--read-only" not in made.stage["run"]
        assert "--read-only" in made.stage["depot"]
        assert made.report.clause("container.read_only").status is Status.DEGRADED


DANGERS = {
    "privileged": ({"privileged": True}, ["--privileged"]),
    "pid": ({"pid": "host"}, ["--pid", "host"]),
    "network": ({"network": "host"}, ["--network", "host"]),
}


@pytest.mark.parametrize(("asked", "words"), DANGERS.values(), ids=DANGERS.keys())
class TestDangers:
    """What opens the host."""

    def test_only_a_dangerous_policy_gets_it(self, asked: dict[str, Any], words: list[str]) -> None:
        """And then for the run's container alone, never the volume server's."""
        made = plan(container(**asked), preset="unrestricted")
        assert " ".join(words) in " ".join(made.stage["run"])
        assert " ".join(words) not in " ".join(made.stage["depot"])
        assert made.report.shortfalls()

    def test_it_is_refused_otherwise(self, asked: dict[str, Any], words: list[str]) -> None:
        """Even if something made a policy that asks for it and is not marked."""
        del words
        forged = replace(policy(container(**asked), "unrestricted"), dangerous=False)
        with pytest.raises(PolicyError, match="unrestricted"):
            compile_plan(forged, RunRequest(argv=("true",)), DOCKER)


@each_place
def test_no_mount_lies_in_tmp(place: ContainerHost) -> None:
    """Which is a mount that each run has anew."""
    with pytest.raises(PolicyError, match="/tmp/x lies in /tmp"):
        plan({"fs": {"mounts": [{"path": "/tmp/x", "source": "/srv"}]}}, place)


class TestReport:
    """Every clause, accounted for."""

    @each_place
    def test_every_clause_is_in_it(self, place: ContainerHost) -> None:
        """Once, and none that the policy does not have."""
        keys = [clause.key for clause in plan(place=place).report.clauses]
        assert sorted(keys) == sorted({*CLAUSES, "syscalls"})

    @pytest.mark.parametrize("place", [DOCKER, PODMAN, GVISOR], ids=["docker", "podman", "gvisor"])
    def test_the_default_policy_holds(self, place: ContainerHost) -> None:
        """Nothing is lost on an engine that has control groups, but what it shows of the host; presets accept that."""
        assert [clause.key for clause in plan(place=place).report.shortfalls()] == ["proc.host_info"]
        for preset in ("aicode", "strict", "production", "docker"):
            assert "proc.host_info" in resolve(preset, managed=None).on_degraded
