"""Debian's record of what is installed: read, and cut down to what the wanted packages need. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

STATUS = "var/lib/dpkg/status"
_DEPENDS = ("Pre-Depends", "Depends")


@dataclass(frozen=True)
class Package:
    """One installed package."""

    name: str
    version: str
    architecture: str
    needs: tuple[tuple[str, ...], ...]
    """Each a list of alternatives."""
    provides: tuple[str, ...]
    stanza: str
    """Its paragraph of the record, as it was."""


def read_status(text: str) -> list[Package]:
    """Every package of a `status` file that is installed."""
    found = [_package(stanza) for stanza in text.split("\n\n") if stanza.strip()]
    return [package for package in found if package is not None]


def _package(stanza: str) -> Package | None:
    fields = _fields(stanza)
    if "Package" not in fields or not fields.get("Status", "").endswith(" installed"):
        return None
    needs = tuple(group for name in _DEPENDS for group in _groups(fields.get(name, "")))
    provides = tuple(name for group in _groups(fields.get("Provides", "")) for name in group)
    version, architecture = fields.get("Version", ""), fields.get("Architecture", "")
    return Package(fields["Package"], version, architecture, needs, provides, stanza.strip("\n") + "\n")


def _fields(stanza: str) -> dict[str, str]:
    lines = (line.partition(":") for line in stanza.splitlines() if line[:1].strip())
    return {name: value.strip() for name, _colon, value in lines}


def _groups(text: str) -> Iterator[tuple[str, ...]]:
    """`a (>= 1), b | c:any` as (a,), (b, c)."""
    for group in filter(None, (part.strip() for part in text.split(","))):
        yield tuple(re.split(r"[\s:(]", choice.strip(), maxsplit=1)[0] for choice in group.split("|"))


def needed(packages: Iterable[Package], roots: Iterable[str], never: Collection[str]) -> set[str]:
    """The names of the packages that `roots` need to work, `never` these."""
    installed = {package.name: package for package in packages}
    providers: dict[str, list[str]] = {}
    for package in installed.values():
        for name in (package.name, *package.provides):
            providers.setdefault(name, []).append(package.name)
    kept: set[str] = set()
    open_names = [name for root in roots for name in providers.get(root, [])]
    while open_names:
        name = open_names.pop()
        if name in kept or name in never:
            continue
        kept.add(name)
        open_names += [found for group in installed[name].needs for found in _satisfying(group, installed, providers)]
    return kept


def _satisfying(group: tuple[str, ...], installed: Collection[str], providers: dict[str, list[str]]) -> list[str]:
    """Those of the alternatives that are installed by their own name, or else by another's."""
    if direct := [name for name in group if name in installed]:
        return direct
    return [found for name in group for found in providers.get(name, [])]
