"""Programs that only start another one: shims of pyenv, asdf, mise and volta, and wrappers of one line.

A jar does not have a version manager, so belljar asks it on the host which program the shim stands for. The manager
runs in `/`, without directories of the project on PATH, and a file of the project is never taken as a shim: files of
the project choose no program that is started here.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from belljar.backends.runtimes import find_program
from belljar.errors import PrerequisiteError
from belljar.policy.paths import beneath, visited

_MANAGED = re.compile(r'^\s*exec\s+"?(/[^"\s]+)"?\s+exec\s', re.MULTILINE)
_WRAPPED = re.compile(r'^\s*exec\s+"?(/[^"\n]+?)"?\s+"\$@"\s*$', re.MULTILINE)
_EXPORTED = re.compile(r'^\s*export\s+([A-Z][A-Z0-9_]*)="([^"$`\\]*)"\s*$', re.MULTILINE)
"""Where the manager has its files, as a shim of pyenv tells it."""
_BINARIES = {"mise": "mise", "volta-shim": "volta"}
"""Managers whose shims are links to one program, by that program's name; the other is what to ask."""
_LARGEST = 8192
_DEEPEST = 4
_SECONDS = 20.0
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,40}")
_VERSION_VARIABLES = ("PYENV_VERSION", "ASDF_PYTHON_VERSION", "MISE_PYTHON_VERSION")


def is_reached_through(directory: str, path: str) -> bool:
    """Return True if `path`, or a link on its way, lies in `directory`: its files decide what is opened there."""
    return any(beneath(step, directory) for step in visited(path))


def without_project(environ: Mapping[str, str], project: str) -> dict[str, str]:
    """The environment without the project's directories on PATH: an agent could have put programs there."""
    kept = [one for one in environ.get("PATH", "").split(":") if one and not is_reached_through(project, one)]
    return {**environ, "PATH": ":".join(kept)}


def real_program(path: str, environ: Mapping[str, str], project: str) -> str:
    """The program that the file at `path` starts in the end; `path` itself if that is no shim, or the project's.

    Raises:
        PrerequisiteError: it is a shim, and its manager names no program.

    """
    environ = without_project(environ, project)
    for _ in range(_DEEPEST):
        following = None if is_reached_through(project, path) else _following(path, environ, project)
        if following is None:
            return path
        path = following
    raise PrerequisiteError(f"{path} is one of more than {_DEEPEST} programs that start one another")


def _following(path: str, environ: Mapping[str, str], project: str) -> str | None:
    real = os.path.realpath(path)
    if manager := _BINARIES.get(os.path.basename(real)):
        if os.path.basename(path) in (manager, os.path.basename(real)):
            return None  # the manager itself
        return _asked(os.path.join(os.path.dirname(real), manager), path, environ, project)
    with open(real, "rb") as file:
        text = file.read(_LARGEST + 1).decode("utf-8", "replace")
    if len(text) > _LARGEST or not re.match(r"#!.*\b(sh|bash|dash|zsh)\s*(-\w+\s*)*\n", text):
        return None
    if found := _MANAGED.search(text):
        exported = dict(_EXPORTED.findall(text))
        return _chosen_by_pyenv(path, exported, environ) or _asked(found[1], path, {**environ, **exported}, project)
    found = _WRAPPED.search(text)
    if found and os.path.isfile(found[1]) and os.access(found[1], os.X_OK):
        return found[1]
    return None


def _chosen_by_pyenv(path: str, exported: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """The answer that pyenv gives outside of a project, where that is plain: to ask it takes longer than all else."""
    root = exported.get("PYENV_ROOT", "")
    version = environ.get("PYENV_VERSION") or (_first_line(os.path.join(root, "version")) if root else "")
    program = os.path.join(root, "versions", version, "bin", os.path.basename(path))
    return program if root and _VERSION.fullmatch(version) and os.access(program, os.X_OK) else None


def _first_line(path: str) -> str:
    """The first line of a small file that is no link; empty if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read(64).partition("\n")[0].strip()
    except OSError:
        return ""


def _asked(manager: str, path: str, environ: Mapping[str, str], project: str) -> str:
    """The answer of `MANAGER which NAME`."""
    name, called = os.path.basename(path), os.path.basename(manager)
    if is_reached_through(project, manager):
        raise PrerequisiteError(f"{path} is a shim of {manager}, which lies in the project: belljar does not start it")
    try:
        told = subprocess.run(
            [manager, "which", name],
            cwd="/",
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        ).stdout.decode("utf-8", "surrogateescape")
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    found = told.strip().rpartition("\n")[2]
    usable = found.startswith("/") and os.path.isfile(found) and os.access(found, os.X_OK)
    if not usable or os.path.realpath(found) == os.path.realpath(path):
        raise PrerequisiteError(
            f"{path} is a shim of {called}, and `{called} which {name}` names no program outside of a project",
            hint=f'name the program itself: belljar agent -- "$({called} which {name})"',
        )
    return found


def with_version_of(project: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a manager chooses the Python that the project's `.python-version` names."""
    version = _first_line(os.path.join(project, ".python-version"))
    if not _VERSION.fullmatch(version):
        return dict(environ)
    return {**dict.fromkeys(_VERSION_VARIABLES, version), **environ}


def use_real_node(project: str) -> None:
    """Where `node` on PATH is a shim, have the program that it starts on PATH, for this process alone."""
    path = os.environ.get("PATH", "")
    found = find_program("node", f"/usr/local/bin:/usr/bin:/bin:{path}")
    if found is None:
        return
    try:
        real = real_program(found, os.environ, project)
    except (PrerequisiteError, OSError):
        return  # a jar without node says so itself, to whoever starts it
    if real != found:
        os.environ["PATH"] = f"{os.path.dirname(real)}:{path}"
