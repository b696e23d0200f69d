"""Rows in columns, for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Each row on a line, columns as wide as their widest cell; the last one as long as it is."""
    widths = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(_columns(rows))]
    return "".join(f"{indent}{_line(row, widths)}\n" for row in rows)


def _columns(rows: Sequence[Sequence[str]]) -> int:
    return max((len(row) for row in rows), default=0)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()
