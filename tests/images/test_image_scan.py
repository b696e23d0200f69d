"""What `image scan` finds in images that were made to hold it, and that it finds nothing in one that was not."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from image_files import CLEAN, CLEAN_CONFIG, Files, member, oci, saved, tar

from belljar.backends.container.images.saved import MOST_READ
from belljar.backends.container.images.scan import Scan, scan_stream
from belljar.errors import SandboxUnavailableError

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"


def scan(data: bytes) -> Scan:
    return scan_stream(io.BytesIO(data))


def rules(data: bytes) -> set[tuple[str, str]]:
    return {(finding.rule, finding.place) for finding in scan(data).findings}


def test_nothing_in_a_clean_one() -> None:
    """The control of all that follows."""
    found = scan(saved(CLEAN))
    assert found.findings == ()
    assert not found.serious


SERIOUS: list[tuple[str, str, str | bytes | tarfile.TarInfo]] = [
    ("setuid", "usr/bin/su", member("", mode=0o4755)),
    ("setgid", "usr/bin/wall", member("", mode=0o2755)),
    ("world-writable", "etc/profile", member("", mode=0o666)),
    ("device", "srv/disk", member("", kind=tarfile.BLKTYPE)),
    ("secret-file", "root/.ssh/id_ed25519", "anything"),
    ("secret-file", "app/.env", "A=1"),
    ("secret-file", "app/.env.production", "A=1"),
    ("secret-file", "home/x/.aws/credentials", "[default]"),
    ("secret-file", "home/x/.docker/config.json", "{}"),
    ("secret-content", "etc/ssl/private/server.pem", KEY),
    ("secret-content", "opt/notes", "key: AKIA" + "ABCDEFGHIJKLMNOP"),
    ("secret-content", "opt/account.json", '{"type": "service_account"}'),
]


@pytest.mark.parametrize(
    ("rule", "path", "content"), SERIOUS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_serious(rule: str, path: str, content: str | bytes | tarfile.TarInfo) -> None:
    """Each is found where it was put, however its path is written."""
    for written in (path, f"./{path}", f"/{path}"):
        data = saved({**CLEAN, written: content})
        assert (rule, path) in rules(data)
        assert scan(data).serious


@pytest.mark.parametrize(
    ("rule", "path"),
    [("package-manager", "usr/bin/apt-get"), ("package-manager", "sbin/apk"), ("dangerous-program", "usr/bin/nsenter")],
)
def test_warnings(rule: str, path: str) -> None:
    """Told, but the image may be used."""
    data = saved({**CLEAN, path: "ELF"})
    assert rules(data) == {(rule, path)}
    assert not scan(data).serious


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("tmp", member("", mode=0o1777, kind=tarfile.DIRTYPE)),
        ("app/.env.example", "A="),
        ("app/.env", ""),
        ("home/x/.ssh/known_hosts", "host key"),
        ("usr/lib/python3/tests/key.pem", KEY),
        ("usr/bin/link", member("", mode=0o777, kind=tarfile.SYMTYPE, link="python3")),
        ("dev/null", member("", mode=0o666, kind=tarfile.CHRTYPE)),
    ],
)
def test_not_mistaken(path: str, content: str | tarfile.TarInfo) -> None:
    """What looks like it and is harmless."""
    assert rules(saved({**CLEAN, path: content})) == set()


@pytest.mark.parametrize("user", ["", "0", "root", "0:0"])
def test_root_user(user: str) -> None:
    """An image that names no user runs as root."""
    assert ("root-user", "config.User") in rules(saved(CLEAN, config={"config": {"User": user}}))


def test_secret_variable() -> None:
    """By the name of the variable; its value is not told."""
    config = {"config": {**CLEAN_CONFIG["config"], "Env": ["DB_PASSWORD=hunter2", "PATH=/bin", "API_TOKEN="]}}
    found = scan(saved(CLEAN, config=config))
    assert [finding.place for finding in found.findings] == ["config.Env.DB_PASSWORD"]
    assert "hunter2" not in str(found)


def test_no_python() -> None:
    """belljar's gate is a Python program."""
    assert ("no-python", "usr/bin/python3") in rules(saved({"bin/sh": "ELF"}))


def test_a_secret_that_a_later_layer_deletes() -> None:
    """It is still in the image for everyone who can pull it."""
    data = saved({**CLEAN, "root/.netrc": "machine x"}, {"root/.wh..netrc": ""})
    assert rules(data) == {("secret-file", "root/.netrc")}


@pytest.mark.parametrize(
    "over",
    [
        {"usr/bin/.wh.chsh": ""},
        {"usr/bin/chsh": member("", mode=0o755)},
        {"usr/.wh.bin": "", "usr/bin/python3": "ELF"},
        {"usr/bin/.wh..wh..opq": "", "usr/bin/python3": "ELF"},
    ],
)
def test_a_mode_that_a_later_layer_takes_back(over: Files) -> None:
    """What a container sees is what counts for modes."""
    assert rules(saved({**CLEAN, "usr/bin/chsh": member("", mode=0o4755)}, over)) == set()


def test_oci_layout_and_packed_layers() -> None:
    """Newer engines save otherwise; the same is found."""
    assert rules(oci(CLEAN, {"root/.netrc": "x"})) == {("secret-file", "root/.netrc")}


def test_packages() -> None:
    """Debian's record is read from the topmost layer that has it."""
    status = "Package: bash\nStatus: install ok installed\nVersion: 5.2\nArchitecture: amd64\n"
    assert scan(saved({**CLEAN, "var/lib/dpkg/status": status})).packages == ("bash 5.2",)


def test_a_layer_that_cannot_be_read() -> None:
    """What was not looked into is not called clean."""
    assert [finding.rule for finding in scan(saved(CLEAN, b"\x28\xb5\x2f\xfd" + bytes(600))).findings] == [
        "unread-layer"
    ]


def long_header() -> bytes:
    """A layer whose first header says that a name of 64 MB follows."""
    header = member("././@LongLink", kind=tarfile.GNUTYPE_LONGNAME)
    header.size = 64 << 20
    return header.tobuf(tarfile.GNU_FORMAT) + bytes(MOST_READ)


HOSTILE = {
    "nothing": b"",
    "no tar file": b"\x7fELF" + bytes(2000),
    "no manifest": tar(CLEAN),
    "cut off": saved({**CLEAN, "big": bytes(100_000)})[:50_000],
    "a manifest that is a number": tar({"manifest.json": "[1]"}),
    "a layer that is not there": tar({"manifest.json": '[{"Config": "c.json", "Layers": ["x"]}]', "c.json": "{}"}),
    "a manifest nested too deep": tar({"manifest.json": "[" * 100_000}),
    "a name of 64 MB": saved(long_header()),
    "bad packing": saved(b"\x1f\x8b\x08\x00" + b"x" * 2000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str) -> None:
    """An error that says so, and nothing else."""
    with pytest.raises(SandboxUnavailableError, match="the saved image can't be read"):
        scan(HOSTILE[name])


def test_nothing_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that lead out of a directory, links to outside: compared, never followed or made."""
    monkeypatch.chdir(tmp_path)
    evil: Files = {
        "../../escaped": "x",
        "/absolute": "x",
        "link": member("", kind=tarfile.SYMTYPE, link="/etc"),
        "link/shadow": "x",
    }
    assert rules(saved({**CLEAN, **evil})) == set()
    assert not list(tmp_path.rglob("*"))
