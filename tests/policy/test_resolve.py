"""Layers: what each key does when two layers have it, where values come from, and which files are never read."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from belljar.errors import PolicyError
from belljar.policy.load.resolve import from_mapping, preset_names, resolve
from belljar.policy.models import HostRule, Mount, Origin, Policy

MB = 1024 * 1024


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def test_the_default_is_aicode() -> None:
    """Nothing named means the preset for an agent's code, with DESIGN's limits."""
    policy = resolve(managed=None)
    assert policy == resolve("aicode", managed=None)
    assert (policy.proc.mem_bytes, policy.proc.timeout_seconds, policy.proc.pids) == (1024 * MB, 60.0, 64)
    assert policy.fs.mounts == (Mount("/workspace", rw=True),)
    assert not policy.net.enabled
    assert policy.on_degraded == ("proc.mem_mb", "proc.cpu_quota", "fs.deny_globs", "proc.host_info")
    assert policy.proc.host_info == "limits"


def test_the_eight_presets() -> None:
    """Seed 002 names them, and each is a policy of its own."""
    assert set(preset_names()) == {
        "strict", "development", "testing", "production", "docker", "unrestricted", "webscraping", "aicode",
    }  # fmt: skip
    policies = [resolve(name, managed=None) for name in preset_names()]
    assert len({policy.digest for policy in policies}) == 8
    assert [p.backend for p in policies if p.backend != "auto"] == ["gvisor", "unconfined"]
    assert all(policy.proc.uid != 0 and policy.logging.redact_pii for policy in policies)


MERGES = {
    # key: (what the file says, what the mapping says, the model's field, what comes out)
    "a number replaces": ("proc: {pids: 10}", {"proc": {"pids": 20}}, "proc.pids", 20),
    "a number stays": ("proc: {pids: 10}", {"proc": {"open_files": 20}}, "proc.pids", 10),
    "an empty section says nothing": ("proc: {pids: 10}\nnet:", {"proc": {}}, "proc.pids", 10),
    "mounts by path": (
        "fs: {mounts: [{path: /a}, {path: /b, rw: true}]}",
        {"fs": {"mounts": [{"path": "/b"}]}},
        "fs.mounts",
        (Mount("/workspace", rw=True), Mount("/a"), Mount("/b")),
    ),
    "the allowlist is replaced": (
        "net: {allowlist: [a.com, b.com]}",
        {"net": {"allowlist": [{"host": "C.com.", "ports": [8080]}]}},
        "net.allowlist",
        (HostRule("c.com", ports=(8080,)),),
    ),
    "variables merge by name": (
        "env: {set: {A: 1, B: true}}",
        {"env": {"set": {"B": "2"}}},
        "env.set",
        {"LANG": "C.UTF-8", "A": "1", "B": "2"},
    ),
    "passed names are replaced": ("env: {pass: [A, B]}", {"env": {"pass": ["C"]}}, "env.pass_", ("C",)),
    "fallbacks are replaced": ("fallback: [docker]", {"fallback": ["podman"]}, "fallback", ("podman",)),
    "on_degraded is replaced": ("on_degraded: allow", {"on_degraded": ["fs.size_mb"]}, "on_degraded", ("fs.size_mb",)),
}


@pytest.mark.parametrize(("file", "mapping", "field", "expected"), MERGES.values(), ids=MERGES)
def test_merge(file: str, mapping: dict[str, object], field: str, expected: object) -> None:
    """Each key has one way to be laid over another."""
    value: object = resolve(write("p.yaml", file), layers=[mapping], managed=None)
    for name in field.split("."):
        value = getattr(value, name)
    assert value == expected


def test_deny_globs_add_up_and_can_be_taken_back() -> None:
    """Patterns are inherited unless someone says, in writing, which one is not."""
    inherited = resolve(managed=None).fs.deny_globs
    policy = resolve(write("p.yaml", "fs: {deny_globs: ['*.key', '!**/.npmrc', '**/.env']}"), managed=None)
    assert policy.fs.deny_globs == (*(glob for glob in inherited if glob != "**/.npmrc"), "*.key")
    again = resolve("p.yaml", layers=[{"fs": {"deny_globs": ["!*.key", "**/.npmrc"]}}], managed=None)
    assert set(again.fs.deny_globs) == set(inherited)


UNITS = {
    "proc.mem_mb=256": ("proc", "mem_bytes", 256 * MB),
    "proc.mem_mb=256m": ("proc", "mem_bytes", 256 * MB),
    "proc.mem_mb=512MB": ("proc", "mem_bytes", 512 * MB),
    "proc.mem_mb=1.5GiB": ("proc", "mem_bytes", 1536 * MB),
    "proc.mem_mb='1g'": ("proc", "mem_bytes", 1024 * MB),
    "proc.output_mb=64k": ("proc", "output_bytes", 64 * 1024),
    "proc.output_mb=0.5": ("proc", "output_bytes", MB // 2),
    "proc.output_mb=100b": ("proc", "output_bytes", 100),
    "proc.timeout_ms=250": ("proc", "timeout_seconds", 0.25),
    "proc.timeout_ms=500ms": ("proc", "timeout_seconds", 0.5),
    "proc.timeout_ms=2m": ("proc", "timeout_seconds", 120.0),
    "proc.cpu_quota=0.5": ("proc", "cpu_quota", 0.5),
    "net.enabled=true": ("net", "enabled", True),
    "env.set.PORT=8080": ("env", "set", {"LANG": "C.UTF-8", "PORT": "8080"}),
    "net.allowlist=[a.com]": ("net", "allowlist", (HostRule("a.com"),)),
    "fs.mounts=[{path: /data}]": ("fs", "mounts", (Mount("/workspace", rw=True), Mount("/data"))),
}


@pytest.mark.parametrize("override", UNITS)
def test_set(override: str) -> None:
    """`--set` takes what a file takes, in one line, and is the last word."""
    section, field, expected = UNITS[override]
    policy = resolve("strict", overrides=[override], managed=None)
    assert getattr(getattr(policy, section), field) == expected
    assert policy.origin(override.partition("=")[0]) == Origin("--set")


def test_order_and_origins() -> None:
    """Preset, file, mapping, `--set`, flags: the last one wins, and each value knows where it is from."""
    write("base.yaml", "extends: strict\nproc:\n  pids: 20\n  open_files: 99")
    write("p.yaml", "extends: base.yaml\nproc: {pids: 30, mem_mb: 100}\nfs: {deny_globs: ['*.key']}")
    policy = resolve(
        "p.yaml",
        layers=[{"proc": {"mem_mb": 200, "cpu_quota": 2}}],
        overrides=["proc.cpu_quota=3"],
        timeout="5s",
        backend="bubblewrap",
        managed=None,
    )
    at = {key: str(policy.origin(key)) for key in ("proc.pids", "proc.open_files", "proc.mem_mb", "proc.cpu_quota")}
    assert at == {
        "proc.pids": "p.yaml:2",
        "proc.open_files": "base.yaml:4",
        "proc.mem_mb": "Sandbox(policy=…)",
        "proc.cpu_quota": "--set",
    }
    assert str(policy.origin("proc.output_mb")).startswith("preset strict:")
    assert policy.origin("proc.timeout_ms") == Origin("--timeout")
    assert (policy.backend, policy.origin("backend")) == ("bubblewrap", Origin("--backend"))
    last = len(policy.fs.deny_globs) - 1
    assert policy.origin(f"fs.deny_globs[{last}]") == Origin("p.yaml", 3, 19)
    assert (policy.proc.pids, policy.proc.mem_bytes, policy.proc.cpu_quota) == (30, 200 * MB, 3.0)


def test_digest_is_of_what_is_enforced() -> None:
    """The same policy has the same digest, wherever it was written."""
    one = resolve(write("a.yaml", "proc: {mem_mb: 256}"), managed=None)
    other = resolve("aicode", overrides=["proc.mem_mb=256m"], managed=None)
    assert one.digest == other.digest
    assert one.digest.startswith("sha256:")
    assert len(one.digest) == 71
    assert one.digest != resolve("aicode", managed=None).digest
    assert one == other


def test_a_mapping_may_extend() -> None:
    """A program can write what a file can, `extends` included, but only at the bottom."""
    assert from_mapping({"extends": "strict"}) == resolve("strict")
    assert from_mapping({}) == resolve()
    with pytest.raises(PolicyError, match="extends: wanted only in the first mapping"):
        resolve("aicode", layers=[{"extends": "strict"}], managed=None)


def test_sources(here: Path) -> None:
    """A relative source is the file's neighbour, an absolute one is itself, and links are resolved."""
    (here / "conf/deps").mkdir(parents=True)
    (here / "elsewhere").mkdir()
    (here / "conf/link").symlink_to(here / "elsewhere")
    mounts = f"fs: {{mounts: [{{path: /deps, source: ./deps}}, {{path: /data, source: {here}/conf/link, rw: true}}]}}"
    policy = resolve(write("conf/p.yaml", mounts), managed=None)
    assert policy.fs.mounts[1:] == (
        Mount("/deps", f"{here.resolve()}/conf/deps"),
        Mount("/data", f"{here.resolve()}/elsewhere", rw=True),
    )
    write("conf/q.yaml", "fs: {mounts: [{path: /data, source: link}]}")
    with pytest.raises(PolicyError, match="found 'link', which leaves it"):
        resolve("conf/q.yaml", managed=None)


