"""The program that every container starts with: `belljar.guest`, sent as source through its stdin.

So an image needs a Python and nothing else, and host and guest are always of the same version.
"""

from __future__ import annotations

import functools
import os

import belljar.guest

_ORDER = (
    "container.wire",
    "refused_calls",
    "container.observer",
    "container.self_check",
    "container.usage",
    "container.gvisor_cache_flush",
    "tree",
    "container.user_files",
    "container.volume_server",
    "container.gate",
)
"""Each after those that it imports."""

BOOT = """\
import os, sys
known = frozenset(sys.modules)
def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(125)
        data += piece
    return data
space = {}
exec(compile(take(int(take(8))), "<belljar>", "exec"), space)
started = space["run"](known)
exec(started.code, started.main)
"""
"""What `python3 -c` gets. Its last line runs the user's code, at the top of the stack, in the code's own process."""

_LOADER = """\
def run(known):
    import sys
    module = type(sys)
    for name in ("belljar", "belljar.guest", "belljar.guest.container"):
        sys.modules[name] = module(name)
        sys.modules[name].__path__ = []
    for name, source in SOURCES:
        loaded = module("belljar.guest." + name)
        sys.modules[loaded.__name__] = loaded
        package, _, last = loaded.__name__.rpartition(".")
        setattr(sys.modules[package], last, loaded)
        exec(compile(source, "<belljar>", "exec"), loaded.__dict__)
    return sys.modules["belljar.guest.container.gate"].start(known)
"""


@functools.cache
def bundle(*, relay: bool = False) -> bytes:
    """What a container reads first: eight digits of length, then the program. `relay`: it carries connections, too."""
    directory = os.path.dirname(os.path.abspath(belljar.guest.__file__))
    sources = []
    for name in (*_ORDER, "container.relay", "container.loopback_listener") if relay else _ORDER:
        with open(os.path.join(directory, f"{name.replace('.', '/')}.py"), encoding="utf-8") as file:
            sources.append((name, file.read()))
    program = f"SOURCES = {sources!r}\n{_LOADER}".encode()
    return b"%08d" % len(program) + program
