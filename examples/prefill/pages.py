"""Two allocators over the same kind of torch pool, both watched by a ledger.

:class:`LeasedPages` is :class:`kvpool.PagePool`: pages go out as leases, and a wrong release raises.
:class:`FreeListPages` is what engines have: a free list of page numbers, first in, first out, that takes back
whatever it is given (SGLang's ``TokenToKVPoolAllocator.free`` is a ``torch.cat``). The hand-written schedulers run
on this one *because* it prevents nothing: on leases their second release would stop the demo at the first
fault, and nobody would see what such a fault does to other requests.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs

from kvpool import Lease, LeaseState, OutOfPagesError, PagePool, PoolPort
from lifecycle import Hold

from .engine import Op
from .ledger import Ledger


class Grant(Protocol):
    """What an attempt gets: its page numbers, in token order. It may grow."""

    @property
    def pages(self) -> tuple[int, ...]:
        """All of them."""


class Pages(Protocol):
    """What the scheduler needs from an allocator. Counts are in pages."""

    def alloc(self, count: int, rid: str, attempt: int) -> Grant | None:
        """A new grant; None if there are not enough."""

    def extend(self, grant: Grant, count: int) -> bool:
        """Add pages to a grant; False if there are not enough, and then nothing changes."""

    def lend(self, grant: Grant, op: str, pages: tuple[int, ...]) -> None:
        """An op of this name is about to be posted, which reads these pages of the grant."""

    def drained(self, grant: Grant, op: Op) -> None:
        """The op will never read them again."""


class LeasedPages:
    """Leases of a :class:`kvpool.PagePool`; also the driver's ``KVPool`` port."""

    def __init__(self, pool: PagePool, ledger: Ledger) -> None:
        self._pool, self._port, self._ledger = pool, PoolPort(pool), ledger

    def alloc(self, count: int, rid: str, attempt: int) -> Lease | None:
        """A lease; None if there are not enough pages."""
        lease = self._pool.try_alloc(count, rid=rid, attempt=attempt)
        if not isinstance(lease, Lease):
            return None
        self._ledger.took(lease.pages, (rid, attempt))
        return lease

    def extend(self, grant: Grant, count: int) -> bool:
        """Add pages to a lease, or leave it as it is."""
        assert isinstance(grant, Lease)
        try:
            grant.extend(count)
        except OutOfPagesError:
            return False
        self._ledger.took(grant.pages[-count:], (grant.rid, grant.attempt))
        return True

    def lend(self, grant: Grant, op: str, pages: tuple[int, ...]) -> None:
        """The pool knows the op too: the audit names it, and a release would wait for it."""
        assert isinstance(grant, Lease)
        grant.open_op(op).synchronize()  # behind the writes of every stream that the lease knows
        self._ledger.lent(pages, (grant.rid, grant.attempt))

    def drained(self, grant: Grant, op: Op) -> None:
        """The last op that drains, however late, proves that pages in quarantine are quiet."""
        assert isinstance(grant, Lease)
        grant.drain_op(op.name)
        self._ledger.drained(op.pages, (op.rid, op.attempt))
        if grant.state is LeaseState.QUARANTINED and not grant.ops:
            self._pool.release_quarantine(lease=grant, proof=f"op {op.name} drained after all")

    def release(self, hold: Hold) -> None:
        """The port: give an attempt's pages back."""
        lease = hold.pages
        assert isinstance(lease, Lease)
        self._ledger.gave_back(lease.pages, (hold.rid, hold.attempt))
        self._port.release(hold)

    def quarantine(self, hold: Hold) -> None:
        """The port: take an attempt's pages out of circulation."""
        lease = hold.pages
        assert isinstance(lease, Lease)
        self._ledger.set_aside(lease.pages, (hold.rid, hold.attempt))
        self._port.quarantine(hold)

    def holds(self, hold: Hold) -> bool:
        """The port: whether the pages are still out."""
        return self._port.holds(hold)


@attrs.define(eq=False)
class PageList:
    """A grant of the free list: numbers, and nothing that remembers whether they were given back."""

    rid: str
    attempt: int
    pages: tuple[int, ...]


class FreeListPages:
    """A free list over all pages of a pool, which it holds by one lease for as long as it lives."""

    def __init__(self, pool: PagePool, ledger: Ledger) -> None:
        self._ledger = ledger
        self._free = deque(sorted(pool.alloc(pool.stats().free, rid="free list").pages))

    def alloc(self, count: int, rid: str, attempt: int) -> PageList | None:
        """The first pages of the list; None if there are not enough."""
        grant = PageList(rid, attempt, ())
        return grant if self.extend(grant, count) else None

    def extend(self, grant: Grant, count: int) -> bool:
        """Add the first pages of the list to a grant, or leave it as it is."""
        assert isinstance(grant, PageList)
        if count > len(self._free):
            return False
        pages = tuple(self._free.popleft() for _ in range(count))
        self._ledger.took(pages, (grant.rid, grant.attempt))
        grant.pages += pages
        return True

    def lend(self, grant: Grant, op: str, pages: tuple[int, ...]) -> None:  # noqa: ARG002  # as above
        """A free list knows no transfers; the ledger does."""
        assert isinstance(grant, PageList)
        self._ledger.lent(pages, (grant.rid, grant.attempt))

    def drained(self, grant: Grant, op: Op) -> None:  # noqa: ARG002  # as above
        """Likewise."""
        self._ledger.drained(op.pages, (op.rid, op.attempt))

    def release(self, grant: PageList) -> None:
        """Append them, whether or not they are in the list already."""
        self._ledger.gave_back(grant.pages, (grant.rid, grant.attempt))
        self._free.extend(grant.pages)
