"""Attacks on the kernel and on other processes: each call in the jar, and in a control where it must get through."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from attack_control import open_file, ordinary_user, python, python_control
from attack_probe import escaped, held, python_probe, refused_by_the_jar

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the probes have x86_64's call numbers")


class Attack(NamedTuple):
    """One probe, and what its control needs."""

    name: str
    body: str
    root: bool = False
    host_may_forbid: bool = False
    """A host may refuse it to everyone; then the control is that the jar's refusal is another than the kernel's."""


def _judged(name: str, arguments: str, *, root: bool = False) -> Attack:
    return Attack(name, f"def attack():\n    return judged({arguments})", root=root, host_may_forbid=True)


# --- system calls that no jar may make -------------------------------------------------------------------------------

CALLS = (
    _judged("io_uring_setup", "425, 0, 0"),
    _judged("io_uring_enter", "426, 999, 0, 0, 0, 0, 0"),
    _judged("bpf", "321, 0, 0, 120"),
    Attack(
        "perf_event_open",
        """
        def attack():
            attributes = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 << 5 | 1 << 6).ljust(112, b"\\0")
            return judged(298, attributes, 0, -1, -1, 0)
        """,
        host_may_forbid=True,
    ),
    Attack("userfaultfd", "def attack(): return judged(323, 1)", root=True, host_may_forbid=True),
    Attack("keyctl", "def attack(): return judged(250, 0, -4, 0)"),
    Attack("add_key", "def attack(): return judged(248, b'user', b'belljar-attack', b'x', 1, -1)"),
    Attack("request_key", "def attack(): return judged(249, b'user', b'belljar-attack-none', 0, 0)"),
    Attack("name_to_handle_at", "def attack(): return judged(303, -100, b'/', 0, 0, 0)"),
    Attack("open_by_handle_at", "def attack(): return judged(304, -1, 0, 0)", root=True, host_may_forbid=True),
    Attack("unshare a user namespace", "def attack(): return call(272, 0x10000000)"),
    Attack("unshare a mount namespace", "def attack(): return call(272, 0x00020000)", root=True),
    Attack(
        "clone into a user namespace",
        """
        def attack():
            pid = call(56, 0x10000000 | 17, 0, 0, 0, 0)
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            return "a child in a user namespace of its own"
        """,
    ),
    Attack("clone3 into a user namespace", "def attack(): return judged(435, 0, 0)"),
    Attack("setns", "def attack(): return judged(308, os.open('/proc/self/ns/user', 0), 0x10000000)"),
    Attack("mount a tmpfs", "def attack(): return call(165, b'x', b'/tmp', b'tmpfs', 0, b'size=4k')", root=True),
    Attack("bind a directory", "def attack(): return call(165, b'/usr', b'/tmp', 0, 0x1000, 0)", root=True),
    Attack("unmount", "def attack(): return judged(166, b'/proc', 2)", root=True),
    Attack("remount /usr for writing", "def attack(): return judged(165, 0, b'/usr', 0, 0x20 | 0x1000, 0)", root=True),
    Attack("pivot_root", "def attack(): return judged(155, b'/tmp', b'/tmp')", root=True),
    Attack("fsopen", "def attack(): return call(430, b'tmpfs', 0)", root=True),
    Attack("open_tree", "def attack(): return judged(428, -100, b'/', 1)", root=True),
    Attack("mount_setattr", "def attack(): return judged(442, -100, b'/', 0, bytes(32), 32)", root=True),
    Attack(
        "leave by chroot",
        """
        def attack():
            call(161, b"/usr")  # the working directory stays outside
            for _ in range(64):
                os.chdir("..")
            return str(len(os.listdir(".")))
        """,
        root=True,
    ),
    Attack("sethostname", "def attack(): return judged(170, b'x', -1)", root=True),
    Attack("fanotify_init", "def attack(): return judged(300, 0x200, 0)", host_may_forbid=True),
    Attack("kcmp", "def attack(): return judged(312, os.getpid(), os.getpid(), 2, 0, 0)"),
    Attack("memfd_secret", "def attack(): return judged(447, 0)", host_may_forbid=True),
    Attack("modify_ldt", "def attack(): return judged(154, 0, ctypes.create_string_buffer(16), 16)"),
    Attack("turn address randomisation off", "def attack(): return call(135, 0x0040000)"),
    Attack("quotactl", "def attack(): return judged(179, 0x80000100, 0, 0, 0)", host_may_forbid=True),
    Attack("swapon", "def attack(): return judged(167, b'/nowhere', 0x7FFF0000)"),  # flags are looked at first
    Attack("init_module", "def attack(): return judged(175, 0, 0, 0)", root=True, host_may_forbid=True),
    Attack("syslog", "def attack(): return judged(103, 10, 0, 0)", host_may_forbid=True),
    Attack(
        "seccomp listener of its own",
        """
        def attack():
            allow = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
            buffer = ctypes.create_string_buffer(allow, 8)
            program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(buffer))
            libc.prctl(38, 1, 0, 0, 0)
            return call(317, 1, 8, program)
        """,
    ),
    Attack(
        "the 32-bit table",
        """
        def attack():
            import mmap
            page = mmap.mmap(-1, 4096, prot=7)
            page.write(bytes.fromhex("53 b8 14 00 00 00 cd 80 5b c3".replace(" ", "")))  # getpid is 20 there
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            answer = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
            if answer != os.getpid():
                raise OSError(errno.ENOSYS, f"int 0x80 answered {answer}")
            return "getpid by int 0x80"
        """,
        host_may_forbid=True,
    ),
    Attack("the x32 table", "def attack(): return call(0x40000000 + 39)", host_may_forbid=True),
    # Where a call would load a module or hold up a file of the host's, a descriptor that is none shows who answers.
    Attack("io_setup", "def attack(): return judged(206, 0, 0)"),
    Attack("huge pages by mmap", "def attack(): return judged(9, 0, 1 << 21, 3, 0x40022, -1, 0)"),
    Attack("huge pages by memfd_create", "def attack(): return judged(319, b'attack', 4)"),
    Attack("huge pages by shmget", "def attack(): return judged(29, 0, 0, 0o5600)"),
    Attack(
        "TIOCSETD",
        """
        def attack():
            ends = os.openpty()
            return judged(16, ends[1], 0x5423, struct.pack("i", 0))
        """,
    ),
    Attack("SIOCGIFVLAN", "def attack(): return judged(16, -1, 0x8982, 0)"),
    Attack("SIOCBRADDBR", "def attack(): return judged(16, -1, 0x89A0, 0)"),
    Attack("TCP_ULP", "def attack(): return option_reaches_the_kernel(6, 31)"),
    Attack("TCP_AO_ADD_KEY", "def attack(): return option_reaches_the_kernel(6, 38)"),
    Attack("UDP_ENCAP", "def attack(): return option_reaches_the_kernel(17, 100)"),
    Attack("UDP_ENCAP by SOL_UDPLITE", "def attack(): return option_reaches_the_kernel(136, 100)"),
    Attack("RENAME_WHITEOUT", "def attack(): return judged(316, -100, b'/nowhere', -100, b'/nowhere-else', 4)"),
    Attack("F_SETLEASE", "def attack(): return judged(72, -1, 1024, 0)"),
    Attack("F_NOTIFY", "def attack(): return judged(72, -1, 1026, 0)"),
    Attack("lower RLIMIT_CORE by setrlimit", "def attack(): return core_limit(160, 4, struct.pack('QQ', 0, 0))"),
    Attack("lower RLIMIT_CORE by prlimit64", "def attack(): return core_limit(302, 0, 4, struct.pack('QQ', 0, 0), 0)"),
    Attack("idle policy for another", "def attack(): return call(144, beside(), 5, struct.pack('i', 0))"),
    Attack(
        "attributes of another", "def attack(): return call(314, beside(), struct.pack('IIQiIQQQ', 48, 5, *[0] * 6), 0)"
    ),
    Attack("parameters of another", "def attack(): return call(142, beside(), struct.pack('i', 0))"),
    Attack("priority of another", "def attack(): return call(141, 0, beside(), 19)"),
    Attack("priority of its group", "def attack(): own_group(); return call(141, 1, 0, 19)"),
    Attack("priority of its user", "def attack(): return call(141, 2, 0, 19)"),
    Attack("input priority of another", "def attack(): return call(251, 1, beside(), 3 << 13)"),
    Attack("input priority of its group", "def attack(): own_group(); return call(251, 2, 0, 3 << 13)"),
    Attack(
        "processors of another",
        """
        def allowed(pid):
            with open(f"/proc/{pid}/status") as status:
                return next(line for line in status if line.startswith("Cpus_allowed:"))

        def attack():
            pid = beside()
            before = allowed(pid)  # sched_getaffinity(2) tells what the policy grants, whatever is bound
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
            if allowed(pid) == before:
                raise OSError(errno.EPERM, "it is where it was")
            return "it is bound"
        """,
    ),
)


@pytest.mark.parametrize("attack", CALLS, ids=lambda attack: attack.name)
def test_call_is_refused(jar: Sandbox, attack: Attack) -> None:
    """A call that reaches beyond the jar is refused inside, and reaches the kernel in the control."""
    code = python_probe(attack.body)
    result = jar.run(code)
    assert held(result)
    said = python_control(code, root=attack.root)
    if attack.host_may_forbid:
        refused_by_the_jar(result, said, call=attack.name)
    else:
        assert escaped(said), said


# --- processes outside -----------------------------------------------------------------------------------------------

OTHERS = (
    Attack("signal", "def attack(who): pid = victim(who); os.kill(pid, 0); return pid"),
    Attack("ptrace", "def attack(who): pid = victim(who); call(101, 16, pid, 0, 0); return pid"),
    Attack("ptrace seize", "def attack(who): pid = victim(who); call(101, 0x4206, pid, 0, 0); return pid"),
    Attack(
        "process_vm_readv",
        """
        def attack(who):
            pid = victim(who)
            time.sleep(0.3)
            start = int(open(f"/proc/{pid}/maps").readline().split("-")[0], 16)
            buffer = ctypes.create_string_buffer(4)
            local = struct.pack("QQ", ctypes.addressof(buffer), 4)
            call(310, pid, local, 1, struct.pack("QQ", start, 4), 1, 0)
            return buffer.raw
        """,
    ),
    Attack("/proc/N/mem", "def attack(who): return open(f'/proc/{victim(who)}/mem', 'r+b')"),
    Attack("/proc/N/environ", "def attack(who): return open(f'/proc/{victim(who)}/environ', 'rb').read(4)"),
    Attack("/proc/N/root", "def attack(who): return os.listdir(f'/proc/{victim(who)}/root')"),
    Attack("/proc/N/cwd", "def attack(who): return os.listdir(f'/proc/{victim(who)}/cwd')"),
    Attack("/proc/N/fd", "def attack(who): return os.listdir(f'/proc/{victim(who)}/fd')"),
    Attack("/proc/N/ns", "def attack(who): return os.stat(f'/proc/{victim(who)}/ns/mnt').st_ino"),
    Attack("pidfd_getfd", "def attack(who): return call(438, os.pidfd_open(victim(who)), 0, 0)"),
    Attack("lower its limits", "def attack(who): return call(302, victim(who), 7, struct.pack('QQ', 9, 9), 0)"),
    Attack("change its priority", "def attack(who): return os.setpriority(os.PRIO_PROCESS, victim(who), 19)"),
    Attack(
        "pin it to a processor",
        """
        def attack(who):
            pid = victim(who)
            os.sched_setaffinity(pid, {0})
            return sorted(os.sched_getaffinity(pid))
        """,
    ),
)


@pytest.fixture
def neighbour() -> Iterator[int]:
    """A process of the user who runs the tests, outside of every jar."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        assert process.poll() is None, "the neighbour was ended"
        process.kill()


