"""The kernel, other processes and privileges, from a container: the tables of test_attack_kernel."""

from __future__ import annotations

import platform

import pytest
from attack_batch import Row, Said, escapes, run_all
from attack_probe import python_probe
from test_attack_kernel import CALLS, EFFECTIVE, NOTHING, OTHERS, OWN_SETTINGS, SET_ID, SETTINGS, STATUS, WRITE

from belljar import Sandbox

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the probes have x86_64's call numbers")

_OF_ITS_OWN = ("priority of", "input priority of", "idle policy", "attributes of", "parameters of", "processors of")
_IN_ITS_OWN_KERNEL = {
    *("the 32-bit table", "fchmodat2", "io_setup", "TIOCSETD", "SIOCGIFVLAN", "SIOCBRADDBR", "RENAME_WHITEOUT"),
    *("huge pages by mmap", "huge pages by memfd_create", "huge pages by shmget", "F_SETLEASE", "F_NOTIFY"),
    *("TCP_ULP", "TCP_AO_ADD_KEY", "UDP_ENCAP", "UDP_ENCAP by SOL_UDPLITE"),
    *("lower RLIMIT_CORE by setrlimit", "lower RLIMIT_CORE by prlimit64"),
    *(attack.name for attack in CALLS if attack.name.startswith(_OF_ITS_OWN)),
}
"""What gVisor's kernel has or lacks by itself: it is answered there, never by the host's."""


def test_calls_and_processes_outside(roomy: Sandbox, backend: str, neighbour: int) -> None:
    """No call that reaches beyond a jar gets through, and no process outside is seen, signalled, read or changed."""
    rows = [Row(attack.name, python_probe(attack.body)) for attack in CALLS]
    rows += [Row(f"neighbour: {attack.name}", python_probe(attack.body), [str(neighbour)]) for attack in OTHERS]
    rows += [Row(f"set-id: {name}", python_probe(body)) for name, body in SET_ID]
    found = escapes(run_all(roomy, rows))
    if backend == "gvisor":
        found = {name: said for name, said in found.items() if name not in _IN_ITS_OWN_KERNEL}
    assert not found


_OWN = """
def attack(name, text):
    uid = os.geteuid()
    libc.unshare(0x10000000 | 0x80)
    return os.write(os.open(f"/proc/self/{name}", os.O_WRONLY), text.format(uid=uid).encode())
"""
_OPEN = """
def attack(path):
    if os.stat(path).st_rdev == os.stat("/dev/null").st_rdev:
        raise OSError(errno.ENODATA, "a cover that is empty")
    for flags in (os.O_RDWR, os.O_WRONLY):
        try:
            return os.open(path, flags)
        except OSError:
            pass
    if path.startswith(("/proc/sys/", "/proc/1/", "/sys/")):
        raise OSError(errno.EACCES, "it can be read, and not written")
    if not (found := os.read(os.open(path, os.O_RDONLY), 1)):
        raise OSError(errno.ENODATA, "an empty cover")
    return found
"""
_DANGEROUS = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
    "/proc/sysrq-trigger", "/proc/kmsg", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/1/oom_score_adj",
    "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/vda", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/devices/devices.allow",
    "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/memory/release_agent",
)  # fmt: skip
_WRITABLE_GROUP = """
def attack():
    found = [path for path, names, files in os.walk("/sys/fs/cgroup") for path in
             (path, *(f"{path}/{name}" for name in files)) if os.access(path, os.W_OK)]
    if not found:
        raise OSError(errno.EACCES, "none")
    return found[:5]
"""
_DEVICES = """
def attack():
    harmless = set("null zero full random urandom fd stdin stdout stderr shm tty ptmx pts mqueue core console".split())
    opened = []
    for name in set(os.listdir("/dev")) - harmless:
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK))
            opened += [name] if not os.path.isdir(f"/dev/{name}") else []
        except OSError:
            pass
    if not opened:
        raise OSError(errno.ENODEV, "nothing else")
    return opened
"""
_ALONE = """
def attack():
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid(), os.getppid()}
    if not others:
        raise OSError(errno.ESRCH, "nobody else")
    return others
"""


def test_privileges_settings_and_devices(roomy: Sandbox, backend: str) -> None:
    """No capability, no way to one, no setting of the kernel or of a control group, no device, nobody else in /proc."""
    status = [("CapEff", NOTHING), ("CapPrm", NOTHING), ("CapBnd", NOTHING)]
    if backend != "gvisor":
        status += [("NoNewPrivs", "1"), ("Seccomp", "2")]
    rows = [Row(key, python_probe(STATUS), [key, harmless]) for key, harmless in status]
    rows += [Row(f"set {path}", python_probe(WRITE), [path]) for path in SETTINGS]
    rows += [Row(f"own {name}", python_probe(_OWN), [name, text]) for name, text in OWN_SETTINGS.items()]
    rows += [Row(path, python_probe(_OPEN), [path]) for path in _DANGEROUS]
    bodies = {"group": _WRITABLE_GROUP, "devices": _DEVICES, "alone": _ALONE}
    rows += [Row(name, python_probe(body)) for name, body in bodies.items()]
    rows += [Row("su", python_probe(EFFECTIVE), ["/usr/bin/su"])]
    found = escapes(run_all(roomy, rows))
    if backend == "gvisor" and found.get("devices", Said("", 0)).text == "ESCAPED: ['fuse']\n":
        del found["devices"]  # of its own kernel, and of no use without mount, which the calls above are refused
    assert not found
