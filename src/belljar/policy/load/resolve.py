"""From names to a policy: a preset or a file and what it extends, the API's mappings, the options of a command.

Everything that touches the host for a policy is called from here. The way of a plain preset stays short: its layer is
compiled, and neither YAML nor the validator is imported for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from belljar.errors import PolicyError
from belljar.policy import paths
from belljar.policy.layer import Layer, Written
from belljar.policy.load.assemble import assemble
from belljar.policy.load.merge import Merged
from belljar.policy.models import Mount, Origin, Policy
from belljar.policy.presets import PRESETS, preset_layer, preset_names
from belljar.policy.problems import Problems, nearest, place

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

    from belljar.policy.keys.units import Duration

DEFAULT_PRESET = "aicode"
MANAGED_PATH = "/etc/belljar/policy.yaml"
MANAGED_OWNER = 0
DEEPEST_EXTENDS = 8
_API = "Sandbox(policy=…)"
_UNRESTRICTED = "unrestricted"


def resolve(
    source: str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[str] = (),
    layers: Sequence[Mapping[str, Any]] = (),
    workspace: str | None = None,
    live: bool = False,
    backend: str | None = None,
    timeout: Duration | None = None,
    managed: str | None = MANAGED_PATH,
    layers_are: str = _API,
) -> Policy:
    """The policy that `source` names, with the layers over it, beneath the host's managed policy.

    Args:
        source: a preset, or the path of a YAML file (it has a `/`, ends in `.yaml` or `.yml`, or is there); `aicode`
            when nothing is given.
        layers: mappings in the form of the file, each laid over what is before it.
        overrides: `key=value`, as `--set` takes them.
        workspace: a directory of the host to show at /workspace, copy on write.
        live: show the workspace itself, not a copy on write.
        backend: what `--backend` says.
        timeout: what `--timeout` says: text such as `5s`, or from Python seconds or a `timedelta`.
        managed: the ceiling's file; only tests have another.
        layers_are: what messages and denials call the place where `layers` were written.

    Raises:
        PolicyError: with every problem of every layer.

    """
    problems = Problems()
    if workspace is not None and not paths.can_be_named(workspace):
        raise PolicyError(f"--workspace: wanted a directory, found {workspace[:60]!a}")
    reader = _Sources(problems, workspace, layers_are)
    chain = reader.base_and_layers(source, layers)
    chain += _options(overrides, backend, timeout, problems)
    if workspace is not None:
        chain.append(_workspace_layer(workspace, problems, live=live))
    merged = Merged()
    for layer in chain:
        merged.lay(layer, problems)
    problems.check()
    _refuse_files_within_mounts(reader.files, merged.values, problems)
    ceiling = None if managed is None else read_managed(managed)
    dangerous = False
    if _could_be_dangerous(merged.values):
        from belljar.policy.load.dangers import judge

        dangerous = judge(merged.values, problems, unrestricted=reader.unrestricted, ceiling=ceiling)
    if ceiling is not None:
        from belljar.policy.load.ceiling import apply

        apply(merged, ceiling, problems)
    _hide_state(merged.values, problems)
    problems.check()
    policy = assemble(merged.values, problems, dangerous=dangerous)
    problems.check()
    assert policy is not None
    return policy


def from_mapping(mapping: Mapping[str, Any]) -> Policy:
    """The policy of one mapping in the form of the file, over `aicode` unless it has `extends`.

    Raises:
        PolicyError: as `resolve`.

    """
    return resolve(layers=[mapping])


def read_managed(path: str, *, owner: int | None = None) -> Layer | None:
    """The managed policy at `path`, or None where there is none.

    Raises:
        PolicyError: when it is wrong, or someone else than root may have written it. It is never skipped.

    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PolicyError(f"{path}: the managed policy can't be read: {error.strerror}") from None
    from belljar.policy.load.reading import read_file
    from belljar.policy.load.validate import validate

    problems = Problems()
    tree = read_file(path, problems, owner=MANAGED_OWNER if owner is None else owner)
    layer = validate(tree, problems, base=os.path.dirname(path), must_exist=False)
    if extends := layer.get("extends"):
        problems.add(extends.origin, "extends: wanted only what binds, found a base: a managed policy stands alone")
    for item in layer["fs.deny_globs"].value if "fs.deny_globs" in layer else ():
        if item.value.startswith("!"):
            problems.add(item.origin, "fs.deny_globs: wanted a pattern, found '!': a managed policy inherits nothing")
    if "net.allowlist" in layer:
        from belljar.policy.load.network_agreement import check_credentials

        check_credentials(layer, problems)
    problems.check()
    return layer


