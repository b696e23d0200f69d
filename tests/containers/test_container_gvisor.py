"""What is gVisor's alone: a kernel of its own, in which a container is one victim and nobody hears of a call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from belljar import RunResult, Sandbox
from belljar.backends.container.engine.engine import Engine
from belljar.backends.container.jar.attached import Attached
from belljar.backends.container.jar.out_of_memory import told_late
from belljar.cli.run.outcome import report

GVISORS_KERNEL = "4.4.0"
HOG = "held = []\nwhile True: held.append(bytearray(4 << 20))"


@pytest.mark.backend("gvisor")
@pytest.mark.backend("podman")
def test_with_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same jar, made by another engine; an end for want of memory leaves nothing where the caller stands."""
    monkeypatch.chdir(tmp_path)
    with Sandbox({"container": {"engine": "podman"}, "proc": {"mem_mb": 64}}, backend="gvisor") as jar:
        assert jar.run("import os; print(os.uname().release)").stdout == f"{GVISORS_KERNEL}\n"
        assert jar.run(HOG).outcome == "oom"
        assert jar.run("print('next')").stdout == "next\n"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def gvisor() -> Iterator[Sandbox]:
    """One for several tests: opening it takes seconds."""
    with Sandbox({"proc": {"cpu_quota": 0.3}}, backend="gvisor") as jar:
        yield jar


@pytest.mark.backend("gvisor")
class TestOneJar:
    """With the first engine that has runsc."""

    def test_it_is_gvisor(self, gvisor: Sandbox) -> None:
        """Never anything else."""
        assert gvisor.exec(["uname", "-r"]).stdout == f"{GVISORS_KERNEL}\n"

    @pytest.mark.parametrize("signal", ["KILL", "SEGV", "TERM"])
    def test_the_first_process_is_killed_by_the_code(self, gvisor: Sandbox, signal: str) -> None:
        """gVisor lets it: the run is over at once, the result does not blame the caller, and the next run is fine."""
        result = gvisor.exec(["sh", "-c", f"kill -{signal} 1; exec sleep 600"])
        assert result.outcome == "killed"
        assert "by the code itself" in result.reason
        assert result.duration < 60
        assert gvisor.exec(["echo", "next"]).stdout == "next\n"

    def test_processor_time_is_what_the_host_gave(self, gvisor: Sandbox) -> None:
        """Its kernel counts the time in which the host let others run."""
        burn = "import os, time\nos.fork(); os.fork()\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
        result = gvisor.run(burn)
        assert 0 < result.usage.cpu_seconds <= 0.3 * result.duration

    def test_asked_for_denials_it_says_that_it_has_none(self, gvisor: Sandbox) -> None:
        """Silence would mean that nothing was refused; advice to ask for them would lead nowhere."""
        connect = "import socket, sys; sys.exit(socket.socket().connect_ex(('192.0.2.7', 443)) and 1)"
        result: RunResult = gvisor.run(connect, explain_denials=True)
        assert result.outcome == "failed"
        assert "not recorded: refused files, connections" in report(result, quiet=False, explained=True)
        assert "--explain-denials" not in report(result, quiet=False, explained=False)


@pytest.mark.backend("gvisor")
def test_shared_memory_is_memory() -> None:
    """/dev/shm has as much as the volume and not a byte more, beside it; what is in it counts as memory."""
    policy = {"fs": {"size_mb": 8}, "proc": {"mem_mb": 256}}
    with Sandbox(policy, backend="gvisor") as jar:
        full = jar.exec(["sh", "-c", "cat /dev/zero > /dev/shm/full; stat -fc %s /dev/shm; wc -c < /dev/shm/full"])
        assert full.stdout == f"4096\n{8 << 20}\n"
        assert "No space left" in full.stderr
        assert jar.exec(["ls", "/dev/shm"]).stdout == ""
    with Sandbox({"fs": {"size_mb": 512}, "proc": {"mem_mb": 96}}, backend="gvisor") as jar:
        assert jar.exec(["sh", "-c", "cat /dev/zero > /dev/shm/full"]).outcome == "oom"


RECORDS = {
    "docker heard of it late": ("echo oom", 137, True),
    "docker heard nothing of it": ("true", 137, False),
    "docker does not answer": ("exit 1", 137, False),
    "another end": ("echo oom", 1, False),
}


@pytest.mark.parametrize(("says", "code", "expected"), RECORDS.values(), ids=RECORDS.keys())
def test_out_of_memory_told_late(tmp_path: Path, says: str, code: int, *, expected: bool) -> None:
    """By docker's events, between the container's start and a moment after its end."""
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{says}\n')
    program.chmod(0o755)
    container = SimpleNamespace(engine=Engine("docker", str(program), "runsc"), name="belljar-1", monitored=None)
    state = {"ExitCode": code, "StartedAt": "2026-01-01T10:00:00.5Z", "FinishedAt": "2026-01-01T10:00:59.123456789Z"}
    assert told_late(cast("Attached", container), state) is expected
    if code == 137:
        asked = (tmp_path / "asked").read_text()
        assert "--since 2026-01-01T10:00:00.5Z --until 2026-01-01T10:01:00.123456Z" in asked
        assert "container=belljar-1" in asked


@pytest.mark.parametrize("written", [True, False])
def test_out_of_memory_told_by_podmans_monitor(tmp_path: Path, *, written: bool) -> None:
    """By the file that it leaves where it was started."""
    if written:
        (tmp_path / "oom").touch()
    engine = Engine("podman", "/nowhere/podman", "runsc")
    container = SimpleNamespace(engine=engine, name="belljar-1", monitored=str(tmp_path))
    assert told_late(cast("Attached", container), {"ExitCode": 137}) is written
