"""Files that tools on the host act upon by themselves: code that runs in a jar must not get to write them unseen.

A commit made in the jar comes back (objects, refs, the index); what makes git, an editor, an agent or a build service
*do* something when they next look at the directory does not, unless someone says so for these files alone. To delete
such a file is to change what the tool does, too.
"""

from __future__ import annotations

_GIT_DATA = frozenset({
    "objects", "refs", "logs", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE",
    "CHERRY_PICK_HEAD", "REVERT_HEAD", "index", "packed-refs", "COMMIT_EDITMSG", "description", "shallow",
})  # fmt: skip
_EDITOR, _AGENT, _CI = "an editor", "an agent", "a build service"
_DIRECTORIES = {
    ".hg": "Mercurial",
    ".claude": "Claude Code",
    ".codex": _AGENT,
    ".gemini": _AGENT,
    ".vscode": _EDITOR,
    ".idea": _EDITOR,
    ".cursor": _EDITOR,
    ".windsurf": _EDITOR,
    ".devcontainer": _EDITOR,
    ".husky": "git",
    ".circleci": _CI,
    ".buildkite": _CI,
    ".woodpecker": _CI,
    ".github/workflows": _CI,
    ".github/actions": _CI,
    ".gitea/workflows": _CI,
    ".forgejo/workflows": _CI,
}
_FILES = {
    ".mcp.json": _AGENT,
    "claude.md": _AGENT,
    "claude.local.md": _AGENT,
    "agents.md": _AGENT,
    "gemini.md": _AGENT,
    "copilot-instructions.md": _AGENT,
    ".cursorrules": _AGENT,
    ".windsurfrules": _AGENT,
    ".clinerules": _AGENT,
    ".aider.conf.yml": _AGENT,
    "sandbox.policy.yaml": "belljar",
    ".pre-commit-config.yaml": "git",
    "lefthook.yml": "git",
    ".gitlab-ci.yml": _CI,
    ".travis.yml": _CI,
    ".drone.yml": _CI,
    ".cirrus.yml": _CI,
    ".appveyor.yml": _CI,
    "appveyor.yml": _CI,
    "azure-pipelines.yml": _CI,
    "bitbucket-pipelines.yml": _CI,
    "cloudbuild.yaml": _CI,
    "jenkinsfile": _CI,
}
"""By names in small letters: a file system may take `.GIT` for `.git`."""


def acted_upon(path: str, *, is_directory: bool, kind: str = "added") -> str:
    """Why this path must not come back to the host by itself; empty if it may.

    Args:
        path: relative to the workspace.
        is_directory: whether it is one; a directory that is merely there makes nobody act.
        kind: what happened to it, as in `Change`.

    """
    deleted = kind == "deleted"
    parts = path.split("/")
    small = path.lower().split("/")
    for position, part in enumerate(small):
        last = position == len(parts) - 1
        if part == ".git" and not _git_data(parts[position + 1 :], is_directory=is_directory and not deleted):
            return "the host's git would act on it"
        for name in (part, "/".join(small[position : position + 2])):
            itself = last or "/".join(small[position:]) == name
            if name in _DIRECTORIES and not (itself and is_directory and not deleted):
                return f"{_DIRECTORIES[name]} on the host would act on it"
        if last and part.endswith((".pyc", ".pyo")):
            return "Python on the host would run it, and nobody can read it"
        if part in _FILES and last:
            return f"{_FILES[part]} on the host would act on it"
        if deleted and last and any(name.startswith(f"{part}/") for name in _DIRECTORIES):
            return f"{_CI} on the host acts on what is in it"
    return ""


def _git_data(inside: list[str], *, is_directory: bool) -> bool:
    """Whether a path in `.git` is data. `.git` itself has to stay a directory: as a file it points elsewhere."""
    return inside[0] in _GIT_DATA if inside else is_directory
