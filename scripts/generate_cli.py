"""Writes docs/reference/cli.md from the tables of the commands.

python scripts/generate_cli.py          writes it
python scripts/generate_cli.py --check  exits with 1 if it is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from belljar.cli.reference import reference_page

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/cli.md"


def main(words: list[str]) -> int:
    text = reference_page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if "--check" in words:
        sys.stdout.write("out of date: docs/reference/cli.md (python scripts/generate_cli.py)\n")
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text)
    sys.stdout.write("wrote: docs/reference/cli.md\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
