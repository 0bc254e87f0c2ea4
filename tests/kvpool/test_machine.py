"""The pool against a model of its own, in random order; and mutants of the pool, each of which the model catches.

The model knows nothing of free stacks, slabs, claims or queues. It keeps, for each lease, what it was told and
what it still waits for, and works out from that alone where every page must be. Besides, every page that
somebody has is filled with a number of its own, so that a page given to two owners shows in its content, as it
would in production.
"""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvpool import (
    DoubleReleaseError,
    FakeStream,
    ForeignLeaseError,
    KVLayout,
    Lease,
    OpOpenError,
    OutOfPagesError,
    PageOutOfRangeError,
    PagePool,
    PagesComingError,
    PrefixCache,
    Shortage,
    StaleLeaseError,
    Supply,
)

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=1, page_size=2, dtype=torch.float64)
SLAB = 4
OPS = ("kv", "chunk")
# Few different tokens, so that prompts share prefixes often.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=8)


@attrs.define(eq=False)
class Entry:
    """What the model knows of one lease."""

    lease: Lease
    pages: list[int]
    state: str = "held"
    streams: list[FakeStream] = attrs.field(factory=list)
    ops: set[str] = attrs.field(factory=set)
    events: list[tuple[FakeStream, int]] = attrs.field(factory=list)
    tokens: list[int] = attrs.field(factory=list)
    proven: int = 0
    published: set[int] = attrs.field(factory=set)

    def open_events(self) -> list[tuple[FakeStream, int]]:
        return [(stream, at) for stream, at in self.events if stream.reached < at]


