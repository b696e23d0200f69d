"""Someone else's MCP server, in a jar: its client talks to it as before, over standard input and output."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from belljar.backends.runtimes import find_program
from belljar.errors import InternalError, PolicyError
from belljar.policy.load.resolve import resolve
from belljar.policy.mapping import to_mapping
from belljar.sandbox.record.events import Finished
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.record.stream import Stream
from belljar.sandbox.run.sandbox import Sandbox
from belljar.tools.allowed_hosts import rules_for

_LASTING = ("proc.timeout_ms=7d", "proc.output_mb=1024")
"""A server lives as long as its client, and a policy's limits are meant for runs: these are the most that there is."""
DOWNLOADING = {"uvx": "pypi.org", "uv": "pypi.org", "pipx": "pypi.org", "npx": "registry.npmjs.org"}
"""Programs that get a server when they start it, and where from."""


def run(
    policy: str | None,
    argv: Sequence[str],
    *,
    allow: Sequence[str] = (),
    overrides: Sequence[str],
    complaints: Callable[[bytes], None],
    following: Callable[[Stream], AbstractContextManager[Stream]],
    **options: Any,
) -> RunResult:
    """Run the server until it ends, or its client closes standard input.

    A program of a virtual environment has that environment in the jar. `allow` are hosts that the server may reach.
    `complaints` gets what it writes to standard error: the client reads the rest, and a person may read that.
    `following` is what the caller does while it runs, such as to listen to signals.
    """
    venv = environment_of(argv[0], os.environ)
    words = [os.path.join(venv, "bin", os.path.basename(argv[0])), *argv[1:]] if venv else list(argv)
    layers = [_network(policy, allow)] if allow else []
    if venv and not resolve(policy, managed=None).python.venv:
        layers.append({"python": {"venv": venv}})
    with _sandbox(policy, overrides, layers, options) as jar, following(jar.stream(argv=words, stdin=0)) as stream:
        for event in stream:
            if isinstance(event, Finished):
                return event.result
            if event.stream == "stdout":
                _write(1, event.data)
            else:
                complaints(event.data)
    raise InternalError("the server ended without a result")


def environment_of(program: str, environ: Mapping[str, str]) -> str | None:
    """The virtual environment of a program that lies in one, such as `.venv/bin/python`; None for any other."""
    path = os.path.abspath(program) if "/" in program else find_program(program, environ.get("PATH", ""))
    if path is None or not os.access(path, os.X_OK):
        return None
    directory = os.path.dirname(os.path.dirname(path))
    return directory if os.path.isfile(os.path.join(directory, "pyvenv.cfg")) else None


def _network(policy: str | None, allow: Sequence[str]) -> dict[str, Any]:
    """The hosts of the policy, those that are allowed, and those that come with them."""
    base = resolve(policy, managed=None)
    before = to_mapping(base)["net"]["allowlist"] if base.net.enabled else []
    return {"net": {"enabled": True, "allowlist": [*before, *rules_for(allow)]}}


def _sandbox(
    policy: str | None, overrides: Sequence[str], layers: Sequence[Mapping[str, Any]], options: dict[str, Any]
) -> Sandbox:
    """With time and room to last, unless the caller chose some, or a managed policy has less."""
    chosen = {text.partition("=")[0].strip() for text in overrides}
    chosen |= {"proc.timeout_ms"} if options.get("timeout") else set()
    lasting = [text for text in _LASTING if text.partition("=")[0] not in chosen]
    laid: dict[str, Any] = {"layers": layers, "layers_are": "belljar mcp wrap"}
    try:
        found = resolve(policy, overrides=[*lasting, *overrides], **laid, **options)
    except PolicyError:
        found = resolve(policy, overrides=overrides, **laid, **options)
    return Sandbox(found, one_shot=True)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
