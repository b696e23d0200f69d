"""Checksums and judgements: whether what has the form of a card, an IBAN, a JWT or a random value is one. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re

_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
_VERHOEFF_D = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    (1, 2, 3, 4, 0, 6, 7, 8, 9, 5),
    (2, 3, 4, 0, 1, 7, 8, 9, 5, 6),
    (3, 4, 0, 1, 2, 8, 9, 5, 6, 7),
    (4, 0, 1, 2, 3, 9, 5, 6, 7, 8),
    (5, 9, 8, 7, 6, 0, 4, 3, 2, 1),
    (6, 5, 9, 8, 7, 1, 0, 4, 3, 2),
    (7, 6, 5, 9, 8, 2, 1, 0, 4, 3),
    (8, 7, 6, 5, 9, 3, 2, 1, 0, 4),
    (9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
)
_VERHOEFF_P = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    (1, 5, 7, 6, 2, 8, 3, 0, 9, 4),
    (5, 8, 0, 3, 7, 9, 6, 1, 4, 2),
    (8, 9, 1, 6, 0, 4, 3, 5, 2, 7),
    (9, 4, 5, 3, 1, 2, 6, 8, 7, 0),
    (4, 2, 8, 6, 5, 7, 3, 9, 0, 1),
    (2, 7, 9, 3, 8, 0, 6, 4, 1, 5),
    (7, 0, 4, 6, 9, 1, 3, 2, 5, 8),
)


def luhn(digits: str) -> bool:
    """The checksum of payment cards, and of several national ids."""
    numbers = [ord(digit) - 48 for digit in reversed(digits)]
    return (sum(numbers[::2]) + sum(_DOUBLED[number] for number in numbers[1::2])) % 10 == 0


def verhoeff(digits: str) -> bool:
    """The checksum of Aadhaar numbers."""
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = _VERHOEFF_D[check][_VERHOEFF_P[place % 8][ord(digit) - 48]]
    return check == 0


def mod_97(iban: str) -> bool:
    """The checksum of an IBAN without its spaces."""
    return int("".join(str(int(letter, 36)) for letter in iban[4:] + iban[:4])) % 97 == 1


def mod_11_10(digits: str) -> bool:
    """ISO 7064 mod 11,10: the checksum of the German tax id."""
    product = 10
    for digit in digits[:-1]:
        total = (ord(digit) - 48 + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == ord(digits[-1]) - 48


def weighted(digits: str, weights: tuple[int, ...]) -> int:
    """The sum of the digits, each times its weight."""
    return sum((ord(digit) - 48) * weight for digit, weight in zip(digits, weights, strict=False))


def entropy(value: str) -> float:
    """Bits for each character, by how often each occurs in the value itself; of a long one the beginning tells."""
    value = value[:_TELLING]
    length = len(value)
    repeated = sum(_WEIGHTS[value.count(letter)] for letter in set(value))
    return math.log2(length) - repeated / length if length else 0.0


_TELLING = 200
_WEIGHTS = (0.0, *(count * math.log2(count) for count in range(1, _TELLING + 1)))
_NO_DIGITS = str.maketrans("", "", "0123456789")


def digits_and_letters(value: str) -> tuple[int, int]:
    """How many of a value are digits, and how many letters or other characters of words."""
    rest = value.translate(_NO_DIGITS)
    return len(value) - len(rest), len(rest) - len(_NO_WORD.findall(rest))


_NO_WORD = re.compile(r"[\W_]")


def varied(value: str, bits: float) -> bool:
    """Whether a value has at least so much entropy; how many different characters it has mostly answers that."""
    different = len(set(value[:_TELLING]))
    if different >= _SURELY_VARIED and bits <= 3:
        return True
    return different >= 2**bits and entropy(value) >= bits


_SURELY_VARIED = 14


def random_looking(value: str) -> bool:
    """Whether a long value looks made by a machine: letters and digits in no pattern, and not written as an example."""
    if not varied(value, min(3.0, math.log2(len(value)) * 0.72)) or placeholder(value):
        return False
    digits, letters = digits_and_letters(value)
    return digits > 0 and letters > 0


def placeholder(value: str) -> bool:
    """Whether a value stands for one: `your-key-here`, `xxxx`, `EXAMPLE`."""
    small = value.lower()
    for word in _PLACEHOLDERS:
        if word in small:
            return True
    return len(set(small)) < 4


_PLACEHOLDERS = (
    "example",
    "xxxx",
    "your",
    "placeholder",
    "changeme",
    "redacted",
    "dummy",
    "1234567890abcdef",
    "....",
    "****",
)


def web_token(value: str) -> bool:
    """Whether the first part of a JWT is one: JSON that names an algorithm."""
    head = value.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return False
    return isinstance(header, dict) and ("alg" in header or "enc" in header)


def basic_credentials(value: str) -> bool:
    """Whether it is `user:password` in base64, as HTTP's Basic scheme has it."""
    try:
        return b":" in base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (ValueError, binascii.Error):
        return False
