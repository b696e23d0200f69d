"""Which package a program belongs to, of which version, and which CVEs the package's changelog says it fixed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache

_SECONDS = 5.0
_MOST_BYTES = 4 * 1024 * 1024
_DPKG = "/var/lib/dpkg/info"
_LIKELY = ("runc", "containerd.io", "runc-app", "runc-stable", "moby-runc")
_CHANGELOGS = ("/usr/share/doc/{}/changelog.Debian.gz", "/usr/share/doc/{}/changelog.gz")
_CVE = re.compile(r"CVE-\d{4}-\d{4,}")


@dataclass(frozen=True, slots=True)
class PatchLevel:
    """Empty and without names for a program that no package owns."""

    package: str = ""
    version: str = ""
    fixed: frozenset[str] = frozenset()


@cache
def patch_level(program: str) -> PatchLevel:
    """What the system's packages know of a program."""
    path = os.path.realpath(program)
    if os.path.isdir(_DPKG):
        return _debian(path)
    return _rpm(path)


def _debian(path: str) -> PatchLevel:
    package = _debian_owner(path)
    if not package:
        return PatchLevel()
    changelog = _read_changelog(package)
    head = re.match(r"\S+ \(([^)]+)\)", changelog)
    version = head.group(1) if head else _ask("dpkg-query", "-W", "-f", "${Version}", package)
    return PatchLevel(package, version, frozenset(_CVE.findall(changelog)))


def _debian_owner(path: str) -> str:
    """By the lists of the likely packages; asking dpkg reads those of all of them."""
    for package in _LIKELY:
        with contextlib.suppress(OSError), open(f"{_DPKG}/{package}.list") as file:
            if path in file.read().splitlines():
                return package
    return _ask("dpkg-query", "-S", path).partition(":")[0].strip()


def _read_changelog(package: str) -> str:
    import gzip

    for place in _CHANGELOGS:
        with contextlib.suppress(OSError, EOFError), gzip.open(place.format(package)) as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    return ""


def _rpm(path: str) -> PatchLevel:
    owner = _ask("rpm", "-qf", "--qf", "%{NAME} %{VERSION}-%{RELEASE}", path)
    package, _, version = owner.partition(" ")
    if not version:
        return PatchLevel()
    return PatchLevel(package, version, frozenset(_CVE.findall(_ask("rpm", "-q", "--changelog", package))))


def _ask(*command: str) -> str:
    """What a package tool prints; nothing if it is not there, fails or hangs."""
    from belljar.backends.container.engine.engine import find_program

    program = find_program(command[0])
    if program is None:
        return ""
    try:
        ended = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout[:_MOST_BYTES].decode(errors="replace").strip() if ended.returncode == 0 else ""
