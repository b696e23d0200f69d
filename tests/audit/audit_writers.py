"""Logs that tests write, in this process and in others."""

from __future__ import annotations

from pathlib import Path

from belljar.audit.log import AuditLog, day_files

WRITER = """
import os, sys
from belljar.audit.log import AuditLog
log, name = AuditLog(sys.argv[1]), sys.argv[2]
number = 0
while number < int(sys.argv[3]):
    count = 1 + number % 3
    event = {"event": "test", "writer": name, "text": "x" * (number % 200)}
    log.append(*({**event, "number": number + one} for one in range(count)))
    number += count
    os.write(1, f"{number}\\n".encode())
"""
"""Acknowledges each record that it wrote, as far as it was told that it is there."""


def write(path: Path, count: int = 5) -> AuditLog:
    """A log with so many records."""
    log = AuditLog(str(path))
    for number in range(count):
        log.append({"event": "test", "number": number})
    return log


def day_file(path: Path) -> Path:
    """The only day's file."""
    (name,) = day_files(str(path))
    return path / name


def lines_of(path: Path) -> list[bytes]:
    """The records as they lie there."""
    return day_file(path).read_bytes().splitlines(keepends=True)
