"""vLLM's scheduler under the declared table, step by step."""

from __future__ import annotations

import pytest

from adapters.vllm import GovernedAsyncScheduler, GovernedScheduler, Governor, govern


class Clock:
    """Seconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def governed(engine, clock):
    """Makes an engine whose scheduler is governed, with deadlines that the test's clock keeps."""

    def make(**options):
        vllm = engine(**options)
        vllm.cancelled, vllm.outcomes = [], []
        vllm.governor = govern(
            vllm.scheduler,
            Governor(
                clock=clock,
                deadlines={"transferring": 100.0, "draining": 10.0},
                on_cancel=vllm.cancelled.append,
                on_outcome=vllm.outcomes.append,
            ),
        )
        return vllm

    return make


def lent(vllm, rid="r1"):
    """A request that has answered, and whose blocks are read on."""
    vllm.connector.reads_on.add(rid)
    vllm.add(rid, answer=1)
    vllm.step()
    assert vllm.told[-1] == (rid, "length")


def loading(vllm, rid="r1", tokens=32):
    """A request that waits for its blocks to be written from outside."""
    vllm.connector.loads[rid] = tokens
    vllm.add(rid, answer=1)
    vllm.step()
    assert vllm.status(rid) == "WAITING_FOR_REMOTE_KVS"


def test_the_healthy_ways_are_as_they_were(governed):
    vllm = governed()
    lent(vllm, "r1")
    loading(vllm, "r2")
    vllm.step(sent=["r1"], received=["r2"])
    vllm.step()
    assert vllm.told == [("r1", "length"), ("r2", "length")]
    assert vllm.free == vllm.total
    assert [(each.rid, each.wire) for each in vllm.outcomes] == [("r1", "length"), ("r2", "length")]
    assert vllm.governor.refused == []
    assert not vllm.governor.absorbed


def loading_unannounced(vllm, tokens=32):
    """The same, where the connector's answer does not pass the governed class: it was replaced on the object."""
    vllm.connector.get_num_new_matched_tokens = lambda request, computed: (
        (tokens, True) if computed == 0 else (0, False)
    )
    vllm.add("r1", answer=1)
    vllm.step()
    assert vllm.status("r1") == "WAITING_FOR_REMOTE_KVS"


def test_a_load_that_was_not_announced_ends_its_wait_once(governed):
    vllm = governed()
    loading_unannounced(vllm)
    vllm.step(received=["r1"])
    assert not vllm.governor.absorbed
    output = vllm.scheduler.schedule()
    assert vllm.status("r1") == "RUNNING"
    vllm.answer(output, received=["r1"])
    assert vllm.told == [("r1", "length")]
    assert vllm.governor.absorbed == {"finished_recving": 1}
    assert vllm.governor.refused == []
    assert vllm.free == vllm.total


def test_a_second_report_of_a_load_that_was_not_announced_is_late(governed):
    vllm = governed()
    loading_unannounced(vllm)
    first, second = vllm.scheduler.schedule(), vllm.scheduler.schedule()
    vllm.answer(first, received=["r1"])
    assert vllm.status("r1") == "WAITING_FOR_REMOTE_KVS"
    vllm.answer(second, received=["r1"])  # vLLM still holds it, and has the first on its books
    assert vllm.governor.absorbed == {"finished_recving": 1}
    vllm.step()
    assert vllm.told == [("r1", "length")]
    assert vllm.free == vllm.total


def test_an_abort_waits_for_a_load_that_was_not_announced(governed):
    vllm = governed()
    loading_unannounced(vllm)
    vllm.abort("r1")
    vllm.step()
    assert vllm.free == vllm.total - 2
    vllm.step(received=["r1"])
    assert vllm.status("r1") is None
    assert vllm.free == vllm.total
    assert not vllm.governor.absorbed


def test_a_load_that_never_started_is_no_claim_of_a_former_attempt(governed):
    vllm = governed()
    answer = [(32, False)]
    vllm.connector.get_num_new_matched_tokens = lambda request, computed: answer[0]
    vllm.add("r1", answer=5)
    vllm.step()  # loaded within the step, nothing to wait for
    vllm.scheduler._preempt_request(vllm.scheduler.running.pop(), 0.0)
    answer[0] = (32, True)
    vllm.scheduler.defer_async_loads = True
    vllm.scheduler.sched_step_seq = vllm.scheduler.processed_step_seq + 1  # a pass is under way
    vllm.scheduler.schedule()
    assert list(vllm.scheduler.deferred_loads) == ["r1"]
    assert vllm.status("r1") == "WAITING_FOR_REMOTE_KVS"
    vllm.abort("r1")
    assert vllm.status("r1") is None
    assert vllm.free == vllm.total
    assert vllm.governor.refused == []


