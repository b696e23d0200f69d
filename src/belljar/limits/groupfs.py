"""The files of a control group, reached through directory descriptors only.

The stage works behind a mount namespace in which /sys is covered, and with a kernel uid of its own: all that it has are
descriptors that the launcher opened. So no function here takes an absolute path, and each error names its file.
"""

from __future__ import annotations

import errno
import os
import time

from belljar.errors import SandboxUnavailableError

_READ_LIMIT = 1 << 14  # more, and the memory for it is a mapping of its own each time
_WRITING = os.O_WRONLY | os.O_CLOEXEC
FREEZER_STATE = "freezer.state"


def open_directory(path: str, *, dir_fd: int | None = None) -> int:
    """A close-on-exec descriptor of a group's directory, never through a link."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)


def describe(directory: int) -> str:
    """The directory's path as the kernel tells it, for messages only."""
    try:
        return os.readlink(f"/proc/self/fd/{directory}")
    except OSError:
        return f"<descriptor {directory}>"


def write(directory: int, name: str, value: str) -> None:
    """Write one value to one file of a group.

    Raises:
        SandboxUnavailableError: the kernel refused; the message names file, value and reason, `__cause__` is it.
    """
    try:
        descriptor = os.open(name, _WRITING, dir_fd=directory)
    except OSError as error:
        raise _refused(directory, name, value, error) from error
    _put(descriptor, directory, name, value)


def write_if_present(directory: int, name: str, value: str) -> bool:
    """Like `write`, for a file that some kernels don't have; False when there is no such file."""
    try:
        descriptor = os.open(name, _WRITING, dir_fd=directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refused(directory, name, value, error) from error
    _put(descriptor, directory, name, value)
    return True


def _put(descriptor: int, directory: int, name: str, value: str) -> None:
    """Write to the open file, which is closed then."""
    try:
        os.write(descriptor, value.encode())
    except OSError as error:
        raise _refused(directory, name, value, error) from error
    finally:
        os.close(descriptor)


def _refused(directory: int, name: str, value: str, error: OSError) -> SandboxUnavailableError:
    where = f"{describe(directory)}/{name}"
    return SandboxUnavailableError(f"can't write {value!r} to {where}: {error.strerror}")


def exists(directory: int, name: str) -> bool:
    """Whether the group has such a file."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read(directory: int, name: str) -> str:
    """The whole text of one file of a group; raises OSError as it comes."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        parts = []
        while part := os.read(descriptor, _READ_LIMIT):
            parts.append(part)
        return b"".join(parts).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def read_number(directory: int, name: str) -> int | None:
    """A file that holds one number; None when this kernel lacks the file or it holds a word such as `max`."""
    try:
        return int(read(directory, name))
    except (OSError, ValueError):
        return None


def flat_keyed(text: str) -> dict[str, int]:
    """The kernel's `KEY VALUE` lines as numbers; lines that are anything else are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def read_keyed(directory: int, name: str) -> dict[str, int]:
    """A flat keyed file; empty when this kernel lacks it."""
    try:
        return flat_keyed(read(directory, name))
    except OSError:
        return {}


def children(directory: int) -> list[str]:
    """The names of the groups directly inside; empty when the group itself is gone."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def gone(error: OSError) -> bool:
    """Whether this is how a group that was removed under our descriptor answers."""
    return error.errno in (errno.ENOENT, errno.ENODEV)


def pids(directory: int) -> set[int]:
    """The processes that are in the group itself now; none when the group is gone."""
    try:
        return {int(line) for line in read(directory, "cgroup.procs").split()}
    except OSError as error:
        if gone(error):
            return set()
        raise


def pids_below(directory: int) -> set[int]:
    """The processes of the group and of every group inside it."""
    found = pids(directory)
    for child in children(directory):
        try:
            descriptor = open_directory(child, dir_fd=directory)
        except FileNotFoundError:
            continue
        try:
            found |= pids_below(descriptor)
        finally:
            os.close(descriptor)
    return found


def thaw_below(directory: int) -> None:
    """v1: let everything in the groups inside go on. A process that is frozen there does not die of a signal."""
    for name in children(directory):
        try:
            child = open_directory(name, dir_fd=directory)
        except FileNotFoundError:
            continue
        try:
            write_if_present(child, FREEZER_STATE, "THAWED")
        finally:
            os.close(child)


def remove_directory(parent: int, name: str, *, deadline: float) -> None:
    """Remove one empty group and verify that it is gone.

    A group whose last process has just died can answer EBUSY for a moment: it is asked again until `deadline` (of
    `time.monotonic`). One that is gone already is no error.

    Raises:
        SandboxUnavailableError: it is still there at the deadline, or the kernel refused for another reason.
    """
    pause = 0.0002
    while True:
        try:
            os.rmdir(name, dir_fd=parent)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                raise SandboxUnavailableError(
                    f"can't remove the control group {describe(parent)}/{name}: {error.strerror}",
                    hint=f"see which processes are in it: cat {describe(parent)}/{name}/cgroup.procs",
                ) from error
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def remove_tree(parent: int, name: str, *, deadline: float) -> None:
    """Remove a group and the groups inside it, leaves first; the processes must be dead already."""
    try:
        directory = open_directory(name, dir_fd=parent)
    except FileNotFoundError:
        return
    try:
        for child in children(directory):
            remove_tree(directory, child, deadline=deadline)
    finally:
        os.close(directory)
    remove_directory(parent, name, deadline=deadline)
