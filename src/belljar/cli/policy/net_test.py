"""`belljar net test`: whether a policy lets a request pass, and why, without sending anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from belljar.cli.jar_options import JSON, policy_name
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible

if TYPE_CHECKING:
    from belljar.egress.decide.trial import Trial

DENIED = 1


def run(parsed: Parsed) -> int:
    """Judge it; 1 if it is denied."""
    from belljar.egress.decide.rules import compile_rules
    from belljar.egress.decide.trial import trial
    from belljar.policy.load.resolve import resolve

    (url,) = expect_words(COMMAND, parsed, 1, 1)
    policy = resolve(policy_name(parsed), overrides=parsed.texts("--set"))
    method = (parsed.text("--method") or "GET").upper()
    result = trial(compile_rules(policy), url, method, enabled=policy.net.enabled)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(_document(url, result))
    else:
        sys.stdout.write(describe(url, result))
    return 0 if result.verdict.allowed else DENIED


def _change(result: Trial) -> str:
    from belljar.egress.decide.reasons import change

    path = result.target.partition("?")[0]
    return change(result.verdict, host=result.host, port=result.port, method=result.method, path=path)


def _document(url: str, result: Trial) -> dict[str, Any]:
    verdict = result.verdict
    return {
        "url": url,
        "method": result.method or None,
        "host": result.host,
        "port": result.port,
        "allowed": verdict.allowed,
        "reason": verdict.reason or None,
        "detail": verdict.detail or None,
        "rule": verdict.key or None,
        "where": verdict.where or None,
        "allow": _change(result) or None,
        "tls": result.tls or None,
        "addresses": result.addresses,
        "credentials": result.credentials,
        "other_credentials": result.other_credentials or None,
    }


def describe(url: str, result: Trial) -> str:
    """Return the verdict on one line, and beneath it what it is made of."""
    from belljar.cli.terminal.table import aligned
    from belljar.egress.decide.reasons import words

    verdict = result.verdict
    first = f"{'allow' if verdict.allowed else 'deny'}  {result.method + ' ' if result.method else ''}{url}"
    facts: list[tuple[str, str]] = []
    if not verdict.allowed:
        facts.append(("reason", f"{verdict.reason}: {words(verdict.reason, verdict.detail)}"))
    facts.append(("rule", f"{verdict.key} ({verdict.where})" if verdict.where else verdict.key))
    if change := _change(result):
        facts.append(("allow", change))
    if verdict.allowed:
        facts += _carried(result)
    return visible(first) + "\n" + aligned([(name, visible(text)) for name, text in facts], indent="  ")


def _carried(result: Trial) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if result.tls == "opened":
        facts.append(("tls", "decrypted, because a rule for this host checks methods, paths or credentials"))
    elif result.tls:
        facts.append(("tls", "passed through, its server name checked: what is inside is not seen"))
    if result.addresses:
        facts.append(("dialled", ", ".join(result.addresses)))
    elif result.tls or result.target:
        facts.append(("dialled", "what DNS says when it is asked; only public addresses"))
    if result.credentials:
        facts.append(("carries", ", ".join(result.credentials)))
    if result.other_credentials:
        facts.append(("keys", f"of the code's own are refused ({result.other_credentials})"))
    return facts


COMMAND = CliCommand(
    "net test",
    "Say whether a policy lets a request pass, and why.",
    usage="net test [OPTIONS] URL",
    run=run,
    options=(
        Option("--policy", "FILE|PRESET", "the policy to ask (default: $BELLJAR_POLICY, or the preset aicode)"),
        Option("--set", "KEY=VALUE", "change one key of the policy; repeatable", repeats=True),
        Option("--method", "METHOD", "the method of the request (default: GET)"),
        JSON,
    ),
    details="""
Nothing is sent, and DNS is not asked. URL is what the code would ask for; without http or https (ssh://host, host:5432)
only the connection is judged. A refusal tells its reason, the rule with its file and line, and the smallest change that
would allow it. Exit code: 0 if it would pass, 1 if not.
""",
    examples=(
        ("net test https://www.example.com/ --policy sandbox.policy.yaml", "may code read there?"),
        ("net test https://api.example.com/v1/items --method POST --json", "for a script"),
        ("net test host.belljar.internal:5432 --set net.enabled=true", "a service of this host"),
    ),
)
