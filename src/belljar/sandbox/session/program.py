"""The program of a session's supervisor: modules of `belljar.guest` as one piece of code, the same on every backend."""

from __future__ import annotations

import functools
import os

import belljar.guest.session

_MODULES = ("rich", "steps", "supervisor")
"""Each after those that it imports."""

_LOADER = """
import sys
for name in ("belljar", "belljar.guest", "belljar.guest.session"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = []
for name, source in SOURCES:
    module = type(sys)("belljar.guest.session." + name)
    sys.modules[module.__name__] = module
    setattr(sys.modules["belljar.guest.session"], name, module)
    exec(compile(source, "<belljar>", "exec"), module.__dict__)
sys.modules["belljar.guest.session.supervisor"].main().serve()
"""


@functools.cache
def program() -> bytes:
    """The code of the run that is a session."""
    directory = os.path.dirname(os.path.abspath(belljar.guest.session.__file__))
    sources = []
    for name in _MODULES:
        with open(os.path.join(directory, f"{name}.py"), encoding="utf-8") as file:
            sources.append((name, file.read()))
    return f"SOURCES = {sources!r}\n{_LOADER}".encode()
