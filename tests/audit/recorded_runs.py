"""Runs, and what the audit log has of them."""

from __future__ import annotations

from typing import Any

from belljar import Sandbox
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.sandbox.record.result import RunResult


def told(run_id: str) -> list[str]:
    """The events of a run."""
    return [record["event"] for record in records(directory()) if record.get("run") == run_id]


def run_one(code: str, **options: Any) -> RunResult:
    """In a Sandbox of its own."""
    with Sandbox(options.pop("policy", None), one_shot=True) as jar:
        return jar.run(code, **options)
