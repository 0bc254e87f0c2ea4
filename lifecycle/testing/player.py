"""Plays a script of actions to a scheduler, and says when an invariant breaks: what every search here ends in.

A script is a list of actions, ``("abort", "r1", "client")`` and the like. The stateful machine
(:mod:`lifecycle.testing.machine`) makes scripts up, :func:`shortened` leaves actions out of one, and a regression
file (:mod:`lifecycle.testing.regression`) plays one again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

import attrs

from ..policy import Policy
from ..request import RequestLifecycle
from ..vocabulary import AbortSource, Event, GrammarCause, Invariant
from .referee import Violation
from .world import Op, Pass, Scheduler, World

MakeScheduler = Callable[[World], Scheduler]

Action = tuple[Any, ...]

TURNS_TO_SETTLE = 40


@attrs.frozen
class Capabilities:
    """What the scheduler under test can do.

    Attributes:
        chunked_prefill: prompts may take several passes; chunks are sent as they are computed.
        overlap_steps: a pass may still run when the next turn of the loop comes. Without it ``World.launch``
            returns when the pass has ended and its result is there, and no notice follows;
            ``world.overlap_steps`` says which it is.
        preemption: it has ``preempt``.
        drain_deadline: it has ``drain_timeout``.
        at_decision: it tells clients at the decision, not when the pages are back.
        rid_reuse: a rid may be submitted again once its request is over; notices say which life they are about
            (``notice.incarnation``), and some come late.
        ranks: two ranks send a share of each op, and each share ends by itself (``notice.rank``): the op fails
            with the first that fails, and has ended when all have. ``world.ranks`` says how many there are.
        prefix_cache: prompts begin alike (``world.prompt``), and pages of requests that ended well are kept for
            others, with a claim for each holder (``World.publish``, ``alloc(..., cached=)``, ``unlock``,
            ``evict``). The cache is warm (``world.warm``), and there are few pages, so that it must give some up.
    """

    chunked_prefill: bool = True
    overlap_steps: bool = True
    preemption: bool = False
    drain_deadline: bool = False
    at_decision: bool = False
    rid_reuse: bool = False
    ranks: bool = False
    prefix_cache: bool = False

    @property
    def policy(self) -> Policy:
        """The contract's open choices that follow."""
        return Policy(report="at_decision" if self.at_decision else "at_done")


def world_for(capabilities: Capabilities) -> World:
    """A new world for a scheduler that can do this."""
    return World(
        pages=_pages(capabilities),
        policy=capabilities.policy,
        ranks=2 if capabilities.ranks else 1,
        overlap_steps=capabilities.overlap_steps,
        prefix_cache=capabilities.prefix_cache,
    )


def _pages(capabilities: Capabilities) -> int:
    """So few that a prefix cache must evict, and so many that no request can wait for ever.

    A request takes two pages at most, and the warm cache has one that may be claimed. Attempts in quarantine keep
    their claims for good, but prompts of two pages and two letters have only six different pages.
    """
    if not capabilities.prefix_cache:
        return 8
    return 7 if capabilities.drain_deadline else 3


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
        self.world = world_for(capabilities)
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

    def _submit(self, rid: str, chunks: int, prompt: str = "") -> None:
        if rid not in self.submitted:
            self.submitted.append(rid)
        elif rid not in self.reusable():
            return
        self.world.submitted(rid, prompt)
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


def shortened(
    broken: ContractBroken, make_scheduler: MakeScheduler, capabilities: Capabilities
) -> ContractBroken:
    """The same invariant, broken by a script from which no action, no two, and no request can be left out.

    Hypothesis finds; this shortens, since it can leave out any action without disturbing the others. Two at once
    are needed where one undoes what the other did (a page that is taken, and the abort that gives it back).
    """
    while True:
        for script in _simpler(broken.script):
            found = _broken_by(script, make_scheduler, capabilities)
            if found is not None and found.violation.invariant is broken.violation.invariant:
                broken = found
                break
        else:
            return broken


def _simpler(script: list[Action]) -> Iterator[list[Action]]:
    """The script without an action, without two, without a request, and with a prompt of fewer chunks."""
    for at in range(len(script)):
        yield script[:at] + script[at + 1 :]
    for at, (doing, *details) in enumerate(script):
        if doing == "submit" and details[1] > 1:
            rid, chunks, *prompt = details
            fewer = ("submit", rid, chunks - 1, *(text[:-1] for text in prompt))
            yield [*script[:at], fewer, *script[at + 1 :]]
    for first, second in combinations(range(len(script)), 2):
        yield script[:first] + script[first + 1 : second] + script[second + 1 :]
    for rid in dict.fromkeys(action[1] for action in script if action[0] == "submit"):
        yield from _other_prompts([action for action in script if rid not in action])


def _other_prompts(script: list[Action]) -> Iterator[list[Action]]:
    """The script with any prompts: what a request left in the prefix cache may not be needed with others."""
    prompts = [
        ["".join(letters) for letters in product("ab", repeat=action[2])]
        for action in script
        if action[0] == "submit" and len(action) > 3  # doing, rid, chunks, prompt
    ]
    for chosen in product(*prompts) if prompts else ():
        rest = iter(chosen)
        yield [(*a[:3], next(rest)) if a[0] == "submit" else a for a in script]


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
