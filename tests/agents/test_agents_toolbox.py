"""The tools over real jars: what a model gets back, what it may ask for, and what is written down."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_model import PNG, Records

from belljar.policy.load.tighten import tightened
from belljar.tools.answers import ToolAnswer
from belljar.tools.calls import Call
from belljar.tools.toolbox import Toolbox

pytestmark = pytest.mark.backend("bubblewrap")


class Tools:
    """A toolbox, called as a model does."""

    def __init__(self, box: Toolbox) -> None:
        self.box = box

    def __call__(self, tool: str, /, *, scope: str = "", policy: Any = None, **given: Any) -> ToolAnswer:
        call = Call(client="test", session="conversation", tool_use="use-1", scope=scope, policy=policy)
        return self.box.call(tool, given, call)


@pytest.fixture
def tools() -> Iterator[Tools]:
    """Without a pool, which takes longer to make than one jar."""
    with Toolbox(pool_size=0) as box:
        yield Tools(box)


@pytest.fixture
def pooled() -> Iterator[Tools]:
    with Toolbox(pool_size=1) as box:
        yield Tools(box)


class TestFreshJars:
    @pytest.mark.parametrize("kind", ["tools", "pooled"])
    def test_code_runs_on_what_it_is_given_and_shares_nothing(self, request: pytest.FixtureRequest, kind: str) -> None:
        tools: Tools = request.getfixturevalue(kind)
        code = "import os; os.mkdir('out'); open('out/b.txt', 'w').write(open('in/a.txt').read() * 2); print('hello')"
        answer = tools("run", code=code, files={"in/a.txt": "ab"})

        assert not answer.is_error
        assert answer.text.startswith("hello\n")
        assert answer.structured is not None
        assert answer.structured["exit_code"] == 0
        (file,) = answer.structured["files"]
        assert (file["path"], file["size"]) == ("out/b.txt", 4)
        assert tools("read_file", path=file["handle"]).text == "abab"
        assert tools("run", code="import os; print(os.listdir())").text == "[]"
        image = tools("run", code=PNG)
        assert [(kind, data[:4]) for kind, data in image.images] == [("image/png", b"\x89PNG")]
        command = tools("exec", command=["sh", "-c", "cat; echo $0 done >&2; exit 3"], stdin="in")
        assert command.text == "in\nstderr:\nsh done\n[exit code 3]"
        assert command.is_error

    @pytest.mark.parametrize("kind", ["tools", "pooled"])
    @pytest.mark.parametrize("word", ["-h", "-c", "-a", "--"])
    def test_a_command_may_begin_with_a_dash(self, request: pytest.FixtureRequest, kind: str, word: str) -> None:
        """It is the name of a program, and no option of the shell that starts it."""
        answer = request.getfixturevalue(kind)("exec", command=[word, "true"])

        assert f"exec: {word}: not found" in answer.text
        assert answer.structured["exit_code"] == 127

    @pytest.mark.parametrize(("language", "code"), [("javascript", "console.log(6 * 7)"), ("bash", "echo $((6 * 7))")])
    def test_in_other_languages(self, tools: Tools, language: str, code: str) -> None:
        assert tools("run", code=code, language=language).text == "42"

    def test_names_and_content_are_the_codes_own(self, tools: Tools) -> None:
        """A name of any bytes, a link to the host, and what only claims to be an image."""
        code = r"""
