"""A jar of its own in which git reads what another jar made: without network, with limits, with nothing to write to.

Git makes one pack of the new objects in a fresh repository. A second fresh repository, which has nothing but the host's
objects besides, takes that pack as a push is taken: every id computed anew, `index-pack --strict`, connectivity. What
it tells about the commits is bounded, and is data of the first jar still.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from belljar.backends.hostile_files import MAX_DEPTH
from belljar.errors import BelljarError
from belljar.policy.load.resolve import resolve
from belljar.policy.models import Policy
from belljar.sandbox.repository.collecting import MOST_BYTES, CommitsRefusedError, copy_file
from belljar.sandbox.repository.host_git import ALONE, QUIET
from belljar.sandbox.repository.making import JarRepository
from belljar.sandbox.run.sandbox import Sandbox

MOST_COMMITS = 20_000
_MOST_REPORT = 64 << 20
_MOST_LINKS = 10_000
_MOST_ABOVE = 256 << 20
"""Characters of the names of all directories on the way to changed paths. Trees that share a tree have many of them."""
_MOST_MEMORY = 768 << 20
_SECONDS = 300
_TOO_MANY = f"they change more paths than the host looks at ({_MOST_REPORT >> 20} MiB of names)"
_WORK = "/workspace"
_NO_NAMES = ("**/belljar-denies-nothing-here",)
_GIT = " ".join(["git", *QUIET, "-c core.packedGitWindowSize=32m -c core.packedGitLimit=128m"])
_DIFF = f"{_GIT} -C checked diff-tree --stdin -r -z --raw --no-abbrev --no-renames --root -c"

# Runs in the checking jar. /new is what the agent's jar made, /host the host's objects; both are read-only.
_SCRIPT = f"""
set -eu
fresh() {{
    {_GIT} init -q --bare --template= --object-format="$1" "$2"
    echo /host > "$2/objects/info/alternates"
    if [ -s shallow ]; then cp shallow "$2/shallow"; fi
}}
fresh "$1" packing
echo /new/loose >> packing/objects/info/alternates
for pack in /new/packs/*.pack; do
    [ -f "$pack" ] || continue
    {_GIT} -C packing index-pack --fix-thin --stdin --max-input-size={MOST_BYTES} < "$pack" > /dev/null
done
{_GIT} -C packing pack-objects -q --revs --stdout --delta-base-offset < revs > new.pack
fresh "$1" checked
{_GIT} -C checked index-pack --strict --stdin --max-input-size={MOST_BYTES} < new.pack > /dev/null
{_GIT} -C checked rev-list --objects --stdin --quiet < revs
{_GIT} -C checked rev-list --topo-order --reverse --stdin --max-count={MOST_COMMITS + 1} < revs > commits
{_GIT} -C checked cat-file --batch-check='%(objecttype) %(objectname)' < peeled > types
: > told
if [ -s commits ]; then  # otherwise refs are elsewhere, and there is no new commit
    {_GIT} -c i18n.logOutputEncoding=UTF-8 -C checked log --no-walk=unsorted -z --stdin \\
        --format='%H%x00%P%x00%<(200,trunc)%an%x00%<(200,trunc)%ae%x00%<(200,trunc)%s' < commits > told
fi
# A tree of trees may be tiny, and have more paths than fit anywhere: memory and output are bounded.
(
    ulimit -v {_MOST_MEMORY >> 10} && ulimit -f {_MOST_REPORT >> 9} && \\
    {_DIFF} < commits > touched && {_DIFF} < steps > stepped
) || {{ echo "{_TOO_MANY}" >&2; exit 1; }}
"""
_LINKS = f"{_GIT} -C checked cat-file --batch < wanted > links"


@dataclass(frozen=True)
class Commit:
    """A new commit. Its text is the agent's: escape it for a terminal."""

    id: str
    parents: tuple[str, ...]
    author: str
    subject: str


@dataclass(frozen=True)
class Touched:
    """A path that a new commit changes, from the top of the repository."""

    commit: str
    path: str
    old_mode: int
    mode: int
    """As git has it; 0 if the commit deletes it."""
    link: str = ""
    """Where it leads, if it is a symbolic link; the commit, if it is a submodule."""


@dataclass(frozen=True)
class Checked:
    """New objects that git found whole, and what is in them."""

    commits: tuple[Commit, ...]
    """Parents before children."""
    touched: tuple[Touched, ...]
    stepped: tuple[Touched, ...]
    """Paths that differ between where a ref was and its tip, which is the `commit`; new commits or not."""
    stepped_tips: frozenset[str]
    peeled: dict[str, str]
    """The commit that each tip is, or that its tag names; a tip that leads to no commit is left out."""


def check(
    repository: JarRepository,
    new: str,
    tips: Collection[str],
    known: Collection[str],
    pack: str,
    *,
    steps: Collection[tuple[str, str]] = (),
) -> Checked:
    """Check the objects in the directory `new` in a jar of its own, and write them into the file `pack`.

    Args:
        repository: what the objects are for.
        new: as `collecting.copy_objects` made it.
        tips: ids that refs of the jar name.
        known: ids that refs of the host name.
        pack: where the checked pack is written.
        steps: commits that a ref was at, each with the tip that it is at now.

    Raises:
        RefusedError: git, or a limit, refuses them.
        BelljarError: there is no jar to check them in.
    """
    order = sorted(set(tips))
    revs = "".join(f"{tip}\n" for tip in order) + "".join(f"^{one}\n" for one in sorted(set(known)))
    with Sandbox(_policy(repository, new), one_shot=True) as jar:
        files = jar.files
        files.write("revs", revs)
        files.write("peeled", "".join(f"{tip}^{{}}\n" for tip in order))
        files.write("shallow", repository.shallow)
        files.write("steps", "".join(f"{tip} {old}\n" for old, tip in sorted(set(steps))))
        _run(jar, ["sh", "-c", _SCRIPT, "check", repository.format])
        commits = _commits(_read(jar, "told"))
        touched, stepped = _touched(_read(jar, "touched")), _touched(_read(jar, "stepped"))
        if [commit.id for commit in commits] != _read(jar, "commits").decode("ascii", "replace").split():
            raise CommitsRefusedError("git's reports on the new commits do not agree")
        links = sorted({one for one, item in (*touched, *stepped) if item.mode == 0o120000})
        targets = _targets(jar, links) if links else {}
        kinds = [line.split(" ") for line in _read(jar, "types").decode("ascii", "replace").splitlines()]
        _copy_pack(jar, pack)
    peeled = {tip: words[1] for tip, words in zip(order, kinds, strict=True) if words[0] == "commit"}
    tips_of_steps = frozenset(tip for _old, tip in steps)
    return Checked(commits, _with_links(touched, targets), _with_links(stepped, targets), tips_of_steps, peeled)


def _with_links(found: list[tuple[str, Touched]], targets: dict[str, str]) -> tuple[Touched, ...]:
    def with_link(one: str, item: Touched) -> Touched:
        if item.mode not in {0o120000, 0o160000}:
            return item
        leads = one if item.mode == 0o160000 else targets.get(one, "/")
        return Touched(item.commit, item.path, item.old_mode, item.mode, leads)

    return tuple(with_link(one, item) for one, item in found)


def _policy(repository: JarRepository, new: str) -> Policy:
    mounts = [
        {"path": _WORK, "rw": True},
        {"path": "/host", "source": repository.git.objects},
        {"path": "/new", "source": new},
    ]
    limits = {"cpu_quota": 2, "mem_mb": "2g", "timeout_ms": _SECONDS * 1000, "pids": 64, "file_size_mb": "2g"}
    layer = {
        "fs": {"mounts": mounts, "workdir": _WORK, "deny_globs": list(_NO_NAMES), "size_mb": "4g"},
        "proc": limits,
        "net": {"enabled": False},
        "env": {"set": dict(ALONE)},
    }
    return resolve(None, layers=[layer], managed=None, layers_are="the check of new commits")


def _run(jar: Sandbox, argv: list[str]) -> None:
    result = jar.exec(argv)
    if not result.ok:
        said = result.stderr.strip().splitlines()
        raise CommitsRefusedError(
            f"git refuses them: {said[-1][:300]}" if said else f"the check ended as {result.outcome}"
        )


def _read(jar: Sandbox, name: str) -> bytes:
    try:
        return jar.files.read(name, limit=_MOST_REPORT)
    except BelljarError:
        raise CommitsRefusedError(_TOO_MANY) from None


def _commits(told: bytes) -> tuple[Commit, ...]:
    fields = told.decode("utf-8", "surrogateescape").split("\0")
    count = len(fields) // 5
    if count > MOST_COMMITS:
        raise CommitsRefusedError(f"there are more than {MOST_COMMITS} new commits")
    found = []
    for row in range(count):
        one, parents, *texts = fields[5 * row : 5 * row + 5]
        name, address, subject = (text.strip() for text in texts)  # git fills them up to their greatest length
        found.append(Commit(one, tuple(parents.split()), f"{name} <{address}>", subject))
    return tuple(found)


def _touched(report: bytes) -> list[tuple[str, Touched]]:
    """Parse the output of `diff-tree -z --raw`: each path with the id of its new content.

    Raises:
        RefusedError: a path is too deep, or they are too many.
    """
    found = []
    commit = ""
    room = _MOST_ABOVE
    tokens = iter(report.decode("utf-8", "surrogateescape").split("\0"))
    for token in tokens:
        if not token.startswith(":"):
            commit = token.strip()
            continue
        parents = len(token) - len(token.lstrip(":"))
        words = token.lstrip(":").split(" ")
        modes, ids = words[: parents + 1], words[parents + 1 : 2 * parents + 2]
        path = next(tokens)
        depth = path.count("/")
        if depth > MAX_DEPTH:
            raise CommitsRefusedError(f"a path is more than {MAX_DEPTH} directories deep")
        room -= depth * len(path)
        if room < 0:
            raise CommitsRefusedError(_TOO_MANY)
        found.append((ids[-1], Touched(commit, path, int(modes[0], 8), int(modes[-1], 8))))
    return found


def _targets(jar: Sandbox, links: list[str]) -> dict[str, str]:
    """Return where symbolic links lead, by id; those that are too long to be one are left out."""
    if len(links) > _MOST_LINKS:
        raise CommitsRefusedError(f"there are more than {_MOST_LINKS} new symbolic links")
    jar.files.write("wanted", "".join(f"{one}\n" for one in links))
    _run(jar, ["sh", "-c", _LINKS])
    content = _read(jar, "links")
    found, at = {}, 0
    while at < len(content):
        end = content.index(b"\n", at)
        words = content[at:end].split(b" ")
        if len(words) != 3:
            raise CommitsRefusedError("a symbolic link has no content")
        size = int(words[2])
        if size <= 4096:
            found[words[0].decode()] = content[end + 1 : end + 1 + size].decode("utf-8", "surrogateescape")
        at = end + 1 + size + 1
    return found


def _copy_pack(jar: Sandbox, target: str) -> None:
    held = jar.changed_tree(_WORK).descriptor
    try:
        if not copy_file(held, "new.pack", target, most=MOST_BYTES, mode=0o600):
            raise CommitsRefusedError(f"the new objects are more than {MOST_BYTES >> 20} MiB")
    finally:
        os.close(held)
