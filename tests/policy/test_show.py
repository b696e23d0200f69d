"""A policy for people and tools: YAML that reads back, differences with a direction, the schema, the written file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from belljar.errors import PolicyError
from belljar.policy.jsonschema import json_schema
from belljar.policy.keys.table import CLAUSES, KEYS, fields, sections
from belljar.policy.load.resolve import from_mapping, preset_names, resolve
from belljar.policy.models import Policy
from belljar.policy.show import diff, to_mapping, to_yaml
from belljar.policy.template import commented_template

ROOT = Path(__file__).resolve().parents[2]
RICH: dict[str, Any] = {
    "on_degraded": ["fs.size_mb"],
    "fallback": ["docker"],
    "fs": {"mounts": [{"path": "/data", "source": "/usr/share", "rw": True, "cow": True}], "deny_globs": ["it's #1"]},
    "net": {
        "allowlist": [
            "a.com",
            {"host": "b.com", "ports": [80], "methods": ["GET"], "paths": ["/v1/**"], "credential": "c", "rate": "5/s"},
            {
                "host": "*.b.com",
                "query": ["a", "b[]"],
                "addresses": ["10.0.0.1", "[::1]:8"],
                "budget_mb": 3,
                "sign": "k",
            },
        ],
        "denylist": ["c.com", {"host": "*", "ports": [22], "methods": ["PUT"], "paths": ["/x/*"], "query": ["debug"]}],
        "allow_builtin": ["openai-files"],
        "host_ports": [5432],
        "publish": [8000, "18000:8001"],
        "strip_headers": ["X-Id"],
        "budget_mb": "10k",
        "max_name_length": 60,
        "max_name_entropy": 3,
        "max_names": 7,
        "canary_files": ["/workspace/a b"],
    },
    "credentials": {
        "c": {"from": "env:C", "header": "X-Key", "format": "k {base64}", "env": "C_KEY", "reflects": True},
        "d": {"command": ["pass", "show", "it's"], "query": "key", "placeholder": "placeholder-1", "methods": ["GET"]},
        "e": {"from": "keyring:a/b", "hosts": ["b.com"], "paths": ["/v1/**"], "on_foreign_credential": "strip"},
        "k": {"from": "file:/etc/key.pem", "algorithm": "ed25519", "key_id": "k1"},
    },
    "proc": {"mem_mb": "1537k", "output_mb": "7b", "timeout_ms": 1, "cpu_quota": 0.25},
    "container": {
        "image": "localhost:5000/a/b_c:1.2@sha256:" + "0" * 64,
        "name": "x",
        "entrypoint": ["sh", "-c", "it's # \n"],
        "ports": ["8080:80", "1:65535"],
        "read_only": False,
        "pull": "missing",
    },
    "env": {"set": {"A": "yes: #\n", "B": "1", "C": "", "D": "null", "E": "ünï"}, "pass": ["TERM"]},
}


def every_policy() -> list[Policy]:
    return [*(resolve(name, managed=None) for name in preset_names()), resolve(layers=[RICH], managed=None)]


@pytest.mark.parametrize("policy", every_policy(), ids=[*preset_names(), "rich"])
def test_reads_back(policy: Policy, tmp_path: Path) -> None:
    """What is shown, as a mapping or as YAML with comments, is the same policy again."""
    assert from_mapping(to_mapping(policy)) == policy
    for origins in (False, True):
        text = to_yaml(policy, origins=origins)
        assert yaml.safe_load(text) is not None
        (tmp_path / "shown.yaml").write_text(text)
        again = resolve(tmp_path / "shown.yaml", managed=None)
        assert again == policy
        assert again.digest == policy.digest


def test_origins_are_comments(tmp_path: Path) -> None:
    """Each line says where its value is from."""
    file = tmp_path / "p.yaml"
    file.write_text("proc:\n  pids: 7\nfs: {deny_globs: ['*.key']}")
    lines = to_yaml(resolve(file, managed=None), origins=True).splitlines()
    assert f"  pids: 7  # {file}:2" in lines
    assert f"    - '*.key'  # {file}:3" in lines
    assert any(line.startswith("  mem_mb: 1024  # preset aicode:") for line in lines)


DIFFERENCES = {
    # the change, as a layer over webscraping: what diff says
    "more memory": ({"proc": {"mem_mb": 600}}, ("proc.mem_mb", 512, 600, "looser")),
    "less time": ({"proc": {"timeout_ms": 1}}, ("proc.timeout_ms", 120_000, 1, "tighter")),
    "another uid": ({"proc": {"uid": 1001}}, ("proc.uid", 1000, 1001, "changed")),
    "no network": ({"net": {"enabled": False}}, ("net.enabled", True, False, "tighter")),
    "a host": ({"net": {"allowlist": ["a.com"]}}, ("net.allowlist[a.com]", None, ["a.com"], "looser")),
    "a denied host": ({"net": {"denylist": ["a.com"]}}, ("net.denylist[a.com]", None, "a.com", "tighter")),
    "a header": ({"net": {"strip_headers": ["X-A"]}}, ("net.strip_headers", [], ["x-a"], "tighter")),
    "a budget": ({"net": {"budget_mb": 1}}, ("net.budget_mb", None, 1, "tighter")),
    "more names": ({"net": {"max_names": 300}}, ("net.max_names", 256, 300, "looser")),
    "a port of the host": ({"net": {"host_ports": [1]}}, ("net.host_ports", [], [1], "looser")),
    "uploads": (
        {"net": {"allow_builtin": ["openai-files"]}},
        ("net.allow_builtin", [], ["openai-files"], "looser"),
    ),
    "a credential": (
        {"credentials": {"a": {"from": "env:A", "query": "k"}}},
        (
            "credentials.a",
            None,
            {"from": "env:A", "query": "k", "reflects": False, "on_foreign_credential": "refuse"},
            "changed",
        ),
    ),
    "a pattern": ({"fs": {"deny_globs": ["*.k"]}}, ("fs.deny_globs[*.k]", None, "*.k", "tighter")),
    "a pattern less": ({"fs": {"deny_globs": ["!**/.ssh"]}}, ("fs.deny_globs[**/.ssh]", "**/.ssh", None, "looser")),
    "an empty mount": (
        {"fs": {"mounts": [{"path": "/data"}]}},
        ("fs.mounts[/data]", None, {"path": "/data", "rw": False}, "looser"),
    ),
    "a source": (
        {"fs": {"mounts": [{"path": "/workspace", "source": "/usr/share"}]}},
        (
            "fs.mounts[/workspace]",
            {"path": "/workspace", "rw": True},
            {"path": "/workspace", "source": "/usr/share", "rw": False},
            "looser",
        ),
    ),
    "an image": ({"container": {"image": "a"}}, ("container.image", "", "a", "changed")),
    "pulling": ({"container": {"pull": "missing"}}, ("container.pull", "never", "missing", "looser")),
    "a port": ({"container": {"ports": ["1:2"]}}, ("container.ports", [], ["1:2"], "looser")),
    "a writable root": ({"container": {"read_only": False}}, ("container.read_only", True, False, "looser")),
    "an entry point": ({"container": {"entrypoint": ["a"]}}, ("container.entrypoint", None, ["a"], "changed")),
    "no sandbox": ({"backend": "unconfined"}, ("backend", "auto", "unconfined", "looser")),
    "another sandbox": ({"backend": "gvisor"}, ("backend", "auto", "gvisor", "changed")),
    "nothing degraded": (
        {"on_degraded": "refuse"},
        ("on_degraded", ["proc.mem_mb", "proc.cpu_quota", "fs.deny_globs", "proc.host_info"], "refuse", "tighter"),
    ),
    "other clauses degraded": (
        {"on_degraded": ["fs.size_mb"]},
        (
            "on_degraded",
            ["proc.mem_mb", "proc.cpu_quota", "fs.deny_globs", "proc.host_info"],
            ["fs.size_mb"],
            "changed",
        ),
    ),
    "the machine shown": (
        {"proc": {"host_info": "host"}},
        ("proc.host_info", "limits", "host", "looser"),
    ),
    "a variable": ({"env": {"set": {"A": "1"}}}, ("env.set.A", None, "1", "changed")),
    "a passed variable": ({"env": {"pass": ["A"]}}, ("env.pass", [], ["A"], "looser")),
    "less redaction": (
        {"logging": {"redact": ["secrets"]}},
        ("logging.redact", ["secrets", "personal"], ["secrets"], "looser"),
    ),
    "let through": ({"logging": {"let_through": ["a"]}}, ("logging.let_through", [], ["a"], "looser")),
    "no redaction": ({"logging": {"redact_pii": False}}, ("logging.redact_pii", True, False, "looser")),
}


@pytest.mark.parametrize(("layer", "change"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_diff(layer: dict[str, Any], change: tuple[Any, ...]) -> None:
    """One change is one line, with the way it goes; and the way back is the other way."""
    old = resolve("webscraping", managed=None)
    new = resolve("webscraping", layers=[layer], managed=None)
    assert diff(old, new) == [change]
    back = {"looser": "tighter", "tighter": "looser", "changed": "changed"}
    assert diff(new, old) == [(change[0], change[2], change[1], back[change[3]])]
    assert diff(old, old) == []


def test_diff_of_hosts_by_what_they_cover() -> None:
    """An entry that allows less of the same host is tighter."""
    wide, narrow, other = (
        resolve(overrides=[f"net.allowlist=[{{host: a.com, {rest}}}]"], managed=None)
        for rest in ("ports: [443, 80]", "ports: [443], methods: [GET]", "ports: [8080]")
    )
    assert [change.direction for change in diff(wide, narrow)] == ["tighter"]
    assert [change.direction for change in diff(narrow, wide)] == ["looser"]
    assert [change.direction for change in diff(narrow, other)] == ["changed"]


def valid(mapping: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(json_schema()).is_valid(mapping))


def test_schema_is_a_schema() -> None:
    """Editors take it."""
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize(
    "file", sorted((ROOT / "src/belljar/policy/presets").glob("*.yaml")), ids=lambda file: file.stem
)
def test_presets_fit_the_schema(file: Path) -> None:
    """An editor finds nothing wrong with a preset."""
    assert valid(yaml.safe_load(file.read_text()))


def test_whole_policies_fit_the_schema() -> None:
    """Nor with anything that `policy show` prints."""
    assert all(valid(to_mapping(policy)) for policy in every_policy())
    assert valid(RICH)


AGREED_BAD: list[dict[str, Any]] = [
    {"unknown": 1},
    {"version": 2},
    {"backend": "bwrap"},
    {"fallback": ["auto"]},
    {"on_degraded": "maybe"},
    {"on_degraded": ["proc.memory"]},
    {"proc": {"mem_mbs": 1}},
    {"proc": {"mem_mb": -1}},
    {"proc": {"mem_mb": "1 gig"}},
    {"proc": {"mem_mb": [1]}},
    {"proc": {"pids": 1.5}},
    {"proc": {"uid": 0}},
    {"proc": {"uid": 2**31}},
    {"proc": {"timeout_ms": "5 s"}},
    {"proc": {"timeout_ms": 0}},
    {"proc": {"cpu_quota": 0}},
    {"proc": []},
    {"fs": {"mounts": {}}},
    {"fs": {"mounts": [{}]}},
    {"fs": {"mounts": [{"path": "data"}]}},
    {"fs": {"mounts": [{"path": "/a/../b"}]}},
    {"fs": {"mounts": [{"path": "/proc"}]}},
    {"fs": {"mounts": [{"path": "/etc/x"}]}},
    {"fs": {"mounts": [{"path": "/"}]}},
    {"fs": {"mounts": [{"path": "/tmp"}]}},
    {"fs": {"mounts": [{"path": "/tmp//"}]}},
    {"fs": {"mounts": [{"path": "/a", "rw": "yes"}]}},
    {"fs": {"deny_globs": [""]}},
    {"fs": {"workdir": "here"}},
    {"net": {"enabled": "yes"}},
    {"net": {"allowlist": [{"ports": [1]}]}},
    {"net": {"allowlist": [{"host": "a.com", "ports": []}]}},
    {"net": {"allowlist": [{"host": "a.com", "ports": [0]}]}},
    {"net": {"allowlist": [{"host": "a.com", "methods": ["get"]}]}},
    {"net": {"allowlist": [{"host": "a.com", "paths": ["x"]}]}},
    {"net": {"allowlist": [{"host": "a.com", "rate": "1/d"}]}},
    {"net": {"allowlist": [{"host": "a.com", "query": []}]}},
    {"net": {"allowlist": [{"host": "a.com", "addresses": []}]}},
    {"net": {"allowlist": [{"host": "a.com", "budget_mb": -1}]}},
    {"net": {"denylist": [{"ports": [1]}]}},
    {"net": {"denylist": [{"host": "a.com", "credential": "x"}]}},
    {"net": {"allow_builtin": ["everything"]}},
    {"net": {"host_ports": [0]}},
    {"net": {"publish": ["a"]}},
    {"net": {"publish": [0]}},
    {"net": {"strip_headers": ["a b"]}},
    {"net": {"canary_files": ["x"]}},
    {"net": {"max_names": 1.5}},
    {"credentials": []},
    {"credentials": {"a b": {"from": "env:A"}}},
    {"credentials": {"a": {"from": "secret"}}},
    {"credentials": {"a": {"from": "env:A", "format": "x"}}},
    {"credentials": {"a": {"from": "env:A", "algorithm": "rsa"}}},
    {"credentials": {"a": {"from": "env:A", "placeholder": "x"}}},
    {"credentials": {"a": {"from": "env:A", "unknown": 1}}},
    {"env": {"set": {"1A": "x"}}},
    {"env": {"set": {"A": None}}},
    {"env": {"pass": ["a b"]}},
    {"logging": {"sample_ratio": 2}},
    {"logging": {"redact_pii": 1}},
    {"container": {"images": "a"}},
    {"container": {"image": "-v"}},
    {"container": {"image": "--privileged"}},
    {"container": {"image": "a b"}},
    {"container": {"image": "UPPER"}},
    {"container": {"image": "a:"}},
    {"container": {"image": "a@sha256:0"}},
    {"container": {"image": None}},
    {"container": {"name": "-x"}},
    {"container": {"name": ""}},
    {"container": {"name": "a/b"}},
    {"container": {"name": "x" * 65}},
    {"container": {"engine": "lxc"}},
    {"container": {"runtime": "kata"}},
    {"container": {"network": "container:other"}},
    {"container": {"pid": "container:other"}},
    {"container": {"privileged": "no"}},
    {"container": {"entrypoint": "sh"}},
    {"container": {"entrypoint": []}},
    {"container": {"entrypoint": [""]}},
    {"container": {"entrypoint": [1]}},
    {"container": {"ports": "8080:80"}},
    {"container": {"ports": [8080]}},
    {"container": {"ports": ["80"]}},
    {"container": {"ports": ["0:80"]}},
    {"container": {"ports": ["0.0.0.0:80:80"]}},
    {"container": {"ports": ["08:80"]}},
    {"container": {"pull": "always"}},
]


@pytest.mark.parametrize("mapping", AGREED_BAD, ids=str)
def test_schema_and_validator_refuse_the_same(mapping: dict[str, Any]) -> None:
    """What the editor underlines is what belljar refuses."""
    assert not valid(mapping)
    with pytest.raises(PolicyError):
        from_mapping(mapping)


AGREED_GOOD: list[dict[str, Any]] = [
    {"fs": {"mounts": [{"path": "/tmp/x"}, {"path": "/tmpfs"}]}},
    {},
    {"version": 1, "extends": "strict"},
    {"proc": None},
    {"proc": {"mem_mb": "1.5GiB", "timeout_ms": "500ms", "cpu_quota": 0.5}},
    {"fs": {"mounts": [{"path": "/procs"}, {"path": "/data/x", "source": None}], "workdir": "/procs"}},
    {"fs": {"deny_globs": ["!**/.env"]}},
    {"net": {"allowlist": ["*.a.com", "::1", {"host": "10.0.0.1", "credential": None}]}},
    {"env": {"set": {"A": "x", "B": 1}}},
    {"python": {"venv": None}},
    {"container": None},
    {"container": {"image": "", "name": None, "entrypoint": None, "ports": []}},
    {"container": {"image": "python"}},
    {"container": {"image": "docker.io/library/python:3.12-slim@sha256:" + "ab" * 32}},
    {"container": {"image": "sha256:" + "ab" * 32, "name": "a.b-c_d", "ports": ["65535:1"]}},
    {"net": {"publish": [1, "2", "3:4"], "host_ports": [], "budget_mb": None, "ca_file": None}},
    {"net": {"denylist": ["a.com", {"host": "*", "query": ["b[]"]}], "strip_headers": ["X-A"]}},
    {"credentials": None},
    {"credentials": {"a.b": {"from": "env:A"}, "b": {"command": ["x"], "query": "k"}}},
]


@pytest.mark.parametrize("mapping", AGREED_GOOD, ids=str)
def test_schema_and_validator_take_the_same(mapping: dict[str, Any]) -> None:
    """And what it leaves alone is a policy."""
    assert valid(mapping)
    from_mapping(mapping)


def test_every_example_of_the_table_is_valid() -> None:
    """The reference shows examples that its own reader takes."""
    for key in KEYS.values():
        schema = json_schema()["properties"]
        for part in key.path.replace("[]", ".[]").split("."):
            item = schema.get("items") or schema.get("additionalProperties")
            schema = item if part == "[]" else (schema.get("properties") or schema)[part]
            schema = next((form for form in schema.get("anyOf", ()) if "properties" in form), schema)
        assert jsonschema.Draft202012Validator(schema).is_valid(key.example), key.path


@pytest.mark.parametrize("preset", preset_names())
def test_template(preset: str, tmp_path: Path) -> None:
    """The file that `init` writes changes nothing, and says every key; without its comment marks it is still one."""
    text = commented_template(preset)
    file = tmp_path / "sandbox.policy.yaml"
    file.write_text(text)
    assert resolve(file, managed=None) == resolve(preset, managed=None)
    (tmp_path / "deps").mkdir()
    body = text.partition("version: 1")[2]
    file.write_text("\n".join(_uncommented(line) for line in body.splitlines()))
    policy = resolve(file, managed=None)
    assert policy.proc == resolve(preset, managed=None).proc
    assert [mount.path for mount in policy.fs.mounts] == ["/workspace", "/deps"]
    for name in [*fields(""), *(name for section in sections() for name in fields(section))]:
        assert f"{name}:" in text


def _uncommented(line: str) -> str:
    known = [*fields(""), *sections()]
    if line.startswith("# ") and (line[2:].partition(":")[0] in known or line.startswith("#   ")):
        return line[2:]
    return line


def test_clauses_are_what_a_backend_can_hold() -> None:
    """`on_degraded` may name every limit, and nothing that is not one."""
    assert {"proc.mem_mb", "proc.cpu_quota", "fs.deny_globs", "net.enabled", "proc.output_mb"} <= set(CLAUSES)
    assert not {"version", "extends", "backend", "fs.mounts[].path"} & set(CLAUSES)
