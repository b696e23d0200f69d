"""Sizes, times and the plain scalars of YAML: text to value and back.

Plain scalars follow YAML 1.2's core schema, so `no` and `on` are text here: an editor that checks the file against the
JSON Schema and belljar never read a value in two ways.
"""

from __future__ import annotations

from belljar.errors import UsageError
from belljar.policy.keys.patterns import Pattern

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from datetime import timedelta

    Duration = float | timedelta | str
    """A time in the Python API: seconds as a number, a `timedelta`, or text with a unit, such as `30s`."""

MB = 1024 * 1024
_LONGEST_NUMBER = 40
_INTEGER = Pattern(r"[+-]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = Pattern(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_LEADING_ZERO = Pattern(r"[+-]?0[0-9]+\Z")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?([kKmMgGtT]([iI]?[bB])?|[bB])$"
TIME_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
_SIZE = Pattern(r"(?i)([0-9]{1,15}(?:\.[0-9]{1,9})?)(?:([kmgt])(?:i?b)?|b)\Z")
_TIME = Pattern(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|s|m|h)\Z")
_SIZE_UNITS = {"": 1, "k": 1024, "m": MB, "g": 1024 * MB, "t": 1024 * 1024 * MB}
_TIME_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def plain(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER or text[0] not in "+-.0123456789" or _LEADING_ZERO.match(text):
        return text
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text):
        number = float(text)
        return number if _is_finite(number) else text
    return text


def size(value: object, unit: int = MB) -> int | None:
    """Bytes of a number in `unit`, or of text like `512m`; None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _whole(value * unit)
    if isinstance(value, str) and (match := _SIZE.match(value)):
        return _whole(float(match[1]) * _SIZE_UNITS[(match[2] or "").lower()])
    return None


def milliseconds(value: object) -> int | None:
    """Milliseconds of a number of them, or of text like `30s`; None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _whole(value)
    if isinstance(value, str) and (match := _TIME.match(value)):
        return _whole(float(match[1]) * _TIME_UNITS[match[2]])
    return None


def seconds(value: Duration, name: str = "timeout") -> float:
    """Return the seconds of a time given in Python.

    Raises:
        UsageError: `value` is not a time, or not more than 0. The message calls it `name`.
    """
    number: object = value
    if isinstance(value, str):
        number = None if (found := milliseconds(value)) is None else found / 1000
    elif hasattr(value, "total_seconds"):
        number = value.total_seconds()
    if isinstance(number, bool) or not isinstance(number, int | float) or not (number > 0 and _is_finite(number)):
        raise UsageError(
            f"{name} is {value!r:.60}: wanted seconds, more than 0, or text with a unit",
            hint=f"write {name}=5, {name}=0.5 or {name}='5s'",
        )
    return number


def _whole(number: float) -> int | None:
    """The nearest whole number, and None for what a mapping may hold that is no number at all (`nan`)."""
    if isinstance(number, int):
        return number
    return round(number) if _is_finite(number) else None


def show_size(count: int) -> str:
    """Bytes for people: `512 MB`, `4 TB`."""
    for unit, name in ((1024 * 1024 * MB, "TB"), (1024 * MB, "GB"), (MB, "MB"), (1024, "kB")):
        if count >= unit and count * 100 % unit == 0:
            return f"{count / unit:g} {name}"
    return f"{count} bytes" if count != 1 else "1 byte"


def counted(count: int, word: str) -> str:
    """A number of things for people: `1 file`, `2,000 files`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def show_time(ms: int) -> str:
    """Milliseconds for people: `500 ms`, `60 s`, `30 min`, `24 h`."""
    for unit, name in ((3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if ms >= 2 * unit and ms % unit == 0:
            return f"{ms // unit} {name}"
    return f"{ms / 1000:.12g} s" if ms >= 1000 else f"{ms} ms"


def _is_finite(number: float) -> bool:
    return number - number == 0  # as `math.isfinite`, without its library
