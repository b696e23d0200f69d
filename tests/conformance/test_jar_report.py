"""What a run tells about itself: the result, the enforcement report, the denials with their rules."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from jars import OpenJar, sh, told
from trees import plant

from belljar import Policy, RunResult, Sandbox
from belljar.errors import UsageError
from belljar.policy.keys.table import CLAUSES
from belljar.policy.load.resolve import resolve
from belljar.sandbox.record.result import Denial


class TestResult:
    """RunResult."""

    NAMES = {
        "run_id", "outcome", "exit_code", "signal", "stdout", "stderr", "truncated", "duration", "usage", "denials",
        "artifacts", "policy_digest", "enforcement",
    }  # fmt: skip

    def test_it_has_every_field(self) -> None:
        """Those that issue 2 names."""
        assert {field.name for field in fields(RunResult)} >= self.NAMES

    SCRIPTS = {
        "ok": ("echo x > file; echo out; echo err >&2", {}),
        "failed": ("exit 3", {}),
        "denied": ("cat /workspace/.env; exec 3<>/dev/tcp/192.0.2.1/80", {}),
        "timeout": ("exec sleep 600", {"proc": {"timeout_ms": "300ms"}}),
        "refused": ("true", {"fs": {"mounts": [{"path": "/data", "source": "/var/tmp", "rw": True}]}}),
        "no text": (r"printf '\377'", {}),
    }

    @pytest.mark.parametrize(("script", "policy"), SCRIPTS.values(), ids=SCRIPTS.keys())
    def test_it_is_ready_for_json(self, open_jar: OpenJar, script: str, policy: dict[str, Any]) -> None:
        """And says the same there."""
        result = open_jar(policy).run(script, language="bash", explain_denials=True)
        seen = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert set(seen) >= self.NAMES
        assert (seen["outcome"], seen["exit_code"], seen["stdout"]) == (
            str(result.outcome),
            result.exit_code,
            result.stdout,
        )
        assert [clause["key"] for clause in seen["enforcement"]["clauses"]] == [
            c.key for c in result.enforcement.clauses
        ]

    def test_the_digest_is_the_policys(self, open_jar: OpenJar) -> None:
        """The same for the same policy, another for another."""
        one, same, other = open_jar(), open_jar(), open_jar({"proc": {"pids": 63}})
        digests = [sh(jar, "true").policy_digest for jar in (one, same, other)]
        assert digests[0] == digests[1] == one.policy.digest
        assert digests[0] != digests[2]
        assert digests[0].startswith("sha256:")

    def test_times_and_names(self, jar: Sandbox, backend: str) -> None:
        """The duration is of this run; the backend is named."""
        result = sh(jar, "sleep 0.2")
        assert 0.2 <= result.duration < 60
        assert result.backend == backend == jar.backend_name


class TestReport:
    """Every clause is accounted for."""

    def test_every_clause_of_the_policy_is_there_once(self, jar: Sandbox) -> None:
        """With who holds it, and what is lost if it is degraded."""
        report = sh(jar, "true").enforcement
        keys = [clause.key for clause in report.clauses]
        assert len(keys) == len(set(keys))
        assert set(keys) >= set(CLAUSES)
        for clause in report.clauses:
            assert clause.by
            assert clause.lost or clause.status == "enforced"

    def test_the_plan_says_the_same_before(self, jar: Sandbox) -> None:
        """`plan` starts nothing and has the report that the run will have."""
        plan = jar.plan(argv=["true"])
        assert plan.report == sh(jar, "true").enforcement
        json.dumps({"argv": plan.argv, "env": dict(plan.env), "stage": plan.stage, "limits": dict(plan.limits)})

    def test_what_the_default_policy_promises(self, jar: Sandbox) -> None:
        """Nothing is degraded that the policy does not accept in writing."""
        accepted = jar.policy.on_degraded
        assert {clause.key for clause in jar.plan(argv=["true"]).report.shortfalls()} <= set(accepted)


class TestPolicies:
    """What `Sandbox(policy=…)` takes."""

    def test_a_resolved_policy(self, open_jar: OpenJar, backend: str) -> None:
        """As it is; options beside it are the caller's mistake."""
        policy = resolve(layers=[{"proc": {"pids": 9}}], backend=backend)
        assert isinstance(policy, Policy)
        jar = open_jar(policy)
        assert jar.policy is policy
        assert sh(jar, "true").policy_digest == policy.digest
        with pytest.raises(UsageError, match="final"):
            Sandbox(policy, timeout="5s")

    def test_a_preset_by_name(self, open_jar: OpenJar) -> None:
        """With options over it."""
        jar = open_jar("testing", timeout="7s", overrides=["proc.pids=33"])
        assert (jar.policy.proc.timeout_seconds, jar.policy.proc.pids) == (7.0, 33)
        assert told(sh(jar, "echo x")) == "x\n"

    def test_a_file(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """By its path, as text or as a Path."""
        path = plant(tmp_path, {"my policy.yaml": "version: 1\nenv: {set: {FROM: file}}\n"}) / "my policy.yaml"
        for given in (path, str(path)):
            assert told(sh(open_jar(given), 'echo "$FROM"')) == "file\n"


POLICY = """\
version: 1
fs:
  deny_globs:
    - '**/*.pem'
    - '**/vault/**'
proc:
  pids: 6
"""
CONNECT = """
import socket
for family, address in ((socket.AF_INET, "192.0.2.7"), (socket.AF_INET6, "2001:db8::7")):
    try: socket.socket(family, socket.SOCK_STREAM).connect((address, 443))
    except OSError as error: print(type(error).__name__)
"""
PTRACE = "import ctypes; print(ctypes.CDLL(None).ptrace(0, 0, 0, 0))"
FORBIDDEN = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(3):
    made = [libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.umount2(b"/tmp", 0), libc.unshare(0x10000000)]
    made += [libc.sethostname(b"other", 5), libc.setdomainname(b"other", 5), libc.pivot_root(b"/tmp", b"/tmp")]
    print(*made, ctypes.get_errno())
    for family in (socket.AF_PACKET, socket.AF_INET):
        try: socket.socket(family, socket.SOCK_RAW)
        except OSError as error: print(error.errno)
"""
"""Each is refused whoever runs it, and would do no harm in a jar if it were not."""


def recorded(result: RunResult) -> RunResult:
    """A backend that can't see what it refuses says so in its report, and pretends nothing."""
    if unseen := result.enforcement.unseen:
        assert {denial.kind for denial in result.denials} <= {"limit"}
        pytest.skip(f"not recorded here: {unseen}")
    return result


class TestDenials:
    """What was refused, by which rule, and what would allow it."""

    @pytest.fixture
    def jar(self, open_jar: OpenJar, tmp_path: Path) -> Sandbox:
        """A policy in a file, a workspace with denied files."""
        project = plant(tmp_path / "project", {"key.pem": "x", "vault/deep/file": "x", "plain": "x"})
        read_only = plant(tmp_path / "deps", {"file": "x"})
        plant(tmp_path, {"policy.yaml": f"{POLICY}", "outside": "x"})
        text = (
            (tmp_path / "policy.yaml")
            .read_text()
            .replace("fs:\n", f"fs:\n  mounts: [{{path: /deps, source: {json.dumps(str(read_only))}}}]\n")
        )
        (tmp_path / "policy.yaml").write_text(text)
        return open_jar(tmp_path / "policy.yaml", workspace=project)

    @staticmethod
    def _one(result: RunResult, target: str) -> Denial:
        found = [denial for denial in result.denials if denial.target == target]
        if not found:
            recorded(result)
        assert len(found) == 1, result
        return found[0]

    FILES = [
        ("read /workspace/key.pem", "cat key.pem", "**/*.pem", "policy.yaml:5"),
        ("read /workspace/key.pem", "cat < /workspace/../workspace/./key.pem", "**/*.pem", "policy.yaml:5"),
        ("read /workspace/vault/deep/file", "cat vault/deep/file", "**/vault/**", "policy.yaml:6"),
        ("write /deps/file", "echo x > /deps/file", "fs.mounts[", "policy.yaml:3"),
        ("write /deps/new", "touch /deps/new", "fs.mounts[", "policy.yaml:3"),
        ("write /usr/new", "touch /usr/new", "fs.mounts", ""),
    ]

    @pytest.mark.parametrize(("target", "script", "rule", "where"), FILES, ids=[row[1] for row in FILES])
    def test_files(self, jar: Sandbox, target: str, script: str, rule: str, where: str) -> None:
        """Each with the rule and its file and line."""
        result = jar.exec(["sh", "-c", script], explain_denials=True)
        denial = self._one(result, target)
        assert denial.kind == "file"
        assert rule in denial.rule
        assert where in denial.where
        assert denial.allow

    def test_a_file_that_no_mount_shows(self, jar: Sandbox, tmp_path: Path) -> None:
        """The host has it, the jar does not: the advice is a mount."""
        result = jar.exec(["cat", str(tmp_path / "outside")], explain_denials=True)
        denial = self._one(result, f"read {tmp_path / 'outside'}")
        assert denial.rule == "fs.mounts"
        assert f"source: {tmp_path}" in denial.allow

    def test_what_nobody_has_is_no_denial(self, jar: Sandbox) -> None:
        """Programs look for many files that are nowhere."""
        result = jar.exec(["sh", "-c", "cat /workspace/none /no/such/file; cat plain; ls / /usr"], explain_denials=True)
        assert result.denials == ()

    @pytest.mark.parametrize("explain", [False, True])
    def test_network(self, jar: Sandbox, explain: bool) -> None:
        """Always recorded: the address, the rule, the list entry that would allow it."""
        result = jar.run(CONNECT, explain_denials=explain)
        assert result.ok
        for target, host in (("connect 192.0.2.7:443", "192.0.2.7"), ("connect [2001:db8::7]:443", "2001:db8::7")):
            denial = self._one(result, target)
            assert (denial.kind, denial.rule) == ("network", "net.enabled")
            assert host in denial.allow

    def test_they_are_recorded_or_the_report_says_that_they_are_not(self, jar: Sandbox) -> None:
        """Before the run and after it; an empty list with no such word means that nothing was refused."""
        result = jar.run(CONNECT, explain_denials=True)
        assert bool(result.denials) is not bool(result.enforcement.unseen)
        assert jar.plan(argv=["true"]).report.unseen == result.enforcement.unseen

    def test_looking_up_a_name(self, jar: Sandbox) -> None:
        """No answer, and it is recorded that one was wanted."""
        result = jar.run("import socket\ntry: socket.getaddrinfo('example.com', 443)\nexcept OSError: print('no')")
        assert result.stdout == "no\n"
        assert [denial.kind for denial in recorded(result).denials] == ["network"]

    def test_the_jars_own_servers_are_no_denial(self, jar: Sandbox) -> None:
        """Loopback works inside."""
        code = (
            "from socket import *; s = create_server(('127.0.0.1', 0)); create_connection(s.getsockname()); print('up')"
        )
        result = jar.run(code)
        assert told(result) == "up\n"
        assert result.denials == ()

    @pytest.mark.parametrize("explain", [False, True])
    def test_system_calls(self, jar: Sandbox, explain: bool) -> None:
        """Always recorded, by name."""
        result = jar.run(PTRACE, explain_denials=explain)
        assert told(result) == "-1\n"
        denial = self._one(result, "ptrace")
        assert (denial.kind, denial.rule, denial.where) == ("syscall", "syscalls", "built in")

    @pytest.mark.parametrize("explain", [False, True])
    def test_calls_that_make_a_jar(self, jar: Sandbox, explain: bool) -> None:
        """The calls that bubblewrap itself needs are recorded as well once there is code; each once, with a count."""
        result = jar.run(FORBIDDEN, explain_denials=explain)
        assert result.stdout == "-1 -1 -1 -1 -1 -1 1\n1\n1\n" * 3, result
        told = {denial.target: denial.count for denial in recorded(result).denials if denial.kind == "syscall"}
        assert told == dict.fromkeys(
            (
                *("mount", "umount2", "unshare CLONE_NEWUSER", "sethostname", "setdomainname", "pivot_root"),
                *("socket AF_PACKET", "socket SOCK_RAW"),
            ),
            3,
        )

    def test_a_flood_of_them(self, jar: Sandbox) -> None:
        """Whatever a program tries, however often, few lines are kept, and the limit on time holds."""
        code = (
            "import ctypes\nlibc = ctypes.CDLL(None)\n"
            "for n in range(20_000): libc.socket(17 + n % 29, n % 16, n); libc.unshare(n * 7919 % (1 << 31))"
        )
        result = jar.run(code)
        assert result.ok
        told = [denial for denial in recorded(result).denials if denial.kind == "syscall"]
        assert len(told) < 20
        assert sum(denial.count for denial in told) == 40_000

    def test_repeats_are_counted(self, jar: Sandbox) -> None:
        """One line for a hundred tries."""
        result = jar.run("import socket\nfor _ in range(100):\n    socket.socket().connect_ex(('192.0.2.7', 443))")
        assert self._one(result, "connect 192.0.2.7:443").count == 100

    def test_limits(self, open_jar: OpenJar, tmp_path: Path) -> None:
        """A limit that ended a run is a denial with a number that is enough."""
        path = plant(tmp_path, {"p.yaml": "version: 1\nproc:\n  timeout_ms: 300ms\n"}) / "p.yaml"
        denial = self._one(sh(open_jar(path), "exec sleep 600"), "run on")
        assert (denial.kind, denial.rule, denial.allow) == ("limit", "proc.timeout_ms", "--set proc.timeout_ms=600")
        assert denial.where.endswith("p.yaml:3")

    def test_a_clean_run_has_none(self, jar: Sandbox) -> None:
        """Ordinary work is not full of refusals.

        A `.pth` file of the interpreter may read a certificate, which this policy denies: that is not the code's doing.
        """
        at_start = jar.run("pass", explain_denials=True).denials
        assert [denial for denial in at_start if not denial.target.endswith("/certifi/cacert.pem")] == []
        code = "import json, ssl, sqlite3, subprocess, tempfile; tempfile.mkstemp()"
        assert jar.run(code, explain_denials=True).denials == at_start
        assert (
            jar.exec(["sh", "-c", "ls -la; id; date; mktemp; grep -r x . ; sort plain"], explain_denials=True).denials
            == ()
        )

    def test_many_are_bounded(self, jar: Sandbox) -> None:
        """The code can't fill the host's memory with refusals."""
        connect = "socket.socket(type=socket.SOCK_DGRAM).connect_ex(('192.0.2.7', 1000 + i))"
        code = f"import socket\nfor i in range(2000): {connect}"
        assert 0 < len(recorded(jar.run(code)).denials) <= 200

    def test_looking_costs_nothing_in_truth(self, jar: Sandbox) -> None:
        """With explain_denials the code sees what it sees without."""
        script = "cat key.pem; cat plain; echo x > /deps/new; echo $?; ls; touch new && mv new newer && cat newer"
        one, two = (
            jar.exec(["sh", "-c", f"rm -f newer; {script}"], explain_denials=explain) for explain in (False, True)
        )
        assert (one.stdout, one.stderr, one.exit_code) == (two.stdout, two.stderr, two.exit_code)
