"""Where things lie in the stage: the mount namespace, private to one Sandbox, from which its jars are made.

/sys              covered: nothing in a stage needs sysfs, every host has the directory, and no source lies there
/sys/src/N        the host directories that the policy names, owners mapped to the jar's user
/sys/jar          belljar's own: /etc, /dev, whiteouts, overlays; the guest sees parts of it, read-only
/sys/data         the guest's own: workspace, upper layers, /tmp; one quota for all of it
"""

from __future__ import annotations

STAGE = "/sys"
SOURCES = f"{STAGE}/src"
TRUSTED = f"{STAGE}/jar"
DATA = f"{STAGE}/data"

ROOT = f"{TRUSTED}/root"
DEV = f"{ROOT}/dev"
MASKS = f"{TRUSTED}/mask"
SCRATCH = f"{TRUSTED}/scratch"
CODE = f"{TRUSTED}/code"
EMPTY = f"{TRUSTED}/empty"
MACHINE = f"{TRUSTED}/machine"
RUNTIMES = f"{TRUSTED}/runtimes"
UPPER = f"{DATA}/upper"
WORK = f"{DATA}/work"
PLAIN = f"{DATA}/plain"
RUNS = f"{DATA}/runs"

RUN = "{run}"
"""Stands for the run's own directory name in a plan's arguments."""

GATE_FD, SECCOMP_FD, ARGS_FD = 4, 3, 5
"""Descriptors that bubblewrap is started with, after 0, 1 and 2."""

JAR_CODE = "/run/jar"
"""Where the code's file is inside the jar."""

ZYGOTE_MACHINE = f"{JAR_CODE}/machine"
"""Where a zygote has the files that cover names of its jars' /proc."""

COMMAND = ".command"
"""The file beside it that tells the gate what to become: the stage writes it, the jar can only read it."""

WARM, SHIM = ".warm", ".wait.cjs"
"""Of a jar that waits with its interpreter up: what the gate becomes first, and what the interpreter waits in."""

OURS = (COMMAND, WARM, SHIM)
"""Names that no code's file can have."""


def source(index: int) -> str:
    """The staged host directory number `index`."""
    return f"{SOURCES}/{index}"


def runtime(index: int) -> str:
    """The staged tree of interpreters number `index`."""
    return f"{RUNTIMES}/{index}"


def inside(path: str) -> str:
    """Where the jar's `path` is in the stage."""
    return ROOT + path
