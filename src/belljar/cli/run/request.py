"""What to run: from FILE, `-`, `-c CODE` or a command's words to a request for the Sandbox. Reads the one file."""

from __future__ import annotations

import os
import sys

from belljar.cli.jar_options import within
from belljar.cli.parsing import Option, Parsed
from belljar.errors import UsageError

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

    from belljar.sandbox.run.sandbox import Sandbox

CODE = Option("-c", "CODE", "run this code instead of a file")
LANG = Option(
    "--lang", "NAME", "python, javascript or bash (default: by the file's suffix or its #! line; else python)"
)
MAX_CODE_BYTES = 64 << 20
_FLAGS = {"python": ("-B", "-u")}
"""For a file that runs in its place: it leaves no __pycache__ beside it, and its output arrives when it is written."""


class CommandLineRequest:
    """A command, or code with its language, name and arguments."""

    __slots__ = ("args", "argv", "code", "language", "name", "takes_stdin")

    def __init__(
        self,
        *,
        argv: tuple[str, ...] = (),
        code: bytes | None = None,
        language: str = "python",
        name: str = "",
        args: tuple[str, ...] = (),
        takes_stdin: bool = True,
    ) -> None:
        self.argv = argv
        self.code = code
        self.language = language
        self.name = name
        self.args = args
        self.takes_stdin = takes_stdin
        """False when the code itself came that way."""

    def keywords(self) -> dict[str, Any]:
        """As `Sandbox.stream` and `Sandbox.plan` take it."""
        if self.argv:
            return {"argv": self.argv}
        return {"code": self.code, "language": self.language, "name": self.name, "args": self.args}


def of_command(words: list[str]) -> CommandLineRequest:
    """A command, as `exec` gets it. Raises UsageError."""
    if not words:
        raise UsageError("which command?", hint="belljar exec -- ls -l")
    return CommandLineRequest(argv=tuple(words))


def of_code(parsed: Parsed, jar: Sandbox) -> CommandLineRequest:
    """A file or a piece of code, as `run` gets it. Raises UsageError."""
    words = parsed.all_words()
    code = parsed.text("-c")
    if code is not None:
        return CommandLineRequest(
            code=code.encode("utf-8", "surrogateescape"), language=_language(parsed), args=tuple(words)
        )
    if not words:
        raise UsageError(
            "what shall run?", hint="belljar run FILE, belljar run -c CODE, or belljar run - for standard input"
        )
    file, *arguments = words
    if file == "-":
        content = _bounded(sys.stdin.buffer.read(MAX_CODE_BYTES + 1), "standard input")
        return CommandLineRequest(
            code=content, language=_language(parsed, content), args=tuple(arguments), takes_stdin=False
        )
    return _of_file(file, tuple(arguments), parsed, jar)


def _of_file(file: str, arguments: tuple[str, ...], parsed: Parsed, jar: Sandbox) -> CommandLineRequest:
    content = _read(file)
    language = _language(parsed, content, file)
    workspace = parsed.text("--workspace")
    if workspace is None or not within(file, workspace):
        return CommandLineRequest(code=content, language=language, name=os.path.basename(file), args=arguments)
    from belljar.backends.runtimes import find_runtime

    place = _place(os.path.realpath(file), os.path.realpath(workspace), jar)
    return CommandLineRequest(
        argv=(find_runtime(language, jar.policy).path, *_FLAGS.get(language, ()), place, *arguments)
    )


def _place(file: str, workspace: str, jar: Sandbox) -> str:
    """Where the code finds a file of the workspace; without a jar it is where it always was."""
    return file if jar.backend_name == "unconfined" else f"/workspace/{os.path.relpath(file, workspace)}"


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return _bounded(opened.read(MAX_CODE_BYTES + 1), file)
    except FileNotFoundError:
        raise UsageError(f"{file}: there is no such file", hint="to run a command, use `belljar exec -- …`") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None


def _bounded(content: bytes, name: str) -> bytes:
    if len(content) > MAX_CODE_BYTES:
        raise UsageError(f"{name}: more than {MAX_CODE_BYTES >> 20} MB of code", hint="put data into --workspace")
    return content


def _language(parsed: Parsed, content: bytes = b"", file: str = "") -> str:
    from belljar.backends.runtimes import SUFFIXES, language_named

    if named := parsed.text("--lang"):
        return language_named(named)
    suffix = os.path.splitext(file)[1].lower()
    if found := SUFFIXES.get(suffix) or _by_first_line(content):
        return found
    if file:
        raise UsageError(f"{file}: can't tell its language by its name or first line", hint="say it: --lang python")
    return "python"


def _by_first_line(content: bytes) -> str | None:
    """The language that a `#!` line names: `#!/usr/bin/env python3`, `#!/bin/sh -e`."""
    if not content.startswith(b"#!"):
        return None
    words = content[2:256].split(b"\n", 1)[0].decode("ascii", "replace").split()
    programs = [os.path.basename(word) for word in words if not word.startswith("-")]
    program = next((name for name in programs if name != "env"), "")
    known = {"python": "python", "node": "javascript", "nodejs": "javascript", "bash": "bash", "sh": "bash"}
    return known.get(program.rstrip("0123456789."))
