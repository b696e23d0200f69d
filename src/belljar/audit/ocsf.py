"""Records of the audit log as events of OCSF 1.3, the schema that SIEMs share. Pure, but for this host's name.

Runs are Process Activity, decisions of the egress proxy Network Activity, and the rest Application Lifecycle. An event
has every member that its class requires, and those of the profiles that it names. The record itself is in `unmapped`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_VERSION = "1.3.0"
_OUTCOMES = {"ok": (1, "Success"), None: (0, "Unknown")}
_DENIED = ("denied", "refused", "killed", "limit")
_PROCESS, _NETWORK, _APPLICATION = 1007, 4001, 6002
_NAMES = {_PROCESS: "Process Activity", _NETWORK: "Network Activity", _APPLICATION: "Application Lifecycle"}
_CATEGORIES = {
    _PROCESS: (1, "System Activity"),
    _NETWORK: (4, "Network Activity"),
    _APPLICATION: (6, "Application Activity"),
}
_ACTIVITIES = {
    "created": (_PROCESS, 1, "Launch"),
    "started": (_PROCESS, 1, "Launch"),
    "finished": (_PROCESS, 2, "Terminate"),
    "killed": (_PROCESS, 2, "Terminate"),
    "limit": (_PROCESS, 2, "Terminate"),
    "egress": (_NETWORK, 6, "Traffic"),
}
_PROFILES = {
    _PROCESS: ["host", "security_control"],
    _NETWORK: ["host", "security_control"],
    _APPLICATION: ["host"],
}
_LEFT_OUT = ("seq", "time", "digest", "prev", "event")


@cache
def release() -> str:
    """Which belljar this is."""
    try:
        return version("belljar")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def to_ocsf(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as an event."""
    event = str(record.get("event", ""))
    kind, activity, caption = _ACTIVITIES.get(event, (_APPLICATION, 99, event))
    category, category_name = _CATEGORIES[kind]
    denied = event in _DENIED or record.get("allowed") is False
    status_id, status = _OUTCOMES.get(record.get("outcome"), (2, "Failure"))
    return {
        "activity_id": activity,
        "activity_name": caption,
        "category_uid": category,
        "category_name": category_name,
        "class_uid": kind,
        "class_name": _NAMES[kind],
        "type_uid": kind * 100 + activity,
        "time": int(float(record.get("time", 0)) * 1000),
        "severity_id": 3 if denied else 1,
        "severity": "Medium" if denied else "Informational",
        "status_id": status_id,
        "status": status,
        "message": str(record.get("reason") or event),
        "metadata": _metadata(record, event, kind),
        "device": {"hostname": socket.gethostname(), "type_id": 0, "type": "Unknown"},
        **_objects(record, kind),
        **(_control(record, denied=denied) if "security_control" in _PROFILES[kind] else {}),
        "unmapped": {name: value for name, value in record.items() if name not in _LEFT_OUT},
    }


def _metadata(record: Mapping[str, Any], event: str, kind: int) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "product": _product(),
        "profiles": _PROFILES[kind],
        "uid": str(record.get("digest", "")),
        "sequence": record.get("seq"),
        "event_code": event,
        "log_name": "audit",
    }


def _product() -> dict[str, Any]:
    return {"name": "belljar", "vendor_name": "belljar", "version": release()}


def _objects(record: Mapping[str, Any], kind: int) -> dict[str, Any]:
    """Who did it, and what it was done to."""
    if kind == _PROCESS:
        return {"actor": _belljar(record), "process": _process(record)}
    if kind == _NETWORK:
        ends: dict[str, Any] = {"src_endpoint": {"hostname": socket.gethostname()}}
        if host := record.get("host"):
            port = record.get("port")
            ends["dst_endpoint"] = {"hostname": str(host), **({"port": port} if isinstance(port, int) else {})}
        return {"actor": {"app_name": "belljar", "process": _process(record)}, **ends}
    return {"actor": _belljar(record), "app": _product()}


def _belljar(record: Mapping[str, Any]) -> dict[str, Any]:
    """The process that has the run, as far as the record tells."""
    owner = record.get("owner")
    return {"app_name": "belljar", **({"process": {"pid": owner, "name": "belljar"}} if isinstance(owner, int) else {})}


def _process(record: Mapping[str, Any]) -> dict[str, Any]:
    """The code that runs. Its number inside the jar says nothing outside, so its name is that of the run."""
    command = record.get("command")
    name = record.get("language") or (command[0] if isinstance(command, list) and command else command) or "code"
    return {"uid": str(record.get("run") or record.get("digest") or ""), "name": str(name)}


def _control(record: Mapping[str, Any], *, denied: bool) -> dict[str, Any]:
    """What belljar did about it: the profile `security_control`."""
    decided: dict[str, Any] = {
        "action_id": 2 if denied else 1,
        "action": "Denied" if denied else "Allowed",
        "disposition_id": 2 if denied else 1,
        "disposition": "Blocked" if denied else "Allowed",
    }
    if policy := record.get("policy"):
        decided["policy"] = {"uid": str(policy), **({"name": str(rule)} if (rule := record.get("rule")) else {})}
    return decided
