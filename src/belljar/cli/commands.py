"""Every command: where it lives and what it is for. `belljar --help` is made of this and imports nothing else."""

from __future__ import annotations

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "run": {
        "run": ("belljar.cli.run.run", "Run a file or a piece of code in a jar."),
        "exec": ("belljar.cli.run.exec", "Run a command in a jar."),
        "shell": ("belljar.cli.run.shell", "A Python prompt in a jar, with variables that stay."),
        "explain": (
            "belljar.cli.run.explain",
            "Show what a run would do, and how far each clause of its policy holds.",
        ),
        "doctor": ("belljar.cli.run.doctor", "Say what works on this host, what does not, and what to type about it."),
    },
    "agents": {
        "claude": ("belljar.cli.agent.claude", "Run Claude Code in a jar, and bring back what you approve."),
        "agent": ("belljar.cli.agent.agent", "Run any command-line agent in a jar, and bring back what you approve."),
        "allow": ("belljar.cli.agent.allow", "Let agents reach a host, in one project or in all."),
        "review": ("belljar.cli.agent.review", "Show the work of an agent's run that is kept, or list all that is."),
        "apply": ("belljar.cli.agent.apply", "Bring kept work of an agent's run into its project."),
        "discard": ("belljar.cli.agent.discard", "Remove kept work of an agent's run."),
        "mcp": ("belljar.cli.mcp.serve", "Serve the tools to any MCP client."),
        "mcp config": ("belljar.cli.mcp.config", "Print what to paste so that an MCP client has the tools."),
        "mcp wrap": ("belljar.cli.mcp.wrap", "Run someone else's MCP server in a jar."),
    },
    "policies": {
        "init": ("belljar.cli.policy.init", "Write a policy file with every key explained."),
        "presets": ("belljar.cli.policy.presets", "List the policies that come with belljar."),
        "policy check": ("belljar.cli.policy.check", "Say what is wrong with a policy."),
        "policy show": ("belljar.cli.policy.show", "Show what a policy comes to, and where each value is from."),
        "policy diff": ("belljar.cli.policy.diff", "Show what one policy allows otherwise than another."),
        "policy lint": ("belljar.cli.policy.lint", "Warn of what a policy allows that its author may not have meant."),
        "policy schema": ("belljar.cli.policy.schema", "Print the JSON Schema of a policy file, for editors."),
        "net test": ("belljar.cli.policy.net_test", "Say whether a policy lets a request pass, and why."),
    },
    "what runs, and ran": {
        "ps": ("belljar.cli.runs.ps", "List what runs, in every belljar process of this user."),
        "logs": ("belljar.cli.runs.logs", "Show what a run printed, or prints."),
        "inspect": ("belljar.cli.runs.inspect", "Show all that is known of a run."),
        "kill": ("belljar.cli.runs.kill", "End a run of any belljar process of this user."),
        "killswitch": (
            "belljar.cli.runs.killswitch",
            "End every jar of this user, and let none start until it is off.",
        ),
        "quarantine": ("belljar.cli.runs.quarantine", "Have a run stand still, take all evidence of it, and kill it."),
        "quarantine open": ("belljar.cli.runs.quarantine_open", "Show what is in the bundle of a quarantine."),
        "replay": ("belljar.cli.runs.replay", "Run again what ran, under the same policy, and say what differs."),
    },
    "files of runs": {
        "snapshot": ("belljar.cli.snapshot.take", "Keep the files of a run or session, as they are now."),
        "snapshot ls": ("belljar.cli.snapshot.ls", "List the snapshots."),
        "snapshot rm": ("belljar.cli.snapshot.rm", "Remove snapshots."),
        "diff": ("belljar.cli.snapshot.diff", "Show what differs between two snapshots."),
        "restore": ("belljar.cli.snapshot.restore", "Write the files of a snapshot into a new directory."),
    },
    "the record": {
        "audit tail": ("belljar.cli.audit.tail", "Show the last records of the audit log."),
        "audit query": ("belljar.cli.audit.query", "Show the records of the audit log that fit."),
        "audit verify": ("belljar.cli.audit.verify", "Say whether the audit log is as it was written."),
        "audit export": ("belljar.cli.audit.export", "Write the audit log for other programs, or send it to them."),
        "audit sign": ("belljar.cli.audit.sign", "Sign the audit log as it is now."),
        "audit keygen": ("belljar.cli.audit.keygen", "Make an Ed25519 key to sign the audit log with."),
        "metrics": ("belljar.cli.audit.metrics", "Print the numbers of all runs for Prometheus, or serve them."),
        "prune": (
            "belljar.cli.audit.prune",
            "Remove old days of the audit log, with the code and output of their runs.",
        ),
    },
    "images": {
        "image build": ("belljar.cli.image.build", "Build the image that containers run, with no registry."),
        "image ls": ("belljar.cli.image.ls", "List the images that belljar built, on each engine."),
        "image inspect": ("belljar.cli.image.inspect", "Show what an image is and what is in it."),
        "image scan": ("belljar.cli.image.scan", "Look through an image for what should not be in it."),
        "image pull": ("belljar.cli.image.pull", "Get an image from a registry."),
        "image rm": ("belljar.cli.image.rm", "Remove an image."),
    },
}
"""By what they are for: name to module and summary."""

COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

GROUPS = ("policy", "image", "net", "audit")
"""First words that are no command by themselves."""
