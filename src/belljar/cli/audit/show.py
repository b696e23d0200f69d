"""Records of the audit log for people: one line each, with nothing hidden in it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from belljar.cli.parsing import Option, Parsed
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError

FILTERS = (
    Option("--run", "RUN", "those of one run"),
    Option("--since", "DAY", "from this day on, such as 2026-01-31"),
)
_LEFT_OUT = ("seq", "time", "prev", "digest", "event", "run")


def wanted(words: list[str]) -> dict[str, str]:
    """What records have to have. Raises UsageError."""
    fits = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word!r}: wanted NAME=VALUE", hint="such as event=denied")
        fits[name] = value
    return fits


def chosen(
    parsed: Parsed,
    words: list[str],
    *,
    until: Mapping[str, int] | None = None,
    seen: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """The records that the options and words ask for, `until` where the log ended. Raises UsageError.

    `seen` is called with every record, whether it fits or not.
    """
    from belljar.audit.log import directory
    from belljar.audit.reading import matches, records

    since = parsed.text("--since") or ""
    if since and not _is_day(since):
        raise UsageError(f"--since {since}: wanted a day, such as 2026-01-31")
    fits, run = wanted(words), parsed.text("--run")
    for record in records(directory(), since=since, until=until):
        if seen is not None:
            seen(record)
        if (run is None or str(record.get("run", "")).startswith(run)) and matches(record, fits):
            yield record


def _is_day(text: str) -> bool:
    try:
        time.strptime(text, "%Y-%m-%d")
    except ValueError:
        return False
    return True


def show(records: Iterable[dict[str, Any]], *, json: bool) -> None:
    """Print them."""
    for record in records:
        if json:
            from json import dumps

            sys.stdout.write(dumps(record, separators=(",", ":")) + "\n")
        else:
            sys.stdout.write(line(record) + "\n")
    sys.stdout.flush()


def line(record: dict[str, Any]) -> str:
    """When, what, which run, and the rest as name=value."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(record["time"])))
    rest = [
        f"{name}={_short(value)}"
        for name, value in record.items()
        if name not in _LEFT_OUT and value not in (None, "", [], {})
    ]
    return visible(f"{stamp}  {record.get('event', ''):<9} {record.get('run') or '':<21} {' '.join(rest)}").rstrip()


def _short(value: object) -> str:
    text = str(value)
    if text.startswith("sha256:"):
        return text[:19]
    return text if len(text) <= 200 else f"{text[:200]}…"
