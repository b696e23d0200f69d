"""The bubblewrap backend's pure parts: a plan and a report for any host, made on this one."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from belljar.backends.bubblewrap.host.compile import compile_plan
from belljar.backends.bubblewrap.host.facts import Host
from belljar.backends.bubblewrap.host.report import report
from belljar.backends.bubblewrap.shared.stage_plan import StagePlan
from belljar.backends.bubblewrap.stage.whiteout import Whiteouts, names_to_deny
from belljar.backends.contract import LaunchPlan, RunRequest
from belljar.backends.denied_walk import find_denied
from belljar.backends.runtimes import Installation, Runtime
from belljar.errors import PolicyError, UsageError
from belljar.limits.detect import CgroupSupport, Mechanism
from belljar.policy.globs import DenyGlobs
from belljar.policy.keys.table import CLAUSES
from belljar.policy.load.resolve import resolve
from belljar.policy.models import Policy

HOST = Host(
    bwrap="/usr/bin/bwrap",
    root=True,
    home="/root",
    state="/root/.local/state/belljar",
    directories=("/usr",),
    links=(("/bin", "usr/bin"), ("/lib", "usr/lib")),
    etc=("ld.so.cache",),
    cgroup=CgroupSupport(Mechanism.V1, ("memory", "cpu", "pids")),
    runtimes=(
        Runtime(
            "python",
            "/opt/python/bin/python3",
            ("/opt/python",),
            installations=(Installation("/opt/python", (("bin", "/opt/python/bin"), ("lib", "/opt/python/lib"))),),
        ),
        Runtime(
            "javascript",
            "/opt/node/bin/node",
            ("/opt/node",),
            installations=(Installation("/opt/node", (("bin", "/opt/node/bin"),)),),
        ),
        Runtime("bash", "/usr/bin/bash"),
    ),
    secrets=("/etc/shadow", "/root/.ssh", "/root/.local/state/belljar"),
)
NO_GROUPS = CgroupSupport(Mechanism.NONE, missing={"memory": "no delegation", "cpu": "no delegation"})


def plan(layer: dict[str, Any] | None = None, host: Host = HOST, **request: Any) -> LaunchPlan:
    policy = resolve(layers=[layer or {}], managed=None)
    return compile_plan(policy, RunRequest(**(request or {"argv": ("true",)})), host)


def after(arguments: list[str], option: str) -> list[str]:
    """The word after each occurrence of an option."""
    return [arguments[at + 1] for at, word in enumerate(arguments[:-1]) if word == option]


class TestPlan:
    """What would be done."""

    def test_it_is_plain_data_and_always_the_same(self) -> None:
        """Two plans of the same policy, request and host are equal, and go through JSON."""
        one, two = plan(), plan()
        assert one == two
        assert json.loads(json.dumps(one.stage)) == json.loads(json.dumps(two.stage))
        stage = StagePlan.from_json(json.loads(json.dumps(one.stage["plan"])))
        assert stage.to_json() == one.stage["plan"]

    def test_every_namespace_is_its_own(self) -> None:
        """All that bubblewrap can unshare, a session of its own, and no outliving."""
        arguments = plan().stage["arguments"]
        wanted = {"user", "ipc", "pid", "net", "uts", "cgroup"}
        assert {word.removeprefix("--unshare-") for word in arguments if word.startswith("--unshare-")} == wanted
        assert {"--die-with-parent", "--new-session", "--seccomp"} <= set(arguments)
        assert not {word for word in arguments if word in ("--share-net", "--cap-add", "--unshare-user-try")}

    def test_the_user_is_the_policys(self) -> None:
        """Inside the jar; never 0."""
        arguments = plan({"proc": {"uid": 4321}}).stage["arguments"]
        assert after(arguments, "--uid") == after(arguments, "--gid") == ["4321"]

    def test_only_the_writable_is_expected_to_be(self) -> None:
        """The canary's list: mounts of the policy as it says, and nothing of the system."""
        layer = {"fs": {"mounts": [{"path": "/scratch", "rw": True}, {"path": "/fixed"}]}}
        expect = plan(layer).stage["expect"]
        assert sorted(expect["writable"]) == ["/dev/shm", "/proc", "/scratch", "/tmp", "/workspace"]
        assert {"/", "/dev", "/usr", "/opt/python", "/fixed", "/proc/1", "/proc/meminfo"} <= set(expect["readonly"])

    def test_keyrings_are_never_shown(self) -> None:
        """They are covered where the rest of /proc is not hidden."""
        shown, hidden = (plan({"proc": {"host_info": word}}).stage["expect"] for word in ("host", "limits"))
        assert {"/proc/keys", "/proc/key-users"} <= set(shown["readonly"])
        assert (shown["only_processes"], hidden["only_processes"]) == (False, True)

    RUNS = [
        ({"code": b"1"}, ["/opt/python"]),
        ({"code": b"1", "language": "javascript"}, ["/opt/node"]),
        ({"code": b"1", "language": "bash"}, ["/opt/node", "/opt/python"]),
        ({"argv": ("true",)}, ["/opt/node", "/opt/python"]),
    ]

    @pytest.mark.parametrize(("request_", "seen"), RUNS)
    def test_a_run_sees_the_interpreter_of_its_language(self, request_: dict[str, Any], seen: list[str]) -> None:
        """A shell and a command may start any of them. All of it is staged once."""
        made = plan(**request_)
        arguments = made.stage["arguments"]
        bound = [arguments[at + 2] for at, word in enumerate(arguments) if word == "--ro-bind"]
        assert sorted(path for path in bound if path.startswith("/opt")) == seen
        assert [path for path in made.stage["expect"]["readonly"] if path.startswith("/opt")] == seen
        assert all((f"{path}/bin" in made.env["PATH"]) == (path in seen) for path in ("/opt/node", "/opt/python"))
        assert made.stage["plan"] == plan().stage["plan"]

    def test_an_interpreter_hides_no_canary(self) -> None:
        """However much of the host its directory shows, what no jar may show is looked for."""
        shown = Installation("/root", ((".ssh", "/root/.ssh"), ("bin", "/root/bin")))
        python = Runtime("python", "/root/bin/python3", ("/root",), installations=(shown,))
        made = plan(host=replace(HOST, runtimes=(python,)), code=b"1")
        assert set(made.stage["expect"]["absent"]) == set(HOST.secrets)

    def test_no_mount_of_the_policy_lies_in_an_interpreter(self) -> None:
        """It would be hidden by it. One that has the interpreter in it is what the code sees there."""
        with pytest.raises(PolicyError, match="/opt/python/data lies in /opt/python"):
            plan({"fs": {"mounts": [{"path": "/opt/python/data"}]}})
        assert "/opt/python" not in plan({"fs": {"mounts": [{"path": "/opt"}]}}).stage["arguments"]

    def test_interpreters_that_share_a_directory(self) -> None:
        """They are one tree, of both languages, with the parts of both."""
        node = Runtime(
            "javascript",
            "/opt/python/node/bin/node",
            ("/opt/python/node",),
            installations=(Installation("/opt/python/node", (("bin", "/opt/python/node/bin"),)),),
        )
        made = plan(host=replace(HOST, runtimes=(HOST.runtimes[0], node)), code=b"1")
        (tree,) = made.stage["plan"]["runtimes"]
        assert tree["languages"] == ("python", "javascript")
        assert [name for name, _source in tree["parts"]] == ["bin", "lib", "node/bin"]

    def test_secrets_are_canaries(self) -> None:
        """What the host has and no jar may show."""
        assert set(plan().stage["expect"]["absent"]) == set(HOST.secrets)

    def test_limits_are_the_policys(self) -> None:
        """In bytes and seconds, whatever the file's unit was."""
        layer = {"proc": {"mem_mb": "1g", "cpu_quota": 0.5, "timeout_ms": "2s", "pids": 9, "open_files": 99}}
        limits = plan(layer).limits
        assert {key: limits[key] for key in ("mem_bytes", "cpu_quota", "timeout_seconds", "pids", "open_files")} == {
            "mem_bytes": 1 << 30, "cpu_quota": 0.5, "timeout_seconds": 2.0, "pids": 9, "open_files": 99,
        }  # fmt: skip

    KINDS = [
        ({"rw": False}, "readonly"),
        ({"rw": True}, "live"),
        ({"rw": True, "cow": True}, "copy-on-write"),
    ]

    @pytest.mark.parametrize(("how", "kind"), KINDS)
    def test_how_a_mount_is_made(self, tmp_path: Path, how: dict[str, bool], kind: str) -> None:
        """From its two words; owners are mapped only when root started it."""
        layer = {"fs": {"mounts": [{"path": "/data", "source": str(tmp_path), **how}]}}
        for root in (True, False):
            stage = plan(layer, replace(HOST, root=root)).stage["plan"]
            view = next(view for view in stage["views"] if view["jar_path"] == "/data")
            assert view["kind"] == kind
            source = stage["sources"][view["source"]]
            assert (source["path"], source["idmap"]) == (str(tmp_path), root)


