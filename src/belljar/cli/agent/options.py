"""The options that `agent` and `claude` share, and what they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.cli.jar_options import JSON, QUIET, check_diff_file, policy_name
from belljar.cli.parsing import Option, Parsed
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.coding_agents.inside import Wanted

CHOICES = ("ask", "all", "none")
AGENT: tuple[Option, ...] = (
    Option("--project", "DIR", "what it works on, copy on write (default: the current directory, or its repository)"),
    Option("--at", "PATH", "where the jar has the project, such as /workspace (default: at its own path)"),
    Option("--live", "", "show the project itself, so that it is changed at once; needs --apply-protected"),
    Option("--apply", "ask|all|none", "what comes back at the end (default: ask at a terminal, none elsewhere)"),
    Option("--apply-protected", "", "with --apply all or --live: also what a tool here would act on, as git hooks"),
    Option("--apply-ignored", "", "with --apply all: also what git ignores, which `git diff` does not show"),
    Option("--diff", "", "print the diff at the end"),
    Option("--diff-file", "FILE", "write the diff to FILE at the end"),
    Option("--keep-packages", "", "have packages stay in its ~/.local for the next call with --keep-packages"),
    Option("--reset", "", "forget what it kept of earlier calls in this project; without a task, do only that"),
    Option("--allow", "HOST", "let it reach this host, too; repeatable", repeats=True),
    Option("--policy", "FILE|PRESET", "the policy beneath the profile (default: $BELLJAR_POLICY, or aicode)"),
    Option("--set", "KEY=VALUE", "change one key of the policy, such as proc.mem_mb=8g; repeatable", repeats=True),
    Option("--backend", "NAME", "how to confine it (default: what the policy says)"),
    Option("--timeout", "TIME", "stop it after this long, such as 30m (default: 12h)"),
    JSON,
    QUIET,
)


def wanted(parsed: Parsed, words: list[str], profile: str | None) -> Wanted:
    """What the options ask for. Raises UsageError."""
    from belljar.coding_agents.inside import Wanted

    applying(parsed)
    return Wanted(
        tuple(words),
        project=parsed.text("--project"),
        at=parsed.text("--at"),
        profile=profile,
        policy=policy_name(parsed),
        allow=tuple(parsed.texts("--allow")),
        overrides=tuple(parsed.texts("--set")),
        live=parsed.flag("--live"),
        keep_packages=parsed.flag("--keep-packages"),
        backend=parsed.text("--backend"),
        timeout=parsed.text("--timeout"),
    )


def applying(parsed: Parsed) -> str | None:
    """What `--apply` says; None if it was not given. Raises UsageError."""
    given = parsed.text("--apply")
    if given is not None and given not in CHOICES:
        raise UsageError(f"--apply {given}: wanted one of {', '.join(CHOICES)}", hint="--apply all")
    live = parsed.flag("--live")
    if parsed.flag("--apply-protected") and given != "all" and not live:
        raise UsageError("--apply-protected needs --apply all", hint="--apply all --apply-protected")
    if parsed.flag("--apply-ignored") and given != "all":
        raise UsageError("--apply-ignored needs --apply all", hint="--apply all --apply-ignored")
    if live and not parsed.flag("--apply-protected"):
        raise UsageError(
            "--live lets it write what tools of this host act on by themselves: git hooks, agents' settings, CI files",
            hint="leave --live out and approve the changes, or say so: --live --apply-protected",
        )
    for name in ("--apply", "--diff", "--diff-file"):
        if live and name in parsed.options:
            raise UsageError(f"{name} and --live exclude each other: with --live the project itself is changed")
    check_diff_file(parsed)
    return given
