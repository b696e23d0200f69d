"""The managed policy as a ceiling: nothing that is written beneath it grants more than it does. Pure.

Only the keys that the ceiling writes bind. What a preset has above it is lowered, because nobody asked for it; what a
file, a mapping or an option writes above it is an error that names both places. How each key is bound is the table's
(`keys.Bound`); each way is one small function here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from belljar.policy.globs import DenyGlobs
from belljar.policy.keys import units
from belljar.policy.keys.hosts import covers
from belljar.policy.keys.redaction import DEFAULT_KINDS, DEFAULT_PLACES
from belljar.policy.keys.table import KEYS, Bound, ValueKind
from belljar.policy.layer import Layer, Written
from belljar.policy.load.merge import Merged
from belljar.policy.models import HostRule, Mount, Origin
from belljar.policy.paths import beneath
from belljar.policy.problems import Problems, found, place

_SYSTEM = ("/usr", "/bin")
"""What every jar sees anyway."""


def apply(merged: Merged, ceiling: Layer, problems: Problems, *, name: str = "managed policy") -> None:
    """Lower the presets' values to the ceiling, and note what others wrote above it."""
    binding = _Ceiling(merged, ceiling, problems, name)
    for key, written in ceiling.items():
        if key in KEYS:
            _BINDERS[KEYS[key].bound](binding, key, written)
    binding.unconfined()
    binding.sources_denied()
    binding.unwritten()


