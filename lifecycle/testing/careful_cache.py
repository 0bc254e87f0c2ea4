"""The careful scheduler with a prefix cache, written by hand: pages of answered requests are kept for the next.

Three rules keep it right, and public reports tell of each what happens without it
(:mod:`lifecycle.testing.faulty.cache`). A request takes its claims on cached pages *before* anything is evicted
for it; it drops them with its own pages, when it is decided and drained; and pages go to the cache when the
request has been answered, not before.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from .careful import Attempt, Careful, Job
from .world import World


class CarefulWithCache(Careful):
    """See the module's text. The last page of a prompt is always computed, as engines do: it yields the token.

    Attributes:
        cache: the page of each content that is kept, the least recently used first.
        claims: how many attempts have a claim on a page.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.cache: OrderedDict[str, int] = OrderedDict(world.warm)
        self.claims: Counter[int] = Counter()

    def admit(self, job: Job) -> None:
        """Take what the cache has of the prompt; evict for the rest, if there is enough to evict."""
        shared = self.cached(job)
        self.claim(shared)
        while (pages := self.world.alloc(job.rid, job.chunks - len(shared), shared)) is None:
            if not self.evict_one():
                self.unclaim(shared)
                return
        job.attempt.pages, job.attempt.shared = pages, shared
        job.where, job.computed = "running", len(shared)
        for _ in shared:  # they are computed, so they are sent at once
            self.send(job)

    def cached(self, job: Job) -> tuple[int, ...]:
        """The cached pages with which the prompt begins."""
        shared = []
        for content in self.world.prompt(job.rid)[: job.chunks - 1]:
            if content not in self.cache:
                break
            self.cache.move_to_end(content)
            shared.append(self.cache[content])
        return tuple(shared)

    def claim(self, pages: Sequence[int]) -> None:
        """While there is a claim on a page, it is not evicted."""
        self.claims.update(pages)

    def unclaim(self, pages: Sequence[int]) -> None:
        """An attempt is done with these pages."""
        self.claims.subtract(pages)

    def evict_one(self) -> bool:
        """Give the least recently used page back on which nobody has a claim; False if there is none."""
        for content, page in self.cache.items():
            if not self.claims[page]:
                del self.cache[content]
                self.world.evict([page])
                return True
        return False

    def free(self, job: Job, attempt: Attempt) -> None:
        """Keep the pages of a request that was answered, give back the others, and drop the claims."""
        if attempt is job.attempt and job.reason in ("stop", "length"):
            self.keep(job, attempt)
        super().free(job, attempt)
        self.drop_claims(job, attempt)

    def drop_claims(self, job: Job, attempt: Attempt) -> None:
        """The attempt has ended."""
        if attempt.shared:
            self.world.unlock(job.rid, attempt.shared)
            self.unclaim(attempt.shared)
            attempt.shared = ()

    def keep(self, job: Job, attempt: Attempt) -> None:
        """Publish each page, unless another request has published the same meanwhile."""
        own = self.world.prompt(job.rid)[len(attempt.shared) :]
        new = {
            content: page
            for content, page in zip(own, attempt.pages, strict=True)
            if content not in self.cache
        }
        self.cache.update(new)
        self.world.publish(job.rid, list(new.values()))
        attempt.pages = tuple(page for page in attempt.pages if page not in new.values())
