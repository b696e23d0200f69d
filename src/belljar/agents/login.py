"""The login that Claude Code keeps in the user's home: its token is for the egress proxy, and never inside of a jar."""

from __future__ import annotations

import json
import os
import time

from belljar.errors import PrerequisiteError

VARIABLE = "CLAUDE_CODE_OAUTH_TOKEN"
_OTHERS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", VARIABLE)
_LARGEST = 1 << 20


def use_login() -> None:
    """Where no variable holds a key, have the login's token in one, for this process alone.

    Raises:
        PrerequisiteError: there is a login, and it has expired.

    """
    if any(os.environ.get(name) for name in _OTHERS):
        return
    directory = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.join(os.path.expanduser("~"), ".claude")
    try:
        with open(os.path.join(directory, ".credentials.json"), "rb") as file:
            login = json.loads(file.read(_LARGEST))["claudeAiOauth"]
        token, expires = str(login["accessToken"]), float(login.get("expiresAt") or 0)
    except (OSError, ValueError, KeyError, TypeError):
        return
    if expires and expires / 1000 < time.time():
        raise PrerequisiteError("the login of Claude Code has expired", hint="run `claude` once outside of a jar")
    os.environ[VARIABLE] = token
