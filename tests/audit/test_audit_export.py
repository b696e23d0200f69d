"""Signatures, and the log for other programs: files, syslog, OpenTelemetry."""

from __future__ import annotations

import csv
import http.server
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.audit.export import FORMATS
from belljar.audit.log import audit_log, directory, record
from belljar.audit.reading import records
from belljar.audit.retention import prune
from belljar.audit.shipping import shortened, to_otlp, to_syslog
from belljar.audit.signing import check, make_key, sign
from belljar.errors import SandboxUnavailableError, UsageError
from belljar.state import state_directory

EVENTS: tuple[dict[str, Any], ...] = (
    {"event": "created", "run": "r1", "language": "python", "policy": "sha256:0"},
    {"event": "egress", "run": "r1", "allowed": False, "host": "a.test", "port": 443, "reason": "name-not-listed"},
    {"event": "denied", "run": "r1", "target": "=HYPERLINK(1)\n+x", "rule": "fs.deny_globs"},
    {"event": "finished", "run": "r1", "outcome": "ok"},
)


@pytest.fixture(autouse=True)
def log() -> None:
    """One with a few records."""
    audit_log().append(*EVENTS)


class TestSignatures:
    """Who rewrites everything can't sign it."""

    def test_right(self, tmp_path: Path) -> None:
        """Of all that was there; what comes later needs another."""
        key = make_key(str(tmp_path / "key"))
        assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
        sign(directory(), str(tmp_path / "key"))
        record("later")
        assert check(directory(), key).ok

    def test_a_chain_that_was_made_anew(self, tmp_path: Path) -> None:
        """Is in order by itself, and the signature says that it is another."""
        key = make_key(str(tmp_path / "key"))
        sign(directory(), str(tmp_path / "key"))
        kept = [{**one} for one in records(directory())]
        for path in Path(directory()).iterdir():
            path.unlink()
        kept[2]["target"] = "nothing"
        for one in kept:
            audit_log().append({name: one[name] for name in one if name not in ("seq", "time", "prev", "digest")})
        from belljar.audit.verify import verify

        assert verify(directory()).ok
        verdict = check(directory(), key)
        assert (verdict.ok, verdict.where) == (False, "signatures")

    def test_how_far_signatures_reach(self, tmp_path: Path) -> None:
        """Records after the last one may be invented by whoever can write the log: they are counted."""
        key = make_key(str(tmp_path / "key"))
        signed = sign(directory(), str(tmp_path / "key"))
        verdict = check(directory(), key)
        assert (verdict.ok, verdict.signed_seq, verdict.unsigned) == (True, signed["signed_seq"], 1)
        record("invented")
        record("invented")
        assert check(directory(), key).unsigned == 3
        assert check(directory(), key, expect=signed["signed_seq"]).ok
        assert "expected to be signed" in check(directory(), key, expect=signed["signed_seq"] + 1).problem
        sign(directory(), str(tmp_path / "key"))
        assert check(directory(), key).unsigned == 1
        words = [sys.executable, "-m", "belljar", "audit", "verify", "--public-key", key]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert "records that no signature covers: 1\n" in told
        found = json.loads(subprocess.run([*words, "--json"], capture_output=True, check=True).stdout)
        assert (found["signed_seq"], found["unsigned"]) == (7, 1)
        assert subprocess.run([*words, "--expect-signed", "9"], capture_output=True, check=False).returncode == 1

    def test_a_log_that_was_taken_back(self, tmp_path: Path) -> None:
        """To an earlier signature: what was signed here since is remembered beside the log, and known elsewhere."""
        key = make_key(str(tmp_path / "key"))
        sign(directory(), str(tmp_path / "key"))
        shutil.copytree(directory(), tmp_path / "earlier")
        record("later")
        last = sign(directory(), str(tmp_path / "key"))["signed_seq"]
        shutil.copytree(directory(), tmp_path / "later")
        shutil.rmtree(directory())
        shutil.copytree(tmp_path / "earlier", directory())
        verdict = check(directory(), key)
        assert (verdict.ok, verdict.where) == (False, "signatures")
        assert f"record {last} was signed here" in verdict.problem
        assert check(str(tmp_path / "earlier"), key).ok  # a copy from before, of which nobody can tell that here
        assert not check(str(tmp_path / "earlier"), key, expect=last).ok
        shutil.rmtree(directory())
        shutil.copytree(tmp_path / "later", directory())
        assert check(directory(), key).ok
        marks = Path(state_directory(), "signed.json")
        marks.write_text(marks.read_text().replace(f'"signed_seq": {last}', '"signed_seq": 999'))
        assert check(directory(), key).ok  # a mark that the key did not sign says nothing

    @pytest.mark.parametrize("again", [False, True])
    def test_an_honest_prune(self, tmp_path: Path, again: bool) -> None:
        """What was signed may be gone: the rest is in order, and how much of it is covered is said."""
        key = make_key(str(tmp_path / "key"))
        now = time.time()
        with pytest.MonkeyPatch.context() as patch:
            for days in (30, 20, 10):
                patch.setattr("belljar.audit.log.time.time", lambda days=days: now + 86_400 * (60 - days))
                record("day", number=days)
                if days == 30 or again:
                    sign(directory(), str(tmp_path / "key"))
            patch.setattr("belljar.audit.retention.time.time", lambda: now + 86_400 * 60)
            assert prune(older_days=15).files
        verdict = check(directory(), key)
        assert (verdict.ok, verdict.problem) == (True, "")
        assert verdict.signed_seq is not None
        assert verdict.unsigned == (2 if again else verdict.records)
        assert verdict.removed_unsigned
        sign(directory(), str(tmp_path / "key"))
        verdict = check(directory(), key)
        assert (verdict.unsigned, verdict.removed_unsigned) == (1, 0)

    def test_a_prune_that_is_forged(self, tmp_path: Path) -> None:
        """Days removed by someone else: the log has no record of it, or one that no signature covers."""
        key = make_key(str(tmp_path / "key"))
        now = time.time()
        with pytest.MonkeyPatch.context() as patch:
            for days in (1, 2):
                patch.setattr("belljar.audit.log.time.time", lambda days=days: now + 86_400 * days)
                record("day", number=days)
            sign(directory(), str(tmp_path / "key"))
            first, *_others = sorted(Path(directory()).glob("*.jsonl"))
            last = json.loads(first.read_text().splitlines()[-1])
            first.unlink()
            told = {"seq": last["seq"], "digest": last["digest"], "through": first.name, "signed": []}
            Path(directory(), "anchor").write_text(json.dumps(told))
            verdict = check(directory(), key)
            assert (verdict.ok, verdict.where) == (False, "signatures")
            assert "no record says that it was pruned" in verdict.problem
            record("pruned", through=first.name, upto=last["seq"])
        assert check(directory(), key).removed_unsigned == last["seq"]
        words = [sys.executable, "-m", "belljar", "audit", "verify", "--public-key", key]
        told_by = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert f"records up to {last['seq']} were pruned, and no signature covers the record of that" in told_by

    def test_by_nobody(self, tmp_path: Path) -> None:
        """A log without a signature by the key is not one that was signed by it."""
        key = make_key(str(tmp_path / "key"))
        assert check(directory(), key).problem == "none is by this key"

    def test_mistakes(self, tmp_path: Path) -> None:
        """A key is not overwritten, what is none is told, and a log that is not in order is not signed."""
        path = tmp_path / "key"
        make_key(str(path))
        with pytest.raises(UsageError, match="never overwritten"):
            make_key(str(path))
        (tmp_path / "none").write_text("nothing")
        with pytest.raises(UsageError, match="holds no key"):
            sign(directory(), str(tmp_path / "none"))
        with pytest.raises(UsageError, match="no public key"):
            check(directory(), "é")
        (day,) = Path(directory()).glob("*.jsonl")
        day.write_bytes(day.read_bytes().replace(b"a.test", b"b.test"))
        with pytest.raises(UsageError, match="not in order"):
            sign(directory(), str(path))


