"""How a run's share of the machine is bounded: one file for each mechanism, standard library only.

The launcher (a small `python -I -S`) imports this room, so nothing here imports dataclasses, asyncio or subprocess.

    values      the limits as plain data             detect     what this host can hold, and why not
    groups      the interface of both versions       groupfs    files of a control group, by directory descriptor
    cgroup_v1   cgroup_v2                            killing    the verified end of every process of a group
    clone_into  a fork that starts in a v2 group     systemd    a delegated scope for the launcher
    stopping    standing still, without a freezer
    rlimits     what holds with no group at all      monitor    what is watched where no group can be had
"""
