"""Property-based tests that a scheduler author points at their own scheduler.

Write a few lines that build your scheduler on a :class:`~lifecycle.testing.world.World` (see
:mod:`lifecycle.testing.careful` for a scheduler that knows nothing of this library), then either ::

    class TestMyScheduler(SchedulerContract):
        def make_scheduler(self, world):
            return MyScheduler(world)

or, without pytest, ``check_scheduler(MyScheduler)``. Hypothesis then plays the world: prompts of a few chunks,
grammar errors, aborts, passes that end late, transfers that fail, that drain late or never, completions that are
told twice, preemptions. When an invariant of contract section 8 breaks, the sequence is shrunk, and
:class:`ContractBroken` carries the invariant, what happened, and the events as a trace that ``lifecycle replay``
reads.

Capabilities say what the scheduler can do; what is not claimed is not asked of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ..policy import Policy
from ..request import RequestLifecycle
from ..vocabulary import AbortSource, Event, GrammarCause, Invariant
from .referee import Violation
from .world import Notice, Op, Pass, Scheduler, World

MakeScheduler = Callable[[World], Scheduler]

RIDS = ("r1", "r10", "r2")  # one begins like another, on purpose
TURNS_TO_SETTLE = 40

_COMPLETIONS = (Event.FORWARD_FINISHED, Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED)


@attrs.frozen
class Capabilities:
    """What the scheduler under test can do.

    Attributes:
        chunked_prefill: prompts may take several passes; chunks are sent as they are computed.
        preemption: it has ``preempt``.
        drain_deadline: it has ``drain_timeout``.
        at_decision: it tells clients at the decision, not when the pages are back.
    """

    chunked_prefill: bool = True
    preemption: bool = False
    drain_deadline: bool = False
    at_decision: bool = False

    @property
    def policy(self) -> Policy:
        """The contract's open choices that follow."""
        return Policy(report="at_decision" if self.at_decision else "at_done")


class ContractBroken(AssertionError):
    """The scheduler broke an invariant.

    Attributes:
        violation: which, for which request, and what happened.
        trace: the events that led there, as the lines of a trace.
    """

    def __init__(self, violation: Violation, trace: list[dict[str, Any]]) -> None:
        self.violation, self.trace = violation, trace
        lines = "\n".join(f"    {json.dumps(line)}" for line in trace)
        super().__init__(f"{violation}\n  after these events:\n{lines}")


