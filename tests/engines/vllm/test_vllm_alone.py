"""vLLM's scheduler as it comes: the healthy ways of a request, and one of its failures."""

from __future__ import annotations

import pytest


def test_a_request_runs_and_its_blocks_come_back(engine):
    vllm = engine()
    vllm.add("r1", tokens=40, answer=2)
    vllm.step()
    assert len(vllm.blocks("r1")) == 3
    assert vllm.free == vllm.total - 3
    vllm.step()
    assert vllm.told == [("r1", "length")]
    assert vllm.status("r1") is None
    assert vllm.free == vllm.total


def test_a_load_from_outside_holds_the_request_back(engine):
    vllm = engine()
    vllm.connector.loads["r1"] = 32
    vllm.add("r1", answer=1)
    vllm.step()
    assert vllm.status("r1") == "WAITING_FOR_REMOTE_KVS"
    vllm.step(received=["r1"])
    vllm.step()
    assert vllm.told == [("r1", "length")]
    assert vllm.free == vllm.total


def test_blocks_that_are_read_on_stay_out_until_that_is_reported(engine):
    vllm = engine()
    vllm.connector.reads_on.add("r1")
    vllm.add("r1", answer=1)
    vllm.step()
    assert vllm.told == [("r1", "length")]
    assert vllm.free == vllm.total - 3
    vllm.step(sent=["r1"])
    assert vllm.free == vllm.total


def test_a_transfer_that_is_reported_twice_kills_the_scheduler(engine):
    vllm = engine()
    vllm.connector.reads_on.add("r1")
    vllm.add("r1", answer=1)
    vllm.step()
    vllm.step(sent=["r1"])
    with pytest.raises(AssertionError):
        vllm.step(sent=["r1"])
