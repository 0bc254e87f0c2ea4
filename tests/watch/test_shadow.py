"""A shadow finds each kind of divergence, finds nothing else, never raises, and does not grow."""

from __future__ import annotations

import random

import attrs
import pytest

from lifecycle import Policy, RequestTable
from lifecycle.errors import EventError
from lifecycle.policy import ReportAt
from lifecycle.shadow import BROKEN, DivergenceKind, Shadow
from lifecycle.vocabulary import Event, Invariant


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@attrs.define
class Scheduler:
    """Does what the contract says, and tells a shadow, except for the one rule named in `breaks`.

    Every way to end that the shadow tells apart is walked: a hand-off, an abort in flight, one in the queue.
    """

    breaks: DivergenceKind | None = None
    clock: Clock = attrs.field(factory=Clock)
    shadow: Shadow = attrs.field(init=False)

    def run(self) -> Shadow:
        self.shadow = Shadow(cancels=True, clock=self.clock)
        self.hand_off("good")
        self.abort_in_flight("aborted")
        self.quarantine("stuck")
        self.shadow.saw("queued", "submit")
        self.shadow.saw("queued", "abort")
        self.shadow.cancelled("queued")
        self.shadow.reported("queued", "client_abort", status=499)
        if self.breaks is DivergenceKind.NEVER_ENDED:
            self.shadow.saw("forgotten", "submit")
        self.clock.now += 60
        self.shadow.sweep()
        self.shadow.idle()
        return self.shadow

    def hand_off(self, rid):
        shadow, breaks = self.shadow, self.breaks
        shadow.saw(rid, "submit")
        shadow.saw(rid, "admit", pages=4)
        if breaks is DivergenceKind.ILLEGAL_EVENT:
            shadow.saw(rid, "admit", pages=4)
        if breaks is DivergenceKind.FREED_UNDECIDED:
            shadow.freed(rid)
        shadow.saw(rid, "forward_launched")
        shadow.saw(rid, "forward_finished")
        shadow.saw(rid, "prefill_finished")
        shadow.saw(rid, "transfer_succeeded")
        if breaks not in (DivergenceKind.NEVER_FREED, DivergenceKind.FREED_UNDECIDED):
            shadow.freed(rid)
        if breaks is DivergenceKind.FREED_TWICE:
            shadow.freed(rid)
        if breaks is not DivergenceKind.NEVER_REPORTED:
            shadow.reported(rid, "stop" if breaks is DivergenceKind.REASON_DIFFERS else "length")
        if breaks is DivergenceKind.REPORTED_TWICE:
            shadow.reported(rid, "length")

    def abort_in_flight(self, rid):
        shadow, breaks = self.shadow, self.breaks
        shadow.saw(rid, "submit")
        shadow.saw(rid, "admit", pages=4)
        shadow.saw(rid, "prefill_finished")
        shadow.saw(rid, "abort")
        if breaks is not DivergenceKind.PEER_NOT_TOLD:
            shadow.cancelled(rid)
        if breaks is DivergenceKind.REPORTED_EARLY:
            shadow.reported(rid, "abort")
        if breaks is DivergenceKind.FREED_IN_FLIGHT:
            shadow.freed(rid)
        shadow.saw(rid, "transfer_failed")
        shadow.saw(rid, "transfer_drained", op="kv")
        if breaks is not DivergenceKind.FREED_IN_FLIGHT:
            shadow.freed(rid)
        if breaks is not DivergenceKind.REPORTED_EARLY:
            shadow.reported(rid, "abort")

    def quarantine(self, rid):
        shadow = self.shadow
        shadow.saw(rid, "submit")
        shadow.saw(rid, "admit", pages=4)
        shadow.saw(rid, "prefill_finished")
        shadow.saw(rid, "abort")
        shadow.cancelled(rid)
        shadow.saw(rid, "drain_timeout")
        shadow.reported(rid, "client_abort")
        if self.breaks is DivergenceKind.FREED_IN_QUARANTINE:
            shadow.freed(rid)


def test_a_careful_scheduler_diverges_nowhere():
    shadow = Scheduler().run()
    assert not shadow.counts, [str(each) for each in shadow.divergences]
    assert (shadow.errors, len(shadow), shadow.unknown.total()) == (0, 0, 0)


