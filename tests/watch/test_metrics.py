"""What is scraped is what happened, by the parser that Prometheus' own client brings."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lifecycle.errors import EventError
from lifecycle.metrics import Metrics
from lifecycle.observe import ObservedTable
from lifecycle.shadow import Shadow


def scraped(metrics):
    registry = CollectorRegistry()
    registry.register(metrics)
    text = generate_latest(registry).decode()
    return {
        (sample.name.removeprefix("lifecycle:"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_tables_requests_are_counted():
    now = [10.0]
    metrics = Metrics(clock=lambda: now[0])
    table = ObservedTable([metrics])
    for rid in ("drains", "stuck", "open"):
        table.submit(rid)
        table.fire(rid, "admit", pages=4)
        table.fire(rid, "prefill_finished")
    table.abort("drains")
    table.abort("stuck")
    assert scraped(metrics)["num_requests", "aborted"] == 2
    now[0] += 0.3
    table.fire("drains", "transfer_drained")
    table.fire("stuck", "drain_timeout")
    table.fire("drains", "transfer_failed")
    with pytest.raises(EventError):
        table.fire("open", "admit", pages=1)
    table.fire("nobody", "transfer_succeeded")
    got = scraped(metrics)
    assert {key for key in got if key[0] == "num_requests"} == {("num_requests", "transferring")}
    assert (got["num_claims", "op"], got["num_claims", "request"]) == (1, 1)
    assert got["request_finished_total", "client_abort"] == 2
    assert got["kv_quarantined_pages_total",] == 4
    assert got["late_events_total", "transfer_failed"] == 1
    assert got["illegal_events_total", "admit"] == 1
    assert got["unknown_events_total", "transfer_succeeded"] == 1
    assert got["request_drain_time_seconds_bucket", "0.1"] == 0
    assert got["request_drain_time_seconds_bucket", "0.5"] == 2
    assert got["request_drain_time_seconds_count",] == 2
    assert got["request_drain_time_seconds_sum",] == pytest.approx(0.6)
    assert table.failures.total() == 0
    assert len(metrics._live) == len(metrics._decided) + 1 == 1
    assert set(metrics._pages) == {("open", 1, 0)}


def test_a_shadows_divergences_are_counted():
    metrics = Metrics()
    shadow = Shadow(observers=(metrics,))
    for event in ("submit", "admit", "prefill_finished", "abort"):
        shadow.saw("r", event)
    shadow.freed("r")
    assert scraped(metrics)["divergences_total", "freed_in_flight"] == 1
    assert shadow.errors == 0
