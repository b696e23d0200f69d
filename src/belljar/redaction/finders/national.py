"""National ids: each by its form, its rules and, where there is one, its checksum.

A row with a shape is looked for everywhere. One that is digits only, with a weak checksum or none, counts only beside a
word that tells what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from belljar.redaction.finders.checks import luhn, mod_11_10, verhoeff, weighted
from belljar.redaction.finders.shapes import Shapes
from belljar.redaction.kinds import Kind, Span
from belljar.redaction.view import TextView, places


def _true(_value: str) -> bool:
    return True


def _dni(value: str) -> bool:
    number = value[:-1].replace("-", "")
    number = str("XYZ".index(number[0])) + number[1:] if number[0] in "XYZ" else number
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == value[-1]


def _nir(value: str) -> bool:
    number = value.replace(" ", "")
    body = number[:-2].replace("2A", "19").replace("2B", "18")
    return 97 - int(body) % 97 == int(number[-2:])


_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def _codice_fiscale(value: str) -> bool:
    places_ = [ord(letter) - (48 if letter.isdigit() else 65) for letter in value[:-1]]
    total = sum(_ODD[place] if index % 2 == 0 else place for index, place in enumerate(places_))
    return total % 26 == ord(value[-1]) - 65


def _cpf(value: str) -> bool:
    digits = value.replace(".", "").replace("-", "")
    first = weighted(digits, tuple(range(10, 1, -1))) * 10 % 11 % 10
    second = weighted(digits, tuple(range(11, 1, -1))) * 10 % 11 % 10
    return len(set(digits)) > 1 and digits[9:] == f"{first}{second}"


def _personnummer(value: str) -> bool:
    digits = value.replace("-", "").replace("+", "")[-10:]
    return 1 <= int(digits[2:4]) <= 12 and 1 <= int(digits[4:6]) <= 31 and luhn(digits)


def _hetu(value: str) -> bool:
    day, month = int(value[:2]), int(value[2:4])
    number = int(value[:6] + value[7:10])
    return 1 <= day <= 31 and 1 <= month <= 12 and "0123456789ABCDEFHJKLMNPRSTUVWXY"[number % 31] == value[10]


def _ahv(value: str) -> bool:
    digits = value.replace(".", "")
    return weighted(digits, (1, 3) * 6 + (1,)) % 10 == 0


def _bsn(value: str) -> bool:
    return weighted(value, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0 and len(set(value)) > 2


def _pesel(value: str) -> bool:
    return weighted(value, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0 and len(set(value)) > 2


def _nhs(value: str) -> bool:
    digits = value.replace(" ", "").replace("-", "")
    return (11 - weighted(digits, tuple(range(10, 1, -1))) % 11) % 11 == int(digits[9]) and len(set(digits)) > 2


class Form(NamedTuple):
    """One country's id: the shapes to look for, the form, and what must hold."""

    whose: str
    shapes: tuple[bytes, ...]
    pattern: bytes
    holds: Callable[[str], bool]


FORMS = (
    Form("US SSN", (b"000-00-0000",), rb"(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}", _true),
    Form(
        "UK NINO",
        (b"AA000000A", b"AA 00 00 00 A"),
        rb"(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z][ ]?\d\d[ ]?\d\d[ ]?\d\d[ ]?[A-D]",
        _true,
    ),
    Form("ES DNI", (b"00000000A", b"00000000-A"), rb"\d{8}-?[A-HJ-NP-TV-Z]", _dni),
    Form("ES NIE", (b"A0000000A", b"A-0000000-A"), rb"[XYZ]-?\d{7}-?[A-HJ-NP-TV-Z]", _dni),
    Form(
        "FR NIR",
        (b"0" * 15, b"0 00 00 00 000 000 00"),
        rb"[12][ ]?\d\d[ ]?(?:0[1-9]|1[0-2])[ ]?\d\d[ ]?\d{3}[ ]?\d{3}[ ]?\d\d",
        _nir,
    ),
    Form("IT codice fiscale", (b"AAAAAA00A00A000A",), rb"[A-Z]{6}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z]", _codice_fiscale),
    Form("BR CPF", (b"000.000.000-00",), rb"\d{3}\.\d{3}\.\d{3}-\d\d", _cpf),
    Form(
        "IN Aadhaar",
        (b"0000 0000 0000",),
        rb"(?<![0-9A-Fa-f]{4}[ ])[2-9]\d{3}[ ]\d{4}[ ]\d{4}(?![ ][0-9A-Fa-f]{4})",
        lambda value: verhoeff(value.replace(" ", "")),
    ),
    Form("CA SIN", (b"000-000-000",), rb"[1-79]\d\d-\d{3}-\d{3}", lambda value: luhn(value.replace("-", ""))),
    Form("SE personnummer", (b"000000-0000", b"00000000-0000"), rb"(?:19|20)?\d{6}-\d{4}", _personnummer),
    Form("FI henkilötunnus", (b"000000-000",), rb"\d{6}[-A]\d{3}[0-9A-Y]", _hetu),
    Form("CH AHV", (b"000.0000.0000.00",), rb"756\.\d{4}\.\d{4}\.\d\d", _ahv),
)
LABELLED = (
    Form(
        "DE Steuer-ID",
        (b"steuer", b"idnr", b"tax id"),
        rb"[1-9]\d[ ]?\d{3}[ ]?\d{3}[ ]?\d{3}",
        lambda value: mod_11_10(value.replace(" ", "")),
    ),
    Form("NL BSN", (b"bsn",), rb"\d{9}", _bsn),
    Form("PL PESEL", (b"pesel",), rb"\d{11}", _pesel),
    Form("UK NHS", (b"nhs",), rb"\d{3}[ -]?\d{3}[ -]?\d{4}", _nhs),
    Form("US SSN", (b"ssn", b"social security"), rb"(?!000|666|9)\d{3}[ -]?(?!00)\d\d[ -]?(?!0000)\d{4}", _true),
)
_BEFORE, _AFTER = rb"(?<![\w.+/=-])(?<!\d[ ])", rb"(?![\w+=/]|[.-]\w|[ ]\d)"
_FORMS = Shapes(
    (shape, (pattern, form.holds))
    for form in FORMS
    for pattern in [re.compile(_BEFORE + form.pattern + _AFTER)]
    for shape in form.shapes
)
_LABELLED = tuple(
    (
        form.shapes,
        re.compile(
            rb"[\w .\-#/()]{0,24}?[\"']?[ \t]{0,3}[:=>]{0,2}[ \t]{0,3}[\"']?(?<!\d)(" + form.pattern + rb")(?![\w]|-\d)"
        ),
        form.holds,
    )
    for form in LABELLED
)


def national_ids(view: TextView) -> Iterator[Span]:
    """Ids of persons that states give out."""
    for place, (pattern, holds) in _FORMS.word_starts(view):
        found = pattern.match(view.data, place)
        if found and holds(found[0].decode()):
            yield Span(found.start(), found.end(), Kind.NATIONAL_ID)
    for labels, pattern, holds in _LABELLED:
        for label in labels:
            for place in places(view.lower, label):
                after = place + len(label)
                if (place and view.lower[place - 1 : place].isalpha()) or view.shape.find(b"0", after, after + 40) < 0:
                    continue
                found = pattern.match(view.lower, after)
                if found and holds(found[1].decode()):
                    yield Span(found.start(1), found.end(1), Kind.NATIONAL_ID)
