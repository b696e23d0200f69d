"""A secret that a host sends back, and a token that leaves, in the ways in which programs and services write them."""

from __future__ import annotations

import base64
import binascii
import html
import json
import quopri
import time
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.egress.decide.canary_tokens import Scanner, Tokens
from belljar.egress.decide.encodings import Reflected, Scrubber, SecretFinder, scrub

SECRET = b"sk-ant/api03+Q7_x\"9&z'=value-0001"
TOKEN = b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"


def wrapped(text: bytes, columns: int, end: bytes = b"\n") -> bytes:
    return b"".join(text[at : at + columns] + end for at in range(0, len(text), columns))


def hexdump(text: bytes) -> bytes:
    """As `xxd` prints it."""
    lines = []
    for at in range(0, len(text), 16):
        row = text[at : at + 16]
        pairs = " ".join(row[pair : pair + 2].hex() for pair in range(0, len(row), 2))
        shown = "".join(chr(code) if 32 <= code < 127 else "." for code in row)
        lines.append(f"{at:08x}: {pairs:<39}  {shown}\n")
    return "".join(lines).encode()


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "upper case": bytes.upper,
    "lower case": bytes.lower,
    "reversed": lambda text: text[::-1],
    "base64": base64.b64encode,
    "base64, one byte on": lambda text: base64.b64encode(b"x" + text),
    "base64, two bytes on": lambda text: base64.b64encode(b"xy" + text + b"z"),
    "base64 of a header": lambda text: base64.b64encode(b"Authorization: Bearer " + text + b"\r\n"),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(b"x" + text),
    "base64 in 76 columns": lambda text: base64.encodebytes(b"x" * 40 + text),
    "base64 in 20 columns, CRLF": lambda text: wrapped(base64.b64encode(text), 20, b"\r\n"),
    "base64 in JSON, wrapped": lambda text: json.dumps(base64.encodebytes(b"x" * 40 + text).decode()).encode(),
    "base64, percent-encoded": lambda text: quote(base64.b64encode(text), safe="").encode(),
    "base32": base64.b32encode,
    "base32 in small letters": lambda text: base64.b32encode(b"xyz" + text).lower(),
    "hex": binascii.hexlify,
    "hex in capitals": lambda text: binascii.hexlify(text).upper(),
    "hex with colons": lambda text: binascii.hexlify(text, ":"),
    "hex with 0x and commas": lambda text: ", ".join(f"0x{code:02X}" for code in text).encode(),
    "hex in C": lambda text: "".join(f"\\x{code:02x}" for code in text).encode(),
    "xxd -p": lambda text: wrapped(binascii.hexlify(b"x" * 25 + text), 60),
    "od -An -tx1": lambda text: wrapped(binascii.hexlify(text, " "), 48),
    "percent-encoded": lambda text: quote(text, safe="").encode(),
    "percent-encoded, all of it": lambda text: "".join(f"%{code:02X}" for code in text).encode(),
    "percent-encoded, some of it": lambda text: "".join(
        f"%{code:02x}" if at % 3 else chr(code) for at, code in enumerate(text)
    ).encode(),
    "percent-encoded twice": lambda text: quote(quote(text, safe=""), safe="").encode(),
    "JSON": lambda text: json.dumps(text.decode()).encode(),
    "JSON in JSON": lambda text: json.dumps(json.dumps({"x": text.decode()})).encode(),
    "JSON with escaped slashes": lambda text: json.dumps(text.decode()).replace("/", "\\/").encode(),
    "JSON, escaped": lambda text: "".join(f"\\u{code:04x}" for code in text).encode(),
    "JSON, some of it escaped": lambda text: "".join(
        f"\\u{code:04X}" if at % 2 else chr(code) for at, code in enumerate(text)
    ).encode(),
    "an array of numbers": lambda text: json.dumps(list(text)).encode(),
    "HTML": lambda text: html.escape(text.decode()).encode(),
    "HTML, decimal": lambda text: "".join(f"&#{code};" for code in text).encode(),
    "HTML, hex": lambda text: "".join(f"&#x{code:x};" for code in text).encode(),
    "HTML twice": lambda text: html.escape(html.escape(text.decode())).encode(),
    "UTF-16": lambda text: text.decode().encode("utf-16-le"),
    "UTF-16, big end first": lambda text: text.decode().encode("utf-16-be"),
    "UTF-32": lambda text: text.decode().encode("utf-32"),
    "quoted-printable": lambda text: quopri.encodestring(b"x" * 60 + text),
    "octal": lambda text: "".join(f"\\{code:03o}" for code in text).encode(),
    "spaced out": lambda text: b" ".join(bytes((code,)) for code in text),
}


@pytest.mark.parametrize("way", WAYS)
def test_scrubbed_in_each_way(way: str) -> None:
    """Nothing of it is left that could be read, and nothing else is touched."""
    written = WAYS[way](SECRET)
    assert SECRET not in written or way in ("plain", "quoted-printable", "JSON")
    before, after = b'{"echo": "' * 20, b'", "more": "of the same"}' * 20
    left = scrub(before + written + after, [SECRET])
    assert len(left) == len(before + written + after)
    assert left.startswith(before)
    assert left.endswith(after)
    assert left.count(b"*") >= len(SECRET)
    assert not SecretFinder([SECRET]).finds(left)
    harmless = WAYS[way](b"nothing of the kind, and long enough")
    assert scrub(before + harmless + after, [SECRET]) == before + harmless + after, "control"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [2, 7])