class TestFormats:
    """What other programs read."""

    def test_csv(self) -> None:
        """One row each; nothing that a spreadsheet would run."""
        text = "".join(FORMATS["csv"](records(directory())))
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["event"] for row in rows] == ["created", "egress", "denied", "finished"]
        assert rows[2]["target"] == "'=HYPERLINK(1)\n'+x"
        assert json.loads(rows[1]["details"])["host"] == "a.test"

    @pytest.mark.parametrize("sign", list("=+-@\uff1d\uff0b\uff0d\uff20"))
    @pytest.mark.parametrize("before", ["", "a;", "a; ", 'a;"', "a\t", "a\n", "a\r\n ", "\u3000", "a;'"])
    def test_no_program_finds_a_formula(self, before: str, sign: str) -> None:
        """Wherever it takes a cell to begin, and whichever width of a sign it knows."""
        text = "".join(FORMATS["csv"]([{"seq": 1, "event": "denied", "target": f"{before}{sign}cmd|x"}]))
        cells = re.split(r"[;\t\r\n,]", text)
        assert [cell for cell in cells if cell.strip(' \u3000"').startswith(sign)] == []
        assert f"{sign}cmd|x" in text

    def test_a_cell_of_newlines(self) -> None:
        """Is read once."""
        before = time.monotonic()
        list(FORMATS["csv"]([{"seq": 1, "event": "denied", "target": "\n" * 500_000 + "; " * 200_000}]))
        assert time.monotonic() - before < 20

    def test_jsonl(self) -> None:
        """As they are."""
        lines = "".join(FORMATS["jsonl"](records(directory()))).splitlines()
        assert [json.loads(line) for line in lines] == list(records(directory()))

    def test_ocsf(self) -> None:
        """With classes that fit, and who was asked for what."""
        found = [json.loads(line) for line in FORMATS["ocsf"](records(directory()))]
        assert [event["class_uid"] for event in found] == [1007, 4001, 6002, 1007]
        assert (found[1]["dst_endpoint"]["hostname"], found[1]["severity_id"]) == ("a.test", 3)
        assert (found[1]["action_id"], found[1]["disposition_id"]) == (2, 2)
        assert [event["unmapped"]["run"] for event in found] == ["r1"] * 4


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is posted."""

    taken: list[Any]
    status = 200
    most = 1000
    """How many it takes, before it refuses."""

    def do_POST(self) -> None:
        """Keep it."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.path, json.loads(body)))
        self.send_response(self.status if len(self.taken) <= self.most else 503)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[tuple[str, type[Collector]]]:
    """One that listens, and what it took."""
    kind = type("Fresh", (Collector,), {"taken": []})
    with http.server.HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", kind
        server.shutdown()
        thread.join()


