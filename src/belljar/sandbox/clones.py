"""Python on bubblewrap, in a pool: jars that are cloned from one interpreter, ahead of time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from belljar.backends.contract import EnforcementReport, Entry
from belljar.backends.hostile_files import open_beneath, walk
from belljar.errors import PolicyError
from belljar.policy.models import Policy
from belljar.sandbox.events import Finished, Output
from belljar.sandbox.inputs import opened_input
from belljar.sandbox.result import Artifact
from belljar.sandbox.running import Watch, make_result, new_run_id, refused_result
from belljar.sandbox.sandbox import network_of
from belljar.sandbox.stream import Handle
from belljar.sandbox.work import Work

if TYPE_CHECKING:
    from belljar.backends.bubblewrap.backend import BubblewrapBackend
    from belljar.egress.events import Event
    from belljar.sandbox.network import Network

_MOST_ARTIFACTS = 1000


class Clones:
    """The jars that wait, and the runs that take them."""

    def __init__(
        self,
        backend: BubblewrapBackend,
        policy: Policy,
        size: int,
        preload: Sequence[str],
        on_egress: Callable[[Event], None] | None,
    ) -> None:
        self._policy = policy
        self._network = network_of(policy, on_egress)
        self._planted = _in_workspace(policy, self._network)
        if self._network:
            self._network.prepare()
        trust = self._network.trust if self._network else None
        self._plan, self._jars = backend.open_pool(policy, size=size, preload=preload, trust=trust)
        self._report = EnforcementReport((*self._plan.report.clauses, *self._jars.shortfalls), self._plan.report.unseen)
        self._refused = self._report.refused_by(policy)

    def statistics(self) -> dict[str, int]:
        """How many jars wait and run, how many runs wait for one, and how many interpreters there have been."""
        return self._jars.statistics()

    def close(self) -> None:
        """End every run, and let go of every jar."""
        self._jars.close()

    def events(self, handle: Handle, work: Work) -> Generator[Output | Finished, None, None]:
        """Run it in a jar that nobody has used and nobody will use again."""
        run_id, started = new_run_id(), time.monotonic()
        if self._refused:
            yield Finished(refused_result(self._policy, self._plan, run_id, self._report, self._refused))
            return
        files = {**self._planted, **work.files}
        with self._network.of_run(run_id, handle.kill) if self._network else contextlib.nullcontext() as network:
            with _input(work) as descriptor:
                process = self._jars.start(
                    work.code,
                    name=_usable(work.name),
                    arguments=work.arguments,
                    files=files,
                    stdin=descriptor,
                    timeout_seconds=self._policy.proc.timeout_seconds,
                )
            try:
                handle.started(process)
                if network:
                    network.serve(process)
                watch = Watch(process, self._policy.proc.output_bytes)
                yield from watch.events()
                end = process.end()
                if network:
                    network.close()
                    end = network.judged(end)
                result = make_result(
                    self._policy,
                    self._plan,
                    watch,
                    end,
                    run_id=run_id,
                    report=self._report,
                    started=started,
                    artifacts=_made(process.workspace, files),
                    fallback_from=(),
                    traffic=network.traffic if network else None,
                )
                if work.artifacts is not None and result.artifacts:
                    from belljar.sandbox.artifacts import save

                    save(process.workspace, [artifact.path for artifact in result.artifacts], work.artifacts)
                yield Finished(result)
            finally:
                handle.ended()
                process.close()


@contextlib.contextmanager
def _input(work: Work) -> Iterator[int]:
    """What the code reads; nothing at all is opened anew for each: its flags are the run's own."""
    with opened_input(work.stdin) as given:
        if given is not None:
            yield given
            return
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield nothing
        finally:
            os.close(nothing)


def _in_workspace(policy: Policy, network: Network | None) -> dict[str, bytes]:
    """The canary tokens, as files that every run is given."""
    planted = dict(network.planted) if network else {}
    top = f"{policy.fs.workdir.rstrip('/')}/"
    for path in planted:
        if not path.startswith(top):
            raise PolicyError(
                f"net.canary_files: {path} is not in the workspace of a pool's runs", hint=f"put it beneath {top}"
            )
    return {path[len(top) :]: content for path, content in planted.items()}


def _usable(name: str) -> str:
    name = os.path.basename(name)
    usable = name.isprintable() and len(os.fsencode(name)) < 200 and name not in ("", ".", "..")
    return name if usable else "main.py"


def _made(workspace: int, given: Mapping[str, bytes]) -> tuple[Artifact, ...]:
    """The files that the run made, or that it was given and changed."""
    if workspace < 0:
        return ()
    made = [
        Artifact(entry.path, entry.size)
        for entry in walk(workspace, own=True)
        if entry.kind == "file" and not _is_as_given(workspace, entry, given.get(entry.path))
    ]
    return tuple(sorted(made, key=lambda artifact: artifact.path)[:_MOST_ARTIFACTS])


def _is_as_given(workspace: int, entry: Entry, content: bytes | None) -> bool:
    if content is None or len(content) != entry.size:
        return False
    with os.fdopen(open_beneath(workspace, entry.path, os.O_RDONLY, own=True), "rb") as file:
        return file.read(len(content) + 1) == content


__all__ = ["Clones"]
