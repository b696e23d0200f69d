"""`belljar audit verify`: whether the log is as it was written."""

from __future__ import annotations

import os
import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.progress import waiting
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.audit.log import directory

    words = expect_words(COMMAND, parsed, 0, 1)
    path = words[0] if words else directory()
    if words:
        _expect_log(path)
    with waiting("the audit log", "reading it") as progress:

        def seen(count: int) -> None:
            progress(f"{count:,} records are in order")

        if key := parsed.text("--public-key"):
            from belljar.audit.signing import check

            verdict = check(path, key, seen, expect=_expected(parsed))
        elif parsed.text("--expect-signed"):
            raise UsageError(
                "--expect-signed needs --public-key: whose signatures are meant?",
                hint="add --public-key and the text that `belljar audit sign` prints",
            )
        else:
            from belljar.audit.verify import verify

            verdict = verify(path, seen)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        names = ("ok", "records", "where", "problem", "unacknowledged", "signed_seq", "unsigned", "removed_unsigned")
        print_json({name: getattr(verdict, name) for name in names})
    elif verdict.ok:
        sys.stdout.write(f"{verdict.records} records, all as they were written; the last is {verdict.link.digest}\n")
        if verdict.unacknowledged:
            sys.stdout.write(
                f"{verdict.unacknowledged} of them, at its end, by a process that was killed before it heard so\n"
            )
        if verdict.signed_seq is not None:
            sys.stdout.write(
                f"signed up to record {verdict.signed_seq}; records that no signature covers: {verdict.unsigned}\n"
            )
        if verdict.removed_unsigned:
            sys.stdout.write(
                f"records up to {verdict.removed_unsigned} were pruned, and no signature covers the record of that: "
                "whoever can write the log could have removed them\n"
            )
    else:
        sys.stderr.write(
            f"belljar: the audit log is not as it was written: {verdict.where}: {verdict.problem}\n"
            f"the {verdict.records} records before it are in order\n"
        )
    return 0 if verdict.ok else 1


def _expected(parsed: Parsed) -> int | None:
    if (text := parsed.text("--expect-signed")) is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UsageError(f"--expect-signed {text!r}: wanted the number of a record", hint="`audit sign` prints it")
    return int(text)


def _expect_log(path: str) -> None:
    """What is not there has no record that was changed; who names it wants to know. Raises UsageError."""
    from belljar.audit.log import day_files
    from belljar.audit.verify import ANCHOR

    if not os.path.isdir(path):
        raise UsageError(f"{path} is no directory", hint="it is that of the log, `audit` in the state directory")
    if not day_files(path) and not any(os.path.exists(os.path.join(path, name)) for name in ("head", ANCHOR)):
        raise UsageError(f"there is no audit log in {path}", hint="it is in `audit` in the state directory")


COMMAND = CliCommand(
    "audit verify",
    "Say whether the audit log is as it was written.",
    usage="audit verify [OPTIONS] [DIRECTORY]",
    run=run,
    options=(
        Option("--public-key", "KEY", "also check the signatures by this key"),
        Option("--expect-signed", "RECORD", "with --public-key: they have to reach at least up to this record"),
        JSON,
    ),
    details="""
Names the first record that was changed, is missing, stands in the wrong place, or was cut off. Exits with 1 if there is
one. DIRECTORY is a copy of a log; without it, it is this user's own.

With --public-key it says up to which record signatures reach. Whoever can write the log can invent what comes after
that, or take the log back to an earlier signature: keep the number that `audit sign` prints elsewhere, and give it.
""",
    examples=(
        ("audit verify", "this user's log"),
        ("audit verify --public-key KEY backup/audit", "a copy, and who signed it"),
        ("audit verify --public-key KEY --expect-signed 1200", "nothing that was signed since is gone"),
    ),
)
