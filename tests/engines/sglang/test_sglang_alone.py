"""What SGLang 0.5.23 does by itself: the failures that an adapter would have to prevent, each on its own code."""

from __future__ import annotations

import pytest

from tests.engines.sglang.engine import KVPoll


def test_a_healthy_request_ends_by_length_and_gives_its_pages_back(engine):
    req = engine.in_flight("r1")
    req.disagg_kv_sender.verdict = KVPoll.Success
    assert engine.poll() == [req]
    assert [reason["type"] for reason in engine.streamer.of("r1")] == ["length"]
    assert not req.kv.holds_kv


def test_a_pending_abort_is_overwritten_by_length(engine):
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    req = engine.in_flight("r1")
    req.to_finish = FINISH_ABORT("the deadline passed", 503)
    req.disagg_kv_sender.verdict = KVPoll.Success
    engine.poll()
    assert [reason["type"] for reason in engine.streamer.of("r1")] == ["length"]


def test_a_timeout_abort_in_flight_is_told_as_a_failed_transfer(engine):
    req = engine.in_flight("r1")
    engine.abort("r1", message="the deadline passed")
    engine.poll()
    (reason,) = engine.streamer.of("r1")
    assert (reason["type"], reason["status_code"]) == ("abort", 500)
    assert "transfer failed" in reason["message"]
    assert req.disagg_kv_sender.aborts == 1


def test_an_abort_of_one_rid_aborts_those_that_begin_with_it(engine):
    other = engine.in_flight("r10")
    engine.in_flight("r1")
    engine.abort("r1")
    assert other.disagg_kv_sender.aborts == 1


def test_a_grammar_error_frees_pages_that_a_chunk_still_reads(engine):
    from tests.engines.sglang.engine import Grammar

    req = engine.request("r1")
    engine.compute(req, 4)
    engine.scheduler.send_kv_chunk(req)
    engine.compute(req)
    pages = engine.pages(req)
    req.grammar = Grammar(1)
    engine.finish_pass(req, token=2)
    assert req.disagg_kv_sender.writing
    assert pages <= set(engine.free())


def test_a_cancel_that_raises_escapes_the_scheduler(engine):
    req = engine.in_flight("r1")
    req.disagg_kv_sender.abort_raises = True
    with pytest.raises(RuntimeError, match="cannot reach the peer"):
        engine.abort("r1")
    assert req.kv.holds_kv


def test_a_failed_transfer_frees_pages_that_are_still_read(engine):
    req = engine.in_flight("r1")
    req.disagg_kv_sender.verdict = KVPoll.Failed
    engine.poll()
    assert req.disagg_kv_sender.writing
    assert not req.kv.holds_kv
