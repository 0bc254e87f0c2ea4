"""Failures of vLLM 0.33.0, each twice: its scheduler alone has it, and the governed scheduler has not.

A scenario is written once and run on the real scheduler in three ways: alone, where the failure is asserted;
governed, where it must be absent and all blocks must come back; observed, where the engine fails as it does alone
and the finding must have been made.
"""

from __future__ import annotations

import pytest

from adapters.vllm import Governor, Observer, govern, observe
from tests.engines.record import record

VERSION = "0.33.0"
SOURCE = "reproduced on CPU"


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def make(engine, clock):
    """Makes an engine: ``alone``, ``governed`` or ``observed``."""

    def make(way, **options):
        vllm = engine(**options)
        vllm.way = way
        deadlines = {"transferring": 100.0, "draining": 10.0}
        if way == "governed":
            governor = Governor(clock=lambda: clock[0], deadlines=deadlines)
            vllm.governor = govern(vllm.scheduler, governor)
        elif way == "observed":
            observer = Observer(clock=lambda: clock[0], deadlines=deadlines)
            vllm.governor = observe(vllm.scheduler, observer)
        return vllm

    return make


def lent(vllm, rid="r1", **options):
    """A request that has answered, and whose blocks are read on."""
    vllm.connector.reads_on.add(rid)
    vllm.add(rid, answer=1, **options)
    vllm.step()
    assert vllm.told[-1] == (rid, "length")


def loading(vllm, rid="r1", tokens=32):
    """A request that waits for its blocks to be written from outside."""
    vllm.connector.loads[rid] = tokens
    vllm.add(rid.split("#")[0], answer=1)
    vllm.step()
    assert vllm.status(rid) == "WAITING_FOR_REMOTE_KVS"


def found(vllm):
    return [str(finding.invariant) for finding in vllm.governor.findings]


def is_whole(vllm):
    """All blocks came back, each owned by nobody, and nothing was refused on the way."""
    assert vllm.free == vllm.total
    assert [block.ref_cnt for block in vllm.pool.blocks if not block.is_null] == [0] * vllm.total
    assert vllm.scheduler.requests == {}
    assert vllm.governor.refused == []


def pair(failure, alone, governed, source=SOURCE):
    record(
        engine="vllm",
        version=VERSION,
        failure=failure,
        source=source,
        alone=alone,
        governed=governed,
    )


def test_a_send_that_is_reported_twice(make):
    def run(way):
        vllm = make(way)
        lent(vllm)
        vllm.step(sent=["r1"])
        vllm.step(sent=["r1"])
        return vllm

    with pytest.raises(AssertionError):
        run("alone")
    vllm = run("governed")
    is_whole(vllm)
    assert vllm.governor.absorbed == {"finished_sending": 1}
    pair("duplicate finished_sending", "AssertionError: the engine dies", "absorbed and counted")


def test_a_send_that_is_reported_twice_is_found_before_the_engine_dies(make):
    vllm = make("observed")
    lent(vllm)
    vllm.step(sent=["r1"])
    with pytest.raises(AssertionError):
        vllm.step(sent=["r1"])
    assert found(vllm) == ["late_is_absorbed"]


def test_a_load_of_nobody(make):
    vllm = make("alone")
    with pytest.raises(AssertionError):
        vllm.step(received=["nobody"])

    vllm = make("governed")
    vllm.step(received=["nobody"])
    is_whole(vllm)
    assert vllm.governor.absorbed == {"finished_recving": 1}

    vllm = make("observed")
    with pytest.raises(AssertionError):
        vllm.step(received=["nobody"])
    assert found(vllm) == ["late_is_absorbed"]
    pair("unknown finished_recving", "AssertionError: the engine dies", "absorbed and counted")


@pytest.mark.parametrize("what", ["sent", "received"])
def test_a_completion_for_a_request_that_runs(make, what):
    vllm = make("alone")
    vllm.add("r1", answer=3)
    vllm.step()
    with pytest.raises(AssertionError):
        vllm.step(**{what: ["r1"]})

    vllm = make("governed")
    vllm.add("r1", answer=3)
    vllm.step()
    vllm.step(**{what: ["r1"]})
    assert vllm.status("r1") == "RUNNING"
    vllm.step()
    assert vllm.told == [("r1", "length")]
    is_whole(vllm)
    name = "finished_sending" if what == "sent" else "finished_recving"
    pair(
        f"{name} for a running request",
        "AssertionError: the engine dies",
        "absorbed; the request runs on",
    )


