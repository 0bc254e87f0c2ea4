"""The pool call by call: what it gives, and what it says when it refuses."""

from __future__ import annotations

import copy
import itertools
import pickle
import queue
import threading
import time

import attrs
import pytest
import torch

import kvpool
import kvpool.slabs
from kvpool import (
    AuditError,
    DeviceMemoryError,
    DoubleReleaseError,
    FakeStream,
    ForeignLeaseError,
    KVLayout,
    LateWriteError,
    LayoutError,
    LeaseState,
    NotProvenError,
    OutOfPagesError,
    PageOutOfRangeError,
    PagePool,
    PagesComingError,
    PageTable,
    PoolPort,
    PrefixCache,
    QuarantineError,
    StaleLeaseError,
    TokenRangeError,
)

PAIRS = KVLayout(layers=3, kv_heads=2, head_dim=4, page_size=4, dtype=torch.float32)
LATENT = KVLayout.latent(layers=3, latent_dim=8, page_size=4, dtype=torch.bfloat16)


@attrs.frozen
class Hold:
    """The shape of lifecycle.ports.Hold."""

    rid: str
    incarnation: int
    attempt: int
    pages: object


# Layout and views


def test_a_layout_knows_its_bytes_before_anything_is_allocated():
    assert PAIRS.bytes_per_token == 3 * 2 * 2 * 4 * 4
    assert PAIRS.total_bytes(10) == 10 * 4 * PAIRS.bytes_per_token
    assert LATENT.bytes_per_token == 3 * 8 * 2
    assert PAIRS.pages_for(0) == 0
    assert PAIRS.pages_for(5) == 2
    pool = PagePool(PAIRS, 8)
    assert pool.slabs[0].buffer.nbytes == PAIRS.total_bytes(8)


@pytest.mark.parametrize("name", ["layers", "kv_heads", "head_dim", "page_size"])
@pytest.mark.parametrize("value", [0, -1, 1.0, True])
def test_a_layout_without_sense_is_refused(name, value):
    with pytest.raises(LayoutError, match=name):
        attrs.evolve(PAIRS, **{name: value})
    with pytest.raises(LayoutError, match="dtype"):
        attrs.evolve(PAIRS, dtype="float32")


@pytest.mark.parametrize(("pages", "slab_pages"), [(0, None), (8, 3), (8, 0), (4, 8)])
def test_slabs_must_divide_the_pool(pages, slab_pages):
    with pytest.raises(LayoutError):
        PagePool(PAIRS, pages, slab_pages=slab_pages)


@pytest.mark.parametrize("layout", [PAIRS, LATENT])
def test_views_share_the_memory_of_the_pages(layout):
    pool = PagePool(layout, 12, slab_pages=4)
    first = pool.alloc(2)
    lease = pool.alloc(7)
    first.release()
    rest = (2, 4) if layout is PAIRS else (8,)
    head = (3, 2) if layout is PAIRS else (3,)
    assert lease.page_view(0).shape == (*head, 4, *rest)
    views = lease.token_views(3, 26)
    axis = len(head)
    assert sum(view.shape[axis] for view in views) == 23
    tokens = torch.cat(views, dim=axis)
    for view in views:
        view.fill_(0)
    lease.page_view(0).narrow(axis, 3, 1).fill_(5)
    lease.page_view(6).narrow(axis, 1, 1).fill_(6)
    tokens = torch.cat(lease.token_views(3, 26), dim=axis)
    assert bool((tokens.select(axis, 0) == 5).all())
    assert bool((tokens.select(axis, 22) == 6).all())
    assert bool((tokens.narrow(axis, 1, 21) == 0).all())
    assert lease.token_views(5, 5) == []


def test_keys_and_values_are_the_buffers_that_kernels_take():
    pool = PagePool(PAIRS, 4)
    (slab,) = pool.slabs
    lease = pool.alloc(1)
    lease.page_view(0)[1, 0].fill_(1)
    lease.page_view(0)[1, 1].fill_(2)
    page = lease.pages[0]
    assert slab.keys(1).shape == slab.values(1).shape == (4, 4, 2, 4)
    assert bool((slab.keys(1)[page] == 1).all())
    assert bool((slab.values(1)[page] == 2).all())
    latent = PagePool(LATENT, 4).slabs[0]
    assert latent.keys(2).data_ptr() == latent.values(2).data_ptr()


