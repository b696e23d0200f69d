"""Commits on the way back from a jar: collected, checked, judged and received under `refs/belljar/RUN`; then moved.

Nothing here moves a branch of the user's but `move`, which takes what a person, or an option, said yes to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from belljar.errors import BelljarError
from belljar.policy.keys.units import counted
from belljar.sandbox.record import recording
from belljar.sandbox.record.stream import new_run_id
from belljar.sandbox.repository import collecting, moving, receiving
from belljar.sandbox.repository.checking import Checked, Commit, Touched, check
from belljar.sandbox.repository.collecting import CommitsRefusedError, Tips
from belljar.sandbox.repository.host_git import GitError
from belljar.sandbox.repository.judging import CommitJudgement, Mark, reachable
from belljar.sandbox.repository.making import JarRepositories, JarRepository, jar_repositories, refs_of
from belljar.sandbox.run.sandbox import Sandbox
from belljar.state import private_directory, state_directory

_MOST_STEPS = 5_000_000
"""Moved refs times new commits, or times changed paths: how much of the history is looked through."""
_MOST_DIFF = 8 << 20
_MOST_TOLD = 20
_MOST_KEPT = 20
"""Repositories that could not be taken in; the oldest go."""
_OUTSIDE = "it is outside of the project's directory"
_LIKE_ANOTHER = re.compile(r"(?:heads|tags|notes|refs)/.*|HEAD|stash", re.DOTALL)
"""Names of branches that look like those of other refs."""
_NO_NAME = re.compile(r"-.*|HEAD|refs/.*|[0-9a-f]{40}|[0-9a-f]{64}", re.DOTALL)
"""What git takes for an option, or for another ref or object, where a branch or tag is named."""


@dataclass(frozen=True)
class Move:
    """A ref that the jar's repository has elsewhere than the host's. Names and texts are the agent's."""

    repository: JarRepository
    name: str
    """`refs/heads/main`, `refs/tags/v1`, or `HEAD` if no branch is checked out."""
    old: str | None
    """Where it was at the start; None if there was none."""
    new: str
    commits: tuple[Commit, ...]
    """New ones in its history, parents first."""
    paths: frozenset[str]
    """Paths that those change, from the project's directory."""
    marks: tuple[Mark, ...]
    submodules: tuple[tuple[str, str], ...] = ()
    """Submodules that are elsewhere at its end, each with the commit."""

    @property
    def short(self) -> str:
        """Its name, as people read it. No other ref has the same."""
        branch = self.name.removeprefix("refs/heads/")
        name = self.name.removeprefix("refs/") if _LIKE_ANOTHER.fullmatch(branch) else branch
        return f"{self.repository.path}: {name}" if self.repository.path else name

    @property
    def may_move(self) -> bool:
        """Whether belljar ever moves the user's ref of this name: branches, tags and what is checked out."""
        return self.name.startswith(("refs/heads/", "refs/tags/")) or self.is_current

    @property
    def is_current(self) -> bool:
        """Whether it is what the user has checked out."""
        detached = not self.repository.head.startswith("refs/")
        return self.name == ("HEAD" if detached else self.repository.head)

    def lines(self) -> list[str]:
        """The move and its commits, as people read them."""
        old = self.old[:10] if self.old else "new"
        told = [f"{commit.id[:10]} {commit.author}: {commit.subject}" for commit in self.commits[-_MOST_TOLD:]]
        return [f"{self.short}: {old} → {self.new[:10]}", *reversed(told)]

    def kept_as(self, run: str) -> str:
        """The ref that has it in the host's repository, whether it is moved or not."""
        return f"refs/belljar/{run}/{self.name.removeprefix('refs/')}"

    @property
    def hides(self) -> str:
        """What git would take a new ref for, or take it for, where its name is typed; empty if it is the only one."""
        if self.old or not self.name.startswith(("refs/heads/", "refs/tags/")):
            return ""
        name = self.name.split("/", 2)[2]
        if _NO_NAME.fullmatch(name):
            return "its name means something else to git"
        alike = [f"{kind}{name}" for kind in ("refs/", "refs/heads/", "refs/tags/", "refs/remotes/")]
        known = self.repository.refs
        found = next((one for one in alike if one in known or one in self.repository.remotes), "")
        return f"git could take it for {found}, which has the same name" if found else ""


@dataclass(frozen=True)
class Moved:
    """What moved, and what did not, with the reason."""

    moved: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Now:
    """A repository of the host's as it is when refs are about to move."""

    refs: Mapping[str, str]
    head: str | None
    elsewhere: Collection[str]
    """Branches that other worktrees have checked out."""


