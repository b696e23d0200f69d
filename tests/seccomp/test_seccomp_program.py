"""The programs as data: every number and many arguments through an interpreter, against the tables."""

from __future__ import annotations

import ctypes
import functools
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from seccomp_machine import ALLOW, ENOPROTOOPT, ENOSYS, EPERM, I386, KILL_PROCESS, NOTIFY, SUCCEEDS, TRACE, answer

from belljar.backends.seccomp import building, conditions, filters, libseccomp, rules
from belljar.errors import PrerequisiteError

NATIVE = libseccomp.native_architecture()
REGISTER = st.integers(0, 2**64 - 1)
# Values near what the rules look at, so that the random ones meet both sides.
SMALL = st.one_of(st.integers(0, 48), REGISTER, st.integers(0, 48).map(lambda n: n | 1 << 35))


def numbers(names: frozenset[str]) -> set[int]:
    found = {
        libseccomp.resolve(name) if libseccomp.resolve(name) is not None else rules.NUMBERS.get(name) for name in names
    }
    return {number for number in found if number is not None}


def action(call: str, *arguments: int) -> int:
    number = libseccomp.resolve(call)
    if number is None:
        number = rules.NUMBERS.get(call)
    if number is None:
        pytest.skip(f"no {call} on this architecture")
    return answer(filters.jar_filter(reported=False), number, arguments, architecture=NATIVE)


def verdict(call: str, *arguments: int) -> bool:
    found = action(call, *arguments)
    assert found in {ALLOW, EPERM}
    return found == ALLOW


def test_a_name_stands_in_one_table() -> None:
    """A bare rule would swallow a conditional one of the same call."""
    tables = (rules.ALLOWED, rules.ABSENT, rules.REPORTED, rules.CONDITIONAL | rules.TOLD)
    for one, other in itertools.combinations(tables, 2):
        assert not one & other
    assert {rule.name for rule in conditions.allowed()} == rules.CONDITIONAL


def test_every_name_is_known_somewhere() -> None:
    """A misspelt name would silently get no rule: libseccomp says -1 only for names of no architecture."""
    for name in rules.ALLOWED | rules.ABSENT | rules.REPORTED | rules.CONDITIONAL | rules.FILE_CALLS:
        known = libseccomp.library().seccomp_syscall_resolve_name(name.encode()) != -1
        assert known or name in rules.NUMBERS, name


def test_numbers_agree_with_libseccomp() -> None:
    """Where a newer libseccomp knows the name, it must say the same."""
    for name, number in rules.NUMBERS.items():
        assert libseccomp.resolve(name) in {None, number}


@pytest.mark.parametrize("reported", [False, True])
def test_every_number(reported: bool) -> None:
    """The whole table, and beyond its end, answers as `rules` says."""
    program = filters.jar_filter(reported=reported)
    expected = dict.fromkeys(range(1024), EPERM)
    expected |= dict.fromkeys(numbers(rules.ALLOWED), ALLOW)
    expected |= dict.fromkeys(numbers(rules.REPORTED | rules.TOLD), TRACE if reported else EPERM)
    expected |= dict.fromkeys(numbers(rules.ABSENT), ENOSYS)
    expected |= dict.fromkeys(range(rules.LAST_JUDGED + 1, 1024), ENOSYS)
    conditional = numbers(rules.CONDITIONAL)
    for number, wanted in expected.items():
        if number not in conditional:
            assert answer(program, number, architecture=NATIVE) == wanted, filters.syscall_name(number)


@pytest.mark.parametrize("number", [0, 1, 39, 101, 512])
def test_other_tables(number: int) -> None:
    """The 32-bit and x32 tables end the process, in every program."""
    for program in (filters.jar_filter(reported=False), filters.notify_filter(connects=True, files=True)):
        assert answer(program, number, architecture=I386) == KILL_PROCESS
        if NATIVE == 0xC000003E:
            assert answer(program, number | 0x40000000, architecture=NATIVE) == KILL_PROCESS
            assert answer(program, number | 0x80000000, architecture=NATIVE) == KILL_PROCESS


