"""Whether a mount would show a container engine's socket. Whoever reaches that socket is root on the host.

Names are not enough: the same directory may be mounted at a second place, so directories are compared as files too.
Only the names and the metadata of the host's files are looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from belljar.policy.paths import beneath

_ALWAYS = (
    "/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/var/run/podman/podman.sock",
    "/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock",
    "/run/crio/crio.sock", "/run/buildkit/buildkitd.sock",
)  # fmt: skip
"""Refused whether they are there or not: an engine may be started while the code runs."""
_OF_A_SESSION = ("docker.sock", "podman/podman.sock", "containerd/containerd.sock")
"""Beneath the user's runtime directory, for engines without root."""
_OF_A_HOME = (
    ".docker/run/docker.sock", ".docker/desktop/docker.sock", ".colima/default/docker.sock", ".rd/docker.sock",
    ".orbstack/run/docker.sock",
)  # fmt: skip
"""Beneath a home, for engines in a virtual machine. Only where they are: a home has more in it than these."""
_ANYWHERE = (*_OF_A_SESSION, "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock")
"""Beneath the mount itself: an engine of another user, or with a socket of its own."""
_VARIABLES = ("DOCKER_HOST", "CONTAINER_HOST", "CONTAINERD_ADDRESS")


def shown_by(source: str, environ: Mapping[str, str]) -> str | None:
    """The socket that a mount of `source`, an absolute path without links, would show; None if there is none."""
    sockets = tuple(_sockets(environ))
    for socket in sockets:
        if beneath(socket, source):
            return socket
    for name in _ANYWHERE:
        if _is_socket(path := os.path.join(source, name)):
            return path
    return _under_another_name(source, sockets)


def _sockets(environ: Mapping[str, str]) -> Iterator[str]:
    yield from _ALWAYS
    session = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    for name in _OF_A_SESSION:
        yield os.path.abspath(os.path.join(session, name))
    for variable in _VARIABLES:
        address = environ.get(variable, "")
        path = address.removeprefix("unix:").removeprefix("//")
        if path and address.startswith(("unix:", "/")):
            yield os.path.abspath(path)
    home = os.path.expanduser("~")
    for name in _OF_A_HOME:
        if os.path.lexists(path := os.path.join(home, name)):
            yield path


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _under_another_name(source: str, sockets: tuple[str, ...]) -> str | None:
    """Through links and second mounts: whether a directory above a socket is the same as `source`."""
    own = _identity(source)
    seen: set[str] = set()
    for socket in sockets:
        directory = os.path.dirname(os.path.realpath(socket))
        while own and directory not in seen:
            seen.add(directory)
            if _identity(directory) == own:
                return socket
            directory = os.path.dirname(directory)
    return None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
