"""A :class:`~kvpool.PagePool` for ``lifecycle.testing.stack``: the harness's pool, on real pages of torch.

``Parts(pool=LeasePool)`` puts it under the machine; see ``lifecycle.testing.pools.PoolUnderTest``.

    >>> pool = LeasePool(pages=4)
    >>> lease = pool.alloc("r1", 0, [1, 2])
    >>> pool.counts().held
    2
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from kvpool.errors import ForeignLeaseError, OutOfPagesError
from kvpool.layout import KVLayout
from kvpool.lease import Lease, LeaseState
from kvpool.pool import PagePool
from kvpool.port import PoolPort
from kvpool.prefix import PrefixCache
from kvpool.streams import FakeStream
from lifecycle.testing.pools import Counts

if TYPE_CHECKING:
    from lifecycle.ports import Hold

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=1, page_size=1, dtype=torch.float32)


class LeasePool:
    """A small pool with a prefix cache; a page holds one token.

    Args:
        pages: how many pages; slabs have four.
    """

    def __init__(self, pages: int = 8) -> None:
        self.pool = PagePool(LAYOUT, pages, slab_pages=4)
        self.cache = PrefixCache(self.pool)
        self.port = PoolPort(self.pool)
        self.stream = FakeStream("side")

    def alloc(self, rid: str, attempt: int, tokens: Sequence[int]) -> Lease | None:
        """A lease of a page a token; None if there are not enough."""
        try:
            return self.cache.lease(tokens, rid=rid, attempt=attempt)
        except OutOfPagesError:
            return None

    def pages(self, grant: object) -> Sequence[int]:
        """The lease's pages."""
        return _lease(grant).pages

    def fresh(self, grant: object) -> Sequence[int]:
        """Those that did not come from the cache."""
        lease = _lease(grant)
        return lease.pages[lease.cached_tokens :]

    def counts(self) -> Counts:
        """The pool's own counts, which its audit has checked."""
        self.pool.reclaim()
        stats = self.pool.audit().check().stats
        return Counts(
            stats.total, stats.free, stats.held, stats.pending, stats.cached, stats.quarantined
        )

    def cached(self) -> Collection[int]:
        """The pages that the cache has a claim on."""
        return set(self.cache._pages())

    def write(self, page: int, value: int) -> None:
        """Fill a page."""
        self.pool.page_view(page).fill_(value)

    def read(self, page: int) -> int:
        """What a page is filled with; -1 if it is not of one piece."""
        low, high = self.pool.page_view(page).aminmax()
        return int(low) if low == high else -1

    def use(self, grant: object) -> None:
        """Work on the stream uses the lease's pages."""
        _lease(grant).use(self.stream)

    def open_op(self, grant: object, op: str) -> None:
        """The pool knows the op too."""
        lease = _lease(grant)
        if op not in lease.ops:
            lease.open_op(op)

    def drain_op(self, grant: object, op: str) -> None:
        """And its end."""
        _lease(grant).drain_op(op)

    def prove(self, grant: object, tokens: int) -> None:
        """The first tokens' pages are complete."""
        lease = _lease(grant)
        lease.mark_proven(max(tokens, lease.proven_tokens))

    def clear_quarantine(self, grant: object) -> None:
        """An operator's word."""
        self.pool.release_quarantine(proof="an operator looked", lease=_lease(grant))

    def release(self, hold: Hold) -> None:
        """The port."""
        self.port.release(hold)

    def quarantine(self, hold: Hold) -> None:
        """The port."""
        self.port.quarantine(hold)

    def holds(self, hold: Hold) -> bool:
        """The port."""
        return self.port.holds(hold)

    def publish(self, hold: Hold) -> None:
        """The port of the prefix cache."""
        if _lease(hold.pages).state is LeaseState.HELD:
            self.cache.publish(hold)


def _lease(grant: object) -> Lease:
    if not isinstance(grant, Lease):
        message = f"{grant!r} is no lease of a page pool"
        raise ForeignLeaseError(message, grant)
    return grant
