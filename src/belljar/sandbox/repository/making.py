"""The repository that a jar gets in the place of the host's: its own refs, index and settings, the host's objects.

It is an empty directory of the jar's, mounted where git looks for the host's `.git`, and filled before the agent
starts. The host's objects are mounted read-only beside it and named as alternates. The host's `.git` is not in the jar.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from belljar.policy.keys.units import counted
from belljar.sandbox.repository.host_git import GitError, HostGit, settings_of
from belljar.sandbox.repository.recent_entries import mark_recent
from belljar.sandbox.repository.settings import jar_settings, object_format, unknown_extension

OBJECTS = "/repository-objects"
"""Where a jar has the host's objects; a number follows."""
ELSEWHERE = "/repository.git"
"""Where a jar has its repository if the project is a worktree, in which `.git` is a file."""
_MERGE = ("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE")
"""A merge that is in progress: ids, and texts."""
_COPIED = ("info/exclude", "info/attributes", "info/sparse-checkout", "shallow")
_MOST_BYTES = 256 << 20
_LONGEST_LINE = 4096
_MOST_SUBMODULES = 100
_NOT_SHOWN = ("refs/belljar/", "refs/replace/", "refs/stash")
"""Refs of the host's that the jar has no use for."""
_NO_FILTER = (b"unspecified", b"unset", b"set", b"")
_BY_TIME_AND_SIZE = b"[core]\n\tcheckstat = minimal\n\ttrustctime = false\n"
"""Files have other inodes, owners and ctimes in the jar. Git would read all of them again for that."""
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, eq=False)
class JarRepository:
    """One repository of the host's, and the jar's repository that stands for it."""

    git: HostGit
    place: str
    """Where the jar's repository lies, beneath its mount: empty, or `modules/NAME` for a submodule."""
    path: str
    """The top of its work tree, relative to the project's repository: empty for the project itself."""
    number: int
    head: str
    """The branch that was checked out (`refs/heads/main`), or the id of a commit."""
    refs: Mapping[str, str]
    """Every ref of the host at the start, with its id."""
    format: str
    """`sha1` or `sha256`."""
    shallow: bytes
    index: bytes = b""
    """The host's index at the start."""
    prefix: str = ""
    """The project's directory, from the top of the repository's work tree: ends in a slash, or is empty."""
    partial: bool = False
    """Whether objects are missing that git would fetch."""
    filtered: int = 0
    """Files that git passes through a program, such as those of LFS. Git in the jar takes them as unchanged."""

    @property
    def objects(self) -> str:
        """Where the jar has the host's objects."""
        return f"{OBJECTS}/{self.number}"

    @cached_property
    def remotes(self) -> frozenset[str]:
        """Directories of the host's remote-tracking refs, as `refs/remotes/origin`."""
        found = set()
        for name in self.refs:
            while name.startswith("refs/remotes/"):
                name = name.rpartition("/")[0]  # noqa: PLW2901 - the one above
                found.add(name)
        return frozenset(found)


