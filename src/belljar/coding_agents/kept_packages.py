"""Packages that an agent installed, kept from one call to the next where the caller asks for it (`--keep-packages`).

`~/.local` in the jar is where pip (without a virtual environment), pipx, `uv tool` and, by the variables here, npm, go
and cargo install. It is kept as the home is (see `kept_home`), in a directory of its own for each project and agent.
Only jars of the same project and agent see it. The host never runs what is in it.

A package is kept whole or not at all. So nothing of a run is kept if its packages are too large, if the agent did not
end by itself, or if another run changed the packages meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping

from belljar.backends.contract import ChangedTree
from belljar.coding_agents.home import HOME
from belljar.coding_agents.home_store import File, forget, is_same
from belljar.coding_agents.kept_home import Kept, KeptHome, LeftFiles

MOST_BYTES = 1 << 30
MOST_FILES = 100_000
MOST_FILE_BYTES = 256 << 20
"""Of one file, all of which is in memory while it is kept."""
_DIRECTORY = ".local"
_NO_PACKAGES = ("state",)
"""Directories in it where programs keep other things."""
VARIABLES = {
    "PIP_BREAK_SYSTEM_PACKAGES": "1",  # Debian's pip installs nothing beside the system's packages without it
    "NPM_CONFIG_PREFIX": f"{HOME}/{_DIRECTORY}",
    "GOBIN": f"{HOME}/{_DIRECTORY}/bin",
    "CARGO_INSTALL_ROOT": f"{HOME}/{_DIRECTORY}",
}
"""What makes package managers install there. pip, pipx and uv do so by themselves."""


class KeptPackages(KeptHome):
    """The packages of one agent in one project, in use by one run."""

    any_link = True  # a virtual environment of pipx or uv names its Python; belljar never follows a link of these

    def __init__(self, project: str, agent: str) -> None:
        """Make the directory, if it is not there. Raises OSError as `KeptHome`."""
        super().__init__(project, _key(agent), Kept((_DIRECTORY,)))

    def keep(
        self,
        changed: Mapping[str, ChangedTree],
        files: Mapping[str, bytes],
        *,
        denied: Callable[[str, str], bool],
        secrets: Collection[bytes],
    ) -> int:
        """Make the packages of the next call from those of this run: all of them, or none.

        Raises:
            OSError: they are too large, another run changed them, or they can't be written. Those of before stay.
        """

        def is_none(name: str, path: str) -> bool:
            return path.split("/", maxsplit=1)[0] in _NO_PACKAGES or denied(name, path)

        return super().keep(changed, files, denied=is_none, secrets=secrets)

    def _merged(
        self, now: Mapping[str, os.stat_result], found: Mapping[str, LeftFiles], denied: Callable[[str, str], bool]
    ) -> dict[str, File]:
        """The files of the next call: those of this run, or those of now if it changed none."""
        mine = super()._merged(self._base, found, denied)
        if not any(file.is_new for file in mine.values()) and mine.keys() == self._base.keys():
            return {path: File(status.st_size, status.st_mtime_ns) for path, status in now.items()}
        if now.keys() != self._base.keys() or not all(is_same(now[path], self._base[path]) for path in now):
            raise OSError(errno.EBUSY, "another run in this project changed them meanwhile")
        if any(one.cut for one in found.values()) or len(mine) > MOST_FILES:
            raise OSError(errno.EFBIG, f"they are more than {MOST_FILES:,} files")
        size, largest = sum(file.size for file in mine.values()), max((file.size for file in mine.values()), default=0)
        if size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"they have {size >> 20:,} MiB, and at most {MOST_BYTES >> 20:,} are kept")
        if largest > MOST_FILE_BYTES:
            most = MOST_FILE_BYTES >> 20
            raise OSError(errno.EFBIG, f"one file has {largest >> 20:,} MiB, and at most {most:,} are kept")
        return mine

    def _bounded(self, files: dict[str, File]) -> dict[str, File]:
        return files


def forget_packages(project: str, agent: str) -> bool:
    """Forget the packages of an agent in a project. Return False if there were none."""
    return forget(project, _key(agent))


def _key(agent: str) -> str:
    return f"{agent}, packages"
