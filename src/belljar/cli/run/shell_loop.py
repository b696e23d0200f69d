"""The prompt of `belljar shell`: reads statements, has a session run them, and shows what comes back."""

from __future__ import annotations

import ast
import codeop
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from belljar.cli.jar_options import policy_name, published
from belljar.cli.parsing import Parsed
from belljar.cli.run.outcome import exit_code, step_exit_code
from belljar.cli.terminal.safe_text import visible, visible_lines
from belljar.cli.terminal.sink import Sink, break_line
from belljar.cli.terminal.style import DIM, RED, is_terminal, paint, supports_colour
from belljar.errors import InternalError, UsageError
from belljar.policy.keys.units import counted

if TYPE_CHECKING:
    from belljar.sandbox.session.session import Session
    from belljar.sandbox.session.step import StepResult

_LONGEST_STATEMENT = 64 << 20
_PATIENCE = 3
_COMPILE = codeop.CommandCompiler()
_COMPILE.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def converse(parsed: Parsed) -> int:
    """Until its end; the exit code: 0, or that of the step that failed if nobody is there to see it."""
    from belljar.sandbox.session.session import Session

    session = Session(
        policy_name(parsed),
        backend=parsed.text("--backend"),
        workspace=parsed.text("--workspace"),
        live=parsed.flag("--live"),
        overrides=[*parsed.texts("--set"), *published(parsed)],
        timeout=parsed.text("--timeout"),
        files=parsed.text("--files"),
        restart=True,
    )
    with session:
        return Shell(session, parsed).run()