class TestCommand:
    """What is executed in the jar."""

    def test_a_command_is_itself(self) -> None:
        """Word for word."""
        assert plan(argv=("ls", "-l", "a b")).argv == ("ls", "-l", "a b")

    def test_code_is_a_file(self) -> None:
        """With its interpreter before it and its arguments after."""
        made = plan(code=b"1", arguments=("--x", "y"))
        assert made.argv == ("/opt/python/bin/python3", "/run/jar/main.py", "--x", "y")
        assert plan(code=b":", language="bash").argv == ("/usr/bin/bash", "/run/jar/main.sh")

    NAMES = [
        ("tool.py", "tool.py"),
        ("/a/b/tool.py", "tool.py"),
        ("../../x", "x"),
        ("", "main.py"),
        ("..", "main.py"),
        ("a\nb", "main.py"),
        ("x" * 300, "main.py"),
        ("é" * 150, "main.py"),
        ("dir/", "main.py"),
    ]

    @pytest.mark.parametrize(("given", "name"), NAMES)
    def test_its_name(self, given: str, name: str) -> None:
        """The caller's if it can be a name, else the language's."""
        assert plan(code=b"1", script_name=given).stage["code_name"] == name

    def test_nothing_is_a_mistake(self) -> None:
        """Neither code nor a word."""
        with pytest.raises(UsageError, match="empty"):
            plan(argv=())

    def test_the_environment(self) -> None:
        """From nothing: a fixed few, what is passed, what is set; in that order of strength."""
        layer = {"env": {"set": {"LANG": "C", "BOTH": "set"}, "pass": ["BOTH", "PASSED", "NOT_THERE"]}}
        caller = {"BOTH": "passed", "PASSED": "passed", "SECRET": "secret", "PATH": "/evil"}
        assert plan(layer, argv=("true",), env=caller).env == {
            "PATH": "/opt/python/bin:/opt/node/bin:/usr/bin:/usr/local/bin:/bin", "HOME": "/tmp/home", "USER": "jar",
            "LOGNAME": "jar", "TMPDIR": "/tmp", "PWD": "/workspace", "LANG": "C", "BOTH": "set", "PASSED": "passed",
        }  # fmt: skip