class Incoming:
    """The commits of one run. Empty if there are none."""

    def __init__(self, run: str = "") -> None:
        self.run = run
        self.moves: list[Move] = []
        self.problems: list[str] = []
        """Why something of the jar's repositories was not brought back, in words for a person."""
        self.notes: list[str] = []
        """What stays in the jar by design, in words for a person."""
        self.heads: dict[str, str] = {}
        """What the jar's repositories had checked out at the end, by `JarRepository.place`."""
        self._repositories: dict[str, JarRepository] = {}

    def know(self, repositories: Iterable[JarRepository]) -> None:
        """Say which repositories there are, submodules included."""
        self._repositories = {one.path: one for one in repositories}

    @property
    def commits(self) -> list[Commit]:
        """Every new commit, once."""
        return list({commit.id: commit for move in self.moves for commit in move.commits}.values())

    @property
    def anything(self) -> bool:
        """Whether there is something to decide or to tell."""
        return bool(self.moves or self.problems)

    def lines(self, besides: Collection[str] = ()) -> list[str]:
        """Say where new commits are kept, but for these moves. Texts in it are the agent's."""
        told = []
        for move in self.moves:
            if move.short not in besides:
                here = f"git -C {shlex.quote(move.repository.path)}" if move.repository.path else "git"
                count = counted(len(move.commits), "new commit")
                told.append(f"{move.short}, {count}: `{here} log {shlex.quote(move.kept_as(self.run))}`")
        return told

    def against(self, move: Move) -> list[str]:
        """Say what a person has to know before a ref moves, each with the reason; nothing if it may move by itself."""
        found = [f"commit {mark.commit[:10]} holds {mark.path}: {mark.why}" for mark in move.marks[:_MOST_TOLD]]
        if move.old and move.name.startswith("refs/tags/"):
            found.append("the tag names another object already")
        elif move.old and not moving.is_ancestor(move.repository.git, move.old, move.new):
            found.append("its history was rewritten")
        return [*found, *filter(None, [move.hides])]

    def diff(self, move: Move) -> str:
        """Return what the new commits of a ref change, as `git diff` prints it. Text from the agent."""
        base = move.old or moving.EMPTY_TREE[len(move.new)]
        # A file of gigabytes may be tiny in a pack. Git only names files that are larger than the threshold.
        words = ["-c", "core.bigFileThreshold=1m", "diff", "--no-ext-diff", "--no-textconv", "--no-color"]
        words += ["--no-renames", "--submodule=short", base, move.new, "--"]
        try:
            found = move.repository.git.beginning(*words, most=_MOST_DIFF)
        except GitError:
            found = b""
        cut = f"\nnot shown: the diff is longer than {_MOST_DIFF >> 20} MiB\n" if len(found) == _MOST_DIFF else ""
        return found.decode("utf-8", "surrogateescape") + cut

    # --- after a yes ---

    def move(
        self,
        wanted: Collection[str] | None = None,
        *,
        held: Collection[str] = (),
        protected: bool = False,
        although: Collection[str] = (),
    ) -> Moved:
        """Move refs of the user's to where the jar has them. Files of the work tree are not touched.

        Args:
            wanted: names of moves (`Move.short`); all of them if None.
            held: paths of the project that did not come back. A ref whose new commits change one of them stays.
            protected: whether commits may hold files that a tool on the host would act on.
            although: names of moves that a person said yes to after they saw what speaks against them.

        Raises:
            AuditError: it can't be recorded, so nothing moves.
        """
        moved: list[str] = []
        left: list[tuple[str, str]] = []
        for repository in dict.fromkeys(move.repository for move in self.moves):  # submodules come first
            mine = [move for move in self.moves if move.repository is repository and move.may_move]
            ready = []
            refs, _links = refs_of(repository.git)
            now = Now(refs, moving.head_id(repository.git), moving.checked_out_elsewhere(repository.git))
            for move in mine:
                if wanted is not None and move.short not in wanted:
                    continue
                why = self._stays(move, now, held, protected=protected, although=move.short in although)
                if why:
                    left.append((move.short, why))
                else:
                    ready.append(move)
            done, failed = self._move_all(repository, ready)
            moved += done
            left += failed
        return Moved(tuple(moved), tuple(left))

    def _stays(self, move: Move, now: Now, held: Collection[str], *, protected: bool, although: bool) -> str:
        """Return why a ref must stay where it is; empty if it may move."""
        look = f"it is kept as {move.kept_as(self.run)}"
        if not although:
            marks = [mark for mark in move.marks if not (mark.protected and protected)]
            if marks:
                return f"commit {marks[0].commit[:10]} holds {marks[0].path}: {marks[0].why}; {look}"
            if reasons := self.against(move)[len(move.marks[:_MOST_TOLD]) :]:
                return f"{reasons[0]}; {look}"
        if found := next((path for path in sorted(held) if _touches(move.paths, path)), ""):
            return f"its commits change {found}, which did not come back; {look}"
        if (now.head if move.name == "HEAD" else now.refs.get(move.name)) != move.old:
            command = "git merge" if move.is_current else "git log"
            return f"it was moved on the host meanwhile; `{command} {shlex.quote(move.kept_as(self.run))}`"
        if move.name in now.elsewhere:
            return f"another worktree has it checked out; {look}"
        if move.is_current and not moving.finishes_merge(move.repository.git, move.new):
            return f"a merge is in progress on the host, and its commits do not finish it; {look}"
        for path, commit in move.submodules:
            if not self._has(f"{move.repository.path}/{path}".lstrip("/"), commit):
                return f"it sets the submodule {path} to {commit[:10]}, which is in no branch on the host; {look}"
        return ""

    def _has(self, submodule: str, commit: str) -> bool:
        """Return True if a submodule has a commit in a branch or tag, or checked out. Its own moves come first."""
        repository = self._repositories.get(submodule)
        if repository is None:
            return False
        words = ("rev-list", "--max-count=1", commit, "--not", "--exclude=refs/belljar/*", "--all")
        return repository.git.try_run(*words) == b""

    def _move_all(self, repository: JarRepository, ready: list[Move]) -> tuple[list[str], list[tuple[str, str]]]:
        """Move the refs of one repository: those that are not checked out at once, then what is, with the index."""
        if not ready:
            return [], []
        git = repository.git
        told = {move.name: move.new for move in ready}
        recording.files("commits", run=self.run, directory=git.top, moves=told)
        message = f"belljar: run {self.run}"
        moved: list[str] = []
        left: list[tuple[str, str]] = []
        # Who checked out another branch meanwhile keeps the index and HEAD of that one.
        current = [move for move in ready if move.is_current and moving.head_of(git) == repository.head]
        others = [move for move in ready if move not in current]
        try:
            receiving.update_refs(git, {move.name: (move.old, move.new) for move in others}, message)
            moved += [move.short for move in others]
        except GitError as error:
            left += [(move.short, f"{error}; it is kept as {move.kept_as(self.run)}") for move in others]
        for move in current:
            try:
                moving.move_head(git, move.old, move.new, message, started=repository.index)
                moved.append(move.short)
                moving.end_merge(git)
            except GitError as error:
                left.append((move.short, f"{error}; it is kept as {move.kept_as(self.run)}"))
        with contextlib.suppress(GitError):
            self._follow_head(repository, message, moved)
            names = {move.kept_as(self.run): move.new for move in ready if move.short in moved}
            receiving.delete_these(git, names)
        return moved, left

    def _follow_head(self, repository: JarRepository, message: str, moved: list[str]) -> None:
        """Check out the branch that the agent had checked out at the end, if it moved: the files are those of it."""
        git, head = repository.git, self.heads.get(repository.place, "")
        mine = next((move for move in self.moves if move.repository is repository and move.name == head), None)
        if mine is None or mine.short not in moved or mine.is_current or moving.head_of(git) != repository.head:
            return
        old = moving.head_id(git)
        moving.move_head(git, old, mine.new, message, started=repository.index, branch=head)
        moved.append(f"HEAD, which is {mine.short} now")

    # --- receiving ---

    def _take(self, root: int, repository: JarRepository, globs: tuple[str, ...], jar_top: str) -> None:
        """Take in what is new in one repository of the jar's."""
        tips = collecting.read_tips(root, repository)
        self.problems += [f"{where(repository)}{one}" for one in tips.left_out]
        self.notes += [f"{where(repository)}hook {name}: hooks stay in the jar" for name in tips.hooks]
        self.notes += [
            f"{where(repository)}{name} was deleted in the jar; yours stays" for name in _deleted(repository, tips)
        ]
        self.heads[repository.place] = tips.head
        targets = dict(_moved_refs(repository, tips))
        if not targets:
            return
        with tempfile.TemporaryDirectory(prefix="belljar-commits-") as directory:
            new, pack = os.path.join(directory, "new"), os.path.join(directory, "checked.pack")
            try:
                collecting.copy_objects(root, repository, new)
                checked = check(
                    repository, new, targets.values(), _known(repository), pack, steps=_steps(repository, targets, tips)
                )
                moves = _moves(repository, targets, checked, globs, jar_top)
                recording.files(
                    "commits", run=self.run, directory=repository.git.top, received={m.name: m.new for m in moves}
                )
                _store(repository, pack, {move.kept_as(self.run): (None, move.new) for move in moves}, self.run)
            except (CommitsRefusedError, BelljarError, OSError, ValueError, IndexError, RecursionError) as error:
                kept = self._keep_raw(directory, repository, targets)
                why = str(error).partition("\n")[0]
                self.problems.append(f"{where(repository)}the new commits were not brought back: {why}{kept}")
                return
            self.moves += moves

    def _keep_raw(self, directory: str, repository: JarRepository, targets: Mapping[str, str]) -> str:
        """Keep what could not be taken in, as the jar made it: objects, and in `refs` what was to name them."""
        new = os.path.join(directory, "new")
        if not os.path.isdir(new):
            return ""
        try:
            with open(os.path.join(new, "refs"), "w", encoding="utf-8") as file:
                file.writelines(f"{one} {name}\n" for name, one in targets.items())
            target = private_directory(os.path.join(state_directory(), "commits"))
            place = os.path.join(target, f"{self.run}-{repository.number}")
            shutil.move(new, place)
            for old in sorted(os.listdir(target))[:-_MOST_KEPT]:  # names begin with the time
                shutil.rmtree(os.path.join(target, old), ignore_errors=True)
        except (OSError, shutil.Error):
            return ""
        return f"; its objects, unchecked, are in {place}"


