"""Files of a workspace, from outside: beneath it, through no link, bounded. What is in them is the guest's."""

from __future__ import annotations

import os

from belljar.backends.contract import Entry, Jar
from belljar.errors import UsageError
from belljar.policy.models import Policy

MAX_READ_BYTES = 256 << 20


def has_bytes(text: str) -> bool:
    """Whether the operating system has a form for this text: a lone surrogate has none."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


class Files:
    """Reads and writes files of a Sandbox's workspace. Paths are relative to it, or absolute inside the jar."""

    def __init__(self, jar: Jar, policy: Policy, written: dict[tuple[int, str], int]) -> None:
        self._jar = jar
        self._policy = policy
        self._written = written

    def read(self, path: str, *, limit: int = MAX_READ_BYTES) -> bytes:
        """The content of a file. Raises UsageError if it is larger than `limit`, OSError as `open` would."""
        content = self._jar.read(*self._locate(path), limit + 1)
        if len(content) > limit:
            raise UsageError(f"{path} is larger than {limit} bytes", hint="pass a higher `limit`")
        return content

    def write(self, path: str, content: bytes | str) -> None:
        """Write a file, and make the directories above it."""
        mount, relative = self._locate(path)
        data = content.encode() if isinstance(content, str) else content
        self._written[mount, relative] = self._jar.write(mount, relative, data)

    def list(self, path: str = ".", *, recursive: bool = False) -> list[Entry]:
        """The entries of a directory, sorted by path; at most 100,000."""
        entries = self._jar.list(*self._locate(path), recursive=recursive)
        return sorted(entries, key=lambda entry: entry.path)

    def remove(self, path: str) -> None:
        """Remove a file, a link itself, or a directory with all that is in it."""
        self._jar.remove(*self._locate(path))

    def _locate(self, path: str) -> tuple[int, str]:
        """Which mount a path is in, and where there."""
        if "\0" in path:
            raise UsageError("a path can't hold a NUL character")
        if not has_bytes(path):
            raise UsageError("a path can't hold a lone surrogate")
        absolute = os.path.normpath(os.path.join(self._policy.fs.workdir, path))
        best = (-1, "")
        for index, mount in enumerate(self._policy.fs.mounts):
            if (absolute == mount.path or absolute.startswith(f"{mount.path}/")) and len(mount.path) > len(best[1]):
                best = (index, mount.path)
        if best[0] < 0:
            paths = ", ".join(mount.path for mount in self._policy.fs.mounts)
            raise UsageError(f"{path} lies in no mount of the jar", hint=f"the mounts are {paths}")
        return best[0], absolute[len(best[1]) + 1 :] or "."