def test_ids_and_slots_as_tensors():
    pool = PagePool(PAIRS, 8)
    a, b, c = pool.alloc(1), pool.alloc(2), pool.alloc(1)
    a.release()
    c.release()
    scattered = pool.alloc(2)
    b.release()
    adjacent = pool.alloc(2)
    assert adjacent.pages[1] - adjacent.pages[0] == 1 != scattered.pages[1] - scattered.pages[0]
    for lease, dtype in itertools.product((scattered, adjacent), (torch.int32, torch.int64)):
        assert lease.page_ids(dtype).tolist() == list(lease.pages)
        assert lease.page_ids(dtype).dtype == lease.token_slots(dtype=dtype).dtype == dtype
        expected = [page * 4 + i for page in lease.pages for i in range(4)]
        assert lease.token_slots(3, 7, dtype=dtype).tolist() == expected[3:7]
        assert lease.token_slots(dtype=dtype).tolist() == expected


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 9), (9, None)])
def test_token_ranges_outside_the_lease_are_refused(start, stop):
    lease = PagePool(PAIRS, 4).alloc(2)
    for get in (lease.token_views, lease.token_slots):
        with pytest.raises(TokenRangeError, match="8 tokens"):
            get(start, stop)
    with pytest.raises(TokenRangeError):
        lease.page_view(2)


@pytest.mark.parametrize("page", [-1, 8, 1000])
def test_page_ids_outside_the_pool_are_refused(page):
    with pytest.raises(PageOutOfRangeError, match="ids run from 0 to 7"):
        PagePool(PAIRS, 8).page_view(page)


def test_the_device_must_have_the_memory(monkeypatch):
    monkeypatch.setattr(kvpool.slabs, "device_free_bytes", lambda device: 1000)
    with pytest.raises(
        DeviceMemoryError, match="cpu has 1,000 bytes free, enough for 1 pages"
    ) as caught:
        PagePool(PAIRS, 100)
    assert (caught.value.needed, caught.value.free) == (PAIRS.total_bytes(100), 1000)


def test_growing_beyond_the_device_changes_nothing(monkeypatch):
    pool = PagePool(PAIRS, 8, slab_pages=4)
    monkeypatch.setattr(kvpool.slabs, "device_free_bytes", lambda device: 1000)
    with pytest.raises(DeviceMemoryError, match="growing the pool"):
        pool.grow(2)
    assert pool.stats().total == 8


# Releases, and what errors say


def test_a_double_release_names_both_and_changes_nothing():
    times = iter([1.0, 2.0, 3.0, 4.0])
    pool = PagePool(PAIRS, 8, debug=True, clock=lambda: next(times))
    lease = pool.alloc(2, rid="r1", attempt=3)
    lease.release(by="grammar error")
    before = pool.stats()
    with pytest.raises(DoubleReleaseError) as caught:
        lease.release(by="terminal poll")
    text = str(caught.value)
    for part in (
        "'r1' attempt 3",
        "grammar error",
        "terminal poll",
        "time 2.0",
        "time 3.0",
        __file__,
    ):
        assert part in text
    assert caught.value.ended.by == "grammar error"
    assert caught.value.second.by == "terminal poll"
    assert pool.stats() == before


def test_a_double_release_is_seen_after_the_pages_have_a_new_owner():
    pool = PagePool(PAIRS, 2)
    old = pool.alloc(2, rid="old")
    old.release()
    new = pool.alloc(2, rid="new")
    assert new.pages == old.pages
    with pytest.raises(DoubleReleaseError, match="'old'"):
        pool.release(old)
    assert new.state is LeaseState.HELD
    assert pool.audit().check().stats.held == 2


