"""The part of `socket` that belljar's own processes talk through, under the same names.

The standard module makes enumerations of all that the kernel can name when it is imported, which takes 2 ms of every
start. To mypy this *is* the standard one. What speaks to a network imports that.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from socket import *  # noqa: F403
    from socket import socket

    def bare_pair(family: int, kind: int) -> tuple[socket, socket]:
        """As `socketpair`, for who makes many: the ends are no blocks, and have to be closed."""
else:
    import _socket
    from _socket import *  # noqa: F403

    class socket(_socket.socket):  # noqa: N801 - the standard name
        """A socket that is closed when its block ends."""

        __slots__ = ()

        def __enter__(self):
            return self

        def __exit__(self, *_exception):
            self.close()

    def socketpair(family, kind):
        """Two connected ends."""
        return tuple(socket(family, kind, 0, end.detach()) for end in _socket.socketpair(family, kind))

    bare_pair = _socket.socketpair
