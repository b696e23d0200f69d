"""Words that the tests of this suite share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from belljar import RunResult, Sandbox
from belljar.backends.contract import Status
from belljar.sandbox.record.events import Finished, Output

OpenJar = Callable[..., Sandbox]
"""What the fixture `open_jar` gives: the arguments are those of Sandbox."""

WAIT_FOR_GO = "until [ -e /workspace/go ]; do sleep 0.01; done"
"""For a shell in the jar: wait until the host has written the file `go`."""


def sh(jar: Sandbox, script: str, *args: str) -> RunResult:
    """Run a shell script in the jar."""
    return jar.exec(["sh", "-c", script, "sh", *args])


def told(result: RunResult) -> str:
    """What the code printed, if it ran to its end."""
    assert result.ok, (
        f"{result.outcome} {result.exit_code}: {result.reason}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
    )
    return result.stdout


def is_enforced(jar: Sandbox, key: str) -> bool:
    """Whether the backend promises to hold this clause here."""
    return jar.plan(argv=["true"]).report.clause(key).status is Status.ENFORCED


def stays(jar: Sandbox, path: str) -> bool:
    """Whether the next run still finds what one made: gVisor keeps pipes and sockets in its own memory."""
    return sh(jar, '[ -e "$1" ]', path).ok


def shares_memory_only(jar: Sandbox) -> bool:
    """Whether files in /dev/shm count as memory, not as files: a backend of which this is true has to say so."""
    return "but /dev/shm" in jar.plan(argv=["true"]).report.clause("fs.inodes").by


def is_promised(jar: Sandbox, key: str) -> bool:
    """Whether the backend promises to hold this clause here. If not, it has to refuse the run for that reason."""
    if is_enforced(jar, key):
        return True
    refused = jar.exec(["true"])
    assert refused.outcome == "refused"
    assert key in refused.reason
    return False


def finish(events: Iterable[Output | Finished]) -> RunResult:
    """Read a stream to its end."""
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last.result
