"""Hosts that programs need besides the one that people name: pip asks pypi.org, and downloads elsewhere. Pure data.

Only hosts that serve files are here. None takes uploads from its users (`upload.pypi.org` does, so it is not here), and
they are opened for reading alone.
"""

from __future__ import annotations

from typing import NamedTuple

CHECKED = "2026-11"
"""When the documentation of these services was last read for this list."""
READING = ("GET", "HEAD")


class Companion(NamedTuple):
    """A host that comes with another, and the reason."""

    host: str
    why: str


COMPANIONS: dict[str, tuple[Companion, ...]] = {
    "pypi.org": (Companion("files.pythonhosted.org", "pip and uv download packages from it"),),
    "crates.io": (
        Companion("index.crates.io", "cargo reads the index there"),
        Companion("static.crates.io", "cargo downloads crates from it"),
    ),
    "index.crates.io": (Companion("static.crates.io", "cargo downloads crates from it"),),
    "rubygems.org": (Companion("index.rubygems.org", "bundler reads the index there"),),
    "proxy.golang.org": (Companion("sum.golang.org", "go looks up checksums there"),),
    "github.com": (
        Companion("codeload.github.com", "archives of repositories are there"),
        Companion("objects.githubusercontent.com", "files of releases are there"),
        Companion("release-assets.githubusercontent.com", "files of releases are there"),
    ),
}
"""By the host that people name. registry.npmjs.org needs no other."""


def companions(hosts: list[str]) -> list[Companion]:
    """Those of these hosts, each once, without the hosts themselves."""
    found = {one.host: one for host in hosts for one in COMPANIONS.get(host, ()) if one.host not in hosts}
    return list(found.values())
