"""Ties a process to its parent: when that one dies, by whatever, this one ends too.

The kernel's own word for it (PR_SET_PDEATHSIG) is lost with every change of credentials, and says nothing of a parent
that died before it was spoken. So it is said again after each such change, and the parent is looked at afterwards.

A stage that ends at once would leave to nobody what its jars leave to it: bubblewrap that is killed right after it
cloned has a child that waits for ever. So a stage that serves is not killed but told, and has a few seconds.
"""

from __future__ import annotations

import os

from belljar._startup import signals as signal
from belljar.backends import kernel

_ENDING_SECONDS = 4
"""How long a stage may take to end its jars once its launcher is gone; then the kernel ends it, and them with it."""


def die_with(parent: int) -> None:
    """Be killed when `parent` dies; if it has died already, this does not return."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    _or_end(parent)


def end_with(parent: int) -> int:
    """Hear of the death of `parent` and have a few seconds from then on. A descriptor that is readable once it is dead.

    The clock starts by a signal, not by whoever reads the descriptor: this process may be stuck in a call.
    """

    def start_the_clock(_number: int, _frame: object) -> None:
        if os.getppid() != parent:  # anyone may send a signal
            signal.alarm(_ENDING_SECONDS)

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, start_the_clock)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGALRM))
    descriptor = os.pidfd_open(parent)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGHUP)
    _or_end(parent)
    return descriptor


def _or_end(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)
