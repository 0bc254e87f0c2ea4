"""A small scheduler whose clean-up is written by hand, and right. It knows nothing of this library but its words.

It shows how a scheduler is wrapped for the harness, and it is the ground on which
:mod:`lifecycle.testing.faulty` builds: each faulty scheduler overrides one of the small methods below, as one
line in a real engine is wrong. To write it right by hand takes all of the lines below, which is the case for a
declared table.
"""

from __future__ import annotations

import attrs

from ..vocabulary import ABORT_REASONS, AbortSource, Event
from .notice import Notice
from .world import World

DECIDED = frozenset({"client_abort", "server_abort", "timeout", "shutdown", "grammar_error"})


@attrs.define(eq=False)
class Attempt:
    """One attempt's pages, and who may still touch them."""

    number: int = 0
    pages: tuple[int, ...] = ()
    steps: list[int] = attrs.field(factory=list)
    ops: list[str] = attrs.field(factory=list)
    shared: tuple[int, ...] = ()  # pages of the prefix cache on which it has a claim
    told: bool = False  # the other leg was told of a cancel
    shares: dict[str, dict[int, bool]] = attrs.field(
        factory=dict
    )  # op -> rank -> whether delivered

    @property
    def busy(self) -> bool:
        """Whether a pass or an op is outstanding."""
        return bool(self.steps or self.ops)


@attrs.define(eq=False)
class Job:
    """What the scheduler knows of a request."""

    rid: str
    chunks: int
    attempt: Attempt = attrs.field(factory=Attempt)
    older: list[Attempt] = attrs.field(factory=list)
    where: str = "grammar"  # grammar, queue, running, in flight, draining, gone
    computed: int = 0
    sent: int = 0
    delivered: bool = False  # every op of the hand-off has succeeded
    reason: str | None = None
    reported: bool = False
    life: int = 1  # of the rid


