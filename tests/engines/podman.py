"""Podman with a storage of the tests' own. There is no daemon: two settings files, and an end.

`settings` serves root's podman, beside our dockerd, and an ordinary user's (scripts/test-as-user.sh).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from place import Place, search_path, storage
from remains import hierarchies, remove_empty_groups

GROUP = "libpod_parent"
"""The control group that podman puts all containers in; no setting gives it another name."""


def settings(directory: Path, images: Path, driver: str) -> dict[str, str]:
    """Writes the settings files into `directory`, and returns the variables that name them.

    Its locks are files: those in shared memory, podman's default, are one set for all podmans of a user. Its limits are
    named: podman's own defaults ask for more than a machine may give.
    """
    (directory / "containers.conf").write_text(
        "[containers]\n"
        'default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
        "[engine]\n"
        'runtime = "runc"\n'
        'cgroup_manager = "cgroupfs"\n'
        'events_logger = "file"\n'
        'lock_type = "file"\n'
        f'volume_path = "{directory}/volumes"\n'
        f'tmp_dir = "{directory}/state"\n'
        f"{_runtimes()}"
        "[network]\n"
        f'network_config_dir = "{directory}/networks"\n'
    )
    (directory / "storage.conf").write_text(
        "[storage]\n"
        f'driver = "{driver}"\n'
        f'graphroot = "{images}"\n'
        f'rootless_storage_path = "{images}"\n'
        f'runroot = "{directory}/run"\n'
    )
    return {
        "CONTAINERS_CONF": str(directory / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"),
    }


def _runtimes() -> str:
    """Where the runtimes are, since podman looks for few of them by itself."""
    found = {name: shutil.which(name, path=search_path()) for name in ("runc", "crun", "runsc")}
    return "[engine.runtimes]\n" + "".join(f'{name} = ["{path}"]\n' for name, path in found.items() if path)


class Podman:
    """Root's podman."""

    def __init__(self, place: Place) -> None:
        self._directory = place.home / "podman.d"
        self._place = place

    def start(self) -> dict[str, str]:
        """The variables that lead podman to its settings."""
        images, overlay = storage(self._place, "podman")
        # Its record of containers names the places of an earlier run; images are not in it.
        shutil.rmtree(images / "libpod", ignore_errors=True)
        self._directory.mkdir(mode=0o700)
        if not any((root / GROUP).exists() for root in hierarchies()):
            (self._directory / "group-is-ours").touch()
        return settings(self._directory, images, "overlay" if overlay else "vfs")

    def stop(self) -> None:
        """Removes every container and volume, and podman's control group if it was not there before."""
        program = shutil.which("podman", path=search_path())
        if program is None or not (self._directory / "state").exists():
            return
        environment = os.environ | {
            "PATH": search_path(),
            "CONTAINERS_CONF": str(self._directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self._directory / "storage.conf"),
        }
        for command in (["rm", "--all", "--force", "--time", "0"], ["volume", "rm", "--all", "--force"]):
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([program, *command], env=environment, capture_output=True, timeout=60, check=False)
        if (self._directory / "group-is-ours").exists():
            remove_empty_groups(GROUP)
