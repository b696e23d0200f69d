"""The image commands with a real engine: the base image is built once a session, through the cache."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from image_process import Call

from belljar.backends.container.engine.engine import Engine, find_engine
from belljar.backends.container.images.archive import image_config, write_archive, write_layer
from belljar.backends.container.images.engine_images import BASE_IMAGE, find, load

pytestmark = pytest.mark.slow
SMALL = "belljar-test-small:1"

PYTHON = {
    "library": "import ssl, sqlite3, ctypes, lzma, bz2, decimal, asyncio, curses, zlib, xml.sax, readline",
    "compiled library": "import os, asyncio; assert os.path.exists(asyncio.__cached__)",
    "certificates": "import ssl; assert ssl.create_default_context().get_ca_certs()",
    "time zones": "import zoneinfo; zoneinfo.ZoneInfo('Asia/Tokyo')",
    "places": "import os; assert all(map(os.path.isdir, ('/workspace', '/run/jar', '/tmp', '/tmp/home')))",
}
BASH = {
    "text": "echo WORKS | sed s/W/w/ | awk '{print tolower($1)}' | grep -q works",
    "archives": "tar cz -C / etc/passwd | gzip -dc | tar t | grep -q passwd",
    "files": "find /etc -name passwd | grep -q passwd",
    "user": "[ $(id -u):$(id -g):$(id -un):$HOME = 1000:1000:jar:/tmp/home ]",
    "no package manager": "! type -p apt apt-get dpkg pip perl su mount",
    "no rights to lend": "[ -z $(find / -xdev -type f -perm /6000 2>/dev/null) ]",
}
NODE = {"node": "require('crypto').createHash('sha256'); new Intl.DateTimeFormat('de'); require('https')"}
PROGRAMS = {
    **{what: ["python3", "-I", "-c", code] for what, code in PYTHON.items()},
    **{what: ["bash", "-c", code] for what, code in BASH.items()},
    **{what: ["node", "-e", code] for what, code in NODE.items()},
}


def real(engine: str) -> Engine:
    return find_engine(engine, engine)


@pytest.fixture
def small(engine: str, tmp_path: Path) -> Iterator[str]:
    """An image of one file, with belljar's label."""
    entry = tarfile.TarInfo("hello")
    entry.size = 5
    layer = write_layer(str(tmp_path / "layer"), [(entry, io.BytesIO(b"hello"))])
    with (tmp_path / "image.tar").open("wb") as file:
        write_archive(file, layer, image_config(layer, architecture="amd64", recipe="test"), SMALL)
    yield load(real(engine), str(tmp_path / "image.tar"), SMALL).id
    real(engine).attempt("image", "rm", SMALL)


@pytest.mark.parametrize("what", PROGRAMS)
def test_what_is_in_it_works(engine: str, base: dict[str, Any], what: str) -> None:
    """As a run uses it: read-only, with no network and no capability, as its own user."""
    options = ["--rm", "--read-only", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    if engine == "podman":
        options += ["--ulimit=nofile=1024:1024", "--ulimit=nproc=512:512"]
    words = real(engine).command("run", *options, *real(engine).run_options(), base["id"], *PROGRAMS[what])
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=60, env=real(engine).environment()
    )
    assert done.returncode == 0, done.stderr


def test_the_engine_computes_the_same_id(engine: str, base: dict[str, Any]) -> None:
    """The ID that was written down is the one that results have."""
    found = find(real(engine), BASE_IMAGE)
    assert (found.id, found.user, found.labels["belljar.image"]) == (base["id"], "1000:1000", "1")
    assert found.labels["belljar.recipe"] == base["recipe"]


def test_build_again_does_nothing(engine: str, base: dict[str, Any], image: Call) -> None:
    """The cache has it, and so has the engine."""
    again = image("build", "--engine", engine, "--json").json
    assert (again["id"], again["engines"], again["loaded"]) == (base["id"], [engine], [])


def test_ls(engine: str, base: dict[str, Any], image: Call) -> None:
    """It is listed, for people and for programs."""
    assert BASE_IMAGE in [entry["image"]["name"] for entry in image("ls", "--engine", engine, "--json").json]
    assert base["id"][:19] in image("ls", "--engine", engine).out


def test_inspect(engine: str, base: dict[str, Any], image: Call) -> None:
    """With a record of the build, and without: then the packages are read from the image itself."""
    unrecorded = image("inspect", "--engine", engine, "--json").json
    image("build", "--engine", engine)
    recorded = image("inspect", "--engine", engine, "--json").json
    assert (unrecorded["recorded"], recorded["recorded"]) == (None, base["id"])
    assert unrecorded["packages"] == recorded["packages"]
    assert [name for name in recorded["packages"] if name.startswith("python3 ")]


def test_scan(engine: str, base: dict[str, Any], image: Call) -> None:
    """Our own image has nothing that we would not have in another."""
    done = image("scan", "--engine", engine, "--json")
    assert (done.code, done.json["findings"]) == (0, [])
    assert done.json["id"] == base["id"]


def test_scan_finds(engine: str, small: str, image: Call) -> None:
    """The control: an image without Python is not one for belljar, and the exit code says so."""
    done = image("scan", "--engine", engine, SMALL)
    assert done.code == 1
    assert "no-python" in done.out


def test_rm_refuses_what_is_used(engine: str, small: str, image: Call) -> None:
    """The container is named; when it is gone, the image goes."""
    name = f"belljar-test-user-{os.getpid()}"
    real(engine).run("create", "--name", name, SMALL, "/hello")
    try:
        refused = image("rm", "--engine", engine, SMALL)
        assert refused.code == 125
        assert name in refused.err
    finally:
        real(engine).run("rm", name)
    done = image("rm", "--engine", engine, "--json", SMALL)
    assert (done.code, done.json) == (0, [{"engine": engine, "image": SMALL, "id": small}])
    assert image("rm", "--engine", engine, SMALL).code == 125


@pytest.mark.parametrize("command", ["inspect", "scan", "rm"])
def test_missing(engine: str, image: Call, command: str) -> None:
    """The error has the command that gets it."""
    done = image(command, "--engine", engine, "no-such-image:1")
    assert done.code == 125
    assert f"belljar image pull --engine {engine} no-such-image:1" in done.err
    assert "belljar image build" in image(command, "--engine", engine, "belljar-base:0").err


def test_pull_that_fails(engine: str, image: Call) -> None:
    """What the engine says is shown, and what to do about it."""
    done = image("pull", "--engine", engine, "localhost:1/no-such-image:1")
    assert (done.code, done.out) == (125, "")
    assert "hint: " in done.err


@pytest.mark.skipif(not os.environ.get("BELLJAR_TEST_REBUILD"), reason="builds for a minute: BELLJAR_TEST_REBUILD=1")
def test_built_twice(base: dict[str, Any], image: Call, tmp_path: Path) -> None:
    """Another cache, the same packages: the same ID."""
    done = image(
        "build", "--output", str(tmp_path / "image.tar"), "--json", BELLJAR_IMAGE_CACHE=str(tmp_path / "cache")
    )
    assert done.json["id"] == base["id"]
