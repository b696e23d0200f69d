"""Many probes in one run: each in a process of its own, one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from belljar import Sandbox

_DRIVER = """
import json, os, sys
def run(code, arguments):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(writer, 1); os.dup2(writer, 2); os.close(reader); os.close(writer)
        sys.argv[1:] = arguments
        try:
            exec(compile(code, "probe", "exec"), {"__name__": "__main__"})
        except BaseException as error:
            print("BROKEN:", type(error).__name__, error)
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    said = b""
    while piece := os.read(reader, 65536):
        said += piece
    os.close(reader)
    status = os.waitpid(pid, 0)[1]
    return said.decode(errors="replace"), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
rows = json.loads(sys.stdin.read())
for name, code, arguments in rows:
    print(json.dumps([name, *run(code, arguments)]), flush=True)
"""
_SIGSYS = 31


class Row(NamedTuple):
    """A probe: what it is called, its program, its arguments."""

    name: str
    code: str
    arguments: Sequence[str] = ()


class Said(NamedTuple):
    """What became of a probe."""

    text: str
    signal: int

    @property
    def held(self) -> bool:
        """Whether it was refused, or killed for trying."""
        verdicts = [line.split(":")[0] for line in self.text.splitlines() if line.startswith(("ESCAPED:", "HELD:"))]
        return verdicts == ["HELD"] or (not verdicts and self.signal == _SIGSYS)


def run_all(jar: Sandbox, rows: Iterable[Row]) -> dict[str, Said]:
    """What each probe said in the jar; every one of them said something."""
    rows = list(rows)
    result = jar.run(_DRIVER, stdin=json.dumps(rows))
    found = {name: Said(text, signal) for name, text, signal in map(json.loads, result.stdout.splitlines())}
    assert [row.name for row in rows] == list(found), (result.outcome, result.stderr[-2000:], list(found)[-1:])
    return found


def escapes(found: dict[str, Said]) -> dict[str, Said]:
    """The probes that were not refused."""
    return {name: said for name, said in found.items() if not said.held}
