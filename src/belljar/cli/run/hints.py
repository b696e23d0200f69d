"""Hints after a run that failed: the option that a newcomer most likely forgot.

The program's own output is only a clue, and the program may print anything. So a hint names an option to type and
states nothing about the jar. Looks at the host for files of the names that the command line and the output have.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from glob import glob

from belljar.cli.parsing import Parsed
from belljar.cli.run.request import CommandLineRequest
from belljar.sandbox.record.result import Outcome, RunResult

_MOST_TEXT = 8000
_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([A-Za-z_][A-Za-z0-9_]*)", re.MULTILINE)
_NO_FILE = re.compile(r"No such file or directory|: not found|ENOENT|cannot find|does not exist", re.IGNORECASE)
# Not what fails on the network: a refused connection is named without --explain-denials, too.
_REFUSED = re.compile(
    r"No such file|Permission ?denied|Operation not permitted|Read-only file system|not implemented|not found"
    r"|\b(?:ENOENT|EACCES|EPERM|EROFS|ENOSYS)\b",
    re.IGNORECASE,
)
_NOT_FOUND_CODES = (126, 127)
_VENVS = (".venv", "venv", "env")


def hints(result: RunResult, request: CommandLineRequest, parsed: Parsed) -> list[str]:
    """Return what to try next, best first; empty if nothing speaks for the jar as the cause."""
    if result.outcome is not Outcome.FAILED:
        return []
    text = (result.stderr or result.stdout)[-_MOST_TEXT:]
    found = [
        *([result.reason] if result.reason else []),
        *_missing_module(text, request, parsed),
        *_missing_program(result, request, parsed),
    ]
    if not found:
        found += _missing_file(text, request, parsed)
    if not found and _REFUSED.search(text) and not parsed.flag("--explain-denials") and not result.enforcement.unseen:
        found.append("if the jar may be why, --explain-denials names what it refused")
    return found


def _missing_module(text: str, request: CommandLineRequest, parsed: Parsed) -> Iterator[str]:
    if (missing := _NO_MODULE.search(text)) is None:
        return
    name = missing[1]
    script = parsed.all_words()[0] if request.code is not None and request.name else ""
    beside = os.path.dirname(script) or "."
    if script and parsed.text("--workspace") is None and _has_module(beside, name):
        yield f"{name} lies beside {script}: --workspace {shlex.quote(beside)} shows that directory"
        return
    if any(word.startswith("python.venv=") for word in parsed.texts("--set")):
        return
    for directory in _VENVS:
        if glob(f"{directory}/lib*/python3*/site-packages/{name}*"):
            yield f"{name} is installed in {directory}: --set python.venv={directory}"
            return
    venv = next((each for each in _VENVS if os.path.isfile(f"{each}/pyvenv.cfg")), "")
    make = "" if venv else "python3 -m venv .venv && "
    venv = venv or ".venv"
    yield (
        f"the jar's Python has no {name}; a virtual environment that has it is shown by --set python.venv={venv} "
        f"({make}{venv}/bin/pip install {name})"
    )


def _missing_program(result: RunResult, request: CommandLineRequest, parsed: Parsed) -> Iterator[str]:
    program = request.argv[0] if request.argv else ""
    if result.exit_code not in _NOT_FOUND_CODES or "/" not in program or not os.path.isfile(program):
        return
    options = [] if parsed.text("--workspace") is not None else _workspace_for(program)
    venv = os.path.dirname(os.path.dirname(program))
    if venv and os.path.isfile(os.path.join(venv, "pyvenv.cfg")):
        options += ["--set", shlex.quote(f"python.venv={venv}")]
    if options:
        yield f"{program} is not in the jar: {' '.join(options)} shows it"


def _missing_file(text: str, request: CommandLineRequest, parsed: Parsed) -> Iterator[str]:
    if parsed.text("--workspace") is not None or not _NO_FILE.search(text):
        return
    for word in (*request.args, *request.argv[1:]):
        if word and word in text and not word.startswith(("-", "/")) and os.path.exists(word):
            yield f"{word} is not in the jar: {' '.join(_workspace_for(word))} shows a copy of its directory"
            return


def _workspace_for(path: str) -> list[str]:
    """Return the option that shows the directory of a relative path at the same place below /workspace."""
    if os.path.isabs(path) or path.startswith("../"):
        return []
    return ["--workspace", "."]


def _has_module(directory: str, name: str) -> bool:
    return os.path.isfile(f"{directory}/{name}.py") or os.path.isdir(f"{directory}/{name}")
