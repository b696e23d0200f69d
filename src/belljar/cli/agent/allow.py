"""`belljar allow`: let agents reach a host, from now on."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.coding_agents.project import project_directory
    from belljar.tools.allowed_hosts import change_allowed

    hosts = parsed.all_words()
    named = parsed.text("--project")
    mine = project_directory(named) if named or parsed.flag("--for-project") else None
    if parsed.flag("--list"):
        if hosts or parsed.flag("--remove"):
            raise UsageError("--list stands alone", hint="belljar allow --list")
        return _list(project_directory(named), as_json=parsed.flag("--json"))
    if not hosts:
        raise UsageError("which host?", hint="belljar allow pypi.org --for-project, or belljar allow --list")
    before, after = change_allowed(mine, hosts, remove=parsed.flag("--remove"))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"project": mine, "before": before, "after": after, "companions": _companions(after)})
        return 0
    sys.stdout.write(_diff(mine, before, after))
    return 0


def _list(project: str, *, as_json: bool) -> int:
    from belljar.tools.allowed_hosts import read_allowed

    every, own = read_allowed(None), read_allowed(project)
    if as_json:
        from belljar.cli.terminal.document import print_json

        print_json({"every_project": every, "project": project, "for_project": own})
        return 0
    lines = [f"{host}  in every project\n" for host in every] + [f"{host}  in {visible(project)}\n" for host in own]
    sys.stdout.write("".join(lines) or "Agents reach their model, and no other host.\n")
    return 0


def _companions(hosts: list[str]) -> dict[str, str]:
    """The hosts that come with these, each with the reason."""
    from belljar.policy.load.resolve import MANAGED_PATH, read_managed
    from belljar.tools.allowed_hosts import with_them

    return {one.host: one.why for one in with_them(hosts, read_managed(MANAGED_PATH))}


def _diff(project: str | None, before: list[str], after: list[str]) -> str:
    """The hosts that come and go, with those that come with them."""
    where = f"in {visible(project)}" if project else "in every project"
    if before == after:
        return f"agents {where}: that was so before\n"
    old, new = _companions(before), _companions(after)
    lines = [f"agents {where}:"]
    lines += [f"-{host}" for host in before if host not in after]
    lines += [f"-{host}  ({why})" for host, why in old.items() if host not in new]
    lines += [f"+{host}" for host in after if host not in before]
    lines += [f"+{host}  ({why}; GET and HEAD only)" for host, why in new.items() if host not in old]
    return "".join(f"{line}\n" for line in lines)


COMMAND = CliCommand(
    "allow",
    "Let agents reach a host, in one project or in all.",
    usage="allow [OPTIONS] HOST…",
    run=run,
    options=(
        Option("--for-project", "", "in the project of the current directory only (default: in every project)"),
        Option("--project", "DIR", "in the project at DIR only"),
        Option("--remove", "", "take it back"),
        Option("--list", "", "list what is allowed here"),
        JSON,
    ),
    details="""
`belljar claude` and `belljar agent` let the agent reach these hosts from the next run on, as --allow does for one run.
The list is in belljar's state directory, where no jar can write, and each change is in the audit log. The managed
policy and the built-in deny list still hold. Hosts that package managers need besides come along, for reading alone:
with pypi.org also files.pythonhosted.org.
""",
    examples=(
        ("allow pypi.org --for-project", "pip works in this project"),
        ("allow registry.npmjs.org", "npm works in every project"),
        ("allow --remove pypi.org --for-project", "take it back"),
        ("allow --list", "what is allowed here"),
    ),
)
