"""The documents say what is there: links lead somewhere, commands exist, pages hold nothing of one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("images/*.md")]
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MAKE = re.compile(r"\bmake ([a-z]+(?:-[a-z]+)*)\b")
FENCE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the repository names a file that exists."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    local = [link.partition("#")[0] for link in LINK.findall(text) if not link.startswith(("https://", "#"))]
    missing = [link for link in local if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_commands_exist(page: Path) -> None:
    """What a page says to type after `make` is a target of the Makefile."""
    said = {target for code in FENCE.findall(page.read_text()) for target in MAKE.findall(code)}
    assert said <= targets()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_nothing_of_one_machine(page: Path) -> None:
    """No path of a developer's machine, and no address of a package index."""
    text = page.read_text()
    assert not re.findall(r"(?:/root/|/work/|/opt/|file://)\S*", text.replace("/root/**", ""))
    assert not re.findall(r"https?://(?!keepachangelog\.com|semver\.org|(?:[a-z]+\.)?example\.com)\S+", text)


def test_readme_is_one_screen() -> None:
    """What it is, two commands at the top, and what it does not protect against."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 60
    assert any("make demo" in line for line in lines[:10])
    assert any("make test" in line for line in lines[:10])
    assert any("does not protect against" in line for line in lines)


def test_every_page_is_listed() -> None:
    """A page that nobody links to is not found."""
    listed = (ROOT / "docs/README.md").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").glob("**/*.md")]
    assert [str(page) for page in pages if page.name != "README.md" and f"({page})" not in listed] == []


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", "".join(p.read_text() for p in PAGES), re.DOTALL))
def test_examples_are_policies(example: str, tmp_path: Path) -> None:
    """A YAML example on a page is a policy that belljar reads."""
    from belljar.policy.load.resolve import resolve

    for directory in ("deps", "data", "venv"):
        (tmp_path / directory).mkdir()
    (tmp_path / "venv/pyvenv.cfg").touch()
    file = tmp_path / "sandbox.policy.yaml"
    file.write_text(example)
    assert resolve(str(file), managed=None).digest
