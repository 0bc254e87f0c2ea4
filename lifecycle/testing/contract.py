"""Property-based tests that a scheduler author points at their own scheduler.

Write a few lines that build your scheduler on a :class:`~lifecycle.testing.world.World` (see
:mod:`lifecycle.testing.careful` for a scheduler that knows nothing of this library), then either ::

    class TestMyScheduler(SchedulerContract):
        def make_scheduler(self, world):
            return MyScheduler(world)

or, without pytest, ``check_scheduler(MyScheduler)``. Hypothesis then plays the world: prompts of a few chunks,
grammar errors, aborts, passes that end late, transfers that fail, that drain late or never, completions that are
told twice, preemptions. When an invariant of contract section 8 breaks, the sequence is shortened, and
:class:`ContractBroken` carries the invariant, what happened, and the events as a trace that ``lifecycle replay``
reads.

Capabilities say what the scheduler can do; what is not claimed is not asked of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
from .notice import Notice
from .profiles import of_profile
from .referee import Violation
from .world import Op, Pass, Scheduler, World

MakeScheduler = Callable[[World], Scheduler]

Action = tuple[Any, ...]

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
        rid_reuse: a rid may be submitted again once its request is over; notices say which life they are about
            (``notice.incarnation``), and some come late.
        ranks: two ranks send a share of each op, and each share ends by itself (``notice.rank``): the op fails
            with the first that fails, and has ended when all have. ``world.ranks`` says how many there are.
    """

    chunked_prefill: bool = True
    preemption: bool = False
    drain_deadline: bool = False
    at_decision: bool = False
    rid_reuse: bool = False
    ranks: bool = False

    @property
    def policy(self) -> Policy:
        """The contract's open choices that follow."""
        return Policy(report="at_decision" if self.at_decision else "at_done")


class ContractBroken(AssertionError):
    """The scheduler broke an invariant.

    Attributes:
        violation: which, for which request, and what happened.
        trace: the events that led there, as the lines of a trace.
        script: what was done to the scheduler; :class:`Player` plays it again.
    """

    def __init__(
        self, violation: Violation, trace: list[dict[str, Any]], script: list[Action]
    ) -> None:
        self.violation, self.trace, self.script = violation, trace, script
        lines = "\n".join(f"    {json.dumps(line)}" for line in trace)
        super().__init__(f"{violation}\n  after these events:\n{lines}")


# A class for each invariant, so that Hypothesis does not shrink one fault into another.
_BROKEN = {
    invariant: type(f"ContractBroken_{invariant}", (ContractBroken,), {"__doc__": str(invariant)})
    for invariant in Invariant
}