@pytest.mark.parametrize("kind", DivergenceKind)
def test_each_kind_is_found_once_and_nothing_else(kind):
    """The scheduler that breaks one rule is the mutant of the careful one."""
    shadow = Scheduler(kind).run()
    assert shadow.counts == {kind: 1}, [str(each) for each in shadow.divergences]
    [found] = shadow.divergences
    assert found.invariant is BROKEN.get(kind, Invariant.CLAIM_COUNT)
    assert shadow.errors == 0
    assert f"request {found.rid!r}" in str(found)
    assert found.to_json()["kind"] == kind.value


def test_the_seed_freed_twice_and_told_something_else():
    """sglang pull request 30937: a grammar error freed the pages in flight, and the poll freed them again."""
    shadow = Shadow()
    for event in ("submit", "admit", "prefill_finished", "grammar_failed"):
        shadow.saw("r", event)
    shadow.freed("r")
    shadow.saw("r", "transfer_succeeded")
    shadow.freed("r")
    shadow.reported("r", "length")
    assert [str(found.kind) for found in shadow.divergences] == [
        "freed_in_flight",
        "freed_twice",
        "reason_differs",
    ]
    assert "grammar_error, on the wire error" in shadow.divergences[-1].what


def test_new_work_for_a_decided_request_names_the_invariant():
    shadow = Shadow()
    for event in ("submit", "admit", "prefill_finished", "abort", "transfer_posted"):
        shadow.saw("r", event)
    [found] = shadow.divergences
    assert found.invariant is Invariant.NO_NEW_WORK_AFTER_DECISION
    assert (found.state, found.reason) == ("aborted", "client_abort")
    assert found.last[-1] == "abort"


def test_a_preempted_attempt_is_freed_when_it_has_drained():
    for early in (False, True):
        shadow = Shadow()
        for event in ("submit", "admit", "forward_launched", "preempt"):
            shadow.saw("r", event)
        if early:
            shadow.freed("r")
        shadow.saw("r", "admit")
        shadow.saw("r", "forward_finished", step=1)
        if not early:
            shadow.freed("r")
        shadow.saw("r", "complete", reason="stop")
        shadow.freed("r")
        shadow.reported("r", "stop")
        found = [(each.kind, each.attempt) for each in shadow.divergences]
        assert found == ([(DivergenceKind.FREED_IN_FLIGHT, 0)] if early else [])


def test_a_rid_that_is_used_again_has_two_lives():
    shadow = Shadow(Policy(report="at_decision"))
    for event in ("submit", "admit", "prefill_finished", "abort"):
        shadow.saw("r", event)
    shadow.reported("r", "client_abort")
    shadow.saw("r", "submit")
    shadow.saw("r", "admit", pages=1)
    shadow.saw("r", "transfer_drained", incarnation=1)
    shadow.freed("r", incarnation=1)
    shadow.saw("r", "complete", reason="stop")
    shadow.freed("r")
    shadow.reported("r", "stop")
    assert (shadow.counts, shadow.errors, len(shadow)) == ({}, 0, 0)
    shadow.saw("r", "transfer_succeeded", incarnation=1)
    assert shadow.late == {"transfer_succeeded": 1}


def test_a_report_at_the_decision_is_early_only_where_the_policy_says_so():
    for policy, counts in (
        (Policy(), {DivergenceKind.REPORTED_EARLY: 1}),
        (Policy(report=ReportAt.DECISION), {}),
    ):
        shadow = Shadow(policy)
        for event in ("submit", "admit", "prefill_finished", "abort"):
            shadow.saw("r", event)
        shadow.reported("r", "client_abort")
        shadow.saw("r", "transfer_drained")
        shadow.freed("r")
        assert shadow.counts == counts


def test_what_was_told_too_early_is_compared_at_the_end():
    shadow = Shadow()
    for event in ("submit", "admit", "prefill_finished", "transfer_failed"):
        shadow.saw("r", event)
    shadow.reported("r", "transfer_failed")
    shadow.saw("r", "abort")
    shadow.saw("r", "transfer_drained")
    assert [str(each.kind) for each in shadow.divergences] == ["reported_early", "reason_differs"]