def test_workspace() -> None:
    """`--workspace` shows a directory at /workspace: a copy on write unless it is live."""
    Path("ws").mkdir()
    source = str(Path("ws").resolve())
    copied, live = (resolve(workspace="ws", live=live, managed=None) for live in (False, True))
    assert copied.fs.mounts == (Mount("/workspace", source, rw=True, cow=True),)
    assert live.fs.mounts == (Mount("/workspace", source, rw=True, cow=False),)
    assert copied.origin("fs.mounts[0]") == Origin("--workspace")
    with pytest.raises(PolicyError, match="--workspace: wanted a directory that exists"):
        resolve(workspace="none", managed=None)


HIDDEN = {
    "in the workspace": ("ws/p.yaml", "ws"),
    "deep in it": ("ws/a/b/p.yaml", "ws"),
    "by a link to the file": ("link.yaml", "ws"),
    "by a link to its directory": ("linked/p.yaml", "ws"),
    "by a link that lies in the workspace": ("ws/out/q.yaml", "ws"),
    "by a chain of links through the workspace": ("chain.yaml", "ws"),
    "by extends": ("extends.yaml", "ws"),
    "in a workspace that is a link": ("ws/p.yaml", "wslink"),
}


@pytest.mark.parametrize(("policy", "workspace"), HIDDEN.values(), ids=HIDDEN)
def test_a_policy_inside_the_workspace_is_never_read(policy: str, workspace: str) -> None:
    """The code that it confines could have written it, by whatever path it is reached."""
    write("ws/p.yaml", "proc: {pids: 1000}")
    write("ws/a/b/p.yaml", "proc: {pids: 1000}")
    write("out/q.yaml", "proc: {pids: 1000}")
    write("extends.yaml", "extends: ./ws/p.yaml")
    for link, target in {
        "link.yaml": "ws/p.yaml",
        "linked": "ws/a/b",
        "ws/out": "../out",
        "ws/step.yaml": "../out/q.yaml",
        "chain.yaml": "ws/step.yaml",
        "wslink": "ws",
    }.items():
        Path(link).symlink_to(target)
    with pytest.raises(PolicyError, match="a policy inside the workspace is never read") as caught:
        resolve(policy, workspace=workspace, managed=None)
    assert caught.value.hint == f"move it out of {workspace}"
    assert resolve("out/q.yaml", workspace=workspace, managed=None).proc.pids == 1000


