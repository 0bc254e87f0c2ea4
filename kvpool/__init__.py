"""kvpool: pages of KV cache on torch that cannot be freed twice, early, or never.

A server of language models keeps the keys and values of each request in pages of a pool. Its
scheduler decides when pages go back. The known faults are always the same three. *Twice*: two
places in the code both free a request's pages, the free list then holds a page two times, and two
users share it. *Early*: the pages go back while a kernel on another stream, or a network card,
still reads or writes them. *Never*: a path forgets them. This package is a pool in which the first
cannot happen, the second cannot happen to work that the pool was told of, and the third is seen by
name. The rules are those of the contract (sections 3, 7 and 8).

In short:

    >>> import torch
    >>> layout = KVLayout(layers=2, kv_heads=4, head_dim=8, page_size=16, dtype=torch.float32)
    >>> pool = PagePool(layout, pages=64)
    >>> lease = pool.alloc(4, rid="r1")
    >>> fence = lease.open_op("kv")  # wait for it, then post the transfer
    >>> pool.release(lease, by="abort")
    >>> pool
    <pool on cpu: 64 pages = 60 free + 0 held + 4 pending + 0 cached + 0 quarantined>
    >>> lease.drain_op("kv")  # the backend says that it will never touch the pages again
    True
    >>> pool.audit().check().idle
    True

The ideas, in the order in which you meet them:

**Layout.** :class:`KVLayout` says what a page holds (layers, heads, dtype, tokens a page), so how
many bytes it has. :class:`PagePool` makes real tensors of it, on CPU or CUDA, and refuses with the
figures when the device has less memory.

**Lease.** ``pool.alloc(n, rid=..., attempt=...)`` gives a :class:`Lease`, not numbers. The lease is
the only thing that can be released, once: a second release raises :class:`DoubleReleaseError`,
which names both. It gives views of its pages and tokens, and page ids and token slots as device
tensors.

**Waiting.** ``lease.use(stream)`` says that work on a stream touches the pages;
``lease.open_op("kv")`` takes the claim of a transfer *and* returns the fence to wait on before it
is posted. After the release the pages are *pending* until all events are reached and all ops
drained (``lease.drain_op("kv")``). ``pool.reclaim()``, once a step, sees events; a drained op frees
at once. Streams that were not named are not waited for. On an engine with one stream that is right,
since its work is in order; it names that stream when it opens an op, ``open_op("kv",
streams=[...])``.

**Shortage.** ``alloc`` raises :class:`PagesComingError` when pending pages will do,
:class:`OutOfPagesError` when only preemption helps. ``try_alloc`` returns the same as a falsy
:class:`Shortage`.

**Sharing.** ``pool.share`` and :class:`PrefixCache` give a page several holders, each with a claim.
Only pages marked as proven are published.

**Quarantine.** ``pool.quarantine(lease, reason=...)`` is for pages whose transfer was never proven
to have stopped. They come back by ``pool.release_quarantine(proof=...)`` alone.

**Memory.** The pool is made of slabs; ``grow`` adds some, ``trim`` gives empty ones back to the
driver. A kernel that takes one base pointer can address one slab, so an engine with such kernels
has one slab and no trim.

**Looking.** ``pool.audit()`` walks over all pages, proves ``free + held + pending + cached +
quarantined = total`` and lists holders by age. ``PagePool(debug=True)`` records call sites and
poisons free pages, so that a late write is caught and named. :func:`plot_occupancy` draws,
:class:`OccupancyBar` shows it live.

**The core.** :class:`PoolPort` is what the driver of ``lifecycle`` calls; :class:`PrefixCache` is
its other port.
"""

from __future__ import annotations

from kvpool.audit import Audit, Holder
from kvpool.errors import (
    AuditError,
    DeviceMemoryError,
    DoubleReleaseError,
    ForeignLeaseError,
    LateWriteError,
    LayoutError,
    LeaseError,
    NotProvenError,
    OpOpenError,
    OutOfPagesError,
    PageOutOfRangeError,
    PagesComingError,
    PoolError,
    QuarantineError,
    StaleLeaseError,
    TokenRangeError,
)
from kvpool.layout import KVLayout
from kvpool.lease import EndRecord, Lease, LeaseState, Shortage, Supply
from kvpool.pagetable import PageTable
from kvpool.plot import OccupancyBar, OccupancyHistory, Sample, plot_occupancy
from kvpool.pool import PagePool, PoolStats, QuarantineRecord
from kvpool.port import PoolPort
from kvpool.prefix import CacheStats, PrefixCache
from kvpool.slabs import Slab, SlabListener, TrimReport
from kvpool.streams import EventLike, FakeEvent, FakeStream, Fence, StreamLike

__all__ = [
    "Audit",
    "AuditError",
    "CacheStats",
    "DeviceMemoryError",
    "DoubleReleaseError",
    "EndRecord",
    "EventLike",
    "FakeEvent",
    "FakeStream",
    "Fence",
    "ForeignLeaseError",
    "Holder",
    "KVLayout",
    "LateWriteError",
    "LayoutError",
    "Lease",
    "LeaseError",
    "LeaseState",
    "NotProvenError",
    "OccupancyBar",
    "OccupancyHistory",
    "OpOpenError",
    "OutOfPagesError",
    "PageOutOfRangeError",
    "PagePool",
    "PageTable",
    "PagesComingError",
    "PoolError",
    "PoolPort",
    "PoolStats",
    "PrefixCache",
    "QuarantineError",
    "QuarantineRecord",
    "Sample",
    "Shortage",
    "Slab",
    "SlabListener",
    "StaleLeaseError",
    "StreamLike",
    "Supply",
    "TokenRangeError",
    "TrimReport",
    "plot_occupancy",
]
