"""Puts the example scheduler on the harness's world, so that Hypothesis plays pool, device, network and clients.

This is what a wrapper looks like for a scheduler that was not written for the harness: its allocator, its model
runner and its transfer engine are replaced by a few lines each that call the
:class:`~lifecycle.testing.world.World`, and what the world tells is handed to the methods that poll for it.
Nothing in ``scheduler.py`` knows of it.

Point the harness at it with whoever decides: the library, or the clean-up written by hand ::

    check_scheduler(on_lifecycle, preemption=True, drain_deadline=True, rid_reuse=True)
    check_scheduler(by_hand_before, chunked_prefill=False)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs

from lifecycle import Driver, Event, GrammarCause, Hold, Outcome, RequestTable, State
from lifecycle.testing.notice import Notice
from lifecycle.testing.world import World

from .engine import Op, TransferEngine
from .handwritten import HandWritten
from .load import Spec, TransferPlan
from .model import Chunk, Model, Pass
from .pages import FreeListPages, Grant, PageList
from .scheduler import CHUNK_TOKENS, Batch, Decides, Job, PrefillScheduler
from .witness import Witness

NEVER = 1 << 30
"""Turns: a grammar compiles until the world says that it has."""


class WorldPages:
    """The allocator, and the port that gives pages back. A page holds a chunk; all are allocated at once."""

    def __init__(self, world: World, chunks: Callable[[str], int]) -> None:
        self._world, self._chunks = world, chunks

    def alloc(self, count: int, rid: str, attempt: int) -> PageList | None:  # noqa: ARG002  # of one chunk
        """Pages for the whole prompt."""
        pages = self._world.alloc(rid, self._chunks(rid))
        return None if pages is None else PageList(rid, attempt, pages)

    def extend(self, grant: Grant, count: int) -> bool:
        """Never needed."""
        raise AssertionError((grant, count))

    def lend(self, grant: Grant, op: str, pages: tuple[int, ...]) -> None:
        """The world sees the transfer itself."""

    def drained(self, grant: Grant, op: Op) -> None:
        """Likewise."""

    def release(self, held: Hold | PageList) -> None:
        """Give an attempt's pages back."""
        self._world.free(held.rid, _grant(held).pages)

    def quarantine(self, hold: Hold) -> None:
        """Take an attempt's pages out of circulation."""
        self._world.quarantine(hold.rid, _grant(hold).pages)

    def holds(self, hold: Hold) -> bool:  # noqa: ARG002  # nothing is tried again here
        """Nothing here ever raises."""
        return True


def _grant(held: Hold | PageList) -> PageList:
    return cast("PageList", held.pages) if isinstance(held, Hold) else held


class WorldModel:
    """Launches each chunk of a pass in the world."""

    def __init__(self, wrapper: OnWorld) -> None:
        self._wrapper = wrapper

    def launch(self, chunks: Sequence[Chunk]) -> Pass:
        """Whose result is seen when the world tells of it, so nobody waits for the pass as a whole."""
        done = cast("Pass", _Seen())
        for chunk in chunks:
            self._wrapper.launched(chunk, done)
        return done


class _Seen:
    """A pass whose result is there by the time at which anybody asks."""

    def wait(self) -> None:
        """Nothing to wait for."""


@attrs.define(eq=False)
class WorldOp:
    """A posted transfer, as the scheduler polls it."""

    name: str
    rid: str
    attempt: int
    incarnation: int
    failed: bool = False
    peer_lost: bool = False
    succeeded: bool = False
    drained: bool = False


class WorldEngine:
    """Hands chunks to the world's sender."""

    def __init__(self, wrapper: OnWorld) -> None:
        self._wrapper = wrapper

    def post(
        self, spec: Spec, attempt: int, name: str, first_page: int, pages: tuple[int, ...]
    ) -> WorldOp:
        """Send some pages of the prompt; the last ones complete it."""
        last = (first_page + len(pages)) * CHUNK_TOKENS >= spec.prompt_tokens
        return self._wrapper.sent(spec, attempt, name, last=last)

    def cancel(self, hold: Hold) -> None:
        """Tell the other leg."""
        self._wrapper.world.cancel(hold.rid)


class WorldReporter:
    """Tells the world's clients."""

    def __init__(self, world: World) -> None:
        self._world = world

    def report(self, outcome: Outcome) -> None:
        """The one report."""
        self._world.report(outcome.rid, outcome.reason)