@pytest.mark.parametrize("order", [("received", "sent"), ("sent", "received")])
def test_blocks_go_back_once_everyone_is_done_with_them(governed, order):
    vllm = governed()
    loading(vllm)
    vllm.connector.reads_on.add("r1")
    vllm.abort("r1")
    vllm.step(**{order[0]: ["r1"]})
    assert vllm.free == vllm.total - 2
    vllm.step(**{order[1]: ["r1"]})
    assert vllm.free == vllm.total
    assert ("received", "r1") in vllm.connector.seen
    assert ("sent", "r1") in vllm.connector.seen


def test_what_was_lost_is_quarantined_and_comes_back_with_its_proof(governed, clock):
    vllm = governed()
    loading(vllm)
    vllm.abort("r1")
    assert vllm.cancelled == ["r1"]
    clock.now = 9.0
    vllm.step()
    assert vllm.status("r1") == "FINISHED_ABORTED"
    clock.now = 11.0
    vllm.step()
    assert vllm.status("r1") is None
    assert vllm.free == vllm.total - 2
    assert list(vllm.governor.quarantined) == ["r1"]
    assert not vllm.scheduler.has_requests()
    vllm.step(received=["r1"])
    assert vllm.governor.quarantined == {}
    assert vllm.free == vllm.total


def test_an_operator_clears_a_quarantine(governed, clock):
    vllm = governed()
    loading(vllm)
    vllm.abort("r1")
    clock.now = 11.0
    vllm.step()
    vllm.governor.clear("r1")
    assert vllm.free == vllm.total
    vllm.step(received=["r1"])  # and its completion is late
    assert vllm.governor.absorbed == {"finished_recving": 1}
    assert vllm.free == vllm.total


def test_a_hand_off_that_nobody_fetches_ends_by_two_deadlines(governed, clock):
    vllm = governed()
    lent(vllm)
    clock.now = 101.0
    vllm.step()
    assert vllm.cancelled == ["r1"]
    assert vllm.free == vllm.total - 3  # decided, not drained
    clock.now = 112.0
    vllm.step()
    assert list(vllm.governor.quarantined) == ["r1"]
    assert str(vllm.outcomes[-1].reason) == "timeout"


def test_the_same_id_while_the_former_life_drains(governed):
    vllm = governed()
    loading(vllm)
    vllm.abort("r1")
    vllm.connector.loads["r1#2"] = 32
    vllm.add("r1", answer=1)
    vllm.step()
    assert vllm.status("r1#2") == "WAITING_FOR_REMOTE_KVS"
    vllm.step(received=["r1"])  # the former life's
    vllm.step()
    assert vllm.status("r1#2") == "WAITING_FOR_REMOTE_KVS"
    assert vllm.free == vllm.total - 2
    vllm.step(received=["r1#2"])
    vllm.step()
    assert vllm.told == [("r1", "length")]
    assert vllm.free == vllm.total


def test_an_abort_reaches_the_newest_life(governed):
    vllm = governed()
    loading(vllm)
    vllm.abort("r1")
    vllm.add("r1", answer=5)
    vllm.step()
    vllm.abort("r1")
    assert vllm.status("r1#2") is None
    assert vllm.status("r1") == "FINISHED_ABORTED"
    vllm.step(received=["r1"])
    assert vllm.free == vllm.total


def test_a_preempted_request_leaves_what_is_lent_to_drain(governed):
    vllm = governed(blocks=9)
    vllm.add("r1", tokens=60, answer=40)
    vllm.step()
    before = vllm.blocks("r1")
    vllm.governor.lend("r1", "chunk-0")
    request = vllm.scheduler.running.pop()
    vllm.scheduler._preempt_request(request, 0.0)
    assert vllm.free == vllm.total - len(before)
    vllm.step()  # it runs again, in other blocks
    assert not set(vllm.blocks("r1")) & set(before)
    assert vllm.free == vllm.total - 2 * len(before)
    vllm.governor.returned("r1", "chunk-0")
    assert vllm.free == vllm.total - len(before)
    vllm.abort("r1")
    vllm.step()
    assert vllm.free == vllm.total


def test_a_lent_chunk_delays_the_free_of_an_aborted_request(governed):
    vllm = governed()
    vllm.add("r1", answer=5)
    vllm.step()
    vllm.governor.lend("r1", "chunk-0")
    vllm.abort("r1")
    assert vllm.free == vllm.total - 3
    vllm.governor.returned("r1", "chunk-0")
    assert vllm.free == vllm.total


@pytest.mark.parametrize("asynchronous", [False, True])
def test_loaded_by_name_as_a_scheduler_class(engine, asynchronous):
    kind = GovernedAsyncScheduler if asynchronous else GovernedScheduler
    vllm = engine(scheduler=kind, asynchronous=asynchronous)
    lent(vllm)
    vllm.step(sent=["r1"])
    vllm.step(sent=["r1"])
    assert vllm.free == vllm.total
    assert vllm.scheduler.governor.absorbed == {"finished_sending": 1}
