"""The arguments of a tool call, as a model wrote them: checked against what the tool says it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from belljar.errors import UsageError
from belljar.sandbox.files.workspace_files import has_bytes
from belljar.tools.definitions import MOST_FILES_CHARACTERS, Tool


class Arguments:
    """Those of one call. What is wrong is a UsageError whose words the model gets."""

    def __init__(self, tool: Tool, given: object) -> None:
        if not isinstance(given, Mapping):
            raise UsageError(f"{tool.name} takes an object", hint=f"with {', '.join(tool.properties)}")
        if unknown := [str(name)[:60] for name in given if name not in tool.properties]:
            known = ", ".join(tool.properties)
            raise UsageError(f"{tool.name} does not take {unknown[0]!r}", hint=f"it takes {known}")
        if missing := [name for name in tool.required if name not in given]:
            raise UsageError(f"{tool.name} needs {missing[0]!r}")
        self._tool, self._given = tool, given

    def _value(self, name: str, kind: type | tuple[type, ...], what: str) -> Any:
        value = self._given.get(name)
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise UsageError(f"{name} is not {what}")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A string, of which the schema says how long it may be and how it looks."""
        value: str | None = self._value(name, str, "a string")
        if value is None:
            if name in self._tool.required:
                raise UsageError(f"{name} is not a string")
            return default
        schema = self._tool.properties[name]
        _check_text(name, value, schema.get("maxLength", 1000))
        if (choices := schema.get("enum")) and value not in choices:
            raise UsageError(f"{name} is {value[:40]!r}", hint=f"use one of {', '.join(choices)}")
        if (pattern := schema.get("pattern")) and not re.fullmatch(pattern, value):
            raise UsageError(f"{name} is {value[:60]!r}", hint="use letters, digits, - and _, at most 40 of them")
        return value

    def seconds(self, name: str) -> float | None:
        """A time, if one was given."""
        value: float | None = self._value(name, (int, float), "a number of seconds")
        if value is not None and not 0 < value <= self._tool.properties[name]["maximum"]:
            most = self._tool.properties[name]["maximum"]
            raise UsageError(f"{name}: wanted seconds, more than 0 and at most {most}")
        return None if value is None else float(value)

    def whole(self, name: str) -> int:
        """A number of things, 0 without."""
        value: int | None = self._value(name, int, "a whole number")
        if value is not None and value < 0:
            raise UsageError(f"{name}: wanted 0 or more")
        return value or 0

    def flag(self, name: str) -> bool:
        """Yes or no, no without."""
        return bool(self._value(name, bool, "true or false"))

    def words(self, name: str) -> list[str]:
        """A command."""
        words: list[Any] | None = self._value(name, list, "a list of words")
        if not words or len(words) > 1000 or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{name} is a list of words", hint="such as ['ls', '-l'], or ['bash', '-c', 'ls | wc']")
        for word in words:
            _check_text(name, word, 100_000)
        return words

    def files(self, name: str) -> dict[str, str]:
        """Texts by path."""
        schema = self._tool.properties[name]
        files: dict[str, Any] = self._value(name, dict, "an object of texts by path") or {}
        if len(files) > schema["maxProperties"]:
            raise UsageError(f"{name} has {len(files)} entries: at most {schema['maxProperties']}")
        if sum(len(content) for content in files.values() if isinstance(content, str)) > MOST_FILES_CHARACTERS:
            raise UsageError(f"{name} has more than {MOST_FILES_CHARACTERS} characters", hint="use write_file")
        for path, content in files.items():
            if not isinstance(content, str):
                raise UsageError(f"{name}: {path[:60]!r} is not text")
            _check_text(f"{name}: {path[:60]!r}", content, schema["additionalProperties"]["maxLength"])
            _check_text(name, path, 4096)
        return files


def _check_text(name: str, value: str, most: int) -> None:
    if len(value) > most:
        raise UsageError(f"{name} has {len(value)} characters: at most {most}")
    if not has_bytes(value):
        raise UsageError(f"{name} has half a character in it (a lone surrogate)")
