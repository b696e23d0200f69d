"""Someone else's MCP server, in a jar: its client talks to it as before, over standard input and output."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from belljar.errors import InternalError, PolicyError
from belljar.sandbox.events import Finished
from belljar.sandbox.result import RunResult
from belljar.sandbox.sandbox import PolicyLike, Sandbox
from belljar.sandbox.stream import Stream

_LASTING = ("proc.timeout_ms=7d", "proc.output_mb=1024")
"""A server lives as long as its client, and a policy's limits are meant for runs: these are the most that there is."""


def run(
    policy: PolicyLike,
    argv: Sequence[str],
    *,
    overrides: Sequence[str],
    complaints: Callable[[bytes], None],
    following: Callable[[Stream], AbstractContextManager[Stream]],
    **options: Any,
) -> RunResult:
    """Run the server until it ends, or its client closes standard input.

    `complaints` gets what it writes to standard error: the client reads the rest, and a person may read that.
    `following` is what the caller does while it runs, such as to listen to signals.
    """
    with _sandbox(policy, overrides, options) as jar, following(jar.stream(argv=argv, stdin=0)) as stream:
        for event in stream:
            if isinstance(event, Finished):
                return event.result
            if event.stream == "stdout":
                _write(1, event.data)
            else:
                complaints(event.data)
    raise InternalError("the server ended without a result")


def _sandbox(policy: PolicyLike, overrides: Sequence[str], options: dict[str, Any]) -> Sandbox:
    """With time and room to last, unless the caller chose some, or a managed policy has less."""
    chosen = {text.partition("=")[0].strip() for text in overrides}
    chosen |= {"proc.timeout_ms"} if options.get("timeout") else set()
    lasting = [text for text in _LASTING if text.partition("=")[0] not in chosen]
    try:
        return Sandbox(policy, overrides=[*lasting, *overrides], one_shot=True, **options)
    except PolicyError:
        return Sandbox(policy, overrides=overrides, one_shot=True, **options)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
