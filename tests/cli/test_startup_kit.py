"""Who may use the start-up kit: the modules that `belljar run`, the launcher and the stage import, and no others.

The kit trades readability for milliseconds. A module that no start waits for uses the standard library.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from test_cli_imports import OWN

PACKAGE = Path(__file__).resolve().parents[2] / "src/belljar"
STAGE = "belljar.backends.bubblewrap.stage"
LAUNCHER = "belljar.backends.bubblewrap.launcher.launcher"
WITH_OPTIONS = {f"belljar.policy.{name}" for name in ("builtin", "load.dangers", "load.validate")}
"""What a run with a policy of its own imports besides."""
EXEMPT = ("belljar.guest", "belljar._startup", "belljar.backends.pool_contract")
"""What runs inside a jar, the kit itself, and protocols that extend those of `backends/contract.py`."""


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _statements(module: ast.Module, *, in_functions: bool) -> Iterator[ast.stmt]:
    """The statements that are executed when the module is imported, or whenever; not those for type checkers."""
    rest: list[ast.AST] = [*module.body]
    while rest:
        node = rest.pop()
        if _is_for_types(node) or (isinstance(node, ast.FunctionDef) and not in_functions):
            continue
        if isinstance(node, ast.stmt):
            yield node
        for part in ("body", "orelse", "finalbody", "handlers"):
            rest += getattr(node, part, ())


@functools.cache
def _imported(module: str, *, in_functions: bool) -> set[str]:
    found: set[str] = set()
    for node in _statements(MODULES[module], in_functions=in_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & MODULES.keys()


def on_the_path() -> set[str]:
    """What a start imports. A stage imports what its functions do, too: it does so before the code starts."""
    found: set[str] = set()
    rest = {*OWN, *WITH_OPTIONS, LAUNCHER, *(name for name in MODULES if name.startswith(STAGE))}
    while rest:
        name = rest.pop()
        found.add(name)
        rest |= _imported(name, in_functions=name.startswith(STAGE)) - found
    return found


def _uses_the_kit(module: str) -> bool:
    wants = any(name.startswith("belljar._startup") for name in _imported(module, in_functions=True))
    own_flag = any(
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "TYPE_CHECKING"
        for node in MODULES[module].body
    )
    return wants or own_flag


def test_only_modules_on_the_start_up_path_use_the_kit() -> None:
    others = {name for name in MODULES if not name.startswith(EXEMPT)} - on_the_path()
    assert sorted(filter(_uses_the_kit, others)) == []


def test_the_path_is_found() -> None:
    """A control: modules of each of the three processes are on it, and one of another command's is not."""
    path = on_the_path()
    assert {"belljar.cli.run.launching", LAUNCHER, f"{STAGE}.jar_run", "belljar.limits.groups"} <= path
    assert "belljar.cli.audit.show" not in path
    assert _uses_the_kit(f"{STAGE}.jar_run")
