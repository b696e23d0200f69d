"""What goes in and what comes out: both streams, in order, whole, as it is produced."""

from __future__ import annotations

import os

import pytest
from jars import WAIT_FOR_GO, OpenJar, finish, sh, told

from belljar import Sandbox
from belljar.sandbox.record.events import Finished, Output


class TestOutput:
    """stdout and stderr."""

    def test_streams_are_kept_apart_and_in_order(self, jar: Sandbox) -> None:
        """Each line in its stream, in the order in which it was written there."""
        result = sh(jar, "for i in $(seq 500); do echo out$i; echo err$i >&2; done")
        assert result.stdout.splitlines() == [f"out{number}" for number in range(1, 501)]
        assert result.stderr.splitlines() == [f"err{number}" for number in range(1, 501)]

    def test_everything_up_to_the_limit_comes_back(self, open_jar: OpenJar) -> None:
        """Many times what a pipe holds, on both streams at once, the last byte included."""
        script = "seq 1 200000 & seq 200001 400000 >&2; wait"
        result = sh(open_jar({"proc": {"output_mb": 8}}), script)
        assert told(result).split() == [str(number) for number in range(1, 200001)]
        assert result.stderr.split() == [str(number) for number in range(200001, 400001)]
        assert not result.truncated

    def test_bytes_that_are_no_text(self, jar: Sandbox) -> None:
        """The stream has the very bytes; the result's text has a mark where they can't be decoded."""
        events = list(jar.stream(argv=["printf", r"a\377\376\000b"]))
        assert b"".join(event.data for event in events if isinstance(event, Output)) == b"a\xff\xfe\x00b"
        assert isinstance(events[-1], Finished)
        assert events[-1].result.stdout == "a\ufffd\ufffd\x00b"

    def test_a_character_that_is_split_between_reads(self, jar: Sandbox) -> None:
        """Decoded as a whole, not piece by piece."""
        text = "x" + "é€😀" * 30_000
        jar.files.write("text", text)
        assert told(sh(jar, "cat text")) == text

    def test_no_output_is_no_output(self, jar: Sandbox) -> None:
        """No line of belljar's own is mixed in."""
        result = sh(jar, ":")
        assert (result.stdout, result.stderr) == ("", "")

    def test_closed_streams_do_not_end_the_run(self, jar: Sandbox) -> None:
        """The code may close stdout and stderr and go on."""
        result = sh(jar, "exec >&- 2>&-; echo worked > late; exit 7")
        assert (result.outcome, result.exit_code) == ("failed", 7)
        assert jar.files.read("late") == b"worked\n"


class TestStreaming:
    """Output arrives while the code runs."""

    @pytest.mark.parametrize("stream", ["stdout", "stderr"])
    def test_output_is_seen_before_the_end(self, jar: Sandbox, stream: str) -> None:
        """The code goes on only when the host, which saw its first line, tells it to: if not, it would never end."""
        redirect = ">&2" if stream == "stderr" else ""
        events = jar.stream(argv=["sh", "-c", f"echo first {redirect}; {WAIT_FOR_GO}; echo second {redirect}"])
        assert next(events) == Output(stream, b"first\n")  # type: ignore[arg-type]
        jar.files.write("go", "")
        result = finish(events)
        assert result.ok
        assert getattr(result, stream) == "first\nsecond\n"

    def test_python_does_not_keep_it_back(self, jar: Sandbox) -> None:
        """print() without flush arrives at once, as on a terminal."""
        code = "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('second')"
        events, seen = jar.stream(code), b""
        while seen != b"first\n":  # the newline may come on its own
            event = next(events)
            assert isinstance(event, Output)
            seen += event.data
        jar.files.write("go", "")
        assert told(finish(events)) == "first\nsecond\n"

    def test_the_last_event_is_the_result(self, jar: Sandbox) -> None:
        """One Finished, at the end, whose text is all that was streamed."""
        events = list(jar.stream(argv=["seq", "20000"]))
        assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
        streamed = b"".join(event.data for event in events if isinstance(event, Output))
        assert isinstance(events[-1], Finished)
        assert streamed.decode() == events[-1].result.stdout


class TestInput:
    """stdin as bytes, as text, as a descriptor, or nothing."""

    @pytest.mark.parametrize(
        ("given", "seen"),
        [
            pytest.param(b"bytes\x00\xff", b"bytes\x00\xff", id="bytes"),
            pytest.param("text é", "text é".encode(), id="text"),
            pytest.param(b"", b"", id="empty"),
            pytest.param(b"x" * 3_000_000, b"x" * 3_000_000, id="3 MB"),
        ],
    )
    def test_what_is_given_is_what_is_read(self, jar: Sandbox, given: bytes | str, seen: bytes) -> None:
        """To the last byte, and then the end."""
        result = jar.exec(["sh", "-c", "cat > got"], stdin=given)
        assert result.ok
        assert jar.files.read("got") == seen

    def test_none_is_the_end_of_file(self, jar: Sandbox) -> None:
        """The caller's own stdin is not the jar's."""
        assert told(sh(jar, "cat; echo end")) == "end\n"

    def test_a_descriptor_is_read_and_stays_the_callers(self, jar: Sandbox) -> None:
        """A pipe, fed while the code runs."""
        reader, writer = os.pipe()
        try:
            events = jar.stream(argv=["sh", "-c", "echo up; read line; echo got $line"], stdin=reader)
            assert next(events) == Output("stdout", b"up\n")
            os.write(writer, b"hello\n")
            assert told(finish(events)) == "up\ngot hello\n"
            os.fstat(reader)
        finally:
            os.close(reader)
            os.close(writer)

    def test_code_can_read_it_too(self, jar: Sandbox) -> None:
        """stdin is free: the code itself does not come through it."""
        assert told(jar.run("print(input().upper())", stdin="hello\n")) == "HELLO\n"
        assert told(jar.run("read line; echo $line", language="bash", stdin="hello\n")) == "hello\n"

    def test_input_that_nobody_reads(self, jar: Sandbox) -> None:
        """The code ends without reading: no broken pipe reaches the caller."""
        assert jar.exec(["true"], stdin=b"x" * 1_000_000).ok
