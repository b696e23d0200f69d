"""`belljar audit keygen`: a key to sign the log with."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.audit.signing import make_key

    (path,) = expect_words(COMMAND, parsed, 1, 1)
    key = make_key(path)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"file": path, "public_key": key})
        return 0
    sys.stdout.write(f"{key}\n")
    return 0


COMMAND = CliCommand(
    "audit keygen",
    "Make an Ed25519 key to sign the audit log with.",
    usage="audit keygen [OPTIONS] FILE",
    run=run,
    options=(JSON,),
    details="\nPrints the public key, for `audit verify --public-key`.\n",
    examples=(("audit keygen /media/key/belljar.pem", "keep it where the log is not"),),
)
