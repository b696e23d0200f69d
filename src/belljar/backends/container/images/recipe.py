"""What goes into an image that belljar builds: a few Debian packages, and nothing that would install more. Pure.

The digest of a recipe says what was asked for. The image's own ID says what came out: with the same packages in the
mirror, it is the same on every machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from belljar.errors import UsageError

VERSION = "1"
"""The tag of the base image. A change of what is below, or of how the layer is made, is a new version."""

REPOSITORY = "belljar-base"
DATE = "2026-11-16T00:00:00Z"
"""Written into every image as the time of its creation, and into every file as its time of change."""
EPOCH = 1794787200
"""The same in seconds."""

ROOTS = (
    *("base-files", "base-passwd", "ca-certificates", "libc-bin", "ncurses-base", "tzdata"),
    *("bash", "coreutils", "dash", "debianutils", "diffutils", "findutils", "grep", "gzip", "hostname", "mawk"),
    *("nodejs", "python3", "sed", "tar"),
)
"""The packages that are wanted. What they depend on comes along; what only installing needs is taken out again."""

NEVER = (
    *("adduser", "apt", "cdebconf", "debconf", "debian-archive-keyring", "dpkg", "gpgv", "init-system-helpers"),
    *("libapt-pkg6.0", "libpam-modules", "libpam-modules-bin", "libpam-runtime", "login", "mount", "passwd"),
    *("sysvinit-utils", "usr-is-merged", "usrmerge"),
)
"""Left out even if something depends on them: they install packages or change users, and a jar does neither."""

USER, USER_ID, HOME = "jar", 1000, "/tmp/home"
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
# A name, extras, versions. No path and no address: pip would build what it finds there, and building runs its code.
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]+\])?\s*([<>=!~][<>=!~ A-Za-z0-9.*+,_-]*)?")
_NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is asked for."""

    name: str = f"{REPOSITORY}:{VERSION}"
    packages: tuple[str, ...] = ()
    """Debian packages beside those of the base image."""
    requirements: tuple[str, ...] = ()
    """Python packages, as pip reads them."""

    def digest(self, *, release: str, architecture: str, code: str) -> str:
        """Changes when the image would come out different because of us; a newer Debian package does not change it.

        `code` stands for the code that makes the image.
        """
        import hashlib
        import json

        asked: dict[str, object] = {"version": VERSION, "date": DATE, "roots": ROOTS, "never": NEVER, "code": code}
        asked |= {"name": self.name, "packages": self.packages, "requirements": self.requirements}
        asked |= {"release": release, "architecture": architecture}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def make_recipe(name: str | None, packages: list[str], requirements: list[str]) -> Recipe:
    """The recipe of what was asked for. Raises UsageError for a name that none has."""
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            raise UsageError(f"{package!r} is no name of a Debian package", hint="such as --with git")
    for requirement in requirements:
        if not _REQUIREMENT.fullmatch(requirement):
            raise UsageError(f"{requirement!r} is no name of a Python package", hint="such as --pip 'numpy>=2'")
    if (packages or requirements) and name is None:
        raise UsageError("an image with more in it than the base image needs a name of its own", hint="--name my-image")
    if name is None:
        return Recipe()
    return Recipe(image_name(name), tuple(sorted(set(packages))), tuple(sorted(set(requirements))))


def image_name(name: str) -> str:
    """`name` with a tag. Raises UsageError for what is none, or is the base image's."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of an image", hint="small letters, digits, . _ - and /: my-image:1")
    tagged = name if ":" in name else f"{name}:latest"
    if tagged.partition(":")[0] == REPOSITORY:
        raise UsageError(f"{REPOSITORY} is the base image's own name", hint="--name my-image")
    return tagged