def test_one_bad_id_in_a_report_with_good_ones(make):
    def run(way):
        vllm = make(way)
        for rid in ("r1", "r2", "r3"):
            lent(vllm, rid)
        return vllm

    vllm = run("alone")
    with pytest.raises(AssertionError):
        vllm.step(received=["nobody"], sent=["r1", "r2", "r3"])
    assert vllm.free == vllm.total - 9  # and they will not be reported again

    vllm = run("governed")
    vllm.step(received=["nobody"], sent=["r1", "r2", "r3"])
    is_whole(vllm)
    pair(
        "one bad id in a report of the workers",
        "the other requests of the report stay held",
        "the others are freed",
    )


def test_an_abort_after_the_finish(make, clock):
    vllm = make("alone")
    lent(vllm)
    vllm.abort("r1")
    for _ in range(50):
        vllm.step()
    assert vllm.status("r1") == "FINISHED_LENGTH_CAPPED"
    assert vllm.free == vllm.total - 3

    vllm = make("governed")
    cancelled = []
    vllm.governor.on_cancel = cancelled.append
    lent(vllm)
    vllm.abort("r1")
    assert cancelled == ["r1"]
    assert vllm.free == vllm.total - 3  # decided is not drained
    vllm.step(sent=["r1"])
    is_whole(vllm)

    vllm = make("observed")
    lent(vllm)
    vllm.abort("r1")
    assert found(vllm) == ["abort_is_total"]
    pair(
        "an abort after the finish, while blocks are lent",
        "ignored: nobody is told, the blocks stay lent",
        "the peer is told once; freed when drained, or quarantined at the deadline",
    )


def test_a_completion_that_never_comes(make, clock):
    vllm = make("alone")
    loading(vllm)
    vllm.abort("r1")
    for _ in range(50):
        vllm.step()
    assert vllm.free == vllm.total - 2
    assert vllm.scheduler.has_requests()  # and the engine spins

    vllm = make("governed")
    loading(vllm)
    vllm.abort("r1")
    clock[0] = 11.0
    vllm.step()
    vllm.step()
    assert not vllm.scheduler.has_requests()
    assert len(vllm.governor.quarantined["r1"].blocks) == 2
    assert vllm.free + 2 == vllm.total  # drain_to_zero: free + quarantined
    vllm.governor.clear("r1")
    is_whole(vllm)

    clock[0] = 0.0
    vllm = make("observed")
    loading(vllm)
    vllm.abort("r1")
    clock[0] = 11.0
    vllm.step()
    assert found(vllm) == ["eventually_done"]
    pair(
        "an abort in flight whose completion never comes",
        "the blocks are held for ever, and the engine spins",
        "quarantined at the deadline; the completion, or an operator, gives them back",
    )


def test_a_stale_load_and_a_new_request_of_the_same_id(make):
    vllm = make("alone")
    loading(vllm)
    vllm.abort("r1")
    vllm.step(received=["r1"])
    loading(vllm)
    vllm.step(received=["r1"])  # the former life's, once more
    vllm.step()
    assert vllm.told == [("r1", "length")]  # it answered from blocks that nothing was written into

    vllm = make("governed")
    loading(vllm)
    vllm.abort("r1")
    vllm.step(received=["r1"])
    loading(vllm, "r1#2")
    vllm.step(received=["r1"])
    vllm.step()
    assert vllm.told == []
    assert vllm.status("r1#2") == "WAITING_FOR_REMOTE_KVS"
    vllm.step(received=["r1#2"])
    vllm.step()
    assert vllm.told == [("r1", "length")]
    is_whole(vllm)
    pair(
        "a stale finished_recving and a new request of the same id",
        "the new request answers from blocks that were never written",
        "the new request waits for its own",
    )


def test_the_same_id_while_the_aborted_one_drains(make):
    vllm = make("alone")
    loading(vllm)
    vllm.abort("r1")
    with pytest.raises(AssertionError, match="duplicate request id"):
        vllm.add("r1")

    vllm = make("governed")
    loading(vllm)
    vllm.abort("r1")
    vllm.add("r1", answer=1)
    vllm.step()
    assert vllm.told == [("r1", "length")]
    vllm.step(received=["r1"])
    is_whole(vllm)

    vllm = make("observed")
    loading(vllm)
    vllm.abort("r1")
    with pytest.raises(AssertionError, match="duplicate request id"):
        vllm.add("r1")
    assert found(vllm) == ["attempt_scoped"]
    pair(
        "the same id while the aborted request drains",
        "AssertionError: duplicate request id",
        "the new life runs; the old one drains on its own",
    )


