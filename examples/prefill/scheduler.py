"""The scheduler of a disaggregated-prefill worker, which embeds :mod:`lifecycle`.

It decides what to run: which requests to admit, how to chunk their prompts, whom to preempt. It does not
decide how requests end. Whatever happens to a request is fired at the driver, as an event, where it
happens; the driver releases pages, cancels transfers and reports to clients, each at the right moment and
once. So there is no clean-up in this file. Look for ``self.fire``: that is all of it.

One turn of the loop (:meth:`PrefillScheduler.turn`)
    1. The safe point: aborts from other threads, arrivals, deadlines, grammar results, polls of transfers.
    2. Build the next pass and launch it: chunks of requests that have pages first, then new requests.
    3. See the result of the pass *before* that one. So while the host looks at one pass the device works on
       the next, and a request may be decided with a pass still running over its pages.

Chunks are sent as soon as their pass is seen, so a request may also be decided, or preempted, with transfers
running. Claims come first: a launch or a transfer is fired before it is started. Two questions keep the
scheduler out of trouble, both answered by the request: *may it get work?* (its state is ``prefilling``, or
``queued`` to be admitted), and *is this result still about it?* (its attempt).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

import attrs

from lifecycle import FinishReason, Hold, State, Todo

from .clients import Clients
from .engine import Op, TransferEngine
from .load import Spec
from .model import Chunk, Model, Pass
from .pages import Grant, Pages
from .witness import Witness

CHUNK_TOKENS = 64
"""Tokens of one request in a pass, a multiple of the page size."""
PASS_TOKENS = 1024
"""Tokens of all requests in a pass."""
TURNS_TO_WAIT = 2
"""How long a request waits for pages that are coming by themselves, before a younger one is preempted."""


class Life(Protocol):
    """What the scheduler reads of a request: a :class:`lifecycle.RequestLifecycle`."""

    @property
    def state(self) -> str:
        """One of the six states."""

    @property
    def incarnation(self) -> int:
        """Which life of its rid this is."""

    @property
    def attempt(self) -> int:
        """How often it was preempted."""


class Decides(Protocol):
    """Who decides how requests end: a :class:`lifecycle.Driver`, or something to compare it with."""

    def submit(self, rid: str, *, now: float | None = None) -> Life:
        """A new request."""

    def fire(self, rid: str, event: str, *, now: float | None = None, **details: Any) -> object:
        """Something happened to it."""

    def drain_inbox(self, now: float | None = None) -> Sequence[Todo]:
        """Take in what other threads posted."""

    def expire(self, now: float) -> Sequence[Todo]:
        """End what waited too long."""

    @property
    def holds(self) -> Iterable[Hold]:
        """The attempts whose pages are out."""


@attrs.define(eq=False)
class Job:
    """A request as the scheduler sees it: how far its prompt is.

    ``launched`` and ``computed`` count tokens of the newest attempt: in passes that were launched, and in
    passes whose result was seen. ``grant`` are that attempt's pages, ``waited`` is how many turns in a row it
    has waited for more.
    """

    spec: Spec
    life: Life
    grant: Grant | None = None
    launched: int = 0
    computed: int = 0
    chunks_sent: int = 0
    waited: int = 0

    def start_over(self) -> None:
        """Forget the attempt; its pages are no longer this job's business."""
        self.grant = None
        self.launched = self.computed = self.chunks_sent = self.waited = 0


@attrs.define(eq=False)
class Sent:
    """A transfer that may still touch the pages of ``grant``, and whether its failure was told."""

    job: Job
    op: Op
    grant: Grant
    told: bool = False


@attrs.frozen(eq=False)
class Batch:
    """A pass that was launched, and whose chunks are in it."""

    step: int
    launched: Pass
    work: list[tuple[Job, Chunk]]


