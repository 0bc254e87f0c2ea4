"""One request: its methods, what travels with the reason that wins, attempts, errors."""

from __future__ import annotations

import gc
import sys

import pytest

from lifecycle import (
    BadDetail,
    EventError,
    IllegalEvent,
    LateEvent,
    Policy,
    RequestLifecycle,
    compile_table,
)
from lifecycle import request as request_module
from lifecycle.prefill import PREFILL
from lifecycle.request import JOURNAL_LENGTH
from lifecycle.snapshot import request_to_json


def request(**choices):
    return RequestLifecycle("r", compile_table(PREFILL, Policy(**choices)))


def names(effects):
    return [str(effect) for effect in effects]


def transferring(**choices):
    made = request(**choices)
    made.grammar_ready()
    made.admit(4)
    made.finish_prefill()
    return made


def test_the_methods_are_spelled_as_one_thinks():
    r = request()
    assert (
        names(r.grammar_ready() + r.admit(pages=3) + r.launch_forward() + r.post_transfer("c0"))
        == []
    )
    assert r.claims == ("op:c0", "request", "step:1")
    assert names(r.finish_forward() + r.finish_prefill() + r.poll("pending")) == []
    assert names(r.poll("succeeded", "c0")) == ["release_kv", "report"]
    assert (r.state, r.reason, r.kv, r.done, r.over, r.reported) == (
        "done", "length", "released", True, True, True,
    )  # fmt: skip
    for end in (
        lambda r: r.reject_grammar("dead_end"),
        lambda r: r.abort("server"),
        lambda r: r.lose_peer(),
        lambda r: r.fail(),
        lambda r: r.poll("failed"),
    ):
        r = transferring()
        assert names(end(r)) == ["cancel_transfer"]
        assert r.decided
        assert not r.done
        assert names(r.transfer_drained()) == ["release_kv", "report"]


def test_a_backend_whose_failure_proves_the_drain_says_so():
    r = transferring()
    assert names(r.poll("failed", failed_implies_drained=True)) == [
        "cancel_transfer",
        "release_kv",
        "report",
    ]


def test_details_travel_with_the_reason_that_wins_and_with_no_other():
    r = transferring()
    r.poll("failed", message="card on fire")
    assert (r.outcome().status, r.outcome().message) == (502, "card on fire")
    r.abort("client", message="gone", status=418)
    r.fail(message="later, and lower", status=500)
    r.abort("server", message="later, in the same tier")
    r.transfer_drained()
    told = r.outcome()
    assert (told.reason, told.wire, told.status, told.message) == (
        "client_abort",
        "abort",
        418,
        "gone",
    )


def test_a_reason_that_wins_without_details_does_not_inherit_the_losers():
    r = transferring()
    r.poll("failed", message="card on fire")
    r.reject_grammar("timeout")
    assert (r.outcome().status, r.outcome().message) == (503, "The grammar of the request failed.")


def test_no_outcome_before_a_reason():
    with pytest.raises(EventError, match="no outcome yet"):
        request().outcome()


def test_an_error_says_what_an_author_needs_at_three_in_the_morning():
    r = transferring()
    r.abort("client")
    before = request_to_json(r)
    with pytest.raises(IllegalEvent) as refused:
        r.preempt()
    error = refused.value
    assert (error.rid, error.state, error.reason, error.event) == (
        "r",
        "aborted",
        "client_abort",
        "preempt",
    )
    assert error.claims == ("op:kv", "request")
    assert "transfer_drained" in error.legal
    assert "preempt" not in error.legal
    assert error.last[-2:] == ("prefill_finished", "abort(client)")
    for part in ("'r'", "aborted (client_abort)", "op:kv, request", "legal now: ", "last events: "):
        assert part in str(error)
    assert request_to_json(r) == before


@pytest.mark.parametrize(
    ("event", "details", "message"),
    [
        ("explode", {}, "'explode' is no event"),
        ("abort", {"source": "me"}, "client, server, timeout, shutdown, not 'me'"),
        ("grammar_failed", {"cause": "taste"}, "compile, timeout, rejected, dead_end, not 'taste'"),
        ("complete", {"reason": "timeout"}, "'stop' or 'length', not 'timeout'"),
        ("complete", {}, "'stop' or 'length', not None"),
    ],
)
def test_a_bad_detail_changes_nothing(event, details, message):
    r = transferring()
    before = request_to_json(r)
    with pytest.raises(BadDetail, match=message):
        r.fire(event, **details)
    assert request_to_json(r) == before


