"""Schedulers that are wrong, each in one way that a public report describes. The harness must find every one.

Each class overrides a few lines of :class:`~lifecycle.testing.careful.Careful`, says where the fault was seen, and
names in `breaks` the invariant of contract section 8 that it breaks. Together they show what the harness can see:
a gallery for readers, and the measure of the harness in the tests.
"""

from __future__ import annotations

from typing import ClassVar

from ..vocabulary import ABORT_REASONS, AbortSource, Event, Invariant
from .careful import Attempt, Careful, CarefulAtDecision, Job
from .notice import Notice

V = Invariant


class Faulty(Careful):
    """A scheduler with one fault.

    Attributes:
        breaks: the invariant that the harness must name.
        seen_in: the public report, or the reports' kind.
        needs: capabilities without which the fault cannot show.
    """

    breaks: ClassVar[Invariant]
    seen_in: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()


class SeedBefore(Faulty):
    """A grammar error in flight frees at once; the transfer's end frees again and replaces the reason."""

    breaks, seen_in = V.NO_FREE_IN_FLIGHT, "sgl-project/sglang#30937, before the fix"

    def grammar_failed(self, job: Job) -> None:
        """Release, and leave the request in the in-flight queue."""
        if job.where == "in flight":
            self.record(job, "grammar_error")
            self.world.free(job.rid, job.attempt.pages)
        else:
            super().grammar_failed(job)


class SeedAfter(Faulty):
    """The fix waits for the transfer's end, but an abort that waits in `to_finish` is lost there."""

    breaks, seen_in = V.STICKY_REASON, "sgl-project/sglang#30937, after the fix"

    def abort(self, rid: str, source: str) -> None:
        """In flight, the abort is noted where nobody looks."""
        for job in self.matching(rid):
            if job.where != "in flight":
                self.decide(job, ABORT_REASONS[AbortSource(source)])


class FailureReplacesAbort(Faulty):
    """The failure that follows a cancel is what the client sees."""

    breaks, seen_in = V.STICKY_REASON, "sgl-project/sglang#40251"

    def transfer_failed(self, job: Job, notice: Notice) -> None:
        """The last one wins."""
        if job.where == "draining" and notice.op in job.attempt.ops:
            job.reason = "transfer_failed"
        super().transfer_failed(job, notice)


class SuccessReplacesGrammarError(Faulty):
    """The transfer's success makes `length` of whatever was decided."""

    breaks, seen_in = V.STICKY_REASON, "sgl-project/sglang#30937"

    def op_ended(self, job: Job, notice: Notice) -> None:
        """Success is success."""
        if job.where == "draining" and notice.event is Event.TRANSFER_SUCCEEDED:
            job.reason = "length"
        super().op_ended(job, notice)


class FaultOutranksAbort(Faulty):
    """The first reason stays whatever comes, so a fault hides the client's abort."""

    breaks, seen_in = V.REASON_BY_POLICY, "sgl-project/sglang#40251"

    def record(self, job: Job, reason: str) -> None:
        """First come, first served."""
        if job.reason is None:
            job.reason = reason


class FreesOnAbort(Faulty):
    """An abort frees the pages while a chunk is still being read."""

    breaks, seen_in = V.NO_FREE_IN_FLIGHT, "sgl-project/sglang#36926"

    def touched(self, attempt: Attempt) -> bool:
        """Passes are waited for, transfers are not."""
        return bool(attempt.steps)


class FreesUnderThePass(Faulty):
    """The pages go back while a forward pass that was launched still writes them."""

    breaks, seen_in = V.STREAM_ORDER, "vllm-project/vllm#45357"

    def touched(self, attempt: Attempt) -> bool:
        """Transfers are waited for, passes are not."""
        return bool(attempt.ops)


class FenceAtTheOldestPass(Faulty):
    """Of two passes in the pipe the older one is taken for the fence."""

    breaks, seen_in = V.STREAM_ORDER, "sgl-project/sglang#36926"

    def pass_ended(self, job: Job, notice: Notice) -> None:
        """Once decided, one result is enough."""
        if job.where == "draining" and notice.step in job.attempt.steps:
            job.attempt.steps = [step for step in job.attempt.steps if step == notice.step]
        super().pass_ended(job, notice)


class FreesAtTheFirstOfTwo(Faulty):
    """Two ops read the pages; the first completion frees them."""

    breaks, seen_in = V.FREE_AFTER_ALL_OPS, "vllm-project/vllm#46240"

    def op_ended(self, job: Job, notice: Notice) -> None:
        """One boolean for all owners."""
        attempt = self.attempt_of(job, notice)
        if job.where == "draining" and attempt is not None and notice.op in attempt.ops:
            attempt.ops = [op for op in attempt.ops if op == notice.op]
        super().op_ended(job, notice)


