"""Several commands in one jar: one after the other, or side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from belljar.errors import UsageError
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.run.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, or code in a language."""

    argv: tuple[str, ...] = ()
    code: str | None = None
    language: str = "python"

    @classmethod
    def of(cls, what: Command | str | Sequence[str]) -> Command:
        """A command from what people write: a list of words, or a string for the shell."""
        if isinstance(what, Command):
            return what
        if isinstance(what, str):
            return cls(code=what, language="bash")
        return cls(argv=tuple(what))


class Executor:
    """Runs commands in a Sandbox. They share its workspace; each has a process tree of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def execute(self, command: Command | str | Sequence[str]) -> RunResult:
        """Run one command."""
        wanted = Command.of(command)
        if wanted.code is not None:
            return self._sandbox.run(wanted.code, language=wanted.language)
        return self._sandbox.exec(wanted.argv)

    def sequence(
        self, commands: Sequence[Command | str | Sequence[str]], *, stop_on_failure: bool = True
    ) -> list[RunResult]:
        """Run them one after the other; by default the first that is not `ok` is the last. The results so far."""
        results = []
        for command in commands:
            results.append(self.execute(command))
            if stop_on_failure and not results[-1].ok:
                break
        return results

    def parallel(self, commands: Sequence[Command | str | Sequence[str]], *, limit: int = 4) -> list[RunResult]:
        """Run them side by side, at most `limit` at once. Results in the order of the commands; a fault is raised."""
        if limit < 1:
            raise UsageError(f"a limit of {limit} runs nothing", hint="use 1 or more")
        results: list[RunResult | BaseException | None] = [None] * len(commands)
        waiting = iter(enumerate(commands))
        turn = threading.Lock()

        def work() -> None:
            while True:
                with turn:
                    index, command = next(waiting, (-1, ""))
                if index < 0:
                    return
                try:
                    results[index] = self.execute(command)
                except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                    results[index] = error

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(limit, len(commands)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [_value(result) for result in results]


def _value(result: RunResult | BaseException | None) -> RunResult:
    if isinstance(result, BaseException):
        raise result
    assert result is not None
    return result