class Careful:
    """The scheduler. Public methods are those of :class:`lifecycle.testing.world.Scheduler`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.jobs: dict[str, Job] = {}

    def submit(self, rid: str, chunks: int) -> None:
        """A new request."""
        former = self.jobs.get(rid)
        self.jobs[rid] = Job(rid, chunks, life=1 if former is None else former.life + 1)

    def abort(self, rid: str, source: str) -> None:
        """Abort exactly this rid."""
        for job in self.matching(rid):
            self.decide(job, ABORT_REASONS[AbortSource(source)])

    def step(self) -> None:
        """One turn of the loop."""
        for notice in self.world.notices():
            job = self.jobs.get(notice.rid)
            if job is None or not self.is_about(job, notice):
                self.stranger(notice)
            else:
                self.hear(job, notice)
        for job in list(self.jobs.values()):
            if job.where == "queue":
                self.admit(job)
            if job.where == "running":
                self.launch(job)

    def preempt(self, rid: str) -> None:
        """Take the pages back and queue the request again."""
        job = self.jobs.get(rid)
        if job is not None and self.can_preempt(job):
            old = job.attempt
            job.attempt = Attempt(old.number + 1)
            job.where, job.computed, job.sent = "queue", 0, 0
            self.retire(job, old)

    def drain_timeout(self, rid: str) -> None:
        """The drain deadline passed."""
        job = self.jobs.get(rid)
        if job is None:
            return
        for old in [*job.older, *([job.attempt] if job.where == "draining" else [])]:
            self.give_up(job, old)
        job.older.clear()
        if job.where == "draining":
            self.end(job)

    # What is heard.

    def hear(self, job: Job, notice: Notice) -> None:
        """One notice about a request that is known."""
        if notice.event is Event.GRAMMAR_READY:
            if job.where == "grammar":
                job.where = "queue"
        elif notice.event is Event.GRAMMAR_FAILED:
            self.grammar_failed(job)
        elif notice.event is Event.PEER_LOST:
            self.decide(job, "peer_lost")
        elif notice.event is Event.ERROR:
            self.decide(job, "internal_error")
        elif notice.event is Event.FORWARD_FINISHED:
            self.pass_ended(job, notice)
        elif notice.event is Event.TRANSFER_FAILED:
            self.transfer_failed(job, notice)
        else:
            self.op_ended(job, notice)

    def is_about(self, job: Job, notice: Notice) -> bool:
        """Whether it is about this life of the rid; what is late for a former one is not."""
        return job.life == notice.incarnation

    def stranger(self, notice: Notice) -> None:
        """A notice about a request that is not known: absorbed."""

    def grammar_failed(self, job: Job) -> None:
        """The grammar did not compile, or refused a token."""
        self.decide(job, "grammar_error")

    def pass_ended(self, job: Job, notice: Notice) -> None:
        """The result of a forward pass."""
        attempt = self.attempt_of(job, notice)
        if attempt is None or notice.step not in attempt.steps:
            return
        attempt.steps.remove(notice.step)
        if attempt is job.attempt and job.where == "running":
            job.computed += 1
            self.send(job)
        self.settle(job, attempt)

    def transfer_failed(self, job: Job, notice: Notice) -> None:
        """A verdict: it decides, and proves nothing about the hardware."""
        attempt = self.attempt_of(job, notice)
        if attempt is job.attempt and notice.op in attempt.ops:
            self.decide(job, "transfer_failed")

    def op_ended(self, job: Job, notice: Notice) -> None:
        """An op succeeded or drained: it touches the pages no more."""
        attempt = self.attempt_of(job, notice)
        if attempt is None or notice.op not in attempt.ops:
            return
        current = attempt is job.attempt
        shares = attempt.shares.setdefault(notice.op, {})
        shares.setdefault(notice.rank, notice.event is Event.TRANSFER_SUCCEEDED)
        if not self.every_rank(shares):
            if current and not all(shares.values()):
                self.decide(job, "transfer_failed")
            return
        attempt.ops.remove(notice.op)
        if current and not all(shares.values()) and job.where in ("running", "in flight"):
            self.decide(job, "transfer_failed")
        elif current and job.where == "in flight" and not attempt.ops:
            self.handed_over(job)
        self.settle(job, attempt)

    def every_rank(self, shares: dict[int, bool]) -> bool:
        """Whether each rank's share of an op has ended."""
        return len(shares) == self.world.ranks

    def handed_over(self, job: Job) -> None:
        """Every op has succeeded."""
        job.delivered = True
        if job.reason is None:
            job.reason = "length"

    # What is done.

    def matching(self, rid: str) -> list[Job]:
        """The requests that an abort of `rid` is for."""
        job = self.jobs.get(rid)
        return [] if job is None else [job]

    def attempt_of(self, job: Job, notice: Notice) -> Attempt | None:
        """The attempt that a pass or op belonged to; None if it is over."""
        for attempt in (job.attempt, *job.older):
            if attempt.number == notice.attempt:
                return attempt
        return None

    def decide(self, job: Job, reason: str) -> None:
        """The request ends, for this reason unless a better one stands."""
        if job.where == "gone":
            return
        self.record(job, reason)
        if job.where != "draining" and not job.delivered and not job.attempt.told:
            job.attempt.told = True
            self.tell_peer(job)
        job.where = "draining"
        self.settle(job, job.attempt)

    def record(self, job: Job, reason: str) -> None:
        """Decisions outrank faults, which outrank completions; within a rank the first one stays."""
        if self.rank(reason) > self.rank(job.reason):
            job.reason = reason

    @staticmethod
    def rank(reason: str | None) -> int:
        """How high a reason stands."""
        if reason is None:
            return 0
        if reason in ("stop", "length"):
            return 1
        return 3 if reason in DECIDED else 2

    def tell_peer(self, job: Job) -> None:
        """The other leg must not wait for a request that is decided."""
        self.world.cancel(job.rid)

    def settle(self, job: Job, attempt: Attempt) -> None:
        """Give pages back, and report, if it is time."""
        if self.touched(attempt):
            return
        if attempt is not job.attempt:
            if attempt in job.older:
                job.older.remove(attempt)
                self.free(job, attempt)
            return
        if job.where == "draining" or job.delivered:
            self.free(job, attempt)
            self.end(job)

    def touched(self, attempt: Attempt) -> bool:
        """Whether something may still touch the pages."""
        return attempt.busy

    def end(self, job: Job) -> None:
        """The request is over."""
        job.where = "gone"
        self.tell_client(job)

    def tell_client(self, job: Job) -> None:
        """Once."""
        if not job.reported and job.reason is not None:
            job.reported = True
            self.world.report(job.rid, job.reason)

    def retire(self, job: Job, old: Attempt) -> None:
        """An attempt that was preempted: its pages go back now, or when it has drained."""
        if self.touched(old):
            job.older.append(old)
        else:
            self.free(job, old)

    def free(self, job: Job, attempt: Attempt) -> None:
        """Give an attempt's pages back."""
        if attempt.pages:
            self.world.free(job.rid, attempt.pages)
            attempt.pages = ()

    def give_up(self, job: Job, attempt: Attempt) -> None:
        """The drain of an attempt was never proven."""
        self.world.quarantine(job.rid, attempt.pages)
        attempt.pages, attempt.steps, attempt.ops = (), [], []

    # New work.

    def admit(self, job: Job) -> None:
        """Give pages to a request that waits, if there are enough."""
        pages = self.world.alloc(job.rid, job.chunks)
        if pages is not None:
            job.attempt.pages = pages
            job.where = "running"

    def launch(self, job: Job) -> None:
        """Launch the next chunk; at most two are in the pipe at a time."""
        launched = job.computed + len(job.attempt.steps)
        if launched < job.chunks and len(job.attempt.steps) < 2:
            step = self.world.launch(job.rid)
            if self.world.overlap_steps:
                job.attempt.steps.append(step)
            else:  # the result is there
                job.computed += 1
                self.send(job)

    def send(self, job: Job) -> None:
        """Hand the chunk that is computed to the sender."""
        op = f"c{job.sent}"
        job.sent += 1
        last = job.sent == job.chunks
        job.attempt.ops.append(op)
        self.world.send(job.rid, op, last=last)
        if last:
            job.where = "in flight"

    def can_preempt(self, job: Job) -> bool:
        """Only a request that is computing can be preempted."""
        return job.where == "running"


class CarefulAtDecision(Careful):
    """The same, but clients are told as soon as it is decided how their request ends; later reasons are late."""

    def decide(self, job: Job, reason: str) -> None:
        """Tell at once."""
        if job.where == "gone":
            return
        if not job.reported:
            self.record(job, reason)
            self.tell_client(job)
        super().decide(job, reason)

    def record(self, job: Job, reason: str) -> None:
        """What was told stands."""
        if not job.reported:
            super().record(job, reason)

    def handed_over(self, job: Job) -> None:
        """The hand-off decides."""
        super().handed_over(job)
        self.tell_client(job)
