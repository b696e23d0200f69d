"""Events of OCSF have what their classes require, by a list from version 1.3 for the three classes that are used."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.audit.ocsf import to_ocsf

BASE = {"activity_id", "category_uid", "class_uid", "metadata", "severity_id", "time", "type_uid"}
REQUIRED = {
    1007: BASE | {"actor", "device", "process"},
    4001: BASE,
    6002: BASE | {"app"},
}
"""Of each class."""
ONE_OF = {
    "actor": {"process", "user", "invoked_by", "session", "app_name", "app_uid"},
    "process": {"pid", "uid"},
    "device": {"ip", "uid", "name", "hostname", "instance_uid", "interface_uid", "interface_name"},
    "dst_endpoint": {"ip", "uid", "name", "hostname", "svc_name", "instance_uid", "interface_uid", "interface_name"},
    "src_endpoint": {"ip", "uid", "name", "hostname", "svc_name", "instance_uid", "interface_uid", "interface_name"},
    "policy": {"name", "uid"},
}
"""Objects need one of these at least."""
WITHIN = {
    "metadata": {"product", "version"},
    "device": {"type_id"},
    "app": {"vendor_name"},
}
"""And all of these."""
OF_PROFILES = {
    "host": {"actor", "device"},
    "security_control": {"action", "action_id", "disposition", "disposition_id", "policy", "attacks", "malware"},
}
ATTRIBUTES = {
    1007: {"actor", "device", "process", "exit_code"},
    4001: {"dst_endpoint", "src_endpoint", "connection_info", "traffic", "url"},
    6002: {"app"},
}
OF_ALL = {
    *BASE, "activity_name", "category_name", "class_name", "message", "severity", "status", "status_id", "unmapped",
}  # fmt: skip
ENUMS = {1007: {1, 2, 3, 4, 5, 0, 99}, 4001: {0, 1, 2, 3, 4, 5, 6, 99}, 6002: {0, 1, 2, 3, 4, 5, 6, 7, 8, 99}}
EVENTS: tuple[dict[str, Any], ...] = (
    {"event": "created", "run": "r1", "language": "python", "policy": "sha256:0", "owner": 77},
    {"event": "created", "run": "r1", "language": "", "command": ["ls", "-l"], "policy": "sha256:0", "owner": 77},
    {"event": "plan", "run": "r1", "plan": "sha256:0"},
    {"event": "policy", "policy": "sha256:0"},
    {"event": "started", "run": "r1"},
    {"event": "egress", "run": "r1", "allowed": False, "host": "a.test", "port": 443, "reason": "name-not-listed"},
    {"event": "egress", "run": "r1", "allowed": True, "host": "a.test", "port": None},
    {"event": "egress", "run": "r1", "allowed": True},
    {"event": "denied", "run": "r1", "target": "x", "rule": "fs.deny_globs"},
    {"event": "limit", "run": "r1", "reason": "memory"},
    {"event": "killed", "run": "r1", "reason": "by hand"},
    {"event": "finished", "run": "r1", "outcome": "ok", "policy": "sha256:0"},
    {"event": "finished", "run": "r1", "outcome": "failed"},
    {"event": "refused", "run": "r1", "outcome": "refused"},
    {"event": "killswitch", "on": True},
    {"event": "pruned", "through": None},
    {"event": "tool", "tool": "run"},
    {},
)


@pytest.mark.parametrize("record", EVENTS, ids=lambda record: record.get("event", "nothing"))
def test_valid_for_its_class(record: dict[str, Any]) -> None:
    """Nothing that is required is missing, and nothing is there that neither its class nor a profile of it knows."""
    event = to_ocsf({"seq": 1, "time": 1.5, "prev": "0", "digest": "d" * 64, **record})
    kind, profiles = event["class_uid"], event["metadata"]["profiles"]
    assert REQUIRED[kind] <= set(event)
    assert set(event) <= OF_ALL | ATTRIBUTES[kind] | set().union(*(OF_PROFILES[name] for name in profiles))
    assert event["type_uid"] == kind * 100 + event["activity_id"]
    assert event["category_uid"] == kind // 1000
    assert event["activity_id"] in ENUMS[kind]
    assert event["metadata"]["version"] == "1.3.0"
    if kind == 4001:
        assert {"dst_endpoint", "src_endpoint"} & set(event)
    for name, members in ONE_OF.items():
        for found in [event[name]] if name in event else []:
            assert members & set(found), name
    for name, members in WITHIN.items():
        assert members <= set(event.get(name, members)), name
    assert "process" not in event["actor"] or {"pid", "uid"} & set(event["actor"]["process"])


def test_who_and_what() -> None:
    """The process of belljar that has a run acts on the run's code."""
    event = to_ocsf({"seq": 1, "time": 1.5, "digest": "d", **EVENTS[1]})
    assert event["actor"]["process"]["pid"] == 77
    assert event["process"] == {"uid": "r1", "name": "ls"}
    assert event["policy"] == {"uid": "sha256:0"}
