"""Spans of OpenTelemetry, in the caller's own trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from belljar import Pool, Sandbox
from belljar.sandbox.record.result import RunResult

pytestmark = pytest.mark.backend("bubblewrap")
EXPORTER = InMemorySpanExporter()


@pytest.fixture(autouse=True, scope="module")
def provider() -> Iterator[None]:
    """One that keeps what it is given; a process can have only one."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(made)
    yield
    made.shutdown()
    EXPORTER.clear()


def in_sandbox(code: str) -> RunResult:
    """A run."""
    with Sandbox() as jar:
        return jar.run(code)


def in_pool(code: str) -> RunResult:
    """A run of a pool."""
    with Pool(size=1) as pool:
        return pool.run(code)


@pytest.mark.parametrize("run", [in_sandbox, in_pool], ids=["Sandbox", "Pool"])
def test_joined_to_the_callers_trace(run: Callable[[str], RunResult]) -> None:
    """The run is a child of the caller's span, and its parts are children of the run, one after the other."""
    EXPORTER.clear()
    with trace.get_tracer("test").start_as_current_span("caller") as caller:
        result = run("import sys; sys.exit(2)")
    spans: dict[str, ReadableSpan] = {span.name: span for span in EXPORTER.get_finished_spans()}
    whole = spans["belljar.run"]
    assert whole.parent is not None
    assert whole.parent.span_id == caller.get_span_context().span_id
    assert whole.attributes is not None
    assert (whole.attributes["belljar.run"], whole.attributes["belljar.outcome"]) == (result.run_id, "failed")
    assert not whole.status.is_ok
    parts = [span for span in EXPORTER.get_finished_spans() if span.name not in ("belljar.run", "caller")]
    names = ["belljar.launch", "belljar.execute", "belljar.collect"]
    assert [span.name for span in parts] == (["belljar.plan", *names] if run is in_sandbox else names)
    assert all(
        span.parent is not None and whole.context and span.parent.span_id == whole.context.span_id for span in parts
    )
    assert all((one.end_time or 0) <= (two.start_time or 0) for one, two in pairwise(parts))


def test_a_stream_that_is_left() -> None:
    """Ends its spans, too."""
    EXPORTER.clear()
    with Sandbox() as jar, jar.stream("print(1, flush=True); import time; time.sleep(100)") as events:
        next(events)
    assert "belljar.run" in [span.name for span in EXPORTER.get_finished_spans()]


def test_nothing_where_nobody_traces() -> None:
    """A program that does not import it does not get it from belljar."""
    code = "import sys, belljar; belljar.run('1'); print([name for name in sys.modules if 'opentelemetry' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
