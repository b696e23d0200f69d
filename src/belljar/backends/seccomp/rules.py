"""Which system calls a jar may make: names only, no mechanism.

The shape is that of docker's and podman's default profile: an allow list, refused by default. What differs is
that a jar has no capability to hang an exception on, and that everything ATTACKS.md names is left out. A name
stands in exactly one of the tables here and in `conditions`. A name that the installed libseccomp does not
know, and that `NUMBERS` does not give, gets no rule: the default refuses it.
"""

from __future__ import annotations

# Calls newer than libseccomp 2.5.4 (Debian 12). From 403 on, the number is the same on every architecture.
NUMBERS = {
    "set_mempolicy_home_node": 450,
    "cachestat": 451,
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "mseal": 462,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
}

# Above it nobody here has judged the call. It gets ENOSYS, not EPERM: a libc that tries a newer call first falls
# back on ENOSYS and fails on EPERM. libseccomp has one default action and no ranges, so `prefix` does this.
LAST_JUDGED = 469

_FILES = """
    access faccessat faccessat2 chdir fchdir getcwd close close_range chown fchown fchownat lchown
    copy_file_range dup dup2 dup3 fadvise64 fallocate fcntl fdatasync flock fsync ftruncate truncate
    getdents getdents64 getxattr fgetxattr lgetxattr listxattr flistxattr llistxattr setxattr fsetxattr lsetxattr
    removexattr fremovexattr lremovexattr setxattrat getxattrat listxattrat removexattrat
    file_getattr file_setattr link linkat lseek newfstatat fstat lstat stat statx statfs fstatfs
    read pread64 readv preadv preadv2 write pwrite64 writev pwritev pwritev2 readahead readlink readlinkat
    rename renameat rmdir sendfile splice tee symlink symlinkat sync syncfs sync_file_range
    umask unlink unlinkat utime utimes utimensat futimesat inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch cachestat
"""

# ioctl is here without a condition, as are fcntl, setsockopt, setrlimit and sched_setaffinity: `prefix` looks at them.
_DESCRIPTORS = """
    ioctl epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old
    eventfd eventfd2 pipe pipe2 poll ppoll pselect6 select signalfd signalfd4
    timerfd_create timerfd_gettime timerfd_settime
"""

# Which sockets exist at all is in `conditions`; where they lead is the network namespace's business.
_SOCKETS = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg
    sendmmsg sendmsg sendto setsockopt shutdown
"""

# get_mempolicy only reads. mbind, set_mempolicy, migrate_pages and move_pages are refused, as in docker: a row
# of kernel faults, and the libraries that try them (OpenBLAS, the JVM) go on without. vmsplice is refused because it
# keeps a page of a forked parent's memory readable after the parent has rewritten it (CVE-2020-29374), which is
# exactly the zygote's situation.
_MEMORY = """
    brk madvise process_madvise process_mrelease membarrier mincore mlock mlock2 mlockall mprotect mremap mseal
    msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect remap_file_pages get_mempolicy map_shadow_stack
"""

# pidfds stay: they name only what the pid namespace shows. pidfd_getfd does not.
_PROCESSES = """
    alarm arch_prctl capget capset execve execveat exit exit_group fork vfork getcpu getegid geteuid getgid
    getgroups getitimer getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid
    getuid get_robust_list set_robust_list get_thread_area set_thread_area set_tid_address ioprio_get kill
    nanosleep pause pidfd_open pidfd_send_signal prctl restart_syscall rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_yield setfsgid setfsuid setgid setgroups setitimer setpgid setregid setresgid setresuid
    setreuid setrlimit setsid setuid sigaltstack sysinfo tgkill times tkill uname wait4 waitid
"""

_TIME = """
    clock_getres clock_gettime clock_nanosleep gettimeofday time timer_create timer_delete timer_getoverrun
    timer_gettime timer_settime
"""

_SYNCHRONISATION = """
    futex futex_wait futex_wake futex_requeue futex_waitv getrandom mq_getsetattr mq_notify mq_open
    mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop
    shmat shmctl shmdt
