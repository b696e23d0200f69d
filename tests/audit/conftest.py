"""A program that runs code, for tests that look at it or end it from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from belljar.sandbox.record.remote import running


@pytest.fixture
def elsewhere() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, with a run in progress."""
    code = (
        "from belljar import Sandbox\n"
        "with Sandbox() as jar:\n"
        "    print(jar.run('import time; time.sleep(1000)').reason, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while process.pid not in {run["owner"] for run in running()}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
