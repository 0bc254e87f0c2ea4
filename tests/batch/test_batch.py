"""What a batch can do besides what an object can: rows, generations, polls, deadlines, growth, and no numpy."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import (
    BadDetail,
    IllegalEvent,
    LateEvent,
    LifecycleError,
    Policy,
    RequestLifecycle,
    UnknownRequest,
)
from lifecycle.batch import ROW_BYTES, RequestBatch, code, columns
from lifecycle.consensus import Verdict

PENDING, SUCCEEDED, FAILED = Verdict.PENDING, Verdict.SUCCEEDED, Verdict.FAILED


def in_flight(count: int, **settings) -> tuple[RequestBatch, np.ndarray]:
    batch = RequestBatch(**settings)
    rows = batch.add(count)
    batch.apply("admit", rows)
    batch.apply("prefill_finished", rows)
    return batch, rows


def texts(applied):
    return [(row, [str(effect) for effect in effects]) for row, effects in applied]


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )


def test_the_core_imports_no_numpy():
    found = run("""
        import sys, lifecycle
        lifecycle.RequestTable().submit("r")
        print("numpy" in sys.modules)
    """)
    assert found.stdout == "False\n", found.stderr


def test_without_numpy_one_line_says_what_to_install():
    found = run("""
        import sys
        sys.modules["numpy"] = None
        try:
            import lifecycle.batch
        except ImportError as error:
            print(error)
    """)
    assert found.stdout == (
        'lifecycle.batch needs numpy; install it with: pip install "request-lifecycle[batch]"\n'
    )


# Polls.


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, "torch"])
def test_polls_of_a_whole_queue(kind):
    batch, rows = in_flight(100)
    polls = np.full(100, PENDING, np.uint8 if kind == "torch" else kind)
    if kind == "torch":
        polls = pytest.importorskip("torch").from_numpy(polls)
    assert not len(batch.poll(polls, rows))
    polls[7], polls[8] = SUCCEEDED, FAILED
    assert texts(batch.poll(polls, rows)) == [
        (7, ["release_kv", "report"]),
        (8, ["cancel_transfer"]),
    ]
    assert batch.by_state() == {"transferring": 98, "aborted": 1, "done": 1}
    assert batch.poll(polls, rows).late == 1  # the one that is done: success is late


def test_a_tensor_is_not_copied(monkeypatch):
    torch = pytest.importorskip("torch")
    batch, rows = in_flight(10)
    polls = torch.full((10,), int(PENDING), dtype=torch.int8)
    seen = []
    monkeypatch.setattr(batch, "_poll", lambda said, *_: seen.append(said))
    polls[3] = int(SUCCEEDED)
    batch.poll(polls, rows)
    polls[3] = 5
    assert seen[0][3] == 5


def test_a_pending_poll_of_a_done_row_is_late():
    """The short way is for rows that a pending poll leaves as they are, and for no others."""
    batch, rows = in_flight(10)
    batch.apply("transfer_succeeded", 4)
    applied = batch.poll(np.full(10, PENDING), rows)
    assert applied.late == 1
    assert batch.late_events(rows).tolist() == [0] * 4 + [1] + [0] * 5
    batch.remove(4)
    assert batch.poll(np.full(10, PENDING), rows).unknown == 1
    strict, rows = in_flight(3, policy=Policy(late="strict"))
    strict.apply("transfer_succeeded", 1)
    assert [type(error) for error in strict.poll([1, 1, 1], rows).errors] == [LateEvent]


def test_a_failure_that_proves_the_drain():
    batch, rows = in_flight(3)
    applied = batch.poll([FAILED, PENDING, SUCCEEDED], rows, failed_implies_drained=True)
    ended = ["release_kv", "report"]
    assert texts(applied) == [(0, ["cancel_transfer"]), (0, ended), (2, ended)]
    one = RequestLifecycle("r")
    one.admit()
    one.finish_prefill()
    alone = one.poll("failed", failed_implies_drained=True)
    assert [effect for row, effects in applied if row == 0 for effect in effects] == list(alone)


# Rows.


def test_rows_are_used_again_with_another_generation():
    batch, rows = in_flight(5)
    assert batch.generation(rows).tolist() == [0] * 5
    batch.apply("abort", [1, 3])
    with pytest.raises(LifecycleError, match=r"row 1 cannot be removed: .*aborted.* is not over"):
        batch.remove([1])
    batch.apply("transfer_drained", [1, 3])
    for bad, why in (([1, 1], "named twice"), ([1, 2], "row 2 cannot"), ([1, 9], "does not exist")):
        with pytest.raises(LifecycleError, match=why):
            batch.remove(bad)
    assert len(batch) == 5
    old = batch.generation([1, 3])
    batch.remove([1, 3])
    assert (len(batch), batch.rows().tolist()) == (3, [0, 2, 4])
    with pytest.raises(LifecycleError, match="no request has it"):
        batch.remove(3)
    with pytest.raises(LifecycleError, match="no request has row 3"):
        batch.request(3)
    assert sorted(batch.add(3).tolist()) == [1, 3, 5]
    assert batch.generation([1, 3, 5]).tolist() == [1, 1, 0]
    # What comes late for a former life does not reach the new one.
    late = batch.apply("abort", [1, 3], generation=old)
    assert (late.unknown, len(late), batch.by_state()["queued"]) == (2, 0, 3)
    now = batch.apply("abort", [1, 3], generation=[0, 1])
    assert (now.unknown, now.rows.tolist(), batch.unknown) == (1, [3], 3)
    again = batch.request(1)
    assert (again.state, again.attempt, again.late) == ("queued", 0, 0)


def test_events_for_free_rows():
    batch, rows = in_flight(3)
    batch.apply("transfer_succeeded", 1)
    batch.remove(1)
    assert batch.apply("abort", rows).unknown == 1
    assert batch.apply("transfer_drained").unknown == 0  # for every request: a free row is none
    assert batch.apply([0, 0, 0]).unknown == 0
    strict = RequestBatch(Policy(late="strict"))
    strict.add()
    strict.apply("abort")
    strict.remove(0)
    errors = strict.apply("abort", [0]).errors
    assert isinstance(errors[0], UnknownRequest)
    assert str(errors[0]) == "abort for row 0, which no request has"


@given(
    st.lists(st.sampled_from(["forward_launched", "preempt", "admit", "prefill_finished", "abort"]))
)
def test_a_row_becomes_an_object_and_a_row_again(events):
    batch = RequestBatch()
    row = int(batch.add()[0])
    batch.apply("admit")
    for event in events:
        batch.apply(event, message="said" if event == "abort" else None)
    one = batch.request(row, "r1", incarnation=3, journal=True)
    assert (one.rid, one.incarnation, one.journal) == ("r1", 3, ())
    other = batch.put(one)
    assert repr(batch.request(other, "r1")) == repr(one)
    assert batch.request(other).details == one.details
    before = repr(batch.request(row))
    one.abort()
    assert repr(batch.request(row)) == before  # an object of its own
    with pytest.raises(LifecycleError, match="another table or policy"):
        batch.put(RequestLifecycle("r", RequestBatch(Policy(late="strict")).automaton))


def test_errors_are_of_the_moment_and_named_by_the_caller():
    batch, rows = in_flight(2, name=lambda row: f"request-{row * 10}")
    errors = batch.apply("preempt", rows).errors
    batch.apply("transfer_succeeded", rows)
    assert len(errors) == 2
    assert [type(error) for error in errors[:2]] == [IllegalEvent, IllegalEvent]
    assert errors[1].rid == "request-10"
    assert errors[1].state == "transferring"
    assert "claims: op:kv, request" in str(errors[-1])
    assert repr(errors) == "<2 errors, rows [0, 1]>"


def test_the_order_of_events_is_kept():
    """A row that stands more than once takes its events one after the other."""
    batch = RequestBatch()
    batch.add(3)
    words = [
        "admit",
        "forward_launched",
        "forward_launched",
        "abort",
        "forward_finished",
        "forward_finished",
    ]
    pairs = [(code(word), row) for word in words for row in (2, 0)]
    applied = batch.apply([signal for signal, _ in pairs], [row for _, row in pairs])
    cut, ended = ["cancel_transfer"], ["release_kv", "report"]
    assert texts(applied) == [(2, cut), (0, cut), (2, ended), (0, ended)]
    assert batch.rows().tolist() == [0, 1, 2]
    assert applied.rows_with("report").tolist() == [2, 0]


def test_effects_of_later_and_earlier_attempts():
    batch = RequestBatch()
    batch.add(2)
    for event in ("admit", "forward_launched", "preempt", "admit"):
        batch.apply(event)
    assert texts(batch.apply("forward_finished", 0)) == [(0, ["release_kv"])]
    applied = batch.apply("abort")
    assert texts(applied) == [
        (row, ["cancel_transfer@1", "release_kv@1", "report@1"]) for row in (0, 1)
    ]
    assert batch.draining([0, 1]).tolist() == [False, True]
    assert texts(batch.apply("drain_timeout", 1)) == [(1, ["quarantine_kv"])]
    assert batch.over([0, 1]).all()


# Deadlines.


def test_deadlines():
    batch, rows = in_flight(5)
    batch.set_deadline(rows, [10.0, 20.0, 5.0, np.inf, 8.0])
    batch.apply("abort", 2)
    batch.apply("transfer_succeeded", 4)  # over: no deadline is for it
    assert batch.overdue(4.0).tolist() == []
    assert batch.overdue(10.0).tolist() == [0, 2]
    assert texts(batch.expire(10.0)) == [(0, ["cancel_transfer"]), (2, ["quarantine_kv", "report"])]
    assert batch.request(0).reason == "timeout"
    assert not len(batch.expire(10.0))
    batch.remove(2)
    row = int(batch.add()[0])
    assert row == 2
    assert batch.overdue(1e9).tolist() == [1]  # a new life has no deadline


# Size.


def test_a_row_is_small_and_growth_copies_nothing():
    assert ROW_BYTES <= 48
    tracemalloc.start()
    batch = RequestBatch()
    rows = batch.add(1_000_000)
    batch.apply("admit")
    batch.apply("forward_launched")
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(batch) == 1_000_000
    assert size - rows.nbytes < 64 << 20
    assert batch.nbytes <= 64 << 20
    first = batch._chunks[0].shape
    batch.add(columns.CHUNK)
    assert batch._chunks[0].shape is first
    assert batch.by_state() == {"queued": columns.CHUNK, "prefilling": 1_000_000}


# Queues.


@pytest.mark.parametrize("count", [50, columns.CHUNK + 50])
def test_a_queue_of_polls(count):
    """It takes polls as `poll` does, and looks at its rows again after whatever happened to any of them."""
    batch, rows = in_flight(count)
    rows = np.random.default_rng(3).permutation(rows)
    queue = batch.queue(rows)
    quiet = np.full(count, PENDING, np.int8)
    assert queue.poll(quiet) is batch.nothing
    polls = quiet.copy()
    polls[[3, 4]] = SUCCEEDED, FAILED
    assert texts(queue.poll(polls)) == [
        (rows[3], ["release_kv", "report"]), (rows[4], ["cancel_transfer"])
    ]  # fmt: skip
    assert queue.poll(quiet).late == 1  # of the one that is done
    assert queue.poll(quiet.astype(np.int64)).late == 1
    queue.leave([rows[3]])
    assert len(queue) == count - 1
    assert queue.poll(quiet[1:]) is batch.nothing
    batch.apply("transfer_succeeded", rows[5])
    assert queue.poll(quiet[1:]).late == 1
    batch.remove([rows[5]])
    assert queue.poll(quiet[1:]).unknown == 1
    again = batch.add()  # the same row, another request: queued, and a poll is nothing to it
    assert again[0] == rows[5]
    assert queue.poll(quiet[1:]) is batch.nothing
    queue.extend(rows[[3]])
    assert queue.rows[-1] == rows[3]
    assert queue.poll(quiet).late == 1
    for bad in (quiet[1:], quiet + 5, quiet.astype(float)):
        with pytest.raises(BadDetail):
            queue.poll(bad)
    with pytest.raises(BadDetail):
        batch.queue([count])
    with pytest.raises(BadDetail):
        queue.extend([-1])


def test_a_queue_that_would_not_look_again_is_noticed(monkeypatch):
    """With the count of changes standing still, the queue misses what happened."""
    monkeypatch.setattr(
        RequestBatch, "_version", property(lambda self: 0, lambda *_: None), raising=False
    )
    batch, rows = in_flight(3)
    queue = batch.queue(rows)
    quiet = np.full(3, PENDING, np.int8)
    assert queue.poll(quiet) is batch.nothing
    batch.apply("transfer_succeeded", 1)
    assert queue.poll(quiet).late == 0