def test_debts_get_their_grace():
    clock = Clock()
    shadow = Shadow(grace=5, clock=clock)
    shadow.saw("r", "submit")
    shadow.saw("r", "abort")
    clock.now += 4.9
    shadow.sweep()
    assert not shadow.counts
    clock.now += 0.2
    shadow.saw("other", "submit")
    shadow.saw("other", "abort")  # events look for what is overdue, too
    assert shadow.counts == {DivergenceKind.NEVER_REPORTED: 1}
    shadow.sweep()
    assert shadow.counts.total() == 1  # once


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_sampling_follows_the_same_requests_everywhere(rate):
    ranks = Shadow(sample=rate), Shadow(sample=rate)
    rids = [f"r{number}" for number in range(3000)]
    for shadow in ranks:
        for rid in rids:
            shadow.saw(rid, "submit")
            shadow.saw(rid, "transfer_pending")
            shadow.freed(rid)
    followed = [rid for rid in rids if rid in ranks[0]]
    assert followed == [rid for rid in rids if rid in ranks[1]]
    assert len(followed) == pytest.approx(3000 * rate, abs=150)
    assert not ranks[0].unknown  # requests that are not sampled are nobody unknown


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.saw("r", "no_such_event"),
        lambda s: s.saw("r", "abort", source="nobody"),
        lambda s: s.saw("r", "abort", no_such_detail=1),
        lambda s: s.saw([], "abort"),
        lambda s: s.saw("r", ["unhashable"]),
        lambda s: s.saw(None, None),
        lambda s: s.saw("r", "complete"),
        lambda s: s.freed({}),
        lambda s: s.reported("r", object()),
        lambda s: s.cancelled([]),
    ],
)
def test_nothing_raises_into_the_scheduler(call):
    shadow = Shadow(sample=1.0)
    shadow.saw("r", "submit")
    shadow.saw("r", "admit", pages=4)
    before = repr(shadow["r"])
    call(shadow)
    assert repr(shadow["r"]) == before
    assert shadow.errors + shadow.counts.total() + shadow.unknown.total() == 1


def test_a_callback_that_raises_is_counted_and_hides_nothing():
    def callback(_divergence):
        msg = "the pager is down"
        raise ConnectionError(msg)

    shadow = Shadow(on_divergence=callback)
    shadow.saw("r", "submit")
    shadow.saw("r", "submit")
    assert shadow.counts == {DivergenceKind.ILLEGAL_EVENT: 1}
    assert (shadow.errors, type(shadow.last_error)) == (1, ConnectionError)


@pytest.mark.parametrize(
    "options",
    [{"sample": 1.1}, {"sample": -1}, {"grace": -1}, {"keep_done": 0}, {"max_requests": 0}],
)
def test_a_number_that_makes_no_sense_is_refused_at_the_start(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Shadow(**options)


def test_memory_is_bounded():
    shadow = Shadow(max_requests=50, keep_done=20, keep_divergences=10, grace=1e9)
    for number in range(5000):
        rid = f"r{number}"
        shadow.saw(rid, "submit")
        if number % 3 == 0:  # ends, and is freed twice
            shadow.saw(rid, "admit", pages=1)
            shadow.saw(rid, "abort")
            shadow.freed(rid)
            shadow.freed(rid)
            shadow.reported(rid)
    assert len(shadow._lives) + len(shadow._former) <= 50 + 20
    assert len(shadow.divergences) == 10
    assert shadow.overflow > 3000
    assert len(shadow._owed) <= shadow._most_owed + 1
    assert shadow.errors == 0


@pytest.mark.parametrize("seed", range(20))
def test_it_follows_a_request_as_the_table_does(seed):
    """Any events in any order: the shadow is where a table is, and owes what the table's effects were."""
    chance = random.Random(seed)
    table, shadow = RequestTable(), Shadow(grace=1e9)
    details = {Event.COMPLETE: {"reason": "stop"}}
    for _ in range(600):
        rid, event = f"r{chance.randrange(6)}", chance.choice(list(Event))
        given = details.get(event, {})
        effects = ()
        known = rid in table
        try:
            if event is Event.SUBMIT:
                table.submit(rid)
            elif known:
                effects = table.fire(rid, event, **given)
        except EventError:
            pass
        if known or event is Event.SUBMIT:
            shadow.saw(rid, event, **given)
        for effect in effects:
            if effect.kind == "release_kv":
                shadow.freed(rid, attempt=effect.attempt)
            elif effect.kind == "report":
                shadow.reported(rid, table[rid].reason)
        if known:
            assert repr(shadow[rid]) == repr(table[rid])
    assert set(shadow.counts) <= {DivergenceKind.ILLEGAL_EVENT}
    assert shadow.counts[DivergenceKind.ILLEGAL_EVENT] == table.illegal.total()
    assert shadow.late == table.late
