"""The rooms of the package: a folder stays small enough to look through, a class name means one class, and the walks
through the code in docs/architecture.md lead to what is there.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src/belljar"
MOST_FILES = 22
WALKS = {"`belljar run`, the bubblewrap backend:": 14, "`Pool.run`, with a jar that waits:": 8}
"""The walks, and the most steps that each may have."""
STEP = re.compile(r"^\| \d+ \| [^|]+ \| `([\w/]+\.py):([\w.]+)` \|", re.MULTILINE)


def test_a_folder_has_about_twenty_files() -> None:
    """One with more has rooms that nobody has drawn yet."""
    count = Counter(str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
    assert {name: files for name, files in count.items() if files > MOST_FILES} == {}


def test_a_class_name_is_in_one_file() -> None:
    """A reader who looks for a name finds one thing."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_is_short_and_leads_to_what_is_there(walk: str) -> None:
    text = (PACKAGE.parents[1] / "docs/architecture.md").read_text().partition(walk)[2].lstrip()
    steps = STEP.findall(text.partition("\n\n")[0])
    assert 5 <= len(steps) <= WALKS[walk]
    assert [f"{file}:{name}" for file, name in steps if name not in _names(PACKAGE / file)] == []


def _names(path: Path) -> set[str]:
    """The functions of a file, and the methods of its classes, as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        found.add(getattr(node, "name", ""))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found
