"""Faults about pages: freed early, freed twice, never freed, and kept for others although they are not whole."""

from __future__ import annotations

from ...vocabulary import Invariant
from ..careful import Attempt, Job
from ..notice import Notice
from .fault import Faulty


class SeedBefore(Faulty):
    """A grammar error in flight frees at once; the transfer's end frees again and replaces the reason."""

    breaks, seen_in = Invariant.NO_FREE_IN_FLIGHT, "sgl-project/sglang#30937, before the fix"

    def grammar_failed(self, job: Job) -> None:
        """Release, and leave the request in the in-flight queue."""
        if job.where == "in flight":
            self.record(job, "grammar_error")
            self.world.free(job.rid, job.attempt.pages)
        else:
            super().grammar_failed(job)


class FreesOnAbort(Faulty):
    """An abort frees the pages while a chunk is still being read."""

    breaks, seen_in = Invariant.NO_FREE_IN_FLIGHT, "sgl-project/sglang#36926"

    def touched(self, attempt: Attempt) -> bool:
        """Passes are waited for, transfers are not."""
        return bool(attempt.steps)


class FreesUnderThePass(Faulty):
    """The pages go back while a forward pass that was launched still writes them."""

    breaks, seen_in = Invariant.STREAM_ORDER, "vllm-project/vllm#45357"

    def touched(self, attempt: Attempt) -> bool:
        """Transfers are waited for, passes are not."""
        return bool(attempt.ops)


class FenceAtTheOldestPass(Faulty):
    """Of two passes in the pipe the older one is taken for the fence."""

    breaks, seen_in = Invariant.STREAM_ORDER, "sgl-project/sglang#36926"

    def pass_ended(self, job: Job, notice: Notice) -> None:
        """Once decided, one result is enough."""
        if job.where == "draining" and notice.step in job.attempt.steps:
            job.attempt.steps = [step for step in job.attempt.steps if step == notice.step]
        super().pass_ended(job, notice)


class FreesAtTheFirstOfTwo(Faulty):
    """Two ops read the pages; the first completion frees them."""

    breaks, seen_in = Invariant.FREE_AFTER_ALL_OPS, "vllm-project/vllm#46240"

    def op_ended(self, job: Job, notice: Notice) -> None:
        """One boolean for all owners."""
        attempt = self.attempt_of(job, notice)
        if job.where == "draining" and attempt is not None and notice.op in attempt.ops:
            attempt.ops = [op for op in attempt.ops if op == notice.op]
        super().op_ended(job, notice)


class FailedIsDrained(Faulty):
    """A failed poll is taken for proof that the card has stopped."""

    breaks, seen_in = Invariant.NO_FREE_IN_FLIGHT, "sgl-project/sglang#38961"

    def transfer_failed(self, job: Job, notice: Notice) -> None:
        """Failed, so over."""
        attempt = self.attempt_of(job, notice)
        if attempt is not None and notice.op in attempt.ops:
            attempt.ops.remove(notice.op)
            self.decide(job, "transfer_failed")


class FirstRankSpeaksForAll(Faulty):
    """An op counts as ended when the first rank's share of it has."""

    breaks, seen_in = (
        Invariant.RANK_AGREEMENT,
        "sgl-project/sglang#26394",
    )
    needs = ("ranks",)

    def every_rank(self, shares: dict[int, bool]) -> bool:
        """One is enough."""
        return bool(shares)


class PreemptsTheFinished(Faulty):
    """Preemption picks a request that finished in the same round, and frees its pages again."""

    breaks, seen_in = Invariant.SINGLE_RELEASE, "sgl-project/sglang#18694"
    needs = ("preemption",)

    def preempt(self, rid: str) -> None:
        """Whatever it is, take its pages."""
        job = self.jobs.get(rid)
        if job is not None and job.where == "gone" and job.attempt.pages:
            self.world.free(rid, job.attempt.pages)
        super().preempt(rid)

    def free(self, job: Job, attempt: Attempt) -> None:
        """The list of pages is left as it was."""
        pages = attempt.pages
        super().free(job, attempt)
        attempt.pages = pages


class DeadlineFrees(Faulty):
    """The drain deadline frees pages that the peer may still read."""

    breaks, seen_in = Invariant.NO_FREE_IN_FLIGHT, "NVIDIA/TensorRT-LLM#18163"
    needs = ("drain_deadline",)

    def give_up(self, job: Job, attempt: Attempt) -> None:
        """Long enough."""
        self.free(job, attempt)
        attempt.steps, attempt.ops = [], []


class QuarantineForgotten(Faulty):
    """The drain deadline ends the request, and its pages are nobody's from then on."""

    breaks, seen_in = Invariant.DRAIN_TO_ZERO, "vllm-project/vllm#46283"
    needs = ("drain_deadline",)

    def give_up(self, job: Job, attempt: Attempt) -> None:  # noqa: ARG002  # nothing is done for it
        """Only the request is dropped."""
        attempt.pages, attempt.steps, attempt.ops = (), [], []


class LeaksOnAbort(Faulty):
    """An abort in the middle of a prompt drops the request and keeps its pages."""

    breaks, seen_in = Invariant.DRAIN_TO_ZERO, "sgl-project/sglang#36926"

    def free(self, job: Job, attempt: Attempt) -> None:
        """The way out that forgot the release."""
        if job.where != "draining" or job.sent == job.chunks:
            super().free(job, attempt)


class PublishesAborted(Faulty):
    """The pages of an aborted request go to the prefix cache."""

    breaks, seen_in = Invariant.NO_TAINTED_PUBLISH, "sgl-project/sglang#28374"

    def free(self, job: Job, attempt: Attempt) -> None:
        """Keep them, they may be useful."""
        if attempt.pages and job.where == "draining":
            self.world.publish(job.rid, attempt.pages)
        super().free(job, attempt)
