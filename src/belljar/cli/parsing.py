"""The words of a command line, read by a command's table of options. Pure.

Not argparse: it costs as much as Python's own start, and it can't say "options until `--`, the rest is the code's" the
same way on every Python. Nothing here is imported for `belljar --help`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from belljar.errors import UsageError


class Option:
    """One option: its names, and what its value is called (empty for a switch)."""

    __slots__ = ("help", "metavar", "names", "repeats")

    def __init__(self, names: str, metavar: str, help: str, *, repeats: bool = False) -> None:  # noqa: A002 - its name everywhere
        self.names = names.split()
        self.metavar = metavar
        self.help = help
        self.repeats = repeats

    @property
    def name(self) -> str:
        """The name by which a command asks for it: the longest."""
        return self.names[-1]


class Parsed:
    """What was given: options by name, and words."""

    __slots__ = ("after", "options", "words")

    def __init__(self, options: dict[str, list[str]], words: list[str], after: list[str] | None) -> None:
        self.options = options
        self.words = words
        self.after = after
        """The words after `--`; None if there was none."""

    def flag(self, name: str) -> bool:
        """Whether a switch was given."""
        return name in self.options

    def text(self, name: str) -> str | None:
        """The value of an option: the last one given."""
        return self.options[name][-1] if name in self.options else None

    def texts(self, name: str) -> list[str]:
        """Every value of an option that repeats."""
        return self.options.get(name, [])

    def all_words(self) -> list[str]:
        """The words before and after `--`."""
        return [*self.words, *(self.after or [])]


class CliCommand:
    """A command: what its help says, what it takes, and the function that does it."""

    __slots__ = ("details", "examples", "name", "options", "options_first", "passes_on", "run", "summary", "usage")

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        usage: str,
        run: Callable[[Parsed], int],
        options: Sequence[Option] = (),
        details: str = "",
        examples: Sequence[tuple[str, str]] = (),
        options_first: bool = False,
        passes_on: bool = False,
    ) -> None:
        self.name = name
        self.summary = summary
        self.usage = usage
        self.run = run
        self.options = options
        self.details = details
        self.examples = examples
        self.options_first = options_first
        """Whether the first word that is no option ends the options, as for a command that has options of its own."""
        self.passes_on = passes_on
        """Whether the first option that is not the command's does so, too."""


def parse(command: CliCommand, words: Sequence[str]) -> Parsed:
    """Sort `words` into options and the rest.

    Raises:
        UsageError: an option that the command does not have, or a value too many or too few.

    """
    known = {name: option for option in command.options for name in option.names}
    options: dict[str, list[str]] = {}
    plain: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return Parsed(options, plain, rest)
        if word == "-" or not word.startswith("-"):
            plain.append(word)
            if command.options_first:
                return Parsed(options, plain + rest, None)
            continue
        name, equals, value = word.partition("=")
        if command.passes_on and name not in known:
            return Parsed(options, [word, *rest], None)
        option = known.get(name) or _unknown(command, name, list(known))
        given = _value(command, option, value if equals else None, rest)
        options.setdefault(option.name, []).append(given)
    return Parsed(options, plain, None)


def _value(command: CliCommand, option: Option, given: str | None, rest: list[str]) -> str:
    if not option.metavar and given is not None:
        raise UsageError(f"{option.name} takes no value", hint=_help(command))
    if option.metavar and given is None:
        if not rest:
            raise UsageError(f"{option.name} needs a value: {option.name} {option.metavar}", hint=_help(command))
        if rest[0].startswith("--"):
            raise UsageError(
                f"{option.name} needs a value, found {rest[0][:60]!a}, which looks like an option",
                hint=f"{option.name} {option.metavar}; if the value is meant so: {option.name}={rest[0][:60]}",
            )
        return rest.pop(0)
    return given or ""


def _unknown(command: CliCommand, name: str, known: list[str]) -> Option:
    import difflib

    by_letters = {each.lstrip("-"): each for each in known}  # dashes would make any two short names alike
    close = difflib.get_close_matches(name.lstrip("-"), by_letters, n=1)
    hint = f"did you mean {by_letters[close[0]]}?" if close else _help(command)
    if "-- ARGS" in command.usage and not close:
        hint = f"what the code itself shall get comes after `--`; {hint}"
    raise UsageError(f"`belljar {command.name}` has no option {name!r}", hint=hint)


def _help(command: CliCommand) -> str:
    return f"`belljar {command.name} --help` shows its options"


def expect_words(command: CliCommand, parsed: Parsed, least: int, most: int) -> list[str]:
    """The words, if there are as many as the command takes. Raises UsageError."""
    words = parsed.all_words()
    if not least <= len(words) <= most:
        what = "too few words" if len(words) < least else f"a word too many: {words[most]!r}"
        raise UsageError(f"{what}; usage: belljar {command.usage}", hint=_help(command))
    return words
