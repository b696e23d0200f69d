"""The audit log for other programs: JSON lines, CSV, and OCSF as a SIEM reads it; to a file, to syslog, or by OTLP.

Whatever the guest named (files, hosts, itself) is in there: formats that a person's program evaluates (a spreadsheet)
get it so that nothing is evaluated.
"""

from __future__ import annotations

import csv
import io
import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from belljar.audit.printable import printable_lines
from belljar.errors import SandboxUnavailableError, UsageError

COLUMNS = ("seq", "time", "event", "run", "outcome", "reason", "target", "rule", "backend", "policy", "details")
_OCSF_VERSION = "1.3.0"
_OUTCOMES = {"ok": (1, "Success"), None: (0, "Unknown")}
_SYSLOG_FACILITY = 10
"""Security and authorisation messages (private)."""
_WARNING, _NOTICE = 4, 5
_BATCH = 500


def _version() -> str:
    try:
        return version("belljar")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def jsonl(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """As they are."""
    for record in records:
        yield json.dumps(record, separators=(",", ":")) + "\n"


def as_csv(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One row each; what has no column of its own is JSON in the last."""
    yield _row(COLUMNS)
    for record in records:
        known = [_cell(record.get(name)) for name in COLUMNS[:-1]]
        rest = {name: value for name, value in record.items() if name not in COLUMNS and name not in ("prev", "digest")}
        yield _row([*known, _cell(json.dumps(rest, sort_keys=True)) if rest else ""])


def _row(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> str:
    """A spreadsheet takes text that begins like this for a formula, and would do what it says."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, int | float):
        return text
    text = printable_lines(text)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@", "\t", "\r")) else text


def ocsf(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Process activity for runs, network activity for the proxy's decisions, and application lifecycle for the rest."""
    for record in records:
        yield json.dumps(_ocsf(record), separators=(",", ":")) + "\n"


def _ocsf(record: Mapping[str, Any]) -> dict[str, Any]:
    event = str(record.get("event", ""))
    status_id, status = _OUTCOMES.get(record.get("outcome"), (2, "Failure"))
    denied = event in ("denied", "refused", "killed", "limit") or record.get("allowed") is False
    kind = _ocsf_class(event)
    return {
        "activity_id": kind[3],
        "category_uid": kind[0],
        "class_uid": kind[1],
        "class_name": kind[2],
        "type_uid": kind[1] * 100 + kind[3],
        "time": int(float(record.get("time", 0)) * 1000),
        "severity_id": 3 if denied else 1,
        "status_id": status_id,
        "status": status,
        "action_id": 2 if denied else 1,
        "message": str(record.get("reason") or event),
        "metadata": {
            "version": _OCSF_VERSION,
            "product": {"name": "belljar", "vendor_name": "belljar", "version": _version()},
            "uid": str(record.get("digest", "")),
            "sequence": record.get("seq"),
            "event_code": event,
        },
        **_ocsf_objects(record),
        "unmapped": {
            name: value for name, value in record.items() if name not in ("seq", "time", "digest", "prev", "event")
        },
    }


def _ocsf_class(event: str) -> tuple[int, int, str, int]:
    """Category, class, its name, activity."""
    if event == "egress":
        return 4, 4001, "Network Activity", 6
    if event in ("created", "started"):
        return 1, 1007, "Process Activity", 1
    if event in ("finished", "killed", "limit"):
        return 1, 1007, "Process Activity", 2
    return 6, 6002, "Application Lifecycle", 99


def _ocsf_objects(record: Mapping[str, Any]) -> dict[str, Any]:
    objects: dict[str, Any] = {}
    if run := record.get("run"):
        objects["process"] = {"uid": str(run), "name": str(record.get("language") or record.get("command") or "code")}
    if host := record.get("host"):
        objects["dst_endpoint"] = {"hostname": str(host), "port": record.get("port")}
    if policy := record.get("policy"):
        objects["policy"] = {"uid": str(policy), "name": str(record.get("rule") or "")}
    return objects


FORMATS: dict[str, Callable[[Iterable[Mapping[str, Any]]], Iterator[str]]] = {
    "jsonl": jsonl,
    "csv": as_csv,
    "ocsf": ocsf,
}


# --- shipping --------------------------------------------------------------------------------------------------------


def to_syslog(records: Iterable[Mapping[str, Any]], address: str) -> int:
    """Send each as a message of RFC 5424, to `/dev/log`, `udp://host:514` or `tcp://host:601`. How many were sent.

    Raises:
        UsageError: the address makes no sense.
        SandboxUnavailableError: nobody takes them.
    """
    count = 0
    try:
        with _syslog_socket(address) as end:
            for record in records:
                message = _syslog_message(record)
                # Over TCP each is preceded by its length (RFC 6587), so that no text in it can begin another.
                end.sendall(b"%d %s" % (len(message), message) if address.startswith("tcp:") else message)
                count += 1
    except OSError as error:
        raise SandboxUnavailableError(f"{address}: {error.strerror or error} after {count} records") from error
    return count


def _syslog_socket(address: str) -> socket.socket:
    scheme, _, place = address.partition("://")
    if not place:
        return _connected(socket.AF_UNIX, address)
    host, _, port = place.rpartition(":")
    if scheme not in ("udp", "tcp") or not host or not port.isdigit():
        raise UsageError(f"{address!r}: wanted /dev/log, udp://host:port or tcp://host:port")
    if scheme == "tcp":
        return socket.create_connection((host.strip("[]"), int(port)), timeout=10)
    family, *_rest, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    return _connected(family, where)


def _connected(family: int, where: Any) -> socket.socket:
    end = socket.socket(family, socket.SOCK_DGRAM)
    try:
        end.connect(where)
    except OSError:
        end.close()
        raise
    return end


def _syslog_message(record: Mapping[str, Any]) -> bytes:
    severity = _WARNING if record.get("event") in ("denied", "refused", "killed", "limit") else _NOTICE
    moment = float(record.get("time", 0))
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"
    head = f"<{_SYSLOG_FACILITY * 8 + severity}>1 {stamp} {socket.gethostname()} belljar - audit - "
    return head.encode() + json.dumps(record, separators=(",", ":")).encode()


def to_otlp(records: Iterable[Mapping[str, Any]], endpoint: str) -> int:
    """Send them to an OpenTelemetry collector as log records, by HTTP and JSON (`http://logs.example.com:4318`).

    Raises:
        SandboxUnavailableError: the collector does not take them.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"{endpoint!r}: wanted http://… or https://…")
    url = endpoint.rstrip("/") + ("" if endpoint.rstrip("/").endswith("/v1/logs") else "/v1/logs")
    count = 0
    batch: list[dict[str, Any]] = []
    for record in records:
        batch.append(_otlp_record(record))
        if len(batch) == _BATCH:
            count += _post(url, batch)
            batch = []
    return count + (_post(url, batch) if batch else 0)


def _otlp_record(record: Mapping[str, Any]) -> dict[str, Any]:
    moment = str(int(float(record.get("time", 0)) * 1_000_000_000))
    attributes = [
        {"key": f"belljar.{name}", "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}
        for name, value in record.items()
        if name != "time"
    ]
    denied = record.get("event") in ("denied", "refused", "killed", "limit")
    return {
        "timeUnixNano": moment,
        "severityNumber": 13 if denied else 9,
        "severityText": "WARN" if denied else "INFO",
        "body": {"stringValue": str(record.get("event"))},
        "attributes": attributes,
    }


def _post(url: str, batch: list[dict[str, Any]]) -> int:
    service = [{"key": "service.name", "value": {"stringValue": "belljar"}}]
    body = {
        "resourceLogs": [
            {
                "resource": {"attributes": service},
                "scopeLogs": [{"scope": {"name": "belljar.audit", "version": _version()}, "logRecords": batch}],
            }
        ]
    }
    request = urllib.request.Request(  # noqa: S310 - http or https, which was looked at
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            return len(batch)
    except OSError as error:
        raise SandboxUnavailableError(f"{url}: {error}") from error