class FailedIsDrained(Faulty):
    """A failed poll is taken for proof that the card has stopped."""

    breaks, seen_in = V.NO_FREE_IN_FLIGHT, "sgl-project/sglang#38961"

    def transfer_failed(self, job: Job, notice: Notice) -> None:
        """Failed, so over."""
        attempt = self.attempt_of(job, notice)
        if attempt is not None and notice.op in attempt.ops:
            attempt.ops.remove(notice.op)
            self.decide(job, "transfer_failed")


class AbortsByPrefix(Faulty):
    """Aborting `r1` ends `r10` too."""

    breaks, seen_in = V.EXACT_TARGET, "sgl-project/sglang#40251"

    def matching(self, rid: str) -> list[Job]:
        """By how it begins."""
        return [job for name, job in self.jobs.items() if name.startswith(rid)]


class LateCompletionCrashes(Faulty):
    """A completion of a request that is long done kills the engine."""

    breaks, seen_in = V.LATE_IS_ABSORBED, "vllm-project/vllm#43226"

    def op_ended(self, job: Job, notice: Notice) -> None:
        """An assertion on the happy path."""
        assert job.where != "gone", f"completion for the finished request {job.rid}"
        super().op_ended(job, notice)


class StaleAttemptFreesTheNew(Faulty):
    """What completes the preempted attempt frees the pages of the new one."""

    breaks, seen_in = V.ATTEMPT_SCOPED, "vllm-project/vllm#51637"
    needs = ("preemption",)

    def settle(self, job: Job, attempt: Attempt) -> None:
        """The pages are found by the rid alone."""
        if attempt is not job.attempt and not self.touched(attempt):
            self.free(job, job.attempt)
        super().settle(job, attempt)


class LaunchesAfterAbort(Faulty):
    """The next chunk is launched although the request is decided."""

    breaks, seen_in = V.NO_NEW_WORK_AFTER_DECISION, "sgl-project/sglang#36926"

    def settle(self, job: Job, attempt: Attempt) -> None:
        """Nobody told the launcher."""
        if job.where == "draining" and attempt is job.attempt and attempt.steps:
            self.launch(job)
        super().settle(job, attempt)


class SendsAfterAbort(Faulty):
    """The last pass's result starts a transfer for a request that was aborted meanwhile."""

    breaks, seen_in = V.NO_NEW_WORK_AFTER_DECISION, "sgl-project/sglang#34153"

    def pass_ended(self, job: Job, notice: Notice) -> None:
        """The result is there, so it is sent."""
        if job.where == "draining" and notice.step in job.attempt.steps:
            self.world.send(job.rid, "late", last=False)
        super().pass_ended(job, notice)


class AdmitsTheRejected(Faulty):
    """A request that was rejected in the queue is given pages."""

    breaks, seen_in = V.NO_NEW_WORK_AFTER_DECISION, "sgl-project/sglang#30233"

    def end(self, job: Job) -> None:
        """The queue is not cleaned."""
        waited = not job.attempt.pages and job.computed == 0 and job.sent == 0
        super().end(job)
        if waited:
            self.world.alloc(job.rid, 1)


class PublishesAborted(Faulty):
    """The pages of an aborted request go to the prefix cache."""

    breaks, seen_in = V.NO_TAINTED_PUBLISH, "reports of poisoned prefix caches"

    def free(self, job: Job, attempt: Attempt) -> None:
        """Keep them, they may be useful."""
        if attempt.pages and job.where == "draining":
            self.world.publish(job.rid, attempt.pages)
        super().free(job, attempt)


class PreemptsTheFinished(Faulty):
    """Preemption picks a request that finished in the same round, and frees its pages again."""

    breaks, seen_in = V.SINGLE_RELEASE, "sgl-project/sglang#18694"
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


class QuarantineForgotten(Faulty):
    """The drain deadline ends the request, and its pages are nobody's from then on."""

    breaks, seen_in = V.DRAIN_TO_ZERO, "vllm-project/vllm: blocks held for ever"
    needs = ("drain_deadline",)

    def give_up(self, job: Job, attempt: Attempt) -> None:  # noqa: ARG002  # nothing is done for it
        """Only the request is dropped."""
        attempt.pages, attempt.steps, attempt.ops = (), [], []


class DeadlineFrees(Faulty):
    """The drain deadline frees pages that the peer may still read."""

    breaks, seen_in = V.NO_FREE_IN_FLIGHT, "NVIDIA/TensorRT-LLM#18163"
    needs = ("drain_deadline",)

    def give_up(self, job: Job, attempt: Attempt) -> None:
        """Long enough."""
        self.free(job, attempt)
        attempt.steps, attempt.ops = [], []


class PeerNeverTold(Faulty):
    """The other leg waits for a request that is dead."""

    breaks, seen_in = V.PEER_TOLD, "sgl-project/sglang#32456"

    def tell_peer(self, job: Job) -> None:
        """It will notice."""


class PeerToldTwice(Faulty):
    """Every event that would cancel does."""

    breaks, seen_in = V.PEER_TOLD, "sgl-project/sglang#30551"

    def decide(self, job: Job, reason: str) -> None:
        """Tell it again."""
        if job.where == "draining":
            self.world.cancel(job.rid)
        super().decide(job, reason)


