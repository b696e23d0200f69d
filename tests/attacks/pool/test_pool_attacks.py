"""What a jar must withstand, in the jars of a pool: the kernel, other processes, the network, resources."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_attack_resources import memory_probe, responsive_host
from test_container_kernel import test_calls_and_processes_outside, test_privileges_settings_and_devices
from test_container_network import ears, test_nothing_leaves
from test_container_resources import (
    test_fork_bomb_is_contained_and_gone,
    test_limits_hold,
    test_nothing_outlives_its_run,
    test_output_processor_and_clock,
)

from belljar import Sandbox
from belljar.backends.contract import Status

__all__ = [
    "ears",
    "test_calls_and_processes_outside",
    "test_fork_bomb_is_contained_and_gone",
    "test_limits_hold",
    "test_nothing_leaves",
    "test_nothing_outlives_its_run",
    "test_output_processor_and_clock",
    "test_privileges_settings_and_devices",
]


@pytest.mark.parametrize("name", ["anonymous", "many processes", "shared mapping", "memfd", "/dev/shm"])
def test_memory_is_limited(open_jar: Callable[..., Sandbox], name: str) -> None:
    """200 MB of any kind in a jar of 96: out of memory, where a group counts; and the next run is not hurt."""
    jar = open_jar(overrides=["proc.mem_mb=96", "proc.timeout_ms=30s", "proc.open_files=4096", "proc.file_size_mb=512"])
    with responsive_host():
        result = jar.run(memory_probe(name))
    if result.enforcement.clause("proc.mem_mb").status is Status.ENFORCED:
        assert result.outcome == "oom", (name, result)
        assert "ESCAPED" not in result.stdout, name
    assert jar.run("print('alive')").stdout == "alive\n"
