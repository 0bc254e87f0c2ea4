"""Claims on shared pages: each holder has its own, and a page is free when the last one is dropped.

Most pages have one holder all their life, and for those nothing is kept here: their lease *is* the
claim. A page enters this table when a second holder appears (another request, or the prefix cache)
and leaves it when it becomes free (contract sections 3 and 7, invariant ``claim_count``).

A claim of a holder that ended while its transfers were open becomes a *pending* claim: the page is
not free before that holder's ops and streams are through, even if all other holders left long ago.
"""

from __future__ import annotations

import enum

import attrs


class PageClass(enum.Enum):
    """The one place where a page is counted. If several would fit, the first listed is meant."""

    HELD = "held"
    QUARANTINED = "quarantined"
    PENDING = "pending"
    CACHED = "cached"
    FREE = "free"


@attrs.define(eq=False)
class PageClaims:
    """How many holders of each kind a shared page has."""

    holders: int = 0
    quarantined: int = 0
    pending: int = 0
    is_cached: bool = False

    def classify(self) -> PageClass:
        """Where the page counts."""
        if self.holders:
            return PageClass.HELD
        if self.quarantined:
            return PageClass.QUARANTINED
        if self.pending:
            return PageClass.PENDING
        return PageClass.CACHED if self.is_cached else PageClass.FREE
