"""`belljar agent`: a command-line agent of whatever make, in a jar."""

from __future__ import annotations

from belljar.cli.agent.options import AGENT, wanted
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    words = parsed.all_words()
    if not words:
        raise UsageError("which agent?", hint="belljar agent -- codex exec 'fix the tests'")
    asked = wanted(parsed, words, parsed.text("--profile"))
    if asked.profile_name == "claude":
        from belljar.coding_agents.login import use_login

        use_login()
    from belljar.cli.agent.agent_run import run_agent

    return run_agent(parsed, asked, converses=True)


COMMAND = CliCommand(
    "agent",
    "Run any command-line agent in a jar, and bring back what you approve.",
    usage="agent [OPTIONS] [--] COMMAND [ARGS…]",
    run=run,
    options=(
        Option("--profile", "NAME|FILE", "what it may reach: claude, codex, gemini, aider (default: by the command)"),
        *AGENT,
    ),
    options_first=True,
    details="""
The agent sees a copy of the project, what it kept of earlier calls there, and no key: the egress proxy adds the key of
its model to its questions, and to nothing else. Its profile is a policy file that says which model that is; an agent
without one has no network. At the end you see what it changed, which hosts it reached and what was refused, and say
what comes back. What a tool of this host would act on by itself (git hooks, agents' settings, CI files) needs a yes of
its own.
""",
    examples=(
        ("agent -- codex exec 'fix the tests'", "Codex"),
        ("agent -- gemini --yolo -p 'fix the tests'", "Gemini CLI"),
        ("agent --apply all -- aider --yes-always -m 'fix the tests'", "aider, and take what it did"),
        ("agent --profile ~/mine.yaml -- my-agent", "an agent of your own"),
    ),
)