"""

# A process may only narrow itself with these.
_SELF_RESTRICTION = """
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lsm_get_self_attr lsm_list_modules
"""

ALLOWED = frozenset(
    name
    for group in (
        _FILES,
        _DESCRIPTORS,
        _SOCKETS,
        _MEMORY,
        _PROCESSES,
        _TIME,
        _SYNCHRONISATION,
        _SELF_RESTRICTION,
    )
    for name in group.split()
)

# Refused so that the caller falls back to an older call whose arguments a filter can read: both take them
# in a structure behind a pointer. The two that list mounts have /proc/self/mountinfo to fall back to.
# io_setup and the calls around it have one limit for the whole machine (fs.aio-max-nr), which one jar could use up.
# Databases, QEMU and nginx go on without them, as on a kernel that lacks them.
ABSENT = frozenset(
    {
        *("clone3", "openat2", "statmount", "listmount"),
        *("io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents"),
    }
)

# Forbidden, and worth telling the supervisor about. None of them is used by bubblewrap while it builds a jar, nor by
# the shell at the gate (checked with strace, and by a test that runs both).
# bwrap calls setns only for --userns, --userns2 and --pidns, which a jar therefore can't use.
# adjtimex and clock_adjtime also read, but what they do is behind a pointer; reading is not worth the doubt.
_REPORTED = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp
    bpf perf_event_open userfaultfd memfd_secret io_uring_setup io_uring_enter io_uring_register
    keyctl add_key request_key open_by_handle_at name_to_handle_at lookup_dcookie
    fsopen fsconfig fsmount fspick move_mount open_tree open_tree_attr mount_setattr setns chroot
    fanotify_init fanotify_mark quotactl quotactl_fd swapon swapoff acct nfsservctl
    kexec_load kexec_file_load init_module finit_module delete_module create_module query_module get_kernel_syms
    reboot setdomainname syslog settimeofday clock_settime clock_adjtime adjtimex
    iopl ioperm modify_ldt vhangup uselib
"""
REPORTED = frozenset(_REPORTED.split())

# By which bubblewrap builds a jar, under the same filter. `prefix.told` says for which arguments the supervisor is
# asked: it lets them continue until the jar is finished, and refuses them from then on.
BUILDING = frozenset({"clone", "mount", "pivot_root", "sethostname", "umount2", "unshare"})

# All that the supervisor is told of for some arguments only. The remaining calls that a jar may not make are refused in
# the kernel, without a record: programs try them in passing and go on without (mbind, set_mempolicy, migrate_pages,
# move_pages), or nobody calls them any more (ustat, sysfs, _sysctl), or they are allowed for other arguments.
TOLD = BUILDING | {"socket"}

# Allowed on conditions; here so that one test can see that no name stands in two tables.
_CONDITIONAL = """
    clone personality seccomp socket socketpair chmod fchmod fchmodat fchmodat2 creat open openat mkdir mkdirat
    mknod mknodat prlimit64 mmap memfd_create shmget renameat2 ioprio_set setpriority sched_setattr sched_setparam
    sched_setscheduler
"""
CONDITIONAL = frozenset(_CONDITIONAL.split())

# What a zygote may do beyond: make jars, with namespaces, mounts and filters of their own.
ZYGOTE = frozenset({"clone", "mount", "mount_setattr", "seccomp", "unshare"})

# What the supervisor is told of when a policy asks for file denials: calls that name a path.
_FILE_CALLS = """
    open openat creat stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat execve execveat
    mkdir mkdirat unlink unlinkat rename renameat rmdir link linkat symlink symlinkat
    chmod truncate
"""
FILE_CALLS = frozenset(_FILE_CALLS.split())

# What the supervisor answers itself, so that the code learns what its policy grants and not what the host has.
ANSWERED = frozenset({"sysinfo", "sched_getaffinity"})

# The only calls that a supervisor may let continue. Whatever else arrives is to be refused, also what has no name: a
# supervisor that continues by default opens a forbidden call as soon as a name is spelled in two ways.
OBSERVED = FILE_CALLS | {"connect"}