class _Sources:
    """Follows `extends` from a name to the bottom, and remembers every file that was read."""

    def __init__(self, problems: Problems, workspace: str | None, layers_are: str) -> None:
        self.problems = problems
        self.layers_are = layers_are
        self.workspace = workspace
        self.files: list[str] = []
        self.unrestricted = False
        """Whether the chain starts from the preset of that name."""

    def base_and_layers(
        self, source: str | os.PathLike[str] | None, mappings: Sequence[Mapping[str, Any]]
    ) -> list[Layer]:
        """The chain of `source`, then the API's mappings; the first of them may name the source itself."""
        layers = [self._mapping(mapping, may_extend=source is None and at == 0) for at, mapping in enumerate(mappings)]
        if source is None and layers and (extends := layers[0].get("extends")):
            return self._chain(extends.value, extends.origin, ".", ()) + layers
        named = DEFAULT_PRESET if source is None else os.fspath(source)
        return self._chain(named, None, "", ()) + layers

    def _chain(self, name: str, at: Origin | None, directory: str, above: tuple[str, ...]) -> list[Layer]:
        """The layers of `name`, lowest first. `at` is where it was written; None for the caller's own word."""
        if name == "none":
            return []
        if not paths.can_be_named(name):
            return self._stop(at, f"wanted a preset or the path of a file, found {name[:60]!a}")
        path = os.path.join(directory, name)
        if not _is_file(name, path):
            return self._preset(name, at)
        if len(above) >= DEEPEST_EXTENDS:
            return self._stop(at, f"extends: wanted at most {DEEPEST_EXTENDS} files, found more")
        real = os.path.realpath(path)
        if real in above:
            return self._stop(at, f"extends: wanted a file that is not extended already, found {name!a}: a cycle")
        return self._file(path, at, (*above, real))

    def _preset(self, name: str, at: Origin | None) -> list[Layer]:
        if name not in PRESETS:
            what = f"wanted a preset ({', '.join(PRESETS)}) or the path of a file, found {name[:60]!a}"
            text = what + nearest(name, PRESETS)
            return self._stop(at, f"extends: {text}" if at else text)
        self.unrestricted = self.unrestricted or name == _UNRESTRICTED
        extends, layer = preset_layer(name)
        return (self._preset(extends, at) if extends else []) + [layer]

    def _file(self, path: str, at: Origin | None, above: tuple[str, ...]) -> list[Layer]:
        from belljar.policy.load.reading import read_file
        from belljar.policy.load.validate import require_all, validate

        self._refuse_within_workspace(path)
        self.files.append(path)
        try:
            tree = read_file(path, self.problems)
        except PolicyError as error:
            if at is None:
                raise
            return self._stop(at, f"extends: {error.message}")
        before = len(self.problems)
        directory = os.path.dirname(path)
        layer = {} if before else validate(tree, self.problems, base=os.path.realpath(directory or "."))
        extends = layer.get("extends")
        if extends and extends.value == "none" and len(self.problems) == before:
            require_all(layer, tree, self.problems)
        if not extends:
            return [*self._preset(DEFAULT_PRESET, None), layer]
        return [*self._chain(extends.value, extends.origin, directory, above), layer]

    def _mapping(self, mapping: Mapping[str, Any], *, may_extend: bool) -> Layer:
        from belljar.policy.load.validate import require_all, validate
        from belljar.policy.nodes import from_plain

        before = len(self.problems)
        tree = from_plain(mapping, Origin(self.layers_are), self.problems)
        layer = validate(tree, self.problems, base=os.getcwd())
        extends = layer.get("extends")
        if extends and not may_extend:
            self.problems.add(extends.origin, "extends: wanted only in the first mapping, without another policy")
        elif extends and extends.value == "none" and len(self.problems) == before:
            require_all(layer, tree, self.problems)
        return layer

    def _stop(self, at: Origin | None, text: str) -> list[Layer]:
        if at is None:
            raise PolicyError(text)
        self.problems.add(at, text)
        return []

    def _refuse_within_workspace(self, path: str) -> None:
        from belljar.policy.live_places import holding

        if place := holding(path):
            raise PolicyError(
                f"{path}: a policy in {place} is never read: that was a live directory, so code could have written it",
                hint=f"read it, and move it out of {place}",
            )
        if self.workspace is None:
            return
        roots = {os.path.abspath(self.workspace), os.path.realpath(self.workspace)}
        if any(paths.beneath(step, root) for step in paths.visited(path) for root in roots):
            raise PolicyError(
                f"{path}: a policy inside the workspace is never read: the code that it confines could have written it",
                hint=f"move it out of {self.workspace}",
            )