def forget(project: str, run: str) -> None:
    """Delete the refs in which a project's repositories keep the commits of a run.

    Raises:
        GitError: they can't be deleted.
    """
    for repository in jar_repositories(project, project).all if os.path.isdir(project) else ():
        receiving.delete_refs(repository.git, f"refs/belljar/{run}/")


def incoming(
    jar: Sandbox, repositories: JarRepositories, run: str, *, globs: tuple[str, ...], jar_project: str
) -> Incoming:
    """Take in the commits of a jar: check them, and store them in the host's repository as `refs/belljar/RUN/…`.

    Args:
        jar: the agent's, after its run.
        repositories: what the jar got.
        run: the run's id.
        globs: names that are denied to the jar.
        jar_project: the project's path in the jar.
    """
    arrived = Incoming(run or new_run_id())
    not_there = (*repositories.hidden, *repositories.left_out)
    arrived.notes += [f"{path}: its repository was not in the jar" for path in not_there]
    if repositories.problem:
        arrived.notes.append(f"the jar had no repository: {repositories.problem}")
    if not repositories.all:
        return arrived
    arrived.know(repositories.all)
    root = jar.changed_tree(repositories.mount).descriptor
    try:
        for repository in reversed(repositories.all):  # submodules come first
            above = jar_project.removesuffix(f"/{repository.prefix.rstrip('/')}") if repository.prefix else jar_project
            jar_top = f"{above}/{repository.path}" if repository.path else above
            try:
                arrived._take(root, repository, globs, jar_top)  # noqa: SLF001 - of this file
            except CommitsRefusedError as error:
                arrived.problems.append(f"{where(repository)}the new commits were not brought back: {error}")
    finally:
        os.close(root)
    arrived.moves.sort(key=lambda move: (-move.repository.number, not move.is_current, move.name))
    return arrived


