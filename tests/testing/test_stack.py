"""The stack under the machine, and broken stacks: one for each invariant, each found under the right name."""

from __future__ import annotations

import threading

import attrs
import pytest
from hypothesis import Phase, settings

from kvpool.testing import LeasePool
from lifecycle import Driver, EffectKind, Event, FinishReason, IllegalEvent, Invariant, RequestTable
from lifecycle.consensus import Agreement
from lifecycle.table import Inbox
from lifecycle.testing.moves import MOVES, Moves
from lifecycle.testing.oracle import Oracle
from lifecycle.testing.pools import PlainPool
from lifecycle.testing.stack import (
    DEFAULT_SETTINGS,
    Parts,
    StackBroken,
    StackContract,
    StackMachine,
    check_stack,
    walk,
)

SOME = settings(DEFAULT_SETTINGS, max_examples=60)


class TestPlain(StackContract):
    """The library's own stack on a pool without torch."""

    config = SOME


class TestLeases(StackContract):
    """The library's own stack on leases of real tensors."""

    parts = Parts(pool=LeasePool)
    config = settings(SOME, max_examples=40)


@pytest.mark.parametrize("pool", [PlainPool, LeasePool])
def test_walks(pool):
    """The machine's moves in a plain loop, which goes deeper in the same time."""
    assert sum(walk(Parts(pool=pool), seed=seed, moves=250).events for seed in range(60)) > 4000


def test_there_is_a_rule_for_every_event_and_every_move():
    assert set(Event) - {str(name) for name in MOVES} == set()
    assert all(hasattr(StackMachine, f"do_{move}") for move in MOVES)
    assert all(getattr(StackMachine, f"do_{move}").__doc__ for move in MOVES)


# Broken stacks.


class RetriesBlindly(Driver):
    """Does not ask whether the pages are still out."""

    def retry(self):
        owed, self._faults = self._faults, []
        for fault in owed:
            self._carry_out(fault)
        return ()


class FreesAtTheDecision(Driver):
    """A cancel is taken for proof."""

    def _carry_out(self, owed):
        super()._carry_out(owed)
        request = self.table[owed.hold.rid]
        ended = any("succeeded" in each or "drained" in each for each in request.journal)
        if owed.effect.kind is EffectKind.CANCEL_TRANSFER and request.busy and not ended:
            self.pool.release(owed.hold)


class ReportsTwice(Driver):
    """Says it again."""

    def _carry_out(self, owed):
        super()._carry_out(owed)
        if owed.effect.kind is EffectKind.REPORT:
            super()._carry_out(owed)


class SuccessOverwrites(Driver):
    """Whoever was aborted while its transfer succeeded is told `length`."""

    def _carry_out(self, owed):
        if owed.effect.kind is EffectKind.REPORT and owed.outcome.wire == "abort":
            owed = attrs.evolve(
                owed, outcome=attrs.evolve(owed.outcome, reason=FinishReason.LENGTH)
            )
        super()._carry_out(owed)


class PeerNeverTold(Driver):
    """The other leg will notice."""

    def perform(self, request, effects):
        super().perform(
            request, tuple(e for e in effects if e.kind is not EffectKind.CANCEL_TRANSFER)
        )


class ClientsKeepTheirPages(Driver):
    """The way out of a client's abort forgot the release."""

    def perform(self, request, effects):
        if request.reason is FinishReason.CLIENT_ABORT:
            effects = tuple(e for e in effects if e.kind is not EffectKind.RELEASE_KV)
        super().perform(request, effects)


class PublishesEverything(Driver):
    """Aborted or not."""

    def _carry_out(self, owed):
        super()._carry_out(attrs.evolve(owed, effect=attrs.evolve(owed.effect, publish=True)))


class StopsAtTheFirstFault(Driver):
    """What comes behind a port that failed is lost."""

    def perform(self, request, effects):
        for effect in effects:
            owed = len(self.faults)
            super().perform(request, (effect,))
            if len(self.faults) > owed:
                return


class FirstOfTwoOps(RequestTable):
    """One op that ended stands for all."""

    def fire(self, rid, event, **details):
        request = self.life(rid, details.get("incarnation") or 1)
        newest = request is not None and details.get("attempt") == request.attempt
        if event == Event.TRANSFER_DRAINED and newest and details.get("op") in request.ops:
            details.pop("op")
        return super().fire(rid, event, **details)


class GhostOps(RequestTable):
    """Takes a claim that nobody asked for."""

    def fire(self, rid, event, **details):
        effects = super().fire(rid, event, **details)
        if event == Event.TRANSFER_POSTED and rid in self and self[rid].state == "prefilling":
            super().fire(rid, event, op="ghost")
        return effects


class ByPrefix(RequestTable):
    """An abort ends whoever is called alike."""

    def fire(self, rid, event, **details):
        if event == Event.ABORT and details.get("incarnation") is None:
            for other in list(self._newest):
                if other.startswith(rid) and other != rid and not self[other].done:
                    super().fire(other, event, source=details.get("source"), now=details.get("now"))
        return super().fire(rid, event, **details)