def test_a_stale_lease_is_of_no_use():
    pool = PagePool(PAIRS, 8)
    table = PageTable(pool, 2, 4)
    lease = pool.alloc(1, rid="r1")
    lease.release(by="loop")
    for use in (
        lease.page_ids,
        lease.token_slots,
        lease.token_views,
        lambda: lease.page_view(0),
        lambda: lease.use(FakeStream()),
        lease.open_op,
        lambda: lease.extend(1),
        lambda: lease.share(rid="r2"),
        lambda: lease.mark_proven(1),
        lambda: table.add(lease),
    ):
        with pytest.raises(StaleLeaseError, match="released by loop"):
            use()
    assert not lease.drain_op("kv")
    assert pool.stats().late_drains == 1


def test_a_lease_has_one_handle():
    lease = PagePool(PAIRS, 8).alloc(1)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            make(lease)


def test_foreign_leases_are_refused_even_with_the_same_generation():
    ours, theirs = PagePool(PAIRS, 8), PagePool(PAIRS, 8)
    mine, foreign = ours.alloc(2), theirs.alloc(2)
    assert mine.generation == foreign.generation
    for call in (
        ours.release,
        lambda lease: ours.extend(lease, 1),
        lambda lease: ours.quarantine(lease, reason="x"),
    ):
        with pytest.raises(ForeignLeaseError, match="not to this pool"):
            call(foreign)
    assert mine.state is foreign.state is LeaseState.HELD
    mine.release()


@pytest.mark.parametrize("pages", [0, -1])
def test_asking_for_no_pages_is_an_error(pages):
    pool = PagePool(PAIRS, 8)
    for ask in (pool.alloc, pool.try_alloc, lambda n: pool.extend(pool.alloc(1), n)):
        with pytest.raises(ValueError, match="at least 1"):
            ask(pages)
    with pytest.raises(TypeError):
        pool.alloc(1.5)
    assert len(pool.alloc(torch.tensor(2))) == 2
    pool.audit().check()


def test_coming_is_told_apart_from_none():
    pool = PagePool(PAIRS, 8)
    stream = FakeStream()
    running = pool.alloc(4, rid="running")
    ending = pool.alloc(4, rid="ending")
    ending.use(stream)
    ending.release()
    with pytest.raises(PagesComingError, match="do not preempt") as caught:
        pool.alloc(3)
    assert caught.value.shortage.coming == 4
    with pytest.raises(OutOfPagesError, match=r"preempt or refuse.*'running'") as caught:
        pool.alloc(5)
    assert not isinstance(caught.value, PagesComingError)
    stream.complete()
    assert len(pool.alloc(3)) == 3  # alloc reclaims by itself
    assert running.state is LeaseState.HELD


def test_a_device_that_fails_at_the_release_leaves_the_lease_as_it_was():
    class Broken(FakeStream):
        def record_event(self):
            message = "device lost"
            raise RuntimeError(message)

    pool = PagePool(PAIRS, 8)
    lease = pool.alloc(2)
    lease.use(Broken())
    with pytest.raises(RuntimeError, match="device lost"):
        lease.release()
    assert lease.state is LeaseState.HELD
    pool.audit().check()


def test_an_event_that_cannot_be_asked_quarantines_its_pages_alone():
    class Lost:
        def query(self):
            message = "sticky error"
            raise RuntimeError(message)

        def synchronize(self): ...

    pool = PagePool(PAIRS, 8)
    stream = FakeStream()
    bad, good = pool.alloc(2, rid="bad"), pool.alloc(2, rid="good")
    good.use(stream)
    bad.release(events=[Lost()])
    good.release()
    stream.complete()
    pool.reclaim()
    assert (good.state, bad.state) == (LeaseState.FREE, LeaseState.QUARANTINED)
    assert "sticky error" in pool.quarantined()[0].reason
    pool.release_quarantine(proof="new process", lease=bad)
    assert pool.audit().check().idle


# Quarantine


