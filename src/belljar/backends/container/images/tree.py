"""The files of an image: from what mmdebstrap made to what a jar needs, the same for the same packages. Pure.

Nothing is unpacked: members of one tar file are chosen, straightened and written to another.
"""

from __future__ import annotations

import copy
import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from belljar.backends.container.images.packages import STATUS, Package, needed, read_status
from belljar.backends.container.images.recipe import EPOCH, HOME, NEVER, ROOTS, USER, USER_ID, Recipe

Entry = tuple[tarfile.TarInfo, bytes | None]
"""A member, and its content if it is ours and not the tar file's."""

_LISTS = re.compile(r"var/lib/dpkg/info/([^/:]+)(?::[^/]+)?\.list")
# Traces of installing, of this build or of the host; character sets that nobody meets; what tests Python itself.
_DROPPED = re.compile(
    r"(dev|proc|sys|run|tmp|boot|media|mnt|srv|home|root|opt|workspace)/.*"
    r"|etc/(apt|dpkg|init\.d|rc.\.d|cron.*|systemd|logrotate\.d|pam\.d|pam\.conf|security|update-motd\.d|default|skel)(/.*)?"
    r"|etc/(\.pwd\.lock|[^/]*-|machine-id|g?shadow|subuid|subgid|fstab|motd|issue.*|debconf\.conf|ld\.so\.cache~)"
    r"|etc/(resolv\.conf|hostname|hosts|passwd|group)"
    r"|var/(cache|log|backups|mail|local|opt|spool)/.*"
    r"|var/lib/(?!dpkg/status$).*"
    r"|usr/share/(doc|man|locale|info|lintian|doc-base|bash-completion|bug|pixmaps|debconf|menu|apport|keyrings)(/.*)?"
    r"|usr/lib/(systemd|apt|dpkg|udev|init|tmpfiles\.d|sysusers\.d)(/.*)?"
    r"|usr/lib/python3[^/]*/(test|ensurepip|idlelib|turtledemo)(/.*)?"
    r"|usr/lib/python3[^/]*/lib-dynload/(_test|_ctypes_test|_xxtest|xxlimited).*"
    r"|usr/lib/[^/]+/gconv/(?!gconv-modules|ISO8859-1\.|ISO8859-15\.|CP1252\.|UTF-(7|16|32)\.|UNICODE\.|EUC-JP\.|"
    r"SJIS\.|GB18030\.|BIG5\.|EUC-KR\.).*"
    r"|usr/(games|src|include)/.*"
    r"|usr/share/.*/__pycache__(/.*)?"
)
_MADE = (
    ("dev", 0o755, 0),
    ("proc", 0o755, 0),
    ("sys", 0o755, 0),
    ("run", 0o755, 0),
    ("run/jar", 0o755, USER_ID),
    ("run/lock", 0o755, 0),
    ("tmp", 0o1777, 0),
    (HOME.lstrip("/"), 0o700, USER_ID),
    ("var/tmp", 0o1777, 0),
    ("workspace", 0o755, USER_ID),
)
_WRITTEN = {
    "etc/passwd": f"root:x:0:0:root:/:/usr/bin/false\n{USER}:x:{USER_ID}:{USER_ID}:{USER}:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/bin/false\n",
    "etc/group": f"root:x:0:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n",
    "etc/resolv.conf": "",
    "etc/hostname": "",
    "etc/hosts": "",
}


@dataclass(frozen=True)
class Tree:
    """What an image consists of."""

    entries: tuple[Entry, ...]
    """Sorted by name, directories before what is in them."""
    packages: tuple[Package, ...]


def straighten(root: tarfile.TarFile, recipe: Recipe) -> Tree:
    """Choose from everything that was installed."""
    members = {_name(member): member for member in root}
    packages = read_status(_read(root, members[STATUS]))
    kept = needed(packages, (*ROOTS, *recipe.packages), NEVER)
    unwanted = _files_of_the_others(root, members, kept)
    staying = tuple(package for package in packages if package.name in kept)
    entries: dict[str, Entry] = {
        name: (_straight(member), None)
        for name, member in members.items()
        if name and name not in unwanted and not _DROPPED.fullmatch(name) and not member.isdev()
    }
    _order_hard_links(entries, members)
    _remove_dangling(entries)
    entries |= {name: (_directory(name, mode, owner), None) for name, mode, owner in _MADE}
    written = _WRITTEN | {STATUS: "\n".join(package.stanza for package in staying)}
    entries |= {name: _file(name, text.encode()) for name, text in written.items()}
    return Tree(tuple(entries[name] for name in sorted(entries, key=_in_order)), staying)


