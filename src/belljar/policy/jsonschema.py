"""The JSON Schema of a policy file, out of the table of keys, so that an editor checks while one writes.

It is as exact as JSON Schema can be: ranges, choices and forms. What needs the host (does the source exist?) or other
layers stays with `belljar policy check`.
"""

from __future__ import annotations

from typing import Any

from belljar.policy.keys.hosts import RATE_PATTERN
from belljar.policy.keys.network_values import CREDENTIAL_PATTERN, HEADER_PATTERN, QUERY_KEY_PATTERN, SOURCE_PATTERN
from belljar.policy.keys.table import CLAUSES, Key, ValueKind, fields, sections
from belljar.policy.keys.units import MB, SIZE_PATTERN, TIME_PATTERN
from belljar.policy.keys.values import IMAGE_PATTERN
from belljar.policy.paths import PRIVATE_TEMPORARY, RESERVED

_VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$"
_NO_CLIMBING = r"(?!.*(^|/)\.\.(/|$))"
_NAME = {"type": "string", "minLength": 1}
_PORT = "[1-9][0-9]{0,4}"


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12."""
    properties = {name: _key(key) for name, key in fields("").items()}
    for section in sections():
        properties[section] = {**_record(section), "type": ["object", "null"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "belljar policy",
        "description": "What code in a belljar sandbox may do.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _record(prefix: str, *required: str) -> dict[str, Any]:
    properties = {name: _key(key) for name, key in fields(prefix).items()}
    record: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**record, "required": list(required)} if required else record


def _key(key: Key) -> dict[str, Any]:
    form = _form(key)
    if key.optional:
        form = {"anyOf": [form, {"type": "null"}]}
    return {"description": key.doc, **form, "examples": [key.example]}


def _form(key: Key) -> dict[str, Any]:
    """What each kind of value looks like."""
    number = {"minimum": key.minimum, "maximum": key.maximum}
    match key.kind:
        case ValueKind.VERSION:
            return {"const": 1}
        case (
            ValueKind.EXTENDS | ValueKind.SOURCE | ValueKind.VENV | ValueKind.PROGRAM | ValueKind.FILE | ValueKind.HOST
        ):
            return _NAME
        case ValueKind.CHOICE:
            return {"enum": list(key.choices)}
        case ValueKind.CHOICES:
            return {**_list({"enum": list(key.choices)}), **({"minItems": 1} if "[]" in key.path else {})}
        case ValueKind.DEGRADED:
            return {"anyOf": [{"enum": ["refuse", "allow"]}, _list({"enum": list(CLAUSES)})]}
        case ValueKind.COUNT:
            return {"type": "integer", **number}
        case ValueKind.NUMBER:
            return {"type": "number", **number}
        case ValueKind.SIZE:
            in_mb = {"type": "number", "minimum": key.minimum / MB, "maximum": key.maximum / MB}
            return {"anyOf": [in_mb, {"type": "string", "pattern": SIZE_PATTERN}]}
        case ValueKind.TIME:
            return {"anyOf": [{"type": "number", **number}, {"type": "string", "pattern": TIME_PATTERN}]}
        case ValueKind.SECONDS:
            in_seconds = {"type": "number", "minimum": key.minimum / 1000, "maximum": key.maximum / 1000}
            return {"anyOf": [in_seconds, {"type": "string", "pattern": TIME_PATTERN}]}
        case ValueKind.BOOLEAN:
            return {"type": "boolean"}
        case ValueKind.JAR_PATH:
            return {"type": "string", "pattern": rf"^/{_NO_CLIMBING}"}
        case ValueKind.MOUNT_PATH:
            reserved = "|".join(path[1:].replace(".", r"\.") for path in RESERVED)
            whole = PRIVATE_TEMPORARY[1:]
            return {"type": "string", "pattern": rf"^/(?!({reserved})(/|$))(?!{whole}/*$){_NO_CLIMBING}."}
        case ValueKind.GLOBS:
            return _list(_NAME)
        case ValueKind.MOUNTS:
            return _list(_record("fs.mounts[]", "path"))
        case ValueKind.HOSTS:
            return _list({"anyOf": [_NAME, _record("net.allowlist[]", "host")]})
        case ValueKind.VARIABLES:
            text = {"type": ["string", "number", "boolean"]}
            return {"type": "object", "propertyNames": {"pattern": _VARIABLE}, "additionalProperties": text}
        case ValueKind.NAMES:
            return _list({"type": "string", "pattern": _VARIABLE})
        case ValueKind.PORTS:
            return {**_list({"type": "integer", **number}), "minItems": 1}
        case ValueKind.PATHS:
            return {**_list({"type": "string", "pattern": "^/"}), "minItems": 1}
        case ValueKind.CREDENTIAL:
            return {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"}
        case ValueKind.RATE:
            return {"type": "string", "pattern": RATE_PATTERN}
        case ValueKind.IMAGE:
            return {"type": "string", "pattern": f"^({IMAGE_PATTERN})?$"}
        case ValueKind.CONTAINER:
            return {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}
        case ValueKind.WORDS:
            return {**_list(_NAME), "minItems": 1}
        case ValueKind.PATTERNS:
            return _list(_NAME)
        case ValueKind.PUBLISHED:
            return _list({"type": "string", "pattern": f"^{_PORT}:{_PORT}$"})
        case _:
            return _network_form(key)


def _network_form(key: Key) -> dict[str, Any]:
    number = {"type": "integer", "minimum": key.minimum, "maximum": key.maximum}
    match key.kind:
        case ValueKind.DENIED:
            return _list({"anyOf": [_NAME, _record("net.denylist[]", "host")]})
        case ValueKind.QUERY_KEYS:
            return {**_list({"type": "string", "pattern": f"^{QUERY_KEY_PATTERN}$"}), "minItems": 1}
        case ValueKind.QUERY_KEY:
            return {"type": "string", "pattern": f"^{QUERY_KEY_PATTERN}$"}
        case ValueKind.ADDRESSES | ValueKind.HOST_NAMES:
            return {**_list(_NAME), "minItems": 1}
        case ValueKind.SERVICE_PORTS:
            return _list(number)
        case ValueKind.JAR_PORTS:
            return _list({"anyOf": [number, {"type": "string", "pattern": f"^({_PORT}:)?{_PORT}$"}]})
        case ValueKind.HEADERS:
            return _list({"type": "string", "pattern": f"^{HEADER_PATTERN}$"})
        case ValueKind.HEADER:
            return {"type": "string", "pattern": f"^{HEADER_PATTERN}$"}
        case ValueKind.JAR_FILES:
            return _list({"type": "string", "pattern": rf"^/{_NO_CLIMBING}"})
        case ValueKind.CREDENTIALS:
            named = {"propertyNames": {"pattern": f"^{CREDENTIAL_PATTERN}$"}}
            return {"type": ["object", "null"], **named, "additionalProperties": _record("credentials[]")}
        case ValueKind.FROM:
            return {"type": "string", "pattern": f"^({SOURCE_PATTERN})$"}
        case ValueKind.FORMAT:
            return {"type": "string", "pattern": r"^[ -~]*\{(base64)?\}[ -~]*$"}
        case ValueKind.VARIABLE:
            return {"type": "string", "pattern": _VARIABLE}
        case ValueKind.PLACEHOLDER:
            return {"type": "string", "minLength": 8, "maxLength": 200}
        case _:
            return _NAME


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}