def test_scrubbed_in_pieces(way: str, size: int) -> None:
    """However small the pieces are; at most three characters of it are passed on before it is known."""
    written = b"[" + WAYS[way](SECRET) + b"]" + b"." * 40
    scrubber = Scrubber(Reflected([SECRET]))
    out = b"".join(scrubber.feed(written[at : at + size]) for at in range(0, len(written), size)) + scrubber.finish()
    assert len(out) == len(written)
    if way == "an array of numbers":
        return  # found in one piece only: what it may become is not known before its end
    whole = scrub(written, [SECRET])
    assert out.count(b"*") >= whole.count(b"*") - 3 * 12, (out, whole)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_what_is_not_the_secret_passes(text: bytes, cuts: list[int]) -> None:
    """Unchanged, all of it, wherever it is cut."""
    scrubber = Scrubber([SECRET])
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    out = b"".join(scrubber.feed(text[a:b]) for a, b in pairwise(places))
    assert out + scrubber.finish() == text


STREAMED = (
    b'data: {"delta": "so far"}\n\n',
    b": ping\n\n",
    b'event: x\ndata: {"text": "a \\"quoted\\" word\\n"}\n\n',
    b"plain text\n",
)


@pytest.mark.parametrize("event", STREAMED)
def test_an_event_is_not_held_back(event: bytes) -> None:
    """A stream of events goes on: what can't be the beginning of the secret is passed on at once."""
    assert Scrubber([SECRET]).feed(event) == event


def test_a_short_secret_is_searched_as_it_is() -> None:
    """In more views, four letters would be found in anything."""
    assert scrub(b"a p4ss b P4SS p 4 s s", [b"p4ss"]) == b"a **** b P4SS p 4 s s"


def test_several_secrets() -> None:
    """Each is blotted out, also where one is a part of another."""
    assert scrub(b"user:passw0rd passw0rd other-secret", [b"user:passw0rd", b"passw0rd", b"other-secret"]) == (
        b"************* ******** ************"
    )


@pytest.mark.parametrize("filler", [b"x", b"%41", b"\\u0041", b"&#65;", b'\\"', b"0x41, ", bytes(range(256))])
def test_a_large_body_takes_little_time(filler: bytes) -> None:
    """64 KB, as much as is read at once, of whatever costs most."""
    body = (filler * (65536 // len(filler) + 1))[:65536]
    finder = SecretFinder([SECRET])
    took = []
    for _again in range(3):
        started = time.process_time()
        finder.finds(body)
        finder.begun(body)
        took.append(time.process_time() - started)
    assert min(took) < 0.5


CANARIES = {**WAYS, "xxd": hexdump, "a part of it": lambda text: text[10:28]}


@pytest.mark.parametrize("way", CANARIES)
@pytest.mark.parametrize("size", [11, 100_000])
def test_a_token_in_each_way(way: str, size: int) -> None:
    """Found, however it is cut; and what is no token is not."""
    for text, wanted in ((TOKEN, True), (TOKEN.translate(bytes.maketrans(b"0123456789", b"9876543210")), False)):
        written = b"field=" + CANARIES[way](text) + b"&rest" + b"." * 50
        scanner = Scanner(Tokens([TOKEN]))
        found = any(scanner.finds(written[at : at + size]) for at in range(0, len(written), size))
        assert found is wanted, written


@pytest.mark.parametrize(
    "name",
    [
        f"{TOKEN.decode()}.web.test",
        f"{TOKEN[:20].decode()}.{TOKEN[20:].decode()}.web.test",
        f"{base64.b32encode(TOKEN)[:60].decode()}.{base64.b32encode(TOKEN)[60:].decode()}.web.test",
        f"{TOKEN[:10].decode()}-{TOKEN[10:].decode()}.web.test",
    ],
)
def test_a_token_in_a_name(name: str) -> None:
    """In one label, or in several."""
    assert Tokens([TOKEN]).in_name(name)
    assert not Tokens([b"0" * 40]).in_name(name)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_a_list_of_numbers_in_pieces(size: int) -> None:
    """What may become one is held back, wherever it is cut: no more than the first number is told."""
    secret = b"s3cret-value-4711"
    for before in (b"", b"[1, 115, 51, ", b"numbers: 7"):
        text = before + str(list(secret)).encode() + b" and 115, 51, no more: 115"
        scrubber = Scrubber([secret])
        told = b"".join([scrubber.feed(text[at : at + size]) for at in range(0, len(text), size)]) + scrubber.finish()
        assert len(told) == len(text)
        assert b"51, 99" not in told
        assert b", 52, 55" not in told
        assert told.endswith(b" and 115, 51, no more: 115")


@pytest.mark.parametrize("written", ["%%%02x", "\\u%04x", "%02x", "%c"])
def test_a_long_secret_in_pieces(written: str) -> None:
    """Is found, although less of what came before is looked at again: that takes time, for which other runs wait."""
    secret = bytes(ord("0") + (number * number) % 61 for number in range(1700))
    assert SecretFinder([secret]).context < 12_000
    text = b"x" * 3000 + "".join(written % code for code in secret).encode() + b" end"
    scrubber = Scrubber([secret])
    told = b"".join([scrubber.feed(text[at : at + 1000]) for at in range(0, len(text), 1000)]) + scrubber.finish()
    assert told == b"x" * 3000 + b"*" * (len(text) - 3004) + b" end"
