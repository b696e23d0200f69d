"""The kinds of things that are redacted: what each is called, and which of two wins where they overlap.

The names are the policy's (`policy/keys/redaction.py`), because a policy lists them; how each is found is in the file
of its family.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from belljar.policy.keys.redaction import PERSONAL, SECRETS


class Kind(StrEnum):
    """One kind; the value is its name in a policy, and in capitals in a token. The order is that of precedence."""

    PRIVATE_KEY = "private_key"
    TOKEN = "token"  # noqa: S105
    JWT = "jwt"
    URL_PASSWORD = "url_password"  # noqa: S105
    NAMED_SECRET = "named_secret"  # noqa: S105
    EMAIL = "email"
    IBAN = "iban"
    CARD = "card"
    NATIONAL_ID = "national_id"
    PHONE = "phone"
    IP = "ip"
    NAME = "name"
    LITERAL = "literal"
    """Text that looks like a token but came from the code: it gets a token of its own, so that none is mistaken."""


class Span(NamedTuple):
    """Where something was found: `text[start:end]` is all of it, and nothing else."""

    start: int
    end: int
    kind: Kind


PRECEDENCE = {kind: rank for rank, kind in enumerate(Kind)}
GROUPS: dict[str, frozenset[Kind]] = {
    "secrets": frozenset(Kind(name) for name in SECRETS),
    "personal": frozenset(Kind(name) for name in PERSONAL),
}
EVERYTHING = GROUPS["secrets"] | GROUPS["personal"]


def expand(names: Iterable[str]) -> frozenset[Kind]:
    """The kinds that a policy's list means: groups and single kinds."""
    kinds: set[Kind] = set()
    for name in names:
        kinds |= GROUPS[name] if name in GROUPS else {Kind(name)}
    return frozenset(kinds)
