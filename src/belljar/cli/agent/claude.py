"""`belljar claude`: Claude Code with permissions skipped, in a jar."""

from __future__ import annotations

from belljar.cli.agent.options import AGENT, wanted
from belljar.cli.parsing import CliCommand, Parsed


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.coding_agents.login import use_login

    words = parsed.all_words()
    if words or not parsed.flag("--reset"):
        use_login()
    asked = wanted(parsed, ["claude", *words], "claude")
    from belljar.cli.agent.agent_run import run_agent

    return run_agent(parsed, asked, converses=not {"-p", "--print", "-v", "--version", "-h", "--help"} & set(words))


COMMAND = CliCommand(
    "claude",
    "Run Claude Code in a jar, and bring back what you approve.",
    usage="claude [OPTIONS] [--] [CLAUDE'S ARGUMENTS…]",
    run=run,
    options=AGENT,
    options_first=True,
    passes_on=True,
    details="""
Claude Code runs with permissions skipped: the jar is what holds it. It works on a copy of the current directory, it
reaches its model and nothing else, and your key stays outside: the egress proxy adds it to questions. Its home holds
what it kept of earlier calls in this project, so --continue and --resume work, and --reset forgets that.
The key is ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN, CLAUDE_CODE_OAUTH_TOKEN, or the login that `claude` keeps in your
home. ANTHROPIC_BASE_URL names another endpoint. belljar's options come first; from the first word that is none of
them, everything is Claude Code's.

At the end you see what it changed, which hosts it reached and what was refused, and say what comes back, in whole or
file by file. What a tool of this host would act on by itself (git hooks and settings, .claude, CLAUDE.md, CI files)
needs a yes of its own. Where nobody can be asked, nothing comes back without --apply all. The work is kept: see
`belljar review`.
""",
    examples=(
        ("claude", "a conversation"),
        ("claude -p 'fix the tests'", "one task"),
        ("claude --apply all -p 'fix the tests'", "one task, unattended"),
        ("claude --continue -p 'and the docs'", "go on with the last conversation in this project"),
        ("claude --allow pypi.org -p 'add httpx'", "with one more host"),
        ("claude --diff --apply none --json -p 'review this'", "for programs"),
        ("claude -- --help", "Claude Code's own help"),
    ),
)
