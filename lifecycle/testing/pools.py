"""What the stack's harness asks of a pool, and a pool in plain Python that answers it.

:class:`PoolUnderTest` is the whole of it: pages go out as a *grant* (whatever the pool likes), come back through
the driver's ports, and can be counted. :class:`PlainPool` has no torch and no tricks; it is what a scheduler
author may read to see what is meant. ``kvpool.testing.LeasePool`` puts a real :class:`kvpool.PagePool` in its
place.

Streams stand for device-side work that the host does not see the end of: a copy to the host's memory, say. A pool
must not hand a page out again before every stream that used it has got past that use (contract section 8,
``stream_order``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import attrs

from ..ports import Hold


class StreamUnderTest(Protocol):
    """Work in order, of which the test says how far it is."""

    recorded: int
    reached: int

    def complete(self, position: int | None = None) -> None:
        """Get on to `position`, or to the end of what was recorded."""


@attrs.frozen
class Counts:
    """Where a pool's pages are, in pages. ``pending`` were released, and wait for a stream or an op."""

    total: int
    free: int
    held: int
    pending: int
    cached: int
    quarantined: int

    @property
    def balanced(self) -> bool:
        """Whether each page is in one place."""
        return self.total == self.free + self.held + self.pending + self.cached + self.quarantined


class PoolUnderTest(Protocol):
    """A pool, as :mod:`lifecycle.testing.stack` uses it. The last four are the driver's ports."""

    @property
    def stream(self) -> StreamUnderTest:
        """Where device-side work is queued of which the host does not see the end."""

    def alloc(self, rid: str, attempt: int, tokens: Sequence[int]) -> object | None:
        """A grant of one page a token, some of them cached ones if they hold these tokens; None if short."""

    def pages(self, grant: object) -> Sequence[int]:
        """The grant's pages, in the order of the tokens."""

    def fresh(self, grant: object) -> Sequence[int]:
        """Those of them that did not come from the prefix cache."""

    def counts(self) -> Counts:
        """Where the pages are now."""

    def cached(self) -> Collection[int]:
        """The pages that the prefix cache has a claim on."""

    def write(self, page: int, value: int) -> None:
        """Write a number into a page, as a forward pass does."""

    def read(self, page: int) -> int:
        """The number in a page."""

    def use(self, grant: object) -> None:
        """Work on ``stream`` that touches the grant's pages was queued."""

    def open_op(self, grant: object, op: str) -> None:
        """An op that touches the grant's pages is posted."""

    def drain_op(self, grant: object, op: str) -> None:
        """That op touches them no more."""

    def prove(self, grant: object, tokens: int) -> None:
        """The KV of the first `tokens` tokens is known to be complete."""

    def clear_quarantine(self, grant: object) -> None:
        """An operator says that the grant's pages, which are in quarantine, are quiet."""

    def release(self, hold: Hold) -> None:
        """See :class:`lifecycle.ports.KVPool`."""

    def quarantine(self, hold: Hold) -> None:
        """See :class:`lifecycle.ports.KVPool`."""

    def holds(self, hold: Hold) -> bool:
        """See :class:`lifecycle.ports.KVPool`."""

    def publish(self, hold: Hold) -> None:
        """See :class:`lifecycle.ports.PrefixCache`."""


@attrs.define(eq=False)
class Stream:
    """A stream whose work is done when the test says so."""

    recorded: int = 0
    reached: int = 0

    def complete(self, position: int | None = None) -> None:
        """Get on."""
        self.reached = max(self.reached, self.recorded if position is None else position)


@attrs.define(eq=False)
class Grant:
    """Pages of one attempt. ``shared`` counts those at the front that came from the cache."""

    pages: tuple[int, ...]
    tokens: tuple[int, ...]
    shared: int = 0
    state: str = "held"
    proven: int = 0
    used: bool = False
    until: int = 0  # the position of the stream that the pages wait for


