"""The virtual machine's disk: a small Debian with its own kernel, built once and kept.

Everything here runs on the host. The recipe (this file, the directory `recipe`, and the test dependencies of
pyproject.toml) is hashed; a disk with that hash in the cache directory is used as it is. The mirror is never named: it
comes from the host's own apt configuration at the moment of building.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from progress import VmError, step

HERE = Path(__file__).resolve().parent
RECIPE = HERE / "recipe"
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "vm"  # git ignores it, and it goes away with the clone

RUN_PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "setpriv": "util-linux"}
BUILD_PROGRAMS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "unshare": "util-linux"}

PACKAGES = [
    *("systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd"),  # a user manager, as on a real machine
    *("python3", "bubblewrap", "libseccomp2"),  # what belljar needs
    *("iproute2", "procps", "kmod"),  # what its tests look with; kmod loads overlay, veth, … on demand
    "busybox-static",  # the initrd's only program
]


@dataclass(frozen=True)
class Image:
    """A built disk with the kernel and initrd that boot it."""

    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk"

    @property
    def kernel(self) -> Path:
        return self.directory / "kernel"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd"


def test_requirements() -> list[str]:
    """What pip puts beside belljar inside: its dependencies, its extras, and the dependency group `test`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = chain(*project["project"].get("optional-dependencies", {}).values())
    wanted = {*project["project"]["dependencies"], *extras, *project["dependency-groups"]["test"]}
    return sorted(name for name in wanted if not name.startswith("belljar"))


def recipe_digest() -> str:
    """Changes when the disk would come out different because of us; a newer Debian package does not change it."""
    files = [Path(__file__), *sorted(path for path in RECIPE.rglob("*") if path.is_file())]
    recipe = [*(f"{path.relative_to(HERE)}\n{path.read_text()}" for path in files), *test_requirements()]
    return hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:16]


def prepare(*, rebuild: bool = False) -> Image:
    """The image of the current recipe, built if the cache has none.

    Raises:
        VmError: a tool is missing and can't be installed here, or a step of the build failed.
    """
    install_host_packages(RUN_PROGRAMS)
    image = Image(CACHE / recipe_digest())
    if image.directory.exists() and not rebuild:
        return image
    install_host_packages(BUILD_PROGRAMS)
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "lock"):
        if rebuild or not image.directory.exists():
            sweep(keep=None)
            with tempfile.TemporaryDirectory(prefix="build-", dir=CACHE, ignore_cleanup_errors=True) as scratch:
                build(Path(scratch), image.directory)
            sweep(keep=image.directory)
    return image


def sweep(*, keep: Path | None) -> None:
    """Removes what a killed build left and, when there is a new image, the old ones; the caller holds the lock."""
    for directory in CACHE.iterdir():
        if directory.is_dir() and directory != keep and (keep or directory.name.startswith("build-")):
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Two runs at once build one image."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def install_host_packages(programs: dict[str, str]) -> None:
    """By apt when we are root, else by saying what to type."""
    missing = [package for program, package in programs.items() if not which(program)]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise VmError(f"not installed: {', '.join(missing)}", hint=f"sudo {shlex.join(command)}")
    with step(f"installing {', '.join(missing)} on this machine"):
        quietly(["apt-get", "update"])
        quietly(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def which(program: str) -> str | None:
    """An ordinary user's PATH has no sbin, where mke2fs lies."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def build(scratch: Path, destination: Path) -> None:
    """Makes disk, kernel and initrd in `scratch` and moves them to `destination` when all of them are there."""
    if os.geteuid() != 0:
        raise VmError(
            "building the image needs root (files of other owners go into it); running it does not",
            hint=f"sudo {sys.executable} tests/vm/run.py --build-only",
        )
    sources = debian_sources()
    out, site, bare, temporary = (scratch / name for name in ("out", "site", "bare", "tmp"))
    for directory in (out, site, bare, temporary):
        directory.mkdir()
    with step("fetching the Python packages of the tests"):
        fetch_python_packages(site, sources.codename)
    paths = {"OUT": out, "SITE": site, "FILES": RECIPE / "files", "BARE": bare, "TMPDIR": temporary}
    hook_environment = {name: str(path) for name, path in paths.items()}
    with step(f"building a Debian {sources.codename} disk"):
        quietly(mmdebstrap_command(sources), env=os.environ | hook_environment)
        unpack_kernel(out / "kernel")
        pack_initrd(out)
    shutil.rmtree(destination, ignore_errors=True)
    out.rename(destination)


@dataclass(frozen=True)
class Sources:
    """Where this host's apt finds Debian, as lines of a sources.list."""

    codename: str
    lines: tuple[str, ...]


def debian_sources() -> Sources:
    """Debian's own archives among the host's apt sources; other vendors' are left out."""
    listing = "$(CREATED_BY)\t$(ORIGIN)\t$(REPO_URI)\t$(RELEASE)\t$(CODENAME)\t$(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", listing]
    if not (rows := debian_rows(command)):
        quietly(["apt-get", "update"])
        rows = debian_rows(command)
    codenames = {codename for _, _, codename, _ in rows if "-" not in codename}
    if len(codenames) != 1:
        raise VmError(
            f"the image is built from this host's apt sources, which name {len(codenames)} Debian releases",
            hint="build it on a Debian host with one release in its apt sources",
        )
    return Sources(codenames.pop(), tuple(f"deb {uri} {release} {component}" for uri, release, _, component in rows))


