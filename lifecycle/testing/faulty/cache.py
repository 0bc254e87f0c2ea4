"""Faults about the prefix cache: claims that are not looked at, dropped early, twice or never."""

from __future__ import annotations

from collections.abc import Sequence

from ...vocabulary import Invariant
from ..careful import Attempt, Job
from ..careful_cache import CarefulWithCache
from ..notice import Notice
from .fault import Faulty


class FaultyWithCache(CarefulWithCache, Faulty):
    """A scheduler with a prefix cache and one fault."""

    needs = ("prefix_cache",)


class EvictsTheClaimed(FaultyWithCache):
    """Under pressure the cache gives up pages on which a running request has a claim."""

    breaks, seen_in = Invariant.CLAIM_COUNT, "sgl-project/mini-sglang#52"

    def claim(self, pages: Sequence[int]) -> None:
        """The lock is taken on the parent, and not on the page."""


class EvictsThenClaims(FaultyWithCache):
    """Room is made for a request before its claim is taken, and the page that it matched is what goes."""

    breaks, seen_in = Invariant.CLAIM_COUNT, "Avarok-Cybersecurity/atlas#373"

    def admit(self, job: Job) -> None:
        """Match, then make room, then lock."""
        shared = self.cached(job)
        while (pages := self.world.alloc(job.rid, job.chunks - len(shared), shared)) is None:
            if not self.evict_one():
                return
        self.claim(shared)
        job.attempt.pages, job.attempt.shared = pages, shared
        job.where, job.computed = "running", len(shared)
        for _ in shared:
            self.send(job)


class FreesTheShared(FaultyWithCache):
    """The cached pages that a request used are freed with its own."""

    breaks, seen_in = Invariant.CLAIM_COUNT, "Avarok-Cybersecurity/atlas#373"

    def drop_claims(self, job: Job, attempt: Attempt) -> None:
        """All pages of its table are its own."""
        if attempt.shared:
            self.world.free(job.rid, attempt.shared)
        super().drop_claims(job, attempt)


class DropsItsClaimOnAbort(FaultyWithCache):
    """An abort between two chunks unlocks the cached pages, and the first chunk is still being read from them."""

    breaks, seen_in = Invariant.NO_FREE_IN_FLIGHT, "sgl-project/sglang#32564"

    def decide(self, job: Job, reason: str) -> None:
        """Decided, so the tree can be unlocked."""
        if job.where == "running" and job.attempt.ops:
            self.drop_claims(job, job.attempt)
        super().decide(job, reason)


class DropsItsClaimTwice(FaultyWithCache):
    """The claim is dropped on two ways out, and the second takes somebody else's."""

    breaks, seen_in = Invariant.CLAIM_COUNT, "UbiquitousLearning/mllm#656"

    def drop_claims(self, job: Job, attempt: Attempt) -> None:
        """Once here, and once where the request is cleaned up."""
        shared = attempt.shared
        super().drop_claims(job, attempt)
        if shared:
            self.world.unlock(job.rid, shared)


class NeverDropsItsClaim(FaultyWithCache):
    """A request that ends leaves its claims behind, and the cache can never give those pages up."""

    breaks, seen_in = Invariant.DRAIN_TO_ZERO, "jjang-ai/vmlx#68"

    def drop_claims(self, job: Job, attempt: Attempt) -> None:
        """Only the request's own table is cleared."""
        del job
        attempt.shared = ()


class PublishesBeforeItIsComputed(FaultyWithCache):
    """Pages go to the prefix cache when the pass that fills them is launched."""

    breaks, seen_in = Invariant.NO_TAINTED_PUBLISH, "vllm-project/vllm#37152"

    def hear(self, job: Job, notice: Notice) -> None:
        """With the first thing that is heard of a running request."""
        if job.where == "running" and job.attempt.pages:
            self.keep(job, job.attempt)
        super().hear(job, notice)