class OnWorld:
    """The scheduler with the methods that the harness calls; see :class:`lifecycle.testing.world.Scheduler`."""

    def __init__(
        self,
        world: World,
        decides: Callable[[WorldPages, WorldEngine, WorldReporter], Decides],
    ) -> None:
        self.world = world
        self.specs: list[Spec] = []
        self.passes: dict[int, Batch] = {}
        self.steps: dict[int, int] = {}  # the scheduler's number of each pass of the world
        self.ops: dict[tuple[str, int, int, str], WorldOp] = {}
        pages, engine = WorldPages(world, self._chunks), WorldEngine(self)
        self.scheduler = PrefillScheduler(
            [],
            driver=decides(pages, engine, WorldReporter(world)),
            pages=pages,
            page_size=CHUNK_TOKENS,
            model=cast("Model", WorldModel(self)),
            engine=cast("TransferEngine", engine),
            clients=cast("Any", None),  # the world has its own
            witness=Witness(),
        )

    # What the harness calls.

    def submit(self, rid: str, chunks: int) -> None:
        """A new request."""
        spec = Spec(
            number=len(self.specs),
            rid=rid,
            prompt_tokens=chunks * CHUNK_TOKENS,
            arrives=0,
            grammar="good",
            compile_turns=NEVER,
            abort_after=None,
            deadline=None,
            breaks=False,
            transfer=TransferPlan(),
        )
        self.specs.append(spec)
        self.scheduler.arriving.append(spec)
        self.scheduler.take_arrivals()

    def abort(self, rid: str, source: str) -> None:
        """Somebody aborts a request."""
        self.scheduler.driver.fire(rid, "abort", source=source)

    def step(self) -> None:
        """One turn of the loop."""
        scheduler = self.scheduler
        scheduler.now += 1
        for notice in self.world.notices():
            self.hear(notice)
        scheduler.driver.expire(scheduler.now)
        scheduler.launch_pass()
        if not self.world.overlap_steps:
            while self.passes:
                scheduler.see_result(self.passes.popitem()[1])

    def preempt(self, rid: str) -> None:
        """The scheduler preempts whom it needs to; here it is told whom."""
        job = self._newest(rid)
        if job is not None and job.life.state == State.PREFILLING:
            self.scheduler.preempt(job)

    def drain_timeout(self, rid: str) -> None:
        """The drain deadline passed."""
        self.scheduler.driver.fire(rid, "drain_timeout")

    # What the world tells.

    def hear(self, notice: Notice) -> None:
        """Let the scheduler's own polls find it."""
        scheduler = self.scheduler
        job = scheduler.jobs[notice.rid, notice.incarnation]
        if notice.step is not None and notice.step in self.passes:
            scheduler.see_result(self.passes.pop(notice.step))
        elif notice.op is not None and self._poll(notice):
            scheduler.poll_transfers()
        elif notice.event is Event.GRAMMAR_READY:
            scheduler.compiling = [(scheduler.now, job)]
            scheduler.take_grammar_results()
        elif notice.event is Event.GRAMMAR_FAILED:
            scheduler.grammar_failed(job, notice.cause or GrammarCause.COMPILE)
        elif notice.event is Event.ERROR:
            scheduler.fire(job, "error", message="The engine failed on this request.")
        elif notice.event is Event.PEER_LOST:
            scheduler.fire(job, "peer_lost")
        else:  # told a second time: the scheduler's polls are over, so whoever decides hears it at once
            step = None if notice.step is None else self.steps[notice.step]
            about = {"step": step, "op": notice.op, "attempt": notice.attempt}
            details = {name: value for name, value in about.items() if value is not None}
            scheduler.fire(job, notice.event, **details)

    def _poll(self, notice: Notice) -> bool:
        """Give the op its new status; False if nobody polls it any more."""
        key = (notice.rid, notice.incarnation, notice.attempt, notice.op or "")
        op = self.ops.get(key)
        if op is None or (op.failed and notice.event is Event.TRANSFER_FAILED):
            return False
        op.failed |= notice.event is Event.TRANSFER_FAILED
        op.succeeded = notice.event is Event.TRANSFER_SUCCEEDED
        op.drained = notice.event is not Event.TRANSFER_FAILED
        if op.drained:
            del self.ops[key]
        return True

    # What the scheduler does through its parts.

    def launched(self, chunk: Chunk, done: Pass) -> None:
        """A chunk is in a pass; the world tells of its end by the world's number."""
        job = self._newest(self.specs[chunk.number].rid)
        assert job is not None
        batch = Batch(self.scheduler.steps, done, [(job, chunk)])
        step = self.world.launch(job.spec.rid)
        self.passes[step], self.steps[step] = batch, batch.step

    def sent(self, spec: Spec, attempt: int, name: str, *, last: bool) -> WorldOp:
        """A chunk is sent."""
        job = self._newest(spec.rid)
        assert job is not None
        op = WorldOp(name, spec.rid, attempt, job.life.incarnation)
        self.ops[spec.rid, op.incarnation, attempt, name] = op
        self.world.send(spec.rid, name, last=last)
        return op

    def _newest(self, rid: str) -> Job | None:
        lives = [job for (name, _), job in self.scheduler.jobs.items() if name == rid]
        return lives[-1] if lives else None

    def _chunks(self, rid: str) -> int:
        job = self._newest(rid)
        assert job is not None
        return job.spec.prompt_tokens // CHUNK_TOKENS


def on_lifecycle(world: World) -> OnWorld:
    """The library decides."""

    def decides(pages: WorldPages, engine: WorldEngine, reporter: WorldReporter) -> Driver:
        return Driver(RequestTable(), pool=pages, transfer=engine, reporter=reporter)

    return OnWorld(world, decides)


def by_hand_before(world: World) -> OnWorld:
    """Clean-up by hand, before the fix."""
    return _by_hand(world, fixed=False)


def by_hand_after(world: World) -> OnWorld:
    """Clean-up by hand, with the fix merged."""
    return _by_hand(world, fixed=True)


def _by_hand(world: World, *, fixed: bool) -> OnWorld:
    def decides(pages: WorldPages, engine: WorldEngine, reporter: WorldReporter) -> HandWritten:
        return HandWritten(
            cast("FreeListPages", pages),
            cast("TransferEngine", engine),
            cast("Witness", reporter),
            fixed=fixed,
        )

    return OnWorld(world, decides)