# A class for each invariant, so that Hypothesis does not shrink one fault into another.
_BROKEN = {
    invariant: type(f"ContractBroken_{invariant}", (ContractBroken,), {"__doc__": str(invariant)})
    for invariant in Invariant
}


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
        self.world = World(policy=self.capabilities.policy)
        self.scheduler = type(self).make_scheduler(self.world)
        self.submitted: list[str] = []
        self.rare = dict.fromkeys(("unknown", "refused", "trouble", "twice", "preempt"), 2)

    # What can happen.

    @precondition(lambda self: len(self.submitted) < self.requests)
    @rule(data=st.data(), ready=st.booleans())
    def submit(self, data: st.DataObject, ready: bool) -> None:
        """A new request; its grammar may be ready at once."""
        chunks = data.draw(st.integers(1, self.chunks))
        rid = RIDS[len(self.submitted)]
        self.submitted.append(rid)
        self.world.submitted(rid)
        self._call("submit", rid, rid, chunks)
        if ready:
            self.world.grammar(rid, None)
        self._turn()

    # Most of the time things go well; without these two rules few requests would get far.

    @precondition(lambda self: self._natural())
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """What was started ends well: a grammar, a pass, or a transfer."""
        data.draw(st.sampled_from(self._natural()))()
        self._turn()

    @precondition(lambda self: self._natural())
    @rule()
    def go_on_first(self) -> None:
        """The oldest thing that was started ends well."""
        self._natural()[0]()
        self._turn()

    def _natural(self) -> list[Callable[[], None]]:
        world = self.world
        return [
            *(partial(world.grammar, rid, None) for rid in world.compiling()),
            *(partial(world.finish, running) for running in self._oldest_passes()),
            *(partial(world.succeed, op) for op in self._ops("pending")),
        ]

    def _rarely(self, what: str) -> None:
        """What may happen twice in a run, and not at every step."""
        self.rare[what] -= 1

    @precondition(lambda self: self.world.compiling())
    @rule(cause=st.sampled_from([GrammarCause.COMPILE, GrammarCause.TIMEOUT]), data=st.data())
    def grammar_does_not_compile(self, cause: GrammarCause, data: st.DataObject) -> None:
        """A grammar does not compile, or takes too long."""
        self.world.grammar(data.draw(st.sampled_from(self.world.compiling())), cause)
        self._turn()

    @precondition(lambda self: self.rare["refused"] and self._live())
    @rule(data=st.data(), turn=st.booleans())
    def token_refused(self, data: st.DataObject, turn: bool) -> None:
        """A grammar refuses a token."""
        self._rarely("refused")
        self.world.grammar(data.draw(st.sampled_from(self._live())), GrammarCause.REJECTED)
        self._turn(turn)

    @precondition(lambda self: self.submitted)
    @rule(source=st.sampled_from(AbortSource), data=st.data(), turn=st.booleans())
    def abort(self, source: AbortSource, data: st.DataObject, turn: bool) -> None:
        """Somebody aborts a request, in whatever state."""
        rid = data.draw(st.sampled_from(self.submitted))
        self.world.aborting(rid, source)
        self._call("abort", rid, rid, str(source))
        self._turn(turn)

    @precondition(lambda self: self.rare["unknown"])
    @rule()
    def abort_unknown(self) -> None:
        """Somebody aborts a request that was never submitted."""
        self._rarely("unknown")
        self.world.aborting("nobody", AbortSource.CLIENT)
        self._call("abort", "nobody", "nobody", "client")

    @precondition(lambda self: self.world.passes)
    @rule(data=st.data(), turn=st.booleans())
    def pass_ends(self, data: st.DataObject, turn: bool) -> None:
        """A forward pass ends; of one request they end in the order of their launch."""
        self.world.finish(data.draw(st.sampled_from(self._oldest_passes())))
        self._turn(turn)

    def _oldest_passes(self) -> list[Pass]:
        first: dict[str, Pass] = {}
        for running in self.world.passes:
            first.setdefault(running.rid, running)
        return list(first.values())

    @precondition(lambda self: self._ops("pending"))
    @rule(data=st.data(), turn=st.booleans())
    def op_succeeds(self, data: st.DataObject, turn: bool) -> None:
        """A transfer op is delivered."""
        self.world.succeed(data.draw(st.sampled_from(self._ops("pending"))))
        self._turn(turn)

    @precondition(lambda self: self._ops("pending"))
    @rule(data=st.data(), turn=st.booleans())
    def op_fails(self, data: st.DataObject, turn: bool) -> None:
        """A transfer op is said to have failed; it may go on."""
        self.world.fail(data.draw(st.sampled_from(self._ops("pending"))))
        self._turn(turn)

    @precondition(lambda self: self.world.ops)
    @rule(data=st.data(), turn=st.booleans())
    def op_drains(self, data: st.DataObject, turn: bool) -> None:
        """A transfer op is proven to touch the pages no more; whether it was delivered is not."""
        self.world.drain(data.draw(st.sampled_from(self.world.ops)))
        self._turn(turn)

    @precondition(lambda self: self.rare["twice"] and self._completions())
    @rule(data=st.data())
    def told_twice(self, data: st.DataObject) -> None:
        """A completion is told a second time."""
        self._rarely("twice")
        self.world.again(data.draw(st.sampled_from(self._completions())))
        self._turn()

    @precondition(lambda self: self.rare["trouble"] and self._live())
    @rule(event=st.sampled_from([Event.PEER_LOST, Event.ERROR]), data=st.data())
    def trouble(self, event: Event, data: st.DataObject) -> None:
        """The other leg is lost, or the engine fails on a request."""
        self._rarely("trouble")
        self.world.trouble(data.draw(st.sampled_from(self._live())), event)
        self._turn()

    @precondition(
        lambda self: self.capabilities.preemption and self.rare["preempt"] and self.submitted
    )
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """Pages are short: somebody picks a request, perhaps one that cannot be preempted."""
        self._rarely("preempt")
        rid = data.draw(st.sampled_from(self.submitted))
        self.world.preempting(rid)
        self._call("preempt", rid, rid)
        self._turn()

    @precondition(lambda self: self.capabilities.drain_deadline and self._draining())
    @rule(data=st.data())
    def drain_deadline(self, data: st.DataObject) -> None:
        """A drain deadline passes. What did not drain by then may be told later, or never."""
        rid = data.draw(st.sampled_from(self._draining()))
        self.world.timing_out(rid)
        self._call("drain_timeout", rid, rid)
        self._turn()

    @precondition(lambda self: self.world.waiting)
    @rule()
    def turn(self) -> None:
        """The scheduler's loop turns, and takes in what waits."""
        self._turn()

    # What there is.

    def _request(self, rid: str) -> RequestLifecycle:
        return self.world.referee.reference[rid]

    def _live(self) -> list[str]:
        return [rid for rid in self.submitted if not self._request(rid).done]

    def _draining(self) -> list[str]:
        return [
            rid
            for rid in self.submitted
            if self._request(rid).draining
            or self._request(rid).state in ("aborted", "grammar_failed")
        ]

    def _ops(self, verdict: str) -> list[Op]:
        return [op for op in self.world.ops if op.verdict == verdict]

    def _completions(self) -> list[Notice]:
        return [notice for notice in self.world.given if notice.event in _COMPLETIONS]

    # Calling the scheduler, and judging.

    def _call(self, doing: str, rid: str, *arguments: Any) -> None:
        try:
            getattr(self.scheduler, doing)(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever a scheduler raises is a finding
            self.world.referee.crashed(doing, rid, error)
        self._judge()

    def _turn(self, turn: bool = True) -> None:
        if turn:
            self.world.referee.turn_begins()
            self._call("step", "")

    def _judge(self) -> None:
        violations = self.world.referee.violations
        if violations:
            first = violations[0]
            raise _BROKEN[first.invariant](first, self.world.trace)

    def teardown(self) -> None:
        """Let everything come to its end, and look at what is left."""
        if self.world.referee.violations:
            return
        for _ in range(TURNS_TO_SETTLE):
            for rid in self.world.compiling():
                self.world.grammar(rid, None)
            for running in list(self.world.passes):
                self.world.finish(running)
            for op in list(self.world.ops):
                if op.verdict == "failed":
                    self.world.drain(op)
                else:
                    self.world.succeed(op)
            self._turn()
            if self.world.quiet and not self._live():
                break
        self._turn()
        self.world.referee.settled(self._live())
        self._judge()


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


DEFAULT_SETTINGS = settings(
    max_examples=400,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    print_blob=False,
)


def check_scheduler(
    make_scheduler: MakeScheduler,
    *,
    seed: int | None = None,
    config: settings = DEFAULT_SETTINGS,
    **capabilities: bool,
) -> None:
    """Test a scheduler; returns if nothing was found.

    Args:
        make_scheduler: builds the scheduler on a world.
        seed: for a run that can be repeated; by default Hypothesis chooses.
        config: how many examples and steps.
        capabilities: the fields of :class:`Capabilities`.

    Raises:
        ContractBroken: an invariant broke; shrunk.
        TypeError: no such capability.
    """
    _check(make_scheduler, Capabilities(**capabilities), config, seed)


# What is tried, the smallest first: requests, chunks a request, and the share of the examples. Most faults show
# with one request, and then nothing in the trace is about another one.
STAGES = ((1, 1, 0.3), (1, 2, 0.3), (len(RIDS), 2, 0.4))


def _check(
    make_scheduler: MakeScheduler, capabilities: Capabilities, config: settings, seed: int | None
) -> None:
    for requests, chunks, share in STAGES:
        examples = max(1, round(config.max_examples * share))
        stage = settings(config, max_examples=examples)
        found = machine(make_scheduler, capabilities, requests, chunks)
        if seed is not None:
            found = with_seed(seed)(found)
            stage = settings(stage, database=None)
        run_state_machine_as_test(found, settings=stage)


class SchedulerContract:
    """For pytest: subclass it, say how your scheduler is made, and what it can do.

    Attributes:
        capabilities: what the scheduler can do.
        config: how many examples and steps; ``DEFAULT_SETTINGS`` unless set.
    """

    capabilities = Capabilities()
    config = DEFAULT_SETTINGS

    def make_scheduler(self, world: World) -> Scheduler:
        """Your scheduler, built on `world`: it allocates, launches, sends and reports there.

        Raises:
            NotImplementedError: unless you override it.
        """
        msg = "override make_scheduler(self, world): return your scheduler, built on the world"
        raise NotImplementedError(msg)

    def test_contract(self) -> None:
        """No interleaving of what can happen breaks an invariant of the contract."""
        _check(self.make_scheduler, self.capabilities, self.config, None)
