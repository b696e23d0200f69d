"""Makes a stage: a mount namespace with everything in it that jars of one Sandbox are made of.

Runs in the stage process, a fork of the launcher, single-threaded. It starts with the privileges of whoever started
belljar. If that is root, root's part (reading sources under closed directories, mapping owners) comes first and is
short; then the process becomes a user that owns nothing else on the host, for good.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from belljar.backends.bubblewrap import kernel, layout
from belljar.backends.bubblewrap.stageplan import Source, StagePlan, View, ViewKind
from belljar.backends.bubblewrap.whiteout import Denied, Whiteouts, find_denied, names_to_deny
from belljar.errors import PrerequisiteError, SandboxUnavailableError
from belljar.policy.globs import DenyGlobs

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
_READONLY = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID
_CLOSED = _READONLY | kernel.MOUNT_ATTR_NODEV
_MAX_LIVE_MASKS = 500
_NAMESPACE_LIMITS = {"max_user_namespaces": 128, "max_inotify_instances": 32, "max_inotify_watches": 8192}
_OWN_INODES = 10
"""Directories of ours on the guest's tmpfs, which the policy's number does not count."""


class Staged:
    """What came of it, for the report and for the host."""

    def __init__(self, kernel_uid: int) -> None:
        self.kernel_uid = kernel_uid
        self.shortfalls: list[tuple[str, str]] = []
        """(clause, what is lost): found out only here, on the real directories."""
        self.copied: list[int] = []
        """Views that are copies, because overlayfs can't do copy-on-write here."""
        self.covered: list[str] = []
        """Paths in the jar over which something is mounted because they are denied."""
        self.whiteouts: list[tuple[Whiteouts, str]] = []
        """Layers of whiteouts, each with the staged directory that it covers."""


def build(plan: StagePlan, kernel_uid: int) -> Staged:
    """Enter the stage and make all of it, as user `kernel_uid` in the end. The calling process can't go back."""
    root = os.geteuid() == 0
    staged = Staged(kernel_uid)
    if root:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        _bring_sources(plan.sources, staged)
        _become(staged.kernel_uid)
    _enter_user_namespace()
    if not root:
        _bring_sources(plan.sources, staged)
    _mount_own(plan)
    _make_root(plan)
    for index, view in sorted(enumerate(plan.views), key=lambda entry: len(entry[1].jar_path)):
        _make_view(index, view, plan, staged)
    kernel.restrict(layout.ROOT, _CLOSED, recursive=False)
    _limit_what_is_counted()
    return staged


def _limit_what_is_counted() -> None:
    """What the kernel counts per user, all runs of this Sandbox together may use only so much of."""
    for name, value in _NAMESPACE_LIMITS.items():
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
    trees = [_tree(source, staged) for source in sources]
    kernel.mount("belljar", layout.STAGE, "tmpfs", _QUIET, "mode=755,size=1m")
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


def _tree(source: Source, staged: Staged) -> int:
    try:
        tree = kernel.open_tree(source.path, recursive=source.recursive)
    except OSError as error:
        if error.errno == errno.EINVAL and not source.recursive:  # something is mounted beneath it, and locked
            tree = kernel.open_tree(source.path, recursive=True)
        else:
            raise SandboxUnavailableError(f"can't mount {source.path}: {error.strerror}") from error
    if source.idmap and os.geteuid() == 0:
        _map_owner(tree, source.path, staged)
    return tree


def _map_owner(tree: int, path: str, staged: Staged) -> None:
    """Show what the source's owner owns as the jar's user's own, so that mode 0600 and 0700 read as they do outside."""
    status = os.fstat(tree)
    namespace = _mapping_namespace(status.st_uid, status.st_gid, staged.kernel_uid)
    try:
        kernel.idmap(tree, namespace)
    except OSError as error:
        if status.st_mode & 0o005 != 0o005:  # else the jar's user can read it as anyone can
            lost = f"{path}: its file system can't map owners ({error.strerror}); closed files stay closed"
            staged.shortfalls.append(("fs.mounts", lost))
    finally:
        os.close(namespace)


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


# --- belljar's own parts -------------------------------------------------------------------------------------------


