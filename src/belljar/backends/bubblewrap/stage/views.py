"""The policy's mounts, made in the stage: empty, read-only, copy-on-write, live, or copied.

Runs in the stage, as the jar's user, who can read what the person who started belljar can. What lies in a directory of
the host's may be anyone's: no link in it is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from belljar.backends import kernel
from belljar.backends.bubblewrap.shared import layout
from belljar.backends.bubblewrap.shared.stage_plan import TOO_MANY_NAMES, MountView, RuntimeTree, StagePlan, ViewKind
from belljar.backends.bubblewrap.shared.wire import write_all
from belljar.backends.bubblewrap.stage.jar_root import CLOSED, create
from belljar.errors import SandboxUnavailableError

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from belljar.backends.bubblewrap.stage.whiteout import Whiteouts
    from belljar.backends.denied_walk import Denied
    from belljar.backends.remembered_listings import Remembered
    from belljar.policy.globs import DenyGlobs

QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
_MAX_LIVE_MASKS = 500


def import_denying() -> None:
    """What views of the host's directories need, for a stage that can import nothing later."""
    import re  # noqa: F401 - what patterns are made of, when one is asked for

    import belljar.backends.bubblewrap.stage.deny_watch
    import belljar.backends.bubblewrap.stage.frozen
    import belljar.backends.bubblewrap.stage.whiteout
    import belljar.backends.remembered_listings  # noqa: F401


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
        self.remembered: Remembered | None = None
        """What an earlier opening saw of the sources."""


def make_view(index: int, view: MountView, plan: StagePlan, staged: Staged) -> None:
    """Mount one view in the jar's root, with the restrictions that it has there."""
    if view.source is None:
        with _mount_point(view) as target:
            kernel.mount(_plain_directory(index), target, None, kernel.MS_BIND)
    elif not os.path.isdir(root := layout.source(view.source)):
        with _mount_point(view, directory=False) as target:
            kernel.mount(root, target, None, kernel.MS_BIND)
    else:
        with _mount_point(view) as target:
            _make_directory_view(index, view, target, plan, staged)
    restrictions = CLOSED if not view.writable else kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
    mounted = open_inside(view.jar_path)
    kernel.restrict(f"/proc/self/fd/{mounted}", restrictions, recursive=True)
    os.close(mounted)


def make_runtime(index: int, tree: RuntimeTree, plan: StagePlan, staged: Staged) -> None:
    """Put together what jars show of an interpreter's directory, read-only. Nothing else of that directory is there.

    A virtual environment is a view like other mounts: no denied name shows, and none that the host makes later. In
    other directories the names are hidden that the host found.
    """
    top = layout.runtime(index)
    os.mkdir(top, 0o755)
    kernel.mount(top, top, None, kernel.MS_BIND)
    for name, link in tree.links:
        os.makedirs(os.path.dirname(f"{top}/{name}"), exist_ok=True)
        os.symlink(link, f"{top}/{name}")
    for number, (name, source) in enumerate(tree.parts):
        view = MountView(ViewKind.READONLY, f"{tree.path}/{name}", writable=False, source=source)
        root, target = layout.source(source), f"{top}/{name}"
        if name in tree.hidden or (tree.searched and _is_denied(view, plan)):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.isdir(root):
            create(target)
            kernel.mount(root, target, None, kernel.MS_BIND)
            continue
        os.mkdir(target, 0o755)
        layer = f"runtime-{index}-{number}"
        if tree.searched:
            lower = _of_environment(layer, view, plan, staged)
        else:
            below = [path.removeprefix(f"{name}/") for path in tree.hidden if path.startswith(f"{name}/")]
            lower = _without(layer, view, plan, below)
        _mount_readonly(lower, root, target)
    kernel.restrict(top, CLOSED, recursive=True)


