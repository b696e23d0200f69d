"""The agent's home: empty, but for what it would ask a person about. Nothing of the user's own is in it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

HOME = "/home/agent"
_SECONDS = 5.0


def git_identity(environ: Mapping[str, str]) -> dict[str, str]:
    """The name and address that commits carry, from the user's own settings of git; the project's are not asked."""
    found = {}
    for key in ("user.name", "user.email"):
        command = ["git", "config", "--global", "--get", key]
        try:
            told = subprocess.run(
                command, cwd="/", env=dict(environ), capture_output=True, timeout=_SECONDS, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            break
        if value := told.decode(errors="replace").strip():
            found[key] = value
    return found


def git_settings(identity: Mapping[str, str]) -> str:
    """A .gitconfig with that, and nothing else."""
    quoted = {key.partition(".")[2]: json.dumps(value, ensure_ascii=False) for key, value in identity.items()}
    lines = [f"\t{key} = {value}\n" for key, value in quoted.items()]
    return "[user]\n" + "".join(lines) if lines else ""


def claude_settings(placeholders: Mapping[str, str], project: str) -> str:
    """What Claude Code would ask at its first start: that it may use the key, skip permissions, trust the project."""
    key = placeholders.get("ANTHROPIC_API_KEY", "")
    return json.dumps(
        {
            "hasCompletedOnboarding": True,
            "bypassPermissionsModeAccepted": True,
            "customApiKeyResponses": {"approved": [key[-20:]] if key else [], "rejected": []},
            "projects": {project: {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
        }
    )


def gemini_settings() -> str:
    """What Gemini CLI keeps in ~/.gemini/settings.json: that it has a key. With another endpoint it asks otherwise."""
    return json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}, indent=1)