class ReportsTwice(Faulty):
    """The client hears of its abort at once, and again when the pages are back."""

    breaks, seen_in = V.REPORT_ONCE, "sgl-project/sglang#28341"

    def tell_client(self, job: Job) -> None:
        """Nobody remembers whether it was told."""
        if job.reason is not None:
            self.world.report(job.rid, job.reason)
            if job.attempt.told:
                self.world.report(job.rid, job.reason)


class ReportsTooEarly(Faulty):
    """The client is told at the decision, under a policy that says at the end."""

    breaks, seen_in = V.REASON_BY_POLICY, "vllm-project/vllm#53053"

    def decide(self, job: Job, reason: str) -> None:
        """Told before a better reason may come."""
        super().decide(job, reason)
        self.tell_client(job)


class NeverReportsTheQueued(Faulty):
    """A grammar that does not compile ends the request, and its client waits for ever."""

    breaks, seen_in = V.EVENTUALLY_DONE, "sgl-project/sglang#6803"

    def tell_client(self, job: Job) -> None:
        """Only who was running has a stream to write to."""
        if job.computed or job.sent or job.attempt.number:
            super().tell_client(job)


class LeaksOnAbort(Faulty):
    """An abort in the middle of a prompt drops the request and keeps its pages."""

    breaks, seen_in = V.DRAIN_TO_ZERO, "sgl-project/sglang#36926"

    def free(self, job: Job, attempt: Attempt) -> None:
        """The way out that forgot the release."""
        if job.where != "draining" or job.sent == job.chunks:
            super().free(job, attempt)


class OneFaultEndsAll(Faulty):
    """An engine fault of one request ends the others of the batch."""

    breaks, seen_in = V.FAULT_ISOLATED, "sgl-project/sglang#27162"

    def hear(self, job: Job, notice: Notice) -> None:
        """The batch is lost."""
        if notice.event is Event.ERROR:
            for other in self.jobs.values():
                self.decide(other, "internal_error")
        else:
            super().hear(job, notice)


class AbortOfTheUnknownRaises(Faulty):
    """An abort of a rid that is not known is a KeyError in the loop."""

    breaks, seen_in = V.ABORT_IS_TOTAL, "vllm-project/vllm#57062"

    def matching(self, rid: str) -> list[Job]:
        """It must be there."""
        return [self.jobs[rid]]


class FormerLifeEndsTheNew(Faulty):
    """What was meant for the former request of a rid ends the new one."""

    breaks, seen_in = (
        V.ATTEMPT_SCOPED,
        "vllm-project/vllm: a stale finished_recving of a rid in use again",
    )
    needs = ("rid_reuse",)

    def is_about(self, job: Job, notice: Notice) -> bool:
        """Verdicts go by the rid alone."""
        return super().is_about(job, notice) or (notice.op is None and notice.step is None)


class TellsTheBetterReasonToo(CarefulAtDecision, Faulty):
    """The client was told at the decision, and is told again when a better reason comes."""

    breaks, seen_in = V.REPORT_ONCE, "vllm-project/vllm#53053, told at the decision"
    needs = ("at_decision",)

    def record(self, job: Job, reason: str) -> None:
        """It deserves to know."""
        if self.rank(reason) > self.rank(job.reason):
            job.reason = reason
            if job.reported:
                self.world.report(job.rid, reason)


class FirstRankSpeaksForAll(Faulty):
    """An op counts as ended when the first rank's share of it has."""

    breaks, seen_in = (
        V.RANK_AGREEMENT,
        "sgl-project/sglang: a minimum over verdicts is the only consensus",
    )
    needs = ("ranks",)

    def every_rank(self, shares: dict[int, bool]) -> bool:
        """One is enough."""
        return bool(shares)


GALLERY: tuple[type[Faulty], ...] = (
    SeedBefore,
    SeedAfter,
    FailureReplacesAbort,
    SuccessReplacesGrammarError,
    FaultOutranksAbort,
    FreesOnAbort,
    FreesUnderThePass,
    FenceAtTheOldestPass,
    FreesAtTheFirstOfTwo,
    FailedIsDrained,
    AbortsByPrefix,
    LateCompletionCrashes,
    StaleAttemptFreesTheNew,
    LaunchesAfterAbort,
    SendsAfterAbort,
    AdmitsTheRejected,
    PublishesAborted,
    PreemptsTheFinished,
    QuarantineForgotten,
    DeadlineFrees,
    PeerNeverTold,
    PeerToldTwice,
    ReportsTwice,
    ReportsTooEarly,
    NeverReportsTheQueued,
    LeaksOnAbort,
    OneFaultEndsAll,
    AbortOfTheUnknownRaises,
    FormerLifeEndsTheNew,
    TellsTheBetterReasonToo,
    FirstRankSpeaksForAll,
)
"""Every faulty scheduler, in the order of the text above."""