def test_a_policy_inside_what_the_code_may_write_is_not_used() -> None:
    """A mount can make the policy's own directory writable; a read-only one is harmless."""
    write("p.yaml", "fs: {mounts: [{path: /src, source: ., rw: true}]}")
    with pytest.raises(PolicyError, match="wanted the policy outside what the code may write"):
        resolve("p.yaml", managed=None)
    write("p.yaml", "fs: {mounts: [{path: /src, source: .}]}")
    assert resolve("p.yaml", managed=None).fs.mounts[1].path == "/src"


def test_a_mount_that_a_name_hides_is_an_error() -> None:
    """Better said now than found empty; `/home/**` and the like yield to a mount that is named."""
    Path("home/.ssh/keys").mkdir(parents=True)
    with pytest.raises(PolicyError, match=r"fs.mounts: .*/\.ssh/keys is denied by '\*\*/\.ssh' of preset aicode:"):
        resolve(workspace="home/.ssh/keys", managed=None)
    here = str(Path.cwd())
    resolve(workspace="home", layers=[{"fs": {"deny_globs": [f"{here}/**"]}}], managed=None)


def test_venv_and_interpreter_keep_their_names(here: Path) -> None:
    """An interpreter of a virtual environment is a link, and is only itself under the link's name."""
    (here / ".venv/bin").mkdir(parents=True)
    (here / ".venv/pyvenv.cfg").touch()
    (here / ".venv/bin/python").symlink_to(sys.executable)
    policy = resolve(write("p.yaml", "python: {venv: .venv/, interpreter: .venv/bin/python}"), managed=None)
    assert policy.python.venv == f"{here.resolve()}/.venv"
    assert policy.python.interpreter == f"{here.resolve()}/.venv/bin/python"
    write("sub/p.yaml", "python: {venv: ../.venv}")
    with pytest.raises(PolicyError, match="which leaves it"):
        resolve("sub/p.yaml", managed=None)
    assert resolve("p.yaml", layers=[{"python": {"venv": None}}], managed=None).python.venv is None


