"""Lays one layer over another. What a key does when both have it is listed here and nowhere else."""

from __future__ import annotations

from belljar.policy.layer import Layer, Written
from belljar.policy.models import Origin
from belljar.policy.problems import Problems, found, nearest

_ADD_UP = ("net.denylist", "net.strip_headers", "net.canary_files")
"""Lists that protect: a layer adds to them."""


class Merged:
    """Layers, one over the other: what is written last, and which inherited patterns someone took back."""

    def __init__(self) -> None:
        self.values: Layer = {}
        self.removed_globs: dict[str, Origin] = {}

    def lay(self, layer: Layer, problems: Problems) -> None:
        """Put `layer` on top."""
        for key, written in layer.items():
            if key in ("version", "extends"):
                continue
            self.values[key] = self._over(key, self.values.get(key), written, problems)
        if "env.pass" in layer and "env.set" in self.values:
            self._pass_over_inherited(layer)

    def _pass_over_inherited(self, layer: Layer) -> None:
        """Drop inherited values of variables that `layer` passes on: what is written last counts."""
        own = layer["env.set"].value if "env.set" in layer else {}
        passed = {item.value for item in layer["env.pass"].value} - own.keys()
        inherited = self.values["env.set"]
        kept = {name: value for name, value in inherited.value.items() if name not in passed}
        if len(kept) < len(inherited.value):
            self.values["env.set"] = Written(kept, inherited.origin, inherited.preset)

    def _over(self, key: str, under: Written | None, over: Written, problems: Problems) -> Written:
        if key == "fs.deny_globs":
            return self._globs(under, over, problems)
        if key == "fs.mounts" and under:
            return Written(_by_path(under, over), over.origin, over.preset)
        if key in ("env.set", "credentials") and under:
            return Written({**under.value, **over.value}, over.origin, over.preset)
        if key in _ADD_UP and under:
            kept = tuple(item for item in over.value if item.value not in [inner.value for inner in under.value])
            return Written((*under.value, *kept), over.origin, over.preset)
        return over

    def _globs(self, under: Written | None, over: Written, problems: Problems) -> Written:
        """Patterns add up, each once; `!pattern` takes back the same inherited one, and must find it."""
        patterns: dict[str, Written] = {item.value: item for item in under.value} if under else {}
        for item in over.value:
            if not item.value.startswith("!"):
                patterns.setdefault(item.value, item)
                self.removed_globs.pop(item.value, None)
                continue
            pattern = item.value[1:]
            if patterns.pop(pattern, None) is None:
                close = nearest(pattern, patterns)
                problems.add(
                    item.origin,
                    f"fs.deny_globs: wanted an inherited pattern to take back, found {found(pattern)}{close}",
                )
            self.removed_globs[pattern] = item.origin
        return Written(tuple(patterns.values()), over.origin, over.preset)


def _by_path(under: Written, over: Written) -> tuple[Written, ...]:
    mounts = {item.value.path: item for item in under.value}
    mounts.update({item.value.path: item for item in over.value})
    return tuple(mounts.values())
