"""Whether a jar can have a gateway in a namespace of its own: shown by making one."""

from __future__ import annotations

import os

from belljar.backends import kernel
from belljar.backends.network.netlink import Netlink

WITHOUT_VETH = (
    "the kernel makes no veth for this user, so the egress proxy's sockets are in the jar's own namespace: the code's "
    "servers can't have their ports, and attempts on other ports are refused without a record"
)


def has_veth() -> bool:
    """Whether the kernel makes a cable between two namespaces for this user. Forks: for a process of one thread."""
    child = os.fork()
    if child == 0:
        try:
            _lay_cable()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - whatever it is, it could not be done, and nothing here may return
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _lay_cable() -> None:
    if os.geteuid() != 0:
        kernel.unshare(kernel.CLONE_NEWUSER)
    kernel.unshare(kernel.CLONE_NEWNET)
    first = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    kernel.unshare(kernel.CLONE_NEWNET)
    with Netlink() as here:
        here.make_veth("probe0", "probe1", first)
