"""Makes the programs of `filters` by libseccomp, of `rules`, `conditions` and `prefix`.

On x86_64 this was done when the package was made (`_compiled`); elsewhere it is done here, by the host's library.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from belljar.backends.seccomp import conditions, libseccomp
from belljar.backends.seccomp.prefix import prefix, told
from belljar.backends.seccomp.rules import (
    ABSENT,
    ALLOWED,
    ANSWERED,
    FILE_CALLS,
    LAST_JUDGED,
    NUMBERS,
    OBSERVED,
    REPORTED,
    TOLD,
    ZYGOTE,
)
from belljar.errors import PrerequisiteError

_ARCHITECTURES = {0xC000003E: "x86_64", 0xC00000B7: "aarch64"}

# The 32-bit and x32 tables have other numbers for the same calls. Nothing made for this machine uses them, so
# whoever does is told by SIGSYS, which belljar can see from outside, and gets no second try; a 32-bit
# program answered with ENOSYS would loop or crash without a word.
_BAD_ARCHITECTURE = libseccomp.KILL_PROCESS
_EPERM = libseccomp.refuse(errno.EPERM)
_ENOSYS = libseccomp.refuse(errno.ENOSYS)


def jar_filter(*, reported: bool, makes_jars: bool = False) -> bytes:
    """Build the program for `bwrap --seccomp`, which refuses everything with EPERM that is not on the list.

    Args:
        reported: whether `notify_filter` is beneath it with a live supervisor; else the reported calls are
            refused in the kernel, with EPERM.
        makes_jars: for a zygote, whose children make namespaces and then put on `narrowing_filter` themselves.

    Raises:
        PrerequisiteError: no libseccomp, or a machine whose calls we don't know.

    """
    architecture = _architecture()
    with libseccomp.Filter(default=_EPERM, bad_architecture=_BAD_ARCHITECTURE) as program:
        more = ZYGOTE if makes_jars else frozenset()
        _add(program, libseccomp.ALLOW, ALLOWED | more)
        _add(program, _ENOSYS, ABSENT)
        if reported:
            _add(program, libseccomp.trace(), REPORTED - more)
        for rule in conditions.allowed():
            number = _number(rule.name)
            if number is not None and rule.name not in more:
                program.add(libseccomp.ALLOW, number, rule.conditions)
        body = program.export()
    head = prefix(architecture=architecture, number=_number, last_judged=LAST_JUDGED, unknown=_ENOSYS, refused=_EPERM)
    asked = _told(libseccomp.trace(), without=more) if reported else b""
    return asked + head + body


def narrowing_filter() -> bytes:
    """Build the program that takes back what a zygote may do beyond its jars, and has no say in anything else.

    Of both, the kernel takes the more severe answer: that of `jar_filter(reported=True)`. It is a tenth of that one,
    and every jar of a pool has the kernel check and compile it anew.
    """
    _architecture()
    with libseccomp.Filter(default=libseccomp.ALLOW, bad_architecture=_BAD_ARCHITECTURE) as program:
        _add(program, libseccomp.trace(), ZYGOTE & REPORTED)
        _add(program, _EPERM, ZYGOTE - REPORTED - conditions.TAKEN_BACK.keys())
        for name, (argument, bits) in conditions.TAKEN_BACK.items():
            for bit in (1 << place for place in range(64) if bits >> place & 1):
                number = _number(name)
                assert number is not None
                program.add(_EPERM, number, (libseccomp.Condition(argument, bit, bit),))
        return _told(libseccomp.trace(), without=TOLD - ZYGOTE) + program.export()


def notify_filter(*, connects: bool, files: bool, machine: bool = False) -> bytes:
    """Build the program that asks a supervisor: about reported calls always, connect and file calls if wanted.

    For connect and files the supervisor may only *record* and let the call continue: the arguments are behind
    pointers that another thread can rewrite after they were read. What enforces is the namespace.
    `machine` adds the calls that the supervisor answers itself.

    Raises:
        PrerequisiteError: no libseccomp, no notification in it or in the kernel, or an unknown machine.

    """
    _architecture()
    calls = REPORTED | (FILE_CALLS if files else frozenset()) | (OBSERVED - FILE_CALLS if connects else frozenset())
    calls |= ANSWERED if machine else frozenset()
    with libseccomp.Filter(default=libseccomp.ALLOW, bad_architecture=_BAD_ARCHITECTURE) as program:
        _add(program, libseccomp.NOTIFY, calls)
        return _told(libseccomp.NOTIFY) + program.export()


def _told(action: int, *, without: frozenset[str] = frozenset()) -> bytes:
    return told(architecture=_architecture(), number=_number, action=action, without=without)


def numbered(names: Iterable[str]) -> dict[int, str]:
    """The names by their numbers on this machine, as far as they have one."""
    return {number: name for name in names if (number := _number(name)) is not None}


def _add(program: libseccomp.Filter, action: int, names: Iterable[str]) -> None:
    for name in sorted(names):  # sorted: the same program each time, so that its digest can be recorded
        number = _number(name)
        if number is not None:
            program.add(action, number)


def _number(name: str) -> int | None:
    number = libseccomp.resolve(name)
    return NUMBERS.get(name) if number is None else number


def _architecture() -> int:
    token = libseccomp.native_architecture()
    if token not in _ARCHITECTURES:
        raise PrerequisiteError(
            f"belljar's system call filter is written for {' and '.join(_ARCHITECTURES.values())}, "
            f"and this process has architecture {token:#x}",
            hint="run belljar with a 64-bit Python on one of these",
        )
    return token
