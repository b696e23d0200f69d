"""What `belljar doctor` looks at beside the backends: languages, the managed policy, state. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from belljar.errors import BelljarError

if TYPE_CHECKING:
    from belljar.backends.contract import Check
    from belljar.policy.models import Policy


_NEEDED = ("managed policy", "state directory", "audit log", "kill switch")
_OWN_STATE = "export BELLJAR_STATE_DIR=$HOME/.belljar"


def host_checks(policy: Policy, state: str) -> list[Check]:
    """One line each."""
    return [*_languages(policy, state), _managed(), _state(state), *_of_state()]


def blocking(checks: Sequence[Check]) -> Check | None:
    """Return the first failed check that keeps every run from starting."""
    return next((check for check in checks if not check.ok and check.name in _NEEDED), None)


def _of_state() -> Iterator[Check]:
    """Look at what lies in the state directory, if it can be looked at."""
    try:
        yield _audit()
        yield _kill_switch()
    except (OSError, BelljarError) as error:
        from belljar.backends.contract import Check

        yield Check("audit log", ok=False, found=str(error), meaning="nothing runs unrecorded", hint=_OWN_STATE)


def _languages(policy: Policy, state: str) -> Iterator[Check]:
    from belljar.backends.contract import Check
    from belljar.backends.installations import find_shown, private_paths
    from belljar.backends.runtimes import LANGUAGES

    for language in LANGUAGES:
        try:
            yield Check(f"language {language}", ok=True, found=find_shown(language, policy, private_paths(state)).path)
        except BelljarError as error:
            meaning = f"code in {language} can't run here"
            yield Check(f"language {language}", ok=False, found=error.message, meaning=meaning, hint=error.hint)


def _managed() -> Check:
    from belljar.backends.contract import Check
    from belljar.policy.load.resolve import MANAGED_PATH, read_managed

    try:
        found = read_managed(MANAGED_PATH)
    except BelljarError as error:
        return Check("managed policy", ok=False, found=error.message, meaning="nothing runs until it is right")
    if found is None:
        return Check("managed policy", ok=True, found=f"none ({MANAGED_PATH})")
    return Check("managed policy", ok=True, found=MANAGED_PATH, meaning=f"{len(found)} keys of it bind every run")


def _state(state: str) -> Check:
    from belljar.backends.contract import Check

    nearest = state
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    why = _why_not_written(nearest)
    if not why:
        return Check("state directory", ok=True, found=state)
    told = f"{state} can't be written: {why}"
    meaning = "nothing can be written down, and nothing runs unrecorded"
    return Check("state directory", ok=False, found=told, meaning=meaning, hint=_OWN_STATE)


def _why_not_written(directory: str) -> str:
    """Return why nothing can be made in a directory, by making something. Root may write /proc, by its mode."""
    from tempfile import mkdtemp

    try:
        os.rmdir(mkdtemp(prefix="belljar-doctor-", dir=directory))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _audit() -> Check:
    """As far as a look at its head tells: `belljar audit verify` reads all of it."""
    from belljar.audit.log import day_files, directory, read_head
    from belljar.backends.contract import Check

    files = day_files(directory())
    if not files:
        return Check("audit log", ok=True, found="nothing was recorded yet")
    try:
        with open(os.path.join(directory(), "head"), "rb") as file:
            head = read_head(file.read(256))
    except OSError:
        head = None
    if head is not None:
        return Check("audit log", ok=True, found=f"{head.link.seq} records since {files[0].partition('.')[0]}")
    return Check(
        "audit log", ok=False, found="its head is missing or damaged", meaning="it was changed by someone else",
        hint="belljar audit verify",
    )  # fmt: skip


def _kill_switch() -> Check:
    from belljar.audit import killswitch
    from belljar.backends.contract import Check

    if why := killswitch.why():
        return Check("kill switch", ok=False, found=f"on: {why}", meaning="nothing runs", hint="belljar killswitch off")
    return Check("kill switch", ok=True, found="off")
