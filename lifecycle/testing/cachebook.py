"""Which pages are the prefix cache's, and who has a claim on them; a scheduler's cache is held against it.

Contract section 7: each holder has a claim of its own on a shared page, and a page with a claim is not evicted.
"""

from __future__ import annotations

from collections.abc import Iterator

Holder = tuple[str, int]
"""A request and the number of an attempt of it."""


class CacheBook:
    """See the module's text. Methods return what is wrong, or None.

    Attributes:
        claims: for each page of the cache, the attempts that have a claim on it.
    """

    def __init__(self) -> None:
        self.claims: dict[int, list[Holder]] = {}
        self._unproven: dict[int, list[Holder]] = {}  # of attempts that went to quarantine

    def kept(self, page: int) -> None:
        """The cache has a page from now on."""
        self.claims[page] = []

    def taken(self, page: int, holder: Holder) -> str | None:
        """An attempt takes a claim."""
        if page not in self.claims:
            return f"it takes page {page} from the prefix cache, which does not have it"
        self.claims[page].append(holder)
        return None

    def holders(self, page: int, rid: str) -> list[Holder]:
        """The attempts of a request that have a claim on a page, the oldest first."""
        return sorted(holder for holder in self.claims.get(page, ()) if holder[0] == rid)

    def is_unproven(self, page: int, rid: str) -> bool:
        """Whether an attempt of the request had a claim on the page when it went to quarantine."""
        return any(holder[0] == rid for holder in self._unproven.get(page, ()))

    def dropped(self, page: int, holder: Holder) -> None:
        """An attempt drops its claim."""
        self.claims[page].remove(holder)

    def evicted(self, page: int) -> str | None:
        """The cache gives a page up."""
        if page not in self.claims:
            return f"page {page} is evicted from the prefix cache, which does not have it"
        holders = [*self.claims.pop(page), *self._unproven.pop(page, ())]
        if not holders:
            return None
        who = ", ".join(f"{rid!r} attempt {attempt}" for rid, attempt in holders)
        return f"page {page} is evicted from the prefix cache, but {who} has a claim on it"

    def quarantined(self, holder: Holder) -> None:
        """The drain of an attempt was never proven: nobody may drop its claims."""
        for page, holders in self.claims.items():
            while holder in holders:
                holders.remove(holder)
                self._unproven.setdefault(page, []).append(holder)

    def proven(self) -> None:
        """Nothing runs any more: what was unproven is over."""
        self._unproven.clear()

    def open(self) -> Iterator[tuple[int, Holder]]:
        """The claims that were not dropped."""
        for page, holders in self.claims.items():
            for holder in holders:
                yield page, holder