def _of_environment(name: str, view: MountView, plan: StagePlan, staged: Staged) -> str:
    """Return the layers of a part of a virtual environment, as overlayfs' option; empty if no name needs hiding.

    Where names can't be frozen, only those that are denied now are hidden. An environment may have 50,000 names, and
    to cover those that do not exist yet would take as long as everything else together.
    """
    assert view.source is not None
    host_path = plan.sources[view.source].path
    globs, denied = _globs(view, plan, host_path), _denied_in(view, plan, staged)
    if plan.freezes and plan.deny_globs:
        if lower := _frozen(name, view, host_path, globs, denied):
            return lower
        staged.shortfalls.append(("fs.deny_globs", f"{host_path}: {TOO_MANY_NAMES}"))
    return _without(name, view, plan, denied.paths)


def _without(name: str, view: MountView, plan: StagePlan, paths: list[str]) -> str:
    """Return the layers of a directory without these names, as overlayfs' option; empty if there are none."""
    if not paths:
        return ""
    from belljar.backends.denied_walk import Denied

    denied = Denied()
    denied.paths = paths
    return _whited_out(name, view, plan, denied)[1]


def _is_denied(view: MountView, plan: StagePlan) -> bool:
    from belljar.policy.globs import DenyGlobs

    directory, name = os.path.split(view.jar_path)
    globs = DenyGlobs(plan.deny_globs).within(directory, directory)
    return globs.may_end_at(name) and globs.match(view.jar_path) is not None


