"""Which token stands for which value. The map is the host's: nothing of it is ever in a jar.

The same value has the same token as long as the map lives, which is a run or a session. Text that looks like a token
and came from the code gets one of its own, of the kind LITERAL: so whatever stands in redacted text as `<EMAIL_1>` was
put there by belljar, and putting values back gives exactly the text that was there.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from belljar.redaction.kinds import Kind
from belljar.redaction.scan import TOKEN_LIKE

_MOST_VALUES = 10_000
_MOST_CHARACTERS = 4 * 1024 * 1024


class TokenMap:
    """Values and their tokens, both ways. Any thread may use it."""

    def __init__(self, *, most_values: int = _MOST_VALUES, most_characters: int = _MOST_CHARACTERS) -> None:
        self._room = most_values
        self._characters = most_characters
        self._tokens: dict[tuple[Kind, str], str] = {}
        self._values: dict[str, str] = {}
        self._numbers: Counter[Kind] = Counter()
        self._found: Counter[Kind] = Counter()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<TokenMap of {len(self._values)} values>"

    def token(self, kind: Kind, value: str) -> str:
        """The token of a value. One that no longer fits gets the number 0: it can't be put back."""
        with self._lock:
            self._found[kind] += 1
            token = self._tokens.get((kind, value))
            return token or self._new(kind, value)

    def _new(self, kind: Kind, value: str) -> str:
        if not self._room or len(value) > self._characters:
            return f"<{kind.name}_0>"
        self._room -= 1
        self._characters -= len(value)
        self._numbers[kind] += 1
        token = f"<{kind.name}_{self._numbers[kind]}>"
        self._tokens[kind, value] = token
        self._values[token] = value
        return token

    def restore(self, text: str) -> str:
        """The text with every token that stands for a value replaced by it; once, whatever the values hold."""
        with self._lock:
            values = self._values
            return TOKEN_LIKE.sub(lambda match: values.get(match[0], match[0]), text)

    @property
    def found(self) -> Mapping[Kind, int]:
        """How often each kind was found, every time counted."""
        with self._lock:
            return dict(self._found)