def _mount_own(plan: StagePlan) -> None:
    kernel.mount("belljar", layout.TRUSTED, "tmpfs", _QUIET, "mode=700,size=256m")
    options = f"mode=700,size={plan.size_bytes},nr_inodes={plan.inodes + _OWN_INODES}"
    kernel.mount("belljar", layout.DATA, "tmpfs", _QUIET, options)
    for directory in (layout.ROOT, layout.MASKS, layout.SCRATCH, layout.CODE, layout.EMPTY):
        os.mkdir(directory, 0o755)
    for directory in (layout.UPPER, layout.WORK, layout.PLAIN, layout.RUNS):
        os.mkdir(directory, 0o700)


def _make_root(plan: StagePlan) -> None:
    """The jar's root, whole: bubblewrap takes it as it is, for every run."""
    kernel.mount(layout.ROOT, layout.ROOT, None, kernel.MS_BIND)  # a mount of its own, read-only in the end
    for name in ("etc", "dev", "proc", "tmp", "run"):
        os.mkdir(f"{layout.ROOT}/{name}", 0o755)
    os.mkdir(layout.inside(layout.JAR_CODE), 0o755)
    for path, target in plan.links:
        os.symlink(target, layout.inside(path))
    for path in plan.directories:
        _show(path, path)
    for name, text in plan.etc_files.items():
        _create(layout.inside(f"/etc/{name}"), text.encode())
    for name in plan.etc_host:
        _share(f"/etc/{name}", layout.inside(f"/etc/{name}"), _CLOSED)
    for index, path in plan.runtimes:
        if not plan.is_late(path):
            _show(layout.source(index), path)
    _make_dev()


def _show(source: str, path: str) -> None:
    """Mount a directory of the host's read-only at the jar's `path`."""
    os.makedirs(layout.inside(path))
    kernel.mount(source, layout.inside(path), None, kernel.MS_BIND | kernel.MS_REC)
    kernel.restrict(layout.inside(path), _CLOSED, recursive=True)


