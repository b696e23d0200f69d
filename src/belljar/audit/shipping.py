"""The audit log, sent to where logs are kept: to syslog, or to an OpenTelemetry collector."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from belljar.audit.ocsf import release
from belljar.errors import SandboxUnavailableError, UsageError

_SYSLOG_FACILITY = 10
"""Security and authorisation messages (private)."""
_WARNING, _NOTICE = 4, 5
_BATCH = 500
_DATAGRAMS = (60_000, 8_000, 2_000, 480)
"""How long a message may be that is one datagram: what fits, and what is tried if the way to there takes less."""
_CORE = ("seq", "time", "prev", "digest", "event")
_WARNINGS = ("denied", "refused", "killed", "limit")


class _Sent:
    """How far it went, for whoever has to go on."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.count = 0
        self._last: Any = None

    def add(self, records: list[Mapping[str, Any]]) -> None:
        """These have gone out."""
        self.count += len(records)
        self._last = records[-1].get("seq")

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """What stops it says how to go on. Raises UsageError, SandboxUnavailableError."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            hint = f"go on behind record {self._last}: --after {self._last}" if self.count else ""
            told = f"{self._address}: {reason} after {self.count} records"
            raise SandboxUnavailableError(told, hint=hint) from error
        except UnicodeError as error:  # a name that no network takes
            raise UsageError(f"{self._address!r} is no address: {error}") from error


def to_syslog(records: Iterable[Mapping[str, Any]], address: str) -> int:
    """Send each as a message of RFC 5424, to `/dev/log`, `udp://host:514` or `tcp://host:601`. How many were sent.

    One that is too long for a datagram is sent with its members cut, and `"shortened": true`.

    Raises:
        UsageError: the address makes no sense.
        SandboxUnavailableError: nobody takes them.
    """
    sent = _Sent(address)
    with sent.told(), _syslog_socket(address) as end:
        for record in records:
            if address.startswith("tcp:"):
                # Each is preceded by its length (RFC 6587), so that no text in it can begin another.
                message = _syslog_message(record)
                end.sendall(b"%d %s" % (len(message), message))
            else:
                _send_datagram(end, record)
            sent.add([record])
    return sent.count


def _send_datagram(end: socket.socket, record: Mapping[str, Any]) -> None:
    for most in _DATAGRAMS:
        message = _syslog_message(record)
        if len(message) > most:
            message = _syslog_message(shortened(record, most - len(message) + len(_json(record))))
        try:
            end.send(message)
            return
        except OSError as error:
            if error.errno != errno.EMSGSIZE or most == _DATAGRAMS[-1]:
                raise


def shortened(record: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A record whose JSON has no more bytes than that, if what it needs to be found in the log fits. Pure."""
    for longest in (4096, 1024, 256, 64, 16):
        cut: dict[str, Any] = {**_cut(record, longest), "shortened": True}
        if len(_json(cut)) <= most:
            return cut
    return {**{name: record[name] for name in _CORE if name in record}, "shortened": True}


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        # A digest is what the record is found by, and no longer than that.
        return value if len(value) <= max(longest, 80) else f"{value[:longest]}…"
    if isinstance(value, Mapping):
        return {name: _cut(one, longest) for name, one in value.items()}
    if isinstance(value, list):
        return [_cut(one, longest) for one in value[: longest // 8]]
    return value


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def _syslog_socket(address: str) -> socket.socket:
    scheme, _, place = address.partition("://")
    if not place:
        return _connected(socket.AF_UNIX, address)
    host, _, port = place.rpartition(":")
    if scheme not in ("udp", "tcp") or not host or not port.isdigit() or not 0 < int(port) < 65536:
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
    severity = _WARNING if record.get("event") in _WARNINGS else _NOTICE
    moment = float(record.get("time", 0))
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"
    head = f"<{_SYSLOG_FACILITY * 8 + severity}>1 {stamp} {socket.gethostname()} belljar - audit - "
    return head.encode() + _json(record)


def to_otlp(records: Iterable[Mapping[str, Any]], endpoint: str) -> int:
    """Send them to an OpenTelemetry collector as log records, by HTTP and JSON (`http://logs.example.com:4318`).

    Raises:
        UsageError: the address makes no sense.
        SandboxUnavailableError: the collector does not take them.
    """
    url = _otlp_url(endpoint)
    sent = _Sent(endpoint)
    with sent.told():
        batch: list[Mapping[str, Any]] = []
        for record in records:
            batch.append(record)
            if len(batch) == _BATCH:
                _post(url, batch)
                sent.add(batch)
                batch = []
        if batch:
            _post(url, batch)
            sent.add(batch)
    return sent.count


def _otlp_url(endpoint: str) -> str:
    """Where they go. Raises UsageError."""
    wrong = f"{endpoint!r}: wanted http://… or https://…"
    try:
        parts = urllib.parse.urlsplit(endpoint)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise UsageError(f"{wrong}: {error}") from error
    if not known or not endpoint.isascii() or any(character <= " " or character == "\x7f" for character in endpoint):
        raise UsageError(wrong, hint="such as http://logs.example.com:4318")
    return endpoint.rstrip("/") + ("" if endpoint.rstrip("/").endswith("/v1/logs") else "/v1/logs")


def _otlp_record(record: Mapping[str, Any]) -> dict[str, Any]:
    moment = str(int(float(record.get("time", 0)) * 1_000_000_000))
    attributes = [
        {"key": f"belljar.{name}", "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}
        for name, value in record.items()
        if name != "time"
    ]
    denied = record.get("event") in _WARNINGS
    return {
        "timeUnixNano": moment,
        "severityNumber": 13 if denied else 9,
        "severityText": "WARN" if denied else "INFO",
        "body": {"stringValue": str(record.get("event"))},
        "attributes": attributes,
    }


def _post(url: str, batch: list[Mapping[str, Any]]) -> None:
    service = [{"key": "service.name", "value": {"stringValue": "belljar"}}]
    scope = {"name": "belljar.audit", "version": release()}
    body = {
        "resourceLogs": [
            {
                "resource": {"attributes": service},
                "scopeLogs": [{"scope": scope, "logRecords": [_otlp_record(record) for record in batch]}],
            }
        ]
    }
    request = urllib.request.Request(  # noqa: S310 - http or https, which was looked at
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            return
    except urllib.error.HTTPError as error:
        error.close()  # it has the connection
        raise