@pytest.mark.parametrize("order", [("received", "sent"), ("sent", "received")])
def test_two_owners_of_the_same_blocks(make, order):
    def run(way):
        vllm = make(way)
        loading(vllm)
        vllm.connector.reads_on.add("r1")
        vllm.abort("r1")
        vllm.step(**{order[0]: ["r1"]})
        return vllm

    vllm = run("alone")
    assert vllm.free == vllm.total  # freed, while the other owner still touches them
    with pytest.raises(AssertionError):
        vllm.step(**{order[1]: ["r1"]})

    vllm = run("governed")
    assert vllm.free == vllm.total - 2
    vllm.step(**{order[1]: ["r1"]})
    is_whole(vllm)

    vllm = run("observed")
    assert found(vllm) == ["free_after_all_ops"]
    pair(
        f"two owners of the same blocks, {order[0]} first",
        "freed at the first completion; the engine dies at the second",
        "freed once, after both",
        "vllm-project/vllm issue 46240",
    )


def test_a_preemption_while_a_chunk_is_lent(make):
    """vLLM has no word for a transfer out of a request that runs; ``lend`` is the governor's."""

    def run(way):
        vllm = make(way)
        vllm.add("r1", answer=40)
        vllm.step()
        read = set(vllm.blocks("r1"))  # by a chunk that the connector has posted
        if way != "alone":
            vllm.governor.lend("r1", "chunk-0")
        vllm.scheduler._preempt_request(vllm.scheduler.running.pop(), 0.0)
        vllm.add("r2", answer=40)
        vllm.step()
        return vllm, read & (set(vllm.blocks("r1")) | set(vllm.blocks("r2")))

    _, reused = run("alone")
    assert reused

    vllm, reused = run("governed")
    assert not reused
    vllm.governor.returned("r1", "chunk-0")
    vllm.abort("r1", "r2")
    vllm.step()
    is_whole(vllm)

    vllm, reused = run("observed")
    assert reused
    assert found(vllm) == ["free_after_all_ops"]
    pair(
        "a preemption while a chunk of the request is being read",
        "the blocks are given to the next request at once",
        "the old attempt's blocks drain on their own",
    )


def pins(vllm, rid="r1"):
    """A connector that pins a request's blocks in vLLM's pool, as the offloading connectors do; and the blocks."""
    vllm.add(rid, answer=40)
    vllm.step()
    blocks = list(vllm.scheduler.kv_cache_manager.get_blocks(rid).blocks[0])
    vllm.connector.block_pool.touch(blocks)
    return blocks


def test_a_connector_that_lets_go_of_a_block_twice(make):
    def run(way):
        vllm = make(way, blocks=9)
        blocks = pins(vllm)
        vllm.connector.block_pool.free_blocks(blocks)
        vllm.abort("r1")
        vllm.connector.block_pool.free_blocks(blocks)  # once too often
        return vllm, blocks

    vllm, blocks = run("alone")
    assert [block.ref_cnt for block in blocks] == [-1, -1, -1]
    for rid in ("r2", "r3", "r4"):
        vllm.add(rid)
    with pytest.raises(AssertionError):  # elsewhere, later
        vllm.step()

    vllm, blocks = run("governed")
    assert [block.ref_cnt for block in blocks] == [0, 0, 0]
    assert vllm.connector.guarded_pool.late == 3
    for rid in ("r2", "r3", "r4"):
        vllm.add(rid, answer=1)
        vllm.step()
    vllm.step()
    is_whole(vllm)

    vllm, blocks = run("observed")
    assert found(vllm) == ["claim_count"] * 3
    pair(
        "BlockPool: a double free by the connector",
        "ref_cnt -1; an allocation of another request dies later",
        "absorbed: a connector gives back what it pinned, once",
    )


def test_a_stale_free_of_a_block_that_was_given_away(make):
    def run(way):
        vllm = make(way, blocks=9)
        blocks = pins(vllm)
        vllm.connector.block_pool.free_blocks(blocks)
        vllm.abort("r1")
        vllm.add("r2", answer=40)
        vllm.step()
        vllm.connector.block_pool.free_blocks(blocks)  # they are r2's now
        vllm.add("r3", answer=40)
        vllm.step()
        return vllm, set(vllm.blocks("r2")) & set(vllm.blocks("r3"))

    _, shared = run("alone")
    assert shared  # two requests write into the same blocks

    vllm, shared = run("governed")
    assert not shared
    vllm.abort("r2", "r3")
    vllm.step()
    is_whole(vllm)
    pair(
        "BlockPool: a stale free of a block that was given away",
        "two requests own the same blocks",
        "absorbed: a connector gives back what it pinned, once",
    )
