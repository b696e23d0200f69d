"""Finding secrets in bytes: as they are, and in the encodings that programs and services use without a thought. Pure.

The bytes are read in several views: with escapes decoded (percent, JSON, HTML, quoted-printable), without white space
and NUL (wrapped base64, UTF-16), as hexadecimal digits alone. In each view the secret's forms are searched as they are.
What is compressed, encrypted or cut into pieces on purpose is not found.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

_SHORTEST = 6
"""A shorter secret, or form of one, is searched as it is: in other views it would be found in anything."""
_HELD_AT_ONCE = 4
"""A form of which fewer characters have come is waited for only if nothing stands between them."""
_EXPANSION = 12
"""The most bytes that one character of a form takes where it is written, such as `&amp;#x0041;`."""
_MUCH_CONTEXT, _LEAST_EXPANSION = 8 << 10, 3
"""More than this is looked at again only for a long secret, as much as it takes written as `\\u0041`."""
_LONGEST_ESCAPE = 24

_NAMES = (
    b"amp lt gt quot apos excl num dollar percnt lpar rpar ast plus comma period sol colon semi equals quest commat "
    b"Hat lowbar UnderBar grave lcub lbrace rcub rbrace verbar vert bsol lsqb lbrack rsqb rbrack"
)
_NAMED = dict(zip(_NAMES.split(), b"&<>\"'!#$%()*+,./:;=?@^__`{{}}||\\[[]]", strict=True))
_ESCAPE = re.compile(  # One of three characters comes first, which is quickly found. Repetitions are bounded.
    rb"[%\\&](?:(?<=%)(?:25){0,8}(?P<percent>[0-9A-Fa-f]{2})"
    rb"|(?<=\\)\\{0,3}(?:(?:u00|x|u\{0{0,4}|x\{0{0,4})(?P<hex>[0-9A-Fa-f]{2})\}?"
    rb"|(?P<octal>[0-3][0-7]{2})|(?P<blank>[nrtfv])|(?P<itself>[^0-9A-Za-z\\]))"
    rb"|(?<=&)(?:amp;){0,4}"
    rb"(?:#0{0,5}(?P<decimal>[0-9]{1,3});?|#[xX]0{0,5}(?P<entity>[0-9A-Fa-f]{2});?|(?P<name>[A-Za-z]{2,8});))"
)
_QUOTED = re.compile(rb"=(?:(?P<hex>[0-9A-Fa-f]{2})|\r?\n)")
_HEX_PREFIX = re.compile(rb"0[xX]")
_BEGUN_ESCAPE = re.compile(
    rb"(?:%(?:25){0,8}[0-9A-Fa-f]?|\\{1,8}(?:[ux]\{?0{0,2}[0-9A-Fa-f]?|[0-3][0-7]?)?"
    rb"|&(?:amp;){0,4}(?:#[xX]?[0-9A-Fa-f]{0,5}|[A-Za-z]{0,8})|=[0-9A-Fa-f]?\r?|0[xX]?)\Z"
)
_NUMBER = re.compile(rb"\d+")
_BETWEEN_NUMBERS = 6
"""The most bytes between two of the numbers in which a secret is written as a list."""
_BETWEEN = b" \t\r\n\v\f\0\"',"
"""What wraps, spaces or quotes the characters of a form."""
_NO_HEX = bytes(code for code in range(256) if code not in b"0123456789abcdefABCDEF")


class _View:
    """The bytes as they are."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Where in the first bytes this part of the view was written."""
        return start, end


