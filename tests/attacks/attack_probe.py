"""Probes: small programs that try one thing and say how it went, in a jar or in a control.

A Python probe defines `attack(*arguments)`: it returns a text if the attack succeeded, and raises OSError if it was
refused. What is around it prints one line: `ESCAPED: …` or `HELD: …` with the name of the error. A process that was
killed by a signal said nothing, and for some attacks (a 32-bit call) that is how a jar refuses.
"""

from __future__ import annotations

import textwrap

from belljar import RunResult

_BEFORE = '''\
import ctypes, errno, os, signal, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    """A system call by its number."""
    as_long = lambda a: a if isinstance(a, bytes) or not isinstance(a, int) else ctypes.c_long(a)
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(as_long, arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def judged(number, *arguments):
    """Whether the kernel itself looked at the call: it answers something else than a filter does."""
    try:
        call(number, *arguments)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise
        return f"the kernel answered {errno.errorcode[error.errno]}"
    return "it succeeded"

def option_reaches_the_kernel(level, name):
    """Whether setsockopt gets as far as the kernel with this option; no filter answers EBADF."""
    try:
        call(54, -1, level, name, 0, 0)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
    return "the kernel looked for the socket"

def core_limit(*arguments):
    """Whether the kernel may start a program for a core, as root: at any limit but 1. The call must succeed."""
    import resource
    call(*arguments)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if soft == hard == 1:
        raise OSError(errno.EPERM, "it is 1")
    return f"it is {soft}, {hard}"

def beside():
    """A process of the same user in the same place, which holds nobody up."""
    return subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid

def own_group():
    """Be in a process group of one's own, unless one leads it already."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)

def victim(argument):
    """The process to attack: one on the host, named by its pid, or in a control one that is started here."""
    if argument != "spawn":
        return int(argument)
    return subprocess.Popen(["sleep", "20"]).pid
'''

_AFTER = """
try:
    said = attack(*sys.argv[1:])
except OSError as error:
    print("HELD:", errno.errorcode.get(error.errno, "?"), error, flush=True)
else:
    print("ESCAPED:", said, flush=True)
"""


def python_probe(body: str) -> str:
    """The whole program of a Python probe."""
    return f"{_BEFORE}\n{textwrap.dedent(body).strip()}\n{_AFTER}"


def escaped(text: str) -> bool:
    """Whether a probe succeeded. A probe says exactly one thing; one that says nothing, or two things, is broken."""
    verdicts = [line for line in text.splitlines() if line.startswith(("ESCAPED:", "HELD:"))]
    assert len(verdicts) == 1, f"the probe did not say how it went: {text[-2000:]!r}"
    return verdicts[0].startswith("ESCAPED:")


def answer(text: str) -> str:
    """The name of the error with which a probe was refused."""
    assert not escaped(text), text
    return next(line for line in text.splitlines() if line.startswith("HELD:")).split()[1]


def refused_by_the_jar(result: RunResult, control: str, *, call: str = "") -> None:
    """Where a host has nothing to attack, so that no control gets through: it was still the jar that refused.

    The jar answers otherwise than this host's kernel does. Where both say the same, the jar's report names the `call`.
    """
    if escaped(control):
        return
    if (result.signal or answer(result.stdout)) == answer(control):
        assert call, f"nothing tells the jar's answer from the kernel's own: {control}"
        assert call in [denial.target for denial in result.denials if denial.kind == "syscall"], (result, control)


def held(result: RunResult) -> bool:
    """Whether the jar held: the probe was refused, or killed for trying."""
    if "ESCAPED" in result.stdout:
        return False
    if result.signal == "SIGSYS":
        return True
    assert not escaped(result.stdout + result.stderr), result
    return True
