"""Telephone numbers: international ones, national forms with rules of their own, and digits beside a telling word.

Digits in groups are everywhere: dates, versions, ids, tables. A form counts only where it has its country's length and
first digits and no further digits beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from belljar.redaction.finders.shapes import Shapes
from belljar.redaction.kinds import Kind, Span
from belljar.redaction.view import TextView, matches, places

_INTERNATIONAL = re.compile(
    rb"\+(?<![\w+/=.)-]\+)(\d{1,3})[ .\-\xa0]{0,2}(?:\(0?\d{1,5}\)[ .\-]?)?\d{1,12}"
    rb"(?:[ .\-/\xa0]\d{1,8}){0,6}(?![\w+/=]|[.:-]\d)"
)
_CODES = frozenset(
    (  # noqa: SIM905 (a table of words)
        "1 7 20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 "
        "82 84 86 90 91 92 93 94 95 98 211 212 213 216 218 220 221 222 223 224 225 226 227 228 229 230 231 232 233 "
        "234 235 236 237 238 239 240 241 242 243 244 245 246 248 249 250 251 252 253 254 255 256 257 258 260 261 "
        "262 263 264 265 266 267 268 269 290 291 297 298 299 350 351 352 353 354 355 356 357 358 359 370 371 372 "
        "373 374 375 376 377 378 380 381 382 383 385 386 387 389 420 421 423 500 501 502 503 504 505 506 507 508 "
        "509 590 591 592 593 594 595 596 597 598 599 670 672 673 674 675 676 677 678 679 680 681 682 683 685 686 "
        "687 688 689 690 691 692 800 808 850 852 853 855 856 870 878 880 881 882 883 886 888 960 961 962 963 964 "
        "965 966 967 968 970 971 972 973 974 975 976 977 979 992 993 994 995 996 998 "
    ).split()
)
_BEFORE, _AFTER = rb"(?<![\w.+/=:#-])", rb"(?![\w/=:]|[.+-]\w)"
_ALONE_BEFORE, _ALONE_AFTER = rb"(?<!\d[ ])", rb"(?![ ]\d)"
_NORTH_AMERICAN = re.compile(
    _BEFORE
    + rb"(?:\([2-9]\d\d\)[ ]?[2-9]\d\d[ .-]\d{4}|(?:1[.-])?[2-9]\d\d([.-])[2-9]\d\d\1\d{4}|"
    + _ALONE_BEFORE
    + rb"(?:1[ ])?[2-9]\d\d[ ][2-9]\d\d[ ]\d{4}"
    + _ALONE_AFTER
    + rb")"
    + _AFTER
)
_FRENCH = re.compile(_BEFORE + _ALONE_BEFORE + rb"0[1-9]([ .-])\d\d(?:\1\d\d){3}" + _ALONE_AFTER + _AFTER)
_BRITISH = re.compile(
    _BEFORE
    + _ALONE_BEFORE
    + rb"(?:\(?02\d\)?[ ]\d{4}[ ]\d{4}|\(?0[137-8]\d\d\)?[ ]\d{3}[ ]\d{3,4}|\(?0[17]\d{3}\)?[ ]\d{3}[ ]?\d{3})"
    + _ALONE_AFTER
    + _AFTER
)
_NATIONAL = Shapes(
    [
        *(
            (form.replace(b"-", separator), _NORTH_AMERICAN)
            for separator in (b"-", b".", b" ")
            for form in (b"000-000-0000", b"0-000-000-0000", b"000)-000", b"000)000-0000")
        ),
        *((shape, _FRENCH) for shape in (b"00 00 00 00 00", b"00.00.00.00.00", b"00-00-00-00-00")),
        *((shape, _BRITISH) for shape in (b"000 0000 0000", b"0000 000 000", b"00000 000000", b"00000 000 000")),
        *((shape, _BRITISH) for shape in (b"000) 0000 0000", b"0000) 000 000")),
    ]
)
_STEMS = (b"phone", b"tel", b"mobil", b"fax", b"whatsapp", b"cell", b"call", b"sms")
_DOUBTFUL = (b"call", b"cell")
"""Words that are about much else: digits after them have to look like a number to call."""
_LABELLED = re.compile(
    rb"(?:tel(?:ef[o\xf3]n[eo]?|efoon|efax|ephone|\xe9fono|\xe9phone)?|phone|mobile?|m\xf3vil|fax|whatsapp|cell|call|sms|"
    rb"handy|contact)(?:[ _-]?(?:number|nummer|no|num|nr|me|us))?(?:[ ](?:at|on|is|to))?\.?[\"']?[ \t]{0,3}[:=>]{0,2}"
    rb"[ \t]{0,3}[\"']?((?:\+|00)?\(?\d[\d ().\-/]{5,20}\d)(?![\w]|[.:/-]\d)"
)
_SPACED = re.compile(rb"[ /()-]")
_SPELLED = re.compile(rb"[+0(]|[^ ]*[ ./()-]")
_WORD_BEFORE = re.compile(rb"(?:\A|[^a-z]|tele?|mobile|cell)\Z")
_DATE = re.compile(
    rb"(?:19|20)\d\d[-/. ]\d\d|\d{1,2}[/.-]\d{1,2}[/.-](?:19|20)?\d\d\b|1[5-9]\d{8}\Z|1[5-9]\d{11}\Z|"
    rb"\d{1,3}(?:\.\d{1,3}){3}\Z|\d+\.\d+\Z"
)


def phones(view: TextView) -> Iterator[Span]:
    """Numbers that someone could be called by."""
    for found in matches(_INTERNATIONAL, view.data, b"+"):
        if _callable(found):
            yield Span(found.start(), found.end(), Kind.PHONE)
    for place, form in _NATIONAL.word_starts(view):
        # The shape begins at the number's first digit, or after a parenthesis.
        start = place - (view.data[place - 1 : place] == b"(")
        if number := form.match(view.data, start):
            yield Span(number.start(), number.end(), Kind.PHONE)
    for stem in _STEMS:
        for place in places(view.lower, stem):
            yield from _labelled(view, stem, place)


def _callable(found: re.Match[bytes]) -> bool:
    digits = "".join(letter for letter in found[0].decode("latin-1") if letter.isdigit())
    known = any(digits[:length] in _CODES for length in (1, 2, 3))
    if found[0].count(b".") == 1 and not _SPACED.search(found[0]):
        return False  # a number with a fraction
    return known and 8 <= len(digits) <= 15 and (digits[0] != "1" or len(digits) == 11) and len(set(digits)) > 2


def _labelled(view: TextView, stem: bytes, place: int) -> Iterator[Span]:
    found = _LABELLED.match(view.lower, place)
    if found is None or not _WORD_BEFORE.search(view.lower, max(0, place - 8), place):
        return
    number = found[1].rstrip(b" .-/(")
    digits = sum(48 <= byte < 58 for byte in number)
    if stem in _DOUBTFUL and not _SPELLED.match(number):
        return
    if 7 <= digits <= 15 and not _DATE.match(number) and len(set(number)) > 2:
        yield Span(found.start(1), found.start(1) + len(number), Kind.PHONE)
