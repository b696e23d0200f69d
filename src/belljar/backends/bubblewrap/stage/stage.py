"""The stage process: holds one Sandbox's mounts, starts its runs, watches them, opens its files.

One thread, one event loop. Nothing is imported after it has started: when root started belljar, the stage can't read
root's Python any more. It ends when the host closes its socket (or dies) or when its launcher dies, and everything with
it: bubblewrap is its child and dies with it, and its mount namespace is gone when the last of them is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Collection

from belljar._startup import json_text
from belljar._startup import sockets as socket
from belljar.backends import kernel
from belljar.backends.bubblewrap.shared import layout, wire
from belljar.backends.bubblewrap.shared.loop import Loop
from belljar.backends.bubblewrap.shared.orphans import end_orphans
from belljar.backends.bubblewrap.shared.parent_death import end_with
from belljar.backends.bubblewrap.shared.stage_plan import StagePlan
from belljar.backends.bubblewrap.shared.wire import write_all
from belljar.backends.bubblewrap.stage import staging
from belljar.backends.bubblewrap.stage.jar_run import JarRun, JarSpec, Warm, import_network
from belljar.backends.bubblewrap.stage.tree import remove_in_place
from belljar.backends.bubblewrap.stage.views import import_denying, open_inside
from belljar.errors import BelljarError, PolicyError, PrerequisiteError, SandboxUnavailableError
from belljar.guest.tree import remove_tree
from belljar.limits import rlimits
from belljar.limits.groups import JarGroup, RunGroup

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import NoReturn

    from belljar.backends.bubblewrap.stage.deny_watch import DenyWatch

_SAMPLE_SECONDS = 0.01
_NEVER = float("inf")
_SERVE_SECONDS = 60.0
"""How long a finished jar waits for its listeners to be served."""
LAUNCHER_DIED = "launcher"
"""Why a jar was ended whose launcher is gone."""
_BENEATH = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS


def main(
    control: socket.socket, plan: StagePlan, group: JarGroup | None, kernel_uid: int, *, launcher: int
) -> NoReturn:
    """Be a stage until the host is done with it, or the process `launcher` is dead."""
    kernel.set_name("belljar-stage")
    code = 0
    try:
        rlimits.forbid_cores()  # while this may be root
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if plan.network or plan.publishes:
            import_network()
        hides = any(tree.searched or tree.hidden for tree in plan.runtimes)
        if hides or any(view.source is not None for view in plan.views):
            import_denying()
        _kind(plan)(control, plan, group, kernel_uid, launcher).serve()
    except BelljarError as error:
        _answer(control, _told(error))
        code = 1
    except OSError as error:
        _answer(control, {"error": "unavailable", "message": f"the jar could not be staged: {error}"[:500], "hint": ""})
        code = 1
    except BaseException as error:  # noqa: BLE001 - the host must hear of it, whatever it is
        _answer(control, {"error": "internal", "message": f"{type(error).__name__}: {error}", "hint": ""})
        code = 1
    finally:
        os._exit(code)


def _kind(plan: StagePlan) -> type[Stage]:
    if plan.pool is None:
        return Stage
    from belljar.backends.bubblewrap.stage.pool_stage import PoolStage

    return PoolStage


def _told(error: BelljarError) -> wire.Message:
    """Return the message from which the host makes the same exception."""
    kinds: tuple[tuple[type[BelljarError], str], ...] = (
        (PolicyError, "policy"),
        (PrerequisiteError, "prerequisite"),
        (SandboxUnavailableError, "unavailable"),
    )
    name = next((name for kind, name in kinds if isinstance(error, kind)), "internal")
    return {"error": name, "message": error.message, "hint": error.hint, "fault": error.fault}


def _quoted(word: str) -> str:
    """One word for the gate's shell, whatever is in it."""
    return "'" + word.replace("'", "'\\''") + "'"


