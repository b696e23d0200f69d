"""What an agent did, by its own account: the commands that its model ran, and the tokens that this took.

Claude Code writes a transcript into its home. belljar reads it when the run has ended. The agent could have written
anything there, so it is read as hostile data: bounded, without links, and as a claim about the run, not a proof.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from belljar.audit import outputs
from belljar.audit.log import record
from belljar.coding_agents import home
from belljar.errors import BelljarError
from belljar.policy.models import Policy
from belljar.sandbox.record import redacting
from belljar.sandbox.run.sandbox import Sandbox

STREAM = "transcript"
"""What the stored file is called, beside what the run printed."""
_DIRECTORY = f"{home.HOME}/.claude/projects"
_MOST_FILES, _MOST_BYTES = 50, 16 << 20
_KINDS = ("user", "assistant", "summary")
"""Entries that are kept. The others repeat what was sent to the model."""
_MOST_COMMANDS, _LONGEST_COMMAND = 100, 500
"""Of which the audit log has so many, so long."""
_MOST_TOOLS = 50
_DEEPEST = 20


@dataclass
class Did:
    """The account of one run. All text in it is the agent's, with secrets redacted as the policy says."""

    commands: list[str] = field(default_factory=list)
    tools: dict[str, int] = field(default_factory=dict)
    """How often it called each tool."""
    input_tokens: int = 0
    output_tokens: int = 0
    transcript: bytes = b""
    stored: str = ""
    """Where the transcript is kept on the host; empty if it is not."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        tokens = {"input": self.input_tokens, "output": self.output_tokens}
        return {"commands": self.commands, "tools": self.tools, "tokens": tokens, "transcript": self.stored or None}


def read(jar: Sandbox, run_id: str, policy: Policy) -> Did:
    """Read what the agent wrote about itself in this run."""
    did = Did()
    begun = _stamp(outputs.began(run_id))
    lines: list[str] = []
    counted: set[tuple[str, str]] = set()
    for entry in _entries(jar):
        if entry.get("type") not in _KINDS or str(entry.get("timestamp") or "9") < begun:
            continue  # of an earlier run, if the home was kept
        clean = _cleaned(entry, run_id, policy)
        lines.append(json.dumps(clean, ensure_ascii=False))
        if clean.get("type") == "assistant" and isinstance(message := clean.get("message"), dict):
            _count(did, message, str(clean.get("requestRef") or clean.get("requestId")), counted)
    redacting.forget(run_id)
    did.transcript = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
    return did


def _stamp(seconds: float) -> str:
    """A time as entries have it, without the `Z`: in milliseconds, of which they count only whole ones."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03}"


def keep(did: Did, run_id: str, *, agent: str, project: str) -> None:
    """Store the transcript beside what the run printed, and have the account in the audit log.

    Raises:
        AuditError: the log can't be written.
        OSError: the transcript can't be stored.

    """
    told: dict[str, Any] = {"agent": agent, "project": project}
    if did.transcript:
        told["transcript"] = f"sha256:{outputs.keep(run_id, 0, STREAM, did.transcript)}"
        did.stored = outputs.path_of(run_id, 0, STREAM)
        told |= {"tools": did.tools, "input_tokens": did.input_tokens, "output_tokens": did.output_tokens}
        told["commands_count"] = len(did.commands)
        told["commands"] = [command[:_LONGEST_COMMAND] for command in did.commands[:_MOST_COMMANDS]]
    record("agent", run=run_id, **told)


def _entries(jar: Sandbox) -> Iterator[dict[str, Any]]:
    """Each entry of each transcript, up to a size."""
    try:
        found = jar.files.list(_DIRECTORY, recursive=True)
    except (OSError, BelljarError):
        return  # there is none, or it is no directory
    files = [entry for entry in found if entry.kind == "file" and entry.path.endswith(".jsonl")]
    files.sort(key=lambda entry: -entry.changed_ns)
    left = _MOST_BYTES
    for entry in files[:_MOST_FILES]:
        if entry.size > left:
            continue
        try:
            data = jar.files.read(f"{_DIRECTORY}/{entry.path}", limit=left)
        except (OSError, BelljarError):
            continue
        left -= len(data)
        for line in data.splitlines():
            try:
                found_entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found_entry, dict):
                yield found_entry


def _cleaned(value: Any, run_id: str, policy: Policy, depth: int = 0) -> Any:
    """The value with its texts redacted; what is nested deeper than anything that Claude Code writes is left out."""
    if isinstance(value, str):
        return redacting.for_log(value, run_id, policy)
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        items = value.items()
        return {redacting.for_log(key, run_id, policy): _cleaned(one, run_id, policy, depth + 1) for key, one in items}
    if isinstance(value, list):
        return [_cleaned(one, run_id, policy, depth + 1) for one in value]
    return value


def _count(did: Did, message: dict[str, Any], request: str, counted: set[tuple[str, str]]) -> None:
    """Add the tools and the tokens of one message. A message may be in several entries, each with its tokens."""
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict) or block.get("type") != "tool_use":
            continue
        name, given = str(block.get("name"))[:100], block.get("input")
        if name in did.tools or len(did.tools) < _MOST_TOOLS:
            did.tools[name] = did.tools.get(name, 0) + 1
        if name == "Bash" and isinstance(given, dict) and isinstance(command := given.get("command"), str):
            did.commands.append(command)
    usage = message.get("usage")
    key = str(message.get("id")), request
    if not isinstance(usage, dict) or key in counted:
        return
    counted.add(key)
    did.input_tokens += sum(
        _whole(usage.get(name)) for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )
    did.output_tokens += _whole(usage.get("output_tokens"))


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else 0
