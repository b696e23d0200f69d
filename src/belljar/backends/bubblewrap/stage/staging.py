"""Makes a stage: a mount namespace with everything in it that jars of one Sandbox are made of.

Runs in the stage process, a fork of the launcher, single-threaded. It starts with the privileges of whoever started
belljar. If that is root, root's part (reading sources under closed directories, mapping owners) comes first and is
short; then the process becomes a user that owns nothing else on the host, for good.
"""

from __future__ import annotations

import errno
import os
import stat

from belljar.backends import kernel
from belljar.backends.bubblewrap.shared import layout
from belljar.backends.bubblewrap.shared.parent_death import die_with
from belljar.backends.bubblewrap.shared.stage_plan import Source, StagePlan
from belljar.backends.bubblewrap.stage.jar_root import CLOSED, make_root
from belljar.backends.bubblewrap.stage.own_proc import NO_TIME_NAMESPACE, make_files, start_clocks
from belljar.backends.bubblewrap.stage.views import QUIET, Staged, make_runtime, make_view
from belljar.errors import PrerequisiteError, SandboxUnavailableError

_NAMESPACE_LIMITS = {"max_user_namespaces": 128, "max_inotify_instances": 32, "max_inotify_watches": 8192}
_OWN_INODES = 10
"""Directories of ours on the guest's tmpfs, which the policy's number does not count."""


def build(plan: StagePlan, kernel_uid: int, *, launcher: int) -> Staged:
    """Enter the stage and make all of it, as user `kernel_uid` in the end. The calling process can't go back.

    It is killed when the process `launcher` dies: there is no jar yet that would have to be ended in order.
    """
    die_with(launcher)
    root = os.geteuid() == 0
    staged = Staged(kernel_uid)
    if plan.listings:
        from belljar.backends.remembered_listings import Remembered, read_text

        staged.remembered = Remembered(read_text(plan.listings))  # now: the jar's user can't
    if root:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        _bring_sources(plan.sources, staged)
        _become(staged.kernel_uid)
    _enter_user_namespace()
    die_with(launcher)  # a new user has no such tie
    if not root:
        _bring_sources(plan.sources, staged)
    _mount_own(plan)
    make_root(plan)
    for index, view in sorted(enumerate(plan.views), key=lambda entry: len(entry[1].jar_path)):
        make_view(index, view, plan, staged)
    for index, tree in enumerate(plan.runtimes):
        make_runtime(index, tree, plan, staged)
    kernel.restrict(layout.ROOT, CLOSED, recursive=False)
    _limit_what_is_counted(plan.pool["most"] if plan.pool else 0)
    if plan.machine is not None:
        if plan.pool:  # another stage has time for it while bubblewrap makes its first jar
            make_files(**plan.machine)
        if not start_clocks():
            staged.shortfalls.append(("proc.host_info", NO_TIME_NAMESPACE))
    return staged


def _limit_what_is_counted(more_namespaces: int) -> None:
    """What the kernel counts per user, all runs of this Sandbox together may use only so much of."""
    limits = dict(_NAMESPACE_LIMITS)
    limits["max_user_namespaces"] += more_namespaces
    for name, value in limits.items():
        if os.path.exists(f"/proc/sys/user/{name}"):
            _write(f"/proc/sys/user/{name}", str(value))


def _become(kernel_uid: int) -> None:
    """Give up root for good. Dumpable again, so that our own /proc/self/uid_map can be written."""
    os.setgroups([])
    os.setresgid(kernel_uid, kernel_uid, kernel_uid)
    os.setresuid(kernel_uid, kernel_uid, kernel_uid)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def _enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    except OSError as error:
        raise PrerequisiteError(
            f"this host does not let belljar make a user namespace: {error.strerror}",
            hint="run `belljar doctor`: it says what forbids it and what to type",
        ) from error
    _write_maps(uid, gid)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)


