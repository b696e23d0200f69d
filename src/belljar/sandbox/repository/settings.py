"""Settings of the host's repository that the jar's repository has as well: by name, nothing that executes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLAIN = frozenset({
    "core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode", "core.autocrlf", "core.eol",
    "core.safecrlf", "core.sparsecheckout", "core.sparsecheckoutcone", "core.quotepath", "core.abbrev",
    "user.name", "user.email", "extensions.objectformat", "extensions.partialclone", "pull.rebase",
})  # fmt: skip
_NAMED = {
    "remote": frozenset({"url", "pushurl", "fetch", "tagopt", "promisor", "partialclonefilter"}),
    "branch": frozenset({"remote", "merge", "rebase", "pushremote"}),
}
_EXTENSIONS = frozenset({"objectformat", "partialclone", "worktreeconfig", "refstorage", "noop", "preciousobjects"})
_HELPER = re.compile(r"[A-Za-z0-9-]+::")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:([^/]*)@)?(.*)", re.DOTALL)


def jar_settings(settings: Iterable[tuple[str, str]]) -> str:
    """Return the text of the jar's `config`."""
    lines = ["[core]\n\tbare = false\n\tlogallrefupdates = true\n"]
    version = 0
    for key, value in settings:
        section, subsection, name = _split(key)
        if section == "extensions" and name in ("objectformat", "partialclone"):
            version = 1
        if not subsection and f"{section}.{name}" in _PLAIN:
            lines.append(f"[{section}]\n\t{name} = {_quoted(value)}\n")
        elif subsection and name in _NAMED.get(section, ()):
            address = without_credentials(value) if name in ("url", "pushurl") else value
            if address:
                lines.append(f"[{section} {_quoted(subsection)}]\n\t{name} = {_quoted(address)}\n")
    lines.append(f"[core]\n\trepositoryformatversion = {version}\n")
    return "".join(lines)


def unknown_extension(settings: Iterable[tuple[str, str]]) -> str:
    """Return an extension of the repository's format that belljar does not know; empty if there is none."""
    split = [_split(key) for key, _value in settings]
    return next((name for section, _, name in split if section == "extensions" and name not in _EXTENSIONS), "")


def object_format(settings: Iterable[tuple[str, str]]) -> str:
    """Return `sha1` or `sha256`."""
    found = [value.lower() for key, value in settings if key.lower() == "extensions.objectformat"]
    return found[-1] if found and found[-1] == "sha256" else "sha1"


def without_credentials(url: str) -> str:
    """Return a remote's address without user and password; empty for one that names a program to run.

    The user of SSH is no secret and stays: `git@host:path`, `ssh://git@host/path`.
    """
    if _HELPER.match(url):
        return ""
    if not (found := _SCHEME.fullmatch(url)):
        return url
    scheme, login, rest = found.groups()
    user = (login or "").partition(":")[0]
    keeps = scheme.lower() in ("ssh://", "git+ssh://", "ssh+git://") and user
    return f"{scheme}{user}@{rest}" if keeps else f"{scheme}{rest}"


def _split(key: str) -> tuple[str, str, str]:
    section, _, rest = key.partition(".")
    subsection, _, name = rest.rpartition(".")
    return section.lower(), subsection, name.lower()


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