def test_minus_one_is_refused() -> None:
    """The number that tracers use for 'skip' is not special."""
    assert answer(filters.jar_filter(reported=False), 0xFFFFFFFF, architecture=NATIVE) in {EPERM, KILL_PROCESS}


@pytest.mark.parametrize("connects", [False, True])
@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("machine", [False, True])
def test_what_is_notified(connects: bool, files: bool, machine: bool) -> None:
    """The reported calls, and what was asked for; everything else is left to the other program."""
    program = filters.notify_filter(connects=connects, files=files, machine=machine)
    wanted = rules.REPORTED | (rules.FILE_CALLS if files else set()) | ({"connect"} if connects else set())
    wanted |= rules.ANSWERED if machine else set()
    wanted |= rules.TOLD - {"clone"}  # whose arguments are 0 here
    notified = {n for n in range(600) if answer(program, n, architecture=NATIVE) == NOTIFY}
    allowed = {n for n in range(600) if answer(program, n, architecture=NATIVE) == ALLOW}
    assert notified == numbers(frozenset(wanted))
    assert notified | allowed == set(range(600))


@settings(max_examples=500, deadline=None)
@given(
    call=st.sampled_from(sorted(rules.TOLD)),
    arguments=st.tuples(*[st.one_of(SMALL, st.integers(0, 63).map(lambda bit: 1 << bit), REGISTER)] * 6),
)
def test_what_is_told_is_refused(call: str, arguments: tuple[int, ...]) -> None:
    """The two programs agree, and no call that a jar may make is asked about."""
    (number,) = numbers(frozenset({call}))
    notified = answer(filters.notify_filter(connects=False, files=False), number, arguments, architecture=NATIVE)
    decided = answer(filters.jar_filter(reported=True), number, arguments, architecture=NATIVE)
    assert (notified == NOTIFY) == (decided == TRACE)
    assert decided in {TRACE, action(call, *arguments)}
    if decided == TRACE:
        assert action(call, *arguments) == EPERM


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("unshare", (0x10000000,)),
        ("pivot_root", (1, 1)),
        ("sethostname", (1, 3)),
        ("setdomainname", (1, 3)),
        ("mount", (1, 1, 1, 0, 0)),
        ("umount2", (1, 0)),
        *(("clone", (1 << bit,)) for bit in range(32) if 0x7E020000 >> bit & 1),
        *(("socket", (family, 1, 0)) for family in range(50) if family not in {1, 2, 10, 16}),
        *(("socket", (family, 0x80803, 1)) for family in (2, 10)),
    ],
)
def test_what_is_told(call: str, arguments: tuple[int, ...]) -> None:
    (number,) = numbers(frozenset({call}))
    program = filters.notify_filter(connects=False, files=False)
    assert answer(program, number, arguments, architecture=NATIVE) == NOTIFY
    assert stacked(number, arguments) == TRACE  # and so in a pool


def test_passing_on_the_listener_is_never_notified() -> None:
    """Between install and exec the child needs these, and nobody can answer yet."""
    program = filters.notify_filter(connects=True, files=True, machine=True)
    for number in numbers(frozenset({"sendmsg", "recvmsg", "write", "close", "seccomp", "prctl", "mmap", "brk"})):
        assert answer(program, number, architecture=NATIVE) == ALLOW


@settings(max_examples=300, deadline=None)
@given(flags=REGISTER)
def test_clone(flags: int) -> None:
    """Allowed exactly without a namespace flag."""
    assert verdict("clone", flags) == (not flags & 0x7E020000)


@settings(max_examples=300, deadline=None)
@given(flags=st.one_of(REGISTER, st.integers(0, 0xFF)), mode=st.one_of(REGISTER, st.integers(0, 0o7777)))
def test_open(flags: int, mode: int) -> None:
    """Refused exactly when a file may be made with one of the bits."""
    creates = bool(flags & (0o100 | 0o20000000))
    assert verdict("openat", 0, 0, flags, mode) == (not (creates and mode & 0o6000))