def test_quarantine_needs_proof_and_names():
    pool = PagePool(PAIRS, 8)
    lease = pool.alloc(3, rid="r9", attempt=2)
    lease.open_op("kv")
    lease.quarantine(reason="drain deadline", by="watchdog")
    (record,) = pool.quarantined()
    assert (record.rid, record.attempt, record.ops, len(record.pages)) == ("r9", 2, ("kv",), 3)
    with pytest.raises(QuarantineError, match="needs a proof"):
        pool.release_quarantine(proof=" ")
    with pytest.raises(QuarantineError, match=r"'r1' is not in quarantine.*r9"):
        pool.release_quarantine(proof="reset", rid="r1")
    with pytest.raises(DoubleReleaseError, match="quarantined by watchdog"):
        lease.release()
    assert pool.release_quarantine(proof="reset", rid="r9") == (record,)
    assert pool.audit().check().idle


# The ports of the core


def test_the_port_releases_once_and_checks_whose_pages_they_are():
    pool = PagePool(PAIRS, 8)
    port = PoolPort(pool)
    lease = pool.alloc(2, rid="r1", attempt=2)
    hold = Hold("r1", 1, 2, lease)
    for wrong in (Hold("r2", 1, 2, lease), Hold("r1", 1, 0, lease), Hold("r1", 1, 2, [0, 1])):
        with pytest.raises(ForeignLeaseError):
            port.release(wrong)
    assert port.holds(hold)
    port.release(hold)
    assert not port.holds(hold)
    with pytest.raises(DoubleReleaseError, match="incarnation 1 attempt 2"):
        port.release(hold)
    assert pool.stats().free == 8


def test_the_port_quarantines():
    pool = PagePool(PAIRS, 8)
    lease = pool.alloc(2, rid="r1")
    lease.open_op("kv")
    PoolPort(pool).quarantine(Hold("r1", 1, 0, lease))
    assert "open ops: kv" in pool.quarantined()[0].reason


def test_the_cache_port_publishes_proven_pages_only():
    pool = PagePool(PAIRS, 8)
    cache = PrefixCache(pool)
    lease = cache.lease(range(12), rid="r1")
    lease.mark_proven(9)
    cache.publish(Hold("r1", 1, 0, lease))
    assert cache.stats().published == 2
    with pytest.raises(ForeignLeaseError):
        cache.publish(Hold("r1", 1, 0, [1]))
    lease.release()
    assert (pool.stats().cached, pool.stats().free) == (2, 6)
    with pytest.raises(StaleLeaseError):
        cache.publish(Hold("r1", 1, 0, lease))


# The prefix cache


def test_salt_keeps_prefixes_apart():
    cache = PrefixCache(PagePool(PAIRS, 8))
    lease = cache.lease(range(9), rid="r1", salt=b"adapter 1")
    lease.mark_proven(8)
    assert cache.publish_lease(lease, aborted=False) == 2
    assert cache.match(range(9), salt=b"adapter 1") == 8
    assert cache.match(range(9)) == 0
    assert cache.match(range(8), salt=b"adapter 1") == 4  # one token is always left to compute


def test_the_oldest_goes_first_and_chains_go_from_their_ends():
    pool = PagePool(PAIRS, 6)
    cache = PrefixCache(pool)
    for start in (0, 100):
        lease = cache.lease(range(start, start + 12), rid=str(start))
        lease.mark_proven(12)
        cache.publish_lease(lease, aborted=False)
        lease.release()
    assert pool.stats().cached == 6
    pool.alloc(2)
    assert cache.match(range(13)) == 4
    assert cache.match(range(100, 113)) == 12
    assert cache.stats().dropped == 2


def test_proven_tokens_only_grow_and_fit():
    lease = PrefixCache(PagePool(PAIRS, 8)).lease([1, 2, 3, 4, 5], rid="r1")
    lease.mark_proven(4)
    for tokens, ids in ((3, None), (9, None), (5, [1, 2]), (5, [9, 2, 3, 4, 5])):
        with pytest.raises(NotProvenError):
            lease.mark_proven(tokens, ids)
    lease.mark_proven(6, [1, 2, 3, 4, 5, 6])
    lease.taint("late write by the peer")
    assert lease.proven_tokens == 0
    with pytest.raises(NotProvenError, match="late write by the peer"):
        lease.mark_proven(6)