class _Ceiling:
    def __init__(self, merged: Merged, ceiling: Layer, problems: Problems, name: str) -> None:
        self.name = name
        self.merged = merged
        self.values = merged.values
        self.ceiling = ceiling
        self.problems = problems

    def most(self, key: str, limit: Written) -> None:
        written = self.values.get(key)
        value = written.value if written else KEYS[key].default
        if limit.value is not None and (value is None or value > limit.value):
            self._lower(key, written, limit, f"at most {_shown(key, limit.value)}")

    def same(self, key: str, limit: Written) -> None:
        written = self.values.get(key)
        if key.startswith("python.") or key == "net.ca_file":
            # None shows nothing of the host and trusts nothing more, and so is never more.
            if written and written.value and os.path.realpath(written.value) != os.path.realpath(limit.value or ""):
                self._lower(key, written, limit, found(limit.value))
        elif written is None or written.value != limit.value:
            self._lower(key, written, limit, _shown(key, limit.value))

    def stays_off(self, key: str, limit: Written) -> None:
        written = self.values.get(key)
        if not limit.value and written and written.value:
            self._lower(key, written, limit, "false")

    def stays_on(self, key: str, limit: Written) -> None:
        written = self.values.get(key)
        if limit.value and written and not written.value:
            self._lower(key, written, limit, "true")

    def order(self, key: str, limit: Written) -> None:
        written = self.values.get(key)
        choices = KEYS[key].choices
        value = written.value if written else KEYS[key].default or choices[0]
        if choices.index(value) > choices.index(limit.value):
            self._lower(key, written, limit, " or ".join(choices[: choices.index(limit.value) + 1]))

    def backend(self, key: str, limit: Written) -> None:
        written = self.values.get(key)
        if limit.value == "auto":
            return
        if written is None or written.value == "auto":
            self.values[key] = limit
        elif written.value != limit.value:
            self._lower(key, written, limit, limit.value)
        self._keep("fallback", {limit.value, *self._names("fallback")}, limit.origin)

    def unconfined(self) -> None:
        """Whatever else the ceiling says: no sandbox at all must be its own word."""
        named = {self.ceiling["backend"].value} if "backend" in self.ceiling else set()
        if "agents.unsandboxed" not in self.ceiling:
            self.stays_off("agents.unsandboxed", Written(False, Origin(self._origin().file)))  # noqa: FBT003
        if "unconfined" in named | self._names("fallback"):
            return
        origin = Origin(self._origin().file)
        backend = self.values.get("backend")
        if backend and backend.value == "unconfined":
            self._lower("backend", backend, Written("auto", origin), "a sandbox")
        confined = {item.value for item in self._items("fallback")} - {"unconfined"}
        self._keep("fallback", confined, origin)

    def _origin(self) -> Origin:
        return next(iter(self.ceiling.values())).origin if self.ceiling else Origin(f"the {self.name}")

    def subset(self, key: str, limit: Written) -> None:
        pinned = self.ceiling.get("backend")
        if key == "fallback" and pinned and pinned.value != "auto":
            return  # a pinned backend binds both
        self._keep(key, self._names(key), limit.origin)

    def degraded(self, key: str, limit: Written) -> None:
        written = self.values.get(key)
        if written is None or limit.value == "allow" or written.value == "refuse":
            return
        accepted: tuple[str, ...] = () if limit.value == "refuse" else limit.value
        if written.value != "allow" and set(written.value) <= set(accepted):
            return
        if written.preset and written.value != "allow":
            kept = tuple(clause for clause in written.value if clause in accepted)
            self.values[key] = Written(kept or "refuse", limit.origin)
            return
        wanted = "refuse" if not accepted else f"nothing beyond {', '.join(accepted)}"
        self._lower(key, written, limit, wanted)

    def kept(self, key: str, limit: Written) -> None:
        present = {item.value for item in self._items(key)}
        for item in limit.value:
            if removal := self.merged.removed_globs.get(item.value):
                self.problems.add(
                    removal,
                    f"{key}: wanted {found(item.value)} to stay, as {place(item.origin)} says, found it removed",
                )
        missing = tuple(item for item in limit.value if item.value not in present)
        under = self.values.get(key)
        origin = under.origin if under else limit.origin
        self.values[key] = Written((*self._items(key), *missing), origin)

    def mounts(self, key: str, limit: Written) -> None:
        allowed: list[Mount] = [item.value for item in limit.value if item.value.source]
        for item in self._items(key):
            if item.value.source and not any(_allows(outer, item.value) for outer in allowed):
                what = f"{item.value.source}, {_mode(item.value)}"
                wanted = " or ".join(f"beneath {outer.source}, {_mode(outer)}" for outer in allowed) or "no source"
                self._refuse(key, item.origin, limit.origin, wanted, what)
        roots = [*_SYSTEM, *(outer.source or "" for outer in allowed)]
        for python in ("python.venv", "python.interpreter"):
            written = self.values.get(python)
            if written and written.value and python not in self.ceiling:
                real = (os.path.abspath(written.value), os.path.realpath(written.value))
                if not all(any(beneath(path, root) for root in roots) for path in real):
                    self._refuse(python, written.origin, limit.origin, "a path beneath a mount of it", written.value)

    def covered(self, key: str, limit: Written) -> None:
        allowed: list[HostRule] = [item.value for item in limit.value]
        kept = []
        for item in self._items(key):
            if any(covers(outer, item.value) for outer in allowed):
                kept.append(item)
            elif not item.preset:
                self._refuse(key, item.origin, limit.origin, "an entry that one of its entries covers", item.value.host)
        if key in self.values:
            self.values[key] = self.values[key]._replace(value=tuple(kept))

    def unwritten(self) -> None:
        """Bind what is meant without being written.

        Who says which hosts are reached has also said it of the host itself, and of the built-in deny list. Who closes
        the network has closed it in both directions. Who redacts means secrets and personal data, in the log at least,
        and lets nothing through that is not listed.
        """
        closing = {"net.host_ports": "net.allowlist", "net.allow_builtin": "net.allowlist"}
        enabled = self.ceiling.get("net.enabled")
        if enabled and not enabled.value:
            closing["net.publish"] = "net.enabled"
        for key, by in closing.items():
            if by in self.ceiling and key not in self.ceiling:
                self._keep(key, set(), self.ceiling[by].origin)
        self._redaction()

    def _redaction(self) -> None:
        redacts = self.ceiling.get("logging.redact_pii")
        listed = self.ceiling.get("logging.redact") or self.ceiling.get("logging.redact_in")
        if redacts is None and listed and listed.value:
            redacts = Written(True, listed.origin)  # noqa: FBT003
            self.stays_on("logging.redact_pii", redacts)
        if redacts and redacts.value:
            for key, meant in (("logging.redact", DEFAULT_KINDS), ("logging.redact_in", DEFAULT_PLACES)):
                if key not in self.ceiling:
                    items = tuple(Written(word, redacts.origin) for word in meant)
                    self.added(key, Written(items, redacts.origin))
            if "logging.let_through" not in self.ceiling:
                self._keep("logging.let_through", set(), redacts.origin)

    def added(self, key: str, limit: Written) -> None:
        present = [item.value for item in self._items(key)]
        missing = tuple(item for item in limit.value if item.value not in present)
        under = self.values.get(key)
        self.values[key] = Written((*self._items(key), *missing), under.origin if under else limit.origin)

    def as_written(self, key: str, limit: Written) -> None:
        """Credentials: a name means what the ceiling says it means, and who only names one gets that."""
        written = self.values.get(key)
        values: dict[str, Written] = dict(written.value) if written else {}
        self._keep(key, set(limit.value), limit.origin)
        for name, item in values.items():
            if name in limit.value and item.value != limit.value[name].value:
                self._refuse(key, item.origin, limit.value[name].origin, f"{name} as it is there", "another")
        used = {name for rule in self._items("net.allowlist") for name in (rule.value.credential, rule.value.sign)}
        named = {name: item for name, item in limit.value.items() if name in used and name not in values}
        if named:
            self.values[key] = Written({**values, **named}, limit.origin)

    def sources_denied(self) -> None:
        """An absolute pattern yields to a mount that names its source, but the ceiling's only to the ceiling's own."""
        patterns: tuple[Written, ...] = self.ceiling["fs.deny_globs"].value if "fs.deny_globs" in self.ceiling else ()
        own: list[Mount] = (
            [item.value for item in self.ceiling["fs.mounts"].value] if "fs.mounts" in self.ceiling else []
        )
        for item in patterns:
            if not item.value.startswith("/"):
                continue
            rule = DenyGlobs([item.value])
            exempt = [
                path for mount in own for path in (mount.source, mount.path) if path and rule.match(path) is not None
            ]
            for key, path, origin in self._shown_paths():
                if rule.match(path) is not None and not any(beneath(path, place_) for place_ in exempt):
                    self.problems.add(origin, f"{key}: {path} is denied by {item.value!a} of {place(item.origin)}")

    def _shown_paths(self) -> Iterable[tuple[str, str, Origin]]:
        for item in self._items("fs.mounts"):
            yield "fs.mounts", item.value.path, item.origin
            if item.value.source:
                yield "fs.mounts", item.value.source, item.origin
        for key in ("python.venv", "python.interpreter"):
            if (written := self.values.get(key)) and written.value:
                yield key, os.path.realpath(written.value), written.origin

    def _lower(self, key: str, written: Written | None, limit: Written, wanted: str) -> None:
        if written is None or written.preset:
            self.values[key] = limit
        else:
            self._refuse(key, written.origin, limit.origin, wanted, _shown(key, written.value))

    def _refuse(self, key: str, at: Origin, limit: Origin, wanted: str, what: str) -> None:
        self.problems.add(
            at,
            f"{key}: wanted {wanted}, as the {self.name} says ({place(limit)}), found {what}",
            hint=f"a {self.name} can be tightened, never loosened",
        )

    def _keep(self, key: str, allowed: set[Any], limit: Origin) -> None:
        """Of a list of words or a mapping by name: drop what presets have beyond `allowed`, refuse others'."""
        written = self.values.get(key)
        if written is None:
            return
        by_name: dict[Any, Written] = (
            written.value if isinstance(written.value, dict) else {item.value: item for item in written.value}
        )
        for name, item in by_name.items():
            if name not in allowed and not item.preset:
                wanted = ", ".join(map(str, sorted(allowed))) or "none"
                self._refuse(key, item.origin, limit, f"nothing beyond {wanted}", str(name))
        kept = {name: item for name, item in by_name.items() if name in allowed}
        self.values[key] = written._replace(value=kept if isinstance(written.value, dict) else tuple(kept.values()))

    def _names(self, key: str) -> set[Any]:
        value: Any = self.ceiling[key].value if key in self.ceiling else ()
        return set(value) if isinstance(value, dict) else {item.value for item in value}

    def _items(self, key: str) -> tuple[Written, ...]:
        return self.values[key].value if key in self.values else ()