@pytest.mark.parametrize("attack", OTHERS, ids=lambda attack: attack.name)
def test_process_outside_is_out_of_reach(jar: Sandbox, neighbour: int, attack: Attack) -> None:
    """Code in a jar can't see, signal, read or change a process that is not in it; a process beside it could."""
    code = python_probe(attack.body)
    assert held(jar.run(code, args=[str(neighbour)]))
    assert escaped(python_control(code, "spawn"))


def test_signal_to_everyone_stays_inside(jar: Sandbox, neighbour: int) -> None:
    """`kill -9 -1` ends what is in the jar, and nothing else; in a control it does end a process beside it."""
    code = python_probe(
        """
        def attack(who):
            pid = None if who == "outside" else victim(who)
            os.kill(-1, 9)
            if pid is None:
                raise OSError(errno.ESRCH, "nobody")
            return os.waitpid(pid, 0)
        """
    )
    assert held(jar.run(code, args=["outside"]))
    os.kill(neighbour, 0)
    assert escaped(python_control(code, "spawn"))


def test_only_the_jar_is_in_proc(jar: Sandbox) -> None:
    """The process list is the jar's own: the code and the jar's pid 1; a process beside it is in the control's."""
    code = python_probe(
        """
        def attack(who):
            pid = victim(who) if who == "spawn" else who
            others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
            if not others:
                raise OSError(errno.ESRCH, "nobody else")
            return others
        """
    )
    assert held(jar.run(code, args=["jar"]))
    assert escaped(python_control(code, "spawn"))