def _becoming(env: dict[str, str], command: list[str]) -> str:
    """By which the gate's shell becomes a command."""
    exports = [f"export {name}={_quoted(value)}\n" for name, value in env.items()]
    return "".join(exports) + f"exec {' '.join(map(_quoted, command))}\n"


def _answer(control: socket.socket, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
    with contextlib.suppress(OSError):
        wire.send(control, message, descriptors)


class Stage:
    """The event loop and what hangs on it."""

    def __init__(
        self, control: socket.socket, plan: StagePlan, group: JarGroup | None, kernel_uid: int, launcher: int
    ) -> None:
        self._control = control
        self._launcher = launcher
        self._asked = 0
        """The number of the request that is being answered."""
        self._plan = plan
        self._group = group
        self._kernel_uid = kernel_uid
        self._loop = Loop()
        self._runs: dict[str, JarRun] = {}
        self._hosts: dict[str, socket.socket] = {}
        """For a run in use, the socket on which the host hears of it."""
        self._spare: JarRun | None = None
        self._lookout: DenyWatch | None = None
        self._covers_everything = True
        self._cabled = True
        """Whether the gateways of its jars are namespaces of their own."""
        self._count = 0
        self._over: JarRun | None = None
        """A run of which traces are left, because the host is about to ask what it changed."""
        self._views: list[int] = []
        self._copied: list[int] = []
        self._covered: list[str] = []
        self._runs_fd = self._code_fd = self._launcher_fd = -1

    def serve(self) -> None:
        """Build, say so, and answer until the host's end closes or the launcher is gone."""
        staged = staging.build(self._plan, self._kernel_uid, launcher=self._launcher)
        self._copied, self._covered = staged.copied, staged.covered
        self._views = [open_inside(view.jar_path) for view in self._plan.views]
        if staged.whiteouts:
            from belljar.backends.bubblewrap.stage.deny_watch import DenyWatch

            self._lookout = DenyWatch(staged.whiteouts)
            self._covers_everything = self._lookout.covers_everything()
            if not self._lookout.complete:
                lost = (
                    "not every directory of the host can be watched: a denied name that appears in a new one would show"
                )
                staged.shortfalls.append(("fs.deny_globs", lost))
        self._runs_fd = os.open(layout.RUNS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._code_fd = os.open(layout.CODE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._plan.network:
            from belljar.backends.network.probe import WITHOUT_VETH, has_veth

            if not (self._plan.veth and has_veth()):
                self._cabled = False
                staged.shortfalls.append(("net.enabled", WITHOUT_VETH))
        self._launcher_fd = end_with(self._launcher)
        self._watch(self._launcher_fd, self._on_launcher_end)
        self._prepare_first()
        wire.send(
            self._control,
            {
                "kernel_uid": staged.kernel_uid,
                "shortfalls": staged.shortfalls,
                "copied": staged.copied,
                "listings": staged.remembered.text if staged.remembered and staged.remembered.changed else "",
            },
        )
        self._loop.register(self._control, self._on_control)
        if self._lookout:
            self._watch(self._lookout, self._lookout.look)
        while self._control.fileno() >= 0 or self._runs:
            due = self._due()
            for watched in self._loop.wait(None if due == _NEVER else due - time.monotonic()):
                if self._loop.watches(watched):
                    watched.data()
            if time.monotonic() >= due:
                self._on_time()

    def _prepare_first(self) -> None:
        """What has to be there before the host is answered."""

    # --- time ---

    def _timed(self) -> Collection[JarRun]:
        """The jars that may have to be ended at some time."""
        return self._runs.values()

    def _due(self) -> float:
        """When there will be something to do though nothing happens. Asked between any two events, so plainly."""
        due = _NEVER
        for run in self._timed():
            due = run.deadline if run.deadline < due else due
            if run.sampled and run.next_sample < due:
                due = run.next_sample
        return due

    def _on_time(self) -> None:
        now = time.monotonic()
        for run in [*self._timed()]:
            if now >= run.deadline and run.dying:
                run.kill_everyone()
            elif now >= run.deadline:
                run.kill("timeout" if run.started else "gate")
            elif run.sampled and now >= run.next_sample:
                run.next_sample = time.monotonic() + _SAMPLE_SECONDS
                try:
                    run.sample()
                except OSError as error:
                    run.problems = [f"its memory could not be watched: {error}"]
                    run.kill("internal")

    # --- requests ---

    def _on_control(self) -> None:
        received = wire.receive(self._control)
        if received is None:
            self._end("abandoned")
            return
        message, descriptors = received
        handler: Callable[[wire.Message, list[int]], None] = getattr(self, f"_do_{message['do']}")
        self._asked = message.get("number", 0)
        if handler != self._do_changes:  # whatever else it is may need the room
            self._clean_up_at_last()
        try:
            handler(message, descriptors)
        except OSError as error:
            self._refuse_request(error.errno, error.strerror)
        except SandboxUnavailableError as error:
            self._refuse_request(errno.EIO, error.message)
        except ValueError as error:  # text that no path can be made of
            self._refuse_request(errno.EINVAL, str(error))

    def _reply(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Answer the request. It carries the request's number: the host may have given up on an earlier one."""
        wire.send(self._control, {**message, "number": self._asked}, descriptors)

    def _refuse_request(self, number: int | None, message: str | None) -> None:
        if self._asked:  # a run is answered on its own socket
            with contextlib.suppress(OSError):
                self._reply({"errno": number, "message": message})

    def _on_launcher_end(self) -> None:
        """Nobody is left to clean up after us: say so, end every jar, and go."""
        self._forget(self._launcher_fd)
        if self._control.fileno() >= 0:
            _answer(self._control, {"error": "unavailable", **wire.LAUNCHER_DIED})
        self._end(LAUNCHER_DIED)

    def _end(self, reason: str) -> None:
        """Ask for nothing more, and end every jar; the loop goes on until each is gone."""
        if self._control.fileno() >= 0:
            self._loop.unregister(self._control)
            self._control.close()
        for run in self._runs.values():
            run.kill(reason)

    def _do_open(self, message: wire.Message, _descriptors: list[int]) -> None:
        """Open a file of a view for the host: beneath it, through no link, and only a regular file or a directory."""
        flags = message["flags"] | os.O_NONBLOCK | os.O_NOCTTY
        mode = 0o644 if flags & os.O_CREAT else 0
        found = kernel.openat2(self._views[message["view"]], message["path"], flags, resolve=_BENEATH, mode=mode)
        kind = os.fstat(found).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            os.close(found)
            raise OSError(22, "not a regular file")
        self._reply({"ok": True}, (found,))
        os.close(found)

    def _do_changes(self, message: wire.Message, _descriptors: list[int]) -> None:
        """The upper layer of a copy-on-write view, or the view's own directory: without what is mounted in it."""
        view = message["view"]
        upper = f"{layout.UPPER}/{view}"
        layered = os.path.isdir(upper) and view not in self._copied
        plain = f"{layout.PLAIN}/{view}"
        whole = plain if os.path.isdir(plain) else f"/proc/self/fd/{self._views[view]}"
        root = upper if layered else whole
        found = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._reply({"layered": layered}, (found,))
        os.close(found)

    def _do_mkdir(self, message: wire.Message, _descriptors: list[int]) -> None:
        """Make a directory and those above it."""
        parts = [part for part in message["path"].split("/") if part not in ("", ".")]
        for depth in range(1, len(parts) + 1):
            parent, name = self._parent(message["view"], "/".join(parts[:depth]))
            try:
                os.mkdir(name, 0o755, dir_fd=parent)
            except FileExistsError:
                pass
            finally:
                os.close(parent)
        self._reply({"ok": True})

    def _do_remove(self, message: wire.Message, _descriptors: list[int]) -> None:
        """Remove a file, a link itself, or a directory with all that is in it."""
        parent, name = self._parent(message["view"], message["path"])
        try:
            if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                remove_in_place(parent, name)
            else:
                os.unlink(name, dir_fd=parent)
        finally:
            os.close(parent)
        self._reply({"ok": True})

    def _do_usage(self, message: wire.Message, _descriptors: list[int]) -> None:
        """What a run uses now."""
        run = self._runs.get(message["name"])
        self._reply({"usage": run.usage() if run is not None and run.started else {}})

    def _parent(self, view: int, path: str) -> tuple[int, str]:
        directory, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            raise OSError(22, "not a name")
        flags = os.O_PATH | os.O_DIRECTORY
        return kernel.openat2(self._views[view], directory or ".", flags, resolve=_BENEATH), name

    # --- runs ---

    def _do_run(self, message: wire.Message, descriptors: list[int]) -> None:
        """Start a run. What goes wrong with it is told on its own socket, and harms no other."""
        host = socket.socket(fileno=descriptors.pop(0))
        standard_input = descriptors.pop(0) if message["stdin"] else -1
        code = descriptors.pop(0) if descriptors else -1
        try:
            self._look_out()
            run = self._choose_jar(message, standard_input)
            self._start(run, message, host, code)
        except BelljarError as error:
            self._refuse(host, _told(error))
        except (OSError, ValueError) as error:
            self._refuse(host, {"error": "unavailable", "message": f"the run could not start: {error}", "hint": ""})
        finally:
            if code >= 0:
                os.close(code)

    def _do_prepare(self, message: wire.Message, _descriptors: list[int]) -> None:
        """Have a jar wait for the first run."""
        warm = message["warm"]
        self._prepare(JarSpec.of(message["jar"]), None if warm is None else Warm(**warm))

    def _do_freeze(self, message: wire.Message, _descriptors: list[int]) -> None:
        """Have a run stand still. The host asks again until it does: a process may wait for an answer of ours."""
        by, still = self._run_named(message).freeze()
        self._reply({"by": by, "still": still})

    def _do_thaw(self, message: wire.Message, _descriptors: list[int]) -> None:
        """Let it go on."""
        self._run_named(message).thaw()
        self._reply({"ok": True})

    def _run_named(self, message: wire.Message) -> JarRun:
        if (run := self._runs.get(message["name"])) is None:
            raise ProcessLookupError(errno.ESRCH, "the run has ended")
        return run

    def _refuse(self, host: socket.socket, message: wire.Message) -> None:
        """Tell the host why there is no run, and end the jar that was meant for it."""
        for name, other in list(self._hosts.items()):
            if other is host:
                self._forget(host)
                del self._hosts[name]
                self._runs[name].kill("unused")
        _answer(host, message)
        host.close()

    def _look_out(self) -> None:
        """What the host made before it asked is covered for certain, or there is no run."""
        if self._lookout is None:
            return
        self._lookout.look()
        if self._covers_everything and not self._lookout.covers_everything():
            raise SandboxUnavailableError(
                "the host changed more in a mounted directory than could be watched, so denied names may show",
                hint="open a new Sandbox, or set fs.snapshot: true",
            )

    def _choose_jar(self, message: wire.Message, standard_input: int) -> JarRun:
        """The jar that waits, if it is the right one, else a new one."""
        spec = JarSpec.of(message["jar"])
        waiting = self._take_spare(spec, message) if standard_input < 0 else None
        return waiting or self._make_jar(spec, standard_input, message["absent_at_first"] if self._count == 0 else [])

    def _start(self, run: JarRun, message: wire.Message, host: socket.socket, code: int) -> None:
        self._hosts[run.name] = host
        self._watch_run(run, host, lambda: self._on_host(run, host))
        self._write_code(run, message, code)
        run.timeout_seconds, run.prepares = message["timeout_seconds"], message["prepare"]
        wire.send(host, {"run": run.name}, run.outputs)
        run.close_outputs()
        if run.ready:
            self._go(run, host)

    def _go(self, run: JarRun, host: socket.socket) -> None:
        """Open the gate; but where there are listeners, hand them over, and wait for the host's word that they work."""
        if not run.listeners:
            run.go()
            return
        roles = [[listener.role, listener.port] for listener in run.listeners]
        wire.send(host, {"listeners": roles}, tuple(listener.descriptor for listener in run.listeners))
        run.close_listeners()
        run.deadline = time.monotonic() + _SERVE_SECONDS

    def _prepare(self, spec: JarSpec, warm: Warm | None = None) -> None:
        """Have a jar at its gate for the next run: fresh, and made while nobody waits."""
        if self._spare is not None and (self._spare.spec, self._spare.warm) != (spec, warm):
            self._spare.kill("unused")
            self._spare = None
        if self._spare is None:
            with contextlib.suppress(BelljarError, OSError):  # told by the run that then has to make its own
                self._spare = self._make_jar(spec, -1, [])
                self._spare.warm = warm

    def _take_spare(self, spec: JarSpec, message: wire.Message) -> JarRun | None:
        spare = self._spare
        if spare is None or spare.spec != spec or spare.problems or spare.ended_by:
            return None
        if spare.is_warm and not (spare.warm and spare.warm.suits(message)):
            return None
        self._spare = None
        return spare

    def _make_jar(self, spec: JarSpec, standard_input: int, absent: list[str]) -> JarRun:
        self._count += 1
        name = f"run-{self._count}"
        group = None
        try:
            self._make_directories(name)
            group = self._group.run_group(name, spec.limits) if self._group else None
            run = JarRun(name, spec, group, absent, self._covered, cabled=self._cabled)
            run.launch(
                os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if standard_input < 0 else os.dup(standard_input)
            )
        except BaseException:
            self._remove_traces(name, group)
            raise
        finally:
            if standard_input >= 0:
                os.close(standard_input)
        self._runs[name] = run
        assert run.gate is not None
        self._watch_run(run, run.gate, lambda: self._on_gate(run))
        self._watch(run.pidfd, lambda: self._on_bubblewrap_end(run))
        if run.observer:
            observer = run.observer
            self._watch_run(run, observer, lambda: None if observer.on_readable() else self._forget(observer))
        self._watch_memory(run)
        return run

    def _make_directories(self, name: str) -> None:
        os.mkdir(name, 0o755, dir_fd=self._code_fd)
        try:
            for path in (name, f"{name}/tmp", f"{name}/tmp/home", f"{name}/shm"):
                os.mkdir(path, 0o700, dir_fd=self._runs_fd)
        except OSError as error:
            raise SandboxUnavailableError(
                f"the workspace is full (fs.inodes, fs.size_mb), so there is no room for a new run: {error.strerror}",
                hint="remove files from it (files.remove), or raise fs.inodes and fs.size_mb",
                fault="code",
            ) from error

    def _watch_memory(self, run: JarRun) -> None:
        if run.group is None or (oom := run.group.oom_fd()) is None:
            return
        self._loop.register(oom, lambda: self._on_oom(run), events=run.group.oom_mask)

    def _write_code(self, run: JarRun, message: wire.Message, code: int) -> None:
        """The code's file, and the command by which the gate becomes it. Both are read-only in the jar."""
        if code >= 0:
            self._write_file(f"{run.name}/{message['code_name']}", os.pread(code, os.fstat(code).st_size, 0))
        if run.is_warm:
            assert run.warm is not None
            command = json_text.dumps({"workdir": run.warm.workdir, "argv": message["command"][1:]})
        else:
            command = _becoming(message["env"], message["command"])
        self._write_file(f"{run.name}/{layout.COMMAND}", os.fsencode(command))

    def _warm_up(self, run: JarRun, warm: Warm) -> None:
        """While it waits, let it become its interpreter: which starts where no run has files, since it looks there."""
        shim = f"{layout.JAR_CODE}/{layout.SHIM}"
        becoming = _becoming(warm.env, [warm.program, "-r", shim, warm.main])
        self._write_file(f"{run.name}/{layout.SHIM}", warm.shim.encode())
        self._write_file(f"{run.name}/{layout.WARM}", os.fsencode(f"cd {layout.JAR_CODE}\nunset OLDPWD\n{becoming}"))
        run.become_warm()

    def _write_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        target = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=self._code_fd)
        try:
            write_all(target, content)
        finally:
            os.close(target)

    def _watch_run(self, run: JarRun, what: int | socket.socket | object, then: Callable[[], None]) -> None:
        """Watch something of one run's: whatever goes wrong there ends that run, and no other."""

        def guarded() -> None:
            try:
                then()
            except (OSError, ValueError, ArithmeticError, LookupError, BelljarError) as error:
                run.problems = run.problems or [f"{type(error).__name__}: {error}"]
                self._forget(what)
                run.kill("internal")

        self._watch(what, guarded)

    def _watch(self, what: int | socket.socket | object, then: Callable[[], None]) -> None:
        self._loop.register(what, then)

    def _forget(self, what: int | socket.socket | object) -> None:
        try:
            self._loop.unregister(what)
        except (KeyError, ValueError):
            pass

    def _on_gate(self, run: JarRun) -> None:
        self._forget(run.gate)
        try:
            holds = run.at_gate()
        except OSError as error:  # it died while we looked
            run.problems, holds = [f"the jar could not be looked into: {error}"], False
        if not holds:
            run.kill("canary" if run.init_pid else "gate")
        elif run.name in self._hosts:
            self._go(run, self._hosts[run.name])
        elif run.warm:
            self._warm_up(run, run.warm)

    def _on_host(self, run: JarRun, host: socket.socket) -> None:
        received = wire.receive(host)
        if received is not None and "go" in received[0]:
            run.go()
            return
        run.kill("abandoned" if received is None else received[0]["kill"])
        if received is None:
            self._forget(host)

    def _on_oom(self, run: JarRun) -> None:
        if run.group and run.group.out_of_memory():
            run.kill("oom")

    def _on_bubblewrap_end(self, run: JarRun) -> None:
        """Bubblewrap ends when the code does; then its pid 1, and with it every process left, is killed and awaited."""
        self._forget(run.pidfd)
        if run.init_fd >= 0:
            run.end_jar()
            self._watch(run.init_fd, lambda: self._finish(run))
        else:
            self._finish(run)

    def _finish(self, run: JarRun) -> None:
        del self._runs[run.name]
        if self._spare is run:
            self._spare = None
        host = self._hosts.pop(run.name, None)
        oom = run.group.oom_fd() if run.group else None
        for watched in (run.init_fd, run.gate, run.observer, host, oom):
            if watched is not None and watched != -1:
                self._forget(watched)
        end = run.collect()
        if host:
            if run.ended_by != LAUNCHER_DIED:  # then the end of the file says it: the run has no result
                _answer(host, end)
            host.close()
        run.close()
        self._clean_up(run, at_once=run.prepares or host is None)
        if run.prepares and self._control.fileno() >= 0:
            self._prepare(run.spec)

    def _clean_up(self, run: JarRun, *, at_once: bool) -> None:
        """After the host has its answer: nothing of the run stays but what it left in the workspace.

        Where no other is to follow, the host is about to ask what this one changed, and then to leave: what is there
        goes with the stage's own mounts, and the groups with the launcher's. If it asks for more, this is done before.
        """
        end_orphans({pid for other in self._runs.values() for pid in other.helpers()})
        self._clean_up_at_last()
        self._over = run
        if at_once:
            self._clean_up_at_last()

    def _clean_up_at_last(self) -> None:
        if self._over is not None:
            self._remove_traces(self._over.name, self._over.group)
            self._over = None

    def _remove_traces(self, name: str, group: RunGroup | None) -> None:
        for parent in (self._runs_fd, self._code_fd):
            with contextlib.suppress(OSError):
                remove_tree(parent, name)
        if group:
            try:
                group.remove()
            except SandboxUnavailableError as error:
                print(f"belljar: {error}", file=sys.stderr)