def debian_rows(command: list[str]) -> list[tuple[str, str, str, str]]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(row[2], row[3], row[4], row[5]) for row in rows if row[0] == "Packages" and row[1] == "Debian"]


def apt_transport_options() -> list[str]:
    """The host's proxy, certificates and retries; without them its mirror may be out of reach."""
    kinds = r"Acquire::(http|https|Retries|Check-Valid-Until|Check-Date|ForceIPv[46])\b"
    dump = subprocess.run(["apt-config", "dump", "--no-empty", "Acquire"], check=True, capture_output=True, text=True)
    return [line for line in dump.stdout.splitlines() if re.match(kinds, line)]


def mmdebstrap_command(sources: Sources) -> list[str]:
    return [
        # In its own process and mount namespaces: when this program dies, everything it started and mounted goes too.
        *("setpriv", "--pdeathsig=KILL", "unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc"),
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--architectures=amd64",
        f"--include={','.join(PACKAGES)}",
        "--aptopt=APT::Install-Recommends false",
        *(f"--aptopt={option}" for option in apt_transport_options()),
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=force-unsafe-io",
        f'--customize-hook=sh {shlex.quote(str(RECIPE / "customize.sh"))} "$1"',
        "--format=null",
        sources.codename,
        "-",
        *sources.lines,
    ]


PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}


def fetch_python_packages(site: Path, codename: str) -> None:
    """Wheels for the Python *inside*, whichever one runs this program."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], check=False, capture_output=True).returncode:
        raise VmError(
            f"{sys.executable} has no pip",
            hint="run it with the virtual environment's python, or: apt-get install python3-pip",
        )
    if codename not in PYTHON_OF:
        raise VmError(
            f"no Python version is written down for Debian {codename}", hint="add it to PYTHON_OF in tests/vm/image.py"
        )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    platforms = [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_28", "_2_17", "2014")]
    inside = [f"--python-version={PYTHON_OF[codename]}", "--implementation=cp", *platforms, "--only-binary=:all:"]
    quietly([*pip, "--root-user-action=ignore", *inside, f"--target={site}", *test_requirements()])


def unpack_kernel(kernel: Path) -> None:
    """Takes the ELF file out of its xz wrapping: QEMU starts it as it is, and emulated unpacking takes seconds."""
    packed = kernel.read_bytes()
    if (start := packed.find(b"\xfd7zXZ\0")) > 0:
        kernel.write_bytes(lzma.LZMADecompressor().decompress(packed[start:]))


def pack_initrd(out: Path) -> None:
    """A cpio archive of busybox, the boot modules and the script that mounts the root disk."""
    order = (out / "order").read_text().split()
    entries: list[tuple[str, int, bytes]] = [(name, 0o040755, b"") for name in ("bin", "dev", "root", "modules")]
    entries += [
        ("init", 0o100755, (RECIPE / "init").read_bytes()),
        ("bin/busybox", 0o100755, (out / "busybox").read_bytes()),
    ]
    entries += [("modules/order", 0o100644, (out / "order").read_bytes())]
    entries += [(f"modules/{name}", 0o100644, (out / name).read_bytes()) for name in order]
    entries += [("TRAILER!!!", 0, b"")]
    # Stored, not compressed: unpacking costs more in emulation than reading does.
    (out / "initrd").write_bytes(b"".join(cpio_entry(number, *entry) for number, entry in enumerate(entries)))
    for name in ("busybox", "order", *order):
        (out / name).unlink()


def cpio_entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    """One file in the `newc` format the kernel reads."""
    links = 2 if mode & 0o040000 else 1
    fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4)


def quietly(command: list[str], *, env: dict[str, str] | None = None) -> None:
    """Runs a command that only speaks when it fails.

    Raises:
        VmError: with the end of what it said.
    """
    pipe = subprocess.PIPE
    done = subprocess.run(
        command, check=False, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT
    )
    if done.returncode:
        tail = done.stdout.decode(errors="replace").splitlines()[-30:]
        raise VmError("\n".join([f"{command[0]} failed with exit code {done.returncode}:", *tail]))