class Player:
    """Plays a script of actions to a scheduler: what the machine below does, and what shortens its findings.

    An action that has nothing to act on any more (its pass has ended, say) is passed over, so any part of a
    script is a script.
    """

    def __init__(self, make_scheduler: MakeScheduler, capabilities: Capabilities) -> None:
        self.world = World(policy=capabilities.policy, ranks=2 if capabilities.ranks else 1)
        self.scheduler = make_scheduler(self.world)
        self.submitted: list[str] = []
        self.script: list[Action] = []

    def play(self, *action: Any) -> None:
        """Do one action, and judge.

        Raises:
            ContractBroken: an invariant broke by it.
        """
        self.script.append(action)
        getattr(self, f"_{action[0]}")(*action[1:])
        violations = self.world.referee.violations
        if violations:
            first = violations[0]
            # What the scheduler heard after that is no part of the story.
            told = self.world.trace[: first.events]
            raise _BROKEN[first.invariant](first, told, self.script)

    # One method an action.

    def _submit(self, rid: str, chunks: int) -> None:
        if rid not in self.submitted:
            self.submitted.append(rid)
        elif rid not in self.reusable():
            return
        self.world.submitted(rid)
        self._call("submit", rid, rid, chunks)

    def _abort(self, rid: str, source: AbortSource) -> None:
        self.world.aborting(rid, source)
        self._call("abort", rid, rid, str(source))

    def _preempt(self, rid: str) -> None:
        if rid in self.submitted:
            self.world.preempting(rid)
            self._call("preempt", rid, rid)

    def _deadline(self, rid: str) -> None:
        if rid in self.draining():
            self.world.timing_out(rid)
            self._call("drain_timeout", rid, rid)

    def _grammar(self, rid: str, cause: GrammarCause | None) -> None:
        if rid in self.live():
            self.world.grammar(rid, cause)

    def _finish(self, rid: str) -> None:
        for running in self.oldest_passes():
            if running.rid == rid:
                self.world.finish(running)

    def _transfer(self, outcome: str, rid: str, name: str, rank: int = 0) -> None:
        for op in self.world.ops:
            if (op.rid, op.name, op.rank) == (rid, name, rank) and (
                outcome == "drain" or op.verdict == "pending"
            ):
                getattr(self.world, outcome)(op)
                return

    def _again(self, event: Event, rid: str, op: str | None, rank: int = 0) -> None:
        for notice in self.world.given:
            if (notice.event, notice.rid, notice.op, notice.rank) == (event, rid, op, rank):
                self.world.again(notice)
                return

    def _trouble(self, rid: str, event: Event) -> None:
        if rid in self.live():
            self.world.trouble(rid, event)

    def _turn(self) -> None:
        self.world.referee.turn_begins()
        self._call("step", "")

    def _settle(self) -> None:
        """Everything comes to its end, and what is left is looked at."""
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
            self.world.release_quarantine()
            self._turn()
            if self.world.quiet and not self.live():
                break
        self._turn()
        self.world.referee.settled(self.live())

    def _call(self, doing: str, rid: str, *arguments: Any) -> None:
        try:
            getattr(self.scheduler, doing)(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever a scheduler raises is a finding
            self.world.referee.crashed(doing, rid, error)

    # What there is.

    def request(self, rid: str) -> RequestLifecycle:
        """The reference's request."""
        return self.world.referee.reference[rid]

    def live(self) -> list[str]:
        """The requests that have not ended."""
        return [rid for rid in self.submitted if not self.request(rid).done]

    def reusable(self) -> list[str]:
        """The rids whose request is over."""
        return [rid for rid in self.submitted if self.world.referee.over(rid)]

    def draining(self) -> list[str]:
        """The requests of which something drains."""
        return [
            rid
            for rid in self.submitted
            if self.request(rid).draining
            or (self.request(rid).decided and not self.request(rid).done)
        ]

    def oldest_passes(self) -> list[Pass]:
        """Of each request the pass that ends next; passes end in the order of their launch."""
        first: dict[str, Pass] = {}
        for running in self.world.passes:
            first.setdefault(running.rid, running)
        return list(first.values())

    def pending(self) -> list[Op]:
        """The transfers without a verdict."""
        return [op for op in self.world.ops if op.verdict == "pending"]


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
        self.do("submit", rid, data.draw(st.integers(1, self.chunks)), turn=not ready)
        if ready:
            self.do("grammar", rid, None)

    @precondition(lambda self: self.capabilities.rid_reuse and self.player.reusable())
    @rule(data=st.data(), turn=st.booleans())
    def submit_again(self, data: st.DataObject, turn: bool) -> None:
        """A rid is used again, while something may still be told of its former life."""
        rid = data.draw(st.sampled_from(self.player.reusable()))
        self.do("submit", rid, data.draw(st.integers(1, self.chunks)), turn=turn)

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


def shortened(
    broken: ContractBroken, make_scheduler: MakeScheduler, capabilities: Capabilities
) -> ContractBroken:
    """The same invariant, broken by a script from which no action can be left out.

    Hypothesis finds; this shortens, since it can leave out any action without disturbing the others.
    """
    at = 0
    while at < len(broken.script):
        script = broken.script[:at] + broken.script[at + 1 :]
        found = _broken_by(script, make_scheduler, capabilities)
        if found is not None and found.violation.invariant is broken.violation.invariant:
            broken, at = found, 0
        else:
            at += 1
    return broken


def _broken_by(
    script: list[Action], make_scheduler: MakeScheduler, capabilities: Capabilities
) -> ContractBroken | None:
    player = Player(make_scheduler, capabilities)
    try:
        for action in script:
            player.play(*action)
    except ContractBroken as broken:
        return broken
    return None


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
    max_examples=1200,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    phases=[Phase.generate],  # `shortened` shortens what is found
    database=None,
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
        ContractBroken: an invariant broke; with the shortest trace that was found.
        TypeError: no such capability.
    """
    _check(make_scheduler, Capabilities(**capabilities), config, seed)


# What is tried, the smallest first: requests, chunks a request, and the share of the examples. Most faults show
# with one request, and then nothing in the trace is about another one.
STAGES = ((1, 1, 0.3), (1, 2, 0.3), (len(RIDS), 2, 0.4))


def _check(
    make_scheduler: MakeScheduler, capabilities: Capabilities, config: settings, seed: int | None
) -> None:
    if (
        config is DEFAULT_SETTINGS
    ):  # whoever gave settings of their own is not overruled by the environment
        config = of_profile(config)
    for requests, chunks, share in STAGES:
        examples = max(1, round(config.max_examples * share))
        stage = settings(config, max_examples=examples)
        found = machine(make_scheduler, capabilities, requests, chunks)
        if seed is not None:
            found = with_seed(seed)(found)
        try:
            run_state_machine_as_test(found, settings=stage)
        except ContractBroken as broken:
            raise shortened(broken, make_scheduler, capabilities) from None


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
