"""Images as an engine has them: looked up, listed, loaded, pulled, removed.

An image's ID is the digest of its config, and so of everything in it; that is what goes into results.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from belljar.backends.container.engine.engine import Engine, fault, find_engine
from belljar.backends.container.images.recipe import REPOSITORY, VERSION
from belljar.errors import BelljarError, PrerequisiteError, UsageError

BASE_IMAGE = f"{REPOSITORY}:{VERSION}"
"""The image that runs use when the policy names none."""

LABEL, RECIPE_LABEL = "belljar.image", "belljar.recipe"
ENGINES = {"docker": "docker", "podman": "podman", "nerdctl": "docker"}
"""Each engine, and the backend that it serves."""
_LOAD_SECONDS = 600.0
_MISSING = re.compile(r"no such (?:image|object)|image not known|no image with|not found", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Image:
    """An image that an engine has."""

    id: str
    """`sha256:…`, the digest of its config."""
    name: str
    size: int
    """In bytes, as the engine counts."""
    user: str
    """Whom its programs run as if nobody says; empty or 0 is root."""
    environment: tuple[str, ...]
    labels: dict[str, str]
    names: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    """The digests of what its layers hold; unlike the ID, the same in every kind of engine."""
    created: str = ""
    architecture: str = ""


def find(engine: Engine, name: str) -> Image:
    """The image called `name`. Raises PrerequisiteError, with the command that gets it, if the engine has none."""
    image = look(engine, name)
    if image is None:
        raise PrerequisiteError(f"{engine.name} has no image {name!r}", hint=how_to_get(engine, name))
    return image


def how_to_get(engine: Engine, name: str) -> str:
    """The command that gets a missing image."""
    if short_name(name).partition(":")[0] == REPOSITORY:
        return f"belljar image build --engine {engine.name}"
    return f"{engine.name} pull {name}, or with belljar: belljar image pull --engine {engine.name} {name}"


def look(engine: Engine, name: str) -> Image | None:
    """The image called `name`, if the engine has it. Raises what `fault` makes of any other complaint."""
    if not name or name.startswith("-"):
        raise UsageError(f"{name!r} is no name of an image")
    code, stdout, stderr = engine.attempt("image", "inspect", name)
    if code == 0:
        documents = json.loads(stdout)
        return _image(name, documents[0]) if documents else None
    if _MISSING.search(stderr) and not _is_down(engine, stderr, code):
        return None
    raise fault(engine, stderr, code)


def _is_down(engine: Engine, stderr: str, code: int) -> bool:
    return "daemon" in fault(engine, stderr, code).message


def _image(name: str, found: dict[str, Any]) -> Image:
    """What `image inspect` says; docker and podman differ in where things are."""
    config = found.get("Config") or {}
    digest = str(found["Id"])
    return Image(
        id=digest if digest.startswith("sha256:") else f"sha256:{digest}",
        name=name,
        size=int(found.get("Size") or 0),
        user=str(config.get("User") or found.get("User") or ""),
        environment=tuple(config.get("Env") or ()),
        labels=dict(config.get("Labels") or found.get("Labels") or {}),
        names=tuple(sorted(short_name(tag) for tag in found.get("RepoTags") or ())),
        layers=tuple((found.get("RootFS") or {}).get("Layers") or ()),
        created=str(found.get("Created") or ""),
        architecture=str(found.get("Architecture") or ""),
    )


def short_name(name: str) -> str:
    """Podman writes `localhost/` before the name of what no registry has, docker nothing."""
    return re.sub(r"^(localhost|docker\.io/library)/", "", name)


def list_images(engine: Engine) -> list[Image]:
    """The images that belljar built, by name."""
    listed = engine.run("image", "ls", "--quiet", "--no-trunc", "--filter", f"label={LABEL}=1")
    found = [image for digest in dict.fromkeys(listed.split()) if (image := look(engine, digest))]
    return sorted((_named(image) for image in found), key=lambda image: (image.name, image.id))


def _named(image: Image) -> Image:
    from dataclasses import replace

    return replace(image, name=image.names[0] if image.names else "<none>")


def load(engine: Engine, archive: str, name: str) -> Image:
    """Give the engine an archive that was built."""
    with open(archive, "rb") as file:
        done = subprocess.run(
            engine.command("load"),
            stdin=file,
            capture_output=True,
            check=False,
            env=engine.environment(),
            timeout=_LOAD_SECONDS,
            start_new_session=True,
        )
    if done.returncode:
        raise fault(engine, done.stderr.decode(errors="replace"), done.returncode)
    return find(engine, name)


def pull(engine: Engine, name: str) -> Image:
    """Get an image from its registry; the engine's own progress goes to standard error."""
    if not name or name.startswith("-"):
        raise UsageError(f"{name!r} is no name of an image")
    done = subprocess.run(
        engine.command("pull", name), check=False, env=engine.environment(), stdin=subprocess.DEVNULL, stdout=2
    )
    if done.returncode:
        raise PrerequisiteError(
            f"{engine.name} could not pull {name!r} (code {done.returncode}); what it said is above",
            hint=f"is the name right, and its registry within reach? A private one needs: {engine.name} login",
        )
    return find(engine, name)


def remove(engine: Engine, name: str) -> Image:
    """Take an image away. Raises PrerequisiteError with the containers that use it."""
    image = find(engine, name)
    if users := containers_of(engine, image):
        raise PrerequisiteError(
            f"{engine.name} still uses {name!r}: {', '.join(users)}",
            hint=f"end what runs in them first, or remove them: {engine.name} rm {' '.join(users)}",
        )
    engine.run("image", "rm", name)
    return image


def containers_of(engine: Engine, image: Image) -> list[str]:
    """The names of the containers, running or not, that were made of the image."""
    ancestor = image.id.removeprefix("sha256:") if engine.name == "podman" else image.id
    return engine.run("ps", "--all", "--filter", f"ancestor={ancestor}", "--format", "{{.Names}}").split()


def engines(name: str | None = None, *, left_out: Callable[[str], None] = lambda _reason: None) -> list[Engine]:
    """The engine called `name`, or every one that is installed and answers.

    `left_out` is told of each that is installed and does not answer.

    Raises:
        UsageError: there is no such engine.
        PrerequisiteError: it is not installed or does not answer; or none does.

    """
    if name is not None:
        if name not in ENGINES:
            raise UsageError(f"there is no engine {name!r}", hint=f"use one of {', '.join(ENGINES)}")
        return [_answering(name)]
    found: list[Engine] = []
    problems: list[BelljarError] = []
    for each in ENGINES:
        try:
            found.append(_answering(each))
        except BelljarError as problem:
            problems.append(problem)
    down = [problem for problem in problems if not problem.message.endswith("is not installed")]
    if not found:
        reasons = "; ".join(problem.message for problem in down or problems)
        raise PrerequisiteError(f"no container engine works here: {reasons}", hint=(down or problems)[0].hint)
    for each_down in down:
        left_out(each_down.message)
    return found


def _answering(name: str) -> Engine:
    engine = find_engine(ENGINES[name], name)
    engine.run("image", "ls", "--quiet", timeout=20.0)
    return engine