class PrefillScheduler:
    """Runs a load to its end, turn by turn. The parts are handed in; ``run.py`` puts them together."""

    def __init__(
        self,
        load: Iterable[Spec],
        *,
        driver: Decides,
        pages: Pages,
        page_size: int,
        model: Model,
        engine: TransferEngine,
        clients: Clients,
        witness: Witness,
    ) -> None:
        self.driver, self.pages, self.page_size = driver, pages, page_size
        self.model, self.engine, self.clients, self.witness = model, engine, clients, witness
        self.arriving = deque(load)
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []  # in order of admission
        self.compiling: list[tuple[int, Job]] = []
        self.deadlines: list[tuple[int, Job]] = []
        self.sent: list[Sent] = []
        self.running: Batch | None = None
        self.jobs: dict[tuple[str, int], Job] = {}  # by rid and incarnation
        self.now = self.steps = 0
        self.errors: list[Exception] = []

    def turn(self) -> None:
        """One turn of the loop."""
        self.now = self.witness.now = self.now + 1
        self.engine.finish_beat()
        for rid in self.clients.finish_beat():
            self.witness.saw(rid, FinishReason.CLIENT_ABORT)

        posted = self.driver.drain_inbox(self.now)  # aborts that the clients' thread posted
        self.errors += [todo.error for todo in posted if todo.error is not None]
        self.take_arrivals()
        self.enforce_deadlines()
        self.take_grammar_results()
        self.poll_transfers()
        self.driver.expire(self.now)  # pages that nobody proved quiet

        self.engine.start_beat()
        self.clients.start_beat(self.now)
        launched = self.launch_pass()
        self.see_result(self.running)
        self.running = launched

    @property
    def idle(self) -> bool:
        """Whether every request was reported, every page decided about, and only dead peers are out."""
        return (
            not self.arriving
            and len(self.witness.outcomes) == len(self.jobs)
            and not self.driver.holds
            and self.running is None
            and all(sent.op.lost_for_good for sent in self.sent)
        )

    # What comes in.

    def take_arrivals(self) -> None:
        """New requests. One with a grammar waits until it is compiled."""
        while self.arriving and self.arriving[0].arrives <= self.now:
            spec = self.arriving.popleft()
            job = Job(spec, self.driver.submit(spec.rid, now=self.now))
            self.jobs[spec.rid, job.life.incarnation] = job
            if spec.deadline is not None:
                self.deadlines.append((self.now + spec.deadline, job))
            if spec.grammar == "none":
                self.waiting.append(job)
            else:
                self.compiling.append((self.now + spec.compile_turns, job))

    def enforce_deadlines(self) -> None:
        """A deadline is an abort like any other: legal in every state."""
        for at, job in self.deadlines:
            if at == self.now and job.life.state != State.DONE:
                self.witness.saw(job.spec.rid, FinishReason.TIMEOUT)
                self.fire(job, "abort", source="timeout")
        self.deadlines = [(at, job) for at, job in self.deadlines if at > self.now]

    def take_grammar_results(self) -> None:
        """Grammars that compiled, or did not."""
        for job in [job for at, job in self.compiling if at == self.now]:
            if job.spec.grammar == "compile":
                self.grammar_failed(job, "compile")
            else:
                self.fire(job, "grammar_ready")
                self.waiting.append(job)
        self.compiling = [(at, job) for at, job in self.compiling if at > self.now]

    def poll_transfers(self) -> None:
        """Ask every transfer that is out, whatever has become of its request.

        A failure is a verdict. It is fired when it is first seen, and the polls go on: the op's claim ends when
        it succeeded or drained, and until then the driver releases nothing.
        """
        for sent in self.sent:
            op = sent.op
            if op.failed and not sent.told:
                sent.told = True
                reason = FinishReason.PEER_LOST if op.peer_lost else FinishReason.TRANSFER_FAILED
                if op.attempt == sent.job.life.attempt:
                    self.witness.saw(op.rid, reason)
                self.fire_op(sent, "peer_lost" if op.peer_lost else "transfer_failed")
            if op.drained:
                self.pages.drained(sent.grant, op)
                self.fire_op(sent, "transfer_succeeded" if op.succeeded else "transfer_drained")
        self.sent = [sent for sent in self.sent if not sent.op.drained]

    # What runs next.

    def launch_pass(self) -> Batch | None:
        """The next chunk of every request that prefills, oldest first, then new requests while there is room."""
        budget = PASS_TOKENS
        work: list[tuple[Job, Chunk]] = []
        self.prefilling = [job for job in self.prefilling if job.life.state == State.PREFILLING]
        for job in list(self.prefilling):
            tokens = min(CHUNK_TOKENS, job.spec.prompt_tokens - job.launched)
            if job.life.state != State.PREFILLING or not 0 < tokens <= budget:
                continue  # preempted by an older one, or through, or too much for this pass
            if self.grow(job, tokens):
                work.append((job, self.next_chunk(job, tokens)))
                budget -= tokens
        self.waiting = deque(job for job in self.waiting if job.life.state == State.QUEUED)
        while self.waiting and budget >= CHUNK_TOKENS and self.admit(self.waiting[0]):
            job = self.waiting.popleft()
            tokens = min(CHUNK_TOKENS, job.spec.prompt_tokens)
            work.append((job, self.next_chunk(job, tokens)))
            budget -= tokens
        if not work:
            return None
        self.steps += 1
        for job, _ in work:
            self.fire(job, "forward_launched", step=self.steps)
        return Batch(self.steps, self.model.launch([chunk for _, chunk in work]), work)

    def admit(self, job: Job) -> bool:
        """Give a request the pages of its first chunk, if there are any."""
        count = self.pages_for(min(CHUNK_TOKENS, job.spec.prompt_tokens))
        job.grant = self.pages.alloc(count, job.spec.rid, job.life.attempt)
        if job.grant is None:
            return False
        self.fire(job, "admit", pages=job.grant)
        self.prefilling.append(job)
        return True

    def grow(self, job: Job, tokens: int) -> bool:
        """Have pages for the next ``tokens`` tokens of a request, at the cost of younger requests if need be."""
        assert job.grant is not None
        missing = self.pages_for(job.launched + tokens) - len(job.grant.pages)
        while missing > 0 and not self.pages.extend(job.grant, missing):
            if self.pages_coming() >= missing and job.waited < TURNS_TO_WAIT:
                job.waited += 1
                return False
            by_age = (other for other in self.prefilling if other.life.state == State.PREFILLING)
            *_, youngest = by_age
            self.preempt(youngest)
            if youngest is job:
                return False
        job.waited = 0
        return True

    def preempt(self, job: Job) -> None:
        """Take the pages of a request back. If a pass or a transfer is at work on them, they come later."""
        self.fire(job, "preempt")
        job.start_over()
        self.waiting.appendleft(job)

    def pages_coming(self) -> int:
        """Pages of attempts that are over and only drain."""
        holds = (hold for hold in self.driver.holds if self.drains(hold))
        return sum(len(cast("Grant", hold.pages).pages) for hold in holds)

    def next_chunk(self, job: Job, tokens: int) -> Chunk:
        """The next ``tokens`` tokens of a request, for a pass."""
        assert job.grant is not None
        start, job.launched = job.launched, job.launched + tokens
        return Chunk(
            attempt=job.life.attempt,
            number=job.spec.number,
            pages=job.grant.pages,
            start=start,
            stop=job.launched,
        )

    # What has run.

    def see_result(self, done: Batch | None) -> None:
        """The result of a pass. Chunks of requests that were decided or preempted meanwhile are of no use."""
        if done is None:
            return
        done.launched.wait()
        for job, chunk in done.work:
            self.fire(job, "forward_finished", step=done.step, attempt=chunk.attempt)
            if job.life.state != State.PREFILLING or job.life.attempt != chunk.attempt:
                continue
            if job.spec.breaks:
                self.witness.saw(job.spec.rid, FinishReason.INTERNAL_ERROR)
                self.fire(job, "error", message="The forward pass gave NaN for this request.")
                continue
            job.computed = chunk.stop
            self.send(job, chunk)
            if job.computed == job.spec.prompt_tokens:
                self.fire(job, "prefill_finished")
                if job.spec.grammar == "rejected":  # the first token does not fit
                    self.grammar_failed(job, "rejected")

    def send(self, job: Job, chunk: Chunk) -> None:
        """Hand the pages of a chunk to the sender. The claims come first, then the transfer."""
        assert job.grant is not None
        job.chunks_sent += 1
        op = f"chunk{job.chunks_sent}"
        first = chunk.start // self.page_size
        pages = job.grant.pages[first : self.pages_for(chunk.stop)]
        self.fire(job, "transfer_posted", op=op)
        self.pages.lend(job.grant, op, pages)
        posted = self.engine.post(job.spec, job.life.attempt, op, first, pages)
        self.sent.append(Sent(job, posted, job.grant))

    # Small things.

    def fire(self, job: Job, event: str, **details: Any) -> None:
        """Something happened to a request. To name its life keeps late events away from the rid's next life."""
        life = job.life
        self.driver.fire(job.spec.rid, event, incarnation=life.incarnation, now=self.now, **details)

    def fire_op(self, sent: Sent, event: str) -> None:
        """Something happened to one transfer of one attempt."""
        self.fire(sent.job, event, op=sent.op.name, attempt=sent.op.attempt)

    def grammar_failed(self, job: Job, cause: str) -> None:
        """The grammar did not compile, or refused a token."""
        self.witness.saw(job.spec.rid, FinishReason.GRAMMAR_ERROR)
        self.fire(job, "grammar_failed", cause=cause)

    def pages_for(self, tokens: int) -> int:
        """Pages for so many tokens."""
        return -(-tokens // self.page_size)

    def drains(self, hold: Hold) -> bool:
        """Whether these pages only wait for their last pass or transfer."""
        life = self.jobs[hold.rid, hold.incarnation].life
        return hold.attempt != life.attempt or life.state in (State.GRAMMAR_FAILED, State.ABORTED)
