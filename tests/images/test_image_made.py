"""How an image is made: the packages that stay, the files that stay, and bytes that depend on nothing else."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest
from image_files import Files, member, tar

from belljar.backends.container.images.archive import Layer, image_config, write_archive, write_layer
from belljar.backends.container.images.engine_images import BASE_IMAGE
from belljar.backends.container.images.packages import needed, read_status
from belljar.backends.container.images.recipe import DATE, EPOCH, NEVER, REPOSITORY, ROOTS, VERSION, Recipe, make_recipe
from belljar.backends.container.images.tree import Tree, contents, straighten
from belljar.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]

STATUS = """\
Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2
Depends: base-files (>= 2), debianutils | something-else
Pre-Depends: libc6 (>= 2.36), libtinfo6:any

Package: base-files
Status: install ok installed
Version: 12
Pre-Depends: awk
Conffiles:
 /etc/debian_version 0123

Package: mawk
Status: install ok installed
Version: 1.3
Provides: awk (= 1)

Package: libc6
Status: install ok installed
Version: 2.36

Package: libtinfo6
Status: install ok installed
Version: 6
Depends: dpkg

Package: dpkg
Status: install ok installed
Version: 1.21
Depends: perl-base

Package: perl-base
Status: install ok installed
Version: 5.36

Package: gone
Status: deinstall ok config-files
Version: 1
"""


def lists(**files: str) -> Files:
    return {f"./var/lib/dpkg/info/{name.replace('_', '-')}.list": text for name, text in files.items()}


def root_tar(**more: str | bytes | tarfile.TarInfo) -> bytes:
    """What mmdebstrap might have made."""
    files: Files = {
        "./var/lib/dpkg/status": STATUS,
        "./bin": member("", kind=tarfile.SYMTYPE, link="usr/bin", mode=0o777),
        "./usr/bin/bash": "bash",
        "./usr/bin/dpkg": "dpkg",
        "./usr/bin/perl": "perl",
        "./usr/bin/mawk": "mawk",
        "./usr/share/perl/x.pm": "perl",
        **lists(bash="/.\n/bin\n/bin/bash\n", dpkg="/usr/bin/dpkg\n", mawk="/usr/bin/mawk\n"),
        "./var/lib/dpkg/info/perl-base:amd64.list": "/usr/bin/perl\n/usr/share/perl\n/usr/share/perl/x.pm\n",
    }
    return tar({**files, **{f"./{name}": content for name, content in more.items()}})


def tree(data: bytes) -> tuple[Tree, bytes]:
    """The tree, and its layer."""
    with tarfile.open(fileobj=io.BytesIO(data)) as root:
        made = straighten(root, Recipe())
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for entry, content in contents(root, made.entries):
                archive.addfile(entry, content)
    return made, out.getvalue()


def names(made: Tree) -> list[str]:
    return [entry.name for entry, _content in made.entries]


# --- packages --------------------------------------------------------------------------------------------------------


def test_needed_packages() -> None:
    """What the roots depend on, by name, alternative or what is provided; not what only `never` needs."""
    assert needed(read_status(STATUS), ["bash"], ["dpkg"]) == {"bash", "base-files", "mawk", "libc6", "libtinfo6"}
    assert "perl-base" in needed(read_status(STATUS), ["bash"], [])


def test_packages_that_are_not_installed() -> None:
    """Left-over settings are no package."""
    assert "gone" not in {package.name for package in read_status(STATUS)}


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_go_with_their_packages() -> None:
    """Those of packages that stay, stay; through the link of a merged /usr too."""
    made, _layer = tree(root_tar())
    assert {"usr/bin/bash", "usr/bin/mawk", "bin"} <= set(names(made))
    assert not {"usr/bin/dpkg", "usr/bin/perl", "usr/share/perl/x.pm"} & set(names(made))
    assert {package.name for package in made.packages} == {"bash", "base-files", "mawk", "libc6", "libtinfo6"}


@pytest.mark.parametrize(
    "path",
    [
        "etc/apt/sources.list",
        "etc/machine-id",
        "etc/passwd-",
        "etc/shadow",
        "var/log/dpkg.log",
        "var/cache/ldconfig/aux-cache",
        "var/lib/apt/lists/x",
        "usr/share/doc/bash/README",
        "usr/share/python3/__pycache__/x.pyc",
        "dev/null",
        "root/.bashrc",
    ],
)
def test_traces_are_dropped(path: str) -> None:
    """Nothing of the build, the mirror or the host is left."""
    assert path not in names(tree(root_tar(**{path: "trace"}))[0])


def test_what_a_run_needs() -> None:
    """The user, the places that runs are mounted on, empty settings of the network."""
    made, layer = tree(root_tar(**{"etc/resolv.conf": "nameserver 192.0.2.1", "etc/passwd": "x:x:5:5:::\n"}))
    entries = {entry.name: (entry, content) for entry, content in made.entries}
    assert b"jar:x:1000:1000:jar:/tmp/home:" in (entries["etc/passwd"][1] or b"")
    assert entries["etc/resolv.conf"][1] == b""
    for path in ("workspace", "run/jar", "tmp/home"):
        assert (entries[path][0].uid, entries[path][0].isdir()) == (1000, True)
    assert entries["tmp"][0].mode == 0o1777
    assert b"192.0.2.1" not in layer


def test_no_rights_are_lent() -> None:
    """Set-id bits and rights of everyone to write are taken away, owners are root, times are the recipe's."""
    files = {"usr/bin/su": member("", mode=0o4755), "opt": member("", mode=0o2777, kind=tarfile.DIRTYPE)}
    files["usr/bin/su"].uid, files["usr/bin/su"].mtime = 7, 12345
    entries = {entry.name: entry for entry, _content in tree(root_tar(**files))[0].entries}
    assert (entries["usr/bin/su"].mode, entries["opt"].mode) == (0o755, 0o755)
    assert (entries["usr/bin/su"].uid, entries["usr/bin/su"].mtime) == (0, EPOCH)


