"""Paths of a policy: where a mount may lie in the jar, and which directory of the host it may show."""

from __future__ import annotations

import os
import posixpath

WORKSPACE = "/workspace"
RESERVED = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr",
    "/var", "/.belljar",
)  # fmt: skip
"""What the jar makes itself; a mount there would break it or undo what it hides."""
PRIVATE_TEMPORARY = "/tmp"
"""Every run has its own. A mount may lie beneath it, not in its place."""
_NEVER_BENEATH = ("/proc", "/sys")
_NEVER = ("/", "/dev", *_NEVER_BENEATH)
_LONGEST = 1024
_MOST_LINKS = 64
"""The kernel follows 40."""


class PathError(ValueError):
    """The path can't be used; the text says what was wanted and what was found."""


def can_be_named(text: str) -> bool:
    """Whether the operating system takes `text` as a path at all."""
    try:
        return bool(text) and b"\0" not in os.fsencode(text) and len(text) <= _LONGEST
    except UnicodeEncodeError:
        return False


def beneath(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or lies in it, by name alone: both are absolute and normal."""
    return directory in ("/", path) or path.startswith(directory + "/")


def jar_path(text: str) -> str:
    """A path in the jar, normal.

    Raises:
        PathError: when it is not absolute or climbs.

    """
    if not text.startswith("/"):
        raise PathError(f"wanted an absolute path in the jar, found {text[:60]!a}")
    if ".." in text.split("/"):
        raise PathError(f"wanted a path without '..', found {text[:60]!a}")
    if not text.isprintable() or len(text) > _LONGEST:
        raise PathError(f"wanted at most {_LONGEST} printable characters, found {text[:60]!a}")
    return posixpath.normpath("/" + text.strip("/"))


def mount_path(text: str) -> str:
    """A path in the jar at which a mount may lie.

    Raises:
        PathError: when the jar needs the place itself.

    """
    path = jar_path(text)
    whole = path if path in ("/", PRIVATE_TEMPORARY) else None
    taken = whole or next((place for place in RESERVED if beneath(path, place)), None)
    if taken:
        raise PathError(f"wanted a directory of its own, such as /data, found {path}: {taken} is the jar's own")
    return path


def host_path(text: str, base: str) -> str:
    """A path of the host, every link resolved. A relative one is taken from `base` and stays beneath it.

    Raises:
        PathError: when it is nothing, or leaves `base`.

    """
    if not can_be_named(text):
        raise PathError(f"wanted a path, found {text[:60]!a}")
    if text == "~" or text.startswith("~/"):
        raise PathError(f"wanted a path without '~', found {text[:60]!a}")
    resolved = real_path(os.path.join(base, text))
    if not os.path.isabs(text) and not beneath(resolved, os.path.realpath(base)):
        raise PathError(f"wanted an absolute path, or one beneath {base}, found {text[:60]!a}, which leaves it")
    return resolved


def mount_source(text: str, base: str) -> str:
    """A directory of the host that may be shown in the jar.

    Raises:
        PathError: when it is not there, is no directory, or holds the host itself.

    """
    path = host_path(text, base)
    if path in _NEVER or any(beneath(path, place) for place in _NEVER_BENEATH):
        raise PathError(f"wanted a directory of files, found {path}, which is the host itself")
    if not os.path.exists(path):
        raise PathError(f"wanted a directory that exists, found {text[:60]!a}, which does not")
    if not os.path.isdir(path):
        raise PathError(f"wanted a directory, found {text[:60]!a}, which is not one")
    if not os.access(path, os.R_OK | os.X_OK):
        raise PathError(f"wanted a directory that you may read, found {text[:60]!a}, which you may not")
    return path


def real_path(path: str) -> str:
    """The path with every link resolved. A link that code could have made, in a directory that was live, is refused.

    Raises:
        PathError: there is such a link on the way, or more links than anybody needs.

    """
    links, end = _followed(path)
    if len(links) > _MOST_LINKS:
        raise PathError(f"wanted a path, found {path[:60]!a}, which leads through more than {_MOST_LINKS} links")
    if links:
        from belljar.policy.live_places import first_inside

        if link := first_inside(links):
            raise PathError(
                f"wanted a path without links of the code's, found {path[:200]!a}: {link[:200]!a} is a link in a "
                f"directory that code could write (--live); if that is right, name the place itself: {end[:200]}"
            )
    return end


def visited(path: str) -> set[str]:
    """Every place that opening `path` goes through last: the path itself and each link on its way, to the end.

    Whoever can write to a directory that holds one of them can choose what is opened.
    """
    links, end = _followed(path)
    return {os.path.abspath(path), *links, end}


def _followed(path: str) -> tuple[list[str], str]:
    """The links that the kernel follows to open `path`, and where that ends: at most one more than _MOST_LINKS."""
    links: list[str] = []
    waiting = (path if os.path.isabs(path) else os.path.join(os.getcwd(), path)).split("/")
    current = "/"
    while waiting and len(links) <= _MOST_LINKS:
        name = waiting.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current)
            continue
        step = os.path.join(current, name)
        try:
            target = os.readlink(step)
        except OSError:
            current = step
            continue
        links.append(step)
        waiting = target.split("/") + waiting
        current = "/" if target.startswith("/") else current
    return links, current