class Shell:
    """One conversation."""

    def __init__(self, session: Session, parsed: Parsed) -> None:
        self._session = session
        self._json = parsed.flag("--json")
        self._raw = parsed.flag("--raw")
        self._quiet = parsed.flag("--quiet") or self._json
        self._directory = parsed.text("--artifacts")
        self._overwrite = parsed.flag("--overwrite")
        self._at_terminal = is_terminal(0) and not self._json
        self._colours = supports_colour(2)

    def run(self) -> int:
        """Read and run, until the end of input."""
        if not self._at_terminal:
            return self._run_script()
        self._prepare_terminal()
        while True:
            try:
                while (statement := self._read()) is not None:
                    self._try(statement)
            except EOFError:
                return 0
            except KeyboardInterrupt:  # at the prompt, or anywhere: only Ctrl-D leaves
                sys.stderr.write("\nKeyboardInterrupt\n")
            else:
                return 0

    def _run_script(self) -> int:
        try:
            for statement in whole_statements(sys.stdin.read(_LONGEST_STATEMENT)):
                if code := self._try(statement):
                    return code
        except EOFError:
            pass
        return 0

    def _try(self, statement: str) -> int:
        try:
            return self._obey(statement)
        except UsageError as error:
            self._say(f"belljar: {error}", RED)
            return 2

    def _prepare_terminal(self) -> None:
        with contextlib.suppress(ImportError):
            import readline

            readline.set_history_length(1000)
        if not self._quiet:
            policy = self._session.policy
            self._say(
                f"belljar: Python in a jar ({self._session.backend_name}, {policy.proc.timeout_seconds:g} s a step); "
                "%help for help, Ctrl-D to leave"
            )

    # --- reading ---

    def _read(self) -> str | None:
        """A whole statement; None at the end of input."""
        held = ""
        while True:
            try:
                held += input("... " if held else ">>> ")
            except EOFError:
                sys.stderr.write("\n")
                return None
            if held.strip() and is_whole(held):
                return held
            held = f"{held}\n" if held.strip() else ""

    # --- doing ---

    def _obey(self, statement: str) -> int:
        words = statement.strip()
        if words.startswith("!"):
            return self._command(words[1:])
        if words.startswith("%"):
            name, _, rest = words[1:].partition(" ")
            return self._order(name, rest.strip())
        return self._step(statement)

    def _step(self, code: str) -> int:
        from belljar.sandbox.record.events import Output
        from belljar.sandbox.session.step import Shown, StepFinished

        sinks = {"stdout": Sink(1, raw=self._raw), "stderr": Sink(2, raw=self._raw)}
        with self._told_if_lost(), self._interruptible():
            for event in self._session.stream(code):
                if isinstance(event, StepFinished):
                    for sink in sinks.values():
                        sink.finish()
                    return self._finish(event.result, list(sinks.values()))
                if isinstance(event, Output) and not self._json:
                    sinks[event.stream].write(event.data)
                elif isinstance(event, Shown) and not self._json and not event.forms:
                    sys.stdout.write(visible_lines(event.text) + "\n")
        raise InternalError("the step ended without a result")

    @contextlib.contextmanager
    def _told_if_lost(self) -> Iterator[None]:
        """Of a step that is given up nobody sees the result, which would say it."""
        try:
            yield
        except KeyboardInterrupt:
            if self._session.state == "crashed":
                sys.stderr.write("\n")  # after the terminal's own ^C
                self._say(
                    "belljar: the code did not let itself be interrupted, and was killed: variables are gone", RED
                )
            raise

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C goes to the code, and what waits for it goes on waiting; with the third one in a step nobody waits."""
        count = 0

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal count
            count += 1
            if count >= _PATIENCE or not self._session.interrupt():
                signal.default_int_handler(number, frame)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _finish(self, result: StepResult, sinks: list[Sink]) -> int:
        if self._json:
            sys.stdout.write(json.dumps(result.to_dict()) + "\n")
            sys.stdout.flush()
        else:
            if break_line(sinks):
                sys.stdout.write("\n")
            self._show(result)
        if self._directory and (result.results or result.artifacts):
            saved = self._session.save_results(result, self._directory, overwrite=self._overwrite)
            for path in saved:
                self._note(f"wrote {visible(path)}")
            for path, why in saved.refused:
                self._say(f"belljar: not saved: {visible(path)}: {visible(why)}")
            if saved.were_there:
                self._say("hint: --overwrite replaces files that are there")
        return 0 if result.ok else step_exit_code(result.outcome, result.exit_code or 1)

    def _show(self, result: StepResult) -> None:
        if result.value is not None:
            sys.stdout.write(visible_lines(result.value) + "\n")
        sys.stdout.flush()
        if result.error is not None:
            sys.stderr.write(visible_lines(result.error.traceback))
        if result.reason:
            self._say(f"belljar: {visible(result.reason)}", RED)
        for denial in result.denials:
            self._say(
                f"belljar: refused: {visible(denial.target)} ({denial.rule}, {denial.where}); {visible(denial.allow)}"
            )
        if not self._directory:
            for rich in result.results:
                if not rich.is_text:
                    self._note(f"{visible(rich.mime)}, {len(rich.data)} bytes: --artifacts DIR writes it to a file")

    # --- orders ---

    def _command(self, words: str) -> int:
        result = self._session.exec(["sh", "-c", words])
        for descriptor, text in ((1, result.stdout), (2, result.stderr)):
            sink = Sink(descriptor, raw=self._raw)
            sink.write(text.encode())
            sink.finish()
        if result.reason:
            self._say(f"belljar: {visible(result.reason)}", RED)
        return exit_code(result)

    def _order(self, name: str, rest: str) -> int:
        from belljar.cli.run.shell import COMMAND

        if name in ("exit", "quit"):
            raise EOFError
        if name == "help":
            sys.stderr.write(COMMAND.details.strip() + "\n")
        elif name == "files":
            for entry in self._session.files.list(recursive=True):
                sys.stdout.write(f"{entry.size:>12}  {visible(entry.path)}{'/' if entry.kind == 'directory' else ''}\n")
        elif name == "restart":
            self._session.restart()
            self._note("variables are gone, files stay")
        elif name == "snapshot":
            made = self._session.snapshot(rest or None)
            self._note(f"snapshot {made.id}: {counted(made.files, 'file')}, {counted(made.size, 'byte')}")
        elif name == "restore" and rest:
            self._session.restore(rest)
            self._note("files are as they were, variables are gone")
        else:
            raise UsageError(f"there is no %{visible(name)}", hint="%help lists what there is")
        return 0

    # --- telling ---

    def _say(self, text: str, colour: str = DIM) -> None:
        sys.stdout.flush()
        sys.stderr.write(paint(text, colour, on=self._colours) + "\n")

    def _note(self, text: str) -> None:
        if not self._quiet:
            self._say(f"belljar: {text}")


def is_whole(text: str) -> bool:
    """Whether there is nothing to wait for: what is wrong is whole, too, and the jar's Python will say so."""
    if text.lstrip().startswith(("%", "!")):
        return True
    try:
        return _COMPILE(text, symbol="single") is not None
    except (SyntaxError, OverflowError, ValueError, RecursionError):
        return True


def whole_statements(text: str) -> Iterator[str]:
    """A script's top-level statements, each with its lines; a line for belljar is one by itself."""
    held: list[str] = []

    def cut() -> Iterator[str]:
        source = "".join(held)
        held.clear()
        if not source.strip():
            return
        try:
            body = ast.parse(source).body
        except (SyntaxError, ValueError, RecursionError):
            yield source  # the jar's own Python says what is wrong with it
            return
        lines = source.splitlines(keepends=True)
        starts = [min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]) for node in body]
        for number, start in enumerate(starts):
            following = starts[number + 1] if number + 1 < len(starts) else len(lines) + 1
            if following > start:
                yield "".join(lines[start - 1 : following - 1])

    for line in text.splitlines(keepends=True):
        if line.startswith(("%", "!")):
            yield from cut()
            yield line
        else:
            held.append(line)
    yield from cut()


__all__ = ["converse", "is_whole", "whole_statements"]
