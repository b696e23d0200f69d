"""A program for the tests of faults: uses a Sandbox, and stops for ever when it is doing what was named.

python killed.py BACKEND MOMENT WORKSPACE
"""

from __future__ import annotations

import sys
import time
from typing import Any

from belljar import Sandbox
from belljar.backends.container.engine.cleanup_process import owner
from belljar.backends.container.jar.attached import Attached
from belljar.backends.container.jar.jar import ContainerJar
from belljar.backends.container.jar.volume import Volume

BACKEND, MOMENT, WORKSPACE = sys.argv[1:]
jars: list[ContainerJar] = []


def say(moment: str) -> None:
    """Tell the moment, and go on: the end may come anywhere from here."""
    if moment == MOMENT:
        print(moment, jars[0]._volume, owner(), flush=True)


def noticed(kind: type, name: str, moment: str, *, stay: bool = False) -> None:
    """Say when a method is called."""
    method = getattr(kind, name)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(self, ContainerJar) and not jars:
            jars.append(self)
        say(moment)
        result = method(self, *arguments, **options)
        if stay and moment == MOMENT:
            time.sleep(1000)
        return result

    setattr(kind, name, call)


noticed(ContainerJar, "_make_volume", "opening")
noticed(Attached, "configure", "depot")
noticed(ContainerJar, "_copy_in", "filling")
noticed(Volume, "changes", "mirror", stay=True)
noticed(ContainerJar, "close", "closing")

with Sandbox(backend=BACKEND, workspace=WORKSPACE) as jar:
    jar.run("open('made', 'w').write('x' * 1000000)")
    jar.run("print(1)")
    say("waiting")
    if MOMENT == "waiting":
        time.sleep(1000)
    jar.changes()
    seconds = 100 if MOMENT == "running" else 0
    for _output in jar.stream(f"print('up', flush=True)\nimport time\ntime.sleep({seconds})"):
        say("running")
