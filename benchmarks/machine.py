"""On what machine something was measured, without naming it."""

from __future__ import annotations

import os
import platform


def machine() -> str:
    """The kernel, the processors and how busy they were, the interpreter, and who ran it."""
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    what = f"Linux {platform.release()}, {os.cpu_count()} processors (load {os.getloadavg()[0]:.1f})"
    return f"{what}, Python {platform.python_version()}, as {who}"
