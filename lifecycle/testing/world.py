"""The world around a scheduler under test: pool, model runner, transfer engine, clients. All scripted.

A scheduler under test (:class:`Scheduler`) is built on a :class:`World` in the place of its own parts. It
allocates and frees pages there, launches passes, hands chunks to the sender, tells clients; and it learns what
happened from :meth:`World.notices`, at the beginning of each turn of its loop. The harness decides what happens:
which pass ends, which transfer fails, what drains late or never, what is told twice.

Meanwhile the world writes down two things. *What the scheduler was told and did* becomes a trace (contract
section 9), which is fired at a reference table of the library, so that at any time it is known what would have
been right. *What the scheduler did about memory and clients* is compared with that by the
:class:`~lifecycle.testing.referee.Referee`.

The order of the trace is the order in which the scheduler could know: an abort counts when ``abort`` is called,
the end of a transfer when :meth:`World.notices` gives it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import attrs

from ..policy import DEFAULT_POLICY, Policy
from ..vocabulary import AbortSource, Event, GrammarCause
from .notice import Notice
from .referee import Referee


class Scheduler(Protocol):
    """What a scheduler under test can do. Names are what any scheduler has; wrap yours in a few lines.

    ``preempt`` and ``drain_timeout`` are called only where the capability of that name is claimed.
    """

    def submit(self, rid: str, chunks: int) -> None:
        """A new request whose prompt takes `chunks` forward passes. The grammar is not ready yet."""

    def abort(self, rid: str, source: str) -> None:
        """Abort exactly this rid; one that is not known is absorbed."""

    def step(self) -> None:
        """One turn of the loop: take :meth:`World.notices`, act on them, admit, launch, send, report."""

    def preempt(self, rid: str) -> None:
        """Take the pages of `rid` back and queue it again; one that cannot be preempted is left alone."""

    def drain_timeout(self, rid: str) -> None:
        """The drain deadline of `rid` passed: what still drains goes to quarantine."""


@attrs.define
class Op:
    """A transfer op in the hardware: whether it has a verdict, and whether it still touches the pages."""

    rid: str
    attempt: int
    name: str
    verdict: str = "pending"
    touches: bool = True
    incarnation: int = 1
    rank: int = 0


@attrs.define
class Pass:
    """A forward pass in the hardware."""

    rid: str
    attempt: int
    step: int
    incarnation: int = 1


class World:
    """See the module's text. The first half is for the scheduler, the second for the harness.

    Args:
        pages: how many pages the pool has.
        policy: the contract's open choices, as the scheduler under test takes them.
        ranks: how many ranks send a share of each op; each share ends by itself.
    """

    def __init__(self, pages: int = 8, policy: Policy = DEFAULT_POLICY, ranks: int = 1) -> None:
        self.ranks = ranks
        self.referee = Referee(policy, ranks)
        self.passes: list[Pass] = []
        self.ops: list[Op] = []
        self.given: list[Notice] = []  # what was given out, for telling it twice
        self._waiting: list[Notice] = []
        self._free = list(range(pages))
        self._quarantined: list[int] = []
        self._next_step = 1
        self._grammars: dict[str, str] = {}

    # For the scheduler.

    def notices(self) -> Iterator[Notice]:
        """What happened since this was last asked, one after another; it is known when it is given out."""
        while self._waiting:
            notice = self._waiting.pop(0)
            self.given.append(notice)
            self.referee.told(notice)
            yield notice

    def alloc(self, rid: str, pages: int) -> tuple[int, ...] | None:
        """Pages for the newest attempt of `rid`; None if there are not enough."""
        if len(self._free) < pages:
            return None
        taken = tuple(self._free.pop() for _ in range(pages))
        self.referee.admitted(rid, taken)
        return taken

    def free(self, rid: str, pages: Sequence[int]) -> None:
        """Give pages back. As in real engines, nothing is prevented here; the referee sees it."""
        self.referee.freed(rid, pages)
        self._free += [page for page in pages if page not in self._free]

    def quarantine(self, rid: str, pages: Sequence[int]) -> None:
        """Take pages out of circulation."""
        self.referee.quarantined(rid, pages)
        self._quarantined += pages

    def launch(self, rid: str) -> int:
        """Launch a forward pass with `rid`; its number is returned."""
        step = self._next_step
        self._next_step += 1
        attempt = self.referee.launched(rid, step)
        self.passes.append(Pass(rid, attempt, step, self.referee.incarnation(rid)))
        return step

    def send(self, rid: str, op: str, *, last: bool) -> None:
        """Hand a finished chunk to the sender as `op`; `last` if the prompt is complete with it."""
        attempt = self.referee.sent(rid, op, last=last)
        life = self.referee.incarnation(rid)
        self.ops += [
            Op(rid, attempt, op, incarnation=life, rank=rank) for rank in range(self.ranks)
        ]

    def cancel(self, rid: str) -> None:
        """Tell the sender, and through it the other leg, that the hand-off of `rid` is off."""
        self.referee.cancelled(rid)

    def report(self, rid: str, reason: str) -> None:
        """Tell the client of `rid` how it ended."""
        self.referee.reported(rid, reason)

    def publish(self, rid: str, pages: Sequence[int]) -> None:
        """Keep pages in the prefix cache for others."""
        self.referee.published(rid, pages)

    # For the harness.

    def submitted(self, rid: str) -> None:
        """`rid` is about to be submitted."""
        self.referee.submitted(rid)
        self._grammars[rid] = "compiling"

    def aborting(self, rid: str, source: AbortSource) -> None:
        """`rid` is about to be aborted."""
        self.referee.fire(rid, Event.ABORT, source=str(source))

    def preempting(self, rid: str) -> None:
        """`rid` is about to be preempted."""
        self.referee.preempted(rid)

    def timing_out(self, rid: str) -> None:
        """The drain deadline of `rid` is about to pass."""
        self.referee.fire(rid, Event.DRAIN_TIMEOUT)

    def compiling(self) -> list[str]:
        """The requests whose grammar has not been heard of."""
        return [rid for rid, state in self._grammars.items() if state == "compiling"]

    def grammar(self, rid: str, cause: GrammarCause | None) -> None:
        """The grammar of `rid` is ready (no cause), or failed."""
        self._grammars[rid] = "ready" if cause is None else "failed"
        event = Event.GRAMMAR_READY if cause is None else Event.GRAMMAR_FAILED
        life = self.referee.incarnation(rid)
        self._waiting.append(Notice(event, rid, cause=cause, incarnation=life))

    def finish(self, done: Pass) -> None:
        """A pass ends; the host will see its result."""
        self.passes.remove(done)
        life = done.incarnation
        self._waiting.append(
            Notice(Event.FORWARD_FINISHED, done.rid, done.attempt, done.step, incarnation=life)
        )

    def succeed(self, op: Op) -> None:
        """An op ends well: it is delivered, and touches the pages no more."""
        op.verdict, op.touches = "succeeded", False
        self.ops.remove(op)
        self._transfer(Event.TRANSFER_SUCCEEDED, op)

    def fail(self, op: Op) -> None:
        """An op is said to have failed. It may go on touching the pages."""
        op.verdict = "failed"
        self._transfer(Event.TRANSFER_FAILED, op)

    def drain(self, op: Op) -> None:
        """An op that has failed, or whose request is decided, touches the pages no more."""
        op.touches = False
        self.ops.remove(op)
        self._transfer(Event.TRANSFER_DRAINED, op)

    def _transfer(self, event: Event, op: Op) -> None:
        life = op.incarnation
        self._waiting.append(
            Notice(event, op.rid, op.attempt, op=op.name, incarnation=life, rank=op.rank)
        )

    def release_quarantine(self) -> None:
        """Nothing runs any more, which proves every drain: the pages set apart come back.

        Without it, requests that wait for pages could wait for ever, and not by a fault of the scheduler.
        """
        if not (self.passes or self.ops):
            self._free += sorted(set(self._quarantined).difference(self._free))
            self._quarantined.clear()

    def trouble(self, rid: str, event: Event) -> None:
        """The peer of `rid` is lost, or the engine failed on it."""
        self._waiting.append(Notice(event, rid, incarnation=self.referee.incarnation(rid)))

    def again(self, notice: Notice) -> None:
        """Something is told a second time."""
        self._waiting.append(notice)

    @property
    def waiting(self) -> bool:
        """Whether something waits to be told."""
        return bool(self._waiting)

    @property
    def quiet(self) -> bool:
        """Whether nothing is running, and nothing waits to be told."""
        return not (self.passes or self.ops or self._waiting)

    @property
    def trace(self) -> list[dict[str, Any]]:
        """What happened, as the lines of a trace."""
        return self.referee.trace
