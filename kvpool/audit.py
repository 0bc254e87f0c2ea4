"""The audit: look at every page, and say in which one place it is.

The counts of :meth:`kvpool.pool.PagePool.stats` are kept up as the pool works. The audit does not
use them: it walks over the free stacks, the live leases, the waiting and quarantined releases and
the cache, gives every page its class from what it finds there, and only then compares with the
counts. A page found nowhere has leaked; one found in two places would be handed to two owners.

``free + held + pending + cached + quarantined == total`` must hold always, and with nothing running
``held`` and ``pending`` are zero (contract section 8, ``drain_to_zero`` and ``claim_count``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from kvpool.claims import PageClass
from kvpool.errors import AuditError

if TYPE_CHECKING:
    from rich.table import Table

    from kvpool.lease import Lease
    from kvpool.pending import Waiting
    from kvpool.pool import PagePool, PoolStats


@attrs.frozen
class Holder:
    """Somebody who keeps pages from being free. ``age`` is in pool operations since it began to."""

    kind: str
    rid: str
    attempt: int
    pages: int
    age: int
    detail: str


@attrs.frozen
class Audit:
    """What an audit found. ``problems`` is empty if the books balance; the oldest holders first."""

    stats: PoolStats
    holders: tuple[Holder, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every page is in exactly one place and the counts agree."""
        return not self.problems

    @property
    def idle(self) -> bool:
        """Whether nothing is held or pending, which must be so when no request is left
        (``drain_to_zero``).
        """
        return self.ok and not self.stats.held and not self.stats.pending

    def check(self) -> Audit:
        """Raise AuditError if there are problems; return the audit itself if not."""
        if self.problems:
            raise AuditError("the page pool's books do not balance: " + "; ".join(self.problems))
        return self

    def __str__(self) -> str:
        s = self.stats
        lines = [
            f"{s.free} free + {s.held} held + {s.pending} pending + {s.cached} cached + "
            f"{s.quarantined} quarantined = {s.total} pages in {s.slabs} slabs, "
            f"after operation {s.op}: "
            + ("the books balance" if self.ok else f"{len(self.problems)} PROBLEMS")
        ]
        lines += [f"  problem: {problem}" for problem in self.problems]
        lines += [
            f"  {holder.kind:<12}{holder.rid} attempt {holder.attempt}: {holder.pages} pages, "
            f"age {holder.age}{', ' if holder.detail else ''}{holder.detail}"
            for holder in self.holders
        ]
        return "\n".join(lines)

    def table(self) -> Table:
        """The same as a table for a terminal (needs ``rich``)."""
        from rich.table import Table

        s = self.stats
        verdict = "books balance" if self.ok else f"{len(self.problems)} problems"
        table = Table(
            title=f"page pool: {s.total} pages, {verdict}",
            caption="\n".join(self.problems) or None,
            caption_style="bold red",
        )
        for name in ("where", "request", "attempt", "pages", "age (operations)", "waits for"):
            numeric = name in ("attempt", "pages", "age (operations)")
            table.add_column(name, justify="right" if numeric else "left")
        for kind in ("free", "held", "pending", "cached", "quarantined"):
            table.add_row(kind, "", "", str(getattr(s, kind)), "", "", style="bold")
            for holder in self.holders:
                if holder.kind == kind:
                    who = (holder.rid, str(holder.attempt), str(holder.pages), str(holder.age))
                    table.add_row("", *who, holder.detail)
        return table


def take_audit(pool: PagePool) -> Audit:
    """Audit ``pool``, whose lock is held. See the head of this module."""
    problems: list[str] = []
    found: dict[int, list[tuple[PageClass, str]]] = {}
    slabs = pool._some_slabs()

    def note(page: int, place: PageClass, who: str) -> None:
        found.setdefault(page, []).append((place, who))

    for slab in slabs:
        for page in slab.free_pages():
            note(page, PageClass.FREE, f"the free stack of slab {slab.index}")
    for lease in pool._leases():
        for page in lease._pages:
            note(page, PageClass.HELD, repr(lease))
    waitings = [(PageClass.PENDING, w) for w in pool._waiting.values()]
    waitings += [(PageClass.QUARANTINED, w) for w in pool._quarantine.values()]
    for place, waiting in waitings:
        for page in (*waiting.own, *waiting.shared):
            note(page, place, f"{place.value} {waiting.lease!r}")
    for page in pool._cache._pages() if pool._cache is not None else ():
        note(page, PageClass.CACHED, "the prefix cache")

    counts = dict.fromkeys(PageClass, 0)
    for slab in slabs:
        for page in range(slab.first_page, slab.first_page + slab.pages):
            places = found.pop(page, [])
            problems += _problems_of(pool, page, places)
            kinds = {place for place, _ in places}
            counts[next((place for place in PageClass if place in kinds), PageClass.HELD)] += 1
    problems += [
        f"page {page} is in {places[0][1]} but in no slab" for page, places in found.items()
    ]
    stats = pool._stats()
    for place, count in counts.items():
        if getattr(stats, place.value) != count:
            problems.append(
                f"{getattr(stats, place.value)} pages are counted as {place.value}, {count} are"
            )
    return Audit(stats, _holders(pool), tuple(problems))


def _problems_of(pool: PagePool, page: int, places: list[tuple[PageClass, str]]) -> list[str]:
    """What is wrong with one page, given everybody who says to have it."""
    names = ", ".join(who for _, who in places)
    if not places:
        return [f"page {page} is nowhere: it leaked"]
    kinds = [place for place, _ in places]
    claims = pool._claims.get(page)
    if claims is None:
        return [f"page {page} is in several places: {names}"] if len(places) > 1 else []
    expected = (claims.holders, claims.quarantined, claims.pending, int(claims.is_cached), 0)
    seen = tuple(kinds.count(place) for place in PageClass)
    if seen != expected:
        counts = f"(held, quarantined, pending, cached) {expected[:4]}"
        return [f"page {page} has claims {counts}, found: {names}"]
    is_evictable = claims.classify() is PageClass.CACHED
    if is_evictable != (page in pool._evictable):
        return [f"page {page} is {'not ' if is_evictable else ''}in the evictable list: {names}"]
    return []


def _holders(pool: PagePool) -> tuple[Holder, ...]:
    """Live leases, waiting releases, quarantines; each group oldest first."""

    def holder(kind: str, lease: Lease, pages: int, since: int, detail: str) -> Holder:
        return Holder(kind, lease._rid, lease._attempt, pages, pool._op - since, detail)

    def ended(kind: str, waiting: Waiting) -> Holder:
        lease = waiting.lease
        pages = len(waiting.own) + len(waiting.shared)
        detail = waiting.waits_for() if waiting.quarantine is None else waiting.quarantine
        return holder(kind, lease, pages, lease._ended_at, detail)

    held = []
    for lease in pool._leases():
        ops = lease.ops
        detail = f"ops open: {', '.join(ops)}" if ops else ""
        held.append(holder("held", lease, len(lease._pages), lease._generation, detail))
    held += [ended("pending", waiting) for waiting in pool._waiting.values()]
    held += [ended("quarantined", waiting) for waiting in pool._quarantine.values()]
    return tuple(held)
