"""The tools, as a model sees them: names, words and schemas. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from belljar.backends.runtimes import LANGUAGES

SERVER = "sandboxed_code"
"""The server's name: a model of Claude's knows its tools as `mcp__sandboxed_code__run`."""

SESSION_NAME = r"^[A-Za-z0-9_-]{1,40}$"
MOST_CODE = 1 << 20
MOST_FILES = 200
MOST_FILE_CHARACTERS = 4 << 20
MOST_FILES_CHARACTERS = 16 << 20
MOST_SECONDS = 24 * 3600
MOST_LISTED = 500
MOST_READ = 50_000

Schema = dict[str, Any]


class Tool(NamedTuple):
    """One tool."""

    name: str
    title: str
    description: str
    properties: Schema
    required: tuple[str, ...]
    output: Schema
    reads_only: bool = False

    @property
    def input_schema(self) -> Schema:
        """What its arguments look like."""
        return _object(self.properties, self.required)


def _object(properties: Schema, required: tuple[str, ...]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


_TIMEOUT: Schema = {
    "type": "number",
    "exclusiveMinimum": 0,
    "maximum": MOST_SECONDS,
    "description": "Seconds; never more than the policy's own limit.",
}
_SESSION = _text(
    "Name of a session: a jar that stays, with its files and Python's variables, until it is reset. If it had to be "
    "ended meanwhile (not used for long, or too many are open), the answer says so: files come back, variables do not.",
    pattern=SESSION_NAME,
)
_NUMBER_OR_NULL: Schema = {"type": ["integer", "null"]}
_STRING: Schema = {"type": "string"}

_NOTE = _text("what happened to the session since the last call")
_FILE = _object({"path": _STRING, "size": {"type": "integer"}, "handle": _STRING}, ("path", "size"))
_REFUSED = _object({"what": _STRING, "rule": _STRING, "advice": _STRING}, ("what", "rule", "advice"))
RESULT = _object(
    {
        "ok": {"type": "boolean"},
        "outcome": _text("ok, failed, timeout, oom, killed or refused"),
        "exit_code": _NUMBER_OR_NULL,
        "stdout": _text("the first and last lines, if there are many"),
        "stderr": _STRING,
        "value": {"type": ["string", "null"], "description": "in a session: the value of the last expression"},
        "reason": _STRING,
        "seconds": {"type": "number"},
        "run_id": _STRING,
        "session": _STRING,
        "note": _NOTE,
        "files": {"type": "array", "items": _FILE},
        "refused": {"type": "array", "items": _REFUSED},
        "handles": {
            "type": "object",
            "additionalProperties": _STRING,
            "description": "the whole of an output of which only a part is shown, for read_file",
        },
    },
    ("ok", "outcome", "stdout", "stderr", "run_id"),
)

RUN = Tool(
    "run",
    "Run code in a sandbox",
    "Run a program in a sandbox of its own and get its output. Without `session` it starts from nothing but `files`, "
    "each time: no variables, no files of earlier calls. Files it writes in its working directory come back as handles "
    "for read_file, images as images. Only what the policy allows is there: usually no network, no home directory and "
    "a time limit. What was refused is told with what to do instead.",
    {
        "code": _text("The program.", maxLength=MOST_CODE),
        "language": {"type": "string", "enum": list(LANGUAGES), "default": LANGUAGES[0]},
        "files": {
            "type": "object",
            "additionalProperties": {"type": "string", "maxLength": MOST_FILE_CHARACTERS},
            "maxProperties": MOST_FILES,
            "description": "What it finds in its working directory: text by relative path.",
        },
        "timeout": _TIMEOUT,
        "session": _SESSION,
    },
    ("code",),
    RESULT,
)
EXEC = Tool(
    "exec",
    "Run a command in a sandbox",
    "Run one command, as a list of words (no shell: use ['bash', '-c', '…'] for one). As for `run`, without `session` "
    "it starts in an empty directory.",
    {
        "command": {"type": "array", "items": _STRING, "minItems": 1, "maxItems": 1000},
        "stdin": _text("What it reads.", maxLength=MOST_FILE_CHARACTERS),
        "timeout": _TIMEOUT,
        "session": _SESSION,
    },
    ("command",),
    RESULT,
)
READ_FILE = Tool(
    "read_file",
    "Read a file or a handle",
    "Read a file of a session's workspace, or what a handle of an earlier result stands for: a file that a run made "
    "(belljar://artifact/…) or an output that was too long (RUN/stdout). Text comes in parts: ask on with `start`.",
    {
        "path": _text("A path in the workspace, or a handle.", maxLength=4096),
        "start": {"type": "integer", "minimum": 0, "description": "From which character on."},
        "session": _SESSION,
    },
    ("path",),
    _object(
        {
            "path": _STRING,
            "text": _STRING,
            "start": {"type": "integer"},
            "characters": {"type": "integer"},
            "bytes": {"type": "integer"},
            "mime": _STRING,
            "note": _NOTE,
        },
        ("path", "mime"),
    ),
    reads_only=True,
)
WRITE_FILE = Tool(
    "write_file",
    "Write a file of a session",
    "Write a text file into a session's workspace, and make the directories above it. `run` and `exec` with the same "
    "session see it.",
    {
        "path": _text("Where, in the workspace.", maxLength=4096),
        "content": _text("Its text.", maxLength=MOST_FILE_CHARACTERS),
        "session": _SESSION,
    },
    ("path", "content"),
    _object(
        {"path": _STRING, "bytes": {"type": "integer"}, "session": _STRING, "note": _NOTE}, ("path", "bytes", "session")
    ),
)
LIST_FILES = Tool(
    "list_files",
    "List the files of a session",
    "List what is in a session's workspace.",
    {
        "path": _text("A directory in the workspace.", maxLength=4096, default="."),
        "recursive": {"type": "boolean", "default": False},
        "session": _SESSION,
    },
    (),
    _object(
        {
            "files": {
                "type": "array",
                "items": _object({"path": _STRING, "kind": _STRING, "size": {"type": "integer"}}, ("path", "kind")),
            },
            "left_out": {"type": "integer"},
            "session": _STRING,
            "note": _NOTE,
        },
        ("files", "left_out", "session"),
    ),
    reads_only=True,
)
RESET = Tool(
    "reset",
    "End a session",
    "End a session: its processes, variables and files are gone. The next call that names it starts anew.",
    {"session": _SESSION},
    (),
    _object({"session": _STRING, "existed": {"type": "boolean"}}, ("session", "existed")),
)

TOOLS = (RUN, EXEC, READ_FILE, WRITE_FILE, LIST_FILES, RESET)
BY_NAME = {tool.name: tool for tool in TOOLS}
