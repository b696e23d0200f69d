"""The few calls of libseccomp that belljar needs, through ctypes; no policy lives here.

The library is opened on first use, so that importing belljar costs nothing and works where it is missing.
Everything here runs in the launching process, with its privileges; nothing is installed into the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from belljar.errors import InternalError, PrerequisiteError

if TYPE_CHECKING:
    from typing import Self

KILL_PROCESS = 0x80000000
NOTIFY = 0x7FC00000
ALLOW = 0x7FFF0000

_ERRNO = 0x00050000
_TRACE = 0x7FF00000
_ATTRIBUTE_BADARCH = 2
_ATTRIBUTE_NO_NEW_PRIVS = 3
_ATTRIBUTE_OPTIMIZE = 8
_BINARY_TREE = 2
# The one comparison we use: the others take all 64 bits, of which the kernel often drops 32.
_MASKED_EQUAL = 7


def refuse(number: int) -> int:
    """Make the action that answers a call with this errno."""
    return _ERRNO | number


def trace(message: int = 0) -> int:
    """Make the action that asks a tracer; the kernel answers ENOSYS when there is none."""
    return _TRACE | message


class Condition(NamedTuple):
    """`argument & mask == value`, the only form in which a rule may look at an argument."""

    argument: int
    mask: int
    value: int


class _ArgumentComparison(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Open libseccomp and set its prototypes.

    Raises:
        PrerequisiteError: the host has no libseccomp.

    """
    try:
        lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError as error:
        raise PrerequisiteError(
            f"libseccomp can't be loaded: {error}; without it no system call filter can be built",
            hint="apt install libseccomp2",
        ) from error
    context = ctypes.c_void_p
    lib.seccomp_init.restype = context
    lib.seccomp_init.argtypes = (ctypes.c_uint32,)
    lib.seccomp_release.restype = None
    lib.seccomp_release.argtypes = (context,)
    lib.seccomp_attr_set.argtypes = (context, ctypes.c_int, ctypes.c_uint32)
    lib.seccomp_arch_native.restype = ctypes.c_uint32
    lib.seccomp_rule_add_array.argtypes = (
        context,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_ArgumentComparison),
    )
    lib.seccomp_export_bpf.argtypes = (context, ctypes.c_int)
    lib.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
    return lib


def native_architecture() -> int:
    """Return the AUDIT_ARCH token of this process, which is what a filter sees; `uname` may say another."""
    return int(library().seccomp_arch_native())


@functools.cache
def resolve(name: str) -> int | None:
    """Find the number of a system call here, or None if this architecture or this libseccomp has no such name.

    libseccomp answers -1 for a name it never heard of and other negative numbers for names of other
    architectures; neither is a call that could reach this kernel by this table.
    """
    number = int(library().seccomp_syscall_resolve_name(name.encode()))
    return number if number >= 0 else None


class Filter:
    """A filter under construction; a context manager, because libseccomp's state is not Python's."""

    def __init__(self, *, default: int, bad_architecture: int) -> None:
        self._lib = library()
        self._context = ctypes.c_void_p(self._lib.seccomp_init(default))
        if not self._context:
            raise InternalError(f"seccomp_init refused the default action {default:#x}")
        self._set(_ATTRIBUTE_BADARCH, bad_architecture)
        # no_new_privs is set by whoever installs the program; libseccomp never loads it.
        self._set(_ATTRIBUTE_NO_NEW_PRIVS, 0)
        # Before 2.5 there is no binary tree; the filter is then a list: slower, and the same.
        self._lib.seccomp_attr_set(self._context, _ATTRIBUTE_OPTIMIZE, _BINARY_TREE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.seccomp_release(self._context)
        self._context = ctypes.c_void_p()

    def add(self, action: int, number: int, conditions: Sequence[Condition] = ()) -> None:
        """Add one rule; the rules of one call are alternatives, the conditions of one rule all hold.

        A rule without conditions swallows every conditional one of the same call, so a call has
        either one bare rule or only conditional ones; `rules` keeps to it and a test checks.

        Raises:
            PrerequisiteError: this libseccomp or kernel has no such action.

        """
        array = (_ArgumentComparison * len(conditions))(
            *[_ArgumentComparison(c.argument, _MASKED_EQUAL, c.mask, c.value) for c in conditions]
        )
        result = self._lib.seccomp_rule_add_array(self._context, action, number, len(conditions), array)
        if result == -errno.EOPNOTSUPP:
            raise PrerequisiteError(
                f"libseccomp can't build the action {action:#x} for this kernel",
                hint="seccomp notification needs Linux 5.5 and libseccomp 2.5 or later",
            )
        _check(result, f"seccomp_rule_add for system call {number}")

    def export(self) -> bytes:
        """Return the finished program, an array of `struct sock_filter`."""
        descriptor = os.memfd_create("belljar-seccomp", os.MFD_CLOEXEC)
        try:
            _check(self._lib.seccomp_export_bpf(self._context, descriptor), "seccomp_export_bpf")
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)

    def _set(self, attribute: int, value: int) -> None:
        _check(self._lib.seccomp_attr_set(self._context, attribute, value), f"seccomp_attr_set({attribute})")


def _check(result: int, what: str) -> None:
    if result < 0:
        raise InternalError(f"{what} failed: {os.strerror(-result)}")