def test_hard_links_lead_back() -> None:
    """A link whose file sorts after it, or goes: the first name is the file."""
    links = {"usr/bin/aaa": member("", kind=tarfile.LNKTYPE, link="./usr/bin/zzz"), "usr/bin/zzz": "content"}
    links |= {"usr/bin/kept": member("", kind=tarfile.LNKTYPE, link="./usr/bin/perl")}
    _made, layer = tree(root_tar(**dict(sorted(links.items(), reverse=True))))
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        assert archive.getmember("usr/bin/aaa").isreg()
        assert archive.getmember("usr/bin/zzz").linkname == "usr/bin/aaa"
        file = archive.extractfile("usr/bin/kept")
        assert file is not None
        assert file.read() == b"perl"


def test_dangling_alternatives() -> None:
    """Links to programs that went with their package go too."""
    links = {
        "etc/alternatives/pager": member("", kind=tarfile.SYMTYPE, link="/usr/bin/dpkg"),
        "usr/bin/pager": member("", kind=tarfile.SYMTYPE, link="/etc/alternatives/pager"),
        "etc/alternatives/awk": member("", kind=tarfile.SYMTYPE, link="/bin/mawk"),
    }
    found = names(tree(root_tar(**links))[0])
    assert "etc/alternatives/awk" in found
    assert not {"etc/alternatives/pager", "usr/bin/pager"} & set(found)


