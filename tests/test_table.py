"""Many requests: lives of a rid, aborts from anywhere, deadlines, what is late and unknown, snapshots."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import (
    BadDetail,
    DuplicateRequest,
    EventError,
    IllegalEvent,
    LateEvent,
    LifecycleError,
    Policy,
    PolicyError,
    RequestTable,
    SnapshotError,
    UnknownRequest,
)
from lifecycle.snapshot import restore, snapshot
from lifecycle.testing.strategies import traces


def names(effects):
    return [str(effect) for effect in effects]


def start(table, rid="r", **time):
    table.submit(rid, **time)
    table.fire(rid, "admit", pages=1, **time)
    table.fire(rid, "prefill_finished", **time)


def test_a_rid_has_one_life_at_a_time():
    table = RequestTable()
    start(table)
    with pytest.raises(DuplicateRequest, match="a request of that rid lives") as refused:
        table.submit("r")
    assert refused.value.state == "transferring"
    table.fire("r", "transfer_succeeded")
    table.submit("r")
    assert (table["r"].incarnation, table["r"].state) == (2, "queued")
    assert table.life("r", 1).done
    assert table.illegal["submit"] == 1


def test_under_at_decision_a_rid_returns_while_its_former_life_drains():
    table = RequestTable(Policy(report="at_decision"))
    start(table)
    assert names(table.abort("r")) == ["cancel_transfer", "report"]
    table.submit("r")
    table.fire("r", "admit", pages=1)
    table.fire("r", "transfer_drained")
    assert table["r"].late == 1
    assert names(table.fire("r", "transfer_drained", incarnation=1)) == ["release_kv"]
    assert len(table) == 1


def test_an_abort_is_for_exactly_one_rid_a_prefix_or_all():
    table = RequestTable()
    for rid in ("r1", "r10", "s", "é1"):
        table.submit(rid)
    table.abort("r1")
    assert table.by_state() == {"done": 1, "queued": 3}
    assert [todo.request.rid for todo in table.abort_prefix("r")] == ["r10"]
    assert [todo.request.rid for todo in table.abort_prefix("é")] == ["é1"]
    assert [todo.request.rid for todo in table.abort_all()] == ["s"]
    assert table["s"].reason == "shutdown"
    assert len(table) == 0


def test_an_abort_before_its_submit_is_remembered_within_bounds():
    table = RequestTable(keep_aborts=2, abort_memory=10.0)
    for rid in ("a", "b", "c"):
        table.abort(rid, now=0.0)
    assert table.unknown["abort"] == 3
    assert table.submit("a", now=1.0) == ()  # pushed out by c
    assert names(table.submit("b", now=5.0)) == ["cancel_transfer", "report"]
    assert table.submit("c", now=11.0) == ()  # too long ago


def test_of_several_early_aborts_the_one_whose_reason_wins_is_applied():
    reasons = ["shutdown", "client_abort", "server_abort", "timeout", "grammar_error"]
    rest = ["transfer_failed", "peer_lost", "internal_error", "stop", "length"]
    table = RequestTable(Policy(precedence=[*reasons, *rest]))
    for source in ("client", "shutdown", "server"):
        table.abort("r", source)
    table.submit("r")
    assert (table["r"].reason, table["r"].late) == ("shutdown", 0)


def test_what_is_wrong_with_an_early_abort_is_told_to_its_sender():
    table = RequestTable()
    with pytest.raises(BadDetail, match="not 'me'"):
        table.abort("r", "me")
    with pytest.raises(TypeError):
        table.abort("r", colour="red")
    assert table.submit("r") == ()


def test_a_word_that_is_no_event_is_no_event_for_the_unknown_either():
    table = RequestTable()
    with pytest.raises(BadDetail, match="'explode' is no event for request 'ghost'"):
        table.fire("ghost", "explode")
    assert not table.unknown


def test_the_inbox_takes_from_many_threads_and_loses_nothing():
    table = RequestTable(keep_done=None)
    count, each = 8, 200
    for thread in range(count):
        for number in range(each):
            table.submit(f"{thread}-{number}")

    def post(thread):
        for number in range(each):
            table.inbox.fire(f"{thread}-{number}", "transfer_pending")
            table.inbox.abort(f"{thread}-{number}")

    threads = [threading.Thread(target=post, args=(thread,)) for thread in range(count)]
    for thread in threads:
        thread.start()
    told = []
    while any(thread.is_alive() for thread in threads) or len(table.inbox):
        told += table.drain_inbox()
    assert sorted(todo.request.rid for todo in told) == sorted(
        f"{thread}-{number}" for thread in range(count) for number in range(each)
    )
    assert all(names(todo.effects) == ["cancel_transfer", "report"] for todo in told)
    assert not table.late
    assert len(table) == 0


def test_an_error_in_the_inbox_keeps_nothing_else_from_being_taken():
    table = RequestTable()
    start(table, "a")
    start(table, "b")
    table.inbox.fire("a", "preempt")
    table.inbox.fire("a", "abort", colour="red")
    table.inbox.abort("b", "me")
    table.inbox.abort("b")
    errors = [todo.error for todo in table.drain_inbox() if todo.error]
    assert [type(error) for error in errors] == [IllegalEvent, LifecycleError, BadDetail]
    assert table["b"].state == "aborted"
    for event in ("admit", "submit"):
        with pytest.raises(BadDetail, match="the loop fires it itself"):
            table.inbox.fire("a", event)


def test_the_effects_of_an_inbox_event_have_their_request_even_if_it_is_forgotten():
    table = RequestTable(keep_done=0)
    table.submit("r")
    table.inbox.abort("r")
    (todo,) = table.drain_inbox()
    assert (todo.request.rid, names(todo.effects)) == ("r", ["cancel_transfer", "report"])
    assert "r" not in table


def test_deadlines_end_what_is_overdue_and_nothing_else():
    table = RequestTable(deadlines={"queued": 5, "transferring": 10.0, "draining": 2})
    table.submit("q", now=0)
    start(table, "t", now=3.0)
    assert table.expire(4.9) == []
    assert [todo.request.rid for todo in table.expire(5.0)] == ["q"]
    assert table["q"].reason == "timeout"
    (todo,) = table.expire(13.0)
    assert (table["t"].state, names(todo.effects)) == ("aborted", ["cancel_transfer"])
    assert table.expire(14.9) == []
    (todo,) = table.expire(15.0)
    assert names(todo.effects) == ["quarantine_kv", "report"]
    assert table.expire(1000.0) == []


def test_an_older_attempt_has_a_drain_deadline_of_its_own():
    table = RequestTable(deadlines={"draining": 2.0})
    table.submit("r", now=0.0)
    table.fire("r", "admit", now=0.0)
    table.fire("r", "transfer_posted", now=0.0)
    table.fire("r", "preempt", now=1.0)
    table.fire("r", "admit", now=2.0)
    assert table.expire(2.9) == []
    (todo,) = table.expire(3.0)
    assert (names(todo.effects), table["r"].state) == (["quarantine_kv"], "prefilling")


def test_what_stays_by_policy_is_asked_again():
    table = RequestTable(Policy(on_undrained="hold"), deadlines={"draining": 2.0})
    start(table, now=0.0)
    table.abort("r", now=0.0)
    assert table.expire(2.0) == []
    assert table["r"].journal[-1] == "drain_timeout"
    before = len(table["r"].journal)
    table.expire(3.9)
    assert len(table["r"].journal) == before
    table.expire(4.0)
    assert len(table["r"].journal) == before + 1


def test_without_the_time_nothing_happens_at_all():
    table = RequestTable(deadlines={"draining": 2.0})
    start(table, now=0.0)
    with pytest.raises(LifecycleError, match="pass now="):
        table.fire("r", "abort")
    assert table["r"].state == "transferring"
    with pytest.raises(LifecycleError, match="pass now="):
        table.submit("q")
    assert "q" not in table


@pytest.mark.parametrize(
    "deadlines", [{"done": 1.0}, {"aborted": 1.0}, {"queued": 0}, {"queued": True}, {"queued": "1"}]
)
def test_a_deadline_that_makes_no_sense_is_refused(deadlines):
    with pytest.raises(PolicyError):
        RequestTable(deadlines=deadlines)


def test_what_is_over_is_kept_for_a_while_and_then_forgotten():
    table = RequestTable(keep_done=2)
    for number in range(4):
        table.submit(f"r{number}")
        table.abort(f"r{number}")
    table.fire("r3", "transfer_pending")
    table.fire("r0", "transfer_pending")
    assert (table.late["transfer_pending"], table.unknown["transfer_pending"]) == (1, 1)
    assert [request.rid for request in table.lives()] == ["r2", "r3"]
    table.submit("live")
    with pytest.raises(LifecycleError, match="is not over"):
        table.forget(table["live"])


def test_strict_raises_for_one_and_not_for_the_others():
    table = RequestTable(Policy(late="strict", report="at_decision"))
    start(table, "told")
    table.abort("told")
    table.submit("live")
    with pytest.raises(LateEvent):
        table.abort("told")
    with pytest.raises(UnknownRequest, match="'ghost'"):
        table.fire("ghost", "admit")
    todos = table.abort_all()
    assert [(todo.request.rid, type(todo.error)) for todo in todos] == [
        ("told", LateEvent),
        ("live", type(None)),
    ]
    assert table["live"].done


def history(lines, deadlines):
    policy = Policy.from_mapping(lines[0]["policy"])
    table = RequestTable(policy, deadlines=deadlines)
    for now, line in enumerate(lines[1:]):
        run(table, line, float(now))
    return table


def run(table, line, now):
    details = {name: value for name, value in line.items() if name not in ("event", "rid")}
    try:
        if line["event"] == "submit":
            return names(table.submit(line["rid"], now=now))
        return names(table.fire(line["rid"], line["event"], now=now, **details))
    except EventError as error:
        return type(error).__name__


DEADLINES = st.sampled_from([{}, {"queued": 3.0, "draining": 2.0}, {"transferring": 5.0}])


def test_a_snapshot_keeps_the_order_in_which_lives_were_superseded():
    table = RequestTable()
    for rid in ("a", "b", "b", "a", "a"):  # b has its second life before a does
        table.submit(rid)
        table.fire(rid, "abort")
    again = restore(snapshot(table))
    assert [(life.rid, life.incarnation) for life in again.lives()] == [
        ("b", 1),
        ("a", 1),
        ("a", 2),
        ("b", 2),
        ("a", 3),
    ]
    assert snapshot(again) == snapshot(table)


@given(traces(), traces(), DEADLINES)
def test_a_snapshot_restores_exactly_and_lives_on_alike(before, after, deadlines):
    table = history(before, deadlines)
    saved = snapshot(table)
    again = restore(json.loads(json.dumps(saved)))
    assert snapshot(again) == saved
    for now, line in enumerate(after[1:], 100):
        assert run(again, line, float(now)) == run(table, line, float(now))
        if deadlines:
            told = [(t.request.rid, names(t.effects)) for t in table.expire(float(now))]
            assert [(t.request.rid, names(t.effects)) for t in again.expire(float(now))] == told
    assert snapshot(again) == snapshot(table)


def rich_snapshot():
    table = RequestTable(deadlines={"draining": 9.0})
    start(table, now=0.0)
    table.fire("r", "transfer_pending", now=1.0)
    table.abort("early", now=1.0)
    return json.loads(json.dumps(snapshot(table)))


@pytest.mark.parametrize("field", sorted(rich_snapshot()))
def test_a_snapshot_with_a_field_missing_or_wrong_is_refused(field):
    missing = rich_snapshot()
    del missing[field]
    with pytest.raises(SnapshotError, match=field):
        restore(missing)
    with pytest.raises(SnapshotError):
        restore({**rich_snapshot(), field: object()})


@pytest.mark.parametrize("field", sorted(rich_snapshot()["requests"][0]))
def test_a_request_with_a_field_missing_or_wrong_is_refused(field):
    for change in ("missing", "wrong"):
        saved = rich_snapshot()
        if change == "missing":
            del saved["requests"][0][field]
        else:
            saved["requests"][0][field] = object()
        with pytest.raises(SnapshotError):
            restore(saved)


def test_a_snapshot_that_contradicts_itself_is_refused():
    twice = rich_snapshot()
    twice["requests"] *= 2
    with pytest.raises(SnapshotError, match="stands twice"):
        restore(twice)
    impossible = rich_snapshot()
    impossible["requests"][0]["state"] = "queued"
    with pytest.raises(SnapshotError, match="can be so"):
        restore(impossible)
    with pytest.raises(SnapshotError, match="version 7"):
        restore({**rich_snapshot(), "version": 7})
    with pytest.raises(SnapshotError, match="follows the table 'other'"):
        restore({**rich_snapshot(), "table": "other"})


def test_a_table_saves_and_restores_itself():
    table = RequestTable()
    start(table)
    saved = table.snapshot()
    assert saved == snapshot(table)
    assert RequestTable.restore(saved).snapshot() == saved


def test_nothing_in_the_inbox_is_lost_by_a_snapshot():
    table = RequestTable()
    table.inbox.abort("r")
    with pytest.raises(SnapshotError, match="1 events wait in the inbox"):
        snapshot(table)