@pytest.mark.parametrize(
    ("event", "details", "message"),
    [([], {}, "is no event"), ("abort", {"source": []}, "an abort comes from")],
)
def test_a_detail_of_a_wrong_type_changes_nothing(event, details, message):
    compiled = not request_module.__file__.endswith(".py")  # there the type is refused at the door
    r = transferring()
    before = request_to_json(r)
    with pytest.raises(
        TypeError if compiled else BadDetail, match="object" if compiled else message
    ):
        r.fire(event, **details)
    assert request_to_json(r) == before


def test_a_poll_that_says_something_else_is_refused():
    with pytest.raises(BadDetail, match="not 'maybe'"):
        transferring().poll("maybe")


def test_late_events_are_counted_or_raise():
    r = transferring()
    r.poll("succeeded")
    r.abort()
    assert r.late == 1
    strict = transferring(late="strict")
    with pytest.raises(LateEvent, match="transfer_succeeded is late for request 'r'"):
        strict.poll("succeeded", "ghost")
    assert strict.late == 0


def test_an_attempt_that_is_preempted_busy_drains_on_its_own():
    r = request()
    r.admit(2)
    r.launch_forward()
    r.post_transfer("a")
    assert r.preempt() == ()
    assert (r.state, r.attempt, r.claims, r.kv) == ("queued", 1, (), "none")
    assert r.draining[0].claims == ("op:a", "step:1")
    r.admit(2)
    r.launch_forward()  # step 2: numbers run through the request
    r.finish_forward()  # the oldest, which is the old attempt's
    assert r.steps == (2,)
    assert names(r.poll("succeeded", "a")) == ["release_kv"]
    assert r.draining == ()
    assert names(r.abort()) == ["cancel_transfer@1"]
    assert names(r.finish_forward(2)) == ["release_kv@1", "report@1"]


def test_an_event_that_names_an_attempt_reaches_that_one_alone():
    r = request()
    r.admit(2)
    r.post_transfer("a")
    r.preempt()
    r.admit(2)
    r.post_transfer("a")
    r.fire("transfer_succeeded", attempt=0)
    assert (r.draining, r.ops) == ((), ("a",))
    r.fire("transfer_succeeded", op="a", attempt=0)
    assert r.late == 1
    with pytest.raises(IllegalEvent, match="attempt 0 is not the newest, which is 1"):
        r.fire("forward_launched", attempt=0)
    r.fire("forward_launched", attempt=1)
    assert r.steps == (1,)
    r.fire("abort", attempt=7)  # aborts are about the request
    assert r.state == "aborted"


@pytest.mark.parametrize(
    ("choice", "effects", "kv"),
    [
        ("quarantine", ["quarantine_kv", "quarantine_kv@1", "report@1"], "quarantined"),
        ("release", ["release_kv", "release_kv@1", "report@1"], "released"),
        ("hold", [], "held"),
    ],
)
def test_the_drain_deadline_is_for_every_attempt_that_drains(choice, effects, kv):
    r = request(on_undrained=choice)
    r.admit(2)
    r.post_transfer("a")
    r.preempt()
    r.admit(2)
    r.post_transfer("b")
    r.abort()
    assert names(r.drain_timed_out()) == effects
    assert r.kv == kv


def test_a_request_may_be_done_while_an_older_attempt_drains():
    r = request()
    r.admit(2)
    r.post_transfer("a")
    r.preempt()
    r.abort()
    assert (r.done, r.over) == (True, False)
    assert names(r.transfer_drained("a")) == ["release_kv"]
    assert (r.over, r.late) == (True, 0)


def test_the_last_events_are_kept_and_no_more():
    r = transferring()
    for _ in range(1000):
        r.poll("pending")
    assert len(r.journal) == JOURNAL_LENGTH
    assert len(r._journal) <= 2 * JOURNAL_LENGTH
    assert RequestLifecycle("q", journal=False).journal == ()


def test_it_stays_small_however_long_it_lives():
    r = request()
    r.admit(1)
    r.launch_forward()

    def work():
        for _ in range(2000):
            r.launch_forward()
            r.finish_forward()
            r.poll("succeeded", "ghost")

    work()
    gc.collect()
    before = sys.getallocatedblocks()
    work()
    gc.collect()
    assert sys.getallocatedblocks() - before < 200
    assert r.late == 4000
    assert not hasattr(r, "__dict__")


def test_it_reads_well_in_a_debugger():
    r = request()
    r.admit(1)
    r.launch_forward()
    r.preempt()
    assert repr(r) == ("<request 'r' queued, claims: none, attempt 1, attempt 0 drains: step:1>")
