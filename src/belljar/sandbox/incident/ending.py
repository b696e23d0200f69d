"""How a run ends that tripped a canary, where the policy wants it in quarantine (`logging.quarantine`)."""

from __future__ import annotations

import contextlib
from _thread import start_new_thread
from collections.abc import Callable
from typing import TYPE_CHECKING

from belljar.backends.contract import End, LaunchPlan
from belljar.policy.models import Policy
from belljar.sandbox.record.stream import Handle

if TYPE_CHECKING:
    from belljar.sandbox.run.watch import Watch

_TOKEN = "canary-token"  # noqa: S105 - why a run was ended
_WHY = "it sent a planted canary token to the network"


def by_network(run_id: str, handle: Handle) -> Callable[[str], None]:
    """How the network ends a run that is to be quarantined."""

    def end(reason: str) -> None:
        if reason == _TOKEN:
            start_new_thread(_catch, (run_id, handle))
        else:
            handle.kill(reason)

    return end


def _catch(run_id: str, handle: Handle) -> None:
    """It stands still, evidence is taken, it is killed. Whatever goes wrong on the way, it is killed."""
    try:
        with contextlib.suppress(Exception):  # told at the run's end, where it is tried once more
            from belljar.sandbox.incident.quarantine import take_live

            take_live(run_id, handle, reason=_WHY, by="a canary", ended_by=_TOKEN)
    finally:
        handle.kill(_TOKEN)


def quarantined(  # noqa: PLR0917 - what is known of a run's end
    run_id: str, handle: Handle | None, policy: Policy, plan: LaunchPlan, watch: Watch, end: End
) -> str:
    """Have the evidence of a run that has ended by a canary, if it was not taken while it ran. Where, in words."""
    from belljar.errors import BelljarError
    from belljar.sandbox.incident.quarantine import take_at_end

    try:
        return f"; quarantined: {take_at_end(run_id, handle or Handle(), policy, plan, watch, end)}"
    except (BelljarError, OSError) as error:
        return f"; it could not be quarantined: {error}"


__all__ = ["by_network", "quarantined"]
