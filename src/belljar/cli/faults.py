"""Faults in words: what failed, a blank line, a hint; and the exit code that says whose fault it was."""

from __future__ import annotations

import os
import sys

from belljar.cli.main import FAULT, USAGE
from belljar.cli.terminal.safe_text import visible, visible_lines
from belljar.cli.terminal.style import RED, paint, supports_colour
from belljar.errors import BelljarError, InternalError, PolicyError, UsageError

_OURS = "this is a fault of belljar: please report it (BELLJAR_DEBUG=1 shows where it happened)"


def tell(error: Exception) -> int:
    """Write the error to standard error; returns the exit code."""
    if os.environ.get("BELLJAR_DEBUG"):
        import traceback

        traceback.print_exception(error)
    sys.stderr.write(describe(_as_ours(error), colour=supports_colour(2)))
    return USAGE if isinstance(error, UsageError) else FAULT


def describe(error: BelljarError, *, colour: bool = False) -> str:
    """The text: one line for one problem, a list for several, then the hint."""
    label = paint("belljar: error:", RED, on=colour)
    problems = error.problems if isinstance(error, PolicyError) else (error.message,)
    if len(problems) == 1:
        text = f"{label} {visible_lines(problems[0])}\n"
    else:
        text = f"{label} the policy has {len(problems)} problems\n" + "".join(f"  {visible(one)}\n" for one in problems)
    return text + (f"\nhint: {visible_lines(error.hint)}\n" if error.hint else "")


def _as_ours(error: Exception) -> BelljarError:
    if isinstance(error, InternalError):
        return InternalError(error.message, hint=error.hint or _OURS)
    if isinstance(error, BelljarError):
        return error
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return BelljarError(f"{where}{error.strerror}")
    return InternalError(f"{type(error).__name__}: {error}", hint=_OURS)