class TestReport:
    """How far each clause holds, host by host."""

    def test_every_clause_is_there(self) -> None:
        """Whatever the host has."""
        policy = resolve(managed=None)
        for cgroup in (HOST.cgroup, NO_GROUPS):
            keys = [clause.key for clause in report(policy, replace(HOST, cgroup=cgroup)).clauses]
            assert set(keys) >= set(CLAUSES)
            assert len(keys) == len(set(keys))

    GROUPS = [
        (
            CgroupSupport(Mechanism.V1, ("memory", "cpu", "pids")),
            {"proc.mem_mb": "cgroup v1", "proc.cpu_quota": "cgroup v1"},
        ),
        (CgroupSupport(Mechanism.V2_DELEGATED, ("memory", "cpu", "pids")), {"proc.mem_mb": "cgroup v2"}),
        (CgroupSupport(Mechanism.V2_SYSTEMD, ("memory", "cpu", "pids")), {"proc.pids": "systemd scope"}),
        (NO_GROUPS, {"proc.mem_mb": "monitor", "proc.cpu_quota": "timeout", "proc.pids": "RLIMIT_NPROC"}),
    ]

    @pytest.mark.parametrize(("cgroup", "words"), GROUPS, ids=[row[0].mechanism for row in GROUPS])
    def test_who_holds_the_limits(self, cgroup: CgroupSupport, words: dict[str, str]) -> None:
        """Named, so that a reader knows what to rely on."""
        found = report(resolve(managed=None), replace(HOST, cgroup=cgroup))
        for key, word in words.items():
            assert word in found.clause(key).by

    def shortfalls(self, layer: dict[str, Any], cgroup: CgroupSupport = HOST.cgroup, **options: Any) -> set[str]:
        policy: Policy = resolve(layers=[layer], managed=None, **options)
        return {clause.key for clause in report(policy, replace(HOST, cgroup=cgroup)).shortfalls()}

    def test_what_falls_short(self, tmp_path: Path) -> None:
        """A table: the policy or the host, and the clauses that are not fully held."""
        memory_only = CgroupSupport(Mechanism.V1, ("memory",), missing={"cpu": "why"})
        live = {"fs": {"mounts": [{"path": "/data", "source": str(tmp_path), "rw": True}]}}
        assert self.shortfalls({}) == set()
        assert self.shortfalls({}, NO_GROUPS) == {"proc.mem_mb", "proc.cpu_quota"}
        assert self.shortfalls({}, memory_only) == {"proc.cpu_quota"}
        assert self.shortfalls({"net": {"enabled": True, "allowlist": ["example.com"]}}) == set()
        assert self.shortfalls(live) == {"fs.deny_globs", "fs.size_mb", "fs.inodes"}
        assert self.shortfalls({}, workspace=str(tmp_path)) == {"fs.deny_globs"}
        assert self.shortfalls({"fs": {"snapshot": True}}, workspace=str(tmp_path)) == set()

    ASKED = [
        ("image", "python:3.12", "no image"),
        ("engine", "podman", "no engine"),
        ("runtime", "runsc", "the host's kernel"),
        ("name", "x", "a name"),
        ("read_only", False, "read-only"),
        ("auto_remove", False, "kept"),
        ("entrypoint", ["tini"], "without it"),
        ("ports", ["8080:80"], "no port"),
        ("network", "bridge", "closed"),
        ("pid", "host", "hidden"),
        ("privileged", True, "privileged"),
    ]

    @pytest.mark.parametrize(("name", "value", "lost"), ASKED)
    def test_what_only_a_container_has(self, name: str, value: object, lost: str) -> None:
        """Asked for, it is told; the jar stays as closed as it was."""
        layer = {"container": {name: value}, "on_degraded": "refuse"}
        policy = resolve("unrestricted", layers=[layer, {"backend": "bubblewrap"}], managed=None)
        (found,) = [clause for clause in report(policy, HOST).shortfalls() if not clause.key.startswith("net.")]
        assert (found.key, found.status) == (f"container.{name}", "unsupported")
        assert lost in found.lost
        assert found in report(policy, HOST).refused_by(policy)

    def test_what_a_jar_has_anyway(self) -> None:
        """An image that would be fetched is not needed here."""
        assert self.shortfalls({"container": {"pull": "missing", "privileged": False, "network": "none"}}) == set()

    def test_what_the_policy_accepts(self) -> None:
        """`refused_by`: all, none, or the clauses that are not listed."""
        for accept, refused in (
            ("refuse", {"proc.mem_mb", "proc.cpu_quota"}),
            ("allow", set()),
            (["proc.mem_mb"], {"proc.cpu_quota"}),
        ):
            policy = resolve(layers=[{"on_degraded": accept}], managed=None)
            found = report(policy, replace(HOST, cgroup=NO_GROUPS)).refused_by(policy)
            assert {clause.key for clause in found} == refused


