"""Interpreters of the host that a jar can use: where each is, and which directories it needs to see."""

from __future__ import annotations

import os
import sys

from belljar._startup.records import dataclass
from belljar.errors import PolicyError, PrerequisiteError, UsageError
from belljar.policy.models import Policy

SYSTEM_PREFIXES = ("/usr", "/bin", "/lib", "/lib64", "/sbin", "/nix/store")
"""Read-only in every jar; anything beneath needs no mount of its own."""

_LARGEST_SETTINGS = 1 << 16
"""Of a `pyvenv.cfg`: an agent may have written it."""

LANGUAGES = ("python", "javascript", "bash")
SUFFIXES = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".sh": "bash"}
_FILE_NAMES = {"python": "main.py", "javascript": "main.js", "bash": "main.sh"}
_ALIASES = {
    "py": "python",
    "python3": "python",
    "js": "javascript",
    "node": "javascript",
    "sh": "bash",
    "shell": "bash",
}


@dataclass(frozen=True, slots=True)
class Installation:
    """A host directory that an interpreter is installed in, and the parts of it that a jar shows at the same path."""

    path: str
    parts: tuple[tuple[str, str], ...]
    """(name beneath `path`, real path on the host); a directory or a file."""
    links: tuple[tuple[str, str], ...] = ()
    """(name beneath `path`, target)."""
    searched: bool = False
    """Whether the stage searches it for names that `fs.deny_globs` denies: a virtual environment."""
    hidden: tuple[str, ...] = ()
    """Denied names beneath `path` that were found already; only `hidden_names` fills it in."""
    search_seconds: int = 0
    """How old that search may be; 0 if it holds for the time at which the Sandbox is opened."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """An interpreter: its path, inside and outside, and the host directories it is installed in."""

    language: str
    path: str
    prefixes: tuple[str, ...] = ()
    """Outside of the system directories."""
    venv: str | None = None
    """Which of them is a virtual environment."""
    installations: tuple[Installation, ...] = ()
    """What a jar shows of them; only `find_shown` fills it in."""

    @property
    def file_name(self) -> str:
        """What a piece of code without a name is called."""
        return _FILE_NAMES[self.language]


def language_named(name: str) -> str:
    """The language that someone means by `name`. Raises UsageError with the list."""
    language = _ALIASES.get(name, name)
    if language not in LANGUAGES:
        raise UsageError(f"no language is called {name!r}", hint=f"use one of {', '.join(LANGUAGES)}")
    return language


def find_runtime(language: str, policy: Policy) -> Runtime:
    """The interpreter for `language`; PrerequisiteError says what to install, PolicyError what `python:` lacks."""
    if language == "python":
        return _find_python(policy)
    if language == "javascript":
        return _on_path("javascript", "node", "apt install nodejs")
    return _on_path("bash", "bash", "apt install bash")


def _on_path(language: str, program: str, install: str) -> Runtime:
    found = find_program(program, f"/usr/local/bin:/usr/bin:/bin:{os.environ.get('PATH', '')}")
    if found is None:
        raise PrerequisiteError(f"{program} is not installed on this host", hint=install)
    real = os.path.realpath(found)
    return Runtime(language, found if _in_system(found) else real, _prefixes(os.path.dirname(os.path.dirname(real))))


def installed_programs(policy: Policy) -> list[str]:
    """Directories where package managers put programs in a jar: `~/.local/bin` if the policy mounts `~/.local`."""
    place = f"{policy.env.set.get('HOME', '')}/.local"
    return [f"{place}/bin"] if any(mount.path == place for mount in policy.fs.mounts) else []


def find_program(name: str, path: str) -> str | None:
    """The first program called `name` in the directories of `path`. (shutil's takes 4 ms to import.)"""
    for directory in path.split(":"):
        candidate = os.path.join(directory, name)
        if directory.startswith("/") and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def _find_python(policy: Policy) -> Runtime:
    if policy.python.venv:
        return _from_venv(policy.python.venv, policy)
    if policy.python.interpreter:
        return _from_interpreter(policy.python.interpreter, policy)
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    if os.access(own, os.X_OK):
        return Runtime("python", own, _prefixes(sys.base_prefix, os.path.dirname(os.path.dirname(own))))
    return _on_path("python", "python3", "apt install python3")


def _from_interpreter(path: str, policy: Policy) -> Runtime:
    if not os.access(path, os.X_OK):
        where = policy.origin("python.interpreter")
        raise PolicyError(f"{where}: python.interpreter: {path} is not a program that can be run")
    real = os.path.realpath(path)
    return Runtime("python", real, _prefixes(os.path.dirname(os.path.dirname(real))))


def _from_venv(venv: str, policy: Policy) -> Runtime:
    where = policy.origin("python.venv")
    try:
        with open(os.path.join(venv, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            pairs = (line.partition("=") for line in file.read(_LARGEST_SETTINGS).splitlines())
            settings = {key.strip(): value.strip() for key, _, value in pairs}
    except OSError as error:
        raise PolicyError(
            f"{where}: python.venv: {venv} is not a virtual environment (no pyvenv.cfg: {error.strerror})",
            hint=f"make one with `python3 -m venv {venv}`",
        ) from error
    program = os.path.join(venv, "bin", "python")
    if not os.access(program, os.X_OK):
        raise PolicyError(f"{where}: python.venv: {program} can't be run; was its Python removed?")
    home = settings.get("home", "")
    if _in_system(home):  # every jar has it; beside `/bin`, a link to `/usr/bin`, lies everything
        home = ""
    bases = {os.path.dirname(home), os.path.dirname(os.path.dirname(os.path.realpath(program)))} - {""}
    for base in bases:
        if not _is_python_prefix(base):  # whoever wrote pyvenv.cfg could have any directory shown otherwise
            raise PolicyError(f"{where}: python.venv: {venv} says that its Python lives in {base}, and none does")
    return Runtime("python", program, _prefixes(venv, *bases), venv=os.path.normpath(venv))


def _is_python_prefix(path: str) -> bool:
    """Whether a Python is installed there: its own standard library lies beneath (lib*/python3*/os.py)."""
    return any(
        os.path.lexists(f"{library}/os.py")
        for libraries in _beginning(path, "lib")
        for library in _beginning(libraries, "python3")
    )


def _beginning(directory: str, name: str) -> list[str]:
    """What lies in a directory whose name begins so; nothing, if it is none. `glob` takes milliseconds to import."""
    try:
        return [f"{directory}/{found}" for found in os.listdir(directory) if found.startswith(name)]
    except OSError:
        return []


def _prefixes(*prefixes: str) -> tuple[str, ...]:
    """Those outside of the system directories, none twice."""
    found = dict.fromkeys(os.path.normpath(prefix) for prefix in prefixes if prefix)
    return tuple(prefix for prefix in found if not _in_system(prefix))


def _in_system(path: str) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in SYSTEM_PREFIXES)
