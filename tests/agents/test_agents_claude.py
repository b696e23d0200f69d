"""The Claude Agent SDK with its real command, against a model that plays a script: what can run, and what can't."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import claude_agent_sdk as sdk
import pytest
from scripted_model import PNG, Model, Records, say, use
from scripted_queries import HELLO, RUN, ask, last

from belljar.errors import UsageError
from belljar.tools.claude import Deny, Tighten, ToolRequest, sandboxed_options

pytestmark = pytest.mark.backend("bubblewrap")


class TestHappyPath:
    def test_hello_world_through_the_sandbox(self, model: Model, records: Records) -> None:
        """Seed 001: the agent runs a script by `sandboxed_code.run`, and goes on with what it printed."""
        model.scripts["hello"] = [[HELLO], [say("It says hello.")]]

        messages = ask("hello")

        assert model.text_of("hello") == "hello, world"
        assert last(messages).result == "It says hello."
        (asked,), (ended,), (run,) = records("tool"), records("answered"), records("created")
        assert asked["tool"] == "sandboxed_code.run"
        assert asked["session"] == last(messages).session_id
        assert asked["tool_use"].startswith("toolu_")
        assert (ended["run"], ended["tool_use"]) == (run["run"], asked["tool_use"])

    def test_what_the_model_gets(self, model: Model) -> None:
        """Our tools and no others, a figure as an image, and of 300,000 characters a part."""
        model.scripts["gets"] = [[use(RUN, code=PNG)], [use(RUN, code="print('y' * 300_000)")], [say("ok")]]

        ask("gets")

        others = [name for name in model.tools["gets"] if not name.startswith("mcp__sandboxed_code__")]
        assert others in ([], ["DeferredToolPlaceholder"])
        assert "image" in [block["type"] for block in model.results["gets"][0]["content"]]
        assert 10_000 < len(model.text_of("gets")) < 20_000
        assert "of 300,001 characters left out" in model.text_of("gets")

    def test_variables_stay_in_a_query_that_is_stateful(self, model: Model) -> None:
        model.scripts["state"] = [[use(RUN, code="x = 20")], [use(RUN, code="x + 1")], [say("ok")]]

        ask("state", stateful=True)

        assert model.text_of("state") == "21"


class TestWhatCantRun:
    def test_bash_anyway_and_an_unknown_tool(self, model: Model, records: Records, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        model.scripts["bash"] = [[use("Bash", command=f"touch {mark}")], [use("Frobnicate", x=1)], [HELLO], [say("ok")]]

        ask("bash")

        assert not mark.exists()
        assert [block.get("is_error") for block in model.results["bash"]] == [True, True, None]
        assert [(record["tool"], record["allowed"]) for record in records("tool")] == [
            ("Bash", False),
            ("Frobnicate", False),
            ("sandboxed_code.run", True),
        ]

    def test_another_servers_tool_runs_only_if_it_was_named(self, model: Model, records: Records) -> None:
        called: list[str] = []

        @sdk.tool("look", "Looks.", {"what": str})
        async def look(given: Any) -> dict[str, Any]:
            called.append(given["what"])
            return {"content": [{"type": "text", "text": "seen"}]}

        @sdk.tool("launch", "Launches.", {"what": str})
        async def launch(given: Any) -> dict[str, Any]:
            called.append("launched")
            return {"content": []}

        other = sdk.create_sdk_mcp_server("other", tools=[look, launch])
        model.scripts["other"] = [
            [use("mcp__other__look", what="here"), use("mcp__other__launch", what="it")],
            [say("ok")],
        ]

        ask("other", allowed_tools=["mcp__other__look"], mcp_servers={"other": other})

        assert called == ["here"]
        assert {record["tool"]: record["allowed"] for record in records("tool")} == {
            "mcp__other__look": True,
            "mcp__other__launch": False,
        }
        assert "Denied by belljar" in model.text_of("other")

    def test_a_built_in_tool_that_was_named_runs(self, model: Model, tmp_path: Path, records: Records) -> None:
        (tmp_path / "note.txt").write_text("plain sight")
        model.scripts["read"] = [[use("Read", file_path=str(tmp_path / "note.txt"))], [say("ok")]]

        ask("read", allowed_tools=["Read"], cwd=str(tmp_path))

        assert "plain sight" in model.text_of("read")
        assert records("tool")[0]["allowed"]

    def test_the_log_says_whether_there_is_no_such_tool_or_its_input_was_refused(
        self, model: Model, records: Records
    ) -> None:
        """The command refuses both before the gate is asked."""
        model.scripts["input"] = [[use("Read")], [use("Bash", command="id")], [say("ok")]]

        ask("input", allowed_tools=["Read"])

        assert [(record["tool"], record["reason"]) for record in records("tool")] == [
            ("Read", "the command refused its input"),
            ("Bash", "the command has no such tool"),
        ]

    def test_settings_on_disk_allow_nothing(self, model: Model, tmp_path: Path) -> None:
        project = tmp_path / "project"
        mark = tmp_path / "mark"
        (project / ".claude").mkdir(parents=True)
        hook = {"hooks": [{"type": "command", "command": f"touch {mark}"}]}
        settings = {"permissions": {"allow": ["Bash"]}, "hooks": {"PreToolUse": [hook], "SessionStart": [hook]}}
        (project / ".claude/settings.json").write_text(json.dumps(settings))
        server = {"command": "touch", "args": [str(mark)]}
        (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"evil": server}}))
        model.scripts["disk"] = [[use("Bash", command=f"touch {mark}")], [HELLO], [say("ok")]]

        ask("disk", cwd=str(project))

        assert not mark.exists()
        assert model.text_of("disk") == "hello, world"

    @pytest.mark.parametrize("verbatim", [True, False])
    def test_a_path_in_a_prompt_reads_no_file_of_the_host(self, model: Model, tmp_path: Path, verbatim: bool) -> None:
        """Where the caller asks for that, it does: else nothing would be shown here."""
        (tmp_path / "note.txt").write_text("of the host's")
        model.scripts["path"] = [[say("ok")]]

        ask(f"path @{tmp_path}/note.txt", **({} if verbatim else {"verbatim_prompts": False}), cwd=str(tmp_path))

        assert ("of the host's" in json.dumps(model.requests)) is not verbatim

    def test_input_that_another_hook_changed_is_not_run(self, model: Model, records: Records) -> None:
        """The gate judged the first input: what comes with its id has to be that."""

        async def changes(given: Any, *_more: Any) -> Any:
            changed = {"hookEventName": "PreToolUse", "updatedInput": {"code": "print('other')"}}
            return {"hookSpecificOutput": {**changed, "permissionDecision": "allow"}}

        model.scripts["changed"] = [[HELLO], [say("ok")]]

        ask("changed", hooks={"PreToolUse": [sdk.HookMatcher(hooks=[changes])]})

        assert "not the one that was judged" in model.text_of("changed")
        assert not records("started")

    def test_a_hook_that_raises_blocks(self, model: Model, records: Records) -> None:
        async def broken(*_given: Any) -> Any:
            raise RuntimeError("broken")

        model.scripts["hook"] = [[HELLO], [say("ok")]]

        ask("hook", hooks={"PreToolUse": [sdk.HookMatcher(hooks=[broken])]})

        assert model.results["hook"][0]["is_error"]
        assert "hello, world" not in model.text_of("hook")
        assert not records("started")

    REFUSED = [
        {"tools": ["Bash"]},
        {"permission_mode": "bypassPermissions"},
        {"permission_mode": "acceptEdits"},
        {"setting_sources": ["user"]},
        {"settings": "{}"},
        {"extra_args": {"dangerously-skip-permissions": None}},
        {"mcp_servers": {"sandboxed_code": {"command": "x"}}},
        {"mcp_servers": "servers.json"},
        {"plugins": [{"type": "local", "path": "/x"}]},
        {"allowed_tools": "Bash"},
        {"allowed_tools": None},
        {"allowed_tools": [None]},
        {"allowed_tools": ["Bash(id)"]},
        {"allowed_tools": ["*"]},
        {"allowed_tools": ["Rea*"]},
        {"allowed_tools": ["default"]},
        {"allowed_tools": ["mcp__*"]},
        {"allowed_tools": ["mcp__*__*"]},
        {"allowed_tools": ["mcp__github"]},
        {"allowed_tools": ["Read,Bash"]},
        {"allowed_tools": [""]},
        {"extra_args": None},
        {"mcp_servers": None},
        {"no_such_option": 1},
    ]

    @pytest.mark.parametrize("options", REFUSED, ids=str)
    def test_options_that_would_open_it_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError):
            sandboxed_options(**options)

    NAMED = [["WebSearch"], ["mcp__github__search"], ["mcp__git-hub.v2__*"], ["mcp__a_b__c_d"], ("Read", "Glob"), []]

    @pytest.mark.parametrize("names", NAMED, ids=str)
    def test_tools_are_named_whole_or_by_their_server(self, names: Any) -> None:
        """And what the SDK has as its own default is none of anybody's business."""
        made = sandboxed_options(allowed_tools=names, permission_mode=None, hooks=None)

        assert made.tools == [name for name in names if not name.startswith("mcp__")]