class AnyAttempt(RequestTable):
    """Whose attempt an op belonged to is not looked at."""

    def fire(self, rid, event, **details):
        if event in (Event.TRANSFER_DRAINED, Event.TRANSFER_SUCCEEDED, Event.TRANSFER_FAILED):
            details.pop("attempt", None)
        return super().fire(rid, event, **details)


class LetsWorkThrough(RequestTable):
    """New work for a decided request is waved through."""

    def fire(self, rid, event, **details):
        try:
            return super().fire(rid, event, **details)
        except IllegalEvent:
            if event in (Event.TRANSFER_POSTED, Event.FORWARD_LAUNCHED):
                return ()
            raise


class LateIsFatal(RequestTable):
    """An assertion on the happy path."""

    def fire(self, rid, event, **details):
        late = self.late.total()
        effects = super().fire(rid, event, **details)
        assert event == Event.ABORT or self.late.total() == late
        return effects


class NeverEnds(RequestTable):
    """The last completion of an aborted request is not for it."""

    def fire(self, rid, event, **details):
        request = self.life(rid, details.get("incarnation") or 1)
        aborted = request is not None and request.state == "aborted"
        if aborted and event == Event.FORWARD_FINISHED and len(request.claims) == 2:
            return ()  # claims: this pass, and the request's own
        return super().fire(rid, event, **details)


class FirstReasonStays(RequestTable):
    """All reasons in one tier."""

    def __init__(self, policy, **options):
        super().__init__(attrs.evolve(policy, precedence=[list(FinishReason)]), **options)


class LosingInbox(Inbox):
    """Has room for one at a time."""

    __slots__ = ()

    def abort(self, rid, source="client", **details):
        if not len(self):
            super().abort(rid, source, **details)

    def abort_prefix(self, prefix, source="client", **details):
        if not len(self):
            super().abort_prefix(prefix, source, **details)

    def abort_all(self, source="shutdown", **details):
        if not len(self):
            super().abort_all(source, **details)


class LosesPosts(RequestTable):
    """With that inbox."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.inbox = LosingInbox()


class ForgetsStreams(PlainPool):
    """What a stream still does to a page is not waited for."""

    def use(self, grant):
        pass


class LosesPages(PlainPool):
    """A long prompt's pages are nobody's after the release."""

    def release(self, hold):
        if len(hold.pages.pages) > 2:
            self._end(hold, "released")
        else:
            super().release(hold)


class PublishesUnproven(PlainPool):
    """Every page of the prompt, computed or not."""

    def publish(self, hold):
        hold.pages.proven = len(hold.pages.pages)
        super().publish(hold)


def _of_each(combine):
    """Ranks' answers combined by something else than their minimum, or all of them."""
    return lambda answers, _ranks: [combine(each) for each in zip(*answers.values(), strict=True)]


BROKEN = [
    (Invariant.SINGLE_RELEASE, Parts(driver=RetriesBlindly)),
    (Invariant.NO_FREE_IN_FLIGHT, Parts(driver=FreesAtTheDecision)),
    (Invariant.FREE_AFTER_ALL_OPS, Parts(table=FirstOfTwoOps)),
    (Invariant.STREAM_ORDER, Parts(pool=ForgetsStreams)),
    (Invariant.DRAIN_TO_ZERO, Parts(pool=LosesPages)),
    (Invariant.ABORT_IS_TOTAL, Parts(table=LosesPosts)),
    (Invariant.NO_NEW_WORK_AFTER_DECISION, Parts(table=LetsWorkThrough)),
    (Invariant.STICKY_REASON, Parts(driver=SuccessOverwrites)),
    (Invariant.REASON_BY_POLICY, Parts(table=FirstReasonStays)),
    (Invariant.REASON_NOT_CONTROL, Parts(driver=ClientsKeepTheirPages)),
    (Invariant.REPORT_ONCE, Parts(driver=ReportsTwice)),
    (Invariant.LATE_IS_ABSORBED, Parts(table=LateIsFatal)),
    (Invariant.ATTEMPT_SCOPED, Parts(table=AnyAttempt)),
    (Invariant.EXACT_TARGET, Parts(table=ByPrefix)),
    (Invariant.RANK_AGREEMENT, Parts(verdict=_of_each(max))),
    (Invariant.RANK_AGREEMENT, Parts(drained=_of_each(any))),
    (Invariant.RANK_AGREEMENT, Parts(agree=lambda queues, _ranks: Agreement(tuple(queues[0]), {}))),
    (Invariant.PEER_TOLD, Parts(driver=PeerNeverTold)),
    (Invariant.CLAIM_COUNT, Parts(table=GhostOps)),
    (Invariant.NO_TAINTED_PUBLISH, Parts(driver=PublishesEverything)),
    (Invariant.NO_TAINTED_PUBLISH, Parts(pool=PublishesUnproven)),
    (Invariant.FAULT_ISOLATED, Parts(driver=StopsAtTheFirstFault)),
    (Invariant.EVENTUALLY_DONE, Parts(table=NeverEnds)),
]  # fmt: skip


