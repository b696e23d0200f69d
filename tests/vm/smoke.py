"""Is the machine what the tests take it for? Runs inside: `python3 tests/vm/run.py -- python3 tests/vm/smoke.py`.

cgroup v2 alone, controllers delegated to the user's own scopes and really limiting, user namespaces and bubblewrap for
an ordinary user, overlayfs in a user namespace, the packages of the tests.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def output(*command: str, **options: object) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}"
    return str(done.stdout.strip())


def scope(script: str, *properties: str) -> str:
    """Runs a shell script in a transient scope of the session's manager, as belljar does."""
    manager = [] if os.geteuid() == 0 else ["--user"]
    flags = [flag for item in ("Delegate=yes", *properties) for flag in ("-p", item)]
    return output("systemd-run", *manager, "--scope", "--quiet", *flags, "--", "sh", "-c", script)


def kernel_is_debians() -> str:
    assert "Debian" in os.uname().version, os.uname()
    return f"{os.uname().release}, {os.uname().version}"


def cgroup_v2_alone() -> str:
    kinds = {line.split()[2] for line in Path("/proc/mounts").read_text().splitlines() if "/sys/fs/cgroup" in line}
    assert kinds == {"cgroup2"}, kinds
    return (CGROUPS / "cgroup.controllers").read_text().strip()


def login_session() -> str:
    own = Path("/proc/self/cgroup").read_text().strip()
    assert f"/user.slice/user-{os.geteuid()}.slice/session-" in own, own
    assert os.environ["XDG_RUNTIME_DIR"] == f"/run/user/{os.geteuid()}"
    return f"{own}, {os.environ.get('DBUS_SESSION_BUS_ADDRESS')}"


def scope_has_controllers() -> str:
    where, controllers = scope(
        'p=$(cut -d: -f3 /proc/self/cgroup); echo "$p"; cat /sys/fs/cgroup$p/cgroup.controllers'
    ).splitlines()
    assert {"memory", "cpu", "pids"} <= set(controllers.split()), controllers
    return f"{where}: {controllers}"


def scope_can_nest_and_limit() -> str:
    """What belljar does with a delegated scope: a leaf for itself, controllers on, a child with limits."""
    return scope(
        """set -e
        p=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)
        mkdir $p/self $p/jar
        echo $$ > $p/self/cgroup.procs
        echo '+memory +pids +cpu' > $p/cgroup.subtree_control
        echo 16M > $p/jar/memory.max
        echo 0 > $p/jar/memory.swap.max
        echo 8 > $p/jar/pids.max
        echo '20000 100000' > $p/jar/cpu.max
        sh -c 'echo $$ > '$p'/jar/cgroup.procs; exec python3 -c "bytearray(64<<20)"' 2>/dev/null && exit 1
        grep -q '^oom_kill [1-9]' $p/jar/memory.events
        tr '\\n' ' ' < $p/jar/memory.events; cat $p/jar/cpu.max $p/jar/pids.max | tr '\\n' ' '"""
    )


def unprivileged_user_namespace() -> str:
    return output("unshare", "--user", "--map-root-user", "sh", "-c", "id -u; cat /proc/self/uid_map")


def bubblewrap_runs() -> str:
    seen = output(
        "bwrap",
        "--unshare-all",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--",
        "sh",
        "-c",
        "echo pid $$; ls /proc | grep -c '^[0-9]'",
    )
    return f"{output('bwrap', '--version')}: {seen}"


def overlay_in_user_namespace() -> str:
    script = """set -e
        mount -t tmpfs tmpfs /mnt
        mkdir /mnt/upper /mnt/work /mnt/merged
        mount -t overlay -o userxattr,lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/merged
        ls /mnt/merged | wc -l"""
    return output("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script)


def network_pieces() -> str:
    return output(
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "sh",
        "-c",
        "ip link add left type veth peer name right && ip -br link | wc -l",
        env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
    )


def test_packages_import() -> str:
    modules = [importlib.import_module(name) for name in ("pytest", "anyio", "hypothesis", "yaml", "belljar")]
    return ", ".join(f"{module.__name__} {getattr(module, '__version__', '')}" for module in modules)


CHECKS: list[Callable[[], str]] = [
    kernel_is_debians,
    cgroup_v2_alone,
    login_session,
    scope_has_controllers,
    scope_can_nest_and_limit,
    unprivileged_user_namespace,
    bubblewrap_runs,
    overlay_in_user_namespace,
    network_pieces,
    test_packages_import,
]


def main() -> int:
    failed = 0
    for check in CHECKS:
        try:
            verdict, detail = "ok  ", check()
        except Exception as error:  # noqa: BLE001 (whatever it is, the others still run)
            verdict, detail, failed = "FAIL", f"{type(error).__name__}: {error}", failed + 1
        print(f"{verdict} {check.__name__}: {' | '.join(detail.split(chr(10)))}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
