"""`belljar audit sign`: put a signature of the log so far into it."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words
from belljar.cli.terminal.progress import waiting


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.audit.log import directory
    from belljar.audit.signing import sign

    (key,) = expect_words(COMMAND, parsed, 1, 1)
    with waiting("the audit log", "looking whether it is in order"):
        signed = sign(directory(), key)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(signed)
        return 0
    sys.stdout.write(f"signed up to record {signed['signed_seq']}; the public key is {signed['public_key']}\n")
    return 0


COMMAND = CliCommand(
    "audit sign",
    "Sign the audit log as it is now.",
    usage="audit sign [OPTIONS] KEYFILE",
    run=run,
    options=(JSON,),
    details="""
Whoever can write the log could write all of it anew; a signature by a key that lies elsewhere can't be made again. The
log is verified first.
""",
    examples=(("audit sign /media/key/belljar.pem", "with a key that `audit keygen` made"),),
)