def where(repository: JarRepository) -> str:
    """Name a submodule, at the start of a sentence."""
    return f"{repository.path}: " if repository.path else ""


def _store(repository: JarRepository, pack: str, refs: dict[str, tuple[str | None, str]], run: str) -> None:
    receiving.receive_pack(repository.git, pack)
    receiving.update_refs(repository.git, refs, f"belljar: run {run}")


def _detached(repository: JarRepository) -> list[str]:
    return [] if repository.head.startswith("refs/") else [repository.head]


def _deleted(repository: JarRepository, tips: Tips) -> list[str]:
    """Branches and tags of the host that the jar's repository has no more."""
    own = (name for name in repository.refs if name.startswith(("refs/heads/", "refs/tags/")))
    return sorted(name for name in own if name not in tips.refs)[:_MOST_TOLD]


def _known(repository: JarRepository) -> set[str]:
    """Return what the user has agreed to: not what earlier runs left in `refs/belljar`."""
    agreed = {one for name, one in repository.refs.items() if not name.startswith("refs/belljar/")}
    return {*agreed, *_detached(repository)}


def _steps(repository: JarRepository, targets: Mapping[str, str], tips: Tips) -> list[tuple[str, str]]:
    """Return where branches were, with where they are now. One that is new, and checked out, comes from there."""
    head = repository.head if _detached(repository) else repository.refs.get(repository.head)
    steps = []
    for name, one in targets.items():
        old = repository.refs.get(name) or (head if name in ("HEAD", tips.head) else None)
        if old and (name == "HEAD" or name.startswith("refs/heads/")):
            steps.append((old, one))
    return steps