class _Decoded(_View):
    """Another view with its escapes replaced by what they mean."""

    __slots__ = ("_ends", "_of", "_starts", "_written")

    def __init__(self, of: _View, escapes: Iterable[re.Match[bytes]]) -> None:
        self._of = of
        self._starts: list[int] = []
        """Where each piece, plain or an escape, begins in this view."""
        self._written: list[int] = []
        """And where it was written."""
        self._ends: list[int] = []
        pieces: list[bytes] = []
        at = length = 0
        for escape in escapes:
            meaning = _meaning(escape)
            for piece, start, end in ((of.text[at : escape.start()], at, escape.start()), (meaning, *escape.span())):
                if piece:
                    pieces.append(piece)
                    self._starts.append(length)
                    self._written.append(start)
                    self._ends.append(end)
                    length += len(piece)
            at = escape.end()
        self._starts.append(length)
        self._written.append(at)
        self._ends.append(len(of.text))
        super().__init__(b"".join([*pieces, of.text[at:]]))

    def origin(self, start: int, end: int) -> tuple[int, int]:
        return self._of.origin(self._place(start)[0], self._place(end - 1)[1])

    def _place(self, at: int) -> tuple[int, int]:
        """Where the character at this place of the view begins and ends in the one beneath."""
        piece = bisect_right(self._starts, at) - 1
        into = at - self._starts[piece]
        begin, end = self._written[piece], self._ends[piece]
        following = self._starts[piece + 1] if piece + 1 < len(self._starts) else len(self.text)
        if following - self._starts[piece] == end - begin:  # plain
            return begin + into, begin + into + 1
        return begin, end


class _Squeezed(_View):
    """Another view without some characters."""

    __slots__ = ("_gone", "_of")

    def __init__(self, of: _View, gone: bytes) -> None:
        self._of = of
        self._gone = gone
        super().__init__(of.text.translate(None, gone))

    def origin(self, start: int, end: int) -> tuple[int, int]:
        return self._of.origin(self._place(start), self._place(end - 1) + 1)

    def _place(self, at: int) -> int:
        """Where the character at this place of the view is in the one beneath: by halving, since few are ever asked."""
        low, high = 0, len(self._of.text)
        kept = 0  # characters before `low` that are in the view
        while high - low > 1:
            middle = (low + high) // 2
            between = len(self._of.text[low:middle].translate(None, self._gone))
            if kept + between <= at:
                low, kept = middle, kept + between
            else:
                high = middle
        return low


def _decoded(text: bytes, escapes: re.Pattern[bytes]) -> bytes:
    """The text with its escapes replaced by what they mean: as `_Decoded`, without knowing where they were."""
    known: dict[bytes, bytes] = {}

    def meaning(escape: re.Match[bytes]) -> bytes:
        found = known.get(escape[0])
        if found is None:
            found = known[escape[0]] = _meaning(escape)
        return found

    return escapes.sub(meaning, text)


def _meaning(escape: re.Match[bytes]) -> bytes:
    """What one escape stands for."""
    kind, value = escape.lastgroup, escape.group(escape.lastgroup) if escape.lastgroup else b""
    if kind in ("percent", "hex", "entity"):
        return bytes((int(value, 16),))
    if kind == "octal":
        return bytes((int(value, 8),))
    if kind == "decimal":
        return bytes((int(value) & 0xFF,))
    if kind == "itself":
        return value
    if kind == "name":
        return bytes((_NAMED[value],)) if value in _NAMED else escape.group()
    return b"\n"  # a line's end, or what is taken out with those