import os
open(b"a\xff\n\x1b[31mb", "w").write("x")
os.symlink("/etc/passwd", "innocent.txt")
open("dot.png", "w").write("<script>")
"""
        answer = tools("run", code=code)

        assert answer.structured is not None
        odd, image = answer.structured["files"]
        assert odd["path"].isprintable()
        odd["path"].encode()
        assert tools("read_file", path=odd["handle"]).text == "x"
        assert image["path"] == "dot.png"
        assert answer.images == ()


class TestBounds:
    def test_300000_characters_become_a_part_and_a_handle(self, tools: Tools) -> None:
        answer = tools("run", code="print('\\n'.join(f'line {n:05}' for n in range(27273)))")

        assert answer.structured is not None
        assert len(answer.text) < 20_000
        assert "line 00000" in answer.text
        assert "line 27272" in answer.text
        assert "line 13000" not in answer.text
        handle = answer.structured["handles"]["stdout"]
        assert handle in answer.text
        assert tools("read_file", path=handle, start=13_000 * 11).text.startswith("line 13000\n")

    def test_the_calls_own_time_ends_it(self, tools: Tools) -> None:
        answer = tools("run", code="while True: pass", timeout=0.3)

        assert answer.outcome == "timeout"
        assert "0.3 s" in answer.text

    def test_the_policys_time_is_the_most(self) -> None:
        with Toolbox(timeout="300ms", pool_size=0) as box:
            answer = Tools(box)("run", code="while True: pass", timeout=60)

        assert answer.outcome == "timeout"
        assert "proc.timeout_ms" in answer.text

    def test_secrets_and_mail_addresses_become_tokens(self, tools: Tools) -> None:
        answer = tools("run", code="print('to bob@corp.test'); open('f', 'w').write('from bob@corp.test')")

        assert answer.structured is not None
        assert answer.text.startswith("to <EMAIL_1>")
        assert answer.structured["stdout"] == "to <EMAIL_1>\n"
        assert tools("read_file", path=answer.structured["files"][0]["handle"]).text == "from <EMAIL_1>"

    MAIL = "joe.doe@example.com"
    LOOK = f"print({MAIL!r}); open('{MAIL}', 'w').write('to {MAIL}')"

    @pytest.mark.parametrize("places", [["log"], ["log", "result"]], ids=str)
    def test_nothing_is_left_out_where_results_are_redacted_too(self, places: list[str]) -> None:
        """The stricter policy hides no less: a file, its name, its handle, and what a session holds."""
        with Toolbox({"logging": {"redact_in": places}}, pool_size=0) as box:
            tools = Tools(box)
            ran = tools("run", code=self.LOOK)
            (kept,) = box.handles.files()
            tools("run", code=self.LOOK, session="s")
            missing = tools("run", code=f"raise ValueError({self.MAIL!r})", session="s")
            told = [ran, missing, tools("read_file", path=kept.handle), tools("list_files", session="s")]
            told.append(tools("read_file", path=self.MAIL, session="s"))

        for answer in told[:-1]:
            assert "joe.doe" not in f"{answer.text} {answer.structured}"
            assert "<EMAIL_1>" in answer.text
        assert told[-1].text == "to <EMAIL_1>"
        assert kept.text == "to <EMAIL_1>"
        assert "joe.doe" not in kept.name

    def test_what_a_call_is_redacted_by_is_its_own_policy(self) -> None:
        """Tightened for one call, or given to one query; what was made so is shown so, whoever reads it."""
        opened = {"logging": {"redact_pii": False}}
        with Toolbox(opened, pool_size=0) as box:
            tools = Tools(box)
            tight = tightened(box.policy, {"logging": {"redact_pii": True}}, by="test")
            hidden = tools("run", code=self.LOOK, policy=tight)
            shown = tools("run", code=self.LOOK)
            assert hidden.structured is not None
            read = tools("read_file", path=hidden.structured["files"][0]["handle"])

        assert "joe.doe" not in hidden.text
        assert self.MAIL in shown.text
        assert read.text == "to <EMAIL_1>"

    def test_a_policy_that_redacts_in_other_places_redacts_once(self) -> None:
        """What the jar redacted is not redacted again, and what it did not is."""
        from belljar.sandbox.run.sandbox import resolved
        from belljar.tools.claude import overridden

        with Toolbox({"logging": {"redact_in": ["log", "result"]}}, pool_size=0) as box:
            tools = Tools(box)
            wanted = overridden(box.policy, {"logging": {"redact_in": ["log"]}})
            other = resolved(wanted, backend=None, workspace=None, live=False, overrides=(), timeout=None)
            found = [tools("run", code=f"print({self.MAIL!r})", policy=policy).text for policy in (None, other)]

        assert found == ["<EMAIL_1>", "<EMAIL_1>"]

    def test_a_token_tells_nothing_of_another_scope(self, tools: Tools) -> None:
        """Its number would say whether somebody else has seen the same."""
        tools("run", code="print('ann@corp.test bob@corp.test')", scope="one")

        assert tools("run", code="print('bob@corp.test')", scope="two").text == "<EMAIL_1>"

    def test_unless_that_is_not_wanted(self) -> None:
        with Toolbox(pool_size=0, redact=False) as box:
            assert Tools(box)("run", code="print('bob@corp.test')").text == "bob@corp.test"

    WRONG = [
        ({}, "needs 'code'"),
        ({"code": 5}, "code is not a string"),
        ({"code": None}, "code is not a string"),
        ({"code": "1", "shell": True}, "does not take 'shell'"),
        ({"code": "1", "language": "cobol"}, "use one of python"),
        ({"code": "1", "timeout": 0}, "timeout"),
        ({"code": "1", "timeout": True}, "timeout"),
        ({"code": "1", "timeout": 10**5000}, "timeout: wanted"),
        ({"code": "1", "timeout": "5"}, "timeout"),
        ({"code": "1", "session": "../../etc"}, "session"),
        ({"code": "1", "files": ["a"]}, "files"),
        ({"code": "1", "files": {"a": 1}}, "is not text"),
        ({"code": "1", "files": {"../a": "x"}}, "lies in no mount"),
        ({"code": "1", "files": {str(n): "" for n in range(201)}}, "at most 200"),
        ({"code": "\ud800"}, "half a character"),
        ({"code": "x" * (1 << 20) + "x"}, "at most"),
    ]

    @pytest.mark.parametrize(("given", "words"), WRONG, ids=[words for _given, words in WRONG])
    def test_what_makes_no_sense_is_told_and_does_not_run(
        self, given: dict[str, Any], words: str, records: Records
    ) -> None:
        with Toolbox(pool_size=0) as box:
            answer = Tools(box)("run", **given)

        assert answer.is_error
        assert words in answer.text
        assert not records("started")

    def test_an_unknown_tool_is_told_which_there_are(self, tools: Tools, records: Records) -> None:
        answer = tools("bash", command="id")

        assert answer.is_error
        assert "run, exec, read_file" in answer.text
        (record,) = records("tool")
        assert not record["allowed"]


class TestDenials:
    def test_a_refused_connection_comes_with_advice(self, tools: Tools) -> None:
        answer = tools("run", code="import socket; socket.create_connection(('192.0.2.1', 443))")

        assert answer.structured is not None
        (refused,) = answer.structured["refused"]
        assert refused["what"] == "connect <IP_1>:443"
        assert refused["rule"] == "net.enabled"
        assert "Trying again will not help" in answer.text
        assert "net.allowlist" in refused["advice"]

    def test_a_limit_comes_with_advice(self) -> None:
        with Toolbox(overrides=["proc.output_mb=1"], pool_size=0) as box:
            answer = Tools(box)("run", code="print('x' * 4_000_000)")

        assert answer.structured is not None
        assert any("Do it in less" in entry["advice"] for entry in answer.structured["refused"])


class TestSessions:
    def test_variables_and_files_stay_until_reset(self, tools: Tools) -> None:
        tools("run", code="x = 20\nopen('f', 'w').write('kept')", session="a")

        assert tools("run", code="x + 1", session="a").text == "21"
        assert tools("exec", command=["cat", "f"], session="a").text == "kept"
        assert tools("run", code="cat f", language="bash", session="a").text == "kept"
        assert tools("reset", session="a").structured == {"session": "a", "existed": True}
        again = tools("run", code="x", session="a")
        assert "NameError" in again.text
        assert again.is_error

    def test_files_are_written_listed_and_read(self, tools: Tools) -> None:
        assert "session='main'" in tools("write_file", path="d/a.py", content="y = 2").text
        listed = tools("list_files", recursive=True).structured

        assert listed is not None
        assert [file["path"] for file in listed["files"]] == ["d", "d/a.py"]
        assert tools("read_file", path="d/a.py").text == "y = 2"
        assert tools("run", code="from d.a import y; y", session="main").text == "2"

    @pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "/proc/self/environ", "link"])
    def test_no_path_leads_out_of_the_workspace(self, tools: Tools, path: str) -> None:
        tools("run", code="import os; os.symlink('/etc/passwd', 'link')", session="main")

        answer = tools("read_file", path=path)
        assert answer.is_error
        assert "root:" not in answer.text

    FAULTS = [
        ("read_file", {"path": "d"}, "[Is a directory: d]"),
        ("read_file", {"path": ""}, "[Is a directory: .]"),
        ("read_file", {"path": "none/at/all"}, "[No such file or directory: none/at/all]"),
        ("read_file", {"path": "link"}, "[no links are followed: link]"),
        ("list_files", {"path": "none"}, "[No such file or directory: none]"),
        ("write_file", {"path": "link/x", "content": ""}, "[no links are followed: link/x]"),
        ("run", {"code": "1", "files": {"a": "", "link/x": ""}}, "[no links are followed: link/x]"),
    ]

    def test_a_fault_with_a_file_names_it(self, tools: Tools) -> None:
        """As the model called it."""
        tools("run", code="import os; os.mkdir('d'); os.symlink('/etc', 'link')", session="s")

        for tool, given, words in self.FAULTS:
            answer = tools(tool, session="s", **given)
            assert (answer.text, answer.is_error) == (words, True), tool

    def test_another_scope_has_other_sessions(self, tools: Tools) -> None:
        tools("run", code="secret = 1", session="s", scope="one")

        assert "NameError" in tools("run", code="secret", session="s", scope="two").text

    def test_another_scope_has_other_outputs(self, tools: Tools) -> None:
        """A handle is worth nothing elsewhere, nor one with the scope written into it."""
        answer = tools("run", code="print('mine ' * 9999)", scope="one")
        assert answer.structured is not None
        handle = answer.structured["handles"]["stdout"]

        assert tools("read_file", path=handle, scope="one").text.startswith("mine")
        for path, scope in ((handle, "two"), (handle, ""), (f"one{handle}", ""), (f"3:one{handle}", "")):
            assert tools("read_file", path=path, scope=scope).is_error

    def test_one_that_was_ended_for_being_idle_is_taken_up_again_and_that_is_told(self, state_directory: str) -> None:
        """Its files are back, its variables are not, and nothing of it stays when it is done with."""
        with Toolbox(overrides=["session.idle_s=1s"], pool_size=0) as box:
            tools = Tools(box)
            kept = Path(state_directory, "sessions")
            for first in ("list_files", "run"):
                tools("run", code="x = 1; open('f', 'w').write('kept')", session="s")
                while not list(kept.glob("*.tar")):
                    time.sleep(0.02)
                answer = tools(first, session="s", **({"code": "x"} if first == "run" else {}))

                assert answer.text.startswith("[the session 's' was ended meanwhile: it was not used for long")
                assert "its files are back, its variables are gone]" in answer.text
                assert answer.structured is not None
                assert answer.structured["note"] in answer.text
                assert tools("read_file", path="f", session="s").text == "kept"
            assert "NameError" in answer.text
            while not list(kept.glob("*.tar")):
                time.sleep(0.02)
            tools("reset", session="s")
            assert not list(kept.glob("*.tar"))

    def test_where_there_is_no_room_a_model_is_told_what_it_can_do(self) -> None:
        """It has no other tool than `reset`, and no policy to change."""
        with Toolbox(overrides=["session.max_sessions=1"], pool_size=0) as box:
            tools = Tools(box)
            call = Call(client="test")
            code = {"code": "import time; print(1, flush=True); time.sleep(60)", "session": "a"}
            thread = threading.Thread(target=box.call, args=("run", code, call))
            thread.start()
            while not call.output_bytes:
                time.sleep(0.01)
            answer = tools("run", code="1", session="b")
            call.cancel()
            thread.join()

        assert "with `reset`" in answer.text
        assert "max_sessions" not in answer.text

    def test_a_scope_that_ended_leaves_nothing_and_gets_nothing(self, tools: Tools) -> None:
        """Also a call that was under way makes no jar for it."""
        tools("run", code="x = 1; open('f', 'w').write('x')", session="s", scope="one")
        tools("run", code="x = 1", session="s", scope="two")

        tools.box.end_scope("one")

        assert tools.box.handles.files(scope="one") == []
        assert "has ended" in tools("run", code="1", session="s", scope="one").text
        assert tools("run", code="x", session="s", scope="two").text == "1"

    def test_a_missing_session_is_told_how_to_be_had(self, tools: Tools) -> None:
        assert "write_file with session='main'" in tools("list_files").text

    def test_stateful_needs_no_name(self) -> None:
        with Toolbox(stateful=True, pool_size=0) as box:
            tools = Tools(box)
            tools("run", code="x = 1")

            assert tools("run", code="x").text == "1"

    def test_a_workspace_is_seen_and_not_touched(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("as it was")
        with Toolbox(workspace=tmp_path) as box:
            answer = Tools(box)("run", code="print(open('a.txt').read()); open('a.txt', 'w').write('changed')")

        assert answer.text.startswith("as it was")
        assert (tmp_path / "a.txt").read_text() == "as it was"


class TestCancelling:
    @pytest.mark.parametrize("session", ["", "s"])
    def test_a_cancelled_call_ends_what_runs_for_it(self, tools: Tools, records: Records, session: str) -> None:
        """Code that takes no notice of an interrupt, too."""
        stubborn = "import time\nwhile True:\n    try:\n        while True: print(1, flush=True); time.sleep(0.01)\n"
        stubborn += "    except BaseException: pass"
        call = Call(client="test")
        given = {"code": stubborn, **({"session": session} if session else {})}
        thread = threading.Thread(target=tools.box.call, args=("run", given, call))
        thread.start()
        while not call.output_bytes:
            time.sleep(0.01)
        call.cancel()
        thread.join()

        (ended,) = records("answered")
        assert ended["is_error"]
        assert ended["outcome"] in ("killed", "failed")

    @pytest.mark.parametrize("session", ["", "s"])
    def test_a_toolbox_that_is_closed_ends_what_runs_and_records_it(self, records: Records, session: str) -> None:
        """Before it returns: the process may be gone a moment later."""
        box = Toolbox(pool_size=0)
        call = Call(client="test")
        code = {"code": "import time; print(1, flush=True); time.sleep(60)"}
        given = {**code, **({"session": session} if session else {})}
        thread = threading.Thread(target=box.call, args=("run", given, call))
        thread.start()
        while not call.output_bytes:
            time.sleep(0.01)

        box.close()

        assert len(records("answered")) == 1
        assert len(records("finished")) == len(records("created")) == 1
        thread.join()

    def test_before_it_began_nothing_runs(self, tools: Tools, records: Records) -> None:
        call = Call(client="test")
        call.cancel()

        assert tools.box.call("run", {"code": "1"}, call).is_error
        assert not records("started")


class TestPolicies:
    def test_a_tighter_one_holds_for_its_call_alone(self, tools: Tools) -> None:
        tight = tightened(tools.box.policy, {"fs": {"mounts": [{"path": "/workspace", "rw": False}]}}, by="test")
        write = "open('f', 'w').write('x')"

        assert "Read-only" in tools("run", code=write, policy=tight).text
        assert not tools("run", code=write).is_error

    def test_its_sessions_are_others(self, tools: Tools) -> None:
        tight = tightened(tools.box.policy, {"proc": {"pids": 32}}, by="test")
        tools("run", code="x = 1", session="s")

        assert "NameError" in tools("run", code="x", session="s", policy=tight).text


class TestRecords:
    def test_a_call_is_recorded_before_its_run_and_its_end_before_the_answer(
        self, tools: Tools, records: Records
    ) -> None:
        answer = tools("run", code="print(1)")

        told = [record["event"] for record in records()]
        assert told.index("tool") < told.index("started") < told.index("finished") < told.index("answered")
        (asked,) = records("tool")
        assert asked["tool"] == "run"
        assert (asked["client"], asked["session"], asked["tool_use"]) == ("test", "conversation", "use-1")
        assert asked["allowed"]
        (ended,) = records("answered")
        assert ended["call"] == asked["call"]
        assert ended["run"] == answer.run_id

    def test_what_was_asked_is_stored_by_its_digest(self, tools: Tools, records: Records) -> None:
        from belljar.audit.stored import load_input

        tools("write_file", path="a", content="b")

        (asked,) = records("tool")
        assert load_input(asked["input"]) == b'{"content": "b", "path": "a"}'

    def test_what_cant_be_recorded_does_not_run(self, tools: Tools, state_directory: str, tmp_path: Path) -> None:
        tools("run", code="1")
        audit = Path(state_directory, "audit")
        (audit / "head").unlink()
        for path in audit.glob("*.jsonl"):
            path.unlink()
            path.mkdir()
        mark = tmp_path / "mark"
        answer = tools("run", code=f"open({str(mark)!r}, 'w')")

        assert answer.is_error
        assert "audit log can't be written" in answer.text

    def test_with_the_kill_switch_on_nothing_runs(self, tools: Tools, state_directory: str) -> None:
        Path(state_directory, "killswitch").touch()

        assert "kill switch" in tools("run", code="print(1)").text


def test_nothing_of_it_lies_on_the_disk(tools: Tools, state_directory: str) -> None:
    """Files that runs made are in memory: what is stored is the log, and what calls asked for."""
    tools("run", code="open('f', 'w').write('0123456789abcdef' * 4)")

    found = [os.path.join(top, name) for top, _directories, names in os.walk(state_directory) for name in names]
    assert not [
        path
        for path in found
        if stat.S_ISREG(os.lstat(path).st_mode) and b"0123456789abcdef0123" in Path(path).read_bytes()
    ]
