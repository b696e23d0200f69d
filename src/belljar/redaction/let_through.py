"""What a policy lets through: single values, patterns like `*@example.com`, domains, networks like `10.0.0.0/8`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache

from belljar.redaction.kinds import Kind

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
