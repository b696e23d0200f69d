"""Answering the DNS questions of a jar: sans I/O, one message in, one message out. Nothing is asked of anyone else.

An allowed name has the addresses that stand for it; its other types are empty, never NXDOMAIN, or resolvers would
believe that the whole name is missing. Any other name does not exist.
"""

from __future__ import annotations

from collections.abc import Callable

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

TTL_SECONDS = 60
_MAX_MESSAGE = 4096

Lookup = Callable[[str], tuple[str, str] | None]
"""From a name as it was asked for to the IPv4 and the IPv6 address that stand for it, or None: it does not exist."""


def answer(wire: bytes, lookup: Lookup) -> bytes | None:
    """The answer to one message, or None: it is none that deserves one."""
    if not 12 <= len(wire) <= _MAX_MESSAGE:
        return None
    try:
        query = dns.message.from_wire(wire, ignore_trailing=True)
        if query.flags & dns.flags.QR:
            return None
        response = dns.message.make_response(query, recursion_available=True)
        _fill(query, response, lookup)
        return response.to_wire()
    except (dns.exception.DNSException, ValueError, IndexError):  # hostile bytes, in forms the parser names variously
        return None


def _fill(query: dns.message.Message, response: dns.message.Message, lookup: Lookup) -> None:
    if query.opcode() != dns.opcode.QUERY:
        response.set_rcode(dns.rcode.NOTIMP)
        return
    if len(query.question) != 1:
        response.set_rcode(dns.rcode.FORMERR)
        return
    question = query.question[0]
    if question.rdclass != dns.rdataclass.IN:
        response.set_rcode(dns.rcode.REFUSED)
        return
    found = lookup(question.name.to_text(omit_final_dot=True))
    if found is None:
        response.set_rcode(dns.rcode.NXDOMAIN)
        return
    for kind, address in zip((dns.rdatatype.A, dns.rdatatype.AAAA), found, strict=True):
        if question.rdtype in (kind, dns.rdatatype.ANY) and address:
            response.answer.append(dns.rrset.from_text(question.name, TTL_SECONDS, dns.rdataclass.IN, kind, address))
