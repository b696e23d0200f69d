"""The lists of users and groups of a Sandbox whose user id is its own: the image's, with a name for that id.

Runs in the volume server, which has the image's own files in its /etc. The runs' containers have the new ones there.
"""

from __future__ import annotations

import os

USER_FILE_BYTES = 4096
"""Bytes that each of the files may have: one page of the volume."""


def write_user_files(directory: int, user: int, *, instead_of: int, home: str, image: str = "/etc") -> None:
    """Write `passwd` and `group` into a directory, made from those in `image`.

    `user` has the name that `instead_of` has there, or `jar`.
    """
    missing = {"passwd": f"jar:x:{user}:{user}:jar:{home}:/bin/sh", "group": f"jar:x:{user}:"}
    for name, line in missing.items():
        content = _with_user(f"{image}/{name}", user, instead_of, line)
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=directory)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)


def _with_user(path: str, user: int, instead_of: int, missing: str) -> bytes:
    """Return an image's /etc/passwd or /etc/group in which the number `instead_of` is `user`.

    Where no line has that number, `missing` is added. A file that does not fit into a page is replaced by three lines.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(USER_FILE_BYTES + 1).splitlines()
    except OSError:
        lines = []
    lines = [line for line in lines if line.split(":")[2:3] != [str(user)]]  # podman has added one, without a name
    found = False
    for position, line in enumerate(lines):
        words = line.split(":")
        if len(words) > 3 and words[2] == str(instead_of):
            words[2] = str(user)
            if len(words) > 4 and words[3] == str(instead_of):  # the user's group, in /etc/passwd
                words[3] = str(user)
            lines[position], found = ":".join(words), True
    content = "".join(f"{line}\n" for line in (lines if found else [*lines, missing]))
    if len(data := content.encode(errors="surrogateescape")) > USER_FILE_BYTES:
        nobody = "nobody:x:65534:65534::/:/bin/false" if path.endswith("passwd") else "nogroup:x:65534:"
        root = "root:x:0:0:root:/:/bin/false" if path.endswith("passwd") else "root:x:0:"
        data = f"{root}\n{missing}\n{nobody}\n".encode()
    return data
