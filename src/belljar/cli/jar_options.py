"""The options that `run`, `exec` and `explain` share, and the Sandbox that they ask for."""

from __future__ import annotations

import os
import sys

from belljar.cli.parsing import Option, Parsed
from belljar.errors import UsageError

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from belljar.sandbox.run.sandbox import Sandbox

PROJECT_FILE = "sandbox.policy.yaml"
JSON = Option("--json", "", "print one JSON document and nothing else on standard output")
QUIET = Option("-q --quiet", "", "say nothing but errors and refusals")
JAR: tuple[Option, ...] = (
    Option("--policy", "FILE|PRESET", "what the code may do (default: $BELLJAR_POLICY, or the preset aicode)"),
    Option("--set", "KEY=VALUE", "change one key of the policy, such as proc.mem_mb=256; repeatable", repeats=True),
    Option("--backend", "NAME", "how to confine it (default: what the policy says; `belljar doctor` lists them)"),
    Option("--workspace", "DIR", "show DIR at /workspace, copy on write: DIR itself is not touched"),
    Option("--live", "", "with --workspace: show DIR itself, so that the code changes it"),
    Option("--timeout", "TIME", "stop it after this long, such as 5s or 2m"),
    Option(
        "--publish",
        "[HOST:]PORT",
        "let this host reach a server of the code's at 127.0.0.1; repeatable",
        repeats=True,
    ),
)
RUNNING: tuple[Option, ...] = (
    Option("--diff", "", "with --workspace: print what the code changed"),
    Option("--diff-file", "FILE", "with --workspace: write what the code changed to FILE"),
    Option("--apply", "", "with --workspace: bring the changes back into DIR"),
    Option("--apply-protected", "", "with --apply: also what a tool here would act on by itself, as git hooks"),
    Option("--apply-ignored", "", "with --apply: also what git ignores, which `git diff` does not show"),
    Option("--artifacts", "DIR", "copy the files that the code made into DIR"),
    Option("--overwrite", "", "with --artifacts: replace files that are in DIR already"),
    Option("--explain-denials", "", "name every file that was refused as well; the code runs more slowly"),
    Option("--raw", "", "let the code's escape sequences reach the terminal"),
    JSON,
    QUIET,
)


def whole_number(parsed: Parsed, name: str, default: int) -> int:
    """The value of an option that is a number of things. Raises UsageError."""
    text = parsed.text(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**9:
        raise UsageError(f"{name} {text}: wanted a whole number")
    return int(text)


def check(parsed: Parsed) -> None:
    """Refuse options that make no sense together. Raises UsageError."""
    if parsed.text("--workspace") is None:
        for name in ("--live", "--diff", "--diff-file", "--apply"):
            if name in parsed.options:
                words = f"{name} {parsed.text(name)}" if name == "--diff-file" else name
                raise UsageError(f"{name} needs a workspace", hint=f"say which directory: --workspace . {words}")
    for name in ("--diff", "--diff-file", "--apply"):
        if parsed.flag("--live") and name in parsed.options:
            raise UsageError(f"{name} and --live exclude each other: with --live the code changes DIR itself")
    for name in ("--apply-protected", "--apply-ignored"):
        if parsed.flag(name) and not parsed.flag("--apply"):
            raise UsageError(f"{name} needs --apply", hint=f"--apply {name}")
    check_diff_file(parsed)
    check_artifacts(parsed)


def check_diff_file(parsed: Parsed) -> None:
    """Refuse a file that can't be written, before anything runs. Raises UsageError."""
    if (file := parsed.text("--diff-file")) is None:
        return
    directory = os.path.dirname(os.path.abspath(file))
    if os.path.isdir(file) or not os.path.isdir(directory):
        found = "it is a directory" if os.path.isdir(file) else f"there is no directory {directory}"
        raise UsageError(f"--diff-file {file}: {found}", hint="name a file, such as --diff-file changes.diff")


def check_artifacts(parsed: Parsed) -> None:
    """Refuse a directory that belljar does not write to, before anything runs. Raises UsageError."""
    directory = parsed.text("--artifacts")
    if directory is None:
        if parsed.flag("--overwrite"):
            raise UsageError("--overwrite needs --artifacts", hint="--artifacts out --overwrite")
        return
    from belljar.sandbox.files.host_directory import check_target

    check_target(directory)


def policy_name(parsed: Parsed) -> str | None:
    """The policy that was asked for, if one was."""
    return parsed.text("--policy") or os.environ.get("BELLJAR_POLICY") or None


def make_sandbox(parsed: Parsed) -> Sandbox:
    """The Sandbox that the options describe. Raises PolicyError."""
    from belljar.sandbox.run.sandbox import Sandbox

    jar = Sandbox(
        policy_name(parsed),
        backend=parsed.text("--backend"),
        workspace=parsed.text("--workspace"),
        live=parsed.flag("--live"),
        overrides=[*parsed.texts("--set"), *published(parsed)],
        timeout=parsed.text("--timeout"),
        one_shot=True,
    )
    if parsed.flag("--apply"):
        jar.remember_host_files()
    return jar


def published(parsed: Parsed) -> list[str]:
    """The ports that were asked for, as an override of the policy. Raises UsageError."""
    ports = parsed.texts("--publish")
    if wrong := [port for port in ports if not port.replace(":", "", 1).isdigit()]:
        raise UsageError(f"--publish {wrong[0]}: wanted a port", hint="--publish 8000, or --publish 18000:8000")
    return ["net.publish=[" + ", ".join(f"'{port}'" for port in ports) + "]"] if ports else []


def note_project_file(parsed: Parsed) -> None:
    """Tell of a policy that lies here and is not used: a repository that someone cloned could have brought it."""
    if parsed.flag("--quiet") or policy_name(parsed) is not None or not os.path.isfile(PROJECT_FILE):
        return
    workspace = parsed.text("--workspace")
    if workspace is None or not within(os.path.abspath(PROJECT_FILE), workspace):
        sys.stderr.write(f"belljar: {PROJECT_FILE} is not used unless you name it: --policy {PROJECT_FILE}\n")


def note_home(parsed: Parsed) -> None:
    """Warn of a workspace that holds the whole home directory."""
    workspace = parsed.text("--workspace")
    home = os.path.expanduser("~")
    if workspace is not None and not parsed.flag("--quiet") and home != "/" and within(home, workspace):
        sys.stderr.write(
            f"belljar: warning: --workspace {workspace} is your home directory: the code sees every file in it that no "
            "pattern denies. Name the project's directory instead.\n"
        )


def within(path: str, directory: str) -> bool:
    """Whether the file that `path` leads to lies beneath the directory."""
    root = os.path.realpath(directory)
    return os.path.commonpath([root, os.path.realpath(path)]) == root