def _could_be_dangerous(values: Layer) -> bool:
    """Whether there is anything to look at: a plain preset asks an engine for nothing and shows nothing of the host."""
    if "python.venv" in values or any(key.startswith("container.") for key in values):
        return True
    return "fs.mounts" in values and any(item.value.source for item in values["fs.mounts"].value)


def _is_file(name: str, path: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml")) or (name not in PRESETS and os.path.isfile(path))


def _options(
    overrides: Sequence[str], backend: str | None, timeout: Duration | None, problems: Problems
) -> list[Layer]:
    if not overrides and backend is None and timeout is None:
        return []
    from belljar.policy.load.options import option_layers

    if timeout is not None and not isinstance(timeout, str):
        from belljar.policy.keys.units import seconds

        timeout = f"{seconds(timeout):.3f}s"
    return option_layers(
        overrides, {"--backend": ("backend", backend), "--timeout": ("proc.timeout_ms", timeout)}, problems
    )


def _workspace_layer(workspace: str, problems: Problems, *, live: bool) -> Layer:
    origin = Origin("--workspace")
    try:
        source = paths.mount_source(os.path.abspath(workspace), "/")
    except paths.PathError as error:
        problems.add(origin, str(error))
        return {}
    mount = Mount(paths.WORKSPACE, source, rw=True, cow=not live)
    return {"fs.mounts": Written((Written(mount, origin),), origin)}


def _hide_state(values: Layer, problems: Problems) -> None:
    """Deny the state directory where a mount holds it: other runs' code and files are there, and belljar's keys.

    A mount of the state directory itself, or of what is in it, is refused. belljar itself mounts agents' homes.
    """
    mounts: tuple[Written, ...] = values["fs.mounts"].value if "fs.mounts" in values else ()
    sources = [item.value.source for item in mounts if item.value.source]
    if not sources:
        return
    from belljar.state import state_directory

    state = os.path.realpath(state_directory())
    for item in mounts:
        source = item.value.source
        if source and paths.beneath(source, state) and not _is_shown(source[len(state) + 1 :], item.value.path):
            lies = "which is belljar's own: its keys are in it"
            if source != state:
                lies = f"which lies in belljar's own directory {state}"
            problems.add(
                item.origin, f"fs.mounts: wanted a directory, found {source}, {lies}", hint="mount another directory"
            )
    if any(state != source and paths.beneath(state, source) for source in sources):
        origin = Origin("belljar's state directory")
        pattern = "".join(f"\\{letter}" if letter in "\\*?[]{}," else letter for letter in state)
        before: tuple[Written, ...] = values["fs.deny_globs"].value if "fs.deny_globs" in values else ()
        values["fs.deny_globs"] = Written((*before, Written(pattern, origin)), origin)


def _is_shown(below: str, place: str) -> bool:
    """Return True for a part of the state directory that belljar itself mounts, and not as a workspace."""
    return below.startswith("homes/") and place != paths.WORKSPACE


def _refuse_files_within_mounts(files: Sequence[str], values: Layer, problems: Problems) -> None:
    """A policy that the code could write would be the next run's policy."""
    mounts: tuple[Written, ...] = values["fs.mounts"].value if "fs.mounts" in values else ()
    writable = [item for item in mounts if item.value.source and item.value.rw]
    for file in files:
        steps = paths.visited(file) if writable else ()
        for item in writable:
            if any(paths.beneath(step, item.value.source) for step in steps):
                problems.add(
                    item.origin,
                    f"fs.mounts: wanted the policy outside what the code may write, found {place(Origin(file))} in "
                    f"{item.value.source}",
                    hint="move the policy out of it, or mount a directory beneath it",
                )


__all__ = ["DEFAULT_PRESET", "MANAGED_PATH", "PRESETS", "from_mapping", "preset_names", "read_managed", "resolve"]