# --- privileges ------------------------------------------------------------------------------------------------------

STATUS = """
def attack(key, harmless):
    value = dict(line.split(":\\t") for line in open("/proc/self/status") if ":\\t" in line)[key].strip()
    if value == harmless:
        raise OSError(errno.EPERM, f"{key} is {value}")
    return value
"""
NOTHING = "0" * 16


@pytest.mark.parametrize(
    ("key", "harmless"),
    [
        ("CapEff", NOTHING),
        ("CapPrm", NOTHING),
        ("CapBnd", NOTHING),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ],
)
def test_no_privilege_and_no_way_to_one(jar: Sandbox, key: str, harmless: str) -> None:
    """No capability, none to gain, no new privileges, a filter; root of a control's namespace has them all."""
    code = python_probe(STATUS)
    assert held(jar.run(code, args=[key, harmless]))
    assert escaped(python_control(code, key, harmless, root=True))


SETTINGS = (
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/user/max_inotify_instances",
    "/proc/sys/net/ipv4/ping_group_range",
)
WRITE = "def attack(path): return os.close(os.open(path, os.O_WRONLY))"


@pytest.mark.parametrize("path", SETTINGS)
def test_kernel_setting_can_not_be_changed(jar: Sandbox, path: str) -> None:
    """Settings that root of a namespace may write are closed to the code."""
    code = python_probe(WRITE)
    assert held(jar.run(code, args=[path]))
    assert escaped(python_control(code, path, root=True))


