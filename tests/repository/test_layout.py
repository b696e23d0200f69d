"""The rooms of the package: a folder stays small enough to look through, and a class name means one class."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src/belljar"
MOST_FILES = 22


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
