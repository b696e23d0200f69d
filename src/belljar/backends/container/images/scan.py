"""Looks through an image for what should not be in one that runs untrusted code. Decides on names, modes and the first
bytes of files; runs nothing of the image and unpacks nothing.

A finding is `serious` if the image should not be used as it is, else it is a `warning`.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from belljar.backends.container.engine.engine import Engine, fault
from belljar.backends.container.images.packages import STATUS, Package, read_status
from belljar.backends.container.images.saved import File, SavedImage, read_saved

_START = 4096
_MOST_STATUS = 4 << 20


@dataclass(frozen=True)
class ImageFinding:
    """Something that was found."""

    rule: str
    serious: bool
    place: str
    """A path in the image, or a key of its config."""
    reason: str


@dataclass(frozen=True)
class Scan:
    """All that was found, the serious first."""

    findings: tuple[ImageFinding, ...]
    files: int
    packages: tuple[str, ...]

    @property
    def serious(self) -> bool:
        """Whether the image should not be used as it is."""
        return any(finding.serious for finding in self.findings)


# Secrets by the name of the file, in any layer: what a later layer deletes can still be taken out of the image.
_SECRET_NAMES = re.compile(
    r"(?:^|/)(?:\.env(?:\.(?!example$|sample$|template$)[^/]+)?|\.netrc|\.pgpass|\.npmrc|\.pypirc|\.git-credentials"
    r"|\.ssh/(?!known_hosts|authorized_keys|config$)[^/]+|id_(?:rsa|dsa|ecdsa|ed25519)|\.aws/credentials|\.kube/config"
    r"|\.docker/config\.json|\.config/gcloud/.+|application_default_credentials\.json|\.vault-token|\.azure/[^/]+)$"
)
_SECRET_CONTENT = (
    ("a private key", re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s+[A-Za-z0-9+/=:-]")),
    ("an AWS access key", re.compile(rb"\bAKIA[0-9A-Z]{16}\b")),
    ("a GitHub token", re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})\b")),
    ("an Anthropic key", re.compile(rb"\bsk-ant-[A-Za-z0-9_-]{32,}")),
    ("a Slack token", re.compile(rb"\bxox[abprs]-[A-Za-z0-9-]{20,}")),
    ("a Google service account", re.compile(rb'"type":\s*"service_account"')),
)
# Where libraries keep examples and tests of their own; only names count there.
_EXAMPLES = re.compile(r"(?:^|/)(?:usr/share/doc|usr/share/man|test|tests|testdata|fixtures)/")
_SECRET_VARIABLE = re.compile(
    r"(?:SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL)", re.IGNORECASE
)
_MANAGERS = (
    "apt",
    "apt-get",
    "dpkg",
    "apk",
    "dnf",
    "yum",
    "microdnf",
    "rpm",
    "pacman",
    "zypper",
    "pip",
    "pip3",
    "npm",
    "gem",
)
_DANGEROUS = {
    **dict.fromkeys(("docker", "podman", "nerdctl", "ctr", "crictl", "runc", "crun", "kubectl"), "drives containers"),
    **dict.fromkeys(("sudo", "su", "doas", "pkexec"), "becomes another user"),
    **dict.fromkeys(("nc", "ncat", "netcat", "nc.openbsd", "nc.traditional", "socat"), "opens any connection"),
    **dict.fromkeys(("nmap", "masscan", "tcpdump"), "looks through networks"),
    **dict.fromkeys(("sshd", "telnetd", "dropbear"), "lets others in"),
    **dict.fromkeys(("nsenter", "mount", "umount", "insmod", "modprobe", "kexec"), "is of use only to leave a jar"),
    **dict.fromkeys(("gdb", "strace", "ltrace"), "looks into other processes"),
}
_PROGRAMS = re.compile(r"(?:usr/(?:local/)?)?s?bin/([^/]+)")
_SHARED = ("tmp", "var/tmp", "dev/shm", "run/lock", "dev/mqueue")
_PYTHON = re.compile(r"(?:usr/(?:local/)?)?bin/python3(?:\.\d+)?")


class Look:
    """Gathers what the layers hold: the files as they are in the end, and secrets of every layer."""

    def __init__(self) -> None:
        self.layers: dict[int, dict[str, tuple[int, bytes]]] = {}
        """For each layer, path to mode and type."""
        self.secrets: dict[str, ImageFinding] = {}
        self.status: dict[int, str] = {}

    def __call__(self, layer: int, member: tarfile.TarInfo, read: File) -> None:
        """One member of a layer."""
        path = plain_path(member.name)
        self.layers.setdefault(layer, {})[path] = (member.mode, member.type)
        if not member.isreg():
            return
        if path == STATUS:
            self.status[layer] = read(_MOST_STATUS).decode(errors="replace")
        elif finding := secret(path, member.size, read):
            self.secrets[path] = finding

    def final(self, order: Iterable[int]) -> dict[str, tuple[int, bytes]]:
        """The files that a container sees: each layer over those below it, whiteouts taken away."""
        seen: dict[str, tuple[int, bytes]] = {}
        for number in order:
            layer = self.layers.get(number, {})
            for gone in _whited_out(layer, seen):
                seen.pop(gone, None)
            seen |= {path: entry for path, entry in layer.items() if not _last(path).startswith(".wh.")}
        return seen


def plain_path(name: str) -> str:
    """A member's name as a path without a beginning, whatever its maker wrote."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _whited_out(layer: Iterable[str], below: Iterable[str]) -> list[str]:
    marks = [path for path in layer if _last(path).startswith(".wh.")]
    if not marks:
        return []
    opaque = {path.rpartition("/")[0] for path in marks if _last(path) == ".wh..wh..opq"}
    names = {"/".join(filter(None, (path.rpartition("/")[0], _last(path)[4:]))) for path in marks}
    return [
        path for path in below if any(above in names or (above != path and above in opaque) for above in _above(path))
    ]


