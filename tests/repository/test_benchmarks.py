"""What the benchmark says of what it found: limits are judged, what is missing is named, nothing is of one machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BASELINE, POOLED = "python -I -c pass", 'Pool.run("pass")'


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """The benchmarks are scripts: their modules are found beside them, and only while these tests run."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture
def judging() -> ModuleType:
    import judging

    return judging


@pytest.fixture
def telling() -> ModuleType:
    import telling

    return telling


def found(judging: ModuleType, **more: object) -> object:
    """As if belljar and the baseline alone had been measured."""
    times = {BASELINE: [0.010, 0.011], POOLED: [0.0015], "Pool.stream, to the first output": [0.0003]}
    rates = {BASELINE: [150.0], "Pool.map": [300.0]}
    known = {"times": times, "rates": rates, "two_callers": [0.002] * 99 + [0.004]}
    return judging.Found("a machine", **(known | more))


@pytest.mark.parametrize(
    ("pooled", "word"), [([0.0015], "ok"), ([0.0021], "ok"), ([0.0022], "MISSED"), (None, "not measured")]
)
def test_a_limit_is_judged(judging: ModuleType, pooled: list[float] | None, word: str) -> None:
    """By the ratio of medians; what has no time is neither kept nor missed."""
    times = {BASELINE: [0.009, 0.0105, 0.1]} | ({} if pooled is None else {POOLED: pooled})
    verdict = judging.judge(found(judging, times=times))[0]
    assert verdict.what == f"{POOLED}, to {BASELINE}"
    assert verdict.word == word


@pytest.mark.parametrize(("docker", "word"), [(7.0, "ok"), (8.0, "MISSED")])
def test_a_rate_has_a_least(judging: ModuleType, docker: float, word: str) -> None:
    """Forty times as many as docker makes."""
    rates = {"Pool.map": [290.0, 300.0, 900.0], "docker run": [docker]}
    verdicts = {verdict.what: verdict for verdict in judging.judge(found(judging, rates=rates))}
    assert verdicts["fresh sandboxes a second, Pool.map to docker run"].word == word


def test_missing_is_told(judging: ModuleType, telling: ModuleType) -> None:
    """With nothing else installed there still are a table, a page, JSON and a picture; they say what is not there."""
    told = found(judging, missing={"srt": "not installed"})
    judged = judging.judge(told)
    assert "- srt: not installed" in telling.as_text(told, judged, 3)
    assert "| not measured |" in telling.as_page(told, judged, 3)
    answer = json.loads(telling.as_json(told, judged, 3))
    assert answer["missing"] == {"srt": "not installed"}
    assert answer["cases"][POOLED]["ratio"] == pytest.approx(0.0015 / 0.0105)
    assert ET.fromstring(telling.as_svg(told)).tag.endswith("svg")


def test_peers_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without what `make bench-peers` installs, and without docker, each of them has a reason."""
    import environments
    import peers

    monkeypatch.setattr(peers, "PEERS", tmp_path)
    monkeypatch.setattr(peers, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    place = environments.Place(tmp_path, tmp_path / "venv", "belljar", {})
    there, missing = peers.find(place)
    assert there == []
    assert list(missing) == list(peers.LOOKS)
    assert all(missing.values())


def test_a_peer_that_does_not_work(tmp_path: Path) -> None:
    """What does not print what it was told to is not measured, and its first complaint is the reason."""
    import environments
    import peers

    place = environments.Place(tmp_path, tmp_path / "venv", "belljar", {"PATH": "/usr/bin:/bin"})
    complains = peers.Peer("it", "1", lambda _code: ["/bin/sh", "-c", f"echo {tmp_path}: no >&2; exit 3"], "it")
    with pytest.raises(peers.MissingError, match=r"exit code 3.*: …: no$"):
        peers.tried(complains, place)


def test_names_are_words_in_the_picture() -> None:
    """Whatever a case is called, the picture is XML."""
    import plot

    drawn = plot.logarithmic_bars([("a < b", "x & y", 0.0), ("a < b", "z", 200.0)], {"x & y": "red", "z": "blue"}, "1")
    texts = [text.text for text in ET.fromstring(drawn).iter() if text.text]
    assert {"a < b", "x & y", "200"} <= set(texts)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_floor_compiles(tmp_path: Path) -> None:
    """Without a warning."""
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "floor", BENCHMARKS / "floor.c"]
    subprocess.run(command, check=True, timeout=60)


def test_what_is_recorded(judging: ModuleType) -> None:
    """The page, the JSON and the picture are of one run, and judge every limit that there is."""
    page, answer = (BENCHMARKS / "results.md").read_text(), json.loads((BENCHMARKS / "results.json").read_text())
    assert f"{answer['machine']}, {answer['rounds']} rounds" in page
    assert [limit["what"] for limit in answer["limits"]] == [limit.what for limit in judging.LIMITS]
    assert all(limit["what"] in page for limit in answer["limits"])
    assert not [word for word in (*answer["missing"].values(), page) if "/tmp/belljar" in word]
    assert ET.fromstring((BENCHMARKS / "results.svg").read_text()).tag.endswith("svg")
