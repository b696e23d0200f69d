"""From a text to what is to be redacted in it: every finder once, overlaps settled. Pure.

What is found here lies within one line, and no finder looks beyond its line: so lines can be scanned one by one, or a
thousand at once, with the same result. Private keys, which span lines, are cut out before (`keyblocks`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

from belljar.redaction.escapes import unescaped
from belljar.redaction.finders.addresses import addresses
from belljar.redaction.finders.contacts import emails, url_passwords
from belljar.redaction.finders.named import named_secrets
from belljar.redaction.finders.national import national_ids
from belljar.redaction.finders.numbers import cards, ibans
from belljar.redaction.finders.phones import phones
from belljar.redaction.finders.vendors import tokens, web_tokens
from belljar.redaction.kinds import EVERYTHING, PRECEDENCE, Kind, Span
from belljar.redaction.view import TextView

FINDERS: dict[Kind, Callable[[TextView], Iterable[Span]]] = {
    Kind.TOKEN: tokens,
    Kind.JWT: web_tokens,
    Kind.URL_PASSWORD: url_passwords,
    Kind.NAMED_SECRET: named_secrets,
    Kind.EMAIL: emails,
    Kind.IBAN: ibans,
    Kind.CARD: cards,
    Kind.NATIONAL_ID: national_ids,
    Kind.PHONE: phones,
    Kind.IP: addresses,
}
TOKEN_LIKE = re.compile(rf"<(?:{'|'.join(kind.name for kind in Kind)})_\d{{1,9}}>")


def scan(text: str, kinds: Collection[Kind] = EVERYTHING) -> list[Span]:
    """What is to be redacted, but for private keys, from left to right, nothing twice."""
    found = _found(text, kinds)
    for undone in unescaped(text):
        for start, end, kind in settled(_found(undone.text, kinds)):
            found.append(Span(*undone.origin(start, end), kind))
    found.extend(_literals(text))
    return settled(found)


def _found(text: str, kinds: Collection[Kind]) -> list[Span]:
    view = TextView(text)
    return [span for kind, finder in FINDERS.items() if kind in kinds for span in finder(view)]


def _literals(text: str) -> Iterator[Span]:
    """What looks like a token of ours and is not: see `tokens`."""
    if ">" in text and "_" in text:
        for match in TOKEN_LIKE.finditer(text):
            yield Span(match.start(), match.end(), Kind.LITERAL)


def settled(found: list[Span]) -> list[Span]:
    """Of those that overlap one is left, as long as all of them, of the kind that takes precedence."""
    found.sort()
    result: list[Span] = []
    for span in found:
        if result and span.start < result[-1].end:
            before = result[-1]
            kind = min(before.kind, span.kind, key=PRECEDENCE.__getitem__)
            result[-1] = Span(before.start, max(before.end, span.end), kind)
        else:
            result.append(span)
    return result
