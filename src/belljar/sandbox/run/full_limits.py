"""Limits that a failed program's own output speaks of: what the policy grants, and how to grant more. Pure.

These limits end no run. The program gets an error, and what it does with that is its own affair. So its output is the
only clue, and the program may print anything: the words name the limit, and state nothing about the jar.
"""

from __future__ import annotations

from collections.abc import Iterator

from belljar.policy.models import Policy

_MOST_TEXT = 8000


def spoken_of(policy: Policy, stdout: str, stderr: str) -> str:
    """Return what to say about the limits behind the errors at the end of the output; empty if it names none."""
    return "; ".join(_spoken_of(policy, (stderr or stdout)[-_MOST_TEXT:]))


def _spoken_of(policy: Policy, text: str) -> Iterator[str]:
    size, files = policy.fs.size_bytes >> 20, policy.proc.open_files
    if "No space left on device" in text or "ENOSPC" in text:
        yield (
            f"all files together have {size} MB and {policy.fs.inodes} names; for more: --set fs.size_mb={2 * size}, "
            f"--set fs.inodes={2 * policy.fs.inodes}"
        )
    if "Too many open files" in text or "EMFILE" in text:
        yield f"a process may have {files} open files; for more: --set proc.open_files={2 * files}"
    if "File too large" in text or "EFBIG" in text:
        largest = policy.proc.file_size_bytes >> 20
        yield f"one file may have {largest} MB; for more: --set proc.file_size_mb={2 * largest}"
