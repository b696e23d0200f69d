"""Prints the requirements of a dependency group of pyproject.toml, one a line.

`pip install --group` does the same from pip 25.1 on; Debian's pip is older.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(name: str) -> list[str]:
    """The requirements of the group `name`, those of included groups first."""
    groups = tomllib.loads(PYPROJECT.read_text())["dependency-groups"]
    found: list[str] = []
    for entry in groups[name]:
        found += requirements(entry["include-group"]) if isinstance(entry, dict) else [entry]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(sys.argv[1])) + "\n")
