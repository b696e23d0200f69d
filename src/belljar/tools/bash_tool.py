"""`BashTool`: the interface of Claude's Bash tool, over a jar. For programs that answer a model's calls themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from belljar.errors import UsageError
from belljar.policy.keys.units import seconds
from belljar.policy.load.resolve import resolve
from belljar.policy.mapping import to_mapping
from belljar.policy.models import Policy
from belljar.sandbox.run.sandbox import PolicyLike
from belljar.tools.answers import ToolAnswer
from belljar.tools.calls import Call
from belljar.tools.definitions import MOST_SECONDS
from belljar.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from belljar.policy.keys.units import Duration

_LONGEST_COMMAND = 100_000
_SPELLINGS = {"dangerouslyDisableSandbox": "dangerously_disable_sandbox"}


class BashTool:
    """Runs commands of a model's in one jar: files stay from one to the next.

    Args:
        policy: As for `Sandbox`; so are `workspace` and `live`.
        session_id: The caller's own name for the conversation, for the audit log.
    """

    name = "Bash"

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        workspace: str | os.PathLike[str] | None = None,
        live: bool = False,
        session_id: str = "",
    ) -> None:
        self._box = Toolbox(policy, workspace=workspace, live=live, stateful=True)
        self._session_id = session_id
        self.policy = self._box.policy

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @staticmethod
    def definition() -> dict[str, Any]:
        """The tool, as the messages API wants it described."""
        return {
            "name": BashTool.name,
            "description": "Run a command with bash, in a sandbox whose files stay from one command to the next.",
            "input_schema": {
                "type": "object",
                "properties": {
                    "command": {"type": "string"},
                    "timeout": {"type": "number", "description": "Milliseconds."},
                    "description": {"type": "string"},
                    "dangerously_disable_sandbox": {"type": "boolean"},
                    "reason": {"type": "string", "description": "Why the sandbox has to be disabled."},
                },
                "required": ["command"],
            },
        }

    def __call__(
        self,
        command: str,
        *,
        timeout: Duration | None = None,
        description: str = "",
        dangerously_disable_sandbox: bool = False,
        reason: str = "",
        tool_use_id: str = "",
    ) -> ToolAnswer:
        """Run a command and wait for its end.

        Args:
            command: For bash.
            timeout: Seconds, a `timedelta`, or text such as `30s`; never more than the policy's. (A model's own input,
                which `answer` takes, has milliseconds.)
            description: What the model says it is for; it is recorded.
            dangerously_disable_sandbox: Run it outside of any jar. The policy has to say `agents.unsandboxed: true`.
            reason: Why that has to be; it is recorded, and nothing runs without.
            tool_use_id: The call's own name, for the audit log.
        """
        given: dict[str, Any] = {"command": command, "description": description}
        if timeout is not None:
            given["timeout"] = 1000 * seconds(timeout)
        if dangerously_disable_sandbox:
            given |= {"dangerously_disable_sandbox": True, "reason": reason}
        return self.answer(given, tool_use_id=tool_use_id)

    def answer(self, given: object, *, tool_use_id: str = "") -> ToolAnswer:
        """Answer a call with the input that a model wrote, whatever that is."""
        if isinstance(given, Mapping):
            given = {_SPELLINGS.get(name, name): value for name, value in given.items()}
        call = Call(client="bash-tool", session=self._session_id, tool_use=tool_use_id)
        words = given if isinstance(given, Mapping) else {}
        leaves = words.get("dangerously_disable_sandbox") is True
        reason = words.get("reason") if isinstance(words.get("reason"), str) else ""
        refusal = self._refusal(given, str(reason).strip())
        call.record(self.policy, self.name, given, denied=refusal, **({"unsandboxed": str(reason)} if leaves else {}))
        if refusal:
            call.record_answer(run="", outcome="refused", is_error=True)
            return ToolAnswer(f"[{refusal}]", is_error=True, outcome="refused")
        return self._run(words, call, leaves=leaves)

    def _run(self, given: Mapping[str, Any], call: Call, *, leaves: bool) -> ToolAnswer:
        words: dict[str, Any] = {"command": ["bash", "-c", given["command"]]}
        if (milliseconds := given.get("timeout")) is not None:
            words["timeout"] = milliseconds / 1000
        if not leaves:
            return self._box.call("exec", words, call)
        with Toolbox(_outside(self.policy), stateful=False, pool_size=0) as outside:
            return outside.call("exec", words, call)

    def _refusal(self, given: object, reason: str) -> str:
        if not isinstance(given, Mapping):
            return "Bash takes an object, with a command in it"
        command, timeout, leaves = (given.get(name) for name in ("command", "timeout", "dangerously_disable_sandbox"))
        if unknown := set(given) - set(self.definition()["input_schema"]["properties"]):
            return f"Bash does not take {min(map(str, unknown))[:60]!r}"
        if not isinstance(command, str) or len(command) > _LONGEST_COMMAND:
            return "command is not a text that a shell could take"
        if timeout is not None and not _is_time(timeout):
            return f"timeout is not a number of milliseconds, more than 0 and at most {1000 * MOST_SECONDS}"
        if leaves not in (None, True, False):
            return "dangerously_disable_sandbox is not true or false"
        if not leaves:
            return ""
        if not self.policy.agents.unsandboxed:
            return "the sandbox can't be disabled: the policy says agents.unsandboxed: false; run it without"
        return "" if reason else "the sandbox is not disabled without a reason: say why in `reason`"

    def close(self) -> None:
        """End the jar."""
        self._box.close()


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1000 * MOST_SECONDS


def _outside(policy: Policy) -> Policy:
    """The same without a sandbox, where a managed policy allows that too."""
    if not policy.agents.unsandboxed:
        raise UsageError("the policy does not let anything run outside of a jar")
    return resolve(layers=[to_mapping(policy), {"backend": "unconfined", "fallback": [], "on_degraded": "allow"}])
