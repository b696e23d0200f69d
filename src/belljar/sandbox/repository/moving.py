"""The user's own branches, tags and index, moved after a yes. The index is rebuilt by git, never taken from the jar."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator

from belljar.sandbox.repository.host_git import GitError, HostGit
from belljar.sandbox.repository.receiving import update_refs

_LOCK_SECONDS = 10.0
_MOST_MERGED = 1 << 16
EMPTY_TREE = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The empty tree, which git knows without having it."""
_BRANCH = re.compile(r"^branch (refs/heads/.*)$", re.MULTILINE)


def head_of(git: HostGit) -> str:
    """Return the branch that is checked out, or the commit if none is."""
    head = git.try_run("symbolic-ref", "-q", "HEAD")
    return (head or git.run("rev-parse", "--verify", "HEAD")).decode("utf-8", "surrogateescape").strip()


def head_id(git: HostGit) -> str | None:
    """Return the commit that is checked out; None on a branch without one."""
    found = git.try_run("rev-parse", "--verify", "--quiet", "HEAD")
    return found.decode().strip() if found else None


def is_ancestor(git: HostGit, old: str, new: str) -> bool:
    """Return True if `new` has `old` in its history."""
    return git.try_run("merge-base", "--is-ancestor", old, new) is not None


def checked_out_elsewhere(git: HostGit) -> set[str]:
    """Return the branches that other worktrees have checked out."""
    listed = (git.try_run("worktree", "list", "--porcelain") or b"").decode("utf-8", "surrogateescape")
    return set(_BRANCH.findall(listed)) - {head_of(git)}


def merging(git: HostGit) -> list[str]:
    """Return the commits that a merge in progress brings in; none if there is no such merge."""
    try:
        with open(os.path.join(git.directory, "MERGE_HEAD"), encoding="ascii", errors="replace") as file:
            return file.read(_MOST_MERGED).split()
    except OSError:
        return []


def finishes_merge(git: HostGit, new: str) -> bool:
    """Return True if no merge is in progress, or if `new` has what is being merged in its history."""
    return all(is_ancestor(git, one, new) for one in merging(git))


def end_merge(git: HostGit) -> None:
    """Have git forget a merge in progress that a commit finished. Files and index stay."""
    if merging(git):
        git.try_run("-C", git.top, "merge", "--quit")


def move_head(
    git: HostGit, old: str | None, new: str, message: str, *, started: bytes, branch: str | None = None
) -> None:
    """Move what is checked out from one commit to another, and the index with it. Files are not touched.

    What the user has staged stays staged, but for paths that the agent saw staged and committed otherwise.

    Args:
        git: the repository.
        old: the commit that is checked out; None on a branch without one.
        new: the commit to move to.
        message: for the reflog.
        started: the index that the agent was given.
        branch: a branch to have checked out from now on, which has to be at `new`; the same as before if None.

    Raises:
        GitError: what is staged and what is new are in each other's way, or someone else moved it. Then nothing moved.
    """
    with _rebuilt_index(git, old or EMPTY_TREE[len(new)], new, started) as put:
        if branch is not None:
            git.run("symbolic-ref", "-m", message, "HEAD", branch)
        else:
            head = head_of(git)
            name = head if head.startswith("refs/") else "HEAD"
            update_refs(git, {name: (old, new)}, message)
        put()


@contextlib.contextmanager
def _rebuilt_index(git: HostGit, old: str, new: str, started: bytes) -> Iterator[Callable[[], None]]:
    """Prepare the index for another commit, and lock it. What is yielded puts the new one into its place.

    The lock is held for as long as a ref takes to move, so that an editor which asks for the status is not stopped.
    """
    index, lock = (os.path.join(git.directory, name) for name in ("index", "index.lock"))
    fresh = os.path.join(git.directory, f"index.belljar-{os.urandom(6).hex()}")
    until = time.monotonic() + _LOCK_SECONDS
    try:
        while True:
            before = _signature(index)
            _prepare(git, index, fresh, old, new, started)
            if _take(fresh, lock):
                if _signature(index) == before:
                    break
                os.unlink(lock)  # the index was written meanwhile: again, with that one
            if time.monotonic() > until:
                raise GitError(f"{lock} exists: another git writes the index", hint="wait for it, and try again")
            time.sleep(0.02)
        try:
            yield lambda: os.replace(lock, index)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock)
    except OSError as error:
        raise GitError(f"{index}: {error.strerror or error}") from error
    finally:
        for left in (fresh, f"{fresh}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)


def _prepare(git: HostGit, index: str, fresh: str, old: str, new: str, started: bytes) -> None:  # noqa: PLR0917
    """Write an index that is `index` with the step from one tree to the other. Looks at no file of the work tree."""
    try:
        with open(index, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        content = b""
    env = {"GIT_INDEX_FILE": fresh, "GIT_WORK_TREE": git.top}
    _write(git, fresh, content)
    try:
        git.run("-c", "core.splitIndex=false", "read-tree", "-i", "-m", old, new, env=env)
    except GitError:
        if not _same_entries(git, fresh, content, started):
            raise
        _write(git, fresh, content)
        git.run("-c", "core.splitIndex=false", "update-index", "-z", "--index-info", data=_step(git, old, new), env=env)


def _same_entries(git: HostGit, fresh: str, content: bytes, started: bytes) -> bool:
    """Return True if the same is staged as when the agent started."""
    listed = []
    for one in (content, started):
        _write(git, fresh, one)
        listed.append(git.run("ls-files", "--stage", "-z", env={"GIT_INDEX_FILE": fresh}))
    return listed[0] == listed[1]


def _step(git: HostGit, old: str, new: str) -> bytes:
    """Return the entries of an index that differ between two commits, as `update-index --index-info` reads them."""
    fields = git.run("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", old, new).split(b"\0")
    entries = [
        b"%s %s\t%s\0" % (*meta.split(b" ")[1:4:2], path) for meta, path in zip(fields[::2], fields[1::2], strict=False)
    ]
    return b"".join(entries)


def _write(git: HostGit, path: str, content: bytes) -> None:
    """Write a file of the repository anew, for its owner; no file if there is no content."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    if not content:
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "wb") as file:
        file.write(content)
        if os.geteuid() == 0:
            owner = os.stat(git.directory)
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)


def _take(fresh: str, lock: str) -> bool:
    try:
        os.link(fresh, lock)
    except FileExistsError:
        return False
    return True


def _signature(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
