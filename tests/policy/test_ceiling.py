"""The managed policy: what it lowers, what it refuses and how it says so, and the files that it is not read from."""

# ruff: noqa: E501 (a row shows a message as its reader sees it)

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.errors import PolicyError
from belljar.policy.load import resolve as resolve_module
from belljar.policy.load.resolve import resolve
from belljar.policy.models import HostRule

MB = 1024 * 1024


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ceiling must be root's; these tests also run as an ordinary user, whose files stand in for root's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resolve_module, "MANAGED_OWNER", os.geteuid())
    for name in ("src/a", "src/b", "home/alice/project"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def ceiling(text: str) -> str:
    path = Path("managed.yaml")
    path.write_text(text.replace("HERE", str(Path.cwd())))
    path.chmod(0o644)
    return str(path)


REFUSED = {
    # ceiling, what someone writes, the words
    "memory": (
        "proc: {mem_mb: 512}",
        "proc: {mem_mb: 1g}",
        "p.yaml:1:16: proc.mem_mb: wanted at most 512 MB, as the managed policy says (managed.yaml:1:16), found 1 GB",
    ),
    "time": (
        "proc: {timeout_ms: 30s}",
        "proc: {timeout_ms: 30001}",
        "p.yaml:1:20: proc.timeout_ms: wanted at most 30 s, as the managed policy says (managed.yaml:1:20), found 30.001 s",
    ),
    "processes": (
        "proc: {pids: 8}",
        "proc: {pids: 9}",
        "p.yaml:1:14: proc.pids: wanted at most 8, as the managed policy says (managed.yaml:1:14), found 9",
    ),
    "knowledge of the machine": (
        "proc: {host_info: limits}",
        "proc: {host_info: host}",
        "p.yaml:1:19: proc.host_info: wanted hidden or limits, as the managed policy says (managed.yaml:1:19), found 'host'",
    ),
    "network": (
        "net: {enabled: false}",
        "net: {enabled: true}",
        "p.yaml:1:16: net.enabled: wanted false, as the managed policy says (managed.yaml:1:16), found true",
    ),
    "a host": (
        "net: {allowlist: ['*.a.com']}",
        "net: {allowlist: [x.a.com, a.com]}",
        "p.yaml:1:28: net.allowlist: wanted an entry that one of its entries covers, as the managed policy says (managed.yaml:1:18), found a.com",
    ),
    "a method": (
        "net: {allowlist: [{host: a.com, methods: [GET]}]}",
        "net: {allowlist: [a.com]}",
        "p.yaml:1:19: net.allowlist: wanted an entry that one of its entries covers, as the managed policy says (managed.yaml:1:18), found a.com",
    ),
    "an address that a star does not mean": (
        "net: {allowlist: ['*']}",
        "net: {allowlist: [10.0.0.1]}",
        "p.yaml:1:19: net.allowlist: wanted an entry that one of its entries covers, as the managed policy says (managed.yaml:1:18), found 10.0.0.1",
    ),
    "addresses of a name": (
        "net: {allowlist: [a.com]}",
        "net: {allowlist: [{host: a.com, addresses: [10.0.0.1]}]}",
        "p.yaml:1:19: net.allowlist: wanted an entry that one of its entries covers, as the managed policy says (managed.yaml:1:18), found a.com",
    ),
    "a host that is not pinned": (
        "net: {allowlist: [{host: a.com, addresses: [10.0.0.1]}]}",
        "net: {allowlist: [a.com]}",
        "p.yaml:1:19: net.allowlist: wanted an entry that one of its entries covers, as the managed policy says (managed.yaml:1:18), found a.com",
    ),
    "a query": (
        "net: {allowlist: [{host: a.com, query: [a]}]}",
        "net: {allowlist: [{host: a.com, query: [a, b]}]}",
        "p.yaml:1:19: net.allowlist: wanted an entry that one of its entries covers, as the managed policy says (managed.yaml:1:18), found a.com",
    ),
    "bytes": (
        "net: {budget_mb: 1, allowlist: [{host: a.com, budget_mb: 1}]}",
        "net: {budget_mb: 2, allowlist: [{host: a.com, budget_mb: 1}]}",
        "p.yaml:1:18: net.budget_mb: wanted at most 1 MB, as the managed policy says (managed.yaml:1:18), found 2 MB",
    ),
    "uploads": (
        "net: {allowlist: [a.com]}",
        "net: {allow_builtin: [openai-files]}",
        "p.yaml:1:23: net.allow_builtin: wanted nothing beyond none, as the managed policy says (managed.yaml:1:18), found openai-files",
    ),
    "a port of the host": (
        "net: {host_ports: [80]}",
        "net: {host_ports: [80, 5432]}",
        "p.yaml:1:24: net.host_ports: wanted nothing beyond 80, as the managed policy says (managed.yaml:1:19), found 5432",
    ),
    "a published port": (
        "net: {publish: [80]}",
        "net: {publish: ['80:80', '81:80']}",
        "p.yaml:1:26: net.publish: wanted nothing beyond 80:80, as the managed policy says (managed.yaml:1:16), found 81:80",
    ),
    "a published port of a closed network": (
        "net: {enabled: false}",
        "net: {publish: [80]}",
        "p.yaml:1:17: net.publish: wanted nothing beyond none, as the managed policy says (managed.yaml:1:16), found 80:80",
    ),
    "a credential of another's": (
        "credentials: {a: {from: env:A}}",
        "credentials: {a: {from: env:B}}",
        "p.yaml:1:18: credentials: wanted a as it is there, as the managed policy says (managed.yaml:1:18), found another",
    ),
    "one more credential": (
        "credentials: {a: {from: env:A}}",
        "credentials: {b: {from: env:B}}",
        "p.yaml:1:18: credentials: wanted nothing beyond a, as the managed policy says (managed.yaml:1:14), found b",
    ),
    "names": (
        "net: {max_names: 10}",
        "net: {max_names: 11}",
        "p.yaml:1:18: net.max_names: wanted at most 10, as the managed policy says (managed.yaml:1:18), found 11",
    ),
    "a source": (
        "fs: {mounts: [{path: /x, source: HERE/src/a}]}",
        "fs: {mounts: [{path: /x, source: ./src/b}]}",
        "p.yaml:1:15: fs.mounts: wanted beneath HERE/src/a, read-only, as the managed policy says (managed.yaml:1:14), found HERE/src/b, read-only",
    ),
    "a writable source": (
        "fs: {mounts: [{path: /x, source: HERE/src}]}",
        "fs: {mounts: [{path: /x, source: ./src/b, rw: true, cow: true}]}",
        "p.yaml:1:15: fs.mounts: wanted beneath HERE/src, read-only, as the managed policy says (managed.yaml:1:14), found HERE/src/b, copy on write",
    ),
    "a live source": (
        "fs: {mounts: [{path: /x, source: HERE/src, rw: true, cow: true}]}",
        "fs: {mounts: [{path: /x, source: ./src/b, rw: true}]}",
        "p.yaml:1:15: fs.mounts: wanted beneath HERE/src, copy on write, as the managed policy says (managed.yaml:1:14), found HERE/src/b, live",
    ),
    "any source": (
        "fs: {mounts: []}",
        "fs: {mounts: [{path: /x, source: ./src/b}]}",
        "p.yaml:1:15: fs.mounts: wanted no source, as the managed policy says (managed.yaml:1:14), found HERE/src/b, read-only",
    ),
    "a pattern": (
        "fs: {deny_globs: ['**/.env']}",
        "fs: {deny_globs: ['!**/.env']}",
        "p.yaml:1:19: fs.deny_globs: wanted '**/.env' to stay, as managed.yaml:1:19 says, found it removed",
    ),
    "a source that a pattern covers": (
        "fs: {deny_globs: ['HERE/home/**']}",
        "fs: {mounts: [{path: /x, source: ./home/alice}]}",
        "p.yaml:1:15: fs.mounts: HERE/home/alice is denied by 'HERE/home/**' of managed.yaml:1:19",
    ),
    "a backend": (
        "backend: gvisor",
        "backend: docker",
        "p.yaml:1:10: backend: wanted gvisor, as the managed policy says (managed.yaml:1:10), found 'docker'",
    ),
    "a fallback": (
        "backend: gvisor\nfallback: [docker]",
        "fallback: [docker, podman]",
        "p.yaml:1:20: fallback: wanted nothing beyond docker, gvisor, as the managed policy says (managed.yaml:1:10), found podman",
    ),
    "no sandbox": (
        "proc: {mem_mb: 64g}",
        "backend: unconfined",
        "p.yaml:1:10: backend: wanted a sandbox, as the managed policy says (managed.yaml), found 'unconfined'",
    ),
    "no sandbox, under a ceiling that says nothing else": (
        "",
        "fallback: [unconfined]",
        "p.yaml:1:12: fallback: wanted nothing beyond none, as the managed policy says (the managed policy), found unconfined",
    ),
    "degradation": (
        "on_degraded: [proc.mem_mb]",
        "on_degraded: [proc.mem_mb, fs.size_mb]",
        "p.yaml:1:14: on_degraded: wanted nothing beyond proc.mem_mb, as the managed policy says (managed.yaml:1:14), found proc.mem_mb, fs.size_mb",
    ),
    "any degradation": (
        "on_degraded: refuse",
        "on_degraded: allow",
        "p.yaml:1:14: on_degraded: wanted refuse, as the managed policy says (managed.yaml:1:14), found 'allow'",
    ),
    "a variable": (
        "env: {pass: [LANG]}",
        "env: {pass: [LANG, AWS_SECRET]}",
        "p.yaml:1:20: env.pass: wanted nothing beyond LANG, as the managed policy says (managed.yaml:1:13), found AWS_SECRET",
    ),
    "redaction": (
        "logging: {redact_pii: true}",
        "logging: {redact_pii: false}",
        "p.yaml:1:23: logging.redact_pii: wanted true, as the managed policy says (managed.yaml:1:23), found false",
    ),
    "what is let through": (
        "logging: {redact: [secrets]}",
        "logging: {let_through: ['*']}",
        "p.yaml:1:25: logging.let_through: wanted nothing beyond none, as the managed policy says (managed.yaml:1:19), found *",
    ),
    "redaction by its kinds": (
        "logging: {redact: [secrets]}",
        "logging: {redact_pii: false}",
        "p.yaml:1:23: logging.redact_pii: wanted true, as the managed policy says (managed.yaml:1:19), found false",
    ),
    "a uid": (
        "proc: {uid: 1000}",
        "proc: {uid: 1001}",
        "p.yaml:1:13: proc.uid: wanted 1000, as the managed policy says (managed.yaml:1:13), found 1001",
    ),
    "an image": (
        "container: {image: 'base:1'}",
        "container: {image: other}",
        "p.yaml:1:20: container.image: wanted 'base:1', as the managed policy says (managed.yaml:1:20), found 'other'",
    ),
    "a runtime": (
        "container: {runtime: runsc}",
        "container: {runtime: runc}",
        "p.yaml:1:22: container.runtime: wanted 'runsc', as the managed policy says (managed.yaml:1:22), found 'runc'",
    ),
    "pulling": (
        "container: {pull: never}",
        "container: {pull: missing}",
        "p.yaml:1:19: container.pull: wanted never, as the managed policy says (managed.yaml:1:19), found 'missing'",
    ),
    "a network": (
        "container: {network: bridge}",
        "extends: unrestricted\ncontainer: {network: host}",
        "p.yaml:2:22: container.network: wanted none or bridge, as the managed policy says (managed.yaml:1:22), found 'host'",
    ),
    "a port": (
        "container: {ports: ['1:1']}",
        "container: {ports: ['1:1', '2:2']}",
        "p.yaml:1:28: container.ports: wanted nothing beyond 1:1, as the managed policy says (managed.yaml:1:20), found 2:2",
    ),
    "an entry point": (
        "container: {entrypoint: [tini, --]}",
        "container: {entrypoint: [sh, -c]}",
        "p.yaml:1:25: container.entrypoint: wanted tini, --, as the managed policy says (managed.yaml:1:25), found sh, -c",
    ),
    "a writable image": (
        "container: {read_only: true}",
        "container: {read_only: false}",
        "p.yaml:1:24: container.read_only: wanted true, as the managed policy says (managed.yaml:1:24), found false",
    ),
    "an interpreter out of nowhere": (
        "fs: {mounts: [{path: /x, source: HERE/src}]}",
        "python: {interpreter: ./python}",
        "p.yaml:1:23: python.interpreter: wanted a path beneath a mount of it, as the managed policy says (managed.yaml:1:14), found HERE/python",
    ),
}


@pytest.mark.parametrize(("managed", "written", "told"), REFUSED.values(), ids=REFUSED)
def test_refused(managed: str, written: str, told: str) -> None:
    """What someone wrote above the ceiling is an error with both places."""
    Path("python").write_text("#!/bin/sh\n")
    Path("python").chmod(0o755)
    Path("p.yaml").write_text(written)
    resolve("p.yaml", managed=None)
    with pytest.raises(PolicyError) as caught:
        resolve("p.yaml", managed=ceiling(managed))
    assert caught.value.problems == (told.replace("HERE", str(Path.cwd())),)


ALLOWED = {
    "the same": ("proc: {mem_mb: 512}", "proc: {mem_mb: 512}"),
    "less": ("proc: {mem_mb: 512, timeout_ms: 30s}", "proc: {mem_mb: 1, timeout_ms: 1}"),
    "no network": ("net: {enabled: true}", "net: {enabled: false}"),
    "a subdomain": ("net: {allowlist: ['*.a.com']}", "net: {allowlist: [x.a.com, '*.x.a.com']}"),
    "a path": (
        "net: {allowlist: [{host: a.com, paths: ['/v1/**']}]}",
        "net: {allowlist: [{host: a.com, paths: ['/v1/x', '/v1/y/**'], rate: 1/s}]}",
    ),
    "a source beneath": (
        "fs: {mounts: [{path: /x, source: HERE/src, rw: true}]}",
        "fs: {mounts: [{path: /y, source: ./src/a, rw: true}]}",
    ),
    "a home that the ceiling mounts": (
        "fs: {deny_globs: ['HERE/home/**'], mounts: [{path: /x, source: HERE/home/alice}]}",
        "fs: {mounts: [{path: /y, source: ./home/alice/project}]}",
    ),
    "a pinned backend, chosen": ("backend: gvisor", "backend: gvisor"),
    "a pinned backend, left open": ("backend: gvisor", "backend: auto"),
    "no sandbox, named": ("backend: unconfined", "backend: unconfined"),
    "nothing bound": ("proc: {pids: 64}", "proc: {mem_mb: 64g}"),
}


@pytest.mark.parametrize(("managed", "written"), ALLOWED.values(), ids=ALLOWED)
def test_allowed(managed: str, written: str) -> None:
    """A layer may tighten the ceiling, and be free where it says nothing."""
    Path("p.yaml").write_text(written)
    resolve("p.yaml", managed=ceiling(managed))


@pytest.mark.parametrize("extends", ["aicode", "unrestricted", "none"])
def test_a_choice_that_nobody_wrote_is_lowered(extends: str) -> None:
    """What holds without being written is bound as what is written is."""
    Path("p.yaml").write_text(f"extends: {extends}\n" + (STANDALONE if extends == "none" else ""))
    managed = ceiling("proc: {host_info: hidden}\nbackend: unconfined")
    assert resolve("p.yaml", managed=managed).proc.host_info == "hidden"


STANDALONE = """\
fs: {mounts: [{path: /workspace, rw: true}], size_mb: 1, inodes: 99}
proc: {uid: 1000, cpu_quota: 1, mem_mb: 64, timeout_ms: 1s, pids: 4, open_files: 16, file_size_mb: 1, output_mb: 1}
"""


def test_presets_are_lowered() -> None:
    """Nobody asked for a preset's number, so it gives way, and the ceiling becomes its origin."""
    managed = ceiling(
        "backend: bubblewrap\nproc: {mem_mb: 512, pids: 8}\nnet: {enabled: false, allowlist: [a.com]}\n"
        "on_degraded: [proc.mem_mb]\nenv: {set: {}, pass: [TERM]}\nlogging: {sample_ratio: 0.5}\n"
        "fs: {deny_globs: ['**/*.key']}"
    )
    policy = resolve("unrestricted", managed=managed)
    assert (policy.proc.mem_bytes, policy.proc.pids) == (512 * MB, 8)
    assert (policy.backend, policy.net.enabled, policy.net.allowlist) == ("bubblewrap", False, ())
    assert (policy.on_degraded, policy.env.pass_, dict(policy.env.set)) == (("proc.mem_mb",), ("TERM",), {})
    assert policy.fs.deny_globs[-1] == "**/*.key"
    assert str(policy.origin("proc.mem_mb")) == "managed.yaml:2"
    assert str(policy.origin("backend")) == "managed.yaml:1"
    assert str(policy.origin(f"fs.deny_globs[{len(policy.fs.deny_globs) - 1}]")) == "managed.yaml:7"
    assert policy.logging.sample_ratio == 0.5


@pytest.mark.parametrize(
    ("managed", "written", "redact", "places"),
    [
        ("redact_pii: true", "redact: []", ("secrets", "personal"), ("log",)),
        ("redact_pii: true", "redact_in: [result]", ("secrets", "personal"), ("result", "log")),
        ("redact: [secrets]", "redact: [email]", ("email", "secrets"), ("log",)),
        ("redact_in: [result]", "redact: [secrets, personal]", ("secrets", "personal"), ("log", "result")),
        ("redact: [secrets]", "sample_ratio: 1", ("secrets", "personal"), ("log",)),
        ("redact_pii: false", "redact: [email]", ("email",), ("log",)),
    ],
)
def test_redaction_is_only_widened(
    managed: str, written: str, redact: tuple[str, ...], places: tuple[str, ...]
) -> None:
    """What a managed policy redacts stays redacted; a list in it says what else is."""
    Path("p.yaml").write_text(f"logging: {{{written}}}")
    policy = resolve("p.yaml", managed=ceiling(f"logging: {{{managed}}}"))
    assert (policy.logging.redact, policy.logging.redact_in) == (redact, places)


def test_the_workspace_is_bound_too() -> None:
    """`--workspace` and `--live` are words of the user's, like any other."""
    managed = ceiling("fs: {mounts: [{path: /workspace, source: HERE/src, rw: true, cow: true}]}")
    assert resolve(workspace="src/a", managed=managed).fs.mounts[0].cow
    for workspace, live in (("home", False), ("src/a", True)):
        with pytest.raises(PolicyError, match=r"--workspace: fs\.mounts: wanted beneath"):
            resolve(workspace=workspace, live=live, managed=managed)


def test_all_at_once_with_one_hint() -> None:
    """Every key that tried is named."""
    with pytest.raises(PolicyError) as caught:
        resolve(
            overrides=["proc.pids=9", "net.enabled=true"], managed=ceiling("proc: {pids: 8}\nnet: {enabled: false}")
        )
    assert len(caught.value.problems) == 2
    assert caught.value.hint == "a managed policy can be tightened, never loosened"


def test_what_protects_is_added() -> None:
    """The ceiling's deny rules, headers and canaries hold whatever is written; limits only come down."""
    managed = ceiling(
        "net: {denylist: [a.com, b.com], strip_headers: [X-A], canary_files: [/workspace/x], max_names: 500, budget_mb: 7}"
    )
    policy = resolve(overrides=["net.denylist=[c.com, b.com]"], managed=managed)
    assert [rule.host for rule in policy.net.denylist] == ["c.com", "b.com", "a.com"]
    assert (policy.net.strip_headers, policy.net.canary_files) == (("x-a",), ("/workspace/x",))
    assert (policy.net.max_names, policy.net.budget_bytes) == (256, 7 * MB)
    assert str(policy.origin("net.denylist[2]")) == "managed.yaml:1"


def test_a_credential_of_the_ceiling() -> None:
    """Who writes a rule beneath it names the credential; what it is stands in the ceiling alone."""
    managed = ceiling(
        "net: {allowlist: [{host: a.com, credential: one}]}\ncredentials: {one: {from: env:ONE}, two: {from: env:TWO}}"
    )
    policy = resolve(overrides=["net.allowlist=[{host: a.com, credential: one}]"], managed=managed)
    assert [(name, item.source) for name, item in policy.credentials.items()] == [("one", "env:ONE")]
    assert resolve(managed=managed).credentials == {}


def test_an_allowlist_of_the_ceiling() -> None:
    """The ceiling's list is what may be written, not what is granted."""
    managed = ceiling("net: {enabled: true, allowlist: [a.com, b.com]}")
    assert resolve(managed=managed).net.allowlist == ()
    assert resolve(overrides=["net.allowlist=[b.com]"], managed=managed).net.allowlist == (HostRule("b.com"),)


UNTRUSTED = {
    "someone else's": (0o644, 12345, "wanted a file that user 12345 owns, found one of user"),
    "the group may write it": (0o664, None, "wanted a file that only its owner may write, found mode 0664"),
    "all may write it": (0o646, None, "wanted a file that only its owner may write, found mode 0646"),
}


@pytest.mark.parametrize(("mode", "owner", "told"), UNTRUSTED.values(), ids=UNTRUSTED)
def test_a_ceiling_that_others_could_write_stops_everything(
    mode: int, owner: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither believed nor skipped."""
    path = ceiling("proc: {pids: 8}")
    Path(path).chmod(mode)
    monkeypatch.setattr(resolve_module, "MANAGED_OWNER", os.geteuid() if owner is None else owner)
    with pytest.raises(PolicyError, match=told):
        resolve(managed=path)


def test_roots_by_default() -> None:
    """Without this file's stand-in, the owner must be root."""
    assert resolve_module.MANAGED_PATH == "/etc/belljar/policy.yaml"
    if os.geteuid() != 0:
        with pytest.raises(PolicyError, match="wanted a file that root owns"):
            resolve_module.read_managed(ceiling("proc: {pids: 8}"), owner=0)
    else:
        assert resolve_module.read_managed(ceiling("proc: {pids: 8}"), owner=0)


WRONG = {
    "a base": ("extends: strict", "extends: wanted only what binds, found a base: a managed policy stands alone"),
    "a removal": ("fs: {deny_globs: ['!**/.env']}", "a managed policy inherits nothing"),
    "a relative source": ("fs: {mounts: [{path: /x, source: ./src}]}", "wanted an absolute path in a managed policy"),
    "a mistake": ("proc: {pids: x}", "proc.pids: wanted a whole number"),
    "a credential that it does not define": (
        "net: {allowlist: [{host: a.com, credential: x}]}",
        "net.allowlist[0].credential: wanted a name of 'credentials', found 'x'",
    ),
}


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG)
def test_a_ceiling_with_mistakes_stops_everything(text: str, told: str) -> None:
    """A ceiling that can't be understood is not a ceiling that is not there."""
    with pytest.raises(PolicyError, match=r"^managed\.yaml:1:") as caught:
        resolve(managed=ceiling(text))
    assert told in str(caught.value)


def test_no_ceiling() -> None:
    """A missing file binds nothing; one that can't be read is an error."""
    assert resolve(managed="none.yaml") == resolve(managed=None)
    assert resolve(managed="p.yaml/none.yaml") == resolve(managed=None)
    Path("loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(PolicyError, match="the managed policy can't be read"):
        resolve(managed="loop.yaml")
