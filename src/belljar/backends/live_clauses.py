"""How far `fs.deny_globs` holds in a live mount. It is the same wherever the host's own directory is shown."""

from __future__ import annotations

from collections.abc import Sequence

COVERED_IN_LIVE = "covered files in a live mount, and covered sockets and named pipes of the host"


def lost_in_live(paths: Sequence[str]) -> str:
    """What is lost in live mounts at these paths."""
    return (
        f"{', '.join(paths)} is the host's own directory: a denied file that is replaced, or appears later, can be "
        "read, and a socket or named pipe of the host that appears later can be opened"
    )
