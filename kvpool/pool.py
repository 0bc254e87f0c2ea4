"""The pool: gives pages out, takes them back once, and only when nothing can touch them any more.

How it works, in the order of what happens to a page
----------------------------------------------------

**Free.** Each slab keeps a stack of its free pages, in chunks: a fresh slab is one ``range``, and a
release puts the pages of its lease on the stack as one chunk. An allocation pops a chunk, and cuts
it if it is too large, or joins several if they are too small. So neither the size of the pool nor,
mostly, the number of pages matters; a join costs as much as there were releases that made the
chunks small. Pages are taken from the fullest slab, so that other slabs run empty and
:meth:`PagePool.trim` finds them. Which slab is fullest is looked up when the current one is used
up, and once a step by :meth:`PagePool.reclaim`.

**Held.** An allocation makes a :class:`~kvpool.lease.Lease` and enters it in the table of live
leases. That table decides who may release: the handle found there, once. A second release finds
nothing and is refused.

**Shared.** A page with more than one holder has an entry in the table of claims
(:mod:`kvpool.claims`).

**Pending.** A release that has streams or ops to wait for leaves a
:class:`~kvpool.pending.Waiting`; reaching the last event (seen by :meth:`PagePool.reclaim`) or
draining the last op frees its pages.

**Cached.** Pages that only the prefix cache has a claim on stand in the evictable list, oldest
first.

**Quarantined.** Pages whose drain was never proven stay out until somebody brings proof.

At any moment every page is in exactly one of these places; :meth:`PagePool.audit` proves it by
looking.

Threads: one lock for the books (:mod:`kvpool.lock`), held for less than a microsecond by the common
calls. No call waits for a device while it holds the lock, except in debug mode. Do not release from
a finalizer (``__del__``): the garbage collector may run it while this thread is inside the pool.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

import attrs
import torch

from kvpool.audit import Audit, take_audit
from kvpool.claims import PageClaims, PageClass
from kvpool.debug import DebugLog, call_site
from kvpool.errors import (
    DoubleReleaseError,
    ForeignLeaseError,
    LateWriteError,
    LayoutError,
    OutOfPagesError,
    PageOutOfRangeError,
    PagesComingError,
    QuarantineError,
)
from kvpool.layout import KVLayout
from kvpool.lease import EndRecord, Lease, Shortage, Supply
from kvpool.lock import TokenLock
from kvpool.pending import EventQueue, Waiting
from kvpool.slabs import (
    Pages,
    Slab,
    SlabListener,
    TrimReport,
    drop_slabs,
    join_pages,
    make_slab,
    require_memory,
)
from kvpool.streams import EventLike, Fence, StreamLike

if TYPE_CHECKING:
    from kvpool.prefix import PrefixCache

_NEVER = sys.maxsize


def _pop_pages(chunks: list[Pages], pages: int) -> Pages:
    """Exactly ``pages`` pages from the stack ``chunks``, which has as many.

    Chunks are joined in ascending order, so that adjacent ones become one range again. What is too
    much goes back on the stack.
    """
    pages = operator.index(pages)  # raises before anything is taken
    parts: list[Pages] = []
    count = 0
    while count < pages:
        part = chunks.pop()
        parts.append(part)
        count += len(part)
    if count > pages:
        last = parts[-1]
        chunks.append(last[: count - pages])
        parts[-1] = last[count - pages :]
    if len(parts) > 1:
        parts.sort(key=_first_page)
    return join_pages(parts)


def _first_page(pages: Pages) -> int:
    return pages[0]


@attrs.frozen
class PoolStats:
    """Counts of pages, taken at one moment: ``free + held + pending + cached + quarantined ==
    total``.

    ``op`` is the operation counter, ``leases`` the number of live leases, ``late_drains`` how many
    times an op was drained that was not open.
    """

    op: int
    total: int
    free: int
    held: int
    pending: int
    cached: int
    quarantined: int
    slabs: int
    leases: int
    late_drains: int


@attrs.frozen
class QuarantineRecord:
    """Pages in quarantine: whose they were, which ops never drained, why, and since when."""

    lease: Lease
    rid: str
    attempt: int
    pages: tuple[int, ...]
    ops: tuple[str, ...]
    reason: str
    ended: EndRecord


class PagePool:
    """Pages of KV cache on one device. The head of this module tells how it works.

    ``pages`` is the number of pages; they lie in slabs of ``slab_pages`` pages each (default: one
    slab; it has to divide ``pages``). ``device`` is ``"cpu"`` or a CUDA device. With ``debug`` call
    sites are recorded and free pages poisoned. ``clock`` gives seconds for the records; without it
    no clock is ever read. ``listener`` is told about slabs that come and go.

    Raises LayoutError for sizes that make no sense, DeviceMemoryError if the device has less memory
    than ``layout.total_bytes(pages)``.
    """

    def __init__(
        self,
        layout: KVLayout,
        pages: int,
        *,
        slab_pages: int | None = None,
        device: str | torch.device = "cpu",
        debug: bool = False,
        clock: Callable[[], float] | None = None,
        listener: SlabListener | None = None,
    ) -> None:
        slab_pages = pages if slab_pages is None else slab_pages
        if pages < 1 or slab_pages < 1 or pages % slab_pages:
            message = (
                f"a pool of {pages} pages cannot be made of slabs of {slab_pages} pages: "
                "both must be at least 1, and the slabs must divide the pool"
            )
            raise LayoutError(message)
        self.layout = layout
        self.device = torch.device(device)
        self.slab_pages = slab_pages
        self._listener = listener
        self._clock = clock
        self._debug = DebugLog() if debug else None
        self._offsets: dict[torch.dtype, torch.Tensor] = {}
        self._lock = TokenLock()
        # The same, where it has to be quick.
        self._token = self._lock.token
        # Held by grow and trim alone, around slow work on the device; taken before the other lock.
        self._memory_lock = threading.Lock()

        # Counts every operation that changes the pool; the only notion of time in it.
        self._op = 0
        # The slab that alloc takes pages from on its quick path. The one without pages makes it go
        # the slow way: when none has free pages, and always where sites or times are recorded.
        self._no_slab = Slab(layout, 0, 0, torch.empty(layout.shape(0), dtype=layout.dtype))
        self._current = self._no_slab
        self._slabs: list[Slab | None] = []

        # The leases that are held. A set, since one that entries come to and leave in turn is not
        # built anew again and again, as a dictionary is; `_leases` puts them in order.
        self._live: set[Lease] = set()
        self._claims: dict[int, PageClaims] = {}
        self._events = EventQueue()
        self._waiting: dict[int, Waiting] = {}
        self._quarantine: dict[int, Waiting] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._cache: PrefixCache | None = None
        self._pending_pages = 0
        self._quarantined_pages = 0
        self._late_drains = 0
        self.grow(pages // slab_pages)

    # Giving out

    def alloc(self, pages: int, rid: str = "", attempt: int = 0) -> Lease:
        """Lease ``pages`` pages to an attempt of a request. The pages are not cleared.

        When free pages are short, released pages that are through are reclaimed first, then cached
        ones are evicted. Raises PagesComingError if waiting would help, else OutOfPagesError (both
        carry the figures); ValueError or TypeError unless ``pages`` is a whole number of at least
        1. Never waits for the device.
        """
        # Every line of this is on the hot path; benchmarks/bench_pool.py tells what it costs.
        try:
            self._token.pop()
        except IndexError:
            self._lock.wait()
        try:
            self._op = op = self._op + 1
            slab = self._current
            if 0 < pages <= slab.free_count:
                chunks = slab.chunks
                taken = chunks.pop()
                count = len(taken)
                if count != pages:
                    chunks.append(taken)
                    taken = _pop_pages(chunks, pages)
                    count = len(taken)
                slab.free_count -= count
                self._live.add(lease := Lease())
                lease._pool = self
                lease._pages = taken
                lease._slab = slab
                lease._rid = rid
                lease._attempt = attempt
                lease._generation = op
                lease._more = None
                return lease
            found = self._alloc_slow(pages, rid, attempt)
        finally:
            self._token.append(None)
        if isinstance(found, Shortage):
            raise self._out_of_pages(found, f"request {rid!r} attempt {attempt}")
        return found

    def try_alloc(self, pages: int, rid: str = "", attempt: int = 0) -> Lease | Shortage:
        """As :meth:`alloc`, but a shortage is returned: ``if not (lease := pool.try_alloc(n)):
        ...``.
        """
        with self._lock:
            self._tick()
            return self._alloc_slow(pages, rid, attempt)

    def extend(self, lease: Lease, pages: int) -> None:
        """Add ``pages`` pages at the end of a held lease, as decoding needs. Raises what alloc
        raises, and StaleLeaseError; then the lease is as it was.
        """
        with self._lock:
            self._check_mine(lease)
            lease._require_held("extend")
            self._tick()
            taken = self._take(pages)
            if not isinstance(taken, Shortage):
                lease._pages = join_pages([lease._pages, taken])
                if not self._in_one_slab(lease._pages):
                    lease._extra()
                return
        raise self._out_of_pages(taken, f"extending {lease!r}")

    def share(self, lease: Lease, pages: int | None = None, *, rid: str, attempt: int = 0) -> Lease:
        """Give another holder a claim of its own on the first ``pages`` pages of ``lease``
        (default: all).

        The pages are free when both, and whoever else has a claim, are through. Writing to shared
        pages is the holders' business: share full pages. Raises StaleLeaseError, ValueError for a
        count that the lease does not have.
        """
        with self._lock:
            self._check_mine(lease)
            lease._require_held("share")
            count = len(lease) if pages is None else pages
            if not 1 <= count <= len(lease):
                message = f"cannot share {count} pages of {lease!r}: it has {len(lease)}"
                raise ValueError(message)
            shared = lease._pages[:count]
            for page in shared:
                self._enter_claims(lease, page)
                self._change(page, holders=+1)
            other = self._new_lease(shared, rid, attempt)
            theirs, ours = other._extra(), lease._extra()
            theirs.shared.update(shared)
            theirs.token_ids = ours.token_ids[: other.capacity_tokens]
            theirs.proven_tokens = min(ours.proven_tokens, other.capacity_tokens)
            theirs.tainted = ours.tainted
            return other

    # Taking back

    def release(
        self,
        lease: Lease,
        by: str = "",
        events: Iterable[EventLike] = (),
        ops: Iterable[str] = (),
    ) -> None:
        """Give the pages of ``lease`` back: exactly once, from any thread.

        They are free at once, unless there is something to wait for: an event is recorded on every
        stream that ``lease.use`` named, and ``events`` (recorded by the caller) and the ops that
        are open (and ``ops``) count too. Then they are pending until all events are reached and all
        ops drained. ``by`` says who releases, for messages (default: the rid). Never waits for the
        device.

        Raises DoubleReleaseError for a second release, ForeignLeaseError for a lease that is not of
        this pool; then nothing changes.
        """
        try:
            self._token.pop()
        except IndexError:
            self._lock.wait()
        try:
            if lease._more is None and not events and not ops:
                self._live.remove(lease)  # whoever is not in there is refused below
                self._op = lease._ended_at = self._op + 1
                lease._ended_by = by
                slab = lease._slab
                pages = lease._pages
                slab.chunks.append(pages)
                slab.free_count += len(pages)
                return
            self._end(lease, by, tuple(events), set(ops), quarantine=None)
        except (KeyError, AttributeError):
            self._refuse_end(lease, by, "released")
            raise
        finally:
            self._token.append(None)

    def reclaim(self) -> int:
        """Free the pending pages whose events are all reached. Never waits; costs little when
        nothing is.

        Returns how many pages stopped being pending. Call it once a step; alloc calls it when it is
        short.
        """
        with self._lock:
            self._choose_slab()
            return self._reclaim()

    # Quarantine

    def quarantine(self, lease: Lease, *, reason: str, by: str = "") -> None:
        """Take the pages of a held or pending lease out of circulation: their drain was never
        proven.

        They stay out until :meth:`release_quarantine`. What the lease published to the prefix cache
        is withdrawn. Raises DoubleReleaseError if the lease is free or in quarantine already.
        """
        with self._lock:
            self._check_mine(lease)
            waiting = None if lease._more is None else lease._more.waiting
            if waiting is not None and waiting.quarantine is None:
                self._tick()
                self._to_quarantine(waiting, reason)
            else:
                self._end(lease, by, (), set(), quarantine=reason)
            self._withdraw(lease, reason)

    def quarantined(self) -> tuple[QuarantineRecord, ...]:
        """What is in quarantine, oldest first."""
        with self._lock:
            return tuple(self._record(waiting) for waiting in self._quarantine.values())

    def release_quarantine(
        self, *, proof: str, lease: Lease | None = None, rid: str | None = None
    ) -> tuple[QuarantineRecord, ...]:
        """Return quarantined pages, because of ``proof`` (say which: "engine restarted", "card
        reset at ...").

        All of them, or those of one ``lease``, or of one ``rid``. The proof stands for the ops;
        streams are still waited for. Returns what was in quarantine, for the log. Raises
        QuarantineError without a proof, or if nothing fits; then nothing changes.
        """
        if not proof.strip():
            message = "release_quarantine needs a proof that nothing touches the pages any more"
            raise QuarantineError(message)
        with self._lock:
            found = [
                waiting
                for waiting in self._quarantine.values()
                if (lease is None or waiting.lease is lease)
                and (rid is None or waiting.lease.rid == rid)
            ]
            if not found:
                names = sorted({waiting.lease.rid for waiting in self._quarantine.values()})
                wanted = (
                    repr(lease) if lease is not None else "anything" if rid is None else f"{rid!r}"
                )
                message = f"{wanted} is not in quarantine; in quarantine are: {names}"
                raise QuarantineError(message)
            records = tuple(self._record(waiting) for waiting in found)
            self._tick()
            for waiting in found:
                del self._quarantine[waiting.lease.generation]
                waiting.quarantine = waiting.fault = None
                waiting.ops.clear()
                self._quarantined_pages -= len(waiting.own)
                self._pending_pages += len(waiting.own)
                for page in waiting.shared:
                    self._change(page, pending=+1, quarantined=-1)
                self._waiting[waiting.lease.generation] = waiting
                if waiting.settled:
                    self._settle(waiting)
            return records

    # Real memory

    def grow(self, slabs: int = 1) -> None:
        """Add ``slabs`` slabs. Ids of slabs that were trimmed are used again first.

        Raises DeviceMemoryError if the device has not enough; then nothing changes.
        """
        if slabs < 1:
            message = f"cannot grow by {slabs} slabs"
            raise ValueError(message)
        what = "the pool" if not self._slabs else f"growing the pool by {slabs} slabs"
        with self._memory_lock:
            require_memory(self.layout, slabs * self.slab_pages, self.device, what)
            indices = [index for index, slab in enumerate(self._slabs) if slab is None][:slabs]
            indices += range(len(self._slabs), len(self._slabs) + slabs - len(indices))
            made = [
                make_slab(self.layout, index, self.slab_pages, self.device) for index in indices
            ]
            for slab in made:
                if self._debug is not None:
                    self._debug.poison(slab, slab.free_pages())
                if self._listener is not None:
                    self._listener.slab_added(slab)
            with self._lock:
                for slab in made:
                    if slab.index == len(self._slabs):
                        self._slabs.append(slab)
                    else:
                        self._slabs[slab.index] = slab
                self._tick()
                self._choose_slab()

    def trim(self, *, keep_pages: int = 0, evict: bool = False) -> TrimReport:
        """Give empty slabs back to the device, as long as ``keep_pages`` pages remain.

        A slab is empty if all its pages are free: none is held, pending, cached or quarantined.
        With ``evict`` the prefix cache is emptied first. Waits for the device (unmapping under a
        running kernel is a fault), but not with the lock held, so other threads go on. Views of the
        slab that are still alive keep the memory, so drop them. Returns what was given back.
        """
        with self._memory_lock:
            with self._lock:
                dropped = self._detach_empty_slabs(keep_pages, evict)
            try:
                if self._listener is not None:
                    for index in range(len(dropped)):  # a loop variable would keep a slab alive
                        self._listener.slab_dropping(dropped[index])
                return drop_slabs(dropped, self.device)
            except BaseException:
                with self._lock:
                    for slab in dropped:
                        self._slabs[slab.index] = slab
                    self._choose_slab()
                raise

    @property
    def slabs(self) -> tuple[Slab, ...]:
        """The slabs that exist, by index."""
        with self._lock:
            return tuple(self._some_slabs())

    def slab_of(self, page: int) -> Slab:
        """The slab that page id ``page`` lies in. Raises PageOutOfRangeError."""
        index = page // self.slab_pages
        slab = self._slabs[index] if 0 <= index < len(self._slabs) else None
        if slab is None:
            last = len(self._slabs) * self.slab_pages - 1
            gone = (
                "its slab was trimmed"
                if 0 <= index < len(self._slabs)
                else f"ids run from 0 to {last}"
            )
            message = f"there is no page {page} in this pool: {gone}"
            raise PageOutOfRangeError(message)
        return slab

    def page_view(self, page: int) -> torch.Tensor:
        """The content of page id ``page``, whoever holds it: ``[layers, 2, page_size, kv_heads,
        head_dim]``.

        For a latent layout ``[layers, page_size, latent_dim]``. A view, no copy. Raises
        PageOutOfRangeError.
        """
        return self.slab_of(page).page_view(page)

    # Looking

    def stats(self) -> PoolStats:
        """The counts, in constant time (in the number of slabs)."""
        with self._lock:
            return self._stats()

    def audit(self) -> Audit:
        """Look at every page, prove that each is in exactly one place; see :mod:`kvpool.audit`."""
        with self._lock:
            return take_audit(self)

    def leases(self) -> tuple[Lease, ...]:
        """The held leases, oldest first."""
        with self._lock:
            return tuple(self._leases())

    def __repr__(self) -> str:
        s = self.stats()
        return (
            f"<pool on {self.device}: {s.total} pages = {s.free} free + {s.held} held + "
            f"{s.pending} pending + {s.cached} cached + {s.quarantined} quarantined>"
        )

    def _detach_empty_slabs(self, keep_pages: int, evict: bool) -> list[Slab]:
        """Take the empty slabs that are not to be kept out of the pool. The lock is held."""
        self._reclaim()
        if evict:
            self._evict(until_free=_NEVER)
        empty = [slab for slab in self._some_slabs() if slab.free_count == slab.pages]
        spare = max(0, self._total() - keep_pages) // self.slab_pages
        dropped = empty[::-1][:spare]
        if self._debug is not None:
            for slab in dropped:
                pages = slab.free_pages()
                slab.chunks.clear()
                slab.free_count = 0
                self._refuse_spoilt(slab, pages, [pages])
                self._give(pages)
        for slab in dropped:
            self._slabs[slab.index] = None
        self._tick()
        self._choose_slab()
        return dropped

    # Inside; the lock is held from here on

    def _tick(self) -> int:
        self._op += 1
        return self._op

    def _leases(self) -> list[Lease]:
        """The held leases, oldest first."""
        return sorted(self._live, key=operator.attrgetter("_generation"))

    def _some_slabs(self) -> list[Slab]:
        return [slab for slab in self._slabs if slab is not None]

    def _total(self) -> int:
        return len(self._some_slabs()) * self.slab_pages

    def _free_count(self) -> int:
        return sum(slab.free_count for slab in self._some_slabs())

    def _stats(self) -> PoolStats:
        slabs = self._some_slabs()
        total, free = len(slabs) * self.slab_pages, self._free_count()
        pending, quarantined, cached = (
            self._pending_pages,
            self._quarantined_pages,
            len(self._evictable),
        )
        return PoolStats(
            op=self._op,
            total=total,
            free=free,
            held=total - free - pending - quarantined - cached,
            pending=pending,
            cached=cached,
            quarantined=quarantined,
            slabs=len(slabs),
            leases=len(self._live),
            late_drains=self._late_drains,
        )

    def _fullest_slab(self) -> Slab:
        """The fullest slab that has free pages (the first of several), or the one without pages."""
        slabs = [slab for slab in self._some_slabs() if slab.free_count]
        return min(slabs, key=lambda slab: slab.free_count, default=self._no_slab)

    def _choose_slab(self) -> None:
        """Choose where the next allocations take their pages from."""
        is_watched = self._debug is not None or self._clock is not None
        self._current = self._no_slab if is_watched else self._fullest_slab()

    def _alloc_slow(self, pages: int, rid: str, attempt: int) -> Lease | Shortage:
        taken = self._take(pages)
        return taken if isinstance(taken, Shortage) else self._new_lease(taken, rid, attempt)

    def _new_lease(self, pages: Pages, rid: str, attempt: int) -> Lease:
        lease = Lease()
        lease._pool = self
        lease._pages = pages
        lease._slab = self.slab_of(pages[0])
        lease._rid = rid
        lease._attempt = attempt
        lease._generation = self._tick()
        lease._more = None
        if not self._in_one_slab(pages):
            lease._extra()  # so that its release does not take the quick path
        if self._clock is not None:
            lease._extra().start_time = self._clock()
        if self._debug is not None:
            lease._extra().alloc_site = call_site()
        self._live.add(lease)
        return lease

    def _in_one_slab(self, pages: Pages) -> bool:
        size = self.slab_pages
        return len(self._slabs) == 1 or min(pages) // size == max(pages) // size

    def _take(self, pages: int) -> Pages | Shortage:
        """Take free pages from the fullest slabs, making room first if need be; all or nothing."""
        pages = operator.index(pages)
        if pages < 1:
            message = f"cannot allocate {pages} pages: ask for at least 1"
            raise ValueError(message)
        if not self._make_room(pages):
            return self._shortage(pages)
        parts: list[Pages] = []
        missing = pages
        while missing:
            slab = self._fullest_slab()
            count = min(missing, slab.free_count)
            part = _pop_pages(slab.chunks, count)
            slab.free_count -= count
            parts.append(part)
            missing -= count
            if self._debug is not None:
                self._refuse_spoilt(slab, part, parts)
        self._choose_slab()
        return join_pages(parts)

    def _make_room(self, pages: int) -> bool:
        """Have ``pages`` free pages, if that can be done without waiting."""
        if self._free_count() < pages:
            self._reclaim()
        if self._free_count() + len(self._evictable) < pages:
            # Evicting would cost the cache its content and still not do.
            return False
        self._evict(until_free=pages)
        return True

    def _shortage(self, pages: int) -> Shortage:
        s = self._stats()
        return Shortage(pages, s.free, s.cached, s.pending, s.held, s.quarantined, s.total)

    def _out_of_pages(self, shortage: Shortage, who: str) -> OutOfPagesError:
        with self._lock:
            oldest = [repr(lease) for lease in self._leases()[:3]]
        kind = PagesComingError if shortage.supply is Supply.COMING else OutOfPagesError
        return kind(
            f"no pages for {who}: {shortage}. Oldest holders: {', '.join(oldest)}", shortage
        )

    def _check_mine(self, lease: object) -> None:
        if not isinstance(lease, Lease):
            message = f"{lease!r} is no lease of a page pool"
            raise ForeignLeaseError(message, lease)
        if getattr(lease, "_pool", None) is not self:
            message = f"{lease!r} belongs to {lease._pool!r}, not to this pool"
            raise ForeignLeaseError(message, lease)

    def _refuse_end(self, lease: Lease, by: str, verb: str) -> None:
        """Raise unless ``lease`` is a held lease of this pool."""
        self._check_mine(lease)
        ended = lease._end_record()
        if ended is None:
            return
        time = None if self._clock is None else self._clock()
        site = None if self._debug is None else call_site()
        second = EndRecord(verb, by or lease._rid, self._op, time, site)
        message = (
            f"{lease!r} cannot be {verb} twice (single_release). First: {ended}. Now: {second}. "
            "Nothing was changed"
        )
        raise DoubleReleaseError(message, lease, ended, second)

    def _end(
        self,
        lease: Lease,
        by: str,
        events: tuple[EventLike, ...],
        ops: set[str],
        *,
        quarantine: str | None,
    ) -> None:
        """Release or quarantine, by the long way."""
        self._refuse_end(lease, by, "released" if quarantine is None else "quarantined")
        more = lease._extra()
        # A device that fails here raises before anything has changed, so the release can be tried
        # again.
        stream_events = [(stream, stream.record_event()) for stream in more.streams]
        lease._ended_at = self._tick()
        lease._ended_by = by
        more.verb = "released" if quarantine is None else "quarantined"
        more.end_time = None if self._clock is None else self._clock()
        if self._debug is not None:
            more.end_site = call_site()
            self._debug.note_end(lease)
        self._live.remove(lease)
        shared: Pages = ()
        own = lease._pages
        if more.shared:
            shared = tuple(page for page in own if page in more.shared)
            own = tuple(page for page in own if page not in more.shared)
        more.end_ops = tuple(sorted(ops.union(more.ops)))
        more.ops.clear()
        waiting = Waiting(lease, own, shared, set(more.end_ops))
        self._events.add(waiting, stream_events, events)
        self._pending_pages += len(own)
        # A holder's last pages first, so that the cache later evicts the ends of chains before
        # their starts.
        for page in reversed(shared):
            self._change(page, holders=-1, pending=+1)
        more.waiting = waiting
        self._waiting[lease._generation] = waiting
        if quarantine is not None:
            self._to_quarantine(waiting, quarantine)
        elif waiting.settled:
            self._settle(waiting)

    def _reclaim(self) -> int:
        before = self._pending_pages
        for waiting in self._events.poll():
            if waiting.fault is not None and waiting.quarantine is None:
                self._withdraw(waiting.lease, waiting.fault)
                self._to_quarantine(waiting, waiting.fault)
            elif waiting.settled and waiting.lease._generation in self._waiting:
                self._settle(waiting)
        return before - self._pending_pages

    def _settle(self, waiting: Waiting) -> None:
        """Nothing can touch these pages any more: drop the claims that the ended lease had."""
        del self._waiting[waiting.lease._generation]
        waiting.lease._extra().waiting = None
        self._pending_pages -= len(waiting.own)
        self._give(waiting.own)
        for page in reversed(waiting.shared):
            self._change(page, pending=-1)

    def _to_quarantine(self, waiting: Waiting, reason: str) -> None:
        generation = waiting.lease._generation
        del self._waiting[generation]
        self._quarantine[generation] = waiting
        waiting.quarantine = reason
        self._pending_pages -= len(waiting.own)
        self._quarantined_pages += len(waiting.own)
        for page in waiting.shared:
            self._change(page, pending=-1, quarantined=+1)

    def _record(self, waiting: Waiting) -> QuarantineRecord:
        lease = waiting.lease
        ended = lease._end_record()
        assert ended is not None  # only an ended lease has a Waiting
        return QuarantineRecord(
            lease=lease,
            rid=lease._rid,
            attempt=lease._attempt,
            pages=(*waiting.own, *waiting.shared),
            ops=tuple(sorted(waiting.ops)),
            reason=waiting.quarantine or "",
            ended=ended,
        )

    def _drain_op(self, lease: Lease, op: str) -> bool:
        with self._lock:
            self._check_mine(lease)
            more = lease._more
            waiting = None if more is None else more.waiting
            open_ops = waiting.ops if waiting is not None else () if more is None else more.ops
            if more is None or op not in open_ops:
                self._late_drains += 1
                return False
            self._tick()
            more.past_ops.append(op)
            if waiting is None:
                del more.ops[op]
            else:
                waiting.ops.discard(op)
                if waiting.settled:
                    self._settle(waiting)
            return True

    def _fence(self, streams: Iterable[StreamLike]) -> Fence:
        """What a transfer has to wait for before it is posted."""
        return Fence(tuple(stream.record_event() for stream in streams))

    def _taint(self, lease: Lease, reason: str) -> None:
        with self._lock:
            self._check_mine(lease)
            self._withdraw(lease, reason)

    def _withdraw(self, lease: Lease, reason: str) -> None:
        """Trust nothing that this lease wrote: no page of it is published or stays in the cache."""
        more = lease._extra()
        more.tainted = reason
        more.proven_tokens = 0
        if self._cache is not None:
            for page in self._cache._withdraw(lease):
                self._change(page, cached=False)

    def _enter_claims(self, lease: Lease, page: int) -> None:
        """Keep count of the claims on this page of a held lease from now on."""
        if page not in self._claims:
            self._claims[page] = PageClaims(holders=1)
        lease._extra().shared.add(page)

    def _change(
        self,
        page: int,
        *,
        holders: int = 0,
        quarantined: int = 0,
        pending: int = 0,
        cached: bool | None = None,
    ) -> None:
        """Change the claims on a shared page, and with them the place where it counts."""
        claims = self._claims[page]
        before = claims.classify()
        claims.holders += holders
        claims.quarantined += quarantined
        claims.pending += pending
        if cached is not None:
            claims.is_cached = cached
        after = claims.classify()
        if before is after:
            return
        if before is PageClass.CACHED:
            del self._evictable[page]
        self._pending_pages += (after is PageClass.PENDING) - (before is PageClass.PENDING)
        self._quarantined_pages += (after is PageClass.QUARANTINED) - (
            before is PageClass.QUARANTINED
        )
        if after is PageClass.CACHED:
            self._evictable[page] = None
        elif after is PageClass.FREE:
            del self._claims[page]
            self._give((page,))

    def _give(self, pages: Pages) -> None:
        """Put pages that nobody has a claim on back on the stacks of their slabs."""
        if not pages:
            return
        parts: list[Pages] = [pages]
        if not self._in_one_slab(pages):
            by_slab = groupby(sorted(pages), key=lambda page: page // self.slab_pages)
            parts = [tuple(part) for _, part in by_slab]
        for part in parts:
            slab = self.slab_of(part[0])
            if self._debug is not None:
                self._debug.poison(slab, part)
            slab.chunks.append(part)
            slab.free_count += len(part)

    def _evict(self, *, until_free: int) -> None:
        """Drop cached pages, least recently used first, until so many are free or none is left."""
        while self._evictable and self._free_count() < until_free:
            assert self._cache is not None  # only the cache makes a page cached
            for page in self._cache._forget(next(iter(self._evictable))):
                self._change(page, cached=False)

    def _refuse_spoilt(self, slab: Slab, part: Pages, taken: list[Pages]) -> None:
        """Among pages ``part`` that were just taken from ``slab``, look for changed poison.

        If there is some: quarantine these pages, give all others of ``taken`` back, and raise.
        """
        assert self._debug is not None
        spoilt = self._debug.spoilt(slab, part)
        if not spoilt:
            return
        gone = set(spoilt)
        self._give(tuple(page for pages in taken for page in pages if page not in gone))
        stories = "; ".join(self._debug.describe(page) for page in spoilt)
        owner = self._debug.last_owner.get(spoilt[0])
        rid, attempt = ("nobody", 1) if owner is None else (owner.rid, owner.attempt)
        lease = self._new_lease(tuple(spoilt), rid, attempt)
        self._end(lease, "the poison check", (), set(), quarantine=f"late write: {stories}")
        message = f"somebody wrote to free pages {spoilt}: {stories}. They are in quarantine now"
        raise LateWriteError(
            message,
            tuple(spoilt),
        )

    # Ids on the device

    def _to_device(self, values: Pages, dtype: torch.dtype) -> torch.Tensor:
        """Numbers to the device without waiting for it.

        Adjacent ones are made there; others are copied from pinned memory, which torch keeps until
        the copy is over.
        """
        if isinstance(values, range):
            return torch.arange(values.start, values.stop, dtype=dtype, device=self.device)
        on_cuda = self.device.type == "cuda"
        numbers = torch.tensor(values, dtype=dtype, pin_memory=on_cuda)
        return numbers.to(self.device, non_blocking=True)

    def _page_offsets(self, dtype: torch.dtype) -> torch.Tensor:
        """``0 .. page_size - 1`` on the device, made once for each dtype."""
        if dtype not in self._offsets:
            self._offsets[dtype] = torch.arange(
                self.layout.page_size, dtype=dtype, device=self.device
            )
        return self._offsets[dtype]
