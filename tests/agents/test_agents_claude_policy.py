"""The policy of a query to the Claude Agent SDK, and how queries end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from scripted_model import Model, Records, say, use
from scripted_queries import RUN, ask

from belljar.errors import PolicyError, UsageError
from belljar.tools.claude import SandboxedClient, _Lifetime, query
from belljar.tools.toolbox import Toolbox

pytestmark = pytest.mark.backend("bubblewrap")


WRITES = use(RUN, code="open('/data/f', 'w').write('x'); print('written')")


WITH_DATA = {"fs": {"mounts": [{"path": "/data", "rw": True}]}}


class TestPolicyOfAQuery:
    def test_an_override_makes_the_difference_and_does_not_leak(self, model: Model) -> None:
        """Seed 001, milestone 2: a query with a policy override behaves differently than one without."""
        for name in ("before", "with", "after"):
            model.scripts[name] = [[WRITES], [say("ok")]]

        ask("before")
        ask("with", sandbox_policy=WITH_DATA)
        ask("after")

        assert "No such file" in model.text_of("before")
        assert model.text_of("with").startswith("written")
        assert "No such file" in model.text_of("after")

    def test_two_at_once_have_each_their_own(self, model: Model) -> None:
        for name in ("plain", "more"):
            model.scripts[name] = [[WRITES], [WRITES], [say("ok")]]

        async def main() -> None:
            async def one(name: str, policy: Any) -> None:
                async for _message in query(f"script:{name} go", sandbox_policy=policy):
                    pass

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, "plain", None)
                tasks.start_soon(one, "more", WITH_DATA)

        anyio.run(main)

        assert all("No such file" in model.text_of("plain", index) for index in (0, 1))
        assert all(model.text_of("more", index).startswith("written") for index in (0, 1))

    def test_in_a_client_it_holds_for_one_query(self, model: Model) -> None:
        model.scripts["talk"] = [[WRITES], [say("1")], [WRITES], [say("2")], [WRITES], [say("3")]]

        async def main() -> None:
            async with SandboxedClient() as client:
                for policy in (None, WITH_DATA, None):
                    await client.query("script:talk go", sandbox_policy=policy)
                    async for _message in client.receive_response():
                        pass

        anyio.run(main)

        assert [model.text_of("talk", index).startswith("written") for index in (0, 1, 2)] == [False, True, False]

    @pytest.mark.parametrize("policy", [None, "strict", {"proc": {"pids": 30}}], ids=str)
    def test_a_client_shows_its_workspace_under_any_policy(self, model: Model, tmp_path: Path, policy: Any) -> None:
        """What takes the policy's place does not take the files away."""
        (tmp_path / "here.txt").write_text("x")
        model.scripts["files"] = [[use(RUN, code="import os; print(os.listdir())")], [say("ok")]]

        async def main() -> None:
            async with SandboxedClient(workspace=str(tmp_path)) as client:
                await client.query("script:files go", sandbox_policy=policy)
                async for _message in client.receive_response():
                    pass

        anyio.run(main)

        assert "here.txt" in model.text_of("files")

    def test_a_client_takes_no_query_before_the_last_is_answered(self, model: Model) -> None:
        model.scripts["slow"] = [[say("1")]]

        async def main() -> None:
            async with SandboxedClient() as client:
                await client.query("script:slow go")
                with pytest.raises(UsageError, match="not read yet"):
                    await client.query("script:slow go", sandbox_policy=WITH_DATA)
                async for _message in client.receive_response():
                    pass

        anyio.run(main)

    def test_a_policy_that_is_wrong_starts_nothing(self, model: Model) -> None:
        with pytest.raises(PolicyError, match="unknown key"):
            ask("never", sandbox_policy={"nett": {}})

        assert not model.requests


class TestEnds:
    def test_a_query_that_is_left_ends_its_jar(self, model: Model, records: Records) -> None:
        model.scripts["left"] = [[use(RUN, code="import time; time.sleep(600)")], [say("ok")]]

        async def main() -> None:
            async def follow() -> None:
                async for _message in query("script:left go"):
                    pass

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                while not records("started"):
                    await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()

        anyio.run(main)

        (finished,) = records("finished")
        assert finished["outcome"] == "killed"

    def test_a_toolbox_serves_one_query_after_the_other(self, model: Model) -> None:
        model.scripts["one"] = [[use(RUN, code="x = 1", session="s")], [say("ok")]]
        model.scripts["two"] = [[use(RUN, code="x", session="s")], [say("ok")]]
        with Toolbox(pool_size=1) as box:
            ask("one", toolbox=box)
            ask("two", toolbox=box)

        assert model.text_of("two") == "1"

    def test_a_query_that_begins_while_the_last_one_ends_keeps_its_jars(self) -> None:
        """On the same options: what is being closed is not what the next one gets."""
        closing, go_on = threading.Event(), threading.Event()
        closed: list[bool] = []

        class Slow(Toolbox):
            def close(self) -> None:
                closing.set()
                go_on.wait(20)
                super().close()
                closed.append(True)

        lifetime = _Lifetime(Slow(pool_size=0))

        async def first() -> None:
            async with lifetime(None):
                pass

        async def main() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first)
                await anyio.to_thread.run_sync(closing.wait)
                threading.Timer(0.2, go_on.set).start()
                async with lifetime(None):
                    assert closed == [True]

        anyio.run(main)

        assert closed == [True, True]

    def test_without_the_sdk_the_error_says_what_to_install(self) -> None:
        import subprocess
        import sys

        code = "import sys; sys.modules['claude_agent_sdk'] = None; import belljar.tools.claude"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

        assert "pip install 'belljar[claude]'" in told.stderr

    def test_belljar_itself_imports_none_of_it(self) -> None:
        import subprocess
        import sys

        code = "import sys, belljar; belljar.Pool; names = ('mcp', 'claude', 'belljar.tools')\n"
        code += "print([name for name in sys.modules if name.startswith(names)])"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert told.stdout == "[]\n"