def raises(_request: ToolRequest) -> None:
    raise RuntimeError("broken")


class TestOnToolRequest:
    def test_it_sees_each_request_first_and_may_deny(self, model: Model, records: Records) -> None:
        seen: list[ToolRequest] = []

        def decide(request: ToolRequest) -> Deny | None:
            seen.append(request)
            return Deny("not today") if "secret" in request.input["code"] else None

        model.scripts["deny"] = [[use(RUN, code="print('secret')")], [HELLO], [say("ok")]]

        ask("deny", on_tool_request=decide)

        assert [request.tool for request in seen] == ["sandboxed_code.run"] * 2
        assert "not today" in model.text_of("deny", 0)
        assert model.text_of("deny", 1) == "hello, world"
        assert [record.get("reason", "") for record in records("tool")] == ["not today", ""]

    def test_it_may_tighten_for_one_call(self, model: Model) -> None:
        write = use(RUN, code="open('f', 'w').write('x'); print('written')")

        async def decide(request: ToolRequest) -> Tighten | None:
            tight = {"fs": {"mounts": [{"path": "/workspace", "rw": False}]}}
            return Tighten(tight) if request.tool_use_id == first[0] else None

        first: list[str] = []

        async def remember(request: ToolRequest) -> Tighten | None:
            first.append(request.tool_use_id)
            return await decide(request)

        model.scripts["tight"] = [[write], [write], [say("ok")]]

        ask("tight", on_tool_request=remember)

        assert "Read-only file system" in model.text_of("tight", 0)
        assert model.text_of("tight", 1).startswith("written")

    WRONG: list[tuple[str, Callable[[ToolRequest], Any | Awaitable[Any]]]] = [
        ("on_tool_request failed", raises),
        ("which is no decision", lambda _request: True),
        ("does not grant", lambda _request: Tighten({"net": {"enabled": True, "allowlist": ["example.com"]}})),
        ("does not grant", lambda _request: Tighten({"backend": "unconfined"})),
        ("does not grant", lambda _request: Tighten({"nonsense": 1})),
    ]

    @pytest.mark.parametrize(("words", "decide"), WRONG)
    def test_whatever_else_it_does_denies(
        self, words: str, decide: Callable[[ToolRequest], Any], records: Records
    ) -> None:
        """At the gate itself: the command is the same for all of them."""
        from belljar.policy.load.resolve import resolve
        from belljar.tools.tool_permission import ToolPermission

        gate = ToolPermission(resolve(), (), decide)
        asked = {"tool_name": RUN, "tool_input": {"code": "1"}, "session_id": "s"}

        answer = anyio.run(gate.before, asked, "toolu_1", None)

        told = answer["hookSpecificOutput"]
        assert told["permissionDecision"] == "deny"
        assert words in told["permissionDecisionReason"]
        assert not gate.was_let_through("toolu_1")
        assert not records("tool")[0]["allowed"]