def test_a_pool_has_one_cache():
    pool = PagePool(PAIRS, 8)
    PrefixCache(pool)
    with pytest.raises(ValueError, match="one prefix cache"):
        PrefixCache(pool)
    with pytest.raises(ValueError, match="publish_aborted"):
        PrefixCache(PagePool(PAIRS, 8), publish_aborted="always")


# Memory


def resident_bytes() -> int:
    free = kvpool.slabs._observed_free(torch.device("cpu"))
    assert free is not None
    return -free


def test_trim_gives_memory_back_and_grow_takes_it_again():
    layout = KVLayout(layers=4, kv_heads=8, head_dim=64, page_size=16, dtype=torch.float32)
    pool = PagePool(layout, 64, slab_pages=16)
    lease = pool.alloc(64)
    for view in lease.token_views():
        view.fill_(1)
    del view
    held = resident_bytes()
    lease.release()
    keep = pool.alloc(1)
    report = pool.trim()
    assert (report.slabs, report.pages) == (3, 48)
    # 12 MiB were dropped; other threads may touch a little in between.
    assert held - resident_bytes() > report.nbytes * 0.9
    assert report.observed_bytes > report.nbytes * 0.9
    with pytest.raises(PageOutOfRangeError, match="trimmed"):
        pool.page_view(next(p for p in range(64) if p // 16 != keep.pages[0] // 16))
    pool.grow(3)
    assert pool.stats().total == 64
    assert len(pool.alloc(63)) == 63
    pool.audit().check()


def test_a_trimmed_slab_has_no_memory_even_if_a_stale_lease_knows_it():
    pool = PagePool(PAIRS, 4)
    slab = pool.slabs[0]
    lease = pool.alloc(4)
    lease.release()
    pool.trim()
    for use in (lambda: slab.buffer, lambda: slab.tokens, lambda: slab.page_view(0)):
        with pytest.raises(PageOutOfRangeError, match="no memory any more"):
            use()
    with pytest.raises(DoubleReleaseError):
        lease.release()


@pytest.mark.parametrize("state", ["held", "pending", "quarantined", "cached"])
def test_a_slab_with_a_page_in_use_is_never_dropped(state):
    pool = PagePool(PAIRS, 4)
    cache = PrefixCache(pool)
    lease = cache.lease(range(5), rid="r1")
    lease.mark_proven(5)
    if state == "pending":
        lease.release(ops=["kv"])
    elif state == "quarantined":
        lease.quarantine(reason="no proof")
    elif state == "cached":
        cache.publish_lease(lease, aborted=False)
        lease.release()
    assert getattr(pool.stats(), state) > 0
    assert pool.trim().slabs == 0
    if state == "cached":
        assert pool.trim(evict=True).slabs == 1


def test_allocations_go_to_the_fullest_slab():
    pool = PagePool(PAIRS, 12, slab_pages=4)
    leases = [pool.alloc(1) for _ in range(12)]
    for lease in leases:
        if lease.pages[0] // 4 == 0 or lease.pages[0] % 4 == 0:
            lease.release()
    pool.reclaim()
    assert {page // 4 for page in (pool.alloc(1).pages + pool.alloc(1).pages)} == {1, 2}
    assert pool.trim().slabs == 1


def test_the_listener_hears_of_slabs_and_can_keep_one():
    class Listener:
        def __init__(self):
            self.heard = []
            self.stubborn = False

        def slab_added(self, slab):
            self.heard.append(("added", slab.index))

        def slab_dropping(self, slab):
            if self.stubborn:
                message = "still registered"
                raise RuntimeError(message)
            self.heard.append(("dropping", slab.index))

    listener = Listener()
    pool = PagePool(PAIRS, 8, slab_pages=4, listener=listener)
    pool.trim(keep_pages=4)
    assert listener.heard == [("added", 0), ("added", 1), ("dropping", 1)]
    listener.stubborn = True
    with pytest.raises(RuntimeError, match="still registered"):
        pool.trim()
    assert pool.stats().total == 4
    assert len(pool.alloc(4)) == 4
    with pytest.raises(ValueError, match="grow by 0"):
        pool.grow(0)


# Debug mode


def test_a_late_write_is_caught_and_named():
    pool = PagePool(PAIRS, 4, debug=True)
    lease = pool.alloc(2, rid="culprit", attempt=7)
    page = lease.pages[1]
    late = lease.page_view(1)
    lease.open_op("kv")
    lease.drain_op("kv")
    lease.release(by="loop")
    late[0, 0, 0, 0, 0] = 3.0
    with pytest.raises(
        LateWriteError, match=r"'culprit' attempt 7.*released by loop.*'kv'"
    ) as caught:
        pool.alloc(4)
    assert caught.value.pages == (page,)
    assert pool.audit().check().stats.quarantined == 1
    assert page not in pool.alloc(3).pages


def test_free_pages_read_as_not_a_number_in_debug_mode():
    pool = PagePool(LATENT, 2, debug=True)
    assert bool(torch.isnan(pool.page_view(0)).all())
    lease = pool.alloc(2)
    pool.page_view(0).fill_(1)
    lease.release()
    assert bool(torch.isnan(pool.page_view(0)).all())
    pool.page_view(1).fill_(1)
    with pytest.raises(LateWriteError):
        pool.trim()
    pool.audit().check()


def test_a_late_write_found_by_a_prompt_leaves_no_claim_behind():
    pool = PagePool(PAIRS, 4, debug=True)
    cache = PrefixCache(pool)
    lease = cache.lease(range(9), rid="r1")
    lease.mark_proven(9)
    assert cache.publish_lease(lease, aborted=False) == 2
    lease.release()
    for page in set(range(4)) - set(cache._pages()):
        pool.page_view(page).fill_(1)
    with pytest.raises(LateWriteError):
        cache.lease(range(9), rid="r2")
    stats = pool.audit().check().stats
    assert (stats.held, stats.cached, stats.quarantined) == (0, 2, 1)


# Audit


def lose(pool, lease):
    pool._live.remove(lease)


def free_twice(pool, lease):
    pool.slabs[0].chunks.append(lease._pages)


def miscount(pool, lease):
    pool._pending_pages += 1


def unlist(pool, lease):
    pool._evictable.clear()


def overclaim(pool, lease):
    next(iter(pool._claims.values())).holders += 1


def stray(pool, lease):
    pool.slabs[0].chunks.append((99,))


@pytest.mark.parametrize("harm", [lose, free_twice, miscount, unlist, overclaim, stray])
def test_the_audit_sees_what_is_wrong(harm):
    pool = PagePool(PAIRS, 8)
    cache = PrefixCache(pool)
    published = cache.lease(range(8), rid="r0")
    published.mark_proven(8)
    cache.publish_lease(published, aborted=False)
    published.release()
    lease = pool.alloc(2, rid="r1")
    assert pool.audit().ok
    harm(pool, lease)
    audit = pool.audit()
    assert not audit.ok
    assert "problem" in str(audit)
    with pytest.raises(AuditError, match="do not balance"):
        audit.check()


def test_the_audit_lists_holders_by_age():
    pool = PagePool(PAIRS, 16)
    old, young, gone = (
        pool.alloc(n, rid=rid) for n, rid in ((1, "old"), (2, "young"), (3, "gone"))
    )
    old.open_op("kv")
    gone.release(ops=["store"])
    audit = pool.audit()
    assert [holder.rid for holder in audit.holders] == ["old", "young", "gone"]
    assert [holder.detail for holder in audit.holders] == ["ops open: kv", "", "op store"]
    assert audit.holders[0].age > audit.holders[1].age
    assert not audit.idle
    assert young.state is LeaseState.HELD


# Page table


def test_the_page_table_sends_changed_rows_once():
    pool = PagePool(PAIRS, 16)
    table = PageTable(pool, max_requests=3, max_pages=4, fill=-1)
    a, b = pool.alloc(2), pool.alloc(1)
    row_a, row_b = table.add(a), table.add(b)
    assert table.commit() == 2
    assert table.commit() == 0
    pool.extend(a, 1)
    table.update(row_a)
    b.release()
    table.remove(row_b)
    assert table.commit() == 2
    assert table.table[row_a].tolist() == [*a.pages, -1]
    assert table.table[row_b].tolist() == [-1] * 4
    assert table.lengths.tolist()[row_a] == 3
    assert table.lengths.tolist()[row_b] == 0


def test_the_page_table_does_not_go_on_with_released_pages():
    pool = PagePool(PAIRS, 16)
    table = PageTable(pool, max_requests=1, max_pages=2)
    lease = pool.alloc(1)
    row = table.add(lease)
    lease.release()
    with pytest.raises(StaleLeaseError, match="row 0"):
        table.commit()
    table.remove(row)
    assert table.commit() == 1
    with pytest.raises(TokenRangeError, match="does not fit"):
        table.add(pool.alloc(3))
    with pytest.raises(ForeignLeaseError):
        table.add(PagePool(PAIRS, 4).alloc(1))
    table.add(pool.alloc(1))
    with pytest.raises(TokenRangeError, match="in use"):
        table.add(pool.alloc(1))
    with pytest.raises(TokenRangeError, match="belongs to nobody"):
        table.remove(5)


# Threads


def test_threads_release_while_the_loop_allocates():
    """Two threads race to release each lease: one wins, and no page is ever with two owners."""
    pool = PagePool(PAIRS, 64, slab_pages=16)
    inboxes: list[queue.SimpleQueue] = [queue.SimpleQueue(), queue.SimpleQueue()]
    wins = [0, 0]
    faults: list[BaseException] = []

    def releaser(me: int) -> None:
        try:
            while (lease := inboxes[me].get()) is not None:
                lease.drain_op("kv")
                # The pages are ours until the release: nobody else may have written to them.
                stamp = lease.generation
                if me == 0 and not all(int(v.min()) == int(v.max()) == stamp for v in views[stamp]):
                    faults.append(AssertionError(f"{lease!r} was written to by another owner"))
                gate[stamp].wait()
                try:
                    pool.release(lease, by=f"thread {me}")
                    wins[me] += 1
                except DoubleReleaseError:
                    pass
        except BaseException as error:
            faults.append(error)

    views: dict[int, list[torch.Tensor]] = {}
    gate: dict[int, threading.Barrier] = {}
    threads = [threading.Thread(target=releaser, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    made = 0
    while made < 400 and not faults:
        lease = pool.try_alloc(1 + made % 7, rid="r")
        if not lease:
            time.sleep(0.0001)
            continue
        made += 1
        if made % 3 == 0:
            lease.open_op("kv")
        views[lease.generation] = lease.token_views()
        for view in views[lease.generation]:
            view.fill_(lease.generation)
        # Both look at the pages, then both release at the same moment.
        gate[lease.generation] = threading.Barrier(2, timeout=30)
        for inbox in inboxes:
            inbox.put(lease)
        if made % 50 == 0:
            pool.audit().check()
    for inbox in inboxes:
        inbox.put(None)
    for thread in threads:
        thread.join()
    assert not faults
    assert sum(wins) == made
    assert pool.audit().check().idle


def test_who_finds_the_lock_taken_waits_for_it():
    pool = PagePool(PAIRS, 8)
    pool._lock.token.pop()
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(pool.alloc(1)))
    thread.start()
    thread.join(0.02)
    assert not got
    pool._lock.token.append(None)
    thread.join(10)
    assert len(got) == 1


def test_the_ports_have_the_shape_that_the_driver_asks_for():
    ports = pytest.importorskip("lifecycle.ports")
    pool = PagePool(PAIRS, 8)
    assert isinstance(PoolPort(pool), ports.KVPool)
    assert isinstance(PrefixCache(pool), ports.PrefixCache)
    lease = pool.alloc(2, rid="r1")
    PoolPort(pool).release(ports.Hold("r1", 1, 0, lease))
    assert pool.stats().free == 8