def _in_order(name: str) -> list[str]:
    return name.split("/")


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix(".").strip("/")


def _read(root: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = root.extractfile(member)
    return file.read().decode(errors="replace") if file else ""


def _files_of_the_others(root: tarfile.TarFile, members: dict[str, tarfile.TarInfo], kept: set[str]) -> set[str]:
    """Every path that only packages have which do not stay, but directories that hold something else."""
    here: set[str] = set()
    others: set[str] = set()
    for name, member in members.items():
        if match := _LISTS.fullmatch(name):
            paths = {_merged(path.strip("/"), members) for path in _read(root, member).splitlines()}
            (here if match[1] in kept else others).update(paths)
    gone = others - here
    return gone - {above for name in members if name not in gone for above in _ancestors(name)}


def _ancestors(name: str) -> Iterator[str]:
    while name := name.rpartition("/")[0]:
        yield name


def _merged(path: str, members: dict[str, tarfile.TarInfo]) -> str:
    """`bin/sed` lies in `usr/bin` where /bin is a link to it."""
    first, slash, rest = path.partition("/")
    link = members.get(first)
    return f"{link.linkname.strip('/')}{slash}{rest}" if link is not None and link.issym() and slash else path


def _straight(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same without a time, a name of an owner, or a bit that lends someone's rights."""
    straight = copy.copy(member)
    straight.name = _name(member)
    if member.islnk():
        straight.linkname = member.linkname.removeprefix(".").strip("/")
    straight.mode = 0o777 if member.issym() else member.mode & 0o755
    straight.mtime = EPOCH
    straight.uid = straight.gid = 0
    straight.uname = straight.gname = ""
    straight.pax_headers = {}
    return straight


def _order_hard_links(entries: dict[str, Entry], members: dict[str, tarfile.TarInfo]) -> None:
    """Of several names of one file, the first in order is the file and the others are links to it."""
    groups: dict[str, list[str]] = {}
    for name, (member, _content) in entries.items():
        if member.islnk():
            groups.setdefault(member.linkname, []).append(name)
    for target, links in groups.items():
        first, *rest = sorted([*links, *([target] if target in entries else [])], key=_in_order)
        file = _straight(members[target])
        file.name = first
        entries[first] = (file, None)
        for name in rest:
            link = copy.copy(file)
            link.name, link.type, link.linkname, link.size = name, tarfile.LNKTYPE, first, 0
            entries[name] = (link, None)


def _remove_dangling(entries: dict[str, Entry]) -> None:
    """Links of /etc/alternatives whose program has gone with its package, and the links to them."""
    for name, (member, _content) in list(entries.items()):
        if name.startswith("etc/alternatives/") and member.issym() and not _present(member.linkname[1:], entries):
            del entries[name]
    for name, (member, _content) in list(entries.items()):
        if member.issym() and member.linkname.startswith("/etc/alternatives/") and member.linkname[1:] not in entries:
            del entries[name]


def _present(target: str, entries: dict[str, Entry]) -> bool:
    first, _slash, rest = target.partition("/")
    link = entries.get(first)
    return target in entries or (link is not None and link[0].issym() and f"{link[0].linkname}/{rest}" in entries)


def _directory(name: str, mode: int, owner: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = tarfile.DIRTYPE, mode, EPOCH
    member.uid = member.gid = owner
    return member


def _file(name: str, content: bytes) -> Entry:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o644, EPOCH
    return member, content


def contents(root: tarfile.TarFile, entries: Iterable[Entry]) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Each member with a file to read its content from."""
    for member, content in entries:
        if content is not None:
            yield member, io.BytesIO(content)
        else:
            yield member, root.extractfile(member) if member.isreg() else None
