"""A run's redactor: text in, text with tokens out, and the values back where they are wanted."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import lru_cache
from typing import Self

from belljar.policy.keys.redaction import PLACES
from belljar.policy.models import Policy
from belljar.redaction.finders.names import NameDetector, installed_detector, names
from belljar.redaction.kinds import Kind, Span, expand
from belljar.redaction.scan import scan, settled
from belljar.redaction.stream import ByteStreamRedactor, StreamRedactor
from belljar.redaction.tokens import TokenMap

# What a policy lets through: single values, patterns like `*@example.com`, domains, networks like `10.0.0.0/8`.
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_REMEMBERED = 1024


class LetThrough:
    """The policy's list, ready to be asked."""

    def __init__(self, patterns: Iterable[str]) -> None:
        words = tuple(patterns)
        self._networks = tuple(network for word in words if (network := _network(word)))
        self._pattern = re.compile("|".join(map(translate, words)), re.IGNORECASE) if words else None
        self._domains = tuple(
            "@" + word.lower() for word in words if "@" not in word and "." in word and "/" not in word
        )
        self._answer = lru_cache(_REMEMBERED)(self._ask)

    def __call__(self, kind: Kind, value: str) -> bool:
        """Whether this value stays as it is. A private key or a token-like text never does."""
        if self._pattern is None or kind in (Kind.LITERAL, Kind.PRIVATE_KEY):
            return False
        return self._answer(kind, value)

    def _ask(self, kind: Kind, value: str) -> bool:
        if self._pattern is not None and self._pattern.match(value):
            return True
        if kind is Kind.EMAIL:
            return value.lower().endswith(self._domains)
        if kind is Kind.IP:
            network = _network(value)  # None where it was found together with something else
            return network is not None and any(network[0] in outer for outer in self._networks)
        return False


def _network(word: str) -> _Network | None:
    try:
        return ipaddress.ip_network(word, strict=False)
    except ValueError:
        return None


class Redactor:
    """Replaces secrets and personal data by stable tokens. One for each run or session; any thread may use it."""

    def __init__(
        self,
        kinds: Iterable[str] = ("secrets", "personal"),
        *,
        let_through: Iterable[str] = (),
        places: Iterable[str] = PLACES,
        tokens: TokenMap | None = None,
        detector: NameDetector | None = None,
    ) -> None:
        self.kinds = expand(kinds)
        self.places = frozenset(places)
        self.tokens = tokens or TokenMap()
        self._let_through = LetThrough(let_through)
        self._detector = (detector or installed_detector()) if Kind.NAME in self.kinds else None

    @classmethod
    def for_policy(cls, policy: Policy) -> Self | None:
        """The redactor that a policy asks for; None if it asks for none."""
        logging = policy.logging
        if not logging.redact_pii or not logging.redact or not logging.redact_in:
            return None
        return cls(logging.redact, let_through=logging.let_through, places=logging.redact_in)

    def __repr__(self) -> str:
        return f"<Redactor of {len(self.kinds)} kinds in {', '.join(sorted(self.places))}>"

    def applies_to(self, place: str) -> bool:
        """Whether the policy redacts here: `log` or `result`."""
        return place in self.places

    def text(self, text: str) -> str:
        """The text with tokens instead of what the policy names."""
        stream = self.stream()
        return stream.feed(text) + stream.finish()

    def stream(self) -> StreamRedactor:
        """For text that comes in pieces."""
        return StreamRedactor(self)

    def byte_stream(self) -> ByteStreamRedactor:
        """For UTF-8 that comes in pieces, cut anywhere; bytes that are not UTF-8 come out as they went in."""
        return ByteStreamRedactor(self.stream())

    def restore(self, text: str) -> str:
        """The text with the values put back: for code mode, on the way to a tool."""
        return self.tokens.restore(text)

    @property
    def found(self) -> Mapping[str, int]:
        """How often each kind was found so far."""
        return {kind.value: count for kind, count in self.tokens.found.items() if kind is not Kind.LITERAL}

    @property
    def detects_names(self) -> bool:
        """Whether names are found here: the policy asks for it, and a detector is installed."""
        return self._detector is not None

    def scan(self, text: str) -> list[Span]:
        """What is to be redacted in whole lines of a text, but for private keys."""
        spans = scan(text, self.kinds)
        if self._detector:
            spans = settled(spans + names(text, self._detector))
        return [span for span in spans if not self._let_through(span.kind, text[span.start : span.end])]

    def replaced(self, text: str, spans: Iterable[Span]) -> str:
        """The text with a token for each span."""
        parts: list[str] = []
        place = 0
        for start, end, kind in spans:
            parts += (text[place:start], self.tokens.token(kind, text[start:end]))
            place = end
        parts.append(text[place:])
        return "".join(parts)