def _create(path: str, content: bytes = b"") -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """write(2) until everything is written: a full tmpfs writes a part first and fails only then."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _share(host_path: str, staged_path: str, attributes: int) -> None:
    """Show a file or directory of the host's in the stage; a symbolic link is made anew."""
    os.makedirs(os.path.dirname(staged_path), exist_ok=True)
    status = os.lstat(host_path)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(host_path), staged_path)
        return
    if stat.S_ISREG(status.st_mode):  # small, and a copy is one mount less in every jar
        with open(host_path, "rb") as file:
            _create(staged_path, file.read(16 << 20))
        return
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(staged_path)
    else:
        _create(staged_path)
    kernel.mount(host_path, staged_path, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.restrict(staged_path, attributes, recursive=True)


def _make_dev() -> None:
    """A /dev of six devices and terminals of its own, made once: bubblewrap's --dev would make it for each run."""
    for name in _DEVICES:
        _share(f"/dev/{name}", f"{layout.DEV}/{name}", kernel.MOUNT_ATTR_NOSUID)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"{layout.DEV}/{name}")
    os.mkdir(f"{layout.DEV}/shm")
    os.mkdir(f"{layout.DEV}/pts")
    kernel.mount("devpts", f"{layout.DEV}/pts", "devpts", kernel.MS_NOSUID, "newinstance,ptmxmode=0666,mode=620,max=64")
    os.symlink("pts/ptmx", f"{layout.DEV}/ptmx")
    kernel.mount(layout.DEV, layout.DEV, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.restrict(layout.DEV, _CLOSED, recursive=False)


# --- the policy's mounts -------------------------------------------------------------------------------------------


def _make_view(index: int, view: View, plan: StagePlan, staged: Staged) -> None:
    if view.source is None:
        with _mount_point(view) as target:
            kernel.mount(_plain_directory(index), target, None, kernel.MS_BIND)
    elif not os.path.isdir(root := layout.source(view.source)):
        with _mount_point(view, directory=False) as target:
            kernel.mount(root, target, None, kernel.MS_BIND)
    else:
        with _mount_point(view) as target:
            _make_directory_view(index, view, target, plan, staged)
    restrictions = _CLOSED if not view.writable else kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
    mounted = open_inside(view.jar_path)
    kernel.restrict(f"/proc/self/fd/{mounted}", restrictions, recursive=True)
    os.close(mounted)


def open_inside(path: str, flags: int = os.O_PATH) -> int:
    """Open the jar's `path` in the stage, through no link: what lies in a workspace may be anyone's."""
    root = os.open(layout.ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rules = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
        return kernel.openat2(root, path.lstrip("/") or ".", flags, resolve=rules)
    finally:
        os.close(root)


@contextlib.contextmanager
def _mount_point(view: View, *, directory: bool = True) -> Iterator[str]:
    """A place to mount the view on, made if need be, as a name that no link can lead astray."""
    names = view.jar_path.strip("/").split("/")
    try:
        for depth in range(1, len(names) + 1):
            parent = open_inside("/".join(names[: depth - 1]), os.O_PATH | os.O_DIRECTORY)
            with contextlib.suppress(FileExistsError):
                if directory or depth < len(names):
                    os.mkdir(names[depth - 1], 0o755, dir_fd=parent)
                else:
                    os.close(os.open(names[-1], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent))
            os.close(parent)
        found = open_inside(view.jar_path)
    except OSError as error:
        raise SandboxUnavailableError(
            f"{view.jar_path} can't be made as a place to mount on: {error.strerror}",
            hint="it lies in another mount: make it there, as a directory and not a link, or choose another path",
        ) from error
    try:
        yield f"/proc/self/fd/{found}"
    finally:
        os.close(found)


def _make_directory_view(index: int, view: View, target: str, plan: StagePlan, staged: Staged) -> None:
    assert view.source is not None
    root, host_path = layout.source(view.source), plan.sources[view.source].path
    globs = DenyGlobs(plan.deny_globs).within(host_path, view.jar_path)
    try:
        found = find_denied(root, host_path, view.jar_path, globs)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise SandboxUnavailableError(
            f"{host_path} has directories so deep that their paths are longer than the kernel takes",
            hint="remove them: what can't be named can't be looked through for denied files",
        ) from error
    if view.kind is ViewKind.LIVE:
        kernel.mount(root, target, None, kernel.MS_BIND | kernel.MS_REC)
        _mask_live(view.jar_path, found, staged)
        return
    if plan.snapshot:
        _copy(index, root, found, target, staged)
        return
    layers = _lower_layers(index, view, plan, found, staged)
    if view.kind is ViewKind.READONLY:
        _mount_readonly(layers, root, target)
    elif not _copy_on_write_works() or not _mount_cow(index, layers, target):
        _copy(index, root, found, target, staged)


def _plain_directory(index: int) -> str:
    path = f"{layout.PLAIN}/{index}"
    os.mkdir(path, 0o755)
    return path


def _lower_layers(index: int, view: View, plan: StagePlan, found: Denied, staged: Staged) -> list[str]:
    assert view.source is not None
    root, host_path = layout.source(view.source), plan.sources[view.source].path
    globs = DenyGlobs(plan.deny_globs).within(host_path, view.jar_path)
    if not found.paths and not globs.has_wildcards() and not names_to_deny(globs):
        return [root]
    layer = f"{layout.MASKS}/{index}"
    os.mkdir(layer)
    os.chmod(layer, stat.S_IMODE(os.stat(root).st_mode) & 0o777 | 0o500)
    whiteouts = Whiteouts(layer, root, host_path, view.jar_path, globs)
    whiteouts.build(found)
    if not whiteouts.complete:
        lost = f"{host_path} has too many directories: a denied name that appears later deep in it would show"
        staged.shortfalls.append(("fs.deny_globs", lost))
    staged.whiteouts.append((whiteouts, root))
    return [layer, root]


def _mount_readonly(layers: list[str], root: str, target: str) -> None:
    if len(layers) == 1:
        kernel.mount(root, target, None, kernel.MS_BIND | kernel.MS_REC)
        return
    kernel.mount("overlay", target, "overlay", _QUIET | kernel.MS_RDONLY, f"lowerdir={':'.join(layers)},userxattr")


def _overlay_options(layers: list[str], name: str) -> str:
    upper, work = f"{layout.UPPER}/{name}", f"{layout.WORK}/{name}"
    os.mkdir(upper, 0o755)
    os.mkdir(work, 0o755)
    return f"lowerdir={':'.join(layers)},upperdir={upper},workdir={work},userxattr"


def _mount_cow(index: int, layers: list[str], target: str) -> bool:
    options = _overlay_options(layers, str(index))
    os.chmod(f"{layout.UPPER}/{index}", stat.S_IMODE(os.stat(layers[-1]).st_mode) & 0o777 | 0o700)
    try:
        kernel.mount("overlay", target, "overlay", _QUIET, options)
    except OSError:
        return False
    return True


def _copy_on_write_works() -> bool:
    """Judge by behaviour: on Linux 6.1 the mount succeeds, and then removing a directory of the lower layer fails."""
    lower, target = f"{layout.MASKS}/probe", f"{layout.SCRATCH}/probe"
    if os.path.exists(target):
        return not os.path.exists(f"{layout.SCRATCH}/broken")
    os.makedirs(f"{lower}/directory")
    _create(f"{lower}/file")
    os.mkdir(target)
    mounted = False
    try:
        kernel.mount("overlay", target, "overlay", _QUIET, _overlay_options([lower], "probe"))
        mounted = True
        os.rmdir(f"{target}/directory")
        os.mkdir(f"{target}/directory")
        os.rename(f"{target}/file", f"{target}/renamed")
    except OSError:
        _create(f"{layout.SCRATCH}/broken")
        return False
    else:
        return True
    finally:
        if mounted:
            kernel.unmount(target)


def _mask_live(jar_path: str, found: Denied, staged: Staged) -> None:
    """The best that a directory shared for writing allows: cover what is there now. The report calls it degraded."""
    closed_file, closed_directory = f"{layout.TRUSTED}/closed-file", f"{layout.TRUSTED}/closed-directory"
    if not os.path.exists(closed_file):
        _create(closed_file)
        os.chmod(closed_file, 0)
        os.mkdir(closed_directory, 0)
    if len(found.paths) > _MAX_LIVE_MASKS:
        raise SandboxUnavailableError(
            f"{len(found.paths)} denied files lie in the live directory; {_MAX_LIVE_MASKS} can be covered",
            hint="leave out --live: the code then works on a copy-on-write view, which has no such limit",
        )
    for path in found.paths:
        covered = open_inside(f"{jar_path}/{path}", os.O_PATH | os.O_NOFOLLOW)
        try:
            kind = os.fstat(covered).st_mode
            if stat.S_ISLNK(kind):
                lost = f"{path} is a link, which can't be covered in a live directory"
                staged.shortfalls.append(("fs.deny_globs", lost))
                continue
            cover = closed_directory if stat.S_ISDIR(kind) else closed_file
            kernel.mount(cover, f"/proc/self/fd/{covered}", None, kernel.MS_BIND)
        finally:
            os.close(covered)
        cover_fd = open_inside(f"{jar_path}/{path}")
        kernel.restrict(f"/proc/self/fd/{cover_fd}", _CLOSED, recursive=False)
        os.close(cover_fd)
        staged.covered.append(f"{jar_path}/{path}")


def _copy(index: int, root: str, found: Denied, target: str, staged: Staged) -> None:
    """For a snapshot, or copy-on-write without overlayfs. Bounded by the quota that the copy is written to."""
    destination = _plain_directory(index)
    denied = set(found.paths)
    try:
        for directory in found.directories:
            os.makedirs(os.path.join(destination, directory), exist_ok=True)
            for entry in os.scandir(os.path.join(root, directory)):
                below = f"{directory}/{entry.name}" if directory else entry.name
                if below not in denied:
                    _copy_entry(entry, os.path.join(destination, below))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise SandboxUnavailableError(
            "the workspace has to be copied, and is larger than fs.size_mb or has more files than fs.inodes",
            hint="raise them (`--set fs.size_mb=4g --set fs.inodes=1000000`), or choose a smaller workspace",
        ) from error
    kernel.mount(destination, target, None, kernel.MS_BIND)
    staged.copied.append(index)


def _copy_entry(entry: os.DirEntry[str], destination: str) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), destination)
        return
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        return
    try:
        source = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return
    copy = os.open(destination, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, status.st_mode & 0o777)
    try:
        while chunk := os.read(source, 1 << 20):
            write_all(copy, chunk)
    finally:
        os.close(source)
        os.close(copy)
    os.utime(destination, ns=(status.st_atime_ns, status.st_mtime_ns))