def test_directories_come_first() -> None:
    """In order, so that everything is unpacked into a directory with the right mode."""
    found = names(tree(root_tar())[0])
    assert found == sorted(found, key=lambda name: name.split("/"))


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_same_files_same_id(tmp_path: Path) -> None:
    """Other times, owners and order in what was installed; the same archive, byte for byte."""
    made = []
    for number, data in enumerate((root_tar(a="1", b="2"), root_tar(b="2", a="1"))):
        with tarfile.open(fileobj=io.BytesIO(data)) as root:
            for entry in root.getmembers():
                entry.mtime, entry.uname = number, f"user{number}"
            chosen = straighten(root, Recipe())
            layer = write_layer(str(tmp_path / f"layer{number}"), contents(root, chosen.entries))
        out = io.BytesIO()
        image = write_archive(out, layer, image_config(layer, architecture="amd64", recipe="r"), "x:1")
        made.append((image, layer.digest, out.getvalue()))
    assert made[0] == made[1]


def test_other_files_other_id(tmp_path: Path) -> None:
    """The control: one byte more, another ID."""
    ids = set()
    for text in ("1", "12"):
        with tarfile.open(fileobj=io.BytesIO(root_tar(a=text))) as root:
            layer = write_layer(str(tmp_path / text), contents(root, straighten(root, Recipe()).entries))
        ids.add(image_config(layer, architecture="amd64", recipe="r"))
    assert len(ids) == 2


def test_config() -> None:
    """An ordinary user, belljar's labels, a fixed date."""
    config = image_config(Layer("", "0" * 64, 0), architecture="arm64", recipe="abc").decode()
    for part in ('"User":"1000:1000"', '"belljar.image":"1"', '"belljar.recipe":"abc"', f'"created":"{DATE}"'):
        assert part in config


# --- recipes ---------------------------------------------------------------------------------------------------------


def digest(recipe: Recipe, **changes: str) -> str:
    return recipe.digest(**({"release": "bookworm", "architecture": "amd64", "code": "1"} | changes))


def test_recipe_digest() -> None:
    """Changes with what is asked for and where, and with nothing else."""
    base = digest(Recipe())
    assert base == digest(make_recipe(None, [], []))
    others = [digest(Recipe(), release="trixie"), digest(Recipe(), architecture="arm64"), digest(Recipe(), code="2")]
    others += [
        digest(make_recipe("x", ["git"], [])),
        digest(make_recipe("x", [], ["git"])),
        digest(make_recipe("x", [], [])),
    ]
    assert len({base, *others}) == 7
    assert digest(make_recipe("x", ["bb", "aa", "aa"], [])) == digest(make_recipe("x", ["aa", "bb"], []))


@pytest.mark.parametrize(
    ("name", "packages", "requirements"),
    [
        (None, ["git"], []),
        ("x", ["--option"], []),
        ("x", ["a b"], []),
        ("x", [], ["--index-url=x"]),
        ("x", [], [" "]),
        ("x", [], ["./here"]),
        ("x", [], ["x @ git+file:x"]),
        ("x", [], ["x.zip/../y"]),
        ("X", [], []),
        ("-x", [], []),
        ("belljar-base", [], []),
        ("belljar-base:2", ["git"], []),
    ],
)
def test_recipes_that_make_no_sense(name: str | None, packages: list[str], requirements: list[str]) -> None:
    """No option of another program, and not under the base image's name."""
    with pytest.raises(UsageError):
        make_recipe(name, packages, requirements)


def test_the_dockerfile_says_the_same() -> None:
    """The same packages go in and come out, under the same name."""
    text = (ROOT / "images/base/Dockerfile").read_text()
    installed = re.search(r"--no-install-recommends \\\n(.*?)\n\n", text, re.DOTALL)
    assert installed is not None
    assert sorted(installed[1].replace("\\", "").split()) == sorted(ROOTS)
    removed = re.search(r"for package in (.*?); do", text, re.DOTALL)
    assert removed is not None
    ours = {"cdebconf", "debian-archive-keyring", "usrmerge"}  # in no image that the Dockerfile begins with
    assert set(NEVER) - ours <= set(removed[1].replace("\\", "").split())
    assert f"--tag {REPOSITORY}:{VERSION}" in text
    assert f"{REPOSITORY}:{VERSION}" == BASE_IMAGE