OWN_SETTINGS = {"uid_map": "0 {uid} 1", "setgroups": "deny", "timens_offsets": "monotonic 1 0"}


@pytest.mark.parametrize("name", OWN_SETTINGS)
def test_setting_of_its_own_namespaces_can_not_be_changed(jar: Sandbox, name: str) -> None:
    """A process that gets a user and a time namespace of its own may say who it is there; one in a jar gets none."""
    code = python_probe(
        """
        def attack(name, text):
            uid = os.geteuid()
            libc.unshare(0x10000000 | 0x80)
            return os.write(os.open(f"/proc/self/{name}", os.O_WRONLY), text.format(uid=uid).encode())
        """
    )
    assert held(jar.run(code, args=[name, OWN_SETTINGS[name]]))
    assert escaped(python_control(code, name, OWN_SETTINGS[name]))


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sysrq-trigger",
        "/proc/kmsg",
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/1/oom_score_adj",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/fuse",
        "/dev/kvm",
        "/dev/vda",
        "/sys/kernel",
        "/sys/fs/cgroup",
    ],
)
def test_dangerous_file_is_closed(jar: Sandbox, path: str) -> None:
    """Files that would reach the whole machine: none can be written, and none read but an empty cover.

    Nobody but root may open most of them, and no probe of ours runs as root: so the control has a harmless file in the
    place of each, open to everyone, as the real one must never be.
    """
    code = python_probe(
        """
        def attack(path):
            for flags in (os.O_RDWR, os.O_WRONLY):
                try:
                    return os.open(path, flags)
                except OSError:
                    pass
            if path.startswith("/proc/sys/"):
                raise OSError(errno.EACCES, "it can be read, and not written")
            found = os.listdir(path) if os.path.isdir(path) else os.read(os.open(path, os.O_RDONLY), 1)
            if not found:
                raise OSError(errno.ENODATA, "an empty cover")
            return found
        """
    )
    assert held(jar.run(code, args=[path]))
    setup = "" if path.startswith(("/sys/", "/proc/1/")) else open_file(path)
    assert escaped(python_control(code, path, root=True, setup=setup))