class SecretFinder:
    """The forms of some secrets, and where they are in bytes."""

    __slots__ = ("_codes", "_decimals", "_exact", "_folded", "_hex", "_plain", "context")

    def __init__(self, secrets: Iterable[bytes]) -> None:
        plain: set[bytes] = set()
        folded: set[bytes] = set()
        exact: set[bytes] = set()
        digits: set[bytes] = set()
        codes: list[list[bytes]] = []
        for secret in filter(None, secrets):
            if len(secret) < _SHORTEST:
                plain |= {secret, base64.b64encode(secret)}
                continue
            folded |= {form.translate(None, _BETWEEN).lower() for form in (secret, secret[::-1])}
            exact |= _in_groups(base64.b64encode, secret, 3, 4) | _in_groups(base64.urlsafe_b64encode, secret, 3, 4)
            folded |= {form.lower() for form in _in_groups(base64.b32encode, secret, 5, 8)}
            digits |= {secret.hex().encode(), secret[::-1].hex().encode()}
            codes.append([b"%d" % code for code in secret])
        self._plain = tuple(plain)
        self._folded = tuple(form for form in folded if len(form) >= _SHORTEST)
        self._exact = tuple(form for form in exact if len(form) >= _SHORTEST)
        self._hex = tuple(digits)
        self._codes = tuple(codes)
        self._decimals = tuple(re.compile((rb"\D{1,%d}" % _BETWEEN_NUMBERS).join(numbers)) for numbers in codes)
        longest = max(map(len, (*self._plain, *self._folded, *self._exact, *self._hex)), default=0)
        self.context = min(longest * _EXPANSION, max(_MUCH_CONTEXT, longest * _LEAST_EXPANSION))
        """So many bytes before others decide whether those belong to a secret."""

    def __bool__(self) -> bool:
        return bool(self._plain or self._folded)

    def finds(self, text: bytes) -> bool:
        """Return True if a form is in the text."""
        if any(form in text for form in self._plain) or any(one.search(text) for one in self._decimals):
            return True
        if not self._folded:
            return False
        contents = [text]
        if _ESCAPE.search(text):
            contents.append(_decoded(text, _ESCAPE))
            if _ESCAPE.search(contents[-1]):
                contents.append(_decoded(contents[-1], _ESCAPE))
        if _QUOTED.search(text):
            contents.append(_decoded(text, _QUOTED))
        for content in contents:
            squeezed = content.translate(None, _BETWEEN)
            if any(form in squeezed for form in self._exact):
                return True
            squeezed = squeezed.lower()
            if any(form in squeezed for form in self._folded):
                return True
        digits = _HEX_PREFIX.sub(b"", text).translate(None, _NO_HEX).lower()
        return any(form in digits for form in self._hex)

    def spans(self, text: bytes) -> list[tuple[int, int]]:
        """The beginning and the end of each form in the text, as it is written there."""
        if not self.finds(text):  # which is the rule, and needs no account of places
            return []
        raw = _View(text)
        found = [span for form in self._plain for span in _occurrences(raw, text, form)]
        found += [match.span() for pattern in self._decimals for match in pattern.finditer(text)]
        for view, content, forms in self._views(text):
            found += [span for form in forms for span in _occurrences(view, content, form)]
        return found

    def _views(self, text: bytes) -> Iterator[tuple[_View, bytes, tuple[bytes, ...]]]:
        """Each view of the text, its content in the case in which it is searched, and the forms to search there."""
        if not self._folded:
            return
        raw = _View(text)
        views: list[_View] = [raw]
        if _ESCAPE.search(text):
            views.append(_Decoded(raw, _ESCAPE.finditer(text)))
            if _ESCAPE.search(views[-1].text):
                views.append(_Decoded(views[-1], _ESCAPE.finditer(views[-1].text)))
        if _QUOTED.search(text):
            views.append(_Decoded(raw, _QUOTED.finditer(text)))
        for view in views:
            squeezed = _Squeezed(view, _BETWEEN)
            yield squeezed, squeezed.text, self._exact
            yield squeezed, squeezed.text.lower(), self._folded
        digits = _Squeezed(_Decoded(raw, _HEX_PREFIX.finditer(text)), _NO_HEX)
        yield digits, digits.text.lower(), self._hex

    def begun(self, text: bytes) -> int:
        """Where at the end of the text something begins that may become a form; its length if nothing does."""
        begins = [len(text), self._begun(text)]
        escape = _BEGUN_ESCAPE.search(text, max(0, len(text) - _LONGEST_ESCAPE)) if self._folded else None
        if escape is not None:  # or what looks like one
            begins += [escape.start(), self._begun(text[: escape.start()])]
        return min(begins)

    def _begun(self, text: bytes) -> int:
        begins = [len(text) - _overlap(text, form) for form in self._plain]
        begins += [_begun_numbers(text, codes) for codes in self._codes]
        before = max(0, len(text) - self.context)
        for view, content, forms in self._views(text[before:]):
            for form in forms:
                overlap = _overlap(content, form)
                if overlap:
                    begin = before + view.origin(len(content) - overlap, len(content))[0]
                    if overlap >= _HELD_AT_ONCE or len(text) - begin == overlap:
                        begins.append(begin)
        return min(begins, default=len(text))


