"""A jar's group on whatever this host has, and a stage in which a test's function runs: forked, dropped, JSON."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from belljar.limits.clone_into import fork_into
from belljar.limits.detect import CgroupSupport, Mechanism, detect
from belljar.limits.groups import JarGroup, create_jar_group
from belljar.limits.systemd import prepare_delegated

KERNEL_UID = 70_001
InStage = Callable[[Callable[[], Any]], Any]


def answer_of(pid_of_fork: Callable[[], int], function: Callable[[], Any], uid: int | None) -> Any:
    """Fork with `pid_of_fork`, drop to `uid`, call `function` there, and return its JSON answer here."""
    reader, writer = os.pipe()
    pid = pid_of_fork()
    if pid == 0:
        try:
            if uid is not None:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            answer = {"value": function()}
        except BaseException:  # noqa: BLE001  the child of a fork must not return into pytest
            answer = {"error": traceback.format_exc()}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.waitpid(pid, 0)  # first: a run that outlives its stage holds the pipe open as well
    os.close(writer)
    os.set_blocking(reader, False)
    try:
        text = os.read(reader, 1 << 16)
    except BlockingIOError:
        text = b""
    os.close(reader)
    answer = json.loads(text or '{"error": "the child was killed"}')
    assert "error" not in answer, answer["error"]
    return answer["value"]


@pytest.fixture(scope="session")
def support() -> CgroupSupport:
    """What this host has; a test that needs a group is skipped, with the reason, where there is none."""
    found = detect()
    if found.mechanism is Mechanism.V2_DELEGATED:
        found = prepare_delegated(found)
    if found.mechanism in (Mechanism.NONE, Mechanism.V2_SYSTEMD):
        wanted = "start pytest with: systemd-run --user --scope -p Delegate=yes"
        pytest.skip(f"no control group here: {found.mechanism} {dict(found.missing)} {found.hint or wanted}")
    return found


@pytest.fixture(params=["same uid", "own kernel uid"])
def owner_uid(request: pytest.FixtureRequest) -> int | None:
    """Who owns the jar's group: the starter, or (started by root only) a kernel uid of its own."""
    if request.param == "same uid":
        return None
    if os.geteuid() != 0:
        pytest.skip("only root gives a jar a kernel uid of its own")
    return KERNEL_UID


@pytest.fixture
def jar(support: CgroupSupport, owner_uid: int | None) -> Iterator[JarGroup]:
    """A jar's group, removed at the end whatever the test left in it."""
    made = create_jar_group(support, "test", owner_uid=owner_uid)
    assert made is not None
    yield made
    made.remove()


@pytest.fixture
def in_stage(jar: JarGroup, owner_uid: int | None) -> InStage:
    """Calls a function in a stage of the jar: the process, the uid and the descriptors that belljar uses there."""
    return lambda function: answer_of(lambda: fork_into(jar.stage_cgroup_fd()), function, owner_uid)


@pytest.fixture
def as_ordinary_user() -> InStage:
    """Calls a function as an ordinary user (the one we are, or 65534 when we are root)."""
    uid = 65_534 if os.geteuid() == 0 else None
    return lambda function: answer_of(os.fork, function, uid)
