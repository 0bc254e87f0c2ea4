"""The pool as the core's driver sees it: ``lifecycle.ports.KVPool``.

The core returns effects as data; its driver carries out ``release_kv`` and ``quarantine_kv`` by
calling this port with the hold of the attempt, whose ``pages`` is the :class:`~kvpool.lease.Lease`
that was given to ``admit``. Nothing of ``lifecycle`` is imported when this runs: the types fit by
their shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.errors import ForeignLeaseError
from kvpool.lease import Lease, LeaseState

if TYPE_CHECKING:
    from kvpool.pool import PagePool
    from lifecycle.ports import Hold


class PoolPort:
    """Carries out what the core decided about pages, on one pool.

    A driver that lost its place and calls again gets DoubleReleaseError, which names both calls;
    nothing is freed twice. A hold whose pages are no lease of this pool, or the lease of another
    request or attempt, is refused with ForeignLeaseError.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool

    def release(self, hold: Hold) -> None:
        """Give the attempt's pages back. Streams and ops that the lease knows of are still waited
        for.
        """
        self.pool.release(self._lease_of(hold), by=_who(hold))

    def quarantine(self, hold: Hold) -> None:
        """Take the attempt's pages out of circulation: the drain deadline passed without proof."""
        lease = self._lease_of(hold)
        ops = ", ".join(lease.ops) or "none known to the pool"
        reason = f"drain never proven (open ops: {ops})"
        self.pool.quarantine(lease, reason=reason, by=_who(hold))

    def holds(self, hold: Hold) -> bool:
        """Whether the pages are still out: neither released (if only pending) nor quarantined."""
        return self._lease_of(hold).state is LeaseState.HELD

    @staticmethod
    def _lease_of(hold: Hold) -> Lease:
        lease = hold.pages
        if not isinstance(lease, Lease):
            message = f"the pages of {_who(hold)} are {lease!r}, no lease of a page pool"
            raise ForeignLeaseError(message, lease)
        if (lease.rid, lease.attempt) != (hold.rid, hold.attempt):
            message = f"{_who(hold)} brought another owner's pages: {lease!r}"
            raise ForeignLeaseError(message, lease)
        return lease


def _who(hold: Hold) -> str:
    return f"request {hold.rid!r} incarnation {hold.incarnation} attempt {hold.attempt}"
