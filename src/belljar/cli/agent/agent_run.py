"""An agent's run, from the options to its end: what `agent` and `claude` share."""

from __future__ import annotations

import contextlib
import errno
import sys
from _thread import start_new_thread

from belljar.cli.parsing import Parsed
from belljar.cli.terminal.safe_text import visible
from belljar.cli.terminal.sink import Sink
from belljar.cli.terminal.stopping import Stopped, Stopping
from belljar.cli.terminal.style import is_terminal
from belljar.coding_agents.inside import Agent, Wanted, forget_home, prepare
from belljar.coding_agents.project import project_directory
from belljar.coding_agents.shims import use_real_node
from belljar.errors import BelljarError, InternalError
from belljar.sandbox.record.events import Finished
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.run.sandbox import Sandbox

_GONE = {errno.EIO: 128 + 1, errno.EPIPE: 128 + 13}
"""What a terminal that was closed, and a pipe that nobody reads, answer to a write; and what the shell calls that."""


def run_agent(parsed: Parsed, wanted: Wanted, *, converses: bool) -> int:
    """Make the jar, run the agent in it, and settle what comes back; returns the exit code.

    Args:
        parsed: the options.
        wanted: the same, as the agents' room wants them.
        converses: whether the program talks with a person, if there is one at a terminal.

    """
    from belljar.cli.run.launching import start_launcher

    if parsed.flag("--reset"):
        forgotten = forget_home(wanted)
        if len(wanted.words) == 1:
            sys.stderr.write(
                "belljar: its home is forgotten\n" if forgotten else "belljar: there was nothing to forget\n"
            )
            return 0
    start_launcher(wanted.backend)
    _start_proxy()
    use_real_node(project_directory(wanted.project))
    agent = prepare(wanted)
    if not parsed.flag("--quiet"):
        sys.stderr.write("".join(f"belljar: {visible(note)}\n" for note in agent.notes))
    at_terminal = is_terminal(0) and is_terminal(1) and not parsed.flag("--json")
    stopping = Stopping()
    start_new_thread(_import_ahead, ())
    with stopping.heard(), agent.opened() as jar:
        try:
            result = (_converse if converses and at_terminal else _run)(jar, agent, parsed, stopping)
            from belljar.cli.agent.settling import settle

            return settle(jar, agent, result, parsed)
        except Stopped as stop:
            from belljar.cli.agent.settling import interrupted

            return interrupted(jar, agent, str(stop), stop.exit_code)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            from belljar.cli.agent.settling import interrupted

            return interrupted(jar, agent, "nobody reads its output any more", _GONE[error.errno])


def _start_proxy() -> None:
    """Start the egress proxy: it comes up while the policy is made. What is wrong with it, the jar tells."""
    from belljar.egress.client.client import PROXY

    with contextlib.suppress(BelljarError, OSError):
        PROXY.start()


def _import_ahead() -> None:
    """Import what the run needs when the jar is there, in a thread: until then there is little else to do."""


def _run(jar: Sandbox, agent: Agent, parsed: Parsed, stopping: Stopping) -> RunResult:
    """Pass its output on as it arrives; a terminal's input stays for the questions afterwards."""
    from belljar.cli.terminal.standard_input import give

    sinks = {"stdout": Sink(1, raw=False), "stderr": Sink(2, raw=False)}
    given = None if is_terminal(0) else give()
    with stopping.following(jar.stream(argv=agent.argv, name=agent.title, stdin=given)) as events:
        for event in events:
            if isinstance(event, Finished):
                for sink in sinks.values():
                    sink.finish()
                return event.result
            if not parsed.flag("--json"):
                sinks[event.stream].write(event.data)
    raise InternalError("the run ended without a result")


def _converse(jar: Sandbox, agent: Agent, _parsed: Parsed, stopping: Stopping) -> RunResult:
    from belljar.cli.terminal.conversation import converse

    return converse(jar, agent.argv, stopping, name=agent.title)
