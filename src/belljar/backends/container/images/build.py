"""Building an image with no registry: packages by mmdebstrap, the files by `tree`, the archive by ourselves."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile

from belljar.backends.container.images import archive, store, tree
from belljar.backends.container.images import bootstrap as bootstrapping
from belljar.backends.container.images.archive import engine_architecture, image_config, write_archive, write_layer
from belljar.backends.container.images.bootstrap import Tell, bootstrap
from belljar.backends.container.images.recipe import Recipe
from belljar.backends.container.images.sources import Sources, host_sources, python_version
from belljar.backends.container.images.store import Record
from belljar.backends.container.images.tree import contents, straighten
from belljar.errors import PrerequisiteError, SandboxUnavailableError

# Python packages for an image: wheels for the Python inside, fetched by this host's pip, none of them built or run.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "i386": "i686", "ppc64el": "ppc64le", "s390x": "s390x"}
_GLIBC = ("_2_36", "_2_35", "_2_34", "_2_31", "_2_28", "_2_27", "_2_24", "_2_17", "2014")
"""What wheels may ask of the C library; Debian 12 has 2.36."""


def fetch_packages(requirements: tuple[str, ...], sources: Sources, scratch: str) -> str:
    """A directory `pythonVERSION/dist-packages` with the packages in it.

    Raises:
        PrerequisiteError: there is no pip here, or it is not known which Python the image will have.
        SandboxUnavailableError: pip did not find the packages as wheels.

    """
    version = python_version()
    site = os.path.join(scratch, f"python{version}", "dist-packages")
    machine = _MACHINES.get(sources.architecture, sources.architecture)
    command = [
        *_pip(),
        *("install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile", "--no-warn-conflicts"),
        *(f"--platform=manylinux{tag}_{machine}" for tag in _GLIBC),
        *(f"--python-version={version}", "--implementation=cp", "--only-binary=:all:", f"--target={site}"),
        *("--", *requirements),
    ]
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        stdin=subprocess.DEVNULL,
        cwd=scratch,  # a file here that has the name of a package must not be taken for it
    )
    if done.returncode:
        raise SandboxUnavailableError(
            f"pip could not get {', '.join(requirements)}: {_complaint(done.stderr)}",
            hint=f"only wheels for Python {version} on {machine} are taken; nothing is compiled",
        )
    shutil.rmtree(os.path.join(site, "bin"), ignore_errors=True)  # scripts that name the host's own interpreter
    return site


def _pip() -> list[str]:
    for command in ([sys.executable, "-m", "pip"], ["python3", "-m", "pip"], ["pip"]):
        try:
            if subprocess.run([*command, "--version"], check=False, capture_output=True).returncode == 0:
                return command
        except OSError:
            continue
    raise PrerequisiteError("there is no pip here, and --pip needs it", hint="apt install python3-pip")


def _complaint(stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    return (errors or stderr.strip().splitlines() or ["no reason was given"])[-1].removeprefix("ERROR: ")


def build(recipe: Recipe, *, tell: Tell, fresh: bool = False) -> Record:
    """The image's archive in the cache, built if it is not there or if `fresh` asks for the packages of today.

    Raises:
        PrerequisiteError: a program is missing, or this host has no apt sources.
        SandboxUnavailableError: the packages could not be fetched or installed.

    """
    tell("asking apt for its sources")
    sources = host_sources()
    digest = recipe.digest(release=sources.release, architecture=sources.architecture, code=_code())
    if not fresh and (found := store.cached(digest)):
        return found
    with store.building(digest) as scratch:
        if not fresh and (found := store.cached(digest)):
            return found
        record = _build(recipe, sources, digest, scratch, tell)
        store.keep(os.path.join(scratch, "image.tar"), record)
        return record


def _code() -> str:
    """The source of what decides on the image's bytes: with other code, what the cache holds is not what we make."""
    digest = hashlib.sha256()
    for module in (archive, bootstrapping, tree):
        with open(str(module.__file__), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def _build(recipe: Recipe, sources: Sources, digest: str, scratch: str, tell: Tell) -> Record:
    """The archive is `image.tar` in `scratch`."""
    site = None
    if recipe.requirements:
        tell("fetching Python packages")
        site = fetch_packages(recipe.requirements, sources, scratch)
    root = os.path.join(scratch, "root.tar")
    temporary = os.path.join(scratch, "tmp")
    os.mkdir(temporary)
    bootstrap(recipe, sources, root, scratch=temporary, site=site, tell=tell)
    tell("putting the image together")
    with tarfile.open(root, "r:") as installed:
        tree = straighten(installed, recipe)
        layer = write_layer(os.path.join(scratch, "layer.tar"), contents(installed, tree.entries))
    config = image_config(layer, architecture=engine_architecture(sources.architecture), recipe=digest)
    with open(os.path.join(scratch, "image.tar"), "wb") as file:
        image = write_archive(file, layer, config, recipe.name)
    return Record(
        id=image,
        name=recipe.name,
        recipe=digest,
        layer=f"sha256:{layer.digest}",
        size=layer.size,
        release=sources.release,
        architecture=sources.architecture,
        packages=tuple(f"{package.name} {package.version}" for package in tree.packages),
        requirements=recipe.requirements,
    )


def export(record: Record, path: str) -> None:
    """Copy the archive out of the cache, for an engine on another machine."""
    shutil.copyfile(store.archive_path(record.recipe), path)
