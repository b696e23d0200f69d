"""The audit log for other programs: JSON lines, CSV, and OCSF as a SIEM reads it.

Whatever the guest named (files, hosts, itself) is in there: formats that a person's program evaluates (a spreadsheet)
get it so that nothing is evaluated.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from belljar.audit.ocsf import to_ocsf
from belljar.audit.printable import printable_lines

_SIGNS = "=+@-\uff1d\uff0b\uff20\uff0d\ufe66\ufe62\ufe6b\ufe63\u2212"
"""With which a formula begins, in every width: some programs take a wide sign for the plain one."""
_FORMULA = re.compile(rf"((?:^|[;\t\r\n])(?:[^\S\t\r\n]|[\"'])*+)(?=[{re.escape(_SIGNS)}])")
"""Where a formula may begin: in a cell, and after what programs take for the end of one, whatever this file uses."""

COLUMNS = ("seq", "time", "event", "run", "outcome", "reason", "target", "rule", "backend", "policy", "details")


def jsonl(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """As they are."""
    for record in records:
        yield json.dumps(record, separators=(",", ":")) + "\n"


def as_csv(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One row each; what has no column of its own is JSON in the last."""
    yield _row(COLUMNS)
    for record in records:
        known = [_cell(record.get(name)) for name in COLUMNS[:-1]]
        rest = {name: value for name, value in record.items() if name not in COLUMNS and name not in ("prev", "digest")}
        yield _row([*known, _cell(json.dumps(rest, sort_keys=True)) if rest else ""])


def _row(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> str:
    """A spreadsheet takes text that begins like this for a formula, unless an apostrophe stands before it."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, int | float):
        return text
    text = _FORMULA.sub(r"\1'", printable_lines(text))
    return f"'{text}" if text.startswith(("\t", "\r")) else text


def ocsf(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One event of OCSF each."""
    for record in records:
        yield json.dumps(to_ocsf(record), separators=(",", ":")) + "\n"


FORMATS: dict[str, Callable[[Iterable[Mapping[str, Any]]], Iterator[str]]] = {
    "jsonl": jsonl,
    "csv": as_csv,
    "ocsf": ocsf,
}
