"""Payment cards and IBANs: digits with a checksum."""

from __future__ import annotations

import re
from collections.abc import Iterator

from belljar.redaction.finders.checks import luhn, mod_97
from belljar.redaction.finders.shapes import Shapes
from belljar.redaction.kinds import Kind, Span
from belljar.redaction.view import TextView

_CARD = re.compile(
    rb"(?<![\w.+-])(?<![0-9A-Fa-f]{4}[ ])"
    rb"(?:\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?|\d{4}([ -])\d{6}\2\d{4,5}|\d{14,19})"
    rb"(?![\w+]|[.-]\w|[ ][0-9A-Fa-f]{4}(?!\w))"
)
_CARD_SHAPES = Shapes(
    (shape, _CARD)
    for shape in (b"0" * 14, b"0000 0000 0000 0", b"0000-0000-0000-0", b"0000 000000 0000", b"0000-000000-0000")
)
_BRANDS = re.compile(
    r"4\d{15}(?:\d{3})?|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|"
    r"6(?:011|5\d\d|4[4-9]\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}"
)
_IBAN = re.compile(rb"[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}")
_IBAN_SHAPE = Shapes([(b"AA00", _IBAN)])
_IBANS = (
    "AD:24 AE:23 AL:28 AT:20 AZ:28 BA:20 BE:16 BG:22 BH:22 BR:29 BY:28 CH:21 CR:22 CY:28 CZ:24 DE:22 DK:18 DO:28 "
    "EE:20 EG:29 ES:24 FI:18 FO:18 FR:27 GB:22 GE:22 GI:23 GL:18 GR:27 GT:28 HR:21 HU:28 IE:22 IL:23 IQ:23 IS:26 "
    "IT:27 JO:30 KW:30 KZ:20 LB:28 LC:32 LI:21 LT:20 LU:20 LV:21 MC:27 MD:24 ME:22 MK:19 MR:27 MT:31 MU:30 NL:18 "
    "NO:15 PK:24 PL:28 PS:29 PT:25 QA:29 RO:24 RS:22 SA:24 SC:31 SE:24 SI:19 SK:24 SM:27 ST:25 SV:28 TL:23 TN:24 "
    "TR:26 UA:29 VA:22 VG:24 XK:20 "
)
_LENGTHS = {pair[:2]: int(pair[3:]) for pair in _IBANS.split()}


def cards(view: TextView) -> Iterator[Span]:
    """Numbers with a brand's first digits and length, and the right checksum."""
    for place, form in _CARD_SHAPES.word_starts(view):
        if found := form.match(view.data, place):
            digits = _plain(found[0])
            if _BRANDS.fullmatch(digits) and luhn(digits) and len(set(digits)) > 1:
                yield Span(found.start(), found.end(), Kind.CARD)


def ibans(view: TextView) -> Iterator[Span]:
    """Account numbers of a country that has them, of its length, with the right checksum."""
    for place, form in _IBAN_SHAPE.word_starts(view):
        length = _LENGTHS.get(view.data[place : place + 2].decode())
        if length and (found := form.match(view.data, place)):
            end = _end(found[0], length)
            following = view.data[place + end : place + end + 1]
            if end and not following.isalnum() and mod_97(_plain(found[0][:end])):
                yield Span(place, place + end, Kind.IBAN)


def _plain(value: bytes) -> str:
    return value.replace(b" ", b"").replace(b"-", b"").decode()


def _end(value: bytes, length: int) -> int:
    """Where the last of `length` characters ends, spaces and dashes not counted; 0 if there are fewer."""
    seen = 0
    for place, byte in enumerate(value):
        seen += byte not in b" -"
        if seen == length:
            return place + 1
    return 0