def _above(path: str) -> Iterator[str]:
    """The path itself and every directory that it lies in."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def secret(path: str, size: int, read: File) -> ImageFinding | None:
    """Whether a file is a secret by its name, or by how it begins."""
    if size == 0:
        return None
    if _SECRET_NAMES.search(path):
        return ImageFinding("secret-file", serious=True, place=path, reason="files of this name hold secrets")
    if size > (1 << 20) or _EXAMPLES.search(path) or path.endswith((".so", ".pyc", ".py", ".js", ".h", ".mo")):
        return None
    start = read(_START)
    for what, pattern in _SECRET_CONTENT:
        if pattern.search(start):
            return ImageFinding("secret-content", serious=True, place=path, reason=f"it contains {what}")
    return None


def judge(look: Look, saved: SavedImage) -> Scan:
    """Everything that is to be said of the image."""
    files = look.final(saved.order)
    status = next((look.status[number] for number in reversed(saved.order) if number in look.status), "")
    found = [*_config(saved.config), *look.secrets.values(), *_modes(files), *_programs(files)]
    found += [
        ImageFinding("unread-layer", serious=True, place=text, reason="it could not be looked into")
        for text in saved.unread
    ]
    if not any(_PYTHON.fullmatch(path) for path in files):
        found.append(
            ImageFinding("no-python", serious=True, place="usr/bin/python3", reason="belljar's gate needs python3")
        )
    found.sort(key=lambda finding: (not finding.serious, finding.rule, finding.place))
    return Scan(tuple(found), len(files), tuple(_listed(read_status(status))))


def _listed(packages: Iterable[Package]) -> Iterator[str]:
    return (f"{package.name} {package.version}" for package in packages)


def _config(config: dict[str, Any]) -> Iterator[ImageFinding]:
    settings = config.get("config") or {}
    user = str(settings.get("User") or "").partition(":")[0]
    if user in ("", "0", "root"):
        yield ImageFinding(
            "root-user", serious=True, place="config.User", reason="its programs run as root unless told otherwise"
        )
    for variable in settings.get("Env") or ():
        name, _equals, value = str(variable).partition("=")
        if value and (
            _SECRET_VARIABLE.search(name) or any(pattern.search(value.encode()) for _what, pattern in _SECRET_CONTENT)
        ):
            yield ImageFinding(
                "secret-variable", serious=True, place=f"config.Env.{name}", reason="it looks like a secret"
            )


def _modes(files: dict[str, tuple[int, bytes]]) -> Iterator[ImageFinding]:
    for path, (mode, kind) in files.items():
        if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE) and not path.startswith("dev/"):  # engines mount their own /dev
            yield ImageFinding("device", serious=True, place=path, reason="a device in an image")
        regular = kind in tarfile.REGULAR_TYPES
        if regular and mode & 0o6000:
            which = "setuid" if mode & 0o4000 else "setgid"
            yield ImageFinding(which, serious=True, place=path, reason="it lends its owner's rights to whoever runs it")
        if not mode & 0o002 or not (regular or kind == tarfile.DIRTYPE):
            continue
        if not any(path == shared or path.startswith(f"{shared}/") for shared in _SHARED):
            yield ImageFinding("world-writable", serious=regular, place=path, reason="everyone may change it")


def _programs(files: dict[str, tuple[int, bytes]]) -> Iterator[ImageFinding]:
    for path in files:
        match = _PROGRAMS.fullmatch(path)
        if match and match[1] in _MANAGERS:
            yield ImageFinding(
                "package-manager", serious=False, place=path, reason="it installs more, and a jar needs none"
            )
        elif match and match[1] in _DANGEROUS:
            yield ImageFinding("dangerous-program", serious=False, place=path, reason=f"it {_DANGEROUS[match[1]]}")


def scan_stream(stream: IO[bytes]) -> Scan:
    """Scan what `save` writes."""
    look = Look()
    return judge(look, read_saved(stream, look))


def scan_image(engine: Engine, name: str) -> Scan:
    """Scan an image that the engine has. Raises what `fault` makes of the engine's complaint."""
    with subprocess.Popen(
        engine.command("save", name),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=engine.environment(),
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            scan = scan_stream(process.stdout)
            while process.stdout.read(1 << 16):
                pass
        except BaseException:
            process.kill()
            complaint = process.stderr.read().decode(errors="replace")
            if process.wait() > 0 and complaint:
                raise fault(engine, complaint, process.returncode) from None
            raise
        complaint = process.stderr.read().decode(errors="replace")
    if process.returncode:
        raise fault(engine, complaint, process.returncode)
    return scan
