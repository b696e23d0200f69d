"""The agent's home: what it kept of earlier calls, and what it would ask a person about. Nothing of the user's own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from belljar.sandbox.repository.host_git import GitError, git_program

if TYPE_CHECKING:
    from belljar.coding_agents.kept_home import KeptHome

HOME = "/home/agent"
PLACE = "/opt/agent"
"""Where the jar has the agent's program, and what else it needs of the host."""
_SECONDS = 5.0


def mounts(kept: Iterable[KeptHome]) -> dict[str, Any]:
    """The home as keys of a policy: empty, with copy-on-write views of what is kept."""
    shown = [
        {"path": f"{HOME}/{name}", "source": source, "rw": True, "cow": True}
        for one in kept
        for name, source in one.mounts.items()
    ]
    return {"fs": {"mounts": [{"path": HOME, "rw": True}, *shown]}}


def git_identity(environ: Mapping[str, str]) -> dict[str, str]:
    """The name and address that commits carry, from the user's own settings of git; the project's are not asked."""
    found = {}
    for key in ("user.name", "user.email"):
        try:
            command = [git_program(), "config", "--global", "--get", key]
            told = subprocess.run(
                command, cwd="/", env=dict(environ), capture_output=True, timeout=_SECONDS, check=False
            ).stdout
        except (GitError, OSError, subprocess.TimeoutExpired):
            break
        if value := told.decode(errors="replace").strip():
            found[key] = value
    return found


def git_settings(identity: Mapping[str, str]) -> str:
    """A .gitconfig with that, and nothing else."""
    quoted = {key.partition(".")[2]: json.dumps(value, ensure_ascii=False) for key, value in identity.items()}
    lines = [f"\t{key} = {value}\n" for key, value in quoted.items()]
    return "[user]\n" + "".join(lines) if lines else ""


def claude_settings(placeholders: Collection[str], project: str) -> str:
    """Answer what Claude Code asks at its first start: may it use the key, skip permissions, trust the project."""
    return json.dumps(
        {
            "hasCompletedOnboarding": True,
            "bypassPermissionsModeAccepted": True,
            "customApiKeyResponses": {"approved": sorted({key[-20:] for key in placeholders}), "rejected": []},
            "projects": {project: {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
        }
    )


def gemini_settings() -> str:
    """What Gemini CLI keeps in ~/.gemini/settings.json: that it has a key. With another endpoint it asks otherwise."""
    return json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}, indent=1)