@settings(max_examples=500, deadline=None)
@given(family=SMALL, type_=SMALL, protocol=SMALL)
def test_sockets(family: int, type_: int, protocol: int) -> None:
    """Judged by the bits that the kernel reads, against the sentence in the design."""
    family_, kind, protocol_ = family & 0xFFFFFFFF, type_ & 0xF, protocol & 0xFFFFFFFF
    inet = family_ in {2, 10} and (kind, protocol_) in {(1, 0), (1, 6), (2, 0), (2, 17)}
    unix = family_ == 1 and kind in {1, 2, 5}
    route = family_ == 16 and kind in {2, 3} and protocol_ == 0
    assert verdict("socket", family, type_, protocol) == (inet or unix or route)
    assert verdict("socketpair", family, type_, protocol) == unix


@settings(max_examples=300, deadline=None)
@given(request=st.one_of(REGISTER, st.integers(0x5400, 0x5460)), high=st.integers(0, 2**32 - 1))
def test_ioctl(request: int, high: int) -> None:
    """Only the lower half counts."""
    request = (request & 0xFFFFFFFF) | high << 32
    assert verdict("ioctl", 0, request) == (request & 0xFFFFFFFF not in REFUSED_REQUESTS)


# The kernel's numbers, written down once more: what the filter says is compared with them.
REFUSED_REQUESTS = {
    *(0x5412, 0x541C, 0x5423),  # TIOCSTI TIOCLINUX TIOCSETD
    *(0x8940, 0x8941, 0x89A0, 0x89A1, 0x89A2, 0x89A3),  # bridges
    *(0x8980, 0x8981, 0x8982, 0x8983),  # dlci and vlan
}
HIGH = st.sampled_from([0, 1 << 32, 1 << 63, 0xDEADBEEF << 32])


@pytest.mark.parametrize("request_", sorted(REFUSED_REQUESTS), ids=hex)
@given(high=HIGH)
def test_every_refused_request(request_: int, high: int) -> None:
    assert not verdict("ioctl", 0, request_ | high)


@settings(max_examples=300, deadline=None)
@given(command=st.one_of(REGISTER, st.integers(0, 40), st.integers(1020, 1045)), high=HIGH)
def test_fcntl(command: int, high: int) -> None:
    """No lease, no delegation, no dnotify."""
    command = command & 0xFFFFFFFF | high
    assert verdict("fcntl", 0, command) == (command & 0xFFFFFFFF not in {1024, 1026, 1040})


@settings(max_examples=500, deadline=None)
@given(level=st.one_of(SMALL, st.sampled_from([6, 17, 136])), option=st.one_of(SMALL, st.integers(0, 110)), high=HIGH)
@example(level=136, option=100, high=0)
def test_setsockopt(level: int, option: int, high: int) -> None:
    """Refused as an option that this kernel does not have."""
    level_, option_ = level & 0xFFFFFFFF, option & 0xFFFFFFFF
    refused = (level_ == 6 and option_ in {14, 31, 32, 38, 39, 40, 42}) or (level_ in {17, 136} and option_ == 100)
    assert action("setsockopt", 0, level_ | high, option_ | high) == (ENOPROTOOPT if refused else ALLOW)


@settings(max_examples=300, deadline=None)
@given(resource=SMALL, high=HIGH, pid=SMALL, new=st.one_of(st.just(0), REGISTER, HIGH), old=REGISTER)
def test_limits(resource: int, high: int, pid: int, new: int, old: int) -> None:
    """Its own limits and nobody else's; that on cores is left as it is, and the caller told that it worked."""
    which = resource & 0xFFFFFFFF
    assert action("setrlimit", which | high, new) == (SUCCEEDS if which == 4 else ALLOW)
    expected = SUCCEEDS if which == 4 and new else ALLOW if pid & 0xFFFFFFFF == 0 or new == 0 else EPERM
    assert action("prlimit64", pid, which | high, new, old) == expected


