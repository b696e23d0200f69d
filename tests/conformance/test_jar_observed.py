"""What others see of a run while it lives, on every backend: what it prints, and what it uses over time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from belljar import Sandbox
from belljar.audit.store import RunStore
from belljar.sandbox.record import remote
from belljar.sandbox.record.following import LiveOutput

CODE = """
import os, time
print('jane.doe@example.com', flush=True)
held = bytearray(64 << 20)
if os.fork() == 0:
    time.sleep(60)
while time.process_time() < 1:
    pass
input()
print('end', end='')
"""


def test_a_run_that_lives(open_jar: Callable[..., Sandbox], backend: str) -> None:
    """Its output comes to its last byte, with tokens; its usage is sampled and stored."""
    reader, writer = os.pipe()
    jar = open_jar()
    thread = threading.Thread(target=jar.run, args=(CODE,), kwargs={"stdin": reader})
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not (found := remote.running()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run = str(found[0]["run"])
        output = LiveOutput(run)
        text = b""
        while not text:
            assert time.monotonic() < deadline
            text = b"".join(piece.data for piece in output.now())
        told: list[list[float]] = []
        while (len(told) < 3 or told[-1][1] <= 0.3) and backend != "gvisor":
            assert time.monotonic() < deadline
            told = remote.usage(run)
            time.sleep(0.05)
    finally:
        os.write(writer, b"\n")
        os.close(writer)
        text += b"".join(piece.data for piece in output.follow())
        thread.join()
        os.close(reader)
    assert text == b"<EMAIL_1>\nend"
    assert output.ended
    with RunStore() as store:
        samples = store.samples(run)
    if backend == "gvisor":
        assert samples == [], "gVisor shows a container no group of its own: if it does, say so in the guide"
        return
    last = samples[-1]
    assert last["cpu_seconds"] > 0.3
    assert last["memory_bytes"] > 64 << 20
    assert last["processes"] == 2