def _named(each):
    if isinstance(each, Parts):
        changed = [
            str(getattr(part, "__name__", "")) for part in attrs.astuple(each, recurse=False)
        ]
        return "-".join(name for name in changed if name not in _OWN)
    return str(each)


_OWN = {part.__name__ for part in attrs.astuple(Parts(), recurse=False)}


def test_every_invariant_has_a_broken_stack():
    assert {name for name, _ in BROKEN} == set(Invariant)


@pytest.mark.parametrize("parts", [parts for _, parts in BROKEN], ids=_named)
def test_walks_find_it_too(parts):
    def found(seed):
        try:
            walk(parts, seed=seed, moves=150)
        except StackBroken:
            return True
        return False

    assert any(found(seed) for seed in range(400))


RARE = (ForgetsStreams, AnyAttempt)  # these take the machine many seconds


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        pytest.param(*each, marks=pytest.mark.slow)
        if {each[1].pool, each[1].table} & set(RARE)
        else each
        for each in BROKEN
    ],
    ids=_named,
)
def test_a_broken_stack_is_found_under_the_right_name(name, parts):
    """One fault may break several invariants, so a seed may meet another one first; not five seeds in a row."""
    config = settings(DEFAULT_SETTINGS, max_examples=2000, phases=[Phase.generate], database=None)
    names = []
    for seed in range(1, 6):
        with pytest.raises(StackBroken) as found:
            check_stack(parts, seed=seed, config=config)
        names.append(found.value.invariant)
        assert found.value.trace
        assert str(names[-1]) in str(found.value)
        if names[-1] == name:
            return
    assert name in names


@pytest.mark.parametrize(
    "method", ["_settle", "_decide", "_drain_timeout", "_find", "_wins", "_give_back"]
)
def test_a_change_of_the_model_is_noticed(method):
    """With a rule of the model taken out, model and stack differ somewhere."""
    mutant = type("Mutant", (Oracle,), {method: lambda *_args, **_kwargs: None})
    config = settings(DEFAULT_SETTINGS, phases=[Phase.generate], database=None)
    with pytest.raises((StackBroken, TypeError)):
        check_stack(Parts(oracle=mutant), seed=1, config=config)


def test_a_finding_shrinks_to_a_short_trace():
    with pytest.raises(StackBroken) as found:
        check_stack(
            Parts(driver=ReportsTwice), seed=1, config=settings(DEFAULT_SETTINGS, database=None)
        )
    events = [line for line in found.value.trace if "event" in line]
    assert len(events) <= 6


# Threads that post as they like, outside Hypothesis.


class FollowedInbox(Inbox):
    """Tells the model of each entry as the table takes it: in the order that the threads came to."""

    __slots__ = ("follow",)

    def take(self):
        for entry in super().take():
            self.follow(*entry)
            yield entry


def test_threads_post_freely_while_the_loop_runs():
    rig = Moves()
    rig.table.inbox = inbox = FollowedInbox()
    taken, lives = [], []

    def follow(verb, rid, details):
        taken.append(details["message"])
        lines = [{"rid": rid, **details}] if verb == "fire" else rig.aborts(rid, details)
        lives.extend(rig.follow(line)[0] for line in lines)

    inbox.follow = follow
    ready = threading.Barrier(5)

    def client(number):
        ready.wait()
        for i in range(200):
            rid, message = f"r{(i * 7 + number) % 40}", f"{number}/{i}"
            if i % 50 == 49:
                inbox.abort_prefix(rid[:2], message=message)
            elif i % 3:
                inbox.abort(rid, message=message)
            else:
                inbox.fire(rid, "transfer_succeeded", message=message)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    turns = 0
    while any(thread.is_alive() for thread in threads) or len(inbox) or turns < 40:
        turns += 1
        rid = f"r{turns % 40}"
        if rid not in rig.oracle.lives or rig.oracle.lives[rid][-1].state == "done":
            rig.fire({"event": "submit", "rid": rid})
            if rig.oracle.lives[rid][-1].state == "queued":
                life = rig.oracle.lives[rid][-1]
                grant = rig.pool.alloc(rid, 0, (1,))
                if grant is not None:
                    rig.fire(
                        {"event": "admit", "rid": rid, "incarnation": life.number, "pages": 1},
                        grant,
                    )
                    rig.fire({"event": "prefill_finished", "rid": rid, "incarnation": life.number})
        lives.clear()
        rig.many(lambda: rig.driver.drain_inbox(now=0), lives, 0, {"event": "abort"})
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(f"{number}/{i}" for number in range(4) for i in range(200))
    rig.do("settle")