@settings(max_examples=300, deadline=None)
@given(pid=SMALL, other=SMALL, value=SMALL)
def test_priorities(pid: int, other: int, value: int) -> None:
    """Its own, by the number 0; a wish for processors of any thread is heard and not followed."""
    own = pid & 0xFFFFFFFF == 0
    assert verdict("sched_setscheduler", pid, value, other) == (own or value & 0xFFFFFFFF == 0)
    assert verdict("sched_setparam", pid, other) == own
    assert verdict("sched_setattr", pid, other, value) == own
    assert action("sched_setaffinity", pid, value, other) == (ALLOW if own else SUCCEEDS)
    assert verdict("setpriority", other, pid, value) == (own and other & 0xFFFFFFFF == 0)
    assert verdict("ioprio_set", other, pid, value) == (own and other & 0xFFFFFFFF == 1)


@settings(max_examples=300, deadline=None)
@given(flags=st.one_of(REGISTER, st.integers(0, 31).map(lambda bit: 1 << bit)))
def test_flags(flags: int) -> None:
    """No huge pages, which no limit on memory counts, and no whiteouts."""
    assert verdict("mmap", 0, 4096, 3, flags, 0, 0) == (not flags & 0x40000)
    assert verdict("memfd_create", 0, flags) == (not flags & 0x4)
    assert verdict("shmget", 0, 4096, flags) == (not flags & 0x800)
    assert verdict("renameat2", 0, 0, 0, 0, flags) == (not flags & 0x4)


@pytest.mark.parametrize("call", ["chmod", "fchmod", "fchmodat", "fchmodat2", "creat", "mkdir", "mkdirat"])
@settings(max_examples=50, deadline=None)
@given(mode=REGISTER)
def test_modes(call: str, mode: int) -> None:
    """Allowed exactly without the bits."""
    place = 2 if call in {"fchmodat", "fchmodat2", "mkdirat"} else 1
    assert verdict(call, *([0] * place), mode) == (not mode & 0o6000)


LOOKED_AT = frozenset({"ioctl", "fcntl", "setsockopt", "setrlimit", "prlimit64", "sched_setaffinity"})
"""By instructions in front of libseccomp's."""


def stacked(number: int, arguments: tuple[int, ...] = (), *, architecture: int = NATIVE) -> int:
    """What the kernel answers to a jar of a pool: the more severe of its zygote's program and its own."""
    programs = filters.jar_filter(reported=True, makes_jars=True), filters.narrowing_filter()
    answers = [answer(program, number, arguments, architecture=architecture) for program in programs]
    return min(answers, key=lambda action: ctypes.c_int32(action & 0xFFFF0000).value)


@pytest.mark.parametrize("fill", [0, 2**64 - 1])
def test_a_jar_of_a_pool_may_what_every_jar_may(fill: int) -> None:
    """Every number, and other tables: the two programs together answer as the one."""
    for number in (*range(600), 1 << 30, (1 << 30) + 59, 2**32 - 1):
        for architecture in (NATIVE, I386):
            expected = answer(filters.jar_filter(reported=True), number, (fill,) * 6, architecture=architecture)
            assert stacked(number, (fill,) * 6, architecture=architecture) == expected, number


@settings(max_examples=500)
@given(
    st.sampled_from(sorted(rules.CONDITIONAL | rules.ZYGOTE | LOOKED_AT)),
    st.tuples(
        *[st.one_of(SMALL, st.integers(0, 0o177777), st.integers(0, 63).map(lambda bit: 1 << bit), REGISTER)] * 6
    ),
)
def test_a_jar_of_a_pool_may_what_every_jar_may_whatever_the_arguments(call: str, arguments: tuple[int, ...]) -> None:
    for number in numbers(frozenset({call})):
        expected = answer(filters.jar_filter(reported=True), number, arguments, architecture=NATIVE)
        assert stacked(number, arguments) == expected