class TestShipping:
    """To where logs are kept."""

    def test_otlp(self, collector: tuple[str, type[Collector]]) -> None:
        """As log records, with every member as an attribute."""
        url, kind = collector
        assert to_otlp(records(directory()), url) == 4
        ((path, body),) = kind.taken
        assert path == "/v1/logs"
        sent = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        assert [one["body"]["stringValue"] for one in sent] == ["created", "egress", "denied", "finished"]
        attributes = {one["key"]: one["value"]["stringValue"] for one in sent[1]["attributes"]}
        assert attributes["belljar.host"] == "a.test"

    def test_a_collector_that_refuses(self, collector: tuple[str, type[Collector]]) -> None:
        """Is told."""
        url, kind = collector
        kind.status = 503
        with pytest.raises(SandboxUnavailableError, match="503"):
            to_otlp(records(directory()), url)

    def test_syslog_by_datagrams(self) -> None:
        """One message each, in the form of RFC 5424, on one line."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind(("127.0.0.1", 0))
            server.settimeout(10)
            assert to_syslog(records(directory()), f"udp://127.0.0.1:{server.getsockname()[1]}") == 4
            messages = [server.recv(65536) for _ in range(4)]
        assert messages[2].startswith(b"<84>1 ")
        assert b" belljar - audit - {" in messages[2]
        assert all(b"\n" not in message for message in messages)

    def test_syslog_by_a_stream(self) -> None:
        """Each with its length before it."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            taken: list[bytes] = []

            def take() -> None:
                end, _address = server.accept()
                with end:
                    while data := end.recv(65536):
                        taken.append(data)

            thread = threading.Thread(target=take)
            thread.start()
            to_syslog(records(directory()), f"tcp://127.0.0.1:{server.getsockname()[1]}")
            thread.join()
        text, count = b"".join(taken), 0
        while text:
            length, _, rest = text.partition(b" ")
            assert rest[: int(length)].endswith(b"}")
            text = rest[int(length) :]
            count += 1
        assert count == 4

    def test_syslog_of_what_is_too_long_for_a_datagram(self) -> None:
        """A hundred names of files, as long as names get: it is cut, says so, and what comes after is sent."""
        paths = ["d" * 250 + f"/\u2028{number}" * 200 for number in range(100)]
        record("artifacts", run="r1", paths=paths, count=100)
        record("later")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            server.bind(("127.0.0.1", 0))
            server.settimeout(10)
            assert to_syslog(records(directory()), f"udp://127.0.0.1:{server.getsockname()[1]}") == 6
            found = [json.loads(server.recv(65536).partition(b" - audit - ")[2]) for _ in range(6)]
        *_others, whole, _last = records(directory())
        assert [one.get("shortened") for one in found] == [None, None, None, None, True, None]
        assert {name: found[4][name] for name in ("seq", "digest", "event", "run", "count")} == {
            name: whole[name] for name in ("seq", "digest", "event", "run", "count")
        }
        assert found[4]["paths"][0].startswith("d" * 250)

    @pytest.mark.parametrize("most", [60_000, 8_000, 2_000, 480, 1])
    def test_shortened(self, most: int) -> None:
        """However little fits, the record can be found by what is left of it."""
        whole = {"seq": 5, "time": 1.5, "prev": "p" * 64, "event": "x", "text": "\0" * 90_000, "digest": "d" * 64}
        whole["more"] = {"list": [["é" * 5_000] * 5_000], "map": {str(number): "v" for number in range(10_000)}}
        cut = shortened(whole, most)
        assert len(json.dumps(cut, separators=(",", ":"))) <= max(most, 480)
        assert (cut["seq"], cut["digest"], cut["shortened"]) == (5, "d" * 64, True)

    def test_where_it_stopped_is_told(self, collector: tuple[str, type[Collector]]) -> None:
        """And the next call goes on there."""
        url, kind = collector
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("belljar.audit.shipping._BATCH", 3)
            patch.setattr(kind, "most", 1)
            with pytest.raises(SandboxUnavailableError, match="after 3 records") as caught:
                to_otlp(records(directory()), url)
        assert caught.value.hint == "go on behind record 3: --after 3"
        command = [sys.executable, "-m", "belljar", "audit", "export", "--after", "3"]
        done = subprocess.run([*command, "--otlp", url], capture_output=True, text=True, check=True)
        assert "1 records were sent" in done.stderr
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert [json.loads(line)["seq"] for line in listed] == [4]

    @pytest.mark.parametrize(
        "url",
        [
            "nonsense",
            "http://",
            "http://[::1",
            "http://a b/",
            "http://a\nb",
            "http://a:99999",
            "http://a:x",
            "http://é/",
        ],
    )
    def test_urls_that_are_none(self, url: str) -> None:
        """Are the caller's fault, and told as that."""
        with pytest.raises(UsageError, match="wanted http"):
            to_otlp(records(directory()), url)

    @pytest.mark.parametrize("url", ["http://a..b", "http://127.0.0.1:1"])
    def test_urls_that_lead_nowhere(self, url: str) -> None:
        """The same, or nobody answers."""
        with pytest.raises((UsageError, SandboxUnavailableError)):
            to_otlp(records(directory()), url)

    def test_a_collector_that_speaks_something_else(self) -> None:
        """Is told, too."""
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer() -> None:
                end, _address = server.accept()
                with end:
                    end.recv(65536)
                    end.sendall(b"220 mail.example.com\r\n")

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(SandboxUnavailableError, match="after 0 records"):
                to_otlp(records(directory()), f"http://127.0.0.1:{server.getsockname()[1]}")
            thread.join()

    MISTAKEN = ("udp://a..b:514", "udp://127.0.0.1:99999", "tcp://127.0.0.1:99999")

    @pytest.mark.parametrize("address", [*MISTAKEN, "nonsense", "http://x:1", "udp://x", "udp://:5", "tcp://x:y"])
    def test_addresses_that_are_none(self, address: str) -> None:
        """Are told, or lead nowhere."""
        with pytest.raises((UsageError, SandboxUnavailableError)):
            to_syslog(records(directory()), address)
