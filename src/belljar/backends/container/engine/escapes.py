"""Known ways out of runc, and whether one is open here: pure, over version, package and what its changelog names.

Three answers matter. Fixed. Open, but not for code in a jar of ours, because what the attack needs is not there: then
belljar says so and runs. Open and within reach: then nothing is run. A distribution fixes an old version without
changing its number, so the package's own version and changelog count as much as the number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

_INSTALL = (
    "install a newer runc: the distribution's (sudo apt update && sudo apt install --only-upgrade runc), "
    "or docker's own packages (containerd.io), or runc 1.3.6 or later "
    "(https://github.com/opencontainers/runc/releases); or use backend: gvisor"
)


class EscapeVerdict(StrEnum):
    """Whether a known escape is open."""

    FIXED = "fixed"
    UNREACHABLE = "unreachable"
    """Open, but it needs what a jar of belljar's does not have."""
    REACHABLE = "reachable"
    UNKNOWN = "unknown"
    """The runtime does not tell its version."""


class Use(StrEnum):
    """What a plan does that brings some attack within reach. A plain jar does none of it."""

    TERMINAL = "a terminal"
    MOUNT = "a mount on or below /dev, /proc or /sys, or below a directory that running code writes to"
    IMAGE = "an image from a stranger"


class _Escape(NamedTuple):
    """One vulnerability: the version that fixed it in each series, and what it takes (None: nothing)."""

    cve: str
    fixed: tuple[str, ...]
    needs: frozenset[Use] | None


# The advisory of the 2025 ones (oss-security, 2025-11-05): "all of these attacks rely on starting containers with
# custom mount configurations"; two of them also need root in the container. Code in a jar chooses neither image nor
# mounts nor user, and the containers of a Sandbox share nothing but directories bound at places of the plan's. 2026's
# needs an image whose /dev is a link. 2024's can be had through a working directory that code made: always in reach.
_MOUNTS = frozenset({Use.MOUNT, Use.IMAGE})
ESCAPES = (
    _Escape("CVE-2024-21626", ("1.1.12",), None),
    _Escape("CVE-2025-31133", ("1.2.8", "1.3.3", "1.4.0-rc.3"), _MOUNTS),
    _Escape("CVE-2025-52565", ("1.2.8", "1.3.3", "1.4.0-rc.3"), _MOUNTS | {Use.TERMINAL}),
    _Escape("CVE-2025-52881", ("1.2.8", "1.3.3", "1.4.0-rc.3"), _MOUNTS),
    _Escape("CVE-2026-41579", ("1.3.6", "1.4.3", "1.5.0-rc.3"), frozenset({Use.IMAGE})),
)

# Packages with a fix that their upstream version lacks: the version up to its last number, from which number on, what.
# Debian: DSA-5615-1. Ubuntu: USN-6619-1.
_BACKPORTS = (
    ("1.1.5+ds1-1+deb12u", 1, "CVE-2024-21626"),
    ("1.0.0~rc93+ds1-5+deb11u", 3, "CVE-2024-21626"),
    ("1.1.7-0ubuntu1~20.04.", 2, "CVE-2024-21626"),
    ("1.1.7-0ubuntu1~22.04.", 2, "CVE-2024-21626"),
    ("1.1.7-0ubuntu2.", 2, "CVE-2024-21626"),
)


@dataclass(frozen=True, slots=True)
class EscapeJudgement:
    """What is open, and what to do."""

    verdict: EscapeVerdict
    text: str
    open: tuple[str, ...] = ()
    hint: str = ""


def judge(
    version: str,
    *,
    package: str = "",
    named: frozenset[str] = frozenset(),
    uses: frozenset[Use] = frozenset(),
) -> EscapeJudgement:
    """Judge a runc by its `version`, its package's, the CVEs that the package's changelog names, and its use.

    A package of another version than the engine tells is not the one that is used, and counts for nothing.
    """
    number = _parse(version) or _parse(package)
    if number != (_parse(package) or number):
        package, named = "", frozenset()
    told = f"runc {package or version or 'of unknown version'}"
    if number is None:
        return EscapeJudgement(
            EscapeVerdict.UNKNOWN, f"{told}: nobody can tell whether a known escape is fixed in it", hint=_INSTALL
        )
    backported = named | _backports(package) | _backports(version)  # a Debian docker tells the package's version
    still = [escape for escape in ESCAPES if escape.cve not in backported and not _is_fixed(number, escape.fixed)]
    if not still:
        return EscapeJudgement(EscapeVerdict.FIXED, f"{told}: no known escape")
    cves = tuple(escape.cve for escape in still)
    reachable = [escape.cve for escape in still if escape.needs is None or escape.needs & uses]
    if reachable:
        text = f"{told} has a known escape that code in a jar could use: {', '.join(reachable)}"
        return EscapeJudgement(EscapeVerdict.REACHABLE, text, cves, _INSTALL)
    text = f"{told} lacks fixes ({', '.join(cves)}); they need mounts, images or terminals that a jar does not get"
    return EscapeJudgement(EscapeVerdict.UNREACHABLE, text, cves, _INSTALL)


_Number = tuple[int, int, int, int, int]
_RELEASE = 1


def _parse(version: str) -> _Number | None:
    """`v1.2.5-0-g59923ef`, `1.1.5+ds1`, `1.4.0-rc.3`, `1.0.0~rc93+ds1`: comparable, a candidate before its release."""
    found = re.match(r"(?:\d+:)?v?(\d+)\.(\d+)\.(\d+)(?:[-~_.]?(rc)[.~-]?(\d+))?", version)
    if found is None:
        return None
    major, minor, patch, candidate, count = found.groups()
    return int(major), int(minor), int(patch), 0 if candidate else _RELEASE, int(count or 0)


def _is_fixed(number: _Number, fixed: tuple[str, ...]) -> bool:
    """Whether a version has the fix: that of its own series, or it is of a later series than the last that had one."""
    numbers = [parsed for text in fixed if (parsed := _parse(text))]
    series = [each for each in numbers if each[:2] == number[:2]]
    return number >= (series[0] if series else max(numbers))


def _backports(package: str) -> frozenset[str]:
    found = set()
    for stem, least, cve in _BACKPORTS:
        count = re.match(r"\d+", package.removeprefix(stem)) if package.startswith(stem) else None
        if count is not None and int(count.group()) >= least:
            found.add(cve)
    return frozenset(found)