def answering(answer: object) -> Callable[..., Awaitable[object]]:
    """A `can_use_tool` that always says this; what is an exception is raised."""

    async def can_use_tool(*_asked: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return can_use_tool


class TestCanUseTool:
    def test_it_is_asked_for_whatever_would_run_and_its_no_counts(
        self, model: Model, tmp_path: Path, records: Records
    ) -> None:
        """For belljar's own tools and for those that were named; not for what is denied anyway."""
        (tmp_path / "note.txt").write_text("plain sight")
        asked: list[tuple[str, Any, str]] = []

        async def can_use_tool(name: str, given: Any, context: sdk.ToolPermissionContext) -> sdk.PermissionResult:
            asked.append((name, given, str(context.tool_use_id)))
            if name == RUN and "hello" in given["code"]:
                return sdk.PermissionResultAllow()
            return sdk.PermissionResultDeny(message="not by me")

        read = use("Read", file_path=str(tmp_path / "note.txt"))
        model.scripts["can"] = [[HELLO], [use(RUN, code="print(1)")], [read], [use("Bash", command="id")], [say("ok")]]

        ask("can", can_use_tool=can_use_tool, allowed_tools=["Read"], cwd=str(tmp_path))

        assert [name for name, _given, _id in asked] == [RUN, RUN, "Read"]
        assert all(tool_use.startswith("toolu_") for _name, _given, tool_use in asked)
        assert model.text_of("can", 0) == "hello, world"
        assert "not by me" in model.text_of("can", 1)
        assert "plain sight" not in model.text_of("can", 2)
        assert [record["allowed"] for record in records("tool")] == [True, False, False, False]
        assert len(records("started")) == 1

    def test_its_no_may_stop_the_query(self, model: Model) -> None:
        model.scripts["stop"] = [[HELLO], [say("went on")]]

        said_no = sdk.PermissionResultDeny(message="enough", interrupt=True)
        messages = ask("stop", can_use_tool=answering(said_no))

        assert "went on" not in str(messages)

    def test_what_it_does_to_the_input_changes_nothing(self, model: Model, records: Records) -> None:
        """What is recorded, and what runs, is what the model wrote."""

        async def can_use_tool(_name: str, given: Any, _context: object) -> sdk.PermissionResult:
            given["code"] = "print('other')"
            return sdk.PermissionResultAllow()

        model.scripts["mutate"] = [[HELLO], [say("ok")]]

        ask("mutate", can_use_tool=can_use_tool)

        assert model.text_of("mutate") == "hello, world"
        (asked,) = records("tool")
        assert asked["input_bytes"] == len(json.dumps(HELLO["input"]))

    WRONG = [
        ("can_use_tool failed (RuntimeError)", RuntimeError("broken")),
        ("which is no decision", True),
        ("which is no decision", None),
        ("which is no decision", {"behavior": "allow"}),
        ("changed the input", sdk.PermissionResultAllow(updated_input={"code": "print('other')"})),
        ("asked for permissions", sdk.PermissionResultAllow(updated_permissions=[sdk.PermissionUpdate("addRules")])),
    ]

    @pytest.mark.parametrize(("words", "answer"), WRONG, ids=[str(answer) for _words, answer in WRONG])
    def test_whatever_is_no_plain_yes_denies(self, words: str, answer: object, records: Records) -> None:
        """At the gate itself: the command is the same for all of them."""
        from belljar.policy.load.resolve import resolve
        from belljar.tools.claude_callback import Callback
        from belljar.tools.tool_permission import ToolPermission

        gate = ToolPermission(resolve(), (), None, Callback(answering(answer)))
        asked = {"tool_name": RUN, "tool_input": {"code": "1"}, "session_id": "s"}

        told = anyio.run(gate.before, asked, "toolu_1", None)["hookSpecificOutput"]

        assert told["permissionDecision"] == "deny"
        assert words in told["permissionDecisionReason"]
        assert not gate.was_let_through("toolu_1")
        assert not records("tool")[0]["allowed"]


class TestTheGate:
    def test_a_call_that_did_not_pass_the_hook_is_refused(self, records: Records) -> None:
        """Even if the command skipped the hook, and asked nobody: the tool itself knows."""
        from mcp import Client

        options = sandboxed_options()
        assert isinstance(options.mcp_servers, dict)
        served = options.mcp_servers["sandboxed_code"]["instance"]  # type: ignore[typeddict-item]

        async def main() -> None:
            async with Client(served) as client:
                for meta in ({}, {"claudecode/toolUseId": "toolu_1"}):
                    answer = await client.call_tool("run", {"code": "print(1)"}, meta=meta)
                    assert answer.is_error

        anyio.run(main)
        assert [record["allowed"] for record in records("tool")] == [False, False]
        assert not records("started")

    @pytest.mark.parametrize("given", [{}, {"tool_name": RUN}, {"tool_name": RUN, "tool_input": 3}, None])
    def test_a_request_that_makes_no_sense_is_denied(self, given: Any) -> None:
        from belljar.policy.load.resolve import resolve
        from belljar.tools.tool_permission import ToolPermission

        answer = anyio.run(ToolPermission(resolve(), (), None).before, given, None, None)

        assert answer["hookSpecificOutput"]["permissionDecision"] == "deny"

    def test_what_cant_be_recorded_is_denied(self, state_directory: str) -> None:
        from belljar.policy.load.resolve import resolve
        from belljar.tools.tool_permission import ToolPermission

        Path(state_directory, "audit").write_text("no directory")
        asked = {"tool_name": RUN, "tool_input": {"code": "1"}, "session_id": "s"}

        answer = anyio.run(ToolPermission(resolve(), (), None).before, asked, "toolu_1", None)

        assert answer["hookSpecificOutput"]["permissionDecision"] == "deny"
