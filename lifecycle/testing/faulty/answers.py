"""Faults about what clients and peers are told: the wrong reason, twice, too early, never."""

from __future__ import annotations

from ...vocabulary import ABORT_REASONS, AbortSource, Event, Invariant
from ..careful import CarefulAtDecision, Job
from ..notice import Notice
from .fault import Faulty


class SeedAfter(Faulty):
    """The fix waits for the transfer's end, but an abort that waits in `to_finish` is lost there."""

    breaks, seen_in = Invariant.STICKY_REASON, "sgl-project/sglang#30937, after the fix"

    def abort(self, rid: str, source: str) -> None:
        """In flight, the abort is noted where nobody looks."""
        for job in self.matching(rid):
            if job.where != "in flight":
                self.decide(job, ABORT_REASONS[AbortSource(source)])


class FailureReplacesAbort(Faulty):
    """The failure that follows a cancel is what the client sees."""

    breaks, seen_in = Invariant.STICKY_REASON, "sgl-project/sglang#40251"

    def transfer_failed(self, job: Job, notice: Notice) -> None:
        """The last one wins."""
        if job.where == "draining" and notice.op in job.attempt.ops:
            job.reason = "transfer_failed"
        super().transfer_failed(job, notice)


class SuccessReplacesGrammarError(Faulty):
    """The transfer's success makes `length` of whatever was decided."""

    breaks, seen_in = Invariant.STICKY_REASON, "sgl-project/sglang#30937"

    def op_ended(self, job: Job, notice: Notice) -> None:
        """Success is success."""
        if job.where == "draining" and notice.event is Event.TRANSFER_SUCCEEDED:
            job.reason = "length"
        super().op_ended(job, notice)


class FaultOutranksAbort(Faulty):
    """The first reason stays whatever comes, so a fault hides the client's abort."""

    breaks, seen_in = Invariant.REASON_BY_POLICY, "sgl-project/sglang#40251"

    def record(self, job: Job, reason: str) -> None:
        """First come, first served."""
        if job.reason is None:
            job.reason = reason


class TellsTheBetterReasonToo(CarefulAtDecision, Faulty):
    """The client was told at the decision, and is told again when a better reason comes."""

    breaks, seen_in = Invariant.REPORT_ONCE, "vllm-project/vllm#53053, told at the decision"
    needs = ("at_decision",)

    def record(self, job: Job, reason: str) -> None:
        """It deserves to know."""
        if self.rank(reason) > self.rank(job.reason):
            job.reason = reason
            if job.reported:
                self.world.report(job.rid, reason)


class ReportsTwice(Faulty):
    """The client hears of its abort at once, and again when the pages are back."""

    breaks, seen_in = Invariant.REPORT_ONCE, "sgl-project/sglang#28341"

    def tell_client(self, job: Job) -> None:
        """Nobody remembers whether it was told."""
        if job.reason is not None:
            self.world.report(job.rid, job.reason)
            if job.attempt.told:
                self.world.report(job.rid, job.reason)


class ReportsTooEarly(Faulty):
    """The client is told at the decision, under a policy that says at the end."""

    breaks, seen_in = Invariant.REASON_BY_POLICY, "vllm-project/vllm#53053"

    def decide(self, job: Job, reason: str) -> None:
        """Told before a better reason may come."""
        super().decide(job, reason)
        self.tell_client(job)


class NeverReportsTheQueued(Faulty):
    """A grammar that does not compile ends the request, and its client waits for ever."""

    breaks, seen_in = Invariant.EVENTUALLY_DONE, "sgl-project/sglang#6803"

    def tell_client(self, job: Job) -> None:
        """Only who was running has a stream to write to."""
        if job.computed or job.sent or job.attempt.number:
            super().tell_client(job)


class PeerNeverTold(Faulty):
    """The other leg waits for a request that is dead."""

    breaks, seen_in = Invariant.PEER_TOLD, "sgl-project/sglang#32456"

    def tell_peer(self, job: Job) -> None:
        """It will notice."""


class PeerToldTwice(Faulty):
    """Every event that would cancel does."""

    breaks, seen_in = Invariant.PEER_TOLD, "sgl-project/sglang#30551"

    def decide(self, job: Job, reason: str) -> None:
        """Tell it again."""
        if job.where == "draining":
            self.world.cancel(job.rid)
        super().decide(job, reason)
