"""The login that Claude Code keeps in the user's home: its token is for the egress proxy, and never inside of a jar."""

from __future__ import annotations

import json
import os
import time

from belljar.errors import PrerequisiteError

VARIABLE = "CLAUDE_CODE_OAUTH_TOKEN"
_OTHERS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", VARIABLE)
_LARGEST = 1 << 20
_SHORTEST_SECONDS = 60.0
"""A login that ends sooner would not last for one question."""


def use_login() -> None:
    """Where no variable holds a key, have the login's token in one, for this process alone.

    Raises:
        PrerequisiteError: there is a login, and it has expired. belljar does not renew it: Claude Code would then have
            an old one.

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
    if expires and expires / 1000 < time.time() + _SHORTEST_SECONDS:
        ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(expires / 1000))
        raise PrerequisiteError(
            f"the login of Claude Code in {directory} has expired ({ended})",
            hint="claude -p hello   (outside of a jar: it renews the login)",
        )
    os.environ[VARIABLE] = token
