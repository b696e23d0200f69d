"""`belljar quarantine open`: what is in a bundle, checked; nothing of it is written or executed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.sandbox.files.snapshot_files import SnapshotFile, SnapshotFiles
    from belljar.sandbox.incident.evidence_archive_reading import EvidenceArchive

_ABOUT = ("run", "reason", "by", "frozen", "still", "then")
_FILES = "files/"
_MOST_LISTED = 1000
_MOST_ZEROS = 64 << 20


def run(parsed: Parsed) -> int:
    """Do it. 1 if it was tampered with."""
    from belljar.cli.terminal.progress import waiting
    from belljar.sandbox.incident.evidence_archive_reading import EvidenceArchive

    (path,) = expect_words(COMMAND, parsed, 1, 1)
    with EvidenceArchive(path) as bundle:
        with waiting(path, "verifying its checksums"):
            digest = bundle.digest()
            known, doubt = _as_recorded(bundle, digest)
            problems = bundle.problems() + doubt
        if (name := parsed.text("--file")) is not None:
            if problems:
                raise UsageError(f"{path} is not as belljar wrote it: {'; '.join(problems)}", hint="leave out --file")
            return _show_file(bundle, name)
        if parsed.flag("--json"):
            from belljar.cli.terminal.document import print_json

            print_json({"manifest": bundle.manifest, "sha256": digest, "recorded": known, "problems": problems})
        else:
            _show(bundle, digest, problems, known=known)
    return 1 if problems else 0


def _as_recorded(bundle: EvidenceArchive, digest: str) -> tuple[bool, list[str]]:
    """Whether the audit log of this user has this very bundle; and if it has others of the run, that this is none."""
    import json
    import os

    from belljar.audit.log import directory
    from belljar.audit.store import RunStore

    if not os.path.isdir(directory()):
        return False, []
    run_id = str(bundle.manifest.get("run")).encode(errors="replace").decode()  # whatever a forger says
    with RunStore() as store:
        rows = store.ask("select record from events where run = ? and event = 'quarantined'", run_id)
    digests = [json.loads(row["record"]).get("sha256") for row in rows]
    if digests and digest not in digests:
        return False, ["the audit log has another digest of the run's bundle"]
    return digest in digests, []


def _show(bundle: EvidenceArchive, digest: str, problems: list[str], *, known: bool) -> None:
    from belljar.cli.terminal.table import aligned
    from belljar.policy.keys.units import show_size

    about: dict[str, Any] = bundle.manifest
    rows = [(name, visible(str(about[name]))) for name in _ABOUT if about.get(name) not in (None, "")]
    if isinstance(made := about.get("created"), int | float) and 0 <= made < 1 << 40:
        rows.append(("made", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(made))))
    rows += [("sha256", digest), ("audit log", "has this bundle" if known else "does not know it")]
    sys.stdout.write(aligned(rows) + "\n")
    sys.stdout.write(aligned([(part.name, show_size(part.size)) for part in bundle.parts.values()]))
    if isinstance(missing := about.get("missing"), dict) and missing:
        sys.stdout.write("\nnot in it:\n")
        sys.stdout.write(aligned([(visible(str(k)), visible(str(v))) for k, v in missing.items()], indent="  "))
    if not problems:
        _list_files(bundle)
    for problem in problems:
        sys.stderr.write(f"belljar: {visible(problem)}\n")


def _list_files(bundle: EvidenceArchive) -> None:
    from belljar.cli.terminal.table import aligned
    from belljar.sandbox.files.snapshot_files import SnapshotFiles

    if (part := bundle.parts.get("files.snapshot")) is None:
        return
    with SnapshotFiles(_as_path(bundle), start=part.offset, size=part.size) as files:
        rows = [(f"{_FILES}{visible(one.path)}", one.kind, str(one.size)) for one in files.files.values()]
    sys.stdout.write("\n" + aligned(rows[:_MOST_LISTED]))
    if len(rows) > _MOST_LISTED:
        sys.stdout.write(f"and {len(rows) - _MOST_LISTED} more\n")


def _show_file(bundle: EvidenceArchive, name: str) -> int:
    from belljar.cli.terminal.sink import Sink
    from belljar.sandbox.files.snapshot_files import SnapshotFiles

    sys.stdout.flush()
    sink = Sink(1, raw=False)
    if not name.startswith(_FILES):
        for piece in bundle.pieces(name):
            sink.write(piece)
    elif (part := bundle.parts.get("files.snapshot")) is None:
        raise UsageError("the bundle has no files of the jar's", hint="leave out --file to see why")
    else:
        with SnapshotFiles(_as_path(bundle), start=part.offset, size=part.size) as files:
            kept = files.files.get(name.removeprefix(_FILES))
            if kept is None or kept.kind != "file":
                raise UsageError(f"the jar had no file {name.removeprefix(_FILES)!r}", hint="leave out --file: a list")
            if _keeps_holes(1):
                _write_sparse(1, files, kept)
                return 0
            _refuse_holes(kept)
            for piece in files.pieces(kept):
                sink.write(piece)
    sink.finish()
    return 0


def _keeps_holes(descriptor: int) -> bool:
    """Return True for a file that can be written at any place."""
    import fcntl
    import os
    import stat

    appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
    return stat.S_ISREG(os.fstat(descriptor).st_mode) and not appends


def _write_sparse(descriptor: int, files: SnapshotFiles, kept: SnapshotFile) -> None:
    """Write the data of a file at its places, so that the holes take no room."""
    import os

    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    for at, piece in files.stored(kept):
        os.lseek(descriptor, start + at, os.SEEK_SET)
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    os.ftruncate(descriptor, start + kept.size)
    os.lseek(descriptor, 0, os.SEEK_END)


def _refuse_holes(kept: SnapshotFile) -> None:
    """Raise UsageError if the file is mostly holes: of what has a few bytes, terabytes would be printed."""
    from belljar.policy.keys.units import show_size

    holes = kept.size - sum(end - start for start, end in kept.data)
    if holes > _MOST_ZEROS:
        raise UsageError(
            f"{visible(kept.path)} has {show_size(holes)} of holes, which would be printed as zeros",
            hint="write it to a file, which keeps them: … > FILE",
        )


def _as_path(bundle: EvidenceArchive) -> str:
    """A path that is no snapshot's name."""
    import os

    return os.path.abspath(bundle.path)


COMMAND = CliCommand(
    "quarantine open",
    "Show what is in the bundle of a quarantine.",
    usage="quarantine open [OPTIONS] FILE",
    run=run,
    options=(
        Option("--file", "NAME", "print one of its files instead, such as policy.json, or files/PATH of the jar's"),
        JSON,
    ),
    details="""
Verifies the checksum of every file in it, and compares that of the whole with the audit log. Nothing is written and
nothing is executed. A bundle in which a byte was changed, or that holds a link, a device, a path, or anything else that
belljar never puts there, is told, and the exit code is not 0.
""",
    examples=(
        ("quarantine open bundle.tar", "what happened, and is it all there?"),
        ("quarantine open bundle.tar --file output/stdout", "what the code printed"),
        ("quarantine open bundle.tar --file files/report.csv", "a file of its workspace"),
    ),
)
