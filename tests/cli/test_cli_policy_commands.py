"""`policy`, `presets`, `init`: they touch no jar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli_process import Ran

EXISTS = """\
belljar: error: sandbox.policy.yaml exists already

hint: belljar init --force sandbox.policy.yaml overwrites it
"""


def test_init_then_check_then_use(belljar: Callable[..., Ran], here: Path) -> None:
    """The file that init writes is right, and allows what its preset allows."""
    ran = belljar("init")
    assert ran == Ran(
        0, "", "belljar: wrote sandbox.policy.yaml; use it: belljar run --policy sandbox.policy.yaml script.py\n"
    )
    assert belljar("policy", "check", "sandbox.policy.yaml").out.startswith("sandbox.policy.yaml: ok, sha256:")
    assert belljar("policy", "diff", "aicode", "sandbox.policy.yaml") == Ran(0, "The two allow the same.\n", "")


def test_init_overwrites_nothing(belljar: Callable[..., Ran], here: Path) -> None:
    """Unless it is told to."""
    (here / "sandbox.policy.yaml").write_text("mine")
    assert belljar("init") == Ran(
        2,
        "",
        EXISTS,
    )
    assert (here / "sandbox.policy.yaml").read_text() == "mine"
    assert belljar("init", "--force", "--preset", "strict", "--json").json == {
        "path": "sandbox.policy.yaml",
        "preset": "strict",
    }
    assert "extends: strict" in (here / "sandbox.policy.yaml").read_text()


def test_check(belljar: Callable[..., Ran], here: Path) -> None:
    """A wrong policy is this command's finding, not its failure: 1."""
    (here / "bad.yaml").write_text("prok: {}\n")
    ran = belljar("policy", "check", "bad.yaml")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "belljar: error: bad.yaml:1:1: unknown key 'prok' (did you mean 'proc'?)\n"
    found = belljar("policy", "check", "--json", "bad.yaml")
    assert found.code == 1
    assert found.json["ok"] is False
    assert found.json["problems"] == ["bad.yaml:1:1: unknown key 'prok' (did you mean 'proc'?)"]


def test_show(belljar: Callable[..., Ran], here: Path) -> None:
    """With the place of each value, or as a file that stands alone."""
    assert "  mem_mb: 99  # --set" in belljar("policy", "show", "--set", "proc.mem_mb=99").out
    plain = belljar("policy", "show", "--plain", "strict").out
    assert " # " not in plain
    (here / "copy.yaml").write_text(plain)
    assert belljar("policy", "diff", "strict", "copy.yaml").out == "The two allow the same.\n"
    shown = belljar("policy", "show", "--json", BELLJAR_POLICY="strict").json
    assert shown["policy"]["proc"]["mem_mb"] == 256
    assert shown["origins"]["proc.mem_mb"].startswith("preset strict:")


def test_diff(belljar: Callable[..., Ran]) -> None:
    """Each key, and which way it goes."""
    told = [line.split() for line in belljar("policy", "diff", "aicode", "strict").out.splitlines()]
    assert ["tighter", "proc.mem_mb", "1024", "->", "256"] in told
    changes = {change["key"]: change for change in belljar("policy", "diff", "strict", "aicode", "--json").json}
    assert changes["proc.mem_mb"] == {"key": "proc.mem_mb", "old": 256, "new": 1024, "direction": "looser"}


def test_dangers(belljar: Callable[..., Ran], here: Path) -> None:
    """Refused with the line, the reason and what to type; and granted to who typed it."""
    (here / "p.yaml").write_text("version: 1\nextends: aicode\ncontainer:\n  privileged: true\n")
    for words in (["policy", "check", "p.yaml"], ["run", "--policy", "p.yaml", "-c", "pass"]):
        ran = belljar(*words)
        assert ran.code != 0
        assert "p.yaml:4:15: container.privileged: wanted false, found true: a privileged container is root" in ran.err
        assert "hint: if the code may have the whole host, write 'extends: unrestricted'" in ran.err
    ran = belljar("run", "--set", "container.network=host", "-c", "pass")
    assert "--set: container.network: wanted none, found 'host'" in ran.err
    (here / "p.yaml").write_text("version: 1\nextends: unrestricted\ncontainer:\n  privileged: true\n")
    (here / "copy.yaml").write_text(belljar("policy", "show", "p.yaml").out)
    assert belljar("policy", "diff", "p.yaml", "copy.yaml").out == "The two allow the same.\n"
    assert "looser  container.privileged" in belljar("policy", "diff", "unrestricted", "p.yaml").out


def test_schema(belljar: Callable[..., Ran]) -> None:
    """JSON, and what an editor needs."""
    assert belljar("policy", "schema").json["properties"]["proc"]["properties"]["mem_mb"]


def test_presets(belljar: Callable[..., Ran]) -> None:
    """All eight, in a table and as JSON."""
    lines = belljar("presets").out.splitlines()
    assert [line.split()[0] for line in lines] == ["preset", *NAMES]
    assert [preset["name"] for preset in belljar("presets", "--json").json] == NAMES


NAMES = ["strict", "production", "aicode", "testing", "webscraping", "docker", "development", "unrestricted"]
