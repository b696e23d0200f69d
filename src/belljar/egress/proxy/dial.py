"""Reaching a host: its addresses, each judged before it is dialled, and the one that was judged is dialled."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from typing import Any

from belljar.egress.decide.rules import Rules
from belljar.egress.decide.steps import Verdict, addresses_for, decide_address
from belljar.egress.proxy.waiting import until_writable

_CONNECT_SECONDS = 10.0
_RESOLVE_SECONDS = 10.0
_KEPT_SECONDS = 5.0
_MAX_KEPT = 1024


class UnreachableError(Exception):
    """The host was not reached; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Dialler:
    """Dials, and remembers for some seconds what names resolved to."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, tuple[str, ...]]] = {}

    async def dial(self, rules: Rules, host: str, port: int, resolving: asyncio.Semaphore) -> socket.socket:
        """A connected socket that does not block. `resolving` bounds the names that a run asks for at once.

        Raises:
            UnreachableError: no address of the host may be dialled, or none answers.
        """
        named = addresses_for(rules, host, port)
        places = named or [(ip, None) for ip in await self._resolve(host, resolving)]
        refused: Verdict | None = None
        failed = ""
        for ip, other_port in places:
            verdict = decide_address(rules, host, port, ip)
            if not verdict.allowed:
                refused = refused or verdict
                continue
            try:
                return await _connect(ip, other_port or port)
            except OSError as error:
                failed = error.strerror or str(error)
        if refused is not None and not failed:
            raise UnreachableError(refused)
        raise unreachable(failed or "the name has no address")

    async def _resolve(self, host: str, resolving: asyncio.Semaphore) -> tuple[str, ...]:
        found = self._kept.get(host)
        if found is not None and found[0] > time.monotonic():
            return found[1]
        async with resolving:
            try:
                answers = await asyncio.get_running_loop().create_task(_ask(host))
            except (OSError, UnicodeError) as error:
                raise unreachable(f"the name can't be resolved: {error}") from error
        now = time.monotonic()
        addresses = tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[host] = (now + _KEPT_SECONDS, addresses)
        return addresses


async def _ask(host: str) -> Any:
    """Ask DNS, in a task of the loop's: what bounds its time needs one."""
    asking = asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return await asyncio.wait_for(asking, timeout=_RESOLVE_SECONDS)


def unreachable(detail: str) -> UnreachableError:
    """For a host that may be reached, and can't."""
    return UnreachableError(Verdict(allowed=False, reason="upstream", detail=detail))


async def _connect(ip: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        started = sock.connect_ex((ip, port))
        if started not in (0, errno.EINPROGRESS):
            raise OSError(started, os.strerror(started))
        if started:
            if await until_writable(sock, seconds=_CONNECT_SECONDS) is None:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            outcome = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if outcome:
                raise OSError(outcome, os.strerror(outcome))
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock
