"""Faults about what an event is for: another request, a former life, an older attempt, or one that has ended."""

from __future__ import annotations

from ...vocabulary import Event, Invariant
from ..careful import Attempt, Job
from ..notice import Notice
from .fault import Faulty


class AbortsByPrefix(Faulty):
    """Aborting `r1` ends `r10` too."""

    breaks, seen_in = Invariant.EXACT_TARGET, "sgl-project/sglang#40251"

    def matching(self, rid: str) -> list[Job]:
        """By how it begins."""
        return [job for name, job in self.jobs.items() if name.startswith(rid)]


class AbortOfTheUnknownRaises(Faulty):
    """An abort of a rid that is not known is a KeyError in the loop."""

    breaks, seen_in = Invariant.ABORT_IS_TOTAL, "vllm-project/vllm#57062"

    def matching(self, rid: str) -> list[Job]:
        """It must be there."""
        return [self.jobs[rid]]


class OneFaultEndsAll(Faulty):
    """An engine fault of one request ends the others of the batch."""

    breaks, seen_in = Invariant.FAULT_ISOLATED, "sgl-project/sglang#27162"

    def hear(self, job: Job, notice: Notice) -> None:
        """The batch is lost."""
        if notice.event is Event.ERROR:
            for other in self.jobs.values():
                self.decide(other, "internal_error")
        else:
            super().hear(job, notice)


class LateCompletionCrashes(Faulty):
    """A completion of a request that is long done kills the engine."""

    breaks, seen_in = Invariant.LATE_IS_ABSORBED, "vllm-project/vllm#43226"

    def op_ended(self, job: Job, notice: Notice) -> None:
        """An assertion on the happy path."""
        assert job.where != "gone", f"completion for the finished request {job.rid}"
        super().op_ended(job, notice)


class StaleAttemptFreesTheNew(Faulty):
    """What completes the preempted attempt frees the pages of the new one."""

    breaks, seen_in = Invariant.ATTEMPT_SCOPED, "vllm-project/vllm#51637"
    needs = ("preemption",)

    def settle(self, job: Job, attempt: Attempt) -> None:
        """The pages are found by the rid alone."""
        if attempt is not job.attempt and not self.touched(attempt):
            self.free(job, job.attempt)
        super().settle(job, attempt)


class FormerLifeEndsTheNew(Faulty):
    """What was meant for the former request of a rid ends the new one."""

    breaks, seen_in = (
        Invariant.ATTEMPT_SCOPED,
        "vllm-project/vllm: a stale finished_recving of a rid in use again",
    )
    needs = ("rid_reuse",)

    def is_about(self, job: Job, notice: Notice) -> bool:
        """Verdicts go by the rid alone."""
        return super().is_about(job, notice) or (notice.op is None and notice.step is None)


class LaunchesAfterAbort(Faulty):
    """The next chunk is launched although the request is decided."""

    breaks, seen_in = Invariant.NO_NEW_WORK_AFTER_DECISION, "sgl-project/sglang#36926"

    def settle(self, job: Job, attempt: Attempt) -> None:
        """Nobody told the launcher."""
        if job.where == "draining" and attempt is job.attempt and attempt.steps:
            self.launch(job)
        super().settle(job, attempt)


class SendsAfterAbort(Faulty):
    """The last pass's result starts a transfer for a request that was aborted meanwhile."""

    breaks, seen_in = Invariant.NO_NEW_WORK_AFTER_DECISION, "sgl-project/sglang#34153"

    def pass_ended(self, job: Job, notice: Notice) -> None:
        """The result is there, so it is sent."""
        if job.where == "draining" and notice.step in job.attempt.steps:
            self.world.send(job.rid, "late", last=False)
        super().pass_ended(job, notice)


class AdmitsTheRejected(Faulty):
    """A request that was rejected in the queue is given pages."""

    breaks, seen_in = Invariant.NO_NEW_WORK_AFTER_DECISION, "sgl-project/sglang#30233"

    def end(self, job: Job) -> None:
        """The queue is not cleaned."""
        waited = not job.attempt.pages and job.computed == 0 and job.sent == 0
        super().end(job)
        if waited:
            self.world.alloc(job.rid, 1)
