"""Spans as the real SDK's in-memory exporter gets them."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lifecycle.observe import ObservedTable
from lifecycle.tracing import Tracing


def test_a_request_is_a_span_with_its_events():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    table = ObservedTable([Tracing(provider.get_tracer("test"))])
    for event in ("submit", "admit", "prefill_finished", "grammar_failed"):
        table.submit("r") if event == "submit" else table.fire("r", event)
    assert exporter.get_finished_spans() == ()  # it drains
    table.fire("r", "transfer_drained", op="kv")
    [span] = exporter.get_finished_spans()
    assert span.name == "lifecycle.request"
    assert span.attributes["gen_ai.response.id"] == "r"
    assert span.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert span.attributes["lifecycle.reason"] == "grammar_error"
    assert span.status.description == "grammar_error"
    assert [event.name for event in span.events] == [
        "submit",
        "admit",
        "prefill_finished",
        "grammar_failed",
        "transfer_drained",
    ]
    last = span.events[-1].attributes
    assert (last["op"], last["lifecycle.effects"]) == ("kv", ("release_kv", "report"))
    table.fire("r", "transfer_failed")  # late: the span has ended
    assert len(exporter.get_finished_spans()) == 1
    assert table.failures.total() == 0
