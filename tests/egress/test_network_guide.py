"""docs/guides/network.md says what is so: its examples are policies, its output is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from belljar.cli.policy.net_test import describe
from belljar.egress.decide.reasons import REASONS
from belljar.egress.decide.rules import compile_rules
from belljar.egress.decide.trial import trial
from belljar.policy.load.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/guides/network.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_are_policies(text: str, tmp_path: Path) -> None:
    """Each can be copied into a file."""
    assert yaml.safe_load(text)
    (tmp_path / "p.yaml").write_text(text)
    assert resolve(tmp_path / "p.yaml", managed=None).net.enabled


def test_every_code_is_listed() -> None:
    """With the words that a denial has."""
    listed = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", GUIDE, re.MULTILINE))
    assert {code: text for code, text in listed.items() if code in REASONS} == dict(REASONS)


def test_the_refusal_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first policy, and the URL that is tried on it."""
    monkeypatch.chdir(tmp_path)
    Path("sandbox.policy.yaml").write_text(EXAMPLES[0])
    rules = compile_rules(resolve("sandbox.policy.yaml", managed=None))
    url = "https://api.example.com/v2/items"
    shown = describe(url, trial(rules, url))
    assert shown in GUIDE


def test_commands_are_real() -> None:
    """Every command line of the guide starts with a command that there is."""
    from belljar.cli.commands import COMMANDS

    for line in re.findall(r"^\$ belljar (.*)$", GUIDE, re.MULTILINE):
        words = line.split()
        assert words[0] in COMMANDS or " ".join(words[:2]) in COMMANDS, line