def _allows(outer: Mount, inner: Mount) -> bool:
    if not (outer.source and inner.source and beneath(inner.source, outer.source)):
        return False
    return (outer.rw or not inner.rw) and (not _live(inner) or _live(outer))


def _live(mount: Mount) -> bool:
    return mount.rw and not mount.cow


def _mode(mount: Mount) -> str:
    return "live" if _live(mount) else "copy on write" if mount.rw else "read-only"


def _shown(key: str, value: Any) -> str:
    if value is None and KEYS[key].bound is Bound.MOST:
        return "no limit"
    if KEYS[key].kind is ValueKind.SIZE:
        return units.show_size(value)
    if KEYS[key].kind in (ValueKind.TIME, ValueKind.SECONDS):
        return units.show_time(round(value * 1000))
    return f"{value:g}" if isinstance(value, float) else ", ".join(value) if isinstance(value, tuple) else found(value)


_BINDERS: dict[Bound, Callable[[_Ceiling, str, Written], None]] = {
    Bound.NONE: lambda _binding, _key, _written: None,
    Bound.MOST: _Ceiling.most,
    Bound.SAME: _Ceiling.same,
    Bound.OFF: _Ceiling.stays_off,
    Bound.ON: _Ceiling.stays_on,
    Bound.BACKEND: _Ceiling.backend,
    Bound.SUBSET: _Ceiling.subset,
    Bound.DEGRADED: _Ceiling.degraded,
    Bound.KEPT: _Ceiling.kept,
    Bound.MOUNTS: _Ceiling.mounts,
    Bound.COVERED: _Ceiling.covered,
    Bound.ORDER: _Ceiling.order,
    Bound.ADDED: _Ceiling.added,
    Bound.AS_WRITTEN: _Ceiling.as_written,
}
