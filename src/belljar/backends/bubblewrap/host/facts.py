"""What `compile` has to know about this host, read once. No process is started, and nothing of the host is changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from belljar._startup.records import dataclass, field
from belljar.backends.installations import find_shown, private_paths
from belljar.backends.runtimes import LANGUAGES, Runtime, find_program
from belljar.errors import PrerequisiteError
from belljar.limits.detect import CgroupSupport, Mechanism, detect
from belljar.policy.models import Policy

INSTALL = "apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora), pacman -S bubblewrap (Arch)"

_FREEZING = (6, 16)
"""The first Linux that lets an ordinary user have the data of a layer in another one (data-only, userxattr)."""
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = (
    "ld.so.cache",
    "alternatives",
    "ssl/certs",
    "ssl/openssl.cnf",
    "pki/tls",
    "pki/ca-trust",
    "ca-certificates",
    "localtime",
    "locale.alias",
    "mime.types",
    "fonts",
)


@dataclass(frozen=True, slots=True)
class Host:
    """Facts, as plain data, so that a plan for any host can be compiled on any other."""

    bwrap: str
    root: bool
    home: str
    state: str
    directories: tuple[str, ...]
    """System directories to show read-only."""
    links: tuple[tuple[str, str], ...]
    """System directories that are links: (where, to what)."""
    etc: tuple[str, ...]
    cgroup: CgroupSupport
    runtimes: tuple[Runtime, ...] = ()
    """The interpreters that were found, one for each language."""
    secrets: tuple[str, ...] = field(default=())
    """Paths that no jar may show."""
    veth: bool = True
    """Whether a jar's gateway may be a namespace of its own; whether the kernel can, the stage finds out."""
    freezes: bool = False
    """Whether overlayfs shows an ordinary user's directory with a given set of names; the stage tries it."""

    def runtime(self, language: str) -> Runtime | None:
        """The interpreter for a language, if there is one here."""
        return next((runtime for runtime in self.runtimes if runtime.language == language), None)


def gather(policy: Policy, *, state: str) -> Host:
    """Look at this host. Raises PrerequisiteError when bubblewrap is missing."""
    bwrap = find_bwrap()
    if bwrap is None:
        raise PrerequisiteError("bubblewrap (bwrap) is not installed", hint=INSTALL)
    links, directories = [], ["/usr"]
    for name in _SYSTEM:
        path = f"/{name}"
        if os.path.islink(path):
            links.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            directories.append(path)
    if os.path.isdir("/nix/store"):
        directories.append("/nix/store")
    secrets = private_paths(state)
    return Host(
        bwrap=bwrap,
        root=os.geteuid() == 0,
        home=os.path.expanduser("~"),
        state=state,
        directories=tuple(directories),
        links=tuple(links),
        etc=tuple(name for name in (*_ETC, *_java()) if os.path.exists(f"/etc/{name}")),
        cgroup=cgroup_support(),
        runtimes=tuple(_runtimes(policy, secrets, state)),
        veth=os.environ.get("BELLJAR_VETH") != "none",
        freezes=os.environ.get("BELLJAR_FROZEN_NAMES") != "none" and kernel_version() >= _FREEZING,
        secrets=secrets,
    )


def kernel_version() -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(number) for number in os.uname().release.partition("-")[0].split(".")[:2])


def _java() -> list[str]:
    """Debian's Java has its settings in /etc, and does not start without."""
    return [name for name in os.listdir("/etc") if name.startswith("java-")]


def _runtimes(policy: Policy, secrets: tuple[str, ...], state: str) -> Iterator[Runtime]:
    for language in LANGUAGES:
        with suppress(PrerequisiteError):  # told when someone asks for that language
            found = find_shown(language, policy, secrets)
            yield _with_hidden(found, policy, state) if found.installations else found


def _with_hidden(runtime: Runtime, policy: Policy, state: str) -> Runtime:
    from belljar.backends.hidden_names import with_hidden

    return with_hidden(runtime, policy, state=state)


def find_bwrap() -> str | None:
    """The system's bubblewrap, never one that a workspace or the caller's PATH brought along."""
    return find_program("bwrap", "/usr/bin:/usr/local/bin:/bin:/run/current-system/sw/bin")


@lru_cache(maxsize=1)
def cgroup_support() -> CgroupSupport:
    """Which control groups can be used here; the same for the life of the process."""
    if os.environ.get("BELLJAR_CGROUP") == "none":
        return CgroupSupport(Mechanism.NONE, missing=dict.fromkeys(("memory", "cpu", "pids"), "BELLJAR_CGROUP=none"))
    return detect()
