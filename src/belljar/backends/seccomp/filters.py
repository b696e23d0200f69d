"""The programs a jar runs under.

Two of them stack. `jar_filter` is given to `bwrap --seccomp` and decides. `notify_filter` is installed by
belljar in the child before it execs bwrap, because bwrap can't hand a listener out; it only makes the kernel ask a
supervisor. Of two answers the kernel takes the more severe:

    KILL_PROCESS > ERRNO > USER_NOTIF > TRACE > ALLOW

so a call that `jar_filter` refuses is never notified. For the reported calls it therefore says TRACE: with the
listener there the notification wins and the supervisor answers EPERM; with no listener, or no notify filter
at all, the kernel finds no tracer and answers ENOSYS. A forgotten second filter is closed, not open.

The calls by which bubblewrap builds a jar are told as well (`prefix.told`). Until the jar is finished the supervisor
lets them continue: nothing but bubblewrap and the gate is there.

Making one takes libseccomp 6 ms and more. For x86_64 they are in the package, made by scripts/generate.py; tests run
both through an interpreter, which must find that they answer alike.
"""

from __future__ import annotations

import functools
import os
import sys

from belljar.backends.seccomp.install import install
from belljar.backends.seccomp.rules import ANSWERED, BUILDING, NUMBERS, OBSERVED, REPORTED, TOLD

__all__ = [
    "ANSWERED",
    "BUILDING",
    "OBSERVED",
    "REPORTED",
    "install",
    "jar_filter",
    "narrowing_filter",
    "notify_filter",
    "supervised",
    "syscall_name",
]


def is_compiled() -> bool:
    """Whether this process is of the kind that the package has programs for: 64 bits, not those of x32."""
    return sys.platform == "linux" and os.uname().machine == "x86_64" and sys.maxsize > 1 << 32


@functools.cache
def jar_filter(*, reported: bool, makes_jars: bool = False) -> bytes:
    """The program for `bwrap --seccomp`, which refuses everything with EPERM that is not on the list.

    Args:
        reported: whether `notify_filter` is beneath it with a live supervisor; else the reported calls are
            refused in the kernel, with EPERM.
        makes_jars: for a zygote, whose children make namespaces and then put on `narrowing_filter` themselves.

    Raises:
        PrerequisiteError: no libseccomp, or a machine whose calls we don't know.

    """
    if is_compiled():
        from belljar.backends.seccomp._compiled import JAR

        return JAR[reported, makes_jars]
    from belljar.backends.seccomp import building

    return building.jar_filter(reported=reported, makes_jars=makes_jars)


@functools.cache
def narrowing_filter() -> bytes:
    """The program for a jar of a pool, on top of its zygote's: both together answer as `jar_filter(reported=True)`.

    Raises:
        PrerequisiteError: no libseccomp, or a machine whose calls we don't know.

    """
    if is_compiled():
        from belljar.backends.seccomp._compiled import NARROWING

        return NARROWING
    from belljar.backends.seccomp import building

    return building.narrowing_filter()


@functools.cache
def notify_filter(*, connects: bool, files: bool, machine: bool = False) -> bytes:
    """The program that asks a supervisor: about reported calls always, connect and file calls if wanted.

    For connect and files the supervisor may only *record* and let the call continue: the arguments are behind
    pointers that another thread can rewrite after they were read. What enforces is the namespace.
    `machine` adds the calls that the supervisor answers itself.

    Raises:
        PrerequisiteError: no libseccomp, no notification in it or in the kernel, or an unknown machine.

    """
    if is_compiled():
        from belljar.backends.seccomp._compiled import NOTIFY

        return NOTIFY[connects, files, machine]
    from belljar.backends.seccomp import building

    return building.notify_filter(connects=connects, files=files, machine=machine)


@functools.cache
def supervised() -> dict[int, str]:
    """What a supervisor may be asked about: REPORTED, TOLD, OBSERVED and ANSWERED by their numbers here."""
    if is_compiled():
        from belljar.backends.seccomp._compiled import SUPERVISED

        return SUPERVISED
    from belljar.backends.seccomp import building

    return building.numbered(REPORTED | OBSERVED | ANSWERED | TOLD)


@functools.cache
def syscall_name(number: int) -> str:
    """Name a system call for a report, `syscall_N` when nobody knows it."""
    by_number = {value: name for name, value in NUMBERS.items()}
    return supervised().get(number) or by_number.get(number) or f"syscall_{number}"
