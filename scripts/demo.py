"""A short tour on this machine, with nothing faked: four pieces of code in a jar, and what became of each.

Exits with 1 if one of them did not end as it must. Makes nothing outside of the jar.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from belljar import BelljarError, RunResult, Sandbox

COLOURS = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

HELLO = """\
import getpass, os
print(f"hello from {getpass.getuser()} in {os.getcwd()}, {len(os.listdir('/proc/self/fd'))} open files")"""

KEYS = """\
for path in {paths!r}:
    try:
        with open(path) as file: print("READ", path, len(file.read()))
    except IsADirectoryError:
        import os; print("READ", path, os.listdir(path))
    except OSError as error:
        print(error)"""

CONNECT = """\
import socket
socket.create_connection(("192.0.2.1", 443), timeout=5)
print("CONNECTED")"""

BOMB = """\
memory = []
for _ in range(64): memory.append(b"x" * (8 << 20))
print("TOOK 512 MB")"""


def main() -> int:
    """Every step, even after one that went wrong."""
    show_title("belljar runs code that you did not write. Four examples, on this machine:")
    steps = (hello, read_keys, connect, memory_bomb)
    failed = []
    for number, step in enumerate(steps, start=1):
        try:
            good = step(number)
        except BelljarError as error:
            say(f"   {paint('error', 31)}: {error}")
            good = False
        if not good:
            failed.append(str(number))
            say(f"   {paint('NOT AS IT MUST BE', 31)}")
        say("")
    if failed:
        say(f"{paint('failed', 31)}: step {', '.join(failed)}. What this host can do: .venv/bin/belljar doctor")
        return 1
    say("All four as they must be. Next:")
    say("   .venv/bin/belljar run -c 'print(6 * 7)'        .venv/bin/belljar run --help")
    say("   .venv/bin/belljar explain -c 'print(6 * 7)'    what holds each rule on this machine")
    return 0


# --- the four --------------------------------------------------------------------------------------------------------


def hello(number: int) -> bool:
    """Code that does no harm runs."""
    result = run(number, "Hello world", HELLO)
    return happened(f"it ran, in {result.duration * 1000:.0f} ms: {result.stdout.strip()}", result.ok)


def read_keys(number: int) -> bool:
    """The real home directory, by its real path."""
    keys = os.path.expanduser("~/.ssh")
    present = [path for path in (keys, *_home_files()) if os.path.lexists(path)]
    tried = list(dict.fromkeys([keys, *present[:1]]))
    result = run(number, f"Read {' and '.join(tried)}", KEYS.format(paths=tried))
    nothing = happened("refused: the jar has no such file", result.ok and "READ" not in result.stdout)
    for line in result.stdout.splitlines():
        say(f"     {line}")
    if keys not in present:
        say("     (you have no ~/.ssh; a file that is not there at all is no denial)")
    return denied(result, "file") and nothing


def connect(number: int) -> bool:
    """An address of the Internet."""
    result = run(number, "Connect to 192.0.2.1, port 443", CONNECT)
    refused = happened(f"refused: {last_line(result.stderr)}", not result.ok and "CONNECTED" not in result.stdout)
    return refused and denied(result, "network")


def memory_bomb(number: int) -> bool:
    """512 MB where 64 are allowed."""
    result = run(number, "Take 512 MB of memory, with 64 MB allowed", BOMB, overrides=("proc.mem_mb=64",))
    stopped = result.outcome == "oom" or (result.outcome == "failed" and "MemoryError" in result.stderr)
    words = result.reason if result.outcome == "oom" else last_line(result.stderr)
    held = happened(f"stopped ({result.outcome}): {words}", stopped and "TOOK" not in result.stdout)
    if result.outcome == "oom":
        held = denied(result, "limit") and held
    clause = result.enforcement.clause("proc.mem_mb")
    say(f"   held by: {clause.by} ({clause.status})")
    return held


def _home_files() -> list[str]:
    """What else of the home directory to try, where there are no keys: its files, or itself if it is empty."""
    home = os.path.expanduser("~")
    usual = [os.path.join(home, name) for name in (".bashrc", ".profile", ".gitconfig")]
    return [*usual, *(os.path.join(home, name) for name in sorted(os.listdir(home))), home]


# --- running and showing ---------------------------------------------------------------------------------------------


def run(number: int, title: str, code: str, *, overrides: tuple[str, ...] = ()) -> RunResult:
    """Show the code, and run it in a jar of its own."""
    show_title(f"{number}. {title}")
    for line in code.splitlines():
        say(f"   {paint('|', 2)} {line}")
    with Sandbox(overrides=overrides) as jar:
        return jar.run(code, explain_denials=True)


def happened(words: str, good: bool) -> bool:  # noqa: FBT001 - reads as a sentence
    """Say what happened, and whether it should have."""
    say(f"   {paint('ok' if good else 'WRONG', 32 if good else 31)}: {words}")
    return good


def denied(result: RunResult, kind: str) -> bool:
    """Say which rule refused it, and whether one of this kind did."""
    found = [denial for denial in result.denials if denial.kind == kind]
    for denial in found:
        say(f"   rule: {denial.rule} ({denial.where}) refused: {denial.target}")
        say(f"   to allow it: {denial.allow}")
    if not found:
        say(f"   no rule was named: {result.outcome}, {result.reason or result.stderr.strip()[-300:]!r}")
    return bool(found)


def last_line(text: str) -> str:
    """The last line of a traceback, which says what happened."""
    return next(iter(text.strip().splitlines()[::-1]), "")


def show_title(text: str) -> None:
    """A line that stands out on a terminal."""
    say(paint(text, 1))


def paint(text: str, code: int) -> str:
    """In colour on a terminal, and nowhere else."""
    return f"\033[{code}m{text}\033[0m" if COLOURS else text


say: Callable[[str], None] = print

if __name__ == "__main__":
    raise SystemExit(main())
