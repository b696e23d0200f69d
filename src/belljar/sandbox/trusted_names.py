"""Files that tools on the host act upon by themselves: code that runs in a jar must not get to write them.

A commit made in the jar comes back (objects, refs, the index); what makes git, an editor or an agent *do* something
when they next look at the directory does not.
"""

from __future__ import annotations

_GIT_DATA = frozenset({
    "objects", "refs", "logs", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE",
    "CHERRY_PICK_HEAD", "REVERT_HEAD", "index", "packed-refs", "COMMIT_EDITMSG", "description", "shallow",
})  # fmt: skip
_DIRECTORIES = {
    ".hg": "Mercurial",
    ".claude": "Claude Code",
    ".vscode": "an editor",
    ".idea": "an editor",
    ".cursor": "an editor",
    ".devcontainer": "an editor",
    ".husky": "git",
}
_FILES = {".mcp.json": "an agent", "sandbox.policy.yaml": "belljar", ".pre-commit-config.yaml": "git"}


def acted_upon(path: str, *, is_directory: bool) -> str:
    """Why this path must not come back to the host; empty if it may."""
    parts = path.split("/")
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if part == ".git" and not _git_data(parts[position + 1 :], is_directory=is_directory):
            return "the host's git would act on it"
        if part in _DIRECTORIES and not (last and is_directory):
            return f"{_DIRECTORIES[part]} on the host would act on it"
        if part in _FILES and last:
            return f"{_FILES[part]} on the host would act on it"
    return ""


def _git_data(inside: list[str], *, is_directory: bool) -> bool:
    """Whether a path in `.git` is data. `.git` itself has to stay a directory: as a file it points elsewhere."""
    return inside[0] in _GIT_DATA if inside else is_directory