class PlainPool:
    """Pages in lists and dictionaries. It frees what it is told to free, and knows nothing of claims but counts.

    Args:
        pages: how many there are.
    """

    def __init__(self, pages: int = 8) -> None:
        self.stream = Stream()
        self._total = pages
        self._free = list(range(pages))[::-1]
        self._holders = [0] * pages
        self._until = [
            0
        ] * pages  # the position that the stream must reach before a page is used again
        self._pending: list[int] = []
        self._cache: dict[tuple[int, ...], int] = {}  # all tokens up to a page's end -> the page
        self._kept: set[int] = set()
        self._quarantined = 0
        self._content = [0] * pages

    def alloc(self, rid: str, attempt: int, tokens: Sequence[int]) -> Grant | None:  # noqa: ARG002  # as leases need
        """Cached pages for the start of the tokens, free ones for the rest."""
        wanted = tuple(tokens)
        shared: list[int] = []
        while len(shared) < len(wanted) - 1 and wanted[: len(shared) + 1] in self._cache:
            shared.append(self._cache[wanted[: len(shared) + 1]])
        self._claim(shared)  # before anything is evicted to make room
        self._settle()
        needed = len(wanted) - len(shared)
        while len(self._free) < needed and self._evict():
            pass
        if len(self._free) < needed:
            self._unclaim(shared)
            return None
        taken = [self._free.pop() for _ in range(needed)]
        self._claim(taken)
        return Grant((*shared, *taken), wanted, len(shared), proven=len(shared))

    def pages(self, grant: object) -> Sequence[int]:
        """As granted."""
        return self._mine(grant).pages

    def fresh(self, grant: object) -> Sequence[int]:
        """Those behind the shared ones."""
        mine = self._mine(grant)
        return mine.pages[mine.shared :]

    def counts(self) -> Counts:
        """Counted anew, page by page."""
        pending = len(self._pending)
        held = sum(count > 0 for count in self._holders)
        cached = sum(self._holders[page] == 0 for page in self._kept)
        return Counts(
            self._total,
            len(self._free),
            held - self._quarantined,
            pending,
            cached,
            self._quarantined,
        )

    def cached(self) -> Collection[int]:
        """Whoever else has them."""
        return self._kept

    def write(self, page: int, value: int) -> None:
        """A page is one number."""
        self._content[page] = value

    def read(self, page: int) -> int:
        """A page is one number."""
        return self._content[page]

    def use(self, grant: object) -> None:
        """The release will wait for it."""
        self._mine(grant).used = True

    def open_op(self, grant: object, op: str) -> None:
        """Claims are the table's business; this pool trusts it."""

    def drain_op(self, grant: object, op: str) -> None:
        """As above."""

    def prove(self, grant: object, tokens: int) -> None:
        """Noted, for the prefix cache."""
        self._mine(grant).proven = max(self._mine(grant).proven, tokens)

    def clear_quarantine(self, grant: object) -> None:
        """The pages are as good as any."""
        mine = self._mine(grant)
        if mine.state == "quarantined":
            mine.state = "released"
            self._quarantined -= len(mine.pages) - mine.shared
            self._unclaim(mine.pages[mine.shared :], mine.until)

    def release(self, hold: Hold) -> None:
        """Back to the free list, or to those that wait for the stream."""
        mine = self._end(hold, "released")
        self._unclaim(mine.pages, mine.until)

    def quarantine(self, hold: Hold) -> None:
        """Fresh pages stay out; of shared ones only the claim ends, since nothing wrote them."""
        mine = self._end(hold, "quarantined")
        self._quarantined += len(mine.pages) - mine.shared
        self._unclaim(mine.pages[: mine.shared], mine.until)

    def holds(self, hold: Hold) -> bool:
        """Whether neither was done."""
        return self._mine(hold.pages).state == "held"

    def publish(self, hold: Hold) -> None:
        """Keep the proven pages, unless their content is kept already."""
        mine = self._mine(hold.pages)
        for end in range(1, mine.proven + 1):
            page = mine.pages[end - 1]
            if mine.tokens[:end] not in self._cache and page not in self._kept:
                self._cache[mine.tokens[:end]] = page
                self._kept.add(page)

    def _mine(self, grant: object) -> Grant:
        if not isinstance(grant, Grant):
            msg = f"{grant!r} is no grant of this pool"
            raise TypeError(msg)
        return grant

    def _end(self, hold: Hold, how: str) -> Grant:
        mine = self._mine(hold.pages)
        if mine.state != "held":
            msg = f"the pages of {hold} are {mine.state} already"
            raise RuntimeError(msg)
        mine.state = how
        if mine.used:  # an event behind all work that was queued so far
            self.stream.recorded += 1
            mine.until = self.stream.recorded
        return mine

    def _claim(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._holders[page] += 1

    def _unclaim(self, pages: Iterable[int], position: int = 0) -> None:
        for page in pages:
            self._holders[page] -= 1
            self._until[page] = max(self._until[page], position)
            if self._holders[page] == 0 and page not in self._kept:
                self._pending.append(page)
        self._settle()

    def _settle(self) -> None:
        """Free the pages that the stream has got past."""
        if self._pending:
            reached = self.stream.reached
            self._free += [page for page in self._pending if self._until[page] <= reached]
            self._pending = [page for page in self._pending if self._until[page] > reached]

    def _evict(self) -> bool:
        """Give up the longest chain that nobody uses; whether there was one."""
        idle = [chain for chain, page in self._cache.items() if self._holders[page] == 0]
        if not idle:
            return False
        page = self._cache.pop(max(idle, key=len))
        self._kept.discard(page)
        self._pending.append(page)
        self._settle()
        return True
