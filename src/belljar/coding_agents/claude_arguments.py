"""Words for Claude Code that name places of the host, such as `--add-dir DIR`: shown in the jar, or refused.

A directory outside of the project is mounted read-only at its own path. A file is copied into the jar. What is the
user's alone (the home itself, keys, belljar's state) is refused.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from belljar.backends.runtimes import SYSTEM_PREFIXES
from belljar.coding_agents.home import PLACE
from belljar.coding_agents.project import Project, private_place, why_not_at
from belljar.errors import UsageError
from belljar.policy.globs import DenyGlobs
from belljar.policy.paths import PathError, beneath, real_path, visited

_SEVERAL = ("--add-dir", "--mcp-config")
"""Options that take every word up to the next option."""
_ONE = ("--settings", "--plugin-dir", "--system-prompt-file", "--append-system-prompt-file")
_JSON = {"--mcp-config": "JSON with mcpServers in it", "--settings": "settings of Claude Code, which are JSON"}
_EXAMPLES = {
    "--mcp-config": '{"mcpServers": {"name": {"command": "python3", "args": ["server.py"]}}}',
    "--settings": "{}",
}
_GIVEN = f"{PLACE}/given"
_LARGEST = 1 << 20


@dataclass
class ShownArguments:
    """The words as the jar has them, and what it must have for them."""

    words: list[str] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Content, by path in the jar."""
    denied: DenyGlobs = field(default_factory=lambda: DenyGlobs(()))


def show(words: Sequence[str], project: Project, *, temporary: bool, globs: Sequence[str] = ()) -> ShownArguments:
    """Find the places that the words name, and have each of them in the jar.

    Args:
        words: what the caller says to Claude Code.
        project: the project, whose files are in the jar anyway.
        temporary: whether the backend can mount something beneath the jar's /tmp.
        globs: names that are denied to the jar.

    Raises:
        UsageError: a place is private, or a file is too large, denied, or not what the option takes.

    """
    shown = ShownArguments(denied=DenyGlobs(tuple(globs)))
    for option, word in _with_options(words):
        if option is None:
            shown.words.append(word)
            continue
        start, path = (f"{option}=", word[len(option) + 1 :]) if word.startswith(f"{option}=") else ("", word)
        shown.words.append(start + _placed(option, path, project, shown, temporary=temporary))
    if shown.files:
        shown.mounts.append({"path": _GIVEN, "rw": True})
    return shown


def _with_options(words: Sequence[str]) -> Iterator[tuple[str | None, str]]:
    """Each word, with the option whose value it is (or holds, after `=`)."""
    taking, several = None, False
    for at, word in enumerate(words):
        if word == "--":
            yield from ((None, rest) for rest in words[at:])
            return
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            known = name in _SEVERAL or name in _ONE
            yield (name if known and equals else None), word
            taking, several = (name, name in _SEVERAL) if known and not equals else (None, False)
            continue
        yield taking, word
        if not several:
            taking = None


def _placed(option: str, word: str, project: Project, shown: ShownArguments, *, temporary: bool) -> str:
    """The word for the jar."""
    if not word or word.lstrip().startswith("{"):
        return word  # JSON
    path = os.path.abspath(os.path.expanduser(word))
    if not os.path.exists(path):
        return word  # Claude Code says so itself
    try:
        real = real_path(path)
    except PathError as error:
        raise UsageError(f"{option} {word}: {error}") from None
    if inside := project.inside(real):
        return inside
    if any(beneath(real, prefix) for prefix in SYSTEM_PREFIXES):
        return real
    private = private_place(real)
    if link := next((step for step in sorted(visited(path)) if beneath(step, project.directory)), None):
        raise UsageError(
            f"{option} {word}: {link} is a link of the project's, and leads out of it: to {real}",
            hint="" if private else f"if that is right, name the place itself: {option} {shlex.quote(real)}",
        )
    if private:
        _refuse(option, word, real, private)
    if os.path.isfile(real):
        return _copied(option, word, real, shown)
    for mount in shown.mounts:
        if mount["source"] == real:
            return str(mount["path"])
    place = real
    if why_not_at(real, temporary=temporary):
        place = f"{PLACE}/shown/{len(shown.mounts)}/{os.path.basename(real)}"
    shown.mounts.append({"path": place, "source": real, "rw": False})
    return place


def _copied(option: str, word: str, real: str, shown: ShownArguments) -> str:
    if (rule := shown.denied.denies(real, real)) is not None:
        raise UsageError(f"{option} {word}: its name is denied by fs.deny_globs {shown.denied.patterns[rule]}")
    try:
        with open(real, "rb") as file:
            data = file.read(_LARGEST + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {word}: it can't be read as text: {error}") from None
    if len(data) > _LARGEST:
        raise UsageError(f"{option} {word}: it is larger than {_LARGEST >> 20} MB", hint="copy it into the project")
    _check(option, word, text)
    place = f"{_GIVEN}/{len(shown.files)}/{os.path.basename(real)}"
    shown.files[place] = text
    return place


def _check(option: str, word: str, text: str) -> None:
    """Raise UsageError if a file is not what an option takes: a name may be mistyped, and the agent reads all of it."""
    if option not in _JSON:
        return
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or (option == "--mcp-config" and not isinstance(found.get("mcpServers"), dict)):
        raise UsageError(f"{option} {word}: wanted {_JSON[option]}", hint=f"such as {_EXAMPLES[option]}")


def _refuse(option: str, word: str, real: str, private: str) -> NoReturn:
    copied = f"copy what it needs into the project: cp -r {word} ./{os.path.basename(real)}"
    holds_more = not beneath(real, private) or real == os.path.realpath(os.path.expanduser("~"))
    raise UsageError(
        f"{option} {word}: an agent that sees {real} sees {private}, which is yours alone",
        hint=f"name the directory in {real} that it needs" if holds_more else copied,
    )
