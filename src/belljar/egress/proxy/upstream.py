"""TLS with the hosts that a jar may reach: certificates are verified by this host's roots and those of the policy."""

from __future__ import annotations

import asyncio
import socket
import ssl

from belljar.egress.decide.steps import Verdict
from belljar.egress.proxy.dial import UnreachableError, unreachable
from belljar.egress.proxy.waiting import handshake
from belljar.policy.builtin import HOST_NAME

_HANDSHAKE_SECONDS = 15.0
_MAX_CONTEXTS = 16


class Verifier:
    """Client contexts, kept: loading a host's roots takes tens of milliseconds."""

    def __init__(self, roots: str) -> None:
        self._roots = roots
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._local: ssl.SSLContext | None = None

    def context(self, further: str) -> ssl.SSLContext:
        """A context that trusts the host's roots and these further ones."""
        found = self._contexts.get(further)
        if found is not None:
            return found
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._roots.strip():
            context.load_verify_locations(cadata=self._roots)
        if further.strip():
            context.load_verify_locations(cadata=further)
        while len(self._contexts) >= _MAX_CONTEXTS:
            self._contexts.pop(next(iter(self._contexts)))
        self._contexts[further] = context
        return context

    def _unverified(self) -> ssl.SSLContext:
        """For services on this host's loopback address: nobody is on the way, and no authority signs their name."""
        if self._local is None:
            self._local = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._local.minimum_version = ssl.TLSVersion.TLSv1_2
            self._local.check_hostname = False
            self._local.verify_mode = ssl.CERT_NONE
        return self._local

    async def secure(self, sock: socket.socket, host: str, further: str, protocols: tuple[str, ...]) -> ssl.SSLSocket:
        """TLS over a connected socket, which is taken over, with the host's certificate verified.

        Raises:
            UnreachableError: it could not be.
        """
        context = self._unverified() if host == HOST_NAME else self.context(further)
        context.set_alpn_protocols(list(protocols))  # of the connection that is made now, and of no other
        secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        try:
            await handshake(secured, seconds=_HANDSHAKE_SECONDS)
        except ssl.SSLCertVerificationError as error:
            secured.close()
            verdict = Verdict(allowed=False, reason="upstream-certificate", detail=error.verify_message)
            raise UnreachableError(verdict) from error
        except OSError as error:
            secured.close()
            raise unreachable(f"TLS failed: {getattr(error, 'reason', None) or error}") from error
        except asyncio.CancelledError:
            secured.close()
            raise
        return secured
