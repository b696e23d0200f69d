"""What the runs of one Sandbox share on a container engine: the volume, the server that holds it, and a container
that is up and waiting for the next run. Each run has a container of its own, used once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from belljar.backends.container.engine.cleanup_process import CLEANUP_PROCESS, owner
from belljar.backends.container.engine.engine import Engine
from belljar.backends.container.engine.faults import UnattachedError
from belljar.backends.container.jar.attached import Attached
from belljar.backends.container.jar.compile import ANY_USER, CODE, DEPOT, HOME, bind
from belljar.backends.container.jar.isolation_check import failures
from belljar.backends.container.jar.live import LiveDirectories, is_directory, need_writable, open_source, refuse_nested
from belljar.backends.container.jar.process import ContainerProcess, RefusedProcess
from belljar.backends.container.jar.removal import REMOVAL
from belljar.backends.container.jar.report import newly_unheard, unheard
from belljar.backends.container.jar.run_directories import RunDirectories
from belljar.backends.container.jar.volume import Volume, source_frames
from belljar.backends.container.jar.waiting import Waiting
from belljar.backends.contract import ChangedTree, Clause, Entry, LaunchPlan, RunRequest, Status
from belljar.backends.denied_walk import find_denied
from belljar.backends.kernel_uid import random_uid
from belljar.errors import BelljarError, PrerequisiteError, SandboxUnavailableError, UsageError
from belljar.guest.container import wire
from belljar.guest.container.volume_server import LIVE, RESERVES
from belljar.policy.globs import DenyGlobs

_FULL = (
    "the workspace has to be copied, and is larger than fs.size_mb or has more files than fs.inodes",
    "raise them (`--set fs.size_mb=4g --set fs.inodes=1000000`), or choose a smaller workspace",
)

_PATIENCE_SECONDS = 0.05
"""After a Sandbox's first run: how long to wait before another container is made ready. Many have one run only."""
_ATTEMPTS = 3
"""At a container that the engine does not get into."""


