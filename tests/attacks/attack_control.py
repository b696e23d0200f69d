"""Controls: the place where the same probe must succeed, so that a broken probe can't pass for a jar that holds.

Never the machine itself, and never root: an ordinary user's process in new user, mount, pid and (unless the probe needs
the listeners of the test) network namespaces, for a few seconds. Nothing that a probe does there outlasts it.

Where an ordinary user lacks the thing to attack, or has too much to lose, a `setup` makes it in those namespaces first:
a tmpfs of the control's own, a file that is open to everyone, a root directory in which somebody forgot something.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

CONTROL_UID = 61_234
"""When the tests are root: a user id that nobody has."""

_SECONDS = 30


def ordinary_user() -> list[str]:
    """What to put before a command so that it does not run as root."""
    if os.geteuid() != 0:
        return []
    drop = [f"--reuid={CONTROL_UID}", f"--regid={CONTROL_UID}", "--clear-groups", "--inh-caps=-all"]
    return ["setpriv", *drop, "--"]


@cache
def python() -> str:
    """An interpreter that the ordinary user may execute."""
    for candidate in ("/usr/bin/python3", "/usr/local/bin/python3", os.path.realpath(sys.executable)):
        done = subprocess.run([*ordinary_user(), candidate, "-I", "-c", ""], cwd="/", capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    raise AssertionError("no Python for an ordinary user; apt-get install python3")


def own_tmp(options: str = "size=96m") -> str:
    """A setup: /tmp and /dev/shm are memory of the control's own, and it starts in /tmp."""
    one = f"mount -t tmpfs -o mode=1777,{options} control"
    return f"{one} /tmp; {one} /dev/shm; cd /tmp"


def open_file(path: str) -> str:
    """A setup: `path` is a plain file with a text in it that everyone may read and write."""
    return f"mount -t tmpfs control {os.path.dirname(path)}; echo text >{path}; chmod 666 {path}"


def forgetful_root(place: str, forgotten: str) -> str:
    """A setup: a new root at `place` with all of the host's directories, its old root still mounted at `forgotten`.

    What a builder of jars leaves behind who does not unmount. Needs root of the namespace.
    """
    top = f"/{forgotten.split('/')[1]}"
    return f"""
        mount -t tmpfs control {place}; cd {place}
        for each in /*; do
            if [ -L $each ]; then cp -P $each .; elif [ -d $each ]; then mkdir .$each; mount --rbind $each .$each; fi
        done
        mkdir -p workspace
        {f"mount -t tmpfs control .{top}" if top != forgotten else ""}
        mkdir -p .{forgotten}; mount --rbind / .{forgotten}
        set -- /usr/sbin/chroot . "$@"
    """


def namespaces(*, root: bool, network: bool, setup: str = "") -> list[str]:
    """The command that makes the throw-away namespaces."""
    user = ["--map-root-user"] if root else ["--map-current-user", *(["--keep-caps"] if setup else [])]
    own = [
        "--mount",
        "--uts",
        "--ipc",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        *([] if network else ["--net"]),
    ]
    made = ["unshare", "--user", *user, *own, "--"]
    if setup:
        drop = "" if root else "setpriv --inh-caps=-all --ambient-caps=-all --"
        made += ["/bin/sh", "-ec", f'{setup}\nexec {drop} "$@"', "setup"]
    return made


def control(
    argv: Sequence[str],
    *,
    root: bool = False,
    network: bool = False,
    cwd: str = "/",
    env: dict[str, str] | None = None,
    stdin: str = "",
    setup: str = "",
) -> str:
    """What a command says in a control.

    Args:
        argv: the command.
        root: root *of its own user namespace*, which is nobody outside of it.
        network: with the network namespace of the tests, whose loopback has the listeners of the test.
        cwd: where it starts.
        env: its environment.
        stdin: what it reads.
        setup: lines of shell that prepare its namespaces, with their privileges; the command has them if it is `root`.
    """
    command = [*ordinary_user(), *namespaces(root=root, network=network, setup=setup), *argv]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
        start_new_session=True,  # a process group is not a namespace's: a probe that signals its group means itself
    )
    return done.stdout + done.stderr


def python_control(code: str, *arguments: str, **options: object) -> str:
    """What a Python program says in a control."""
    return control([python(), "-I", "-c", code, *arguments], **options)  # type: ignore[arg-type]
