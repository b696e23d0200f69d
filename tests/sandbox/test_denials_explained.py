"""From an observation to a denial: rule, place, and the smallest change that would allow it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from belljar.backends.contract import End, Observation
from belljar.policy.load.resolve import resolve
from belljar.policy.models import Policy
from belljar.sandbox.record.result import Denial, Outcome
from belljar.sandbox.run.denials import explain
from belljar.sandbox.run.watch import _outcome, _reason

PLAIN = End(
    exit_code=0, signal=None, ended_by="", problems=(), started=True, cpu_seconds=0.0, peak_memory_bytes=None,
    processes=None, bytes_read=None, bytes_written=None, oom_kills=0, pids_refused=0, observations=(),
)  # fmt: skip


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """A policy in a file, so that rules have lines."""
    (tmp_path / "deps").mkdir()
    (tmp_path / "deps" / ".env").write_text("secret")
    (tmp_path / "deps" / "plain").write_text("x")
    (tmp_path / "outside").write_text("x")
    text = "version: 1\nfs:\n  mounts:\n    - {path: /deps, source: ./deps}\nproc:\n  pids: 7\n  output_mb: 64k\n"
    (tmp_path / "p.yaml").write_text(text)
    return resolve(tmp_path / "p.yaml")


def one(policy: Policy, kind: str, target: str, result: str = "") -> Denial:
    (denial,) = explain(policy, replace(PLAIN, observations=(Observation(kind, target, result, 3),)))
    return denial


def test_a_denied_file(policy: Policy) -> None:
    """The pattern, and how to take it back."""
    denial = one(policy, "file", "read /deps/.env", "ENOENT")
    assert (denial.kind, denial.rule) == ("file", "fs.deny_globs[0] **/.env")
    assert denial.where.startswith("preset aicode:")
    assert denial.allow == """--set 'fs.deny_globs=["!**/.env"]'"""
    assert denial.count == 3


def test_a_read_only_mount(policy: Policy) -> None:
    """The mount, by its line."""
    denial = one(policy, "file", "write /deps/plain", "EROFS")
    assert denial.rule == "fs.mounts[1]"
    assert denial.where.endswith("p.yaml:4")
    (mount,) = (mount for mount in policy.fs.mounts if mount.path == "/deps")
    assert denial.allow == f"--set 'fs.mounts=[{{path: /deps, source: {mount.source}, rw: true, cow: true}}]'"


def test_a_read_only_system(policy: Policy) -> None:
    """Nothing to allow there but to write elsewhere."""
    denial = one(policy, "file", "write /usr/bin/x", "EROFS")
    assert denial.rule == "fs.mounts"
    assert denial.allow == "write beneath /workspace or /tmp"


@pytest.mark.parametrize(
    ("target", "result"),
    [
        ("read /deps/none", "ENOENT"),
        ("read /deps/plain", "ENOENT"),
        ("read /usr/lib/none", "ENOENT"),
        ("read /no/such/file", "ENOENT"),
        ("read /workspace/none", "ENOENT"),
        ("read /etc/passwd", "EINTR"),
    ],
)
def test_what_is_only_missing_is_no_denial(policy: Policy, target: str, result: str) -> None:
    """Neither here nor there."""
    assert explain(policy, replace(PLAIN, observations=(Observation("file", target, result),))) == ()


NETWORK = [
    ("network", "192.0.2.1:443", "connect 192.0.2.1:443", '{host: "192.0.2.1", ports: [443]}'),
    ("network", "[2001:db8::1]:80", "connect [2001:db8::1]:80", '{host: "2001:db8::1", ports: [80]}'),
    ("name", "", "look up a host name", "net.allowlist"),
]


@pytest.mark.parametrize(("kind", "seen", "target", "allow"), NETWORK)
def test_the_network(policy: Policy, kind: str, seen: str, target: str, allow: str) -> None:
    """What was wanted, and the entry that would allow it."""
    denial = one(policy, kind, seen)
    assert (denial.kind, denial.target, denial.rule) == ("network", target, "net.enabled")
    assert allow in denial.allow


def test_a_system_call(policy: Policy) -> None:
    """No policy allows it, and it says so."""
    denial = one(policy, "syscall", "ptrace", "EPERM")
    assert (denial.kind, denial.target, denial.rule, denial.where) == ("syscall", "ptrace", "syscalls", "built in")
    assert "no policy" in denial.allow


LIMITS = [
    ({"pids_refused": 5}, "fork", "proc.pids", "--set proc.pids=14", 5),
    ({"ended_by": "timeout"}, "run on", "proc.timeout_ms", "--set proc.timeout_ms=120000", 1),
    ({"ended_by": "oom"}, "use more memory", "proc.mem_mb", "--set proc.mem_mb=2048", 1),
    ({"oom_kills": 1}, "use more memory", "proc.mem_mb", "--set proc.mem_mb=2048", 1),
    ({"ended_by": "output"}, "write more output", "proc.output_mb", "--set proc.output_mb=128k", 1),
]


@pytest.mark.parametrize(("end", "target", "rule", "allow", "count"), LIMITS)
def test_limits(policy: Policy, end: dict[str, object], target: str, rule: str, allow: str, count: int) -> None:
    """Twice as much, in words that the command line takes."""
    (denial,) = explain(policy, replace(PLAIN, **end))  # type: ignore[arg-type]
    assert (denial.kind, denial.target, denial.rule, denial.allow, denial.count) == (
        "limit",
        target,
        rule,
        allow,
        count,
    )
    resolve(overrides=[allow.removeprefix("--set ")])


def test_there_is_an_end_to_them(policy: Policy) -> None:
    """A guest can't make the host write thousands."""
    many = tuple(Observation("network", f"192.0.2.1:{port}", "") for port in range(1000))
    assert len(explain(policy, replace(PLAIN, observations=many))) == 100


OUTCOMES = [
    ({}, Outcome.OK),
    ({"exit_code": 1}, Outcome.FAILED),
    ({"exit_code": 137, "signal": 9}, Outcome.FAILED),
    ({"exit_code": 137, "signal": 9, "ended_by": "timeout"}, Outcome.TIMEOUT),
    ({"exit_code": 137, "signal": 9, "ended_by": "oom"}, Outcome.OOM),
    ({"exit_code": 137, "signal": 9, "oom_kills": 1}, Outcome.OOM),
    ({"exit_code": 0, "oom_kills": 1}, Outcome.OK),
    ({"exit_code": 137, "ended_by": "output"}, Outcome.KILLED),
    ({"exit_code": 137, "ended_by": "killed"}, Outcome.KILLED),
    ({"exit_code": 137, "ended_by": "abandoned"}, Outcome.KILLED),
    ({"exit_code": 137, "ended_by": "canary", "started": False, "problems": ("a hole",)}, Outcome.REFUSED),
]


@pytest.mark.parametrize(("end", "outcome"), OUTCOMES)
def test_which_outcome_an_end_is(policy: Policy, end: dict[str, object], outcome: Outcome) -> None:
    """And whatever is neither ok nor failed has a reason."""
    seen = replace(PLAIN, **end)  # type: ignore[arg-type]
    assert _outcome(seen) is outcome
    assert bool(_reason(policy, outcome, seen)) is (outcome not in (Outcome.OK, Outcome.FAILED))
