"""The host's git, run so that it executes nothing that a repository names: no hooks, filters, fsmonitor, transports."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from belljar.backends.runtimes import find_program
from belljar.errors import BelljarError
from belljar.policy.paths import beneath, visited

_SECONDS = 120.0
_SYSTEM = "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin"
_LONGEST_REASON = 500
QUIET = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.allow=never"),
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.commitGraph=false"),
    *("-c", "advice.graftFileDeprecated=false"),
)
"""Settings on the command line come before those of the repository."""
ALONE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # comes before `protocol.NAME.allow` of the repository's settings
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_COMMITTER_NAME": "belljar",
    "GIT_COMMITTER_EMAIL": "belljar@localhost",
    "GIT_AUTHOR_NAME": "belljar",
    "GIT_AUTHOR_EMAIL": "belljar@localhost",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
}


class GitError(BelljarError):
    """Git could not do what was asked; the message is its own."""


@dataclass(frozen=True)
class HostGit:
    """A repository of the host's.

    Git runs as the repository's owner if belljar runs as root. So new files belong to the owner, and settings that the
    owner wrote never act with root's rights.
    """

    directory: str
    """What `.git` is, or leads to."""
    common: str
    """What all of its worktrees share."""
    top: str
    """The top of its work tree."""

    @property
    def objects(self) -> str:
        """Where its objects are."""
        return os.path.join(self.common, "objects")

    def run(
        self,
        *words: str,
        data: bytes | None = None,
        file: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
    ) -> bytes:
        """Run git on the repository, and return what it prints.

        Raises:
            GitError: git failed, took too long, or is not installed.
        """
        own = {**ALONE, "PATH": _SYSTEM, "GIT_DIR": self.directory, **(env or {})}
        return _run(
            [git_program(self.top), *QUIET, *words], cwd=self.directory, env=own, data=data, file=file, seconds=seconds
        )

    def beginning(self, *words: str, most: int, seconds: float = _SECONDS) -> bytes:
        """Run git, and return the first `most` bytes of what it prints. Then it is killed; errors are not told.

        Raises:
            GitError: git is not installed, or can't be started.
        """
        own = {**ALONE, "PATH": _SYSTEM, "GIT_DIR": self.directory}
        user, group = _owner(self.directory)
        try:
            process = subprocess.Popen(
                [git_program(self.top), *QUIET, *words],
                cwd=self.directory,
                env=own,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise GitError(f"git could not be started: {error.strerror or error}") from error
        found, until = bytearray(), time.monotonic() + seconds
        with process:
            assert process.stdout is not None
            output = process.stdout.fileno()
            while len(found) < most and select.select([output], [], [], max(0.0, until - time.monotonic()))[0]:
                piece = os.read(output, min(1 << 20, most - len(found)))
                if not piece:
                    break
                found += piece
            process.kill()
        return bytes(found)

    def try_run(self, *words: str) -> bytes | None:
        """As `run`; None if git fails."""
        try:
            return self.run(*words)
        except GitError:
            return None


def settings_of(path: str) -> list[tuple[str, str]]:
    """Return the settings in one file of git's, without what it includes."""
    if not os.path.isfile(path):
        return []
    own = {**ALONE, "PATH": _SYSTEM}
    command = [git_program(), "config", "--file", path, "--no-includes", "--null", "--list"]
    found = []
    for item in _run(command, cwd=os.path.dirname(path), env=own).decode("utf-8", "surrogateescape").split("\0"):
        key, equals, value = item.partition("\n")
        if key:
            found.append((key, value if equals else "true"))
    return found


def git_program(project: str = "") -> str:
    """The host's git: the system's, or else one on PATH that lies outside of the project and the current directory.

    An agent can write to the project, and PATH may begin with a directory of it (`.venv/bin`).

    Raises:
        GitError: there is none.
    """
    found = find_program("git", _SYSTEM) or find_program("git", _search_path(project))
    if found is None:
        raise GitError("git is not installed on this host, outside of the project", hint="install git")
    return found


def _search_path(project: str = "") -> str:
    """PATH without directories that lie in the project or the current directory, or are reached through them."""
    tops = [one for one in map(os.path.realpath, filter(None, (project, "."))) if one != "/"]
    each = os.environ.get("PATH", os.defpath).split(":")
    return ":".join(one for one in each if one and not any(beneath(step, top) for step in visited(one) for top in tops))


def _run(
    command: list[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    data: bytes | None = None,
    file: IO[bytes] | None = None,
    seconds: float = _SECONDS,
) -> bytes:
    user, group = _owner(cwd)
    given: dict[str, Any] = {"input": data} if data is not None else {"stdin": file or subprocess.DEVNULL}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            capture_output=True,
            timeout=seconds,
            check=False,
            **given,
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"git took longer than {seconds:g} s") from None
    except OSError as error:
        raise GitError(f"git could not be started: {error.strerror or error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise GitError(said[-_LONGEST_REASON:] or f"git ended with {done.returncode}")
    output: bytes = done.stdout
    return output


def _owner(directory: str) -> tuple[int | None, int | None]:
    """Return the user and the group to run git as; None for those that belljar has."""
    if os.geteuid() != 0:
        return None, None
    status = os.stat(directory)
    return (None, None) if status.st_uid == 0 else (status.st_uid, status.st_gid)