class TestWhiteouts:
    """Denied names as a layer."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """A project with secrets."""
        root = tmp_path / "root"
        for name in (".env", "plain", "sub/.env", "sub/plain", "sub/deep/x.key", ".ssh/id", ".ssh/deep/id", "a b/.env"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name)
        (root / "link").symlink_to("sub")
        os.link(root / ".env", root / "sub" / "other-name")
        return root

    GLOBS = DenyGlobs(("**/.env", "**/.ssh/**", "**/*.key"))

    def test_what_is_found(self, root: Path) -> None:
        """Files, whole directories once, other names of the same file; links are not followed."""
        found = find_denied(str(root), "/host", "/jar", self.GLOBS)
        assert sorted(found.paths) == [".env", ".ssh", "a b/.env", "sub/.env", "sub/deep/x.key", "sub/other-name"]
        assert found.directories[0] == ""
        assert sorted(found.directories) == ["", "a b", "sub", "sub/deep"]

    def test_by_either_name(self, root: Path) -> None:
        """An absolute pattern means the host's path or the jar's."""
        for pattern in ("/host/sub/**", "/jar/sub/**"):
            assert find_denied(str(root), "/host", "/jar", DenyGlobs((pattern,))).paths == ["sub"]

    @staticmethod
    def devices(layer: Path) -> set[str]:
        found = {path: path.lstat() for path in layer.rglob("*")}
        assert {status.st_rdev for status in found.values() if stat.S_ISCHR(status.st_mode)} <= {0}
        return {str(path.relative_to(layer)) for path, status in found.items() if stat.S_ISCHR(status.st_mode)}

    def test_the_layer(self, root: Path, tmp_path: Path) -> None:
        """A 0/0 device for every denied name, also where it does not exist yet; directories with their modes."""
        (root / "sub").chmod(0o750)
        layer = tmp_path / "layer"
        layer.mkdir()
        made = Whiteouts(str(layer), str(root), "/host", "/jar", self.GLOBS)
        made.build(find_denied(str(root), "/host", "/jar", self.GLOBS))
        assert made.complete
        expected = {f"{prefix}{name}" for prefix in ("", "sub/", "sub/deep/", "a b/") for name in (".env", ".ssh")}
        assert self.devices(layer) == expected | {"sub/deep/x.key", "sub/other-name"}
        assert stat.S_IMODE((layer / "sub").stat().st_mode) == 0o750

    def test_a_directory_that_is_gone_since_the_walk(self, root: Path, tmp_path: Path) -> None:
        """As when git packs its objects meanwhile: its names are taken all the same, in case it comes again."""
        layer = tmp_path / "layer"
        layer.mkdir()
        found = find_denied(str(root), "/host", "/jar", self.GLOBS)
        shutil.rmtree(root / "sub")
        Whiteouts(str(layer), str(root), "/host", "/jar", self.GLOBS).build(found)
        assert {"sub/.env", "sub/deep/.env", "a b/.env"} <= self.devices(layer)

    def test_it_follows_what_the_host_does(self, root: Path, tmp_path: Path) -> None:
        """A new directory, a new file that a wildcard denies, a link; and nothing twice."""
        layer = tmp_path / "layer"
        layer.mkdir()
        made = Whiteouts(str(layer), str(root), "/host", "/jar", self.GLOBS)
        made.build(find_denied(str(root), "/host", "/jar", self.GLOBS))
        (root / "new" / "deep").mkdir(parents=True)
        (root / "new" / "deep" / "y.key").write_text("x")
        (root / "sub" / "z.key").write_text("x")
        (root / "shortcut").symlink_to("new")
        assert made.appeared("new") == ["new", "new/deep"]
        assert made.appeared("sub/z.key") == made.appeared("shortcut") == made.appeared("new") == []
        assert {"new/.env", "new/deep/.env", "new/deep/y.key", "sub/z.key"} <= self.devices(layer)
        assert not (layer / "shortcut").exists()

    NAMES = [
        (("**/.env",), [".env"]),
        (("**/.ssh/**",), [".ssh"]),
        (("**/id_rsa*",), ["id_rsa", "id_rsa.pub"]),
        (("**/*.key", "**/a?b"), []),
        (("/home/**",), []),
    ]

    @pytest.mark.parametrize(("patterns", "names"), NAMES)
    def test_names_that_are_taken_everywhere(self, patterns: tuple[str, ...], names: list[str]) -> None:
        """What can be said of a pattern before any file has such a name."""
        assert names_to_deny(DenyGlobs(patterns)) == names