def open_inside(path: str, flags: int = os.O_PATH) -> int:
    """Open the jar's `path` in the stage, through no link: what lies in a workspace may be anyone's."""
    root = os.open(layout.ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rules = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
        return kernel.openat2(root, path.lstrip("/") or ".", flags, resolve=rules)
    finally:
        os.close(root)


@contextlib.contextmanager
def _mount_point(view: MountView, *, directory: bool = True) -> Iterator[str]:
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


def _globs(view: MountView, plan: StagePlan, host_path: str) -> DenyGlobs:
    from belljar.policy.globs import DenyGlobs

    return DenyGlobs(plan.deny_globs).within(host_path, view.jar_path)


def _denied_in(view: MountView, plan: StagePlan, staged: Staged) -> Denied:
    """Look for what is denied in a source, in directories that have changed since an earlier opening saw them."""
    from belljar.backends.denied_walk import find_denied

    assert view.source is not None
    root, host_path = layout.source(view.source), plan.sources[view.source].path
    above = f"{view.jar_path}/"
    covered = {one.jar_path.removeprefix(above) for one in plan.views if one.jar_path.startswith(above)}
    globs, remembered = _globs(view, plan, host_path), staged.remembered
    try:
        if remembered is None:
            return find_denied(root, host_path, view.jar_path, globs, covered=covered)
        from belljar.backends.remembered_listings import key_of

        key = key_of(host_path, view.jar_path, plan.deny_globs)
        known = remembered.listings(key, root)
        found = find_denied(root, host_path, view.jar_path, globs, known=known, covered=covered)
        remembered.keep(key, root, found)
        return found
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise SandboxUnavailableError(
            f"{host_path} has directories so deep that their paths are longer than the kernel takes",
            hint="remove them: what can't be named can't be looked through for denied files",
        ) from error


def _make_directory_view(index: int, view: MountView, target: str, plan: StagePlan, staged: Staged) -> None:
    assert view.source is not None
    root = layout.source(view.source)
    found = _denied_in(view, plan, staged)
    if view.kind is ViewKind.LIVE:
        kernel.mount(root, target, None, kernel.MS_BIND | kernel.MS_REC)
        _mask_live(view.jar_path, found, staged)
        return
    if plan.snapshot:
        _copy(index, view, plan, found, staged)
        return
    lower = _lower_layers(str(index), view, plan, found, staged)
    if view.kind is ViewKind.READONLY:
        # Without anything denied there is a layer as well: a socket behind overlayfs is nobody's.
        _mount_readonly(lower or _whited_out(str(index), view, plan, found)[1], root, target)
    elif not _copy_on_write_works() or not _mount_cow(index, lower or f"lowerdir={root}", root, target):
        _copy(index, view, plan, found, staged)


def _plain_directory(index: int) -> str:
    path = f"{layout.PLAIN}/{index}"
    os.mkdir(path, 0o755)
    return path


def _lower_layers(name: str, view: MountView, plan: StagePlan, found: Denied, staged: Staged) -> str:
    """What overlayfs is to show, as its option; empty if nothing in the directory is denied, now or later."""
    from belljar.backends.bubblewrap.stage.whiteout import names_to_deny

    assert view.source is not None
    host_path = plan.sources[view.source].path
    globs = _globs(view, plan, host_path)
    if not found.paths and not globs.has_wildcards() and not names_to_deny(globs):
        return ""
    if plan.freezes:
        if lower := _frozen(name, view, host_path, globs, found):
            return lower
        staged.shortfalls.append(("fs.deny_globs", f"{host_path}: {TOO_MANY_NAMES}"))
    whiteouts, lower = _whited_out(name, view, plan, found)
    if not whiteouts.complete:
        lost = f"{host_path} has too many directories: a denied name that appears later deep in it would show"
        staged.shortfalls.append(("fs.deny_globs", lost))
    staged.whiteouts.append((whiteouts, layout.source(view.source)))
    return lower


def _whited_out(name: str, view: MountView, plan: StagePlan, found: Denied) -> tuple[Whiteouts, str]:
    """A layer of whiteouts for what was found, and overlayfs' option for both layers."""
    from belljar.backends.bubblewrap.stage.whiteout import Whiteouts

    assert view.source is not None
    root, host_path, layer = layout.source(view.source), plan.sources[view.source].path, f"{layout.MASKS}/{name}"
    os.mkdir(layer)
    os.chmod(layer, stat.S_IMODE(os.stat(root).st_mode) & 0o777 | 0o500)
    whiteouts = Whiteouts(layer, root, host_path, view.jar_path, _globs(view, plan, host_path))
    whiteouts.build(found)
    return whiteouts, f"lowerdir={layer}:{root}"


def _frozen(name: str, view: MountView, host_path: str, globs: DenyGlobs, found: Denied) -> str:
    """With the names that are there now, and no others; empty if the kernel can't, or there are too many of them."""
    from belljar.backends.bubblewrap.stage import frozen

    assert view.source is not None
    root, layer = layout.source(view.source), f"{layout.MASKS}/{name}-names"

    def denies(below: str) -> bool:
        last = below.rpartition("/")[2]
        return globs.may_end_at(last) and globs.denies(f"{host_path}/{below}", f"{view.jar_path}/{below}") is not None

    if not frozen.freezing_works():
        return ""
    os.mkdir(layer)
    try:
        frozen.freeze(layer, root, found, denies)
    except frozen.TooManyNamesError:
        return ""
    return frozen.lower_options(layer, root)


def _mount_readonly(lower: str, root: str, target: str) -> None:
    if not lower:
        kernel.mount(root, target, None, kernel.MS_BIND | kernel.MS_REC)
        return
    kernel.mount("overlay", target, "overlay", QUIET | kernel.MS_RDONLY, f"{lower},userxattr")


def _overlay_options(lower: str, name: str) -> str:
    upper, work = f"{layout.UPPER}/{name}", f"{layout.WORK}/{name}"
    os.mkdir(upper, 0o755)
    os.mkdir(work, 0o755)
    return f"{lower},upperdir={upper},workdir={work},userxattr"


def _mount_cow(index: int, lower: str, root: str, target: str) -> bool:
    options = _overlay_options(lower, str(index))
    os.chmod(f"{layout.UPPER}/{index}", stat.S_IMODE(os.stat(root).st_mode) & 0o777 | 0o700)
    try:
        kernel.mount("overlay", target, "overlay", QUIET, options)
    except OSError:
        return False
    return True


def _copy_on_write_works() -> bool:
    """Judge by behaviour: on Linux 6.1 the mount succeeds, and then removing a directory of the lower layer fails."""
    lower, target = f"{layout.MASKS}/probe", f"{layout.SCRATCH}/probe"
    if os.path.exists(target):
        return not os.path.exists(f"{layout.SCRATCH}/broken")
    os.makedirs(f"{lower}/directory")
    create(f"{lower}/file")
    os.mkdir(target)
    mounted = False
    try:
        kernel.mount("overlay", target, "overlay", QUIET, _overlay_options(f"lowerdir={lower}", "probe"))
        mounted = True
        os.rmdir(f"{target}/directory")
        os.mkdir(f"{target}/directory")
        os.rename(f"{target}/file", f"{target}/renamed")
    except OSError:
        create(f"{layout.SCRATCH}/broken")
        return False
    else:
        return True
    finally:
        if mounted:
            kernel.unmount(target)


def _mask_live(jar_path: str, found: Denied, staged: Staged) -> None:
    """The best that a directory shared for writing allows: cover what is there now. The report calls it degraded.

    The host's sockets and named pipes are covered too: the code could talk to whoever listens there.
    """
    closed_file, closed_directory = f"{layout.TRUSTED}/closed-file", f"{layout.TRUSTED}/closed-directory"
    if not os.path.exists(closed_file):
        create(closed_file)
        os.chmod(closed_file, 0)
        os.mkdir(closed_directory, 0)
    hidden = [*found.paths, *found.sockets]
    if len(hidden) > _MAX_LIVE_MASKS:
        raise SandboxUnavailableError(
            f"{len(hidden)} denied files, sockets and pipes in the live directory: {_MAX_LIVE_MASKS} can be covered",
            hint="leave out --live: the code then works on a copy-on-write view, which has no such limit",
        )
    for path in hidden:
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
        kernel.restrict(f"/proc/self/fd/{cover_fd}", CLOSED, recursive=False)
        os.close(cover_fd)
        staged.covered.append(f"{jar_path}/{path}")


def _copy(index: int, view: MountView, plan: StagePlan, found: Denied, staged: Staged) -> None:
    """For a snapshot, or copy-on-write without overlayfs. Bounded by the quota that the copy is written to."""
    assert view.source is not None
    destination, host_path = _plain_directory(index), plan.sources[view.source].path
    globs = _globs(view, plan, host_path)
    denied = set(found.paths)
    root = os.open(layout.source(view.source), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for directory in found.directories:
            os.makedirs(os.path.join(destination, directory), exist_ok=True)
            for name, opened in _listed(root, directory):
                below = f"{directory}/{name}" if directory else name
                # Judged again: it may have been made since the walk.
                if below not in denied and globs.denies(f"{host_path}/{below}", f"{view.jar_path}/{below}") is None:
                    _copy_entry(opened, name, os.path.join(destination, below))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise SandboxUnavailableError(
            "the workspace has to be copied, and is larger than fs.size_mb or has more files than fs.inodes",
            hint="raise them (`--set fs.size_mb=4g --set fs.inodes=1000000`), or choose a smaller workspace",
        ) from error
    finally:
        os.close(root)
    mount_point = open_inside(view.jar_path)
    kernel.mount(destination, f"/proc/self/fd/{mount_point}", None, kernel.MS_BIND)
    os.close(mount_point)
    staged.copied.append(index)


def _listed(root: int, directory: str) -> Iterator[tuple[str, int]]:
    """The names in a directory, each with the directory's descriptor: reached through no link, skipped if closed."""
    rules = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
    try:
        opened = kernel.openat2(root, directory or ".", os.O_RDONLY | os.O_DIRECTORY, resolve=rules)
    except OSError:
        return
    try:
        for name in os.listdir(opened):
            yield name, opened
    finally:
        os.close(opened)


def _copy_entry(directory: int, name: str, destination: str) -> None:
    try:
        status = os.lstat(name, dir_fd=directory)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=directory), destination)
            return
        if not stat.S_ISREG(status.st_mode):
            return
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except (PermissionError, FileNotFoundError):  # closed to the jar's user too, or gone
        return
    copy = os.open(destination, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, status.st_mode & 0o777)
    try:
        while chunk := os.read(source, 1 << 20):
            write_all(copy, chunk)
    finally:
        os.close(source)
        os.close(copy)
    os.utime(destination, ns=(status.st_atime_ns, status.st_mtime_ns))
