"""Building an image with no registry: packages by mmdebstrap, the files by `tree`, the archive by ourselves."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile

from belljar.backends.container.images import archive, store, tree
from belljar.backends.container.images import bootstrap as bootstrapping
from belljar.backends.container.images.archive import engine_architecture, image_config, write_archive, write_layer
from belljar.backends.container.images.bootstrap import Tell, bootstrap
from belljar.backends.container.images.python_packages import fetch_packages
from belljar.backends.container.images.recipe import Recipe
from belljar.backends.container.images.sources import Sources, host_sources
from belljar.backends.container.images.store import Record
from belljar.backends.container.images.tree import contents, straighten


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