def _in_groups(encode: Callable[[bytes], bytes], secret: bytes, group: int, digits: int) -> set[bytes]:
    """The digits that the secret alone decides, wherever in a longer text it began."""
    found = {encode(secret).rstrip(b"=")}
    for before in range(group):
        text = encode(bytes(before) + secret)
        start = -(-before * digits // group)
        whole = (before + len(secret)) * 8 // (8 * group // digits)
        found.add(text[start:whole])
    return found


def _occurrences(view: _View, content: bytes, form: bytes) -> Iterator[tuple[int, int]]:
    at = content.find(form)
    while at >= 0:
        yield view.origin(at, at + len(form))
        at = content.find(form, at + len(form))


def _overlap(text: bytes, form: bytes) -> int:
    """How many bytes at the end of `text` are the beginning of `form`."""
    at = text.find(form[:1], max(0, len(text) - len(form) + 1))
    while at >= 0 and not form.startswith(text[at:]):
        at = text.find(form[:1], at + 1)
    return len(text) - at if at >= 0 else 0


def _begun_numbers(text: bytes, codes: list[bytes]) -> int:
    """Where at the end of the text the numbers of a secret's bytes begin; its length if they do not."""
    before = max(0, len(text) - len(codes) * (3 + _BETWEEN_NUMBERS))
    numbers = list(_NUMBER.finditer(text, before))[-len(codes) :]
    if not numbers or len(text) - numbers[-1].end() > _BETWEEN_NUMBERS:
        return len(text)
    said = [number[0] for number in numbers]
    unfinished = numbers[-1].end() == len(text)
    for at in range(len(said) - 1):
        count = len(said) - at
        if not said[at].endswith(codes[0]) or (count > 2 and said[at + 1] != codes[1]):
            continue
        wanted = codes[count - 1]
        ends = wanted.startswith(said[-1]) if unfinished else wanted == said[-1]
        near = (after.start() - one.end() <= _BETWEEN_NUMBERS for one, after in pairwise(numbers[at:]))
        if ends and said[at + 1 : -1] == codes[1 : count - 1] and all(near):
            return numbers[at].end() - len(codes[0])
    return len(text) - (_overlap(said[-1], codes[0] + b" ") if unfinished else 0)


class Reflected(tuple[bytes, ...]):  # noqa: SLOT001 with room for the finder
    """Secrets that a host may send back, with how they are found. Empty if there are none."""

    _finder: SecretFinder | None = None

    @property
    def finder(self) -> SecretFinder:
        """Made once, however many answers are searched."""
        if self._finder is None:
            self._finder = SecretFinder(self)
        return self._finder


class Scrubber:
    """Blots secrets out of a stream, wherever its chunks are cut. What goes in and out has the same length."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._finder = secrets.finder if isinstance(secrets, Reflected) else SecretFinder(secrets)
        self._passed = b""
        """The last that was passed on, as it came: what follows may belong to it."""
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on: all but an end that could be the beginning of a secret."""
        return self._take(chunk, final=False)

    def finish(self) -> bytes:
        """What was held back."""
        return self._take(b"", final=True)

    def _take(self, chunk: bytes, *, final: bool) -> bytes:
        text = self._passed + self._held + chunk
        first = len(self._passed)
        until = len(text) if final else max(first, self._finder.begun(text))
        blotted = _blotted(text, self._finder)
        self._passed = text[max(0, until - self._finder.context) : until]
        self._held = text[until:]
        return blotted[first:until]


def _blotted(text: bytes, finder: SecretFinder) -> bytes:
    spans = finder.spans(text)
    if not spans:
        return text
    blotted = bytearray(text)
    for start, end in spans:
        blotted[start:end] = b"*" * (end - start)
    return bytes(blotted)


def scrub(body: bytes, secrets: Iterable[bytes]) -> bytes:
    """A whole body, or the value of a header, without the secrets."""
    finder = secrets.finder if isinstance(secrets, Reflected) else SecretFinder(secrets)
    return _blotted(body, finder)


__all__ = ["Reflected", "Scrubber", "SecretFinder", "scrub"]
