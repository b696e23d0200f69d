"""Shows a long text in the user's pager, where there is a terminal. The text may be an agent's: escape it before."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys

from belljar.cli.terminal.style import is_terminal


def show(text: str) -> None:
    """Show the text in $PAGER, or in `less`, if both sides are a terminal; otherwise write it to standard output.

    The text must hold no escape sequence but belljar's own colours: `less -R` passes those on.
    """
    words = _pager() if is_terminal(0) and is_terminal(1) else []
    sys.stdout.flush()
    if words and _shown(words, text):
        return
    sys.stdout.write(text)
    sys.stdout.flush()


def _pager() -> list[str]:
    named = os.environ.get("BELLJAR_PAGER", os.environ.get("PAGER"))
    try:
        words = shlex.split(named) if named is not None else ["less"]
    except ValueError:
        return []
    return words if words and words != ["cat"] and shutil.which(words[0]) else []


def _shown(words: list[str], text: str) -> bool:
    # LESSOPEN would start a program for the text, and LESSSECURE forbids `!` and `v`: the pager only shows.
    environment = {name: value for name, value in os.environ.items() if name not in ("LESSOPEN", "LESSCLOSE", "LESS")}
    environment |= {"LESS": "-FRX", "LESSSECURE": "1"}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's
    try:
        subprocess.run(
            words, input=text.encode("utf-8", "backslashreplace"), env=environment, check=False
        )  # a pager that is left early closes the pipe
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return True


__all__ = ["show"]