class PoolMachine(RuleBasedStateMachine):
    """Drives a pool; ``make_pool`` and ``make_cache`` are what a mutant replaces."""

    make_pool = PagePool
    make_cache = PrefixCache

    leases = Bundle("leases")

    @initialize(slabs=st.integers(1, 3))
    def start(self, slabs):
        self.pool = self.make_pool(LAYOUT, slabs * SLAB, slab_pages=SLAB)
        self.cache = self.make_cache(self.pool)
        self.other = PagePool(LAYOUT, SLAB)
        self.entries: list[Entry] = []
        self.cached: dict[int, tuple[int, ...]] = {}  # page -> all tokens up to its end
        self.content: dict[int, float] = {}
        self.slabs = set(range(slabs))
        self.streams = [FakeStream("compute"), FakeStream("copy")]
        self.stamp = 0.0

    # The model

    def claims(self, page: int) -> set[str]:
        found = {entry.state for entry in self.entries if page in entry.pages}
        return (found | ({"cached"} if page in self.cached else set())) - {"free"}

    def place(self, page: int) -> str:
        claims = self.claims(page)
        order = ("held", "quarantined", "pending", "cached")
        return next((place for place in order if place in claims), "free")

    def all_pages(self) -> list[int]:
        return [slab * SLAB + i for slab in sorted(self.slabs) for i in range(SLAB)]

    def count(self, place: str) -> int:
        return sum(self.place(page) == place for page in self.all_pages())

    def settle(self, *, events: bool) -> None:
        """Free what waits for nothing; events count as seen only after a reclaim."""
        for entry in self.entries:
            if entry.state == "pending":
                if events:
                    entry.events = entry.open_events()
                if not entry.ops and not entry.events:
                    entry.state = "free"

    def write(self, pages: list[int]) -> None:
        self.stamp += 1
        for page in pages:
            self.pool.page_view(page).fill_(self.stamp)
            self.content[page] = self.stamp

    def notice_evictions(self, evictable: set[int]) -> None:
        """The cache may choose whom to evict among those that nobody uses; what continued them goes too."""
        gone = {page: self.cached[page] for page in set(self.cached) - set(self.cache._pages())}
        for page in gone:
            del self.cached[page]
        chains_left = set(self.cached.values())
        for page, chain in gone.items():
            starts = {chain[:n] for n in range(2, len(chain), 2)}
            assert page in evictable or not starts <= chains_left, f"page {page} evicted in use"

    def fresh(self, found: Lease, taken: list[int], free: set[int], evictable: set[int]) -> None:
        self.notice_evictions(evictable)
        assert len(set(taken)) == len(taken)
        assert set(taken) <= free | evictable, "pages were handed out that somebody has"
        entry = Entry(found, list(found.pages))
        self.entries.append(entry)
        self.write(taken)

    def at(self, place: str) -> set[int]:
        return {page for page in self.all_pages() if self.place(page) == place}

    def entry_of(self, lease: Lease) -> Entry:
        return next(entry for entry in self.entries if entry.lease is lease)

    def check_shortage(self, shortage: Shortage, needed: int) -> None:
        available = self.count("free") + self.count("cached")
        coming = self.count("pending")
        assert available < needed, "refused although there were pages"
        assert (shortage.free, shortage.evictable) == (self.count("free"), self.count("cached"))
        assert shortage.coming == coming
        expected = Supply.COMING if available + coming >= needed else Supply.NONE
        assert shortage.supply is expected

    # Giving out

    @rule(target=leases, pages=st.integers(1, 6), quick=st.booleans())
    def alloc(self, pages, quick):
        if self.count("free") < pages:
            self.settle(events=True)
        free, evictable = self.at("free"), self.at("cached")
        found: Lease | Shortage
        if quick:
            found = self.pool.try_alloc(pages, rid="r", attempt=2)
        else:
            try:
                found = self.pool.alloc(pages, rid="r", attempt=2)
            except PagesComingError as error:
                found = error.shortage
                assert self.count("pending")
            except OutOfPagesError as error:
                found = error.shortage
        if isinstance(found, Shortage):
            self.check_shortage(found, pages)
            return multiple()
        assert len(found) == pages
        self.fresh(found, list(found.pages), free, evictable)
        return found

    @rule(target=leases, tokens=PROMPTS)
    def alloc_prompt(self, tokens):
        pages = LAYOUT.pages_for(len(tokens))
        hit = 0
        known = set(self.cached.values())
        while 2 * (hit + 1) < len(tokens) and tuple(tokens[: 2 * (hit + 1)]) in known:
            hit += 1
        if hit < pages and self.count("free") < pages - hit:
            self.settle(events=True)
        hit_pages = {
            page for page, chain in self.cached.items() if chain == tuple(tokens[: len(chain)])
        }
        free, evictable = self.at("free"), self.at("cached")
        try:
            lease = self.cache.lease(tokens, rid="p")
        except OutOfPagesError:
            assert len(free) + len(evictable - hit_pages) < pages
            return multiple()
        assert lease.cached_tokens == 2 * hit
        for i, page in enumerate(lease.pages[:hit]):
            assert self.cached[page] == tuple(tokens[: 2 * (i + 1)]), "the wrong page was found"
        self.fresh(lease, list(lease.pages[hit:]), free, evictable - set(lease.pages[:hit]))
        entry = self.entry_of(lease)
        entry.tokens, entry.proven = tokens, lease.cached_tokens
        return lease

    @rule(lease=leases, pages=st.integers(1, 3))
    def extend(self, lease, pages):
        entry = self.entry_of(lease)
        if entry.state == "held":
            if self.count("free") < pages:
                self.settle(events=True)
            free, evictable = self.at("free"), self.at("cached")
            try:
                self.pool.extend(lease, pages)
            except OutOfPagesError as error:
                self.check_shortage(error.shortage, pages)
                return
            taken = list(lease.pages[len(entry.pages) :])
            assert len(taken) == pages
            self.notice_evictions(evictable)
            assert set(taken) <= free | evictable
            entry.pages += taken
            self.write(taken)
        else:
            with pytest.raises(StaleLeaseError):
                self.pool.extend(lease, pages)

    @rule(target=leases, lease=leases, pages=st.integers(1, 4))
    def share(self, lease, pages):
        entry = self.entry_of(lease)
        if entry.state == "held":
            pages = min(pages, len(entry.pages))
            other = self.pool.share(lease, pages, rid="s")
            assert list(other.pages) == entry.pages[:pages]
            twin = Entry(other, entry.pages[:pages], tokens=entry.tokens[: 2 * pages])
            twin.proven = min(entry.proven, 2 * pages)
            self.entries.append(twin)
            return other
        with pytest.raises(StaleLeaseError):
            self.pool.share(lease, 1, rid="s")
        return multiple()

    # Use

    @rule(lease=leases, which=st.integers(0, 1))
    def use(self, lease, which):
        entry = self.entry_of(lease)
        stream = self.streams[which]
        if entry.state == "held":
            lease.use(stream)
            if stream not in entry.streams:
                entry.streams.append(stream)
        else:
            with pytest.raises(StaleLeaseError):
                lease.use(stream)

    @rule(lease=leases, op=st.sampled_from(OPS))
    def open_op(self, lease, op):
        entry = self.entry_of(lease)
        if entry.state != "held":
            with pytest.raises(StaleLeaseError):
                lease.open_op(op)
        elif op in entry.ops:
            with pytest.raises(OpOpenError):
                lease.open_op(op)
        else:
            fence = lease.open_op(op)
            entry.ops.add(op)
            assert fence.query() == all(s.reached == s.recorded for s in entry.streams)

    @rule(lease=leases, op=st.sampled_from(OPS))
    def drain_op(self, lease, op):
        entry = self.entry_of(lease)
        assert lease.drain_op(op) == (op in entry.ops)
        entry.ops.discard(op)
        if entry.state == "pending" and not entry.ops and not entry.events:
            entry.state = "free"

    @rule(which=st.integers(0, 1), skip=st.integers(0, 2))
    def device_gets_on(self, which, skip):
        stream = self.streams[which]
        stream.complete(max(stream.reached, stream.recorded - skip))

    @rule(lease=leases, data=st.data())
    def publish(self, lease, data):
        entry = self.entry_of(lease)
        if entry.state != "held":
            with pytest.raises(StaleLeaseError):
                self.cache.publish_lease(lease, aborted=False)
            return
        aborted = data.draw(st.booleans())
        proven = data.draw(st.integers(entry.proven, max(len(entry.tokens), entry.proven)))
        if entry.tokens:
            lease.mark_proven(proven)
            entry.proven = proven
        new = self.cache.publish_lease(lease, aborted=aborted)
        known = set(self.cached.values())
        expected = {}
        if not aborted:
            for i in range(entry.proven // 2):
                chain = tuple(entry.tokens[: 2 * (i + 1)])
                if chain not in known and entry.pages[i] not in self.cached:
                    expected[entry.pages[i]] = chain
        assert new == len(expected)
        self.cached.update(expected)
        entry.published |= set(expected)

    # Taking back

    @rule(lease=leases, late=st.booleans())
    def release(self, lease, late):
        entry = self.entry_of(lease)
        if entry.state != "held":
            with pytest.raises(DoubleReleaseError) as caught:
                self.pool.release(lease, by="again")
            assert caught.value.second.by == "again"
            return
        events = []
        if late:
            events = [self.streams[0].record_event()]
            entry.events.append((self.streams[0], events[0].position))
        self.pool.release(lease, by="loop", events=events)
        entry.events += [(stream, stream.recorded) for stream in entry.streams]
        entry.state = "pending" if entry.ops or entry.events else "free"

    @rule()
    def release_what_is_not_ours(self):
        foreign = self.other.alloc(1)
        for what in (foreign, None, 3, [0]):
            with pytest.raises(ForeignLeaseError):
                self.pool.release(what)
        self.other.release(foreign)

    @rule()
    def reclaim(self):
        before = self.count("pending")
        self.settle(events=True)
        self.pool.reclaim()
        assert self.pool.stats().pending == self.count("pending") <= before

    @rule(lease=leases)
    def quarantine(self, lease):
        entry = self.entry_of(lease)
        if entry.state in ("held", "pending"):
            self.pool.quarantine(lease, reason="never drained")
            if entry.state == "held":
                entry.events += [(stream, stream.recorded) for stream in entry.streams]
            entry.state = "quarantined"
            for page in set(self.cached) - set(self.cache._pages()):
                chain = self.cached.pop(page)
                roots = {tuple(entry.tokens[: 2 * (i + 1)]) for i in range(len(entry.tokens) // 2)}
                assert page in entry.published or any(chain[: len(r)] == r for r in roots if r)
            assert not entry.published & set(self.cached), "a quarantined lease's page is cached"
        else:
            with pytest.raises(DoubleReleaseError):
                self.pool.quarantine(lease, reason="again")

    @rule(lease=leases)
    def release_quarantine(self, lease):
        entry = self.entry_of(lease)
        if entry.state == "quarantined":
            (record,) = self.pool.release_quarantine(proof="the card was reset", lease=lease)
            assert sorted(record.pages) == sorted(entry.pages)
            entry.ops.clear()
            entry.state = "pending"
            if not entry.events or not self.pool._waiting.get(lease.generation):
                # Its events may have been seen while it was in quarantine.
                assert not entry.open_events()
                entry.state = "free"

    # Memory

    @precondition(lambda self: len(self.slabs) < 4)
    @rule()
    def grow(self):
        self.pool.grow()
        self.slabs.add(min(set(range(5)) - self.slabs))

    @rule(keep=st.integers(0, 3))
    def trim(self, keep):
        self.settle(events=True)
        empty = [
            slab
            for slab in sorted(self.slabs)
            if all(self.place(slab * SLAB + i) == "free" for i in range(SLAB))
        ]
        drop = empty[::-1][: max(0, len(self.slabs) - keep)]
        report = self.pool.trim(keep_pages=keep * SLAB)
        assert report.slabs == len(drop)
        self.slabs -= set(drop)
        for slab in drop:
            with pytest.raises(PageOutOfRangeError):
                self.pool.page_view(slab * SLAB)

    # What must always hold

    @invariant()
    def counts_agree(self):
        stats = self.pool.stats()
        assert stats.total == len(self.slabs) * SLAB
        assert self.count("held") == stats.held
        assert self.count("cached") == stats.cached
        assert self.count("quarantined") == stats.quarantined
        assert self.count("pending") == stats.pending
        assert self.count("free") == stats.free

    @invariant()
    def books_balance(self):
        self.pool.audit().check()

    @invariant()
    def nobody_wrote_to_my_pages(self):
        for page in self.all_pages():
            if self.place(page) != "free":
                assert bool((self.pool.page_view(page) == self.content[page]).all())

    @invariant()
    def leases_know_where_they_are(self):
        for entry in self.entries:
            assert entry.lease.state.value == entry.state
            assert list(entry.lease.pages) == entry.pages

    def teardown(self):
        """At idle nothing is held or pending, and everything comes back (drain_to_zero)."""
        for entry in self.entries:
            if entry.state == "held":
                self.pool.release(entry.lease)
            for op in OPS:
                entry.lease.drain_op(op)
        for stream in self.streams:
            stream.complete()
        if self.pool.quarantined():
            self.pool.release_quarantine(proof="the end of the test")
        self.pool.reclaim()
        assert self.pool.audit().check().idle
        self.cache.clear()
        stats = self.pool.stats()
        assert stats.free == stats.total
        self.pool.trim()
        assert self.pool.stats().total == 0


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    deadline=None,
    # Not "explain", which takes minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


# Mutants: each breaks one rule of the contract (section 8), as somebody could by mistake


class ReleasesTwice(PagePool):
    """single_release: a second release is taken, as engines' allocators do."""

    def _end(self, lease, by, events, ops, *, quarantine):
        if isinstance(lease, Lease) and lease._pool is self and lease._end_record() is not None:
            self._give(lease._pages)
            return
        super()._end(lease, by, events, ops, quarantine=quarantine)


class ForgetsOps(PagePool):
    """no_free_in_flight: a release does not look at open transfers."""

    def _end(self, lease, by, events, ops, *, quarantine):
        if isinstance(lease, Lease) and quarantine is None and lease._more is not None:
            lease._more.ops.clear()
        super()._end(lease, by, events, ops, quarantine=quarantine)


class OneOpIsEnough(PagePool):
    """free_after_all_ops: the first op that drains frees the pages."""

    def _drain_op(self, lease, op):
        dropped = super()._drain_op(lease, op)
        waiting = lease._more.waiting if lease._more is not None else None
        if dropped and waiting is not None and waiting.quarantine is None:
            waiting.ops.clear()
            if waiting.settled:
                with self._lock:
                    self._settle(waiting)
        return dropped


class ForgetsStreams(PagePool):
    """stream_order: a release records no events."""

    def _end(self, lease, by, events, ops, *, quarantine):
        if isinstance(lease, Lease) and lease._more is not None:
            lease._more.streams.clear()
        super()._end(lease, by, events, ops, quarantine=quarantine)


class OneEventIsEnough(PagePool):
    """stream_order: the first stream that is through frees the pages."""

    def _reclaim(self):
        for waiting in list(self._waiting.values()):
            waiting.events_left = min(waiting.events_left, 1)
        return super()._reclaim()


class ForgetsEventsHandedOver(PagePool):
    """stream_order: events that the caller recorded are not waited for."""

    def _end(self, lease, by, events, ops, *, quarantine):
        super()._end(lease, by, (), ops, quarantine=quarantine)


class LosesAPage(PagePool):
    """drain_to_zero: a long lease comes back one page short."""

    def _give(self, pages):
        super()._give(pages[:-1] if len(pages) > 2 else pages)


class SharesWithoutClaim(PagePool):
    """claim_count: a second holder is not counted."""

    def share(self, lease, pages=None, *, rid, attempt=0):
        other = super().share(lease, pages, rid=rid, attempt=attempt)
        for page in other.pages:
            self._claims[page].holders -= 1
        return other


class DropsPendingClaims(PagePool):
    """claim_count: a shared page is free when its last holder leaves, whatever earlier ones wait for."""

    def _end(self, lease, by, events, ops, *, quarantine):
        super()._end(lease, by, events, ops, quarantine=quarantine)
        for page in lease._pages:
            claims = self._claims.get(page)
            if (
                claims is not None
                and claims.pending
                and not claims.holders
                and not claims.quarantined
            ):
                self._change(page, pending=-claims.pending)


class EvictsBeforeClaiming(PrefixCache):
    """claim_count: room is made for the rest of a prompt before its cached start is claimed."""

    def _claim_and_take(self, hit, fresh):
        found = self._pool._take(fresh) if fresh else ()
        if not isinstance(found, Shortage):
            for page in hit:
                if page in self._pool._claims:
                    self._pool._change(page, holders=+1)
        return found


class PublishesUnproven(PrefixCache):
    """no_tainted_publish: whatever has tokens is published."""

    def publish_lease(self, lease, *, aborted):
        if lease._more is not None:
            lease._more.proven_tokens = len(lease._more.token_ids)
        return super().publish_lease(lease, aborted=aborted)


class PublishesAborted(PrefixCache):
    """no_tainted_publish: an abort makes no difference."""

    def publish_lease(self, lease, *, aborted):
        return super().publish_lease(lease, aborted=False)


class KeepsTainted(PrefixCache):
    """no_tainted_publish: a quarantined lease's pages stay in the cache."""

    def _withdraw(self, lease):
        return []


class ForgetsTheStart(PrefixCache):
    """reuse of the wrong content: a page is found by its own tokens, whatever came before."""

    def _keys(self, tokens, salt):
        size = self._pool.layout.page_size
        for start in range(0, len(tokens) - size + 1, size):
            yield next(iter(super()._keys(tokens[start : start + size], salt)))


class DrainEndsQuarantine(PagePool):
    """quarantine ends by proof alone: here a drained op is enough."""

    def _drain_op(self, lease, op):
        dropped = super()._drain_op(lease, op)
        waiting = lease._more.waiting if lease._more is not None else None
        if dropped and waiting is not None and waiting.quarantine is not None:
            self.release_quarantine(proof="op drained", lease=lease)
        return dropped


class TrimsUnderUse(PagePool):
    """no_free_in_flight: a slab counts as empty although pages of it are pending."""

    def _detach_empty_slabs(self, keep_pages, evict):
        for waiting in list(self._waiting.values()):
            waiting.ops.clear()
            waiting.events_left = 0
            self._settle(waiting)
        return super()._detach_empty_slabs(keep_pages, evict)


class NothingIsComing(PagePool):
    """a shortage of pages that are only waiting is told as one that needs preemption."""

    def _shortage(self, pages):
        return attrs.evolve(super()._shortage(pages), coming=0)


class PostsWithoutWaiting(PagePool):
    """stream_order: the fence before a transfer stands behind nothing."""

    def _fence(self, streams):
        return super()._fence([])


class TakesAnything(PagePool):
    """a foreign lease is taken back."""

    def _check_mine(self, lease):
        if not isinstance(lease, Lease) or lease._pool is not self:
            lease = self._new_lease(self._take(1), "whoever", 1)


# Scenarios: what random order reaches too rarely, step by step


def scenario_every_op_must_drain(make_pool, make_cache):
    pool = make_pool(LAYOUT, SLAB)
    lease = pool.alloc(2)
    lease.open_op("kv")
    lease.open_op("chunk")
    pool.release(lease)
    assert lease.state.value == "pending"
    assert lease.drain_op("chunk")
    assert lease.state.value == "pending"
    assert lease.drain_op("kv")
    assert lease.state.value == "free"


def scenario_the_fence_stands_behind_the_kernels(make_pool, make_cache):
    pool = make_pool(LAYOUT, SLAB)
    compute, side = FakeStream("compute"), FakeStream("side")
    lease = pool.alloc(1)
    lease.use(compute)
    fence = lease.open_op(streams=[side])
    assert not fence.query()
    compute.complete()
    assert not fence.query()
    side.complete()
    assert fence.query()
    fence.synchronize()


def scenario_a_claim_comes_before_eviction(make_pool, make_cache):
    pool = make_pool(LAYOUT, SLAB)
    cache = make_cache(pool)
    first = cache.lease([1, 1, 1], rid="first")
    first.mark_proven(3)
    assert cache.publish_lease(first, aborted=False) == 1
    page = first.pages[0]
    pool.page_view(page).fill_(7)
    pool.release(first)
    others = pool.alloc(2)
    again = cache.lease([1, 1, 1], rid="again")
    assert again.cached_tokens == 2
    assert again.pages[0] == page
    assert again.pages[1] not in (page, *others.pages)
    pool.release(again)
    # No page is free and one is cached: the prompt needs that one as its start and another besides, so
    # it is refused, and the cache keeps its page.
    pool.alloc(1)
    with pytest.raises(OutOfPagesError):
        cache.lease([1, 1, 1], rid="again")
    assert cache.match([1, 1, 1]) == 2
    pool.audit().check()


def scenario_quarantine_takes_back_what_was_published(make_pool, make_cache):
    pool = make_pool(LAYOUT, SLAB)
    cache = make_cache(pool)
    lease = cache.lease([1, 1, 1, 1, 1], rid="r")
    lease.mark_proven(5)
    assert cache.publish_lease(lease, aborted=False) == 2
    pool.quarantine(lease, reason="peer is gone")
    assert cache.match([1, 1, 1, 1, 1]) == 0
    assert pool.audit().check().stats.quarantined == 3


def scenario_aborted_pages_are_not_published(make_pool, make_cache):
    pool = make_pool(LAYOUT, SLAB)
    cache = make_cache(pool)
    lease = cache.lease([1, 1, 1], rid="r")
    assert cache.publish_lease(lease, aborted=False) == 0, "nothing is proven yet"
    lease.mark_proven(3)
    assert cache.publish_lease(lease, aborted=True) == 0
    assert cache.publish_lease(lease, aborted=False) == 1


def scenario_only_proof_ends_quarantine(make_pool, make_cache):
    pool = make_pool(LAYOUT, SLAB)
    lease = pool.alloc(2, rid="r")
    lease.open_op()
    pool.quarantine(lease, reason="drain deadline")
    lease.drain_op()
    assert pool.stats().quarantined == 2
    pool.release_quarantine(proof="card reset", rid="r")
    assert pool.audit().check().idle


SCENARIOS = [
    scenario_every_op_must_drain,
    scenario_the_fence_stands_behind_the_kernels,
    scenario_a_claim_comes_before_eviction,
    scenario_quarantine_takes_back_what_was_published,
    scenario_aborted_pages_are_not_published,
    scenario_only_proof_ends_quarantine,
]

# Which scenario catches the mutant; None: random order does.
MUTANTS = {
    ReleasesTwice: None,
    ForgetsOps: scenario_every_op_must_drain,
    OneOpIsEnough: scenario_every_op_must_drain,
    ForgetsStreams: None,
    OneEventIsEnough: None,
    ForgetsEventsHandedOver: None,
    LosesAPage: None,
    SharesWithoutClaim: None,
    DropsPendingClaims: None,
    EvictsBeforeClaiming: scenario_a_claim_comes_before_eviction,
    PublishesUnproven: scenario_aborted_pages_are_not_published,
    PublishesAborted: scenario_aborted_pages_are_not_published,
    KeepsTainted: scenario_quarantine_takes_back_what_was_published,
    ForgetsTheStart: None,
    DrainEndsQuarantine: scenario_only_proof_ends_quarantine,
    TrimsUnderUse: None,
    NothingIsComing: None,
    PostsWithoutWaiting: scenario_the_fence_stands_behind_the_kernels,
    TakesAnything: None,
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_pool_passes(scenario):
    scenario(PagePool, PrefixCache)


def run_what_catches(mutant) -> None:
    of_cache = issubclass(mutant, PrefixCache)
    if scenario := MUTANTS[mutant]:
        scenario(PagePool if of_cache else mutant, mutant if of_cache else PrefixCache)
        return
    part = "make_cache" if of_cache else "make_pool"
    run_state_machine_as_test(
        type(f"Machine{mutant.__name__}", (PoolMachine,), {part: mutant}),
        settings=settings(
            max_examples=600,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            deadline=None,
            print_blob=False,
        ),
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_mutant_is_caught(mutant):
    # The same scenarios and the same machine pass with the real pool (test_the_pool_passes, TestPool).
    # A broken pool may break in any way, also by not raising where the machine waits for an error.
    with pytest.raises((Exception, pytest.fail.Exception)):
        run_what_catches(mutant)