def _write_maps(uid: int, gid: int) -> None:
    """Map one user and one group of the namespace above to the same numbers in the one just entered."""
    _write("/proc/self/setgroups", "deny")
    try:
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    except PermissionError as error:  # Ubuntu 24.04: the namespace is made, and is worth nothing
        raise PrerequisiteError(
            "this host makes user namespaces and takes their capabilities away (AppArmor)",
            hint="run `belljar doctor`: it says what to type",
        ) from error


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


# --- sources -------------------------------------------------------------------------------------------------------


def _bring_sources(sources: tuple[Source, ...], staged: Staged) -> None:
    """Copy the mounts first, then cover /sys: nothing that the policy names is hidden by the stage itself."""
    namespaces: dict[tuple[int, int], int] = {}
    trees = [_tree(source, staged, namespaces) for source in sources]
    for namespace in namespaces.values():
        os.close(namespace)
    kernel.mount("belljar", layout.STAGE, "tmpfs", QUIET, "mode=755,size=1m")
    for directory in (layout.SOURCES, layout.TRUSTED, layout.DATA):
        os.mkdir(directory)
    for index, tree in enumerate(trees):
        target = layout.source(index)
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.move_mount(tree, target)
        os.close(tree)


def _tree(source: Source, staged: Staged, namespaces: dict[tuple[int, int], int]) -> int:
    try:
        tree = kernel.open_tree(source.path, recursive=source.recursive)
    except OSError as error:
        if error.errno == errno.EINVAL and not source.recursive:  # something is mounted beneath it, and locked
            tree = kernel.open_tree(source.path, recursive=True)
        elif error.errno == errno.ELOOP:
            raise SandboxUnavailableError(
                f"can't mount {source.path}: since the policy was read, somebody put a link there",
                hint="look at who changes it (another jar with a live directory?), and try again",
            ) from error
        else:
            raise SandboxUnavailableError(f"can't mount {source.path}: {error.strerror}") from error
    if source.idmap and os.geteuid() == 0:
        _map_owner(tree, source.path, staged, namespaces)
    return tree


def _map_owner(tree: int, path: str, staged: Staged, namespaces: dict[tuple[int, int], int]) -> None:
    """Show what the source's owner owns as the jar's user's own, so that mode 0600 and 0700 read as they do outside.

    Sources of one owner share the namespace that has the table, since making one takes a fork.
    """
    status = os.fstat(tree)
    owner = (status.st_uid, status.st_gid)
    if owner not in namespaces:
        namespaces[owner] = _mapping_namespace(*owner, staged.kernel_uid)
    try:
        kernel.idmap(tree, namespaces[owner])
    except OSError as error:
        if status.st_mode & 0o005 != 0o005:  # else the jar's user can read it as anyone can
            lost = f"{path}: its file system can't map owners ({error.strerror}); closed files stay closed"
            staged.shortfalls.append(("fs.mounts", lost))


def _mapping_namespace(uid: int, gid: int, kernel_uid: int) -> int:
    """A user namespace that exists only for its table of ids."""
    ready_reader, ready_writer = os.pipe()
    done_reader, done_writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(ready_writer, b"1")
            os.close(done_writer)
            os.read(done_reader, 1)
        finally:
            os._exit(0)
    try:
        os.close(ready_writer)
        os.read(ready_reader, 1)
        _write(f"/proc/{child}/uid_map", f"{uid} {kernel_uid} 1")
        _write(f"/proc/{child}/gid_map", f"{gid} {kernel_uid} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (ready_reader, done_reader, done_writer):
            os.close(descriptor)
        os.waitpid(child, 0)


def _mount_own(plan: StagePlan) -> None:
    kernel.mount("belljar", layout.TRUSTED, "tmpfs", QUIET, "mode=700,size=256m")
    options = f"mode=700,size={plan.size_bytes},nr_inodes={plan.inodes + _OWN_INODES}"
    kernel.mount("belljar", layout.DATA, "tmpfs", QUIET, options)
    for directory in (layout.ROOT, layout.MASKS, layout.SCRATCH, layout.CODE, layout.EMPTY, layout.RUNTIMES):
        os.mkdir(directory, 0o755)
    for directory in (layout.UPPER, layout.WORK, layout.PLAIN, layout.RUNS):
        os.mkdir(directory, 0o700)