def test_devices_are_the_harmless_ones(jar: Sandbox) -> None:
    """The jar's /dev has what programs need and nothing else; the control's is the host's."""
    code = python_probe(
        """
        def attack():
            harmless = "null zero full random urandom fd stdin stdout stderr shm tty ptmx pts".split()
            others = set(os.listdir("/dev")) - set(harmless)
            if not others:
                raise OSError(errno.ENODEV, "nothing else")
            return others
        """
    )
    assert held(jar.run(code))
    assert escaped(python_control(code))


# --- set-user-id -----------------------------------------------------------------------------------------------------

SET_ID = (
    ("chmod", "def attack(): open('s', 'w'); os.chmod('s', 0o4755); return oct(os.stat('s').st_mode)"),
    ("chmod setgid", "def attack(): open('s', 'w'); os.chmod('s', 0o2755); return oct(os.stat('s').st_mode)"),
    ("fchmod", "def attack(): f = open('s', 'w'); os.fchmod(f.fileno(), 0o4755); return oct(os.stat('s').st_mode)"),
    ("create", "def attack(): os.open('s', os.O_CREAT | os.O_EXCL, 0o4755); return oct(os.stat('s').st_mode)"),
    ("mknod", "def attack(): os.mknod('s', 0o104755); return oct(os.stat('s').st_mode)"),
    ("fchmodat2", "def attack(): open('s', 'w'); call(452, -100, b's', 0o4755, 0); return oct(os.stat('s').st_mode)"),
    ("unnamed", "def attack(): return os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755)"),
)


@pytest.mark.parametrize(("name", "body"), SET_ID, ids=[name for name, _body in SET_ID])
def test_set_user_id_bit_can_not_be_planted(jar: Sandbox, arena: Path, name: str, body: str) -> None:
    """No call makes a file with the set-user-id bit; an ordinary user's process can."""
    code = python_probe(body)
    result = jar.run(code)
    assert held(result)
    said = python_control(code, cwd=str(arena))
    if name == "fchmodat2":
        refused_by_the_jar(result, said)  # it is new: some kernels do not have it
    else:
        assert escaped(said), said


EFFECTIVE = """
def attack(program):
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    real = effective = ""
    deadline = time.monotonic() + 2  # it has its new name a moment before its new user
    while real == effective and time.monotonic() < deadline:
        time.sleep(0.01)
        status = open(f"/proc/{process.pid}/status").read()
        real, effective = status.partition("Uid:")[2].split()[:2]
    process.kill()
    process.wait()
    if real == effective:
        raise OSError(errno.EPERM, f"it runs as {effective}")
    return f"{real} became {effective}"
"""


def test_set_user_id_program_of_the_host_gives_nothing(jar: Sandbox) -> None:
    """`su`, which is in every jar's /usr, runs there as the code itself; outside it runs as root, and asks."""
    code = python_probe(EFFECTIVE)
    assert held(jar.run(code, args=["/usr/bin/su"]))
    outside = [
        *ordinary_user(),
        python(),
        "-I",
        "-c",
        code,
        "/usr/bin/su",
    ]  # no namespace: in one, the bit has no effect
    assert escaped(subprocess.run(outside, capture_output=True, text=True, check=True).stdout)


def test_set_user_id_program_in_a_mount_gives_nothing(open_jar: OpenJar, arena: Path) -> None:
    """A set-user-id program that lies in a mount runs as the code itself; outside it would run as its owner."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a program that belongs to someone else; the test above has one of the host's")
    program = f"{arena}/tools/whoami"
    os.mkdir(f"{arena}/tools", 0o755)
    subprocess.run(["cp", "/usr/bin/id", program], check=True)
    os.chmod(program, 0o4755)
    mounts = [{"path": "/workspace", "rw": True}, {"path": "/tools", "source": f"{arena}/tools"}]
    jar = open_jar({"fs": {"mounts": mounts}})
    assert jar.exec(["/tools/whoami", "-u"]).stdout.strip() == "1000"
    said = subprocess.run([*ordinary_user(), program, "-u"], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "0"
