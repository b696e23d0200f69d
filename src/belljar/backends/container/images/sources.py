"""Where this host's own apt finds its distribution. No mirror is named: it is asked when an image is built."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from belljar.backends.container.engine import engine
from belljar.errors import PrerequisiteError

_DISTRIBUTIONS = ("Debian", "Ubuntu")
_LISTING = "$(CREATED_BY)\t$(ORIGIN)\t$(REPO_URI)\t$(RELEASE)\t$(CODENAME)\t$(COMPONENT)"
_TRANSPORT = re.compile(r"Acquire::(http|https|Retries|Check-Valid-Until|Check-Date|ForceIPv[46])\b")
_SECONDS = 300
ELSEWHERE = (
    "on a host without apt, build images/base/Dockerfile with your engine, or `belljar image build --output FILE` on a "
    "Debian host and `docker load --input FILE` here"
)


@dataclass(frozen=True)
class Sources:
    """A release of the distribution, as lines of a sources.list."""

    release: str
    architecture: str
    lines: tuple[str, ...]
    transport: tuple[str, ...]
    """The host's proxy, certificates and retries; without them its mirror may be out of reach."""


def building_program(name: str, package: str) -> str:
    """The path of a program that building needs. Raises PrerequisiteError with the package that has it."""
    found = engine.find_program(name)
    if not found:
        where = f"apt install {package}" if engine.find_program("apt-get") else ELSEWHERE
        raise PrerequisiteError(f"`{name}` is not installed, and building an image needs it", hint=where)
    return found


def host_sources() -> Sources:
    """The distribution's own archives among the host's apt sources; other vendors' are left out.

    Raises:
        PrerequisiteError: there is no apt here, or its sources name no release or several.

    """
    building_program("apt-get", "apt")
    if not (rows := _rows()):
        _say("apt-get", "update")
        rows = _rows()
    releases = {codename for _uri, _suite, codename, _component in rows if "-" not in codename}
    if len(releases) != 1:
        raise PrerequisiteError(
            f"an image is built from this host's apt sources, and they name {len(releases)} releases",
            hint="`apt-get update` as root, if the package lists are missing; else: " + ELSEWHERE,
        )
    return Sources(
        release=releases.pop(),
        architecture=_say("dpkg", "--print-architecture").strip(),
        lines=tuple(dict.fromkeys(f"deb {uri} {suite} {component}" for uri, suite, _name, component in rows)),
        transport=tuple(
            line for line in _say("apt-config", "dump", "--no-empty", "Acquire").splitlines() if _TRANSPORT.match(line)
        ),
    )


def _rows() -> list[tuple[str, str, str, str]]:
    rows = [line.split("\t") for line in _say("apt-get", "indextargets", "--format", _LISTING).splitlines()]
    return [(row[2], row[3], row[4], row[5]) for row in rows if row[0] == "Packages" and row[1] in _DISTRIBUTIONS]


def python_version() -> str:
    """The version of Python that apt would install, such as `3.11`. Raises PrerequisiteError if it does not say."""
    match = re.search(r"^Version: (\d+\.\d+)", _say("apt-cache", "show", "--no-all-versions", "python3"), re.MULTILINE)
    if not match:
        raise PrerequisiteError("apt does not say which Python it would install", hint="`apt-get update` as root")
    return match[1]


def _say(*command: str) -> str:
    """What a program of apt's says. Raises PrerequisiteError with its complaint."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, errors="replace", env=environment, timeout=_SECONDS
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise PrerequisiteError(f"`{' '.join(command[:2])}` failed: {last}", hint="`apt-get update` as root may help")
    return done.stdout
