"""An independent count of pages: who has which, and which transfers still read them.

It looks on from beside the allocators, is told of every page that goes out or comes back and of every
transfer that starts or drains, prevents nothing, and judges all schedulers alike. A transfer counts as running
until the scheduler could know that it drained. Forward passes are left out on purpose: the device runs them
in order, so a pass of the former owner is always through before one of the next owner starts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

Owner = tuple[str, int]
"""A request's rid and attempt."""


class Ledger:
    """Counts, in pages unless said otherwise.

    Attributes:
        handed_out: given to attempts.
        released_once: given back by the attempt that had them, with no transfer of it reading them.
        freed_in_flight: given back by the attempt that had them while a transfer of it still read them.
        freed_twice: given back by an attempt that had given them back already.
        two_owners: given to an attempt while another one had them.
        reused_in_flight: given to an attempt while nobody had them, but a former one's transfer still read them;
            counted each time.
        quarantined: taken out of circulation since their drain was never proven.
    """

    def __init__(self) -> None:
        self.handed_out = 0
        self.released_once = 0
        self.freed_in_flight = 0
        self.freed_twice = 0
        self.two_owners = 0
        self.reused_in_flight = 0
        self.quarantined = 0
        self._owners: defaultdict[int, set[Owner]] = defaultdict(set)
        self._readers: defaultdict[int, Counter[Owner]] = defaultdict(Counter)

    @property
    def leaked(self) -> int:
        """Pages that attempts still have. Ask it when nothing runs any more."""
        return sum(len(owners) for owners in self._owners.values())

    def took(self, pages: Iterable[int], owner: Owner) -> None:
        """An allocator gave these pages to this attempt."""
        for page in pages:
            self.handed_out += 1
            if self._owners[page]:
                self.two_owners += 1
            elif self._readers[page].total():
                self.reused_in_flight += 1
            self._owners[page].add(owner)

    def gave_back(self, pages: Iterable[int], owner: Owner) -> None:
        """These pages were given back in the name of this attempt."""
        for page in pages:
            if owner not in self._owners[page]:
                self.freed_twice += 1
            elif self._readers[page][owner]:
                self.freed_in_flight += 1
            else:
                self.released_once += 1
            self._owners[page].discard(owner)

    def set_aside(self, pages: Iterable[int], owner: Owner) -> None:
        """These pages of this attempt went to quarantine."""
        for page in pages:
            self.quarantined += 1
            self._owners[page].discard(owner)

    def lent(self, pages: Iterable[int], owner: Owner) -> None:
        """A transfer that reads these pages for this attempt is about to be posted."""
        for page in pages:
            self._readers[page][owner] += 1

    def drained(self, pages: Iterable[int], owner: Owner) -> None:
        """That transfer is known to read them no more."""
        for page in pages:
            self._readers[page][owner] -= 1
