"""The agent's program: where it is on this host, and what of the host a jar has to see to run it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from belljar.backends.installations import private_paths
from belljar.backends.runtimes import SYSTEM_PREFIXES, find_program
from belljar.coding_agents.home import PLACE
from belljar.coding_agents.project import Project
from belljar.coding_agents.shims import is_reached_through, real_program, without_project
from belljar.errors import PrerequisiteError
from belljar.policy.paths import beneath
from belljar.state import state_directory

_SDK = "claude_agent_sdk"


@dataclass(frozen=True)
class AgentProgram:
    """How it is started in the jar."""

    argv: tuple[str, ...]
    mounts: tuple[dict[str, Any], ...] = ()
    venv: str | None = None
    """The virtual environment of a program that is written in Python."""

    @property
    def policy(self) -> dict[str, Any]:
        """What it needs, as keys of a policy."""
        return {"fs": {"mounts": list(self.mounts)}, **({"python": {"venv": self.venv}} if self.venv else {})}


def find(name: str, environ: Mapping[str, str], project: Project) -> AgentProgram:
    """The program called `name`, on PATH or at that path. Raises PrerequisiteError with what to type."""
    found = os.path.abspath(name) if "/" in name else find_program(name, environ.get("PATH", ""))
    if found is None and name == "claude":
        found = _bundled()
    if found is None or not os.access(found, os.X_OK) or not os.path.isfile(found):
        hint = "npm install -g @anthropic-ai/claude-code, or pip install 'belljar[claude]'" if name == "claude" else ""
        why = "there is no such program" if "/" in name else "it is not on PATH"
        raise PrerequisiteError(f"{name} is not installed on this host: {why}", hint=hint)
    return brought_in(real_program(found, environ, project.directory), environ, project)


def _bundled() -> str | None:
    """The program that the Claude Agent SDK's wheel carries. The SDK itself is not imported."""
    from importlib.util import find_spec

    spec = find_spec(_SDK)
    path = os.path.join(os.path.dirname(spec.origin), "_bundled", "claude") if spec and spec.origin else ""
    return path if os.path.isfile(path) else None


def brought_in(path: str, environ: Mapping[str, str], project: Project) -> AgentProgram:
    """How the jar runs the file at `path`: as it is, from a read-only mount, or by an interpreter that comes along."""
    if is_reached_through(project.directory, path):
        return _of_project(path, environ, project)
    real = os.path.realpath(path)
    interpreter = _interpreter(real)
    if interpreter == "node":
        return _node(real, path, environ, project)
    if interpreter.startswith("python") and (venv := _venv(os.path.abspath(path))):
        return AgentProgram((os.path.join(venv, "bin", os.path.basename(path)),), venv=venv)
    if _in_system(path) and _in_system(real):
        return AgentProgram((path,))
    if interpreter and not os.path.exists(f"/usr/bin/{interpreter}"):
        raise PrerequisiteError(
            f"{path} is a script for {interpreter}, which a jar does not have", hint="put both into a --policy's mounts"
        )
    return AgentProgram((f"{PLACE}/bin/{os.path.basename(real)}",), (_shown("bin", os.path.dirname(real)),))


def _of_project(path: str, environ: Mapping[str, str], project: Project) -> AgentProgram:
    """A program of the project's: where the jar has the project. Nothing else is shown for it.

    Its directory would come with what the jar's view of the project lacks, such as `.git`; and a link that an agent
    made would have any directory shown.
    """
    place, real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)), os.path.realpath(path)
    shown, leads_to = project.inside(place), project.inside(real)
    if leads_to is not None and _interpreter(real) == "node":
        return _node(real, path, environ, project)
    if shown is not None and (venv := _venv(place)):
        return AgentProgram((place,), venv=venv)
    if shown is not None and (leads_to or _in_system(real)):
        return AgentProgram((shown,))
    if leads_to is not None:
        return AgentProgram((leads_to,))
    raise PrerequisiteError(
        f"{path} is a link of the project's, and leads out of it: to {real}",
        hint=f"if that is right, name the program itself: belljar agent -- {shlex.quote(real)}",
    )


def _shown(name: str, source: str) -> dict[str, Any]:
    home = os.path.realpath(os.path.expanduser("~"))
    places = [os.path.realpath(place) for place in private_paths(state_directory())]
    if beneath(home, source) or any(beneath(source, place) or beneath(place, source) for place in places):
        raise PrerequisiteError(
            f"the agent's program lies in {source}, and the jar would see all that is yours there",
            hint="move it into a directory of its own: mkdir ~/bin",
        )
    return {"path": f"{PLACE}/{name}", "source": source, "rw": False}


def _node(script: str, called: str, environ: Mapping[str, str], project: Project) -> AgentProgram:
    """A script of npm's: its package, with those that it needs beside it, and node: the one beside it, or on PATH."""
    directories = f"{os.path.dirname(os.path.abspath(called))}:{environ.get('PATH', '')}"
    found = find_program("node", without_project({"PATH": directories}, project.directory)["PATH"])
    if found is None:
        raise PrerequisiteError(f"{script} needs node, which is not on PATH", hint="apt install nodejs")
    node = os.path.realpath(real_program(found, environ, project.directory))
    mounts: list[dict[str, Any]] = []
    if not _in_system(node):
        mounts.append(_shown("node", os.path.dirname(node)))
        node = f"{PLACE}/node/{os.path.basename(node)}"
    if inside := project.inside(script):
        script = inside
    elif not _in_system(script):
        root = script[: script.index("/node_modules/") + 13] if "/node_modules/" in script else os.path.dirname(script)
        mounts.append(_shown("node_modules", root))
        script = f"{PLACE}/node_modules/{os.path.relpath(script, root)}"
    return AgentProgram((node, script), tuple(mounts))


def _interpreter(path: str) -> str:
    """The program that a `#!` line names, without its directory; empty for what is no script."""
    with open(path, "rb") as file:
        first = file.read(256).split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return ""
    words = [os.path.basename(word) for word in first[2:].decode("utf-8", "replace").split() if word[:1] != "-"]
    return next((word for word in words if word != "env"), "")


def _venv(path: str) -> str | None:
    """The virtual environment that a program lies in, by its real place or the one it was called by."""
    for place in (path, os.path.realpath(path)):
        directory = os.path.dirname(os.path.dirname(place))
        if os.path.isfile(os.path.join(directory, "pyvenv.cfg")):
            return directory
    return None


def _in_system(path: str) -> bool:
    return any(path.startswith(f"{prefix}/") for prefix in SYSTEM_PREFIXES)
