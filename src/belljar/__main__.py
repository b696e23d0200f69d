"""`python -m belljar` is `belljar`."""

from __future__ import annotations

from belljar.cli.main import command

if __name__ == "__main__":
    command()
