"""Which parts of an interpreter's directory a jar shows. Reads directories of the host; changes nothing.

An interpreter outside of the system directories lies in a prefix: `PREFIX/bin/python3`, `PREFIX/lib/python3.11`. The
prefix may be a directory of its own (pyenv, uv, conda, nvm), or hold other files too (a project, `/opt/work`). So a jar
shows only what the interpreter reads, and belljar refuses a prefix that holds somebody's home.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from belljar.backends.runtimes import Installation, Runtime, find_runtime
from belljar.errors import PrerequisiteError
from belljar.policy.models import Policy
from belljar.policy.paths import beneath

_PYTHON_LIBRARIES = ("python3", "pypy3", "tcl", "tk")
_CONDA = ("bin", "lib", "include", "share", "ssl", "etc")
"""What a conda environment is made of. `conda-meta` marks a directory that conda alone fills."""
_MOST_LIBRARIES = 16
"""Shared libraries that are shown one by one. A directory that has more of them is shown whole."""


def private_paths(state: str) -> tuple[str, ...]:
    """Paths of this host that no jar shows. `state` is belljar's state directory."""
    home = os.path.expanduser("~")
    return ("/etc/shadow", f"{home}/.ssh", f"{home}/.aws", state, "/run/docker.sock", "/var/run", "/sys/kernel")


def find_shown(language: str, policy: Policy, private: Sequence[str]) -> Runtime:
    """Find the interpreter for `language`, and what a jar shows of it.

    Raises:
        PrerequisiteError: there is none, or its directory holds a home or one of the paths `private`.
        PolicyError: `python.venv` or `python.interpreter` names no interpreter.
    """
    return shown_of(find_runtime(language, policy), private)


def shown_of(runtime: Runtime, private: Sequence[str]) -> Runtime:
    """The runtime with what a jar shows of its directories. Raises PrerequisiteError as `find_shown`."""
    if not runtime.prefixes:
        return runtime
    _refuse_script(runtime)
    places = _Private(private)
    shown = tuple(_installation(runtime, prefix, places) for prefix in runtime.prefixes)
    return Runtime(runtime.language, runtime.path, runtime.prefixes, runtime.venv, shown)


def _refuse_script(runtime: Runtime) -> None:
    """Refuse what stands in for an interpreter (a shim of pyenv or asdf): it needs more than a jar shows."""
    with open(runtime.path, "rb") as file:
        if file.read(2) != b"#!":
            return
    raise PrerequisiteError(
        f"{runtime.path} is a script that starts an interpreter somewhere else", hint=_hint(runtime.language)
    )


class _Private:
    """Paths that no interpreter's mount may show."""

    def __init__(self, paths: Iterable[str]) -> None:
        homes = set(_homes())
        self._homes = {place for home in homes for place in (home, *_real(home))} - {"/"}
        self._paths = {place for path in paths for place in (path, os.path.realpath(path))}

    def refuse(self, path: str, language: str) -> None:
        """Raise PrerequisiteError if a mount of `path` would show a private place, or lie in one."""
        real = os.path.realpath(path)
        found = next((home for home in sorted(self._homes) if beneath(home, real) or beneath(home, path)), None)
        found = found or next((place for place in sorted(self._paths) if _overlap(place, real)), None)
        if real.count("/") < 2:
            found = real
        if found is not None:
            raise PrerequisiteError(
                f"the interpreter for {language} is installed in {path}, and a jar that shows this shows {found}",
                hint=_hint(language),
            )


def _real(path: str) -> list[str]:
    """Where a directory really is; nowhere if it does not exist, as the homes of most of a system's users."""
    return [os.path.realpath(path)] if os.path.lexists(path) else []


def _overlap(one: str, other: str) -> bool:
    return beneath(one, other) or beneath(other, one)


def _hint(language: str) -> str:
    if language == "python" and os.access("/usr/bin/python3", os.X_OK):
        return "use the system's Python: --set python.interpreter=/usr/bin/python3"
    program = {"python": "Python", "javascript": "node", "bash": "bash"}[language]
    return f"install {program} with the system's package manager, or into a directory of its own below your home"


def _homes() -> Iterator[str]:
    """The home directories of this host's users, as `/etc/passwd` and this user's environment name them."""
    yield os.path.expanduser("~")
    try:
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(":") for line in file]
    except OSError:
        lines = []
    yield from (line[5] for line in lines if len(line) > 5 and line[5].startswith("/"))
    if not any(line[2:3] == [str(os.getuid())] for line in lines):  # a user of LDAP's, say
        import pwd

        try:
            yield pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return


