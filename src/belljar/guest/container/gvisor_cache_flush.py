"""Names for the volume server to look at, so that gVisor lets go of what it looked at before.

A file that is removed gives back its room when nobody has it open any more. gVisor keeps open what a program in it has
looked at, until the program has looked at a thousand others. The code removes files in another container, of which the
server's gVisor hears nothing: so the server has names of its own, in a directory that no run sees, and looks at them
when it has nothing else to do.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

NAMES = 1200
"""What gVisor keeps open (1000), what it closes at a time (100), and some more."""
FILES = NAMES + 1
"""What they take of a volume."""
_AT_A_TIME = 50
_A_PART = 8


class CacheFlush:
    """The names, in a directory of their own beneath `root`."""

    def __init__(self, root: int) -> None:
        os.mkdir("ballast", 0o700, dir_fd=root)
        self._directory = os.open("ballast", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        for number in range(NAMES):
            os.mknod(str(number), stat.S_IFREG | 0o600, dir_fd=self._directory)
        self._left = self._at = 0

    def looked(self) -> None:
        """Something else was looked at."""
        self._left = NAMES

    def drop(self, is_wanted: Callable[[], bool]) -> None:
        """Look at all of them since then, unless something else is to be done; then go on the next time.

        Always in the same order, and on from where it ended: so the next one is never among those that are open.
        """
        while self._left and not is_wanted() and self._matters():
            for _ in range(min(_AT_A_TIME, self._left)):
                self._left -= 1
                os.lstat(str(self._at), dir_fd=self._directory)
                self._at = (self._at + 1) % NAMES

    def _matters(self) -> bool:
        """Whether so much is used that what is kept open could be missed: an eighth of the bytes, or of the files."""
        found = os.fstatvfs(self._directory)
        bytes_used = found.f_blocks - found.f_bfree
        files, files_used = found.f_files - FILES, found.f_files - found.f_ffree - FILES
        return _A_PART * bytes_used > found.f_blocks or _A_PART * files_used > files