def test_the_zygote_may_more() -> None:
    """The control: without the narrower one it makes namespaces, and mounts."""
    for number in numbers(rules.ZYGOTE):
        assert answer(filters.jar_filter(reported=True, makes_jars=True), number, architecture=NATIVE) == ALLOW
    assert {stacked(number) for number in numbers(rules.ZYGOTE - {"clone", "seccomp"})} == {TRACE}


PROGRAMS = {
    "narrowing": ("narrowing_filter", {}),
    **{
        f"jar {reported=} {makes_jars=}": ("jar_filter", {"reported": reported, "makes_jars": makes_jars})
        for reported, makes_jars in ((False, False), (True, False), (True, True))
    },
    **{
        f"notify {connects=} {files=} {machine=}": (
            "notify_filter",
            {"connects": connects, "files": files, "machine": machine},
        )
        for connects, files, machine in itertools.product((False, True), repeat=3)
    },
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_answers_as_built(name: str) -> None:
    """What the package holds decides as what this host's libseccomp makes of the rules: every number, other tables."""
    function, options = PROGRAMS[name]
    compiled, built = getattr(filters, function)(**options), getattr(building, function)(**options)
    if compiled == built:
        return
    for number in (*range(600), 1 << 30, (1 << 30) + 59, 2**32 - 1):
        for architecture in (NATIVE, I386):
            assert answer(compiled, number, architecture=architecture) == answer(
                built, number, architecture=architecture
            )


@settings(max_examples=500)
@given(
    st.sampled_from(sorted(rules.CONDITIONAL | LOOKED_AT)),
    st.tuples(*[st.one_of(SMALL, st.integers(0, 0o177777), st.integers(0, 2**32 - 1))] * 6),
)
def test_compiled_answers_as_built_whatever_the_arguments(call: str, arguments: tuple[int, ...]) -> None:
    """The same for the calls that are judged by their arguments."""
    for number in numbers(frozenset({call})):
        for options in ({"reported": True}, {"reported": True, "makes_jars": True}):
            assert answer(filters.jar_filter(**options), number, arguments, architecture=NATIVE) == answer(
                _built(**options), number, arguments, architecture=NATIVE
            )


@functools.cache
def _built(**options: bool) -> bytes:
    return building.jar_filter(**options)


def test_compiled_names_as_libseccomp() -> None:
    """A supervisor decides by them."""
    assert filters.supervised() == building.numbered(rules.REPORTED | rules.OBSERVED | rules.ANSWERED | rules.TOLD)


def test_programs_are_stable_and_fit() -> None:
    """The same bytes each time, so that a plan's digest means something; and the kernel's limit is 4096."""
    first = building.jar_filter(reported=True)
    assert building.jar_filter(reported=True) == first
    assert len(first) % 8 == 0
    assert len(first) // 8 < 4096


def test_names() -> None:
    """By libseccomp, by our own table, or by number."""
    ptrace = libseccomp.resolve("ptrace")
    assert ptrace is not None
    assert filters.syscall_name(ptrace) == "ptrace"
    assert filters.syscall_name(452) == "fchmodat2"
    assert filters.syscall_name(9999) == "syscall_9999"


def test_a_reported_call_has_the_name_it_was_reported_by() -> None:
    """A supervisor decides by name: an alias would be a forbidden call that it does not recognise."""
    for name in filters.REPORTED | filters.OBSERVED | rules.TOLD:
        for number in numbers(frozenset({name})):
            assert filters.syscall_name(number) == name
    assert not (filters.REPORTED | rules.TOLD) & filters.OBSERVED


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's fault, and what to type."""

    def absent(name: str, **_: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    libseccomp.library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", absent)
        with pytest.raises(PrerequisiteError, match="apt install libseccomp2"):
            libseccomp.library()
    libseccomp.library.cache_clear()


def test_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No filter at all rather than one whose arguments are in other places."""
    monkeypatch.setattr(libseccomp, "native_architecture", lambda: 0x80000016)
    with pytest.raises(PrerequisiteError, match="0x80000016"):
        building.jar_filter(reported=False)
