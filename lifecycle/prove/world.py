"""Fleets of any size: requests, ranks and pages are sorts of which nothing is known.

The same actions as :mod:`lifecycle.verify.fleet`, for any number of each: a request has some set of pages, which
it may share with others through the cache; every page may be cached; each rank reads the pages until it has
delivered or is quiet. Pages go back with the last lease and without the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import z3

from ..compile import OWN_REASON
from ..policy import Policy
from ..spec import ILLEGAL, Does, Pages, Table
from ..vocabulary import ABORT_REASONS, Event, Invariant
from .rows import Outcome, Words, fire

E, I = Event, Invariant  # noqa: E741  # short names for long lists

NO_LEASE, LEASED, IN_QUARANTINE = 0, 1, 2
IDLE, READING, OK, QUIET = 0, 1, 2, 3


@attrs.frozen
class World:
    """Everything that changes: functions from requests, ranks and pages to expressions."""

    state: Callable[[Any], Any]
    reason: Callable[[Any], Any]
    step: Callable[[Any], Any]  # a pass of the newest attempt runs
    op: Callable[[Any], Any]  # the request counts an op claim
    net: Callable[[Any, Any], Any]
    on: Callable[[Any, Any], Any]  # the pages of the newest attempt
    lease: Callable[[Any], Any]
    old: Callable[[Any], Any]  # a pass of the former attempt runs
    old_on: Callable[[Any, Any], Any]
    reports: Callable[[Any], Any]
    cancelled: Callable[[Any], Any]
    pool: Callable[[Any], Any]
    cached: Callable[[Any], Any]


@attrs.frozen
class Action:
    """One action: when it can happen, what it leads to, and what it must not do by itself."""

    name: str
    guard: Any
    after: World
    never: tuple[tuple[Invariant, Any], ...] = ()
    request: Any = None
    deadline: bool = False


class Fleet:
    """The sorts, the world before an action, the actions, and what must hold in every world."""

    def __init__(
        self, table: Table, policy: Policy, faults: frozenset[str], *, last_wins: bool
    ) -> None:
        self.words = Words(table, policy)
        self.faults, self.last_wins = faults, last_wins
        self.Request, self.Rank = z3.DeclareSort("Request"), z3.DeclareSort("Rank")
        self.Page = z3.DeclareSort("Page")
        request, rank, page, yes = self.Request, self.Rank, self.Page, z3.BoolSort()
        make = z3.Function
        self.world = World(
            state=make("state", request, self.words.State),
            reason=make("reason", request, self.words.Reason),
            step=make("step", request, yes),
            op=make("op", request, yes),
            net=make("net", request, rank, z3.IntSort()),
            on=make("on", request, page, yes),
            lease=make("lease", request, z3.IntSort()),
            old=make("old", request, yes),
            old_on=make("old_on", request, page, yes),
            reports=make("reports", request, z3.IntSort()),
            cancelled=make("cancelled", request, yes),
            pool=make("pool", page, yes),
            cached=make("cached", page, yes),
        )
        self.r, self.k, self.p = (
            z3.Const("a_request", request),
            z3.Const("a_rank", rank),
            z3.Const("a_page", page),
        )

    # What must hold.

    def invariants(self, w: World) -> Iterator[tuple[Invariant, str, Any]]:
        """The inductive invariant, part by part: which invariant needs it, in words, and the formula."""
        words, table = self.words, self.words.table
        r, k, p = self.r, self.k, self.p

        def each(body: Any, *of: Any) -> Any:
            return z3.ForAll(list(of) or [r], body)

        s = w.state(r)
        terminal, draining = words.terminal(s), words.draining(s)
        start = s == words.state[str(table.initial.name)]
        held = words.one_of(s, [x.name for x in table.states if x.pages is not Pages.NONE])
        reads = w.net(r, k) == READING
        yield (
            I.DRAIN_TO_ZERO,
            "a request that has pages has a lease on them, and none after",
            each(
                z3.And(
                    z3.Implies(held, w.lease(r) == LEASED),
                    z3.Implies(start, w.lease(r) == NO_LEASE),
                    z3.Implies(terminal, w.lease(r) != LEASED),
                    z3.And(w.lease(r) >= NO_LEASE, w.lease(r) <= IN_QUARANTINE),
                )
            ),
        )
        yield (
            I.DRAIN_TO_ZERO,
            "a request that drains waits for something",
            each(z3.Implies(draining, z3.Or(w.step(r), w.op(r)))),
        )
        yield (
            I.NO_FREE_IN_FLIGHT,
            "a pass that runs has a lease on its pages",
            each(z3.Implies(w.step(r), w.lease(r) != NO_LEASE)),
        )
        yield (
            I.NO_FREE_IN_FLIGHT,
            "a rank that reads has a lease on what it reads",
            each(z3.Implies(reads, w.lease(r) != NO_LEASE), r, k),
        )
        yield (
            I.CLAIM_COUNT,
            "a request that is not done counts every rank that reads",
            each(z3.Implies(z3.And(reads, z3.Not(terminal)), w.op(r)), r, k),
        )
        yield (
            I.CLAIM_COUNT,
            "a page in the pool has no lease, and is not cached",
            each(
                z3.Implies(
                    w.pool(p),
                    z3.And(
                        z3.Not(z3.And(w.lease(r) != NO_LEASE, w.on(r, p))),
                        z3.Not(z3.And(w.old(r), w.old_on(r, p))),
                        z3.Not(w.cached(p)),
                    ),
                ),
                r,
                p,
            ),
        )
        q = z3.Const("some_request", self.Request)
        yield (
            I.CLAIM_COUNT,
            "a page outside the pool has a lease, or is cached",
            each(
                z3.Or(
                    w.pool(p),
                    w.cached(p),
                    z3.Exists([q], z3.And(w.lease(q) != NO_LEASE, w.on(q, p))),
                    z3.Exists([q], z3.And(w.old(q), w.old_on(q, p))),
                ),
                p,
            ),
        )
        yield (
            I.REPORT_ONCE,
            "the client is told once, at the end",
            each(w.reports(r) == z3.If(terminal, 1, 0)),
        )
        yield (
            I.PEER_TOLD,
            "a hand-over that is counted no more was delivered by every rank",
            each(
                z3.And(
                    z3.Implies(
                        z3.And(words.one_of(s, self._leads_to(took=True)), z3.Not(w.op(r))),
                        self._delivered(w, r),
                    ),
                    z3.Implies(
                        words.one_of(s, self._leads_to(took=False)),
                        z3.And(z3.Not(w.op(r)), self._delivered(w, r)),
                    ),
                )
            ),
        )
        cut = z3.Or(draining, z3.And(terminal, z3.Not(words.completion(w.reason(r)))))
        yield (
            I.PEER_TOLD,
            "the peer of a request that was cut short is told",
            each(z3.Implies(z3.And(cut, z3.Not(self._delivered(w, r))), w.cancelled(r))),
        )
        yield (
            I.REASON_BY_POLICY,
            "a reason is recorded when a request is decided, not before admission",
            each(
                z3.And(
                    z3.Implies(z3.Or(draining, terminal), w.reason(r) != words.none),
                    z3.Implies(start, w.reason(r) == words.none),
                    z3.Implies(
                        z3.Not(z3.Or(draining, terminal)),
                        z3.Or(w.reason(r) == words.none, words.completion(w.reason(r))),
                    ),
                    z3.Implies(start, z3.And(z3.Not(w.step(r)), z3.Not(w.op(r)))),
                )
            ),
        )
        yield (
            I.CLAIM_COUNT,
            "a request that is done counts no op",
            each(z3.Implies(terminal, z3.Not(w.op(r)))),
        )
        flying = z3.Or(
            z3.And(w.on(r, p), z3.Or(w.step(r), reads)), z3.And(w.old(r), w.old_on(r, p))
        )
        yield (
            I.NO_FREE_IN_FLIGHT,
            "nothing touches a page in the pool",
            each(z3.Implies(w.pool(p), z3.Not(flying)), r, k, p),
        )

    def _leads_to(self, *, took: bool) -> list[str]:
        """The states to which a row moves that began a hand-over (`took`), or that ended one with success."""
        table, found = self.words.table, set()
        for row in table.rows:
            begins = Does.TAKE_OP_UNLESS_OPEN in row.claims
            ends = E.TRANSFER_SUCCEEDED in row.events
            if (begins if took else ends) and row.to in [state.name for state in table.states]:
                found.add(str(row.to))
        return sorted(found - {str(table.terminal.name)})

    def _delivered(self, w: World, r: Any) -> Any:
        """Every rank has delivered: there is nothing to cancel."""
        return z3.ForAll([self.k], w.net(r, self.k) == OK)

    # What can happen.

    def actions(self) -> Iterator[Action]:
        """Every action, of a request `r0` (on a rank `k0`, on a page `p0`) of which nothing else is known."""
        r0, k0 = z3.Const("r0", self.Request), z3.Const("k0", self.Rank)
        w, words = self.world, self.words
        early = z3.Bool("earlier")
        state, busy = w.state(r0), z3.Or(w.step(r0), w.old(r0))
        gone = z3.Or(words.terminal(state), words.draining(state))
        yield self._admit(r0)
        yield self._event("forward_launched", r0, E.FORWARD_LAUNCHED, guard=z3.Not(busy))
        yield self._event("forward_finished", r0, E.FORWARD_FINISHED, guard=w.step(r0), step=False)
        rows = [row for row in words.table.rows if E.PREFILL_FINISHED in row.events]
        if any(row.to is not ILLEGAL for row in rows):
            yield self._hand_over(r0)
        for rank_does, end in (("delivers", OK), ("goes_quiet", QUIET)):
            yield from self._rank(f"rank_{rank_does}", r0, k0, end)
        reads = w.net(r0, k0) == READING
        yield self._event(
            "rank_fails", r0, E.TRANSFER_FAILED, guard=reads, offers=OWN_REASON[E.TRANSFER_FAILED]
        )
        for source, reason in ABORT_REASONS.items():
            deadline = z3.Not(gone) if source == "timeout" else True
            yield self._event(
                f"abort_{source}", r0, E.ABORT, guard=deadline, offers=reason,
                deadline=source == "timeout",
            )  # fmt: skip
        for event in (E.GRAMMAR_FAILED, E.PEER_LOST, E.ERROR):
            yield self._event(str(event), r0, event, offers=OWN_REASON[event])
        for name in ("stop", "length"):
            yield self._event(f"complete_{name}", r0, E.COMPLETE, offers=name, earlier=early)
        for event in (E.TRANSFER_PENDING, E.GRAMMAR_READY):
            yield self._event(str(event), r0, event)
        yield self._event(
            "drain_timeout", r0, E.DRAIN_TIMEOUT, guard=words.draining(state), deadline=True
        )
        yield self._event("preempt", r0, E.PREEMPT, guard=z3.Not(z3.Or(w.old(r0), w.op(r0))))
        yield self._old_pass(r0)
        yield self._evict()
        yield self._recover(r0)
        if "works_on_decided" in self.faults:
            guard = z3.And(words.draining(state), z3.Not(busy))
            after = self._with(r0, step=True)
            never = ((I.NO_NEW_WORK_AFTER_DECISION, guard),)
            yield Action("launched_for_a_decided_request", guard, after, never, r0)

    def _event(
        self,
        name: str,
        r0: Any,
        event: Event,
        *,
        guard: Any = True,
        offers: object = None,
        earlier: Any = None,
        step: bool | None = None,
        op: Any = None,
        net: Callable[[Any, Any], Any] | None = None,
        heard: Any = True,
        deadline: bool = False,
        on: Callable[[Any, Any], Any] | None = None,
        cached: Callable[[Any], Any] | None = None,
        extra: tuple[tuple[Invariant, Any], ...] = (),
    ) -> Action:
        """An action that the request hears of; where `heard` is false it changes the environment alone."""
        w, words = self.world, self.words
        offered = None if offers is None else words.reason[str(offers)]
        out = fire(
            words, event,
            state=w.state(r0), reason=w.reason(r0),
            step=w.step(r0) if step is None else z3.BoolVal(step),
            op=w.op(r0) if op is None else op,
            offered=offered, earlier=earlier, last_wins=self.last_wins,
        )  # fmt: skip
        takes_op = event in (E.ADMIT, E.PREFILL_FINISHED, E.TRANSFER_POSTED)
        after = self._apply(r0, out, event, heard, net, on, cached, takes_op=takes_op, step=step)
        legal = z3.Not(out.illegal) if event is not E.ABORT else z3.BoolVal(True)
        never = [*extra, *self._judged(r0, event, out, offered, earlier, heard)]
        return Action(name, z3.And(guard, legal), after, tuple(never), r0, deadline)

    def _judged(
        self, r0: Any, event: Event, out: Outcome, offered: Any, earlier: Any, heard: Any
    ) -> Iterator[tuple[Invariant, Any]]:
        """What the event must not do, as formulas that must have no model."""
        w, words = self.world, self.words
        was, state = w.reason(r0), w.state(r0)
        terminal = words.terminal(state)
        takes_effect = z3.And(heard, z3.Not(out.late), z3.Not(out.illegal))
        releases = z3.And(takes_effect, out.releases)
        yield I.SINGLE_RELEASE, z3.And(releases, w.lease(r0) != LEASED)
        if "late_poll_frees" in self.faults and event in (E.TRANSFER_SUCCEEDED, E.TRANSFER_DRAINED):
            yield I.SINGLE_RELEASE, z3.And(heard, out.late, w.lease(r0) != LEASED)
        if event is E.ABORT:
            yield I.ABORT_IS_TOTAL, out.illegal
        if event is E.FORWARD_LAUNCHED or event is E.TRANSFER_POSTED:
            yield I.NO_NEW_WORK_AFTER_DECISION, z3.And(words.draining(state), takes_effect)
        changed = z3.Or(out.state != state, out.reason != was)
        yield I.LATE_IS_ABSORBED, z3.And(terminal, takes_effect, changed)
        early = z3.BoolVal(False) if earlier is None else earlier  # z3's own literal
        lower = words.height(out.reason) <= words.height(was)
        by_place = z3.And(early, words.completion(out.reason), words.completion(was))
        lower = z3.And(lower, z3.Not(by_place))
        yield I.STICKY_REASON, z3.And(takes_effect, was != words.none, out.reason != was, lower)
        if offered is not None:
            due = words.join(was, offered, early)
            yield I.REASON_BY_POLICY, z3.And(takes_effect, z3.Not(out.ignored), out.reason != due)

    def _apply(
        self,
        r0: Any,
        out: Outcome,
        event: Event,
        heard: Any,
        net: Callable[[Any, Any], Any] | None,
        on: Callable[[Any, Any], Any] | None,
        cached: Callable[[Any], Any] | None,
        *,
        takes_op: bool,
        step: bool | None,
    ) -> World:
        w, words = self.world, self.words
        does = z3.And(heard, z3.Not(out.late), z3.Not(out.illegal))
        releases = z3.And(does, out.releases, w.lease(r0) == LEASED)
        if "drain_not_released" in self.faults and event is E.TRANSFER_DRAINED:
            releases = z3.BoolVal(False)  # z3's own literal
        busy_old = z3.And(does, out.starts_over, w.step(r0))
        on = w.on if on is None else on
        net = w.net if net is None else net
        if takes_op:
            before = net
            net = lambda r, k: z3.If(  # noqa: E731  # a function of the world
                z3.And(r == r0, does, out.op, z3.Not(w.op(r0))), READING, before(r, k)
            )
        lease = z3.If(
            z3.Or(releases, z3.And(does, out.starts_over)),
            NO_LEASE,
            z3.If(
                z3.And(does, out.quarantines),
                IN_QUARANTINE,
                z3.If(z3.And(does, event is E.ADMIT), LEASED, w.lease(r0)),
            ),
        )
        frees = z3.Or(releases, z3.And(busy_old, "preempt_frees" in self.faults))
        is_cached = w.cached if cached is None else cached
        now_old = z3.Or(w.old(r0), busy_old)
        decides = z3.And(words.draining(out.state), z3.Not(words.draining(w.state(r0))))
        twice = z3.And(decides, "reports_twice" in self.faults)
        told = z3.If(z3.And(does, z3.Or(out.reports, twice)), w.reports(r0) + 1, w.reports(r0))
        running = w.step(r0) if step is None else z3.BoolVal(step)
        taken = z3.And(does, event is E.ADMIT)

        def this(r: Any, value: Any, other: Any) -> Any:
            return z3.If(r == r0, value, other)

        return attrs.evolve(
            w,
            state=lambda r: this(r, z3.If(does, out.state, w.state(r0)), w.state(r)),
            reason=lambda r: this(r, z3.If(does, out.reason, w.reason(r0)), w.reason(r)),
            step=lambda r: this(r, z3.If(does, out.step, running), w.step(r)),
            op=lambda r: this(r, z3.If(does, out.op, w.op(r0)), w.op(r)),
            net=net,
            on=on,
            lease=lambda r: this(r, lease, w.lease(r)),
            old=lambda r: this(r, now_old, w.old(r)),
            old_on=lambda r, p: z3.If(z3.And(r == r0, busy_old), w.on(r0, p), w.old_on(r, p)),
            reports=lambda r: this(r, told, w.reports(r)),
            cancelled=lambda r: this(
                r,
                z3.And(
                    z3.Or(w.cancelled(r0), z3.And(does, out.cancels)),
                    z3.Not(z3.And(does, out.starts_over)),
                ),
                w.cancelled(r),
            ),
            pool=lambda p: z3.And(
                z3.Or(w.pool(p), z3.And(frees, w.on(r0, p), self._unshared(r0, p))),
                z3.Not(z3.And(taken, on(r0, p))),
            ),
            cached=is_cached,
        )

    def _unshared(self, r0: Any, p: Any, *, of_old: bool = False) -> Any:
        """Whether nobody but `r0` refers to a page, so that its release gives the page back."""
        if "sharers_ignored" in self.faults:
            return z3.BoolVal(True)  # z3's own literal
        w, q = self.world, z3.Const("another", self.Request)
        lease = z3.And(w.lease(q) != NO_LEASE, w.on(q, p))
        old = z3.And(w.old(q), w.old_on(q, p))
        if of_old:
            other = z3.Or(lease, z3.And(q != r0, old))
        else:
            other = z3.Or(z3.And(q != r0, lease), old)
        return z3.And(z3.Not(w.cached(p)), z3.Not(z3.Exists([q], other)))

    def _with(self, r0: Any, **values: Any) -> World:
        """The world in which some of `r0`'s own values are others."""
        w = self.world
        made: dict[str, Any] = {}
        for name, value in values.items():
            made[name] = self._one(r0, getattr(w, name), value)
        return attrs.evolve(w, **made)

    @staticmethod
    def _one(r0: Any, before: Callable[[Any], Any], value: Any) -> Callable[[Any], Any]:
        return lambda r: z3.If(r == r0, value, before(r))

    def _admit(self, r0: Any) -> Action:
        w = self.world
        chosen = z3.Function("chosen", self.Page, z3.BoolSort())
        p = self.p
        there = z3.ForAll([p], z3.Implies(chosen(p), z3.Or(w.pool(p), w.cached(p))))
        idle = lambda r, k: z3.If(r == r0, IDLE, w.net(r, k))  # noqa: E731  # a function of the world
        return self._event(
            "admit", r0, E.ADMIT, guard=z3.And(there, z3.Not(w.old(r0))), net=idle,
            on=lambda r, page: z3.If(r == r0, chosen(page), w.on(r, page)),
        )  # fmt: skip

    def _hand_over(self, r0: Any) -> Action:
        w = self.world
        published = z3.Function("published", self.Page, z3.BoolSort())
        p = self.p
        own = z3.ForAll([p], z3.Implies(published(p), w.on(r0, p)))
        return self._event(
            "prefill_finished", r0, E.PREFILL_FINISHED,
            guard=z3.And(own, z3.Not(w.step(r0)), z3.Not(w.old(r0)), z3.Not(w.op(r0)),
                         z3.Not(self.words.draining(w.state(r0))),
                         w.reason(r0) == self.words.none),
            cached=lambda page: z3.Or(w.cached(page), published(page)),
        )  # fmt: skip

    def _rank(self, name: str, r0: Any, k0: Any, end: int) -> Iterator[Action]:
        """A rank ends: the scheduler hears success when all have delivered, and the drain when all have ended."""
        w, k = self.world, self.k

        def net(r: Any, rank: Any) -> Any:
            return z3.If(z3.And(r == r0, rank == k0), end, w.net(r, rank))

        ended = z3.ForAll([k], net(r0, k) != READING)
        well = z3.ForAll([k], net(r0, k) == OK)
        succeeded, drained = well, z3.And(ended, z3.Not(well))
        if "first_rank_wins" in self.faults:
            succeeded = z3.BoolVal(end == OK)
            drained = z3.And(drained, z3.Not(succeeded))
        if "min_consensus" in self.faults:
            drained = z3.Or(drained, z3.BoolVal(end == QUIET))
        reads = w.net(r0, k0) == READING
        for event, heard in ((E.TRANSFER_SUCCEEDED, succeeded), (E.TRANSFER_DRAINED, drained)):
            if event is E.TRANSFER_SUCCEEDED and end == QUIET:
                continue  # a rank that went quiet without delivering is never the last of a success
            short = ((I.RANK_AGREEMENT, z3.Not(well)),) if event is E.TRANSFER_SUCCEEDED else ()
            yield self._event(
                f"{name}_{event}", r0, event,
                guard=z3.And(reads, heard, w.op(r0)), op=z3.BoolVal(False), net=net, extra=short,
            )  # fmt: skip
        silent = attrs.evolve(w, net=net)
        over = z3.Or(z3.Not(w.op(r0)), z3.Not(z3.Or(succeeded, drained)))
        polled: tuple[tuple[Invariant, Any], ...] = ()
        if "late_poll_frees" in self.faults:
            late = z3.And(ended, z3.Not(w.op(r0)), w.lease(r0) != LEASED)
            polled = ((I.SINGLE_RELEASE, late),)
        yield Action(f"{name}_unheard", z3.And(reads, over), silent, polled, r0)

    def _old_pass(self, r0: Any) -> Action:
        w = self.world
        after = attrs.evolve(
            self._with(r0, old=z3.BoolVal(False)),  # z3's own literal
            pool=lambda p: z3.Or(
                w.pool(p), z3.And(w.old_on(r0, p), self._unshared(r0, p, of_old=True))
            ),
        )
        return Action("old_pass_ends", w.old(r0), after, (), r0)

    def _evict(self) -> Action:
        w = self.world
        p0, q = z3.Const("p0", self.Page), z3.Const("another", self.Request)
        used = z3.Or(z3.And(w.lease(q) != NO_LEASE, w.on(q, p0)), z3.And(w.old(q), w.old_on(q, p0)))
        unused = z3.Not(z3.Exists([q], used))
        guard = w.cached(p0) if "evicts_held" in self.faults else z3.And(w.cached(p0), unused)
        after = attrs.evolve(
            w,
            pool=lambda p: z3.Or(w.pool(p), p == p0),
            cached=lambda p: z3.And(w.cached(p), p != p0),
        )
        return Action("evict", guard, after)

    def _recover(self, r0: Any) -> Action:
        w, k = self.world, self.k
        quiet = z3.And(z3.Not(w.step(r0)), z3.ForAll([k], w.net(r0, k) != READING))
        if "quarantine_early" in self.faults:
            quiet = z3.BoolVal(True)  # z3's own literal
        after = attrs.evolve(
            self._with(r0, lease=NO_LEASE),
            pool=lambda p: z3.Or(w.pool(p), z3.And(w.on(r0, p), self._unshared(r0, p))),
        )
        return Action(
            "leaves_quarantine", z3.And(w.lease(r0) == IN_QUARANTINE, quiet), after, (), r0
        )