def _installation(runtime: Runtime, prefix: str, private: _Private) -> Installation:
    private.refuse(prefix, runtime.language)
    parts: list[tuple[str, str]] = []
    links: list[tuple[str, str]] = []
    for name in _names(runtime, prefix):
        path = f"{prefix}/{name}"
        if any(beneath(name, known) for known, _ in (*parts, *links)):
            continue
        if os.path.islink(path):
            links.append((name, os.readlink(path)))
        elif os.path.exists(path) and _stays(prefix, name):
            private.refuse(path, runtime.language)
            parts.append((name, os.path.realpath(path)))
    return Installation(prefix, tuple(parts), tuple(links), searched=prefix == runtime.venv)


def _stays(prefix: str, name: str) -> bool:
    """Return False if a link on the way leads elsewhere: `share/jupyter`, where `share` is a link to another place."""
    return os.path.realpath(f"{prefix}/{name}") == os.path.normpath(f"{os.path.realpath(prefix)}/{name}")


def _names(runtime: Runtime, prefix: str) -> Iterator[str]:
    """What the interpreter reads of its prefix, as names beneath it. Some may not exist."""
    if os.path.isdir(f"{prefix}/conda-meta"):
        yield from _CONDA
        return
    libraries = [name for name in _listed(prefix) if name.startswith("lib")]
    inside = [f"{library}/{name}" for library in libraries for name in _listed(f"{prefix}/{library}")]
    yield from _programs(runtime, prefix, inside)
    if prefix == runtime.venv:
        yield "pyvenv.cfg"
    for library in libraries:
        if os.path.islink(f"{prefix}/{library}"):
            yield library
            continue
        within = [name for name in inside if name.startswith(f"{library}/")]
        shared = [name for name in within if name.endswith(".so") or ".so." in os.path.basename(name)]
        if len(shared) > _MOST_LIBRARIES:
            yield library
        else:
            yield from shared
            yield from (name for name in within if _is_needed(runtime.language, os.path.basename(name)))
    if runtime.language == "python":
        yield from (f"include/{name}" for name in _listed(f"{prefix}/include") if name.startswith(("python3", "pypy3")))
        yield from ("share/jupyter", "share/terminfo")


def _programs(runtime: Runtime, prefix: str, inside: Sequence[str]) -> Iterator[str]:
    """All of `bin` if the prefix is an installation; else the interpreter alone, since `bin` may be anybody's."""
    if prefix == runtime.venv or any(_is_needed(runtime.language, os.path.basename(name)) for name in inside):
        yield "bin"
    if beneath(runtime.path, prefix):
        yield os.path.relpath(runtime.path, prefix)


def _is_needed(language: str, name: str) -> bool:
    """Return True if a directory of this name in `lib` belongs to the interpreter."""
    if language == "javascript":
        return name == "node_modules"
    return name.startswith(_PYTHON_LIBRARIES) and any(character.isdigit() for character in name)


def merged(runtimes: Iterable[Runtime]) -> list[tuple[Installation, tuple[str, ...]]]:
    """The installations of all runtimes, each with the languages that need it: none lies in another.

    Two interpreters that share a directory (node in a virtual environment) are one installation, of both languages.
    """
    found: list[tuple[Installation, tuple[str, ...]]] = []
    every = [(shown, runtime.language) for runtime in runtimes for shown in runtime.installations]
    for inner, language in sorted(every, key=lambda each: each[0].path):
        if not found or not beneath(inner.path, found[-1][0].path):
            found.append((inner, (language,)))
            continue
        outer, languages = found[-1]
        found[-1] = (_joined(outer, inner), tuple(dict.fromkeys((*languages, language))))
    return found


def _joined(outer: Installation, inner: Installation) -> Installation:
    below = inner.path[len(outer.path) + 1 :]

    def all_of(ours: tuple[tuple[str, str], ...], theirs: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
        return sorted({*ours, *((f"{below}/{name}" if below else name, value) for name, value in theirs)})

    links = all_of(outer.links, inner.links)
    linked = [name for name, _target in links]
    parts: list[tuple[str, str]] = []
    for name, real in all_of(outer.parts, inner.parts):  # a directory comes before what is in it
        if not any(beneath(name, known) for known in (*linked, *(shown for shown, _ in parts))):
            parts.append((name, real))
    shown = [name for name, _ in parts]
    kept = [link for link in links if not any(beneath(link[0], name) for name in shown)]
    hidden = dict.fromkeys((*outer.hidden, *(f"{below}/{name}" if below else name for name in inner.hidden)))
    searched = outer.searched or inner.searched
    seconds = max(outer.search_seconds, inner.search_seconds)
    return Installation(outer.path, tuple(parts), tuple(kept), searched, tuple(hidden), seconds)


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