def test_a_plain_preset_imports_little() -> None:
    """Start-up is a feature: neither YAML nor the validator is on the way of a plain run."""
    code = "import sys; from belljar.policy.load.resolve import resolve; resolve(); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    heavy = {"yaml", "asyncio", "pydantic", "rich", "argparse", "difflib", "subprocess", "socket", "hypothesis"}
    names = ("keys", "globs", "show", *(f"load.{name}" for name in ("ceiling", "options", "reading", "validate")))
    ours = {f"belljar.policy.{name}" for name in names}
    assert not loaded & (heavy | ours)


@pytest.mark.parametrize("value", [2.5, timedelta(seconds=2.5), "2.5s", "2500ms"])
def test_a_timeout_is_seconds_in_python(value: float | timedelta | str) -> None:
    """A number is never milliseconds, as it is in the file."""
    assert resolve(timeout=value, managed=None).proc.timeout_seconds == 2.5


def test_a_variable_that_is_passed_on_beats_an_inherited_value() -> None:
    """What is written last counts; within one layer, a value that is written out does."""
    assert "LANG" in resolve(managed=None).env.set
    policy = resolve(overrides=["env.pass=[LANG]"], managed=None)
    assert ("LANG" in policy.env.set, policy.env.pass_) == (False, ("LANG",))
    policy = resolve(layers=[{"env": {"pass": ["LANG"], "set": {"LANG": "own"}}}], managed=None)
    assert policy.env.set["LANG"] == "own"
    policy = resolve(overrides=["env.pass=[LANG]", "env.set.LANG=own"], managed=None)
    assert policy.env.set["LANG"] == "own"


def test_the_state_directory_is_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys would be in the jar. Above it, it is denied; of what is in it, belljar itself mounts agents' homes."""
    state = tmp_path / "state"
    (state / "homes" / "one").mkdir(parents=True)
    (state / "outputs").mkdir()
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(state))

    def mounted(source: Path) -> Policy:
        return resolve(layers=[{"fs": {"mounts": [{"path": "/data", "source": str(source)}]}}])

    with pytest.raises(PolicyError, match="belljar's own: its keys are in it"):
        mounted(state)
    assert str(state) in mounted(tmp_path).fs.deny_globs
    assert str(state) not in mounted(state / "homes" / "one").fs.deny_globs
    (tmp_path / "link").symlink_to(state / "outputs")
    for inside in (state / "outputs", state / "homes", tmp_path / "link"):
        with pytest.raises(PolicyError, match="lies in belljar's own directory"):
            mounted(inside)
    for inside in (state, state / "outputs", state / "homes" / "one"):
        with pytest.raises(PolicyError, match="belljar's own"):
            resolve(workspace=str(inside))
