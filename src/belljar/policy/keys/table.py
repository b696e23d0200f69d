"""Every key of a policy file, once: its kind, range, meaning and example.

The validator, the ceiling, the JSON Schema, the reference page and the file that `belljar init` writes all come from
this table; the keys of the network are in `network`, those of sessions in `sessions`, those of redaction in
`redaction`. A key that is in none of them does not exist.
"""

from __future__ import annotations

from belljar.policy.keys.key import Bound, Key, ValueKind
from belljar.policy.keys.network import CREDENTIAL_KEYS, METHODS, NET_KEYS
from belljar.policy.keys.redaction import REDACTION_KEYS
from belljar.policy.keys.sessions import SESSION_KEYS
from belljar.policy.keys.units import MB

# The keys of a policy that are about agents: what a tool's caller may ask for.
AGENT_KEYS = (
    Key(
        "agents.unsandboxed",
        ValueKind.BOOLEAN,
        "Whether the caller of the Bash tool may have a command run outside of any jar "
        "(`dangerously_disable_sandbox`), with a reason, which is recorded. Otherwise that is refused.",
        example=False,
        bound=Bound.OFF,
    ),
)


BACKENDS = ("auto", "bubblewrap", "landlock", "seatbelt", "docker", "podman", "gvisor", "unconfined")
_TERABYTE = 1024 * 1024 * MB
_WEEK = 7 * 24 * 3_600_000

