"""The stateful machine that Hypothesis drives: one rule for each thing that can happen to a scheduler."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ..vocabulary import AbortSource, Event, GrammarCause
from .notice import Notice
from .player import Action, Capabilities, MakeScheduler, Player

RIDS = ("r1", "r10", "r2")  # one begins like another, on purpose

_COMPLETIONS = (Event.FORWARD_FINISHED, Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED)


class WorldMachine(RuleBasedStateMachine):
    """The stateful machine: one rule for each thing that can happen to a scheduler.

    Subclasses set `make_scheduler`, `capabilities`, and how many requests and chunks there are at most.
    """

    make_scheduler: MakeScheduler
    capabilities = Capabilities()
    requests = len(RIDS)
    chunks = 2

    def __init__(self) -> None:
        super().__init__()
        self.player = Player(type(self).make_scheduler, self.capabilities)
        self.world = self.player.world
        self.rare = dict.fromkeys(("unknown", "refused", "trouble", "twice", "preempt"), 2)

    def do(self, *action: Any, turn: bool = True) -> None:
        """An action, and most often a turn of the scheduler's loop."""
        self.player.play(*action)
        if turn:
            self.player.play("turn")

    # What can happen.

    @precondition(lambda self: len(self.player.submitted) < self.requests)
    @rule(data=st.data(), ready=st.booleans())
    def submit(self, data: st.DataObject, ready: bool) -> None:
        """A new request; its grammar may be ready at once."""
        rid = RIDS[len(self.player.submitted)]
        self.do(*self._submission(rid, data), turn=not ready)
        if ready:
            self.do("grammar", rid, None)

    @precondition(lambda self: self.capabilities.rid_reuse and self.player.reusable())
    @rule(data=st.data(), turn=st.booleans())
    def submit_again(self, data: st.DataObject, turn: bool) -> None:
        """A rid is used again, while something may still be told of its former life."""
        rid = data.draw(st.sampled_from(self.player.reusable()))
        self.do(*self._submission(rid, data), turn=turn)

    def _submission(self, rid: str, data: st.DataObject) -> Action:
        chunks = data.draw(st.integers(1, self.chunks))
        if not self.capabilities.prefix_cache:
            return ("submit", rid, chunks)
        prompt = data.draw(st.text("ab", min_size=chunks, max_size=chunks))
        return ("submit", rid, chunks, prompt)

    # Most of the time things go well; without these two rules few requests would get far.

    @precondition(lambda self: self._natural())
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """What was started ends well: a grammar, a pass, or a transfer."""
        self.do(*data.draw(st.sampled_from(self._natural())))

    @precondition(lambda self: self._natural())
    @rule()
    def go_on_first(self) -> None:
        """The oldest thing that was started ends well."""
        self.do(*self._natural()[0])

    def _natural(self) -> list[Action]:
        return [
            *(("grammar", rid, None) for rid in self.world.compiling()),
            *(("finish", running.rid) for running in self.player.oldest_passes()),
            *(("transfer", "succeed", op.rid, op.name, op.rank) for op in self.player.pending()),
        ]

    @precondition(lambda self: self.world.compiling())
    @rule(cause=st.sampled_from([GrammarCause.COMPILE, GrammarCause.TIMEOUT]), data=st.data())
    def grammar_does_not_compile(self, cause: GrammarCause, data: st.DataObject) -> None:
        """A grammar does not compile, or takes too long."""
        self.do("grammar", data.draw(st.sampled_from(self.world.compiling())), cause)

    @precondition(lambda self: self.rare["refused"] and self.player.live())
    @rule(data=st.data(), turn=st.booleans())
    def token_refused(self, data: st.DataObject, turn: bool) -> None:
        """A grammar refuses a token."""
        self._rarely("refused")
        rid = data.draw(st.sampled_from(self.player.live()))
        self.do("grammar", rid, GrammarCause.REJECTED, turn=turn)

    @precondition(lambda self: self.player.submitted)
    @rule(source=st.sampled_from(AbortSource), data=st.data(), turn=st.booleans())
    def abort(self, source: AbortSource, data: st.DataObject, turn: bool) -> None:
        """Somebody aborts a request, in whatever state."""
        self.do("abort", data.draw(st.sampled_from(self.player.submitted)), source, turn=turn)

    @precondition(lambda self: self.rare["unknown"])
    @rule()
    def abort_unknown(self) -> None:
        """Somebody aborts a request that was never submitted."""
        self._rarely("unknown")
        self.do("abort", "nobody", AbortSource.CLIENT, turn=False)

    @precondition(lambda self: self.world.passes)
    @rule(data=st.data(), turn=st.booleans())
    def pass_ends(self, data: st.DataObject, turn: bool) -> None:
        """A forward pass ends; of one request they end in the order of their launch."""
        running = data.draw(st.sampled_from(self.player.oldest_passes()))
        self.do("finish", running.rid, turn=turn)

    @precondition(lambda self: self.player.pending())
    @rule(outcome=st.sampled_from(["succeed", "fail"]), data=st.data(), turn=st.booleans())
    def op_has_a_verdict(self, outcome: str, data: st.DataObject, turn: bool) -> None:
        """A transfer op is delivered; or it is said to have failed, and may go on."""
        op = data.draw(st.sampled_from(self.player.pending()))
        self.do("transfer", outcome, op.rid, op.name, op.rank, turn=turn)

    @precondition(lambda self: self.world.ops)
    @rule(data=st.data(), turn=st.booleans())
    def op_drains(self, data: st.DataObject, turn: bool) -> None:
        """A transfer op is proven to touch the pages no more; whether it was delivered is not."""
        op = data.draw(st.sampled_from(self.world.ops))
        self.do("transfer", "drain", op.rid, op.name, op.rank, turn=turn)

    @precondition(lambda self: self.rare["twice"] and self._completions())
    @rule(data=st.data())
    def told_twice(self, data: st.DataObject) -> None:
        """A completion is told a second time."""
        self._rarely("twice")
        notice = data.draw(st.sampled_from(self._completions()))
        self.do("again", notice.event, notice.rid, notice.op, notice.rank)

    @precondition(lambda self: self.rare["trouble"] and self.player.live())
    @rule(event=st.sampled_from([Event.PEER_LOST, Event.ERROR]), data=st.data(), turn=st.booleans())
    def trouble(self, event: Event, data: st.DataObject, turn: bool) -> None:
        """The other leg is lost, or the engine fails on a request."""
        self._rarely("trouble")
        self.do("trouble", data.draw(st.sampled_from(self.player.live())), event, turn=turn)

    @precondition(lambda self: self._can_preempt())
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """Pages are short: somebody picks a request, perhaps one that cannot be preempted."""
        self._rarely("preempt")
        self.do("preempt", data.draw(st.sampled_from(self.player.submitted)))

    @precondition(lambda self: self.capabilities.drain_deadline and self.player.draining())
    @rule(data=st.data())
    def drain_deadline(self, data: st.DataObject) -> None:
        """A drain deadline passes. What did not drain by then may be told later, or never."""
        self.do("deadline", data.draw(st.sampled_from(self.player.draining())))

    @precondition(lambda self: self.world.waiting)
    @rule()
    def turn(self) -> None:
        """The scheduler's loop turns, and takes in what waits."""
        self.do("turn", turn=False)

    def _rarely(self, what: str) -> None:
        """What may happen twice in a run, and not at every step."""
        self.rare[what] -= 1

    def _can_preempt(self) -> bool:
        able = self.capabilities.preemption and self.rare["preempt"] > 0
        return able and bool(self.player.submitted)

    def _completions(self) -> list[Notice]:
        return [notice for notice in self.world.given if notice.event in _COMPLETIONS]

    def teardown(self) -> None:
        """Let everything come to its end, unless something broke already."""
        if not self.world.referee.violations:
            self.do("settle", turn=False)


def machine(
    make_scheduler: MakeScheduler,
    capabilities: Capabilities,
    requests: int = len(RIDS),
    chunks: int = 2,
) -> type[WorldMachine]:
    """A stateful machine for a scheduler; ``machine(...).TestCase`` is a unittest case."""
    parts = {
        "make_scheduler": staticmethod(make_scheduler),
        "capabilities": capabilities,
        "requests": requests,
        "chunks": chunks if capabilities.chunked_prefill else 1,
    }
    return type("SchedulerMachine", (WorldMachine,), parts)
