"""`python -m belljar` is `belljar`."""

from __future__ import annotations

from belljar.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