_TABLE = (
    Key("version", ValueKind.VERSION, "The version of this format; 1 is the only one.", 1),
    Key(
        "extends",
        ValueKind.EXTENDS,
        "What this file starts from: a preset, the path of another file (relative to this one), or `none` for a file "
        "that says everything itself. Without it a file starts from `aicode`.",
        "aicode",
    ),
    Key(
        "backend",
        ValueKind.CHOICE,
        "How the code is confined. `auto` takes the strongest that works here, and never `unconfined`.",
        "auto",
        Bound.BACKEND,
        choices=BACKENDS,
    ),
    Key(
        "fallback",
        ValueKind.CHOICES,
        "Backends to try, in this order, when `backend` does not work here. Nothing weaker is used unless it is named.",
        [],
        Bound.SUBSET,
        choices=BACKENDS[1:],
    ),
    Key(
        "on_degraded",
        ValueKind.DEGRADED,
        "What to do when the backend can't fully hold a clause: `refuse` the run, `allow` it, or allow it for the "
        "clauses listed.",
        "refuse",
        Bound.DEGRADED,
    ),
    Key(
        "fs.mounts",
        ValueKind.MOUNTS,
        "Directories in the jar. One that has the path of an inherited one replaces it.",
        [{"path": "/workspace", "rw": True}],
        Bound.MOUNTS,
    ),
    Key("fs.mounts[].path", ValueKind.MOUNT_PATH, "Where the directory is in the jar.", "/deps"),
    Key(
        "fs.mounts[].source",
        ValueKind.SOURCE,
        "The host's directory that is shown there. A relative one lies beneath this file. Without it the directory is "
        "empty and gone after the run.",
        "./deps",
        optional=True,
    ),
    Key("fs.mounts[].rw", ValueKind.BOOLEAN, "Whether the code may write there.", example=False),
    Key(
        "fs.mounts[].cow",
        ValueKind.BOOLEAN,
        "Copy on write: with `rw` and a `source`, what the code writes stays in the jar and the source is untouched.",
        example=False,
    ),
    Key(
        "fs.deny_globs",
        ValueKind.GLOBS,
        "Files and directories that the jar never sees, in any mount. Patterns add to the inherited ones; "
        "`'!PATTERN'` takes back an inherited one. An absolute pattern that covers the source of a mount says "
        '"nothing else of it": the mount stays. A pattern by name always holds.',
        ["**/.env", "**/.ssh/**"],
        Bound.KEPT,
    ),
    Key(
        "fs.size_mb",
        ValueKind.SIZE,
        "How much the code may write, in all its directories together.",
        500,
        Bound.MOST,
        MB,
        _TERABYTE,
    ),
    Key("fs.inodes", ValueKind.COUNT, "How many files it may make.", 50_000, Bound.MOST, 16, 100_000_000),
    Key(
        "fs.snapshot",
        ValueKind.BOOLEAN,
        "Whether mounted directories are copied when the jar is opened: what the host changes later is not seen, and "
        "denied names hold whatever it does. Without, they are shown as they are; where names are denied, with "
        "those that they have then (Linux 6.16 or newer) or with the host's new ones, too.",
        example=False,
        bound=Bound.ON,
    ),
    Key("fs.workdir", ValueKind.JAR_PATH, "The directory in which the code starts.", "/workspace", Bound.SAME),
    *NET_KEYS,
    Key(
        "proc.uid",
        ValueKind.COUNT,
        "The user that the code is, as it sees itself. Never 0. With docker and podman that run as root, 1000 stands "
        "for a number that no other Sandbox has: the kernel counts for each user what one jar could use up for all.",
        1000,
        Bound.SAME,
        1,
        2**31 - 1,
    ),
    Key("proc.cpu_quota", ValueKind.NUMBER, "Processors' worth of time: 1 is one core.", 1, Bound.MOST, 0.01, 1024),
    Key("proc.mem_mb", ValueKind.SIZE, "Memory of all its processes together.", 1024, Bound.MOST, MB, 16 * _TERABYTE),
    Key("proc.timeout_ms", ValueKind.TIME, "Wall time, then the whole tree is killed.", 60_000, Bound.MOST, 1, _WEEK),
    Key("proc.pids", ValueKind.COUNT, "Processes and threads at once.", 64, Bound.MOST, 1, 4_194_304),
    Key("proc.open_files", ValueKind.COUNT, "Open files of each process.", 256, Bound.MOST, 8, 1_048_576),
    Key("proc.file_size_mb", ValueKind.SIZE, "The largest file it may write.", 256, Bound.MOST, 1, _TERABYTE),
    Key("proc.output_mb", ValueKind.SIZE, "How much it may print.", 8, Bound.MOST, 1, 1024 * MB),
    Key(
        "proc.host_info",
        ValueKind.CHOICE,
        "What the code learns about the machine. With `limits` it sees the memory and processors of this policy, an "
        "uptime that starts with the jar, and no other file of the host's `/proc`. `hidden` leaves out the files about "
        "memory, processors and load, too. `host` shows the machine as it is.",
        "limits",
        Bound.ORDER,
        choices=("hidden", "limits", "host"),
        default="limits",
    ),
    Key(
        "env.set",
        ValueKind.VARIABLES,
        "Variables of the jar's environment; they add to the inherited ones. Never put a secret here.",
        {"LANG": "C.UTF-8"},
        Bound.SUBSET,
    ),
    Key(
        "env.pass",
        ValueKind.NAMES,
        "Variables that are passed from the caller's environment, by name.",
        [],
        Bound.SUBSET,
    ),
    Key(
        "python.venv",
        ValueKind.VENV,
        "A virtual environment of the host, mounted read-only, so that its packages import.",
        "./.venv",
        Bound.SAME,
        optional=True,
    ),
    Key(
        "python.interpreter",
        ValueKind.PROGRAM,
        "The Python to use, instead of the one found.",
        "/usr/bin/python3",
        Bound.SAME,
        optional=True,
    ),
    Key(
        "logging.sample_ratio",
        ValueKind.NUMBER,
        "The share of runs whose output is stored, with tokens for what is redacted, for `belljar logs`. Of other runs "
        "that did not end well the last 64 KB are; with 0 nothing is. Starts, ends, denials, kills: always logged.",
        0.1,
        Bound.SAME,
        0,
        1,
    ),
    *REDACTION_KEYS,
    Key(
        "logging.quarantine",
        ValueKind.BOOLEAN,
        "Whether a run that trips a canary is quarantined: it stands still, all that is known of it, its files too, is "
        "written into one file in the state directory, and it is killed.",
        example=True,
        bound=Bound.ON,
    ),
    Key(
        "container.image",
        ValueKind.IMAGE,
        "The image that a container is made from, by name, digest or id; nothing is belljar's own base image. Pin it "
        "with `@sha256:…` to get the same one everywhere.",
        "python:3.12-slim",
        Bound.SAME,
    ),
    Key(
        "container.engine",
        ValueKind.CHOICE,
        "Which engine makes the containers, when `backend` leaves it open: with `gvisor` any, with `docker` also "
        "`nerdctl`, which takes the same commands. `auto` takes the first that works.",
        "auto",
        Bound.SAME,
        choices=("auto", "docker", "podman", "nerdctl"),
    ),
    Key(
        "container.runtime",
        ValueKind.CHOICE,
        "What makes the container. `auto` is the engine's own, and `runsc` (gVisor, a kernel between the code and the "
        "host's) when `backend` is `gvisor`, which takes no other.",
        "runsc",
        Bound.SAME,
        choices=("auto", "runc", "crun", "runsc"),
    ),
    Key(
        "container.name",
        ValueKind.CONTAINER,
        "A word that the names of the containers have in them, for whoever looks at a list of them.",
        "nightly",
        Bound.SAME,
        optional=True,
    ),
    Key(
        "container.network",
        ValueKind.CHOICE,
        "The container's network: `none`, the engine's `bridge`, or the `host`'s own. Only with `none` "
        "holds what `net` says.",
        "none",
        Bound.ORDER,
        choices=("none", "bridge", "host"),
        dangers=(
            ("bridge", "a bridge reaches every host, whatever net.allowlist says"),
            ("host", "the code would have the host's own network, and all that listens on it"),
        ),
    ),
    Key(
        "container.pid",
        ValueKind.CHOICE,
        "Which processes the code sees: its own (`private`), or all of the `host`'s.",
        "private",
        Bound.ORDER,
        choices=("private", "host"),
        dangers=(("host", "the code would see every process of the host, and what they were started with"),),
    ),
    Key(
        "container.privileged",
        ValueKind.BOOLEAN,
        "Whether the container has every capability and device of the host. Such a container confines nothing.",
        example=False,
        bound=Bound.OFF,
        dangers=((True, "a privileged container is root on the host"),),
    ),
    Key(
        "container.read_only",
        ValueKind.BOOLEAN,
        "Whether the image's files can't be written. Mounts and /tmp are not part of it.",
        example=True,
        bound=Bound.ON,
    ),
    Key(
        "container.auto_remove",
        ValueKind.BOOLEAN,
        "Whether a container is removed when its run has ended.",
        example=True,
        bound=Bound.ON,
    ),
    Key(
        "container.entrypoint",
        ValueKind.WORDS,
        "Words that are put before the command that is run. The image's own entry point is never used.",
        ["tini", "--"],
        Bound.SAME,
        optional=True,
    ),
    Key(
        "container.ports",
        ValueKind.PUBLISHED,
        "Ports of the container that this host's own address gets, `host:container`. They need a `container.network`.",
        ["8080:80"],
        Bound.SUBSET,
        minimum=1,
        maximum=65535,
    ),
    Key(
        "container.pull",
        ValueKind.CHOICE,
        "Whether an image that is not here is fetched from its registry: `never`, or when it is `missing`.",
        "never",
        Bound.ORDER,
        choices=("never", "missing"),
    ),
    *SESSION_KEYS,
    *AGENT_KEYS,
    *CREDENTIAL_KEYS,
)

KEYS = {key.path: key for key in _TABLE}
"""Every key by its path."""

REQUIRED = tuple(
    key.path
    for key in _TABLE
    if key.path in ("proc.uid", "fs.mounts") or (key.bound is Bound.MOST and not key.optional and key.default is None)
)
"""What a policy that stands alone (`extends: none`) must say itself."""

CLAUSES = tuple(key.path for key in _TABLE if "." in key.path and "[]" not in key.path and key.path != "fs.workdir")
"""What a backend enforces, and `on_degraded` may list."""


def fields(prefix: str) -> dict[str, Key]:
    """The keys directly inside `prefix` (`proc`, `fs.mounts[]`, or nothing for the top), by name."""
    start = f"{prefix}." if prefix else ""
    return {key.name: key for key in _TABLE if key.path.startswith(start) and "." not in key.path[len(start) :]}


def sections() -> tuple[str, ...]:
    """The mappings of the top level, in order: `fs`, `net`, …"""
    return tuple(dict.fromkeys(key.path.partition(".")[0] for key in _TABLE if "." in key.path.partition("[")[0]))


__all__ = ["BACKENDS", "CLAUSES", "KEYS", "METHODS", "REQUIRED", "Bound", "Key", "ValueKind", "fields", "sections"]
