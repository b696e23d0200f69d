"""What a stage has to prepare, as plain data: made by `compile`, carried over a socket, printed by `explain`."""

from __future__ import annotations

from collections.abc import Mapping

from belljar._startup.records import StrEnum, dataclass, field

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

_RACE = (
    "a directory that the host makes while the code runs is covered within moments, not at once: "
    "what the code looks at in between stays visible to this Sandbox"
)
NOT_FROZEN = f"{_RACE} (Linux 6.16 or newer closes that, and fs.snapshot: true)"
"""Where a view shows more than the names that were there when it was made."""
TOO_MANY_NAMES = (
    f"it has so many names, or overlayfs here so few abilities, that {_RACE} (fs.snapshot: true closes that)"
)


class ViewKind(StrEnum):
    """How a mount of the policy is made."""

    EPHEMERAL = "ephemeral"
    """An empty directory on the jar's own tmpfs."""
    READONLY = "readonly"
    """The host's directory, with whiteouts over what is denied."""
    COW = "copy-on-write"
    """The host's directory as the lower layer: written to, and never changed."""
    LIVE = "live"
    """The host's directory itself."""


@dataclass(frozen=True, slots=True)
class Source:
    """A host directory or file that the stage brings in."""

    path: str
    idmap: bool
    """Show its owner as the jar's user (only needed, and only possible, when started by root)."""
    recursive: bool = False
    """With what is mounted beneath it."""


@dataclass(frozen=True, slots=True)
class MountView:
    """One mount of the policy."""

    kind: ViewKind
    jar_path: str
    writable: bool
    source: int | None = None
    """Index into the sources."""


@dataclass(frozen=True, slots=True)
class RuntimeTree:
    """A directory that interpreters are installed in, as the jar shows it.

    The stage makes it once. A run of one of its languages binds it.
    """

    path: str
    """In the jar."""
    languages: tuple[str, ...]
    parts: tuple[tuple[str, int], ...]
    """(name beneath the path, index into the sources)."""
    links: tuple[tuple[str, str], ...] = ()
    """(name beneath the path, target)."""
    searched: bool = False
    """Whether the stage searches it for denied names."""
    hidden: tuple[str, ...] = ()
    """Denied names beneath the path that the host has found already."""

    @property
    def late(self) -> bool:
        """Whether it lies in a directory that each run has anew, so that its place can be made only then."""
        return self.path.startswith("/tmp/")

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RuntimeTree:
        """From plain values."""
        pairs = {name: tuple((one, other) for one, other in data[name]) for name in ("parts", "links")}
        names = {name: tuple(data[name]) for name in ("languages", "hidden")}
        return cls(**{**data, **pairs, **names})


@dataclass(frozen=True, slots=True)
class StagePlan:
    """All that is made once for a Sandbox, before its first jar."""

    sources: tuple[Source, ...]
    views: tuple[MountView, ...]
    deny_globs: tuple[str, ...]
    size_bytes: int
    inodes: int
    snapshot: bool = False
    """Copy the sources instead of showing them."""
    freezes: bool = False
    """Where something is denied, show no name that was not there at first. The stage tries whether overlayfs can."""
    etc_files: Mapping[str, str] = field(default_factory=dict)
    """Files of the jar's /etc, written by belljar."""
    etc_host: tuple[str, ...] = ()
    """Names beneath the host's /etc that the jar shares: certificates, the linker's cache."""
    directories: tuple[str, ...] = ()
    """System directories of the host, shown read-only."""
    links: tuple[tuple[str, str], ...] = ()
    """Links in the jar's root: (path, target)."""
    runtimes: tuple[RuntimeTree, ...] = ()
    """Interpreters' directories. A run sees those of its language."""

    network: bool = False
    """Whether its jars have a gateway."""
    veth: bool = True
    """Whether that may be a namespace of its own."""
    publishes: bool = False
    """Whether they have a port forward."""
    machine: Mapping[str, Any] | None = None
    """What its jars see of the machine: `host_info`, `mem_bytes` and `cpu_quota`. None shows the host as it is."""
    pool: Mapping[str, Any] | None = None
    """For a pool: what its zygote is made of, and how many jars wait."""
    listings: str = ""
    """A file of belljar's with what an earlier opening saw of the sources; empty if there is none."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "sources": [_plain(source) for source in self.sources],
            "views": [_plain(view) for view in self.views],
            "runtimes": [_plain(tree) for tree in self.runtimes],
            **{name: value for name, value in _plain(self).items() if name not in ("sources", "views", "runtimes")},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StagePlan:
        """The inverse of `to_json`."""
        return cls(
            sources=tuple(Source(**source) for source in data["sources"]),
            views=tuple(MountView(**{**view, "kind": ViewKind(view["kind"])}) for view in data["views"]),
            deny_globs=tuple(data["deny_globs"]),
            size_bytes=data["size_bytes"],
            inodes=data["inodes"],
            snapshot=data["snapshot"],
            freezes=data["freezes"],
            etc_files=data["etc_files"],
            etc_host=tuple(data["etc_host"]),
            directories=tuple(data["directories"]),
            links=tuple((path, target) for path, target in data["links"]),
            runtimes=tuple(map(RuntimeTree.of, data["runtimes"])),
            network=data["network"],
            veth=data["veth"],
            publishes=data["publishes"],
            machine=data["machine"],
            pool=data["pool"],
            listings=data["listings"],
        )


def _plain(record: Source | MountView | RuntimeTree | StagePlan) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__match_args__}
