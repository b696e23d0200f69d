"""The Python that an agent finds in its jar: the project's virtual environment, or the `python3` of the caller.

An environment refers to an interpreter elsewhere on the host. The jar shows that read-only, as it shows any interpreter
(`backends/installations.py`). What an environment says about itself may be an agent's work, so one that can't be used
is a note and no error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.backends.installations import find_shown, private_paths
from belljar.backends.runtimes import find_program
from belljar.coding_agents.project import Project
from belljar.coding_agents.shims import real_program, with_version_of, without_project
from belljar.errors import BelljarError, PrerequisiteError
from belljar.policy.load.resolve import resolve
from belljar.policy.paths import beneath
from belljar.state import state_directory

_NAMES = (".venv", "venv")


@dataclass(frozen=True)
class Environment:
    """What the jar's Python is, as keys of a policy."""

    policy: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find_environment(project: Project, environ: Mapping[str, str]) -> Environment:
    """Find the virtual environment that is active in the jar, or else the caller's own `python3`.

    It is the one that is active in the caller's shell, wherever that lies; else one in the project, called `.venv` or
    `venv`.
    """
    active = os.path.realpath(environ["VIRTUAL_ENV"]) if environ.get("VIRTUAL_ENV") else ""
    candidates = [active, *(os.path.join(project.directory, name) for name in _NAMES)]
    found = next((path for path in candidates if path and os.path.isfile(f"{path}/pyvenv.cfg")), None)
    if found is not None and not os.path.islink(found):
        why = _why_not({"venv": found})
        if not why:
            return Environment({"python": {"venv": found}, "env": {"set": {"VIRTUAL_ENV": found}}})
        return Environment(_of_caller(project, environ), (f"the virtual environment {found} is not used: {why}",))
    return Environment(_of_caller(project, environ))


def _of_caller(project: Project, environ: Mapping[str, str]) -> dict[str, Any]:
    """The `python3` on PATH, if a jar can show it. Otherwise belljar's own is in the jar, as in any other."""
    found = find_program("python3", without_project(environ, project.directory)["PATH"])
    if found is None or beneath(os.path.realpath(found), project.directory):
        return {}
    try:
        real = os.path.realpath(real_program(found, with_version_of(project.directory, environ), project.directory))
    except (PrerequisiteError, OSError):
        return {}
    return {} if _why_not({"interpreter": real}) else {"python": {"interpreter": real}}


def _why_not(python: dict[str, str]) -> str:
    """Why a jar can't have this Python; empty if it can."""
    try:
        find_shown(
            "python",
            resolve(layers=[{"python": python}], managed=None, layers_are="the project"),
            private_paths(state_directory()),
        )
    except BelljarError as error:
        return error.message
    return ""
