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
_EDITOR, _AGENT, _CI, _TOOL = "an editor", "an agent", "a build service", "a tool"


def _by_name(names: str, who: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), who)


_DIRECTORIES = {
    ".hg": "Mercurial",
    ".claude": "Claude Code",
    **_by_name(".husky .githooks .git-hooks .lefthook", "git"),
    **_by_name(".jj .sl .svn", "version control"),
    **_by_name(
        ".codex .gemini .qwen .roo .clinerules .continue .amazonq .kiro .junie .augment .opencode .crush .agents .agent"
        " .goose .trae .windsurf .github/instructions .github/prompts .github/chatmodes .github/agents .github/hooks",
        _AGENT,
    ),
    **_by_name(".vscode .vs .idea .fleet .zed .cursor .helix .devcontainer .idx .theia .settings", _EDITOR),
    **_by_name(
        ".circleci .buildkite .woodpecker .semaphore .tekton .teamcity .harness .builds .azure-pipelines"
        " .github/workflows .github/actions .gitea/workflows .gitea/actions .forgejo/workflows .forgejo/actions",
        _CI,
    ),
    **_by_name(".cargo .mise .direnv .yarn/releases .yarn/plugins", _TOOL),
}
_FILES = {
    **_by_name(
        ".mcp.json claude.md claude.local.md agents.md agents.override.md agent.md gemini.md qwen.md"
        " copilot-instructions.md .cursorrules .windsurfrules .clinerules .roorules .roomodes .goosehints .rules"
        " .augment-guidelines .aider.conf.yml .aider.model.settings.yml .continuerc.json opencode.json opencode.jsonc"
        " crush.json .crush.json",
        _AGENT,
    ),
    "sandbox.policy.yaml": "belljar",
    **_by_name(
        ".pre-commit-config.yaml .pre-commit-config.yml .overcommit.yml .gitmodules .lfsconfig lefthook.yml"
        " lefthook.yaml lefthook.toml lefthook.json .lefthook.yml .lefthook.yaml .lefthook.toml .lefthook.json",
        "git",
    ),
    **_by_name(
        ".devcontainer.json .gitpod.yml .exrc .vimrc .lvimrc .nvimrc .nvim.lua .dir-locals.el .dir-locals-2.el", _EDITOR
    ),
    **_by_name(
        ".gitlab-ci.yml .travis.yml .drone.yml .drone.yaml .cirrus.yml .cirrus.star .appveyor.yml appveyor.yml"
        " azure-pipelines.yml azure-pipelines.yaml bitbucket-pipelines.yml cloudbuild.yaml cloudbuild.yml"
        " cloudbuild.json jenkinsfile buildspec.yml buildspec.yaml .build.yml .woodpecker.yml .woodpecker.yaml"
        " wercker.yml codemagic.yaml bitrise.yml .readthedocs.yml .readthedocs.yaml netlify.toml vercel.json"
        " .github/dependabot.yml",
        _CI,
    ),
    **_by_name(
        ".envrc .mise.toml mise.toml .mise.local.toml mise.local.toml .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs"
        " .pnpmfile.mjs .bazelrc .gdbinit .lldbinit .pdbrc .pryrc .irbrc .ghci .rprofile .octaverc",
        _TOOL,
    ),
}
"""By names in small letters: a file system may take `.GIT` for `.git`."""


_IGNORED = frozenset((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))
"""Characters that some file systems do not see in a name."""


def plain_name(name: str) -> str:
    """What a file system that is less exact than Linux's own may take a name for: in small letters, and no more."""
    if not name.isascii():
        from unicodedata import normalize

        name = normalize("NFKC", "".join(letter for letter in name if ord(letter) not in _IGNORED))
    name = name.casefold().partition(":")[0].rstrip(". ") or name
    return ".git" if name in ("git~1", ".git") else name


def acted_upon(path: str, *, is_directory: bool, kind: str = "added") -> str:
    """Why this path must not come back to the host by itself; empty if it may.

    Args:
        path: relative to the workspace.
        is_directory: whether it is one; a directory that is merely there makes nobody act.
        kind: what happened to it, as in `Change`.

    """
    deleted = kind == "deleted"
    parts = path.split("/")
    small = [plain_name(part) for part in parts]
    for position, part in enumerate(small):
        last = position == len(parts) - 1
        if part == ".git" and not _git_data(
            parts[position + 1 :], is_directory=is_directory and not deleted, kind=kind
        ):
            return "the host's git would act on it"
        for name in (part, "/".join(small[position : position + 2])):
            itself = last or "/".join(small[position:]) == name
            if itself and name in _FILES:
                return f"{_FILES[name]} on the host would act on it"
            if name in _DIRECTORIES and not (itself and is_directory and not deleted):
                return f"{_DIRECTORIES[name]} on the host would act on it"
        if last and part.endswith((".pyc", ".pyo")):
            return "Python on the host would run it, and nobody can read it"
        if last and part.endswith(".code-workspace"):
            return f"{_EDITOR} on the host would act on it"
        if deleted and last and any(name.startswith(f"{part}/") for name in _DIRECTORIES):
            return f"{_CI} on the host acts on what is in it"
    return ""


def link_acted_upon(path: str, target: str) -> str:
    """Why a link must not come back by itself: whoever writes to it writes what it leads to. It leaves no workspace."""
    parts = path.split("/")
    if any(plain_name(part) == ".git" for part in parts):
        return "the host's git would write through it"
    names = [name for name in target.split("/") if name not in ("", ".")]
    upward = sum(name == ".." for name in names)
    leads = [*parts[: len(parts) - 1 - upward], *names[upward:]]
    if any(plain_name(part) == ".git" for part in leads):
        return "it leads to what the host's git acts on"
    if why := acted_upon("/".join(leads), is_directory=True, kind="deleted"):
        return f"it leads to a file: {why}"
    return ""


def _git_data(inside: list[str], *, is_directory: bool, kind: str) -> bool:
    """Whether a path in `.git` is data. `.git` itself has to stay a directory: as a file it points elsewhere."""
    if not inside:
        return is_directory
    match inside:
        case ["objects", "info", *rest]:  # other repositories that objects are taken from, and what is said of commits
            return rest == ["packs"] or (not rest and is_directory)
        case ["objects", _, _] if kind == "modified":  # which never happens to an object
            return inside[1] == "pack" and not inside[2].endswith(".pack")
        case ["refs", "replace", *_]:  # one object shown in the place of another
            return False
    return inside[0] in _GIT_DATA
