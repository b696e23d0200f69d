"""Where `belljar` starts: finds the command, calls it, and turns every fault into words and an exit code.

Nothing is imported here that `belljar --help` does not need.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

from belljar.cli.commands import COMMANDS, GROUPS

TYPE_CHECKING = False  # type checkers take it for true; `typing` itself costs 5 ms
if TYPE_CHECKING:
    from typing import NoReturn

    from belljar.cli.parsing import CliCommand

USAGE, FAULT, INTERRUPTED, BROKEN_PIPE = 2, 125, 130, 141
_OBJECTS_BETWEEN_COLLECTIONS = 200_000
_BUNDLES = {"run": "", "exec": "", "claude": "agent", "agent": "agent"}
"""Commands that import from a file of bytecode, and which: agents need other modules than a plain run."""


def command() -> NoReturn:
    """The command itself: a process that is short and ends as soon as there is nothing left to do.

    All that a run imports is there to stay: a collector that looks through it, ten times over, finds nothing. And
    Python's own end takes every module apart first, which the kernel does in no time.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    kind = _BUNDLES.get(sys.argv[1]) if len(sys.argv) > 1 else None
    code = main() if kind is None else _main_from_bundle(kind)
    if _threads_to_await():
        sys.exit(code)
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - the launcher, and with it every jar, has ended after this
        sys.stderr.flush()
    finally:
        os._exit(code)


def _main_from_bundle(kind: str) -> int:
    from belljar._startup import bytecode_cache

    used = bytecode_cache.use(kind)
    code = main()
    if code == 0:
        bytecode_cache.keep(used, kind)
    return code


def main(words: list[str] | None = None) -> int:
    """Run the command that `words` say, and return the exit code."""
    _hold_standard_descriptors()
    try:
        code = _call(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one must not interrupt the cleaning up
        _tell_notes(interrupt)
        return INTERRUPTED
    except SystemExit as end:  # SIGTERM or SIGHUP
        _tell_notes(end)
        raise
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last place: a traceback helps nobody at a terminal
        from belljar.cli.faults import tell

        code = tell(error)
        try:
            sys.stdout.flush()
        except OSError:
            _forget_output()
    return code


def _tell_notes(end: BaseException) -> None:
    """What went wrong on the way: that an end could not be recorded."""
    for note in getattr(end, "__notes__", ()):
        sys.stderr.write(f"belljar: {note}\n")


def _threads_to_await() -> bool:
    """Whether there are threads, besides this one, that Python waits for at its end."""
    threading = sys.modules.get("threading")
    return threading is not None and sum(not thread.daemon for thread in threading.enumerate()) > 1


def _hold_standard_descriptors() -> None:
    """One that the caller closed would be the next file that is opened, and the code's output would go into that."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def _call(words: list[str]) -> int:
    if not words:
        sys.stderr.write(_top_level())
        return USAGE
    if words[0] == "help":
        words = [*words[1:], "--help"]
    if words[0] in ("-h", "--help"):
        return _say(_top_level())
    if words[0] in ("-V", "--version"):
        from belljar import __version__

        return _say(f"belljar {__version__}\n")
    if words[0] in GROUPS and (len(words) == 1 or words[1] in ("-h", "--help")):
        from belljar.cli.helptext import group

        return _say(group(words[0]))
    length = 2 if words[0] in GROUPS or " ".join(words[:2]) in COMMANDS else 1
    return _run(find(" ".join(words[:length])), words[length:])


def _run(command: CliCommand, words: list[str]) -> int:
    if _asks_for_help(command, words):
        from belljar.cli.helptext import of_command

        return _say(of_command(command))
    from belljar.cli.parsing import parse

    return command.run(parse(command, words))


def _asks_for_help(command: CliCommand, words: list[str]) -> bool:
    """`--help` among the command's own words; after `--`, or after the command of `exec`, it is the code's."""
    if words and words[0] in ("-h", "--help"):
        return True
    own = words[: words.index("--")] if "--" in words else words
    return not command.options_first and ("--help" in own or "-h" in own)


def find(name: str) -> CliCommand:
    """The command called `name`, imported. Raises UsageError with the nearest."""
    if name not in COMMANDS:
        import difflib

        from belljar.errors import UsageError

        close = difflib.get_close_matches(name, list(COMMANDS), n=1)
        hint = f"did you mean `belljar {close[0]}`?" if close else "`belljar --help` lists the commands"
        raise UsageError(f"there is no command {name!r}", hint=hint)
    module = COMMANDS[name][0]
    __import__(module)  # `importlib` itself would have to be imported
    command: CliCommand = sys.modules[module].COMMAND
    return command


def _top_level() -> str:
    from belljar.cli.helptext import top_level

    return top_level()


def _say(text: str) -> int:
    sys.stdout.write(text)
    return 0


def _forget_output() -> None:
    """Whoever read standard output is gone: Python must not complain once more at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
