"""JSON as text and back, by the parts of `json` that are written in C.

The package around them compiles half a dozen regular expressions for what they leave to it, which takes 2 ms of every
start. Only for what belljar writes itself and reads back: no spaces, and an error is an error of belljar's.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

    _json: Any
else:
    try:
        import _json
    except ImportError:  # an interpreter that has none
        _json = None


class _Reading:
    """What the scanner asks for: the plain meaning of everything."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """As `json.dumps`, with nothing between the items; only ASCII."""
    if _json is None:
        import json

        return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys)
    return "".join((_SORTED if sort_keys else _PLAIN)(value, 0))


def loads(text: str) -> Any:
    """As `json.loads`, for what `dumps` wrote. Raises ValueError for anything else."""
    if _json is None:
        import json

        return json.loads(text)
    try:
        value, end = _SCANNER(text, 0)
    except StopIteration:
        end = -1
    if end != len(text):
        raise ValueError("not the JSON of one value")
    return value


def _refuse(value: object) -> None:
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _encoder(*, sort_keys: bool) -> Any:
    """One for all: it looks for no circles, which nothing that belljar writes has."""
    if _json is None:
        return None
    write = _json.encode_basestring_ascii
    return _json.make_encoder(None, _refuse, write, None, ":", ",", sort_keys, False, True)  # noqa: FBT003


_PLAIN, _SORTED = _encoder(sort_keys=False), _encoder(sort_keys=True)
_SCANNER: Any = None if _json is None else _json.make_scanner(_Reading)