@dataclass(frozen=True)
class JarRepositories:
    """The project's repository and those of its submodules, as the jar has them."""

    mount: str
    """Where the project's is mounted in the jar; empty if the project is in no repository."""
    all: tuple[JarRepository, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What the jar's directory holds at first, by path beneath the mount."""
    links: Mapping[str, bytes] = field(default_factory=dict)
    """Files `.git` that the jar has in the place of the host's, by path beneath the project, for a worktree."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Submodules whose repository is not in the jar; for each the place of an empty directory that hides the host's."""
    problem: str = ""
    """Why the jar has no repository, although the project has one."""
    left_out: tuple[str, ...] = ()
    """Submodules whose repository could not be read, or was one too many."""

    @property
    def mounts(self) -> list[dict[str, Any]]:
        """The mounts, in the form of the policy's file."""
        if not self.mount:
            return []
        objects = [{"path": one.objects, "source": one.git.objects} for one in self.all]
        return [
            {"path": self.mount, "rw": True},
            *objects,
            *({"path": path, "rw": True} for path in self.hidden.values()),
        ]

    @property
    def variables(self) -> dict[str, str]:
        """What git in the jar has to be told: a repository above the project lies in another mount; fetch nothing."""
        found = {"GIT_DISCOVERY_ACROSS_FILESYSTEM": "1"} if any(one.prefix for one in self.all) else {}
        return {**found, "GIT_NO_LAZY_FETCH": "1"} if any(one.partial for one in self.all) else found

    @property
    def told(self) -> list[str]:
        """What the user should hear before the agent starts."""
        found = []
        for one in self.all:
            where = f"{one.path}: " if one.path else ""
            if one.partial:
                whole = "`git fetch --refetch --filter=blob:limit=1g` gets the rest"
                found.append(
                    f"{where}a partial clone: git in the jar fetches nothing, so old files are missing; {whole}"
                )
            if one.filtered:
                count = counted(one.filtered, "file")
                found.append(f"{where}git in the jar takes {count} as unchanged, for passing a filter such as LFS")
        return found


NO_REPOSITORY = JarRepositories("")


def jar_repositories(project: str, jar_project: str) -> JarRepositories:
    """Make the jar's repositories for a project. Reads the host's; changes and starts nothing.

    Args:
        project: the project's real path on the host.
        jar_project: the project's path in the jar.
    """
    try:
        found = _found(project, jar_project)
    except _UnknownRepositoryError as unknown:
        return JarRepositories(unknown.mount, problem=str(unknown))
    if found is None:
        return NO_REPOSITORY
    git, mount, prefix = found
    linked = mount == ELSEWHERE
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    try:
        found_all = tuple(_with_submodules(git, files, prefix, jar_project, left_out))
    except (GitError, OSError) as error:
        return JarRepositories(mount, problem=f"the repository could not be read: {error}")
    links = {f"{one.path}/.git".lstrip("/"): f"gitdir: {mount}/{one.place}\n".encode() for one in found_all}
    if not linked:
        links = {}
    hidden = {} if prefix else {path: f"{jar_project}/{path}/.git" for path in _embedded(git)}
    absent = [] if prefix else _absent(git, {one.path for one in found_all})
    for number, path in enumerate(absent):  # a `.git` that leads to nothing stops git in the project, too
        place = f"absent/{number}"
        links[f"{path}/.git"] = f"gitdir: {mount}/{place}\n".encode("utf-8", "surrogateescape")
        files |= {f"{place}/HEAD": b"ref: refs/heads/absent\n", f"{place}/config": b"[core]\n\tbare = false\n"}
        files |= {f"{place}/objects/.keep": b"", f"{place}/refs/heads/.keep": b""}
    left_out += [path for path in absent if path not in left_out]
    return JarRepositories(mount, found_all, files, links, hidden, left_out=tuple(left_out))


class _UnknownRepositoryError(Exception):
    """There is a repository that belljar does not know how to show; the jar gets an empty directory in its place."""

    def __init__(self, mount: str, why: str) -> None:
        super().__init__(why)
        self.mount = mount


def _found(project: str, jar_project: str) -> tuple[HostGit, str, str] | None:
    """Find the repository of a project: itself, where the jar's is to be mounted, and the project's place in it."""
    top, jar_top = project, jar_project
    while not os.path.lexists(os.path.join(top, ".git")):
        # Above the project: the jar's path has to lead to the same names, for git to see what is in which directory.
        name = os.path.basename(top)
        if top == "/" or os.path.basename(jar_top) != name or os.path.dirname(jar_top) == "/":
            return None
        top, jar_top = os.path.dirname(top), os.path.dirname(jar_top)
    prefix = "" if top == project else f"{os.path.relpath(project, top)}/"
    link, jar_link = os.path.join(top, ".git"), os.path.join(jar_top, ".git")
    if os.path.islink(link):
        return None
    if os.path.isdir(link):
        directory = common = link
        if os.path.lexists(os.path.join(link, "commondir")):
            raise _UnknownRepositoryError(jar_link, f"{link} says that its repository lies elsewhere")
    else:
        worktree = _worktree(link)
        if worktree is None:
            return None  # the file names nothing that the jar has, so git finds no repository
        directory, common = worktree
        jar_link = jar_link if prefix else ELSEWHERE
    why = _unusable(common)
    if why:
        raise _UnknownRepositoryError(jar_link, why)
    return HostGit(directory, common, top), jar_link, prefix


def _worktree(link: str) -> tuple[str, str] | None:
    """Return the directories of a worktree, its own and the repository's.

    Whoever brought the project could have written any name into the file `.git`. So it counts only if that repository
    says the same from its side.
    """
    text = _line(link)
    named = text.removeprefix("gitdir:").strip()
    own = os.path.realpath(os.path.join(os.path.dirname(link), named))
    back = _line(os.path.join(own, "gitdir"))
    if (
        not text.startswith("gitdir:")
        or not back
        or os.path.realpath(os.path.join(own, back)) != os.path.realpath(link)
    ):
        return None
    common = os.path.realpath(os.path.join(own, _line(os.path.join(own, "commondir"))))
    if os.path.dirname(own) != os.path.join(common, "worktrees"):
        return None
    return own, common


def _unusable(common: str) -> str:
    """Return why a repository can't be shown; empty if it can."""
    for name in ("HEAD", "objects", "refs"):
        path = os.path.join(common, name)
        if os.path.islink(path) or not os.path.exists(path):
            return f"{path} is missing, or is a link"
    alternates = os.path.join(common, "objects/info/alternates")
    if os.path.lexists(alternates) and (os.path.islink(alternates) or os.stat(alternates).st_size):
        makes_whole = "git repack -ad && rm .git/objects/info/alternates"
        return f"{common} borrows objects from another repository; `{makes_whole}` makes it whole"
    return ""


def _with_submodules(
    git: HostGit, files: dict[str, bytes], prefix: str, jar_project: str, left_out: list[str]
) -> Iterator[JarRepository]:
    """Describe a repository, and then those of its submodules, each with its files added to `files`.

    The paths of submodules that can't be shown are added to `left_out`.
    """
    yield _described(git, files, place="", path="", number=0, prefix=prefix)
    if prefix:
        return
    for number, (sub, path) in enumerate(_submodules(git, ""), 1):
        if number > _MOST_SUBMODULES:
            left_out.append(path)
            continue
        place = os.path.relpath(sub.directory, git.directory)
        try:
            added: dict[str, bytes] = {}
            described = _described(sub, added, place=place, path=path, number=number, prefix="")
        except (GitError, OSError):
            left_out.append(path)
            continue
        added[f"{place}/config"] += f'[core]\n\tworktree = "{jar_project}/{path}"\n'.encode("utf-8", "surrogateescape")
        files |= added
        yield described


def _gitlinks(git: HostGit) -> Iterator[str]:
    """Find the paths that are submodules, in the index."""
    if os.path.lexists(os.path.join(git.top, ".gitmodules")):
        for item in git.run("ls-files", "--stage", "-z").split(b"\0"):
            if item.startswith(b"160000 "):
                yield os.fsdecode(item.partition(b"\t")[2])


def _submodules(git: HostGit, above: str) -> Iterator[tuple[HostGit, str]]:
    """Find the submodules that are checked out and have their repository in that of the project, and theirs."""
    for name in _gitlinks(git):
        link = os.path.join(git.top, name, ".git")
        text = _line(link) if os.path.isfile(link) and not os.path.islink(link) else ""
        directory = os.path.realpath(os.path.join(os.path.dirname(link), text.removeprefix("gitdir:").strip()))
        inside = directory.startswith(f"{os.path.realpath(git.directory)}/modules/")
        if not text.startswith("gitdir:") or not inside or _unusable(directory):
            continue
        if not os.path.lexists(os.path.join(directory, "commondir")):
            sub = HostGit(directory, directory, os.path.join(git.top, name))
            yield sub, f"{above}{name}"
            yield from _submodules(sub, f"{above}{name}/")


def _embedded(git: HostGit) -> list[str]:
    """Find the submodules whose `.git` is a directory of its own."""
    try:
        return [name for name in _gitlinks(git) if os.path.isdir(os.path.join(git.top, name, ".git"))]
    except GitError:
        return []


def _absent(git: HostGit, shown: Collection[str]) -> list[str]:
    """Find the submodules that are checked out with a file `.git`, and whose repository the jar does not have."""
    try:
        names = [name for name in _gitlinks(git) if os.path.isfile(os.path.join(git.top, name, ".git"))]
    except GitError:
        return []
    return [name for name in names if name not in shown]


def _described(
    git: HostGit, files: dict[str, bytes], *, place: str, path: str, number: int, prefix: str
) -> JarRepository:
    settings = settings_of(os.path.join(git.common, "config"))
    if any(key.lower() == "extensions.worktreeconfig" and value != "false" for key, value in settings):
        settings += settings_of(os.path.join(git.directory, "config.worktree"))
    if extension := unknown_extension(settings):
        raise GitError(f"its format has the extension {extension}, which belljar does not know")
    start = f"{place}/" if place else ""
    head = (git.try_run("symbolic-ref", "-q", "HEAD") or b"").decode("utf-8", "surrogateescape").strip()
    head = head or git.run("rev-parse", "--verify", "HEAD").decode().strip()
    refs, links = refs_of(git)
    text = jar_settings(settings)
    packed = "".join(f"{one} {name}\n" for name, one in sorted(refs.items()) if not name.startswith(_NOT_SHOWN))
    written_s = _written_s(os.path.join(git.directory, "index"))  # before it is read: it may be replaced meanwhile
    shallow, index = _content(git.common, "shallow"), _content(git.directory, "index")
    filtered = [] if prefix else _filtered(git, index)
    is_partial = any(_is_partial(key, value) for key, value in settings)
    made = JarRepository(
        *(git, place, path, number, head, refs, object_format(settings), shallow, index, prefix),
        partial=is_partial,
        filtered=len(filtered),
    )
    files[f"{start}HEAD"] = f"{head if _ID.fullmatch(head) else f'ref: {head}'}\n".encode("utf-8", "surrogateescape")
    files[f"{start}config"] = text.encode("utf-8", "surrogateescape")
    files[f"{start}packed-refs"] = packed.encode("utf-8", "surrogateescape")
    for name in ("refs/heads", "hooks"):  # git wants the directories; a name with a dot at its start is no branch
        files[f"{start}{name}/.keep"] = b""
    files[f"{start}objects/info/alternates"] = f"{made.objects}\n".encode()
    files |= {f"{start}{name}": f"ref: {link}\n".encode("utf-8", "surrogateescape") for name, link in links.items()}
    for name in _COPIED:
        if content := _content(git.common, name) or _content(git.directory, name):
            files[f"{start}{name}"] = content
    shared = _shared_indexes(git)
    for name in shared:
        if content := _content(git.directory, name):
            files[f"{start}{name}"] = content
    if _ID.fullmatch(_line(os.path.join(git.directory, _MERGE[0]))):
        files |= {f"{start}{name}": content for name in _MERGE if (content := _content(git.directory, name))}
    if index:
        marked = None if shared else mark_recent(index, written_s, object_format=made.format)
        files[f"{start}index"] = index if marked is None else marked
        files[f"{start}config"] += b"" if marked is None else _BY_TIME_AND_SIZE
    if prefix and f"{start}index" in files:
        files[f"{start}index"] = _taken_as_unchanged(git, files[f"{start}index"], _outside(git, prefix))
    elif filtered:
        files[f"{start}index"] = _taken_as_unchanged(git, files[f"{start}index"], filtered)
    return made


def _is_partial(key: str, value: str) -> bool:
    name = key.lower()
    return name == "extensions.partialclone" or (name.endswith(".promisor") and value != "false")


def _filtered(git: HostGit, index: bytes) -> list[bytes]:
    """Find the files that git has passed through a program (`filter=lfs`). The jar has no such program.

    Without it git would take the content for a change, and commit large files, or what was to be encrypted. A file that
    is as long in the work tree as in git is left out: no program has changed it, and the agent may commit it. So is one
    whose object is missing.
    """
    attributes = [os.path.join(git.common, "info/attributes"), os.path.join(git.top, ".gitattributes")]
    nested = b"/.gitattributes\0" in index
    if not nested and not any(b"filter" in _content(*os.path.split(path)) for path in attributes):
        return []
    env = {"GIT_WORK_TREE": git.top}
    staged = [line.partition(b"\t") for line in git.run("-C", git.top, "ls-files", "-s", "-z", env=env).split(b"\0")]
    ids = {path: about.split()[1] for about, _tab, path in staged if path}
    words = ("-C", git.top, "check-attr", "-z", "--stdin", "filter")
    fields = git.run(*words, data=b"".join(path + b"\0" for path in ids), env=env).split(b"\0")
    named = [path for path, value in zip(fields[::3], fields[2::3], strict=False) if value not in _NO_FILTER]
    if not named:
        return []
    asked = b"".join(ids[path] + b"\n" for path in named)
    sizes = git.run("cat-file", "--batch-check=%(objectsize)", data=asked).split(b"\n")
    return [path for path, size in zip(named, sizes, strict=False) if size.isdigit() and not _has_size(git, path, size)]


def _has_size(git: HostGit, path: bytes, size: bytes) -> bool:
    try:
        return os.lstat(os.path.join(git.top, os.fsdecode(path))).st_size == int(size)
    except OSError:
        return False


def refs_of(git: HostGit) -> tuple[dict[str, str], dict[str, str]]:
    """Return the refs with their ids, and those that are names of others."""
    refs, links = {}, {}
    for line in (
        git.run("for-each-ref", "--format=%(objectname) %(symref) %(refname)")
        .decode("utf-8", "surrogateescape")
        .splitlines()
    ):
        one, link, name = line.split(" ", 2)
        if link:
            links[name] = link
        else:
            refs[name] = one
    return refs, links


def _shared_indexes(git: HostGit) -> list[str]:
    return [name for name in os.listdir(git.directory) if name.startswith("sharedindex.")][:10]


def _outside(git: HostGit, prefix: str) -> list[bytes]:
    """Find the files outside of the project's directory: the jar has none of them."""
    listed = git.run("-C", git.top, "ls-files", "-z", env={"GIT_WORK_TREE": git.top}).split(b"\0")
    return [name for name in listed if name and not name.startswith(os.fsencode(prefix))]


def _taken_as_unchanged(git: HostGit, index: bytes, names: list[bytes]) -> bytes:
    """Return an index in which these files count as unchanged, whatever the work tree has."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="belljar-") as directory:
        own = os.stat(git.directory)
        if os.geteuid() == 0:
            os.chown(directory, own.st_uid, own.st_gid)
        path = os.path.join(directory, "index")
        with open(path, "wb") as file:
            file.write(index)
        if os.geteuid() == 0:
            os.chown(path, own.st_uid, own.st_gid)
        env = {"GIT_INDEX_FILE": path, "GIT_WORK_TREE": git.top}
        git.run(
            "-C", git.top, "update-index", "--skip-worktree", "-z", "--stdin", data=b"\0".join([*names, b""]), env=env
        )
        with open(path, "rb") as file:
            return file.read()


def _written_s(path: str) -> int:
    """Return when a file was written, in seconds; 0 if there is none."""
    try:
        return int(os.lstat(path).st_mtime_ns // 1_000_000_000)
    except OSError:
        return 0


def _content(directory: str, name: str) -> bytes:
    """Return a file of the host's repository; empty if there is none, or if it is a link or too large."""
    try:
        descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(_MOST_BYTES + 1) if os.path.isfile(f"/proc/self/fd/{descriptor}") else b""
    return content if len(content) <= _MOST_BYTES else b""


def _line(path: str) -> str:
    """Return the first line of a small file; empty if there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_LONGEST_LINE).partition("\n")[0].rstrip("\r")
    except OSError:
        return ""
