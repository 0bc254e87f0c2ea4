"""Where every page really is, counted beside the pool that is under test.

The ledger is told of each grant, each use and each return, and works out from that alone which pages nobody may
be given. It trusts no count of the pool: it compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from ..vocabulary import Invariant
from .pools import PoolUnderTest

Broke = tuple[Invariant, str]
Key = tuple[str, int, int]
"""A request's rid, incarnation and attempt."""


@attrs.define(eq=False)
class Holding:
    """One attempt's pages.

    Attributes:
        key: whose they are.
        grant: what the pool gave.
        pages, fresh: its page numbers, and those of them that did not come from the prefix cache.
        away: how they went: "released", "quarantined", "cleared" (out of quarantine), or "" while they are out.
        shared: how many tokens were known from the start.
        launched, finished: its passes; each computes one more token.
    """

    key: Key
    grant: object
    pages: tuple[int, ...]
    fresh: tuple[int, ...]
    away: str = ""
    shared: int = 0
    launched: list[int] = attrs.field(factory=list)
    finished: set[int] = attrs.field(factory=set)

    @property
    def proven(self) -> int:
        """How many tokens, from the start, are known to be complete."""
        passes = 0
        while passes < len(self.launched) and self.launched[passes] in self.finished:
            passes += 1
        return min(self.shared + passes, len(self.pages))


class Ledger:
    """See the module's text. Methods return what broke, or None."""

    def __init__(self, pool: PoolUnderTest) -> None:
        self.pool = pool
        self.holdings: dict[Key, Holding] = {}
        self._content: dict[int, int] = {}
        self._used_at: dict[int, int] = {}  # page -> events of the stream before its last use there
        self._stamp = 0
        self.unsafe: set[Key] = set()  # released by the unsafe policy, which asked for what follows

    def granted(self, key: Key, grant: object, in_use: Callable[[Key], bool]) -> Broke | None:
        """A grant went out; `in_use` tells whether a pass or op of an attempt may still touch its pages."""
        pages, fresh = tuple(self.pool.pages(grant)), tuple(self.pool.fresh(grant))
        for holder in self.holdings.values():
            if holder.away == "cleared" or not set(fresh) & set(holder.pages):
                continue
            both = sorted(set(fresh) & set(holder.pages))
            if holder.away == "":
                return (
                    Invariant.SINGLE_RELEASE,
                    f"pages {both} have two owners: {holder.key}, {key}",
                )
            if holder.away == "quarantined" and set(fresh) & set(holder.fresh):
                return Invariant.NO_FREE_IN_FLIGHT, f"pages {both} of {key} are in quarantine"
            if holder.key not in self.unsafe and in_use(holder.key):
                return (
                    Invariant.NO_FREE_IN_FLIGHT,
                    f"pages {both} of {key} are used by {holder.key}",
                )
        for page in fresh:
            if self._used_at.get(page, -1) >= self.pool.stream.reached:
                return Invariant.STREAM_ORDER, f"page {page} of {key} is still used on the stream"
        holding = Holding(key, grant, pages, fresh, shared=len(pages) - len(fresh))
        self.holdings[key] = holding
        self._stamp += 1
        for page in fresh:
            self.pool.write(page, self._stamp)
            self._content[page] = self._stamp
        return None

    def used(self, key: Key) -> None:
        """Work on the stream that touches the attempt's pages was queued."""
        for page in self.holdings[key].pages:
            self._used_at[page] = self.pool.stream.recorded

    def intact(self, key: Key) -> Broke | None:
        """Whether the attempt's pages hold what was written."""
        for page in self.holdings[key].pages:
            if self.pool.read(page) != self._content[page]:
                return Invariant.NO_FREE_IN_FLIGHT, f"somebody wrote to page {page} of {key}"
        return None

    def published(self, key: Key, before: Collection[int]) -> Broke | None:
        """Pages of the attempt went to the prefix cache, which had `before`."""
        new = set(self.pool.cached()) - set(before)
        holding = self.holdings[key]
        tainted = new - set(holding.pages[: holding.proven])
        if tainted:
            text = (
                f"pages {sorted(tainted)} of {key} were cached; {holding.proven} tokens are proven"
            )
            return Invariant.NO_TAINTED_PUBLISH, text
        return None

    def counts(self) -> Broke | None:
        """Whether the pool counts what this ledger counts."""
        counts = self.pool.counts()
        if not counts.balanced:
            return Invariant.DRAIN_TO_ZERO, f"pages were lost or made: {counts}"
        out: set[int] = set()
        perhaps: set[int] = (
            set()
        )  # shared pages of a lease in quarantine: a pool may keep them back
        for holding in self.holdings.values():
            if holding.away == "":
                out.update(holding.pages)
            elif holding.away == "quarantined":
                out.update(holding.fresh)
                perhaps.update(holding.pages)
        kept = counts.held + counts.quarantined
        if kept < len(out):
            return Invariant.CLAIM_COUNT, f"{len(out)} pages are out; the pool says {counts}"
        if kept > len(out | perhaps):
            return Invariant.DRAIN_TO_ZERO, f"only {len(out)} pages are out; the pool says {counts}"
        return None
