"""Where the engines of the tests lie: what is kept between runs, and what lives as long as they run.

Kept, in `.cache/engines` of this clone: the images, the logs, the name of the other place. Short-lived, in a directory
of its own beneath /tmp: sockets (whose path may have 108 bytes), state, settings. Both are of this clone alone, so that
two clones on one machine never meet.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
KEPT = REPOSITORY / ".cache/engines"
SYSTEM_DIRECTORIES = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Place:
    """The short-lived directory, and what is in it."""

    home: Path

    @classmethod
    def new(cls) -> Place:
        """An empty one, whose name is written down so that a later run finds what a killed one left."""
        home = Path(tempfile.mkdtemp(prefix="belljar-engines.", dir="/tmp"))
        home.chmod(0o711)  # an ordinary user has to reach the socket, and can list nothing
        KEPT.mkdir(parents=True, exist_ok=True)
        KEPT.chmod(0o700)
        (KEPT / "home").write_text(f"{home}\n")
        return cls(home)

    @classmethod
    def recorded(cls) -> Place | None:
        """The one that was used last, if it is still there."""
        try:
            home = Path((KEPT / "home").read_text().strip())
        except OSError:
            return None
        return cls(home) if home.name.startswith("belljar-engines.") and home.is_dir() else None

    @property
    def control(self) -> str:
        """The socket of the keeper."""
        return str(self.home / "control.sock")

    @property
    def docker_socket(self) -> str:
        return str(self.home / "docker.sock")

    @property
    def cgroup(self) -> str:
        """The name of the control group that holds all containers of our dockerd."""
        return f"belljar-tests-{self.home.name.partition('.')[2]}"


def storage(place: Place, engine: str) -> tuple[Path, bool]:
    """Where an engine keeps its images, and whether overlays work there: in `.cache` if they do."""
    for directory in (KEPT / engine, place.home / engine):
        directory.mkdir(mode=0o711, exist_ok=True)
        if overlay_works(directory):
            return directory, True
    return place.home / engine, False


def overlay_works(directory: Path) -> bool:
    """Whether the kernel mounts an overlay whose layers are in `directory`; in a namespace that ends with the try."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="try.") as name:
        for part in ("lower", "upper", "work", "merged"):
            os.mkdir(f"{name}/{part}")
        options = f"lowerdir={name}/lower,upperdir={name}/upper,workdir={name}/work"
        script = 'mount -t overlay try -o "$1" "$2" && touch "$2/file" && rm "$2/file" && mkdir "$2/new"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", options, f"{name}/merged"]
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def search_path() -> str:
    """PATH with the system's directories, which an ordinary PATH may lack."""
    return f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_DIRECTORIES}"