class ContainerJar:
    """The volume of a Sandbox and the containers around it."""

    shortfalls: tuple[Clause, ...] = ()

    def __init__(self, engine: Engine, plan: LaunchPlan, deny_globs: Sequence[str], *, state: str) -> None:
        self._engine = engine
        self._stage = plan.stage
        self._id = secrets.token_hex(6)
        self._volume = f"belljar-{self._id}"
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._spare: Waiting | None = None
        self._runs = 0
        self._alive: set[Attached] = set()
        self._processes: set[ContainerProcess] = set()
        self._starting = False
        self._closed = False
        self._prepare_later: threading.Timer | None = None
        self._files = ""
        self._user = random_uid() if self._stage["own_user"] else self._stage["expect"]["uid"]
        self._live = LiveDirectories(os.path.join(state, "live"), self._id)
        self._unheard: list[int] = []
        self._covers: list[tuple[str, str, str]] = []
        """Denied names in live directories: on the host, in a run, in the volume server."""
        CLEANUP_PROCESS.sweep(engine)
        CLEANUP_PROCESS.add(engine.command(), "volume", self._volume)
        try:
            self._share_live(deny_globs)
            self._make_volume()
            self._depot_container = self._start_depot()
            mirrors = os.path.join(state, "mirrors")
            self._depot = Volume(self._depot_container, mirrors, most_bytes=self._stage["volume"]["bytes"])
            self._slots = RunDirectories(self._depot, self._stage["own"])
            self._make_places()
            self._spare = self._prepare()  # the first run's: it comes up while the files are copied
            if self._stage["runtime"] == "runsc":
                self._depot.ask("load")
            self._fill(deny_globs)
            if self._stage["relay_ports"] is not None:
                found = self._spare.ready()
                self.shortfalls += unheard(found)
                self._unheard = found["unheard"]
        except BaseException:
            self.close()
            raise

    # --- opening ---

    def _share_live(self, deny_globs: Sequence[str]) -> None:
        """Have the host's own directories ready for the engine to bind, and know what is denied in them."""
        for index, view in enumerate(self._stage["views"]):
            if not view["live"]:
                continue
            uid, source, path = self._user, view["source"], view["path"]
            if not self._stage["local"]:
                raise SandboxUnavailableError(
                    f"{source} can't be shown to the code for writing: the engine is on another machine",
                    hint="leave out --live and use --apply",
                )
            if self._stage["idmap"]:
                self._live.share(index, source, uid)
            else:
                refuse_nested(source, self._stage["views"])
                if not self._stage["keeps_id"]:
                    need_writable(source, uid)
            sockets = not self._stage["expect"]["gvisor"]
            denied = self._live.covers(source, path, tuple(deny_globs), sockets=sockets)
            self._covers += [(f"{source}/{name}", f"{path}/{name}", f"{LIVE}/{index}/{name}") for name in denied]
        lost = self._live.shortfalls
        self.shortfalls = tuple(Clause("fs.deny_globs", Status.DEGRADED, "covered files", why) for why in lost)

    def _cover(self, *, depot: bool) -> list[str]:
        """The engine's arguments that cover what is denied in live directories and is there now."""
        arguments = []
        for on_host, in_run, in_depot in self._covers:
            if (directory := is_directory(on_host)) is not None:
                cover = self._live.closed(directory=directory)
                arguments += ["--mount", bind(cover, in_depot if depot else in_run, writable=False)]
        return arguments

    def _make_volume(self) -> None:
        own = self._stage["volume"]["options"].replace("{user}", str(self._user))
        options = ("type=tmpfs", "device=tmpfs", f"o={own}")
        labels = ("belljar=1", f"belljar.owner={owner()}", f"belljar.jar={self._id}")
        arguments = [part for option in options for part in ("--opt", option)]
        arguments += [part for label in labels for part in ("--label", label)]
        self._engine.run("volume", "create", *arguments, self._volume)

    def _start_depot(self) -> Attached:
        live = [index for index, view in enumerate(self._stage["views"]) if view["live"]]
        container = self._attach("depot", self._stage["depot"], role="depot", absent=[], quota=DEPOT, live=live)
        self._files = self._engine.run("volume", "inspect", "--format", "{{.Mountpoint}}", self._volume).strip()
        found = container.ready()
        volume = self._stage["volume"]
        if (found["volume_bytes"], found["volume_files"]) != (volume["bytes"], volume["files"]):
            raise SandboxUnavailableError(
                f"the volume is not the tmpfs that was asked for: it has {found['volume_bytes']} bytes",
                hint="run `belljar doctor`: this engine's volumes may have no size",
            )
        return container

    def _attach(self, run: str, arguments: list[str], *, slot: str = "", **config: Any) -> Attached:
        """A container that starts, and has been told what it is.

        On a busy machine podman does not always get into what it has just started: then there is another attempt.
        """
        for attempt in range(_ATTEMPTS):
            container = self._start(f"{run}-{attempt}" if attempt else run, arguments, slot=slot)
            try:
                container.configure(**config)
            except UnattachedError:
                self._remove(container)
                if attempt + 1 == _ATTEMPTS:
                    raise
            except BelljarError:
                self._remove(container)
                raise
            else:
                break
        return container

    def _start(self, run: str, arguments: list[str], *, slot: str = "") -> Attached:
        values = {"{jar}": self._id, "{run}": run, "{slot}": slot, "{owner}": owner()}
        values |= {"{volume}": self._volume, "{files}": self._files, "{live}": self._live.directory}
        values["{user}"] = str(self._user)
        filled = [_fill_in(argument, values) for argument in arguments]
        if not self._stage["idmap"]:  # then the engine looks the paths up again, for each container
            for view in self._stage["views"]:
                if view["live"]:
                    os.close(open_source(view["source"]))
        image = filled.index(self._stage["image_id"])
        filled[image:image] = self._cover(depot=run.startswith("depot"))
        with self._lock:
            if self._closed:
                raise UsageError("this Sandbox is closed")
            container = Attached(self._engine, filled, filled[filled.index("--name") + 1])
            self._alive.add(container)
        return container

    def _make_places(self) -> None:
        """The directories of the mounts, and in them the places of mounts that are inside others."""
        views = self._stage["views"]
        self._depot.ask("make", directories={f"m{index}": 0o755 for index in range(len(views))}, reserves=[])
        self._slots.make_first()
        if self._stage["own_user"]:
            self._depot.ask("name", user=self._user, instead_of=ANY_USER, home=HOME)
        for index, outer in enumerate(views):
            for path in _inside(outer, views):
                if outer["live"]:
                    raise UsageError(f"{outer['path']}/{path} lies in a live directory: a container can't mount there")
                self._depot.ask("mkdir", mount=index, path=path)

    def _fill(self, deny_globs: Sequence[str]) -> None:
        """Copy the host's directories in, but for what is denied in them. No code has been started yet."""
        for index, view in enumerate(self._stage["views"]):
            if view["source"] is not None and not view["live"]:
                self._copy_in(index, view["source"], view["path"], deny_globs)

    def _copy_in(self, index: int, source: str, jar_path: str, deny_globs: Sequence[str]) -> None:
        if not os.path.isdir(source):
            raise UsageError(
                f"{source} is a file: a container's mounts are directories",
                hint="mount the directory that it is in, or use --backend bubblewrap",
            )
        globs = DenyGlobs(tuple(deny_globs)).within(source, jar_path)
        root = open_source(source)
        try:
            found = find_denied(f"/proc/self/fd/{root}" if sys.platform == "linux" else source, source, jar_path, globs)
            denied = set(found.paths)

            def wanted(path: str) -> bool:  # judged again: it may have been made since the walk
                return path not in denied and globs.denies(f"{source}/{path}", f"{jar_path}/{path}") is None

            self._depot.fill(index, source_frames(root, found.directories, wanted))
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise SandboxUnavailableError(_FULL[0], hint=_FULL[1]) from error
            raise SandboxUnavailableError(f"{source} can't be copied: {error.strerror}") from error
        finally:
            os.close(root)

    # --- running ---

    def launch(
        self, plan: LaunchPlan, request: RunRequest, *, stdin: int | None, prepare: bool = False
    ) -> ContainerProcess | RefusedProcess:
        """Start a run in the container that waits for it, or in a new one; have the next one wait if asked."""
        self._depot.need()
        with self._lock:
            self._need_quiet()
            spare, self._spare = self._spare, None
            self._runs += 1
            if self._prepare_later is not None:
                self._prepare_later.cancel()
        try:
            return self._go(spare, plan, request, stdin, prepare=prepare)
        finally:
            self._starting = False

    def prepare(self, plan: LaunchPlan, request: RunRequest) -> None:  # noqa: ARG002 - one is like another
        """Have a container wait for the next run."""
        self._prepare_next()

    def _go(
        self, spare: Waiting | None, plan: LaunchPlan, request: RunRequest, stdin: int | None, *, prepare: bool
    ) -> ContainerProcess | RefusedProcess:
        waiting, found = self._at_its_gate(spare)
        problems = failures(found, {**self._stage["expect"], "uid": self._user}) + newly_unheard(found, self._unheard)
        if problems:
            waiting.close()
            self._remove(waiting.container)
            return RefusedProcess(problems)
        message, files = self._command(plan, request, stdin=stdin is not None)
        process = ContainerProcess(
            waiting.container,
            stdin=stdin,
            timeout_seconds=plan.limits["timeout_seconds"],
            order=message + b"".join(files),
            listeners=waiting.listeners(),
            relays=self._stage["relay_ports"] is not None,
            kept=waiting.container.name if self._stage["keep"] else "",
            reaches=self._stage["reaches"],
            ended=lambda process: self._run_ended(process, waiting, prepare=prepare),
        )
        with self._lock:
            self._processes.add(process)
        self._slots.lend(waiting.slot, process)
        try:
            process.start()
        except BelljarError:
            self._forget(process, waiting)
            raise
        if self._stage["keep"]:
            CLEANUP_PROCESS.done(waiting.container.name)  # from here on it stays, whatever happens
            with self._lock:
                self._alive.discard(waiting.container)
        if prepare and self._runs > 1:  # more will follow: the next one gets ready while this one runs
            self._prepare_next()
        return process

    def _forget(self, process: ContainerProcess, waiting: Waiting) -> None:
        """Its container was gone before the code could start."""
        process.let_go()
        process.close()
        with self._lock:
            self._processes.discard(process)
        self._slots.lost(waiting.slot)
        waiting.close()
        self._remove(waiting.container)

    def _at_its_gate(self, spare: Waiting | None) -> tuple[Waiting, dict[str, Any]]:
        """A container that waits, and what it found; a spare that something else removed is not missed."""
        if spare is not None:
            with contextlib.suppress(BelljarError):
                found = spare.ready()
                if not spare.container.is_over:
                    return spare, found
            self._give_back(spare)
        try:
            waiting = self._prepare()
            try:
                return waiting, waiting.ready()
            except BelljarError:
                self._give_back(waiting)
                raise
        except PrerequisiteError:  # nothing to mount? Perhaps the volume's holder is gone
            self._depot.ask("make", directories={}, reserves=[])
            raise

    def _command(self, plan: LaunchPlan, request: RunRequest, *, stdin: bool) -> tuple[bytes, list[bytes]]:
        code, name = request.code, plan.stage["code_name"]
        message = {
            "do": "run",
            "argv": list(plan.argv),
            "env": dict(plan.env),
            "workdir": plan.workdir,
            "code_directory": CODE,
            "reserves": RESERVES,
            "files": [] if code is None else [[name, len(code)]],
            "python": plan.stage["python"],
            "timeout_seconds": plan.limits["timeout_seconds"],
            "pids": plan.limits["pids"],
            "cpu_quota": plan.limits["cpu_quota"] if plan.stage["runtime"] == "runsc" else None,
            "rlimits": plan.stage["rlimits"],
            "stdin": stdin,
            **_filters(plan, files=request.explain_denials),
        }
        data = code or b""
        frames = [wire.encode(wire.DATA, data[at : at + wire.CHUNK]) for at in range(0, len(data), wire.CHUNK)]
        return wire.message(message), frames

    def _prepare(self) -> Waiting:
        """A container that is starting, with the directories of a run of its own."""
        self._check_places()
        number, slot = str(next(self._numbers)), self._slots.take()
        config = {"role": "gate", "absent": self._stage["expect"]["absent"], "quota": "/tmp"}
        try:
            ports = self._stage["relay_ports"]
            container = self._attach(number, self._stage["run"], slot=slot, **config, relay=ports)
        except BelljarError:
            self._slots.give_back(slot)
            raise
        return Waiting(container, slot, self._stage)

    def _places(self) -> list[tuple[int, str]]:
        """Mount points that lie in directories which the code may write."""
        views = self._stage["views"]
        writable = [(index, outer) for index, outer in enumerate(views) if outer["writable"]]
        return [(index, path) for index, outer in writable for path in _inside(outer, views)]

    def _check_places(self) -> None:
        """Every mount point is a directory, reached through no link: the engine would follow one."""
        for mount, path in self._places():
            try:
                self._depot.ask("mkdir", mount=mount, path=path)
            except OSError as error:
                where = f"{self._stage['views'][mount]['path']}/{path}"
                raise SandboxUnavailableError(
                    f"{where} is a place to mount on, and the code has put something else there: {error.strerror}",
                    hint=f"remove it with files.remove, or open a new Sandbox; a mount outside {where} avoids it",
                ) from error

    def _need_quiet(self) -> None:
        """Where a mount lies in a writable one, no container starts while code runs.

        The code could put a link in the place of the mount point, between the check and the engine's own look.
        """
        if not self._places():
            return
        if self._processes or self._starting:
            raise SandboxUnavailableError(
                "a run of this Sandbox goes on, and one of its mounts lies inside a writable one",
                hint="let the runs follow each other, mount it elsewhere, or use --backend bubblewrap",
            )
        self._starting = True

    def _prepare_next(self) -> None:
        """Have a container wait for the next run, unless one does, or none may (see `_need_quiet`)."""
        if self._places():
            return

        def prepare() -> None:
            with contextlib.suppress(BelljarError, OSError):  # told when a run needs it
                waiting, kept = self._prepare(), False
                with self._lock:
                    if self._spare is None and not self._closed:
                        self._spare = waiting
                        kept = True
                if kept:
                    waiting.ready()  # and its gateway: off the next run's path
                    return
                self._give_back(waiting)

        with self._lock:
            if self._closed or self._spare is not None:
                return
        threading.Thread(target=prepare, name="belljar prepare", daemon=True).start()

    def _run_ended(self, process: ContainerProcess, waiting: Waiting, *, prepare: bool) -> None:
        """Take the container down, off the caller's path; what the run left in its own directories goes too."""
        waiting.close()
        if self._stage["keep"]:
            self._keep(waiting.container)
        else:
            self._remove(waiting.container)
        with self._lock:
            self._processes.discard(process)
            if self._closed:
                return
            if prepare and self._runs == 1:  # there may be no second: wait for a sign of it, or a moment
                self._prepare_later = threading.Timer(_PATIENCE_SECONDS, self._prepare_next)
                self._prepare_later.daemon = True
                self._prepare_later.start()
        with contextlib.suppress(BelljarError, OSError):
            self._slots.ended(waiting.slot, in_order=process.in_order)

    def _remove(self, container: Attached) -> None:
        with self._lock:
            if container not in self._alive:
                return
            self._alive.discard(container)
        REMOVAL.remove(self._engine, [container])

    def _give_back(self, waiting: Waiting) -> None:
        """Remove a container that no code ran in: its directories are as they were."""
        waiting.close()
        self._remove(waiting.container)
        self._slots.give_back(waiting.slot)

    def _keep(self, container: Attached) -> None:
        """Let go of a container that ran: it ends, and is the user's from now on."""
        container.bury()

    # --- files ---

    def read(self, mount: int, path: str, limit: int) -> bytes:
        """At most `limit` bytes of a file."""
        return self._depot.read(mount, path, limit)

    def write(self, mount: int, path: str, content: bytes) -> int:
        """Write a file and make the directories above it."""
        self._need_writable(mount)
        return self._depot.write(mount, path, content)

    def list(self, mount: int, path: str, *, recursive: bool) -> Iterable[Entry]:
        """The entries beneath a directory."""
        return self._depot.list(mount, path, recursive=recursive)

    def mkdir(self, mount: int, path: str) -> None:
        """Make a directory and those above it."""
        self._need_writable(mount)
        self._depot.ask("mkdir", mount=mount, path=path)

    def remove(self, mount: int, path: str) -> None:
        """Remove a file or a tree."""
        self._need_writable(mount)
        self._depot.ask("remove", mount=mount, path=path)

    def changed(self, mount: int) -> Iterable[Entry]:
        """What is not as it was copied in; the times tell of which run it is."""
        return self._depot.list(mount, ".", recursive=True, changed=True)

    def changes(self, mount: int, only: Sequence[str] | None = None) -> ChangedTree:
        """What differs from what was copied in, as a directory of the host's."""
        return self._depot.changes(mount, only)

    def _need_writable(self, mount: int) -> None:
        if not self._stage["views"][mount]["writable"]:
            raise OSError(errno.EROFS, "Read-only file system", self._stage["views"][mount]["path"])

    def close(self) -> None:
        """End every run, and have everything removed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            spare, self._spare = self._spare, None
            running = list(self._processes)
            if self._prepare_later is not None:
                self._prepare_later.cancel()
        if spare is not None:
            spare.close()
        for process in running:
            process.kill("abandoned")
        for process in running:
            process.wait()
        with self._lock:
            alive, self._alive = list(self._alive), set()
        if hasattr(self, "_depot"):
            self._depot.close()
        self._live.close()
        REMOVAL.remove(self._engine, alive, self._volume)


def _inside(outer: Mapping[str, Any], views: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where other mounts lie in this one."""
    start = f"{outer['path']}/"
    return [view["path"][len(start) :] for view in views if view["path"].startswith(start)]


def _fill_in(argument: str, values: Mapping[str, str]) -> str:
    for place, value in values.items():
        argument = argument.replace(place, value)
    return argument


def _filters(plan: LaunchPlan, *, files: bool) -> dict[str, Any]:
    """What the gate puts on the code's process: made here, because the image need not have libseccomp."""
    nothing = {"notify_filter": "", "jar_filter": "", "calls": {}, "observed": []}
    if not plan.stage["filters"]:
        return nothing
    from belljar.backends.seccomp.filters import OBSERVED, jar_filter, notify_filter, supervised

    if not plan.stage["observe"]:
        return {**nothing, "jar_filter": jar_filter(reported=False).hex()}
    return {
        "notify_filter": notify_filter(connects=plan.stage["gateway_ports"] is None, files=files).hex(),
        "jar_filter": jar_filter(reported=True).hex(),
        "calls": supervised(),
        "observed": sorted(OBSERVED),
    }
