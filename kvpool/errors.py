"""Every way in which the pool says no, one class each.

A refused call changes nothing: the pool is the same before and after (contract section 5, "never
half-applies"). The one exception is :class:`LateWriteError`, which first takes the spoilt pages out
of circulation, since the next caller must not be given them.

Messages are written for somebody who was woken up: they name the lease, its owner, and for a double
release both releases, each with who asked, the pool's operation counter, the time if the pool was
given a clock, and the call site if it was made with ``debug=True``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvpool.lease import EndRecord, Lease, Shortage


class PoolError(Exception):
    """The base of all errors of kvpool."""


class LayoutError(PoolError, ValueError):
    """A layout or a pool size that makes no sense (zero layers, pages that do not fill a slab)."""


class DeviceMemoryError(PoolError, MemoryError):
    """The device has less memory than the slabs need; found before anything was allocated, where
    possible.

    ``needed`` and ``free`` are bytes; ``free`` is None where the device does not tell.
    """

    def __init__(self, message: str, *, device: str, needed: int, free: int | None) -> None:
        super().__init__(message)
        self.device = device
        self.needed = needed
        self.free = free


class OutOfPagesError(PoolError):
    """No pages now, and none that are only waiting: the scheduler has to preempt, or to refuse.

    ``shortage`` has the figures. The subclass :class:`PagesComingError` says that waiting will do.
    """

    def __init__(self, message: str, shortage: Shortage) -> None:
        super().__init__(message)
        self.shortage = shortage


class PagesComingError(OutOfPagesError):
    """Not enough pages now, but released ones will do once their streams and transfers are through.

    Preempting a request for these would be in vain: try again after the next step or poll.
    """


class LeaseError(PoolError):
    """The base of errors about one lease, which ``lease`` holds."""

    def __init__(self, message: str, lease: object) -> None:
        super().__init__(message)
        self.lease = lease


class StaleLeaseError(LeaseError):
    """A lease was used (viewed, shared, extended, published) after its release or quarantine."""

    def __init__(self, message: str, lease: Lease, ended: EndRecord) -> None:
        super().__init__(message, lease)
        self.ended = ended


class DoubleReleaseError(StaleLeaseError):
    """A second release of one lease (invariant ``single_release``). ``ended`` is the first one,
    ``second`` this.
    """

    def __init__(self, message: str, lease: Lease, ended: EndRecord, second: EndRecord) -> None:
        super().__init__(message, lease, ended)
        self.second = second


class ForeignLeaseError(LeaseError):
    """What was given is no lease of this pool: another pool's, a copy, another owner's, or no lease
    at all.
    """


class OpOpenError(LeaseError):
    """A transfer op of this name is open on this lease already."""


class NotProvenError(LeaseError):
    """Tokens cannot be marked as proven: more than the pages hold, fewer than before, or the lease
    is tainted.
    """


class PageOutOfRangeError(PoolError, IndexError):
    """A page id that this pool does not have (now): negative, too large, or of a slab that was
    trimmed.
    """


class TokenRangeError(PoolError, IndexError):
    """A token range outside the pages of a lease."""


class QuarantineError(PoolError):
    """A quarantine was released without proof, or nothing of that name is in quarantine."""


class LateWriteError(PoolError):
    """A page changed after it was free: somebody wrote late (found with ``debug=True`` only).

    ``pages`` are the spoilt ones; they are in quarantine now, under the name of their last owner.
    """

    def __init__(self, message: str, pages: tuple[int, ...]) -> None:
        super().__init__(message)
        self.pages = pages


class AuditError(PoolError):
    """The books do not balance: a page is in no place or in two."""