def _moved_refs(repository: JarRepository, tips: Tips) -> Iterator[tuple[str, str]]:
    """Yield the refs that are new or elsewhere in the jar, and what is checked out there if that is no branch."""
    for name, one in tips.refs.items():
        if name == "refs/stash" or repository.refs.get(name) != one:
            yield name, one
    if tips.head and not tips.head.startswith("refs/") and tips.head not in _detached(repository):
        known = {*repository.refs.values(), *tips.refs.values()}
        if tips.head not in known or _detached(repository):
            yield "HEAD", tips.head


def _moves(
    repository: JarRepository, targets: dict[str, str], checked: Checked, globs: tuple[str, ...], jar_top: str
) -> list[Move]:
    commits = {commit.id: commit for commit in checked.commits}
    paths = len(checked.touched) + len(checked.stepped)
    if len(set(targets.values())) * max(len(commits), paths) > _MOST_STEPS:
        many = f"{len(targets)} moved refs with {len(commits)} new commits and {paths} changed paths"
        raise CommitsRefusedError(f"{many} are more than the host looks through")
    by_commit = _FoundPaths(repository, jar_top, globs, checked.touched)
    by_tip = _FoundPaths(repository, jar_top, globs, checked.stepped)
    at_tips: dict[str, _AtTip] = {}
    moves = []
    for name, one in targets.items():
        tip = checked.peeled.get(one)
        if tip is None or (name.startswith("refs/heads/") and tip != one):
            raise CommitsRefusedError(f"{name} names no commit")
        at_tips[tip] = at_tips.get(tip) or _at_tip(tip, commits, checked, by_commit, by_tip)
        old = _detached(repository)[0] if name == "HEAD" and _detached(repository) else repository.refs.get(name)
        moves.append(Move(repository, name, old, one, *at_tips[tip]))
    return moves


_AtTip = tuple[tuple[Commit, ...], frozenset[str], tuple[Mark, ...], tuple[tuple[str, str], ...]]
"""Commits, paths, marks and submodules, as `Move` has them. All refs to the same commit share them."""


def _at_tip(
    tip: str, commits: dict[str, Commit], checked: Checked, by_commit: _FoundPaths, by_tip: _FoundPaths
) -> _AtTip:
    inside = reachable(tip, commits)
    own = tuple(commit for commit in checked.commits if commit.id in inside)
    marks = [mark for commit in own for mark in by_commit.marks.get(commit.id, ())]
    marked = {mark.path for mark in marks}
    marks += [mark for mark in by_tip.marks.get(tip, ()) if mark.path not in marked]
    paths = {path for commit in own for path in by_commit.paths.get(commit.id, ())}
    ends = by_tip.submodules.get(tip, [])
    if tip not in checked.stepped_tips:  # a new branch
        ends = [found for commit in own for found in by_commit.submodules.get(commit.id, ())]
    return own, frozenset(paths | by_tip.paths.get(tip, set())), tuple(marks), tuple(ends)


class _FoundPaths:
    """What was found at changed paths, by commit."""

    def __init__(
        self, repository: JarRepository, jar_top: str, globs: tuple[str, ...], touched: tuple[Touched, ...]
    ) -> None:
        self.marks: dict[str, list[Mark]] = {}
        self.paths: dict[str, set[str]] = {}
        self.submodules: dict[str, list[tuple[str, str]]] = {}
        if not touched:
            return
        for mark in CommitJudgement(repository.git.top, jar_top, globs, touched).marks():
            self.marks.setdefault(mark.commit, []).append(mark)
        for item in touched:
            path = _in_project(repository, item.path)
            self.paths.setdefault(item.commit, set()).add(path)
            if path.startswith("/"):
                self.marks.setdefault(item.commit, []).append(Mark(item.commit, item.path, _OUTSIDE, protected=False))
            if item.mode == item.old_mode == 0o160000:  # a new one has a mark
                self.submodules.setdefault(item.commit, []).append((item.path, item.link))


def _in_project(repository: JarRepository, path: str) -> str:
    """Return a path of the repository as the project knows it; one outside of the project keeps a leading slash."""
    if repository.path:
        return f"{repository.path}/{path}"
    inside = path.removeprefix(repository.prefix)
    return inside if inside != path or not repository.prefix else f"/{path}"


def _touches(paths: frozenset[str], held: str) -> bool:
    return held in paths or any(path.startswith(f"{held}/") for path in paths)
