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
        overlap_steps: whether passes go on while the loop turns; if not, :meth:`launch` waits for the end.
        prefix_cache: whether pages that are published belong to the prefix cache from then on.

    Attributes:
        warm: what the prefix cache holds when the scheduler starts, as after a warm-up: the page of each content
            (see :meth:`prompt`).
    """

    def __init__(
        self,
        pages: int = 8,
        policy: Policy = DEFAULT_POLICY,
        ranks: int = 1,
        *,
        overlap_steps: bool = True,
        prefix_cache: bool = False,
    ) -> None:
        self.ranks = ranks
        self.warm: dict[str, int] = {}
        self.overlap_steps, self.prefix_cache = overlap_steps, prefix_cache
        self.referee = Referee(policy, ranks)
        self.passes: list[Pass] = []
        self.ops: list[Op] = []
        self.given: list[Notice] = []  # what was given out, for telling it twice
        self._waiting: list[Notice] = []
        self._free = list(range(pages))
        self._quarantined: list[int] = []
        self._next_step = 1
        self._grammars: dict[str, str] = {}
        self._prompts: dict[str, str] = {}
        if prefix_cache:
            self.warm["a"] = self._free.pop()
            self.referee.cache.kept(self.warm["a"])

    # For the scheduler.

    def notices(self) -> Iterator[Notice]:
        """What happened since this was last asked, one after another; it is known when it is given out."""
        while self._waiting:
            notice = self._waiting.pop(0)
            self.given.append(notice)
            self.referee.told(notice)
            yield notice

    def prompt(self, rid: str) -> tuple[str, ...]:
        """What each page of the prompt holds, all pages before it included, as in a chain of hashes.

        Pages that hold the same have the same KV. Only where ``prefix_cache`` is claimed; else empty.
        """
        text = self._prompts.get(rid, "")
        return tuple(text[: end + 1] for end in range(len(text)))

    def alloc(self, rid: str, pages: int, cached: Sequence[int] = ()) -> tuple[int, ...] | None:
        """Pages for the newest attempt of `rid`; None if there are not enough.

        With `cached`, the attempt takes a claim on these pages of the prefix cache; they come before the new
        ones.
        """
        if len(self._free) < pages:
            return None
        taken = tuple(self._free.pop() for _ in range(pages))
        self.referee.admitted(rid, taken, cached)
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
        """Launch a forward pass with `rid`, and return its number; without ``overlap_steps``, at its end."""
        step = self._next_step
        self._next_step += 1
        attempt = self.referee.launched(rid, step)
        life = self.referee.incarnation(rid)
        if self.overlap_steps:
            self.passes.append(Pass(rid, attempt, step, life))
        else:
            self.referee.told(Notice(Event.FORWARD_FINISHED, rid, attempt, step, incarnation=life))
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
        """Keep pages in the prefix cache for others; with ``prefix_cache``, they are the cache's from then on."""
        self.referee.published(rid, pages, keep=self.prefix_cache)

    def unlock(self, rid: str, pages: Sequence[int]) -> None:
        """Drop the claim of `rid` on pages of the prefix cache that it took with :meth:`alloc`."""
        self.referee.unlocked(rid, pages)

    def evict(self, pages: Sequence[int]) -> None:
        """The prefix cache gives pages back to the pool."""
        self.referee.evicted(pages)
        self._free += [page for page in pages if page not in self._free]

    # For the harness.

    def submitted(self, rid: str, prompt: str = "") -> None:
        """`rid` is about to be submitted; a page of its prompt for each letter."""
        self.referee.submitted(rid)
        self._prompts[rid] = prompt
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
            self.referee.cache.proven()

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
