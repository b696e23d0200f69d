"""What `--help` prints, made of the same tables as the commands themselves. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.cli.commands import COMMANDS, SECTIONS

if TYPE_CHECKING:
    from belljar.cli.parsing import CliCommand, Option

_HEAD = """\
belljar runs code that an AI agent wrote: sealed by the operating system, limited by a written policy.

usage: belljar COMMAND [OPTIONS]

"""
_FOOT = """\
options:
  -h, --help     this, or with a command: its options and examples
  -V, --version  the version

examples:
  belljar run script.py                        run a file: no home, no keys, no network
  belljar run -c 'print(1 + 1)'                run a line of Python
  belljar exec --workspace . --diff -- make    run a command on a copy of this directory, show what it changed
  belljar doctor                               say what works on this host

Exit code: the code's own; 124 out of time, 125 belljar itself failed or refused, 137 killed or out of memory,
2 when the command line makes no sense.
"""


def top_level() -> str:
    """The help of `belljar` itself."""
    return _HEAD + "".join(f"{title}:\n{_listing(inside)}\n" for title, inside in SECTIONS.items()) + _FOOT


def group(name: str) -> str:
    """The help of a word such as `policy` that only groups commands."""
    inside = {command: entry for command, entry in COMMANDS.items() if command.startswith(f"{name} ")}
    return f"usage: belljar {name} COMMAND [OPTIONS]\n\ncommands:\n{_listing(inside)}"


def _listing(commands: dict[str, tuple[str, str]]) -> str:
    return "".join(f"  {name:<15}  {summary}\n" for name, (_module, summary) in commands.items())


def of_command(command: CliCommand) -> str:
    """The help of one command."""
    parts = [f"usage: belljar {command.usage}", command.summary, command.details.strip()]
    if rows := [(names_of(option), option.help) for option in command.options]:
        parts.append("options:\n" + _aligned(rows))
    if command.examples:
        parts.append("examples:\n" + _aligned([(f"belljar {words}", text) for words, text in command.examples]))
    return "\n\n".join(part for part in parts if part) + "\n"


def names_of(option: Option) -> str:
    """Return an option as help shows it: `-q, --quiet`, `--set KEY=VALUE`."""
    value = f" {option.metavar}" if option.metavar else ""
    return ", ".join(option.names) + value


def _aligned(rows: list[tuple[str, str]]) -> str:
    width = max(len(left) for left, _right in rows)
    return "\n".join(f"  {left:<{width}}  {right}".rstrip() for left, right in rows)
