"""What a jar must withstand, in the jars of a pool: the kernel, other processes, the network, resources."""

from __future__ import annotations

from test_container_kernel import test_calls_and_processes_outside, test_privileges_settings_and_devices
from test_container_network import ears, test_nothing_leaves
from test_container_resources import (
    test_fork_bomb_is_contained_and_gone,
    test_limits_hold,
    test_memory_is_limited,
    test_nothing_outlives_its_run,
    test_output_processor_and_clock,
)

__all__ = [
    "ears",
    "test_calls_and_processes_outside",
    "test_fork_bomb_is_contained_and_gone",
    "test_limits_hold",
    "test_memory_is_limited",
    "test_nothing_leaves",
    "test_nothing_outlives_its_run",
    "test_output_processor_and_clock",
    "test_privileges_settings_and_devices",
]
