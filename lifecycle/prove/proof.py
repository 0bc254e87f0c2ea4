"""The obligations, and what z3 said of each."""

from __future__ import annotations

import time
from typing import Any

import attrs
import z3

from ..policy import DEFAULT_POLICY, OnUndrained, Policy
from ..spec import Table
from ..vocabulary import Invariant
from .world import NO_LEASE, Action, Fleet, World

TIMEOUT_MS = 10_000

ASSUMPTIONS = (
    "each request that is not done meets a deadline at some time: abort(timeout), then drain_timeout",
    "the policy on_undrained is not hold",
    "nothing is assumed of ranks: they may freeze, fail, and drain late or never",
)
"""What `eventually_done` rests on."""


@attrs.frozen
class Failed:
    """An obligation that does not hold, or that z3 could not decide (`unknown`)."""

    invariant: Invariant
    action: str
    what: str
    unknown: bool = False

    def __str__(self) -> str:
        how = "is not decided" if self.unknown else "fails"
        return f"{self.invariant} {how} at {self.action}: {self.what}"


@attrs.frozen
class Result:
    """What was proved.

    Attributes:
        obligations: how many formulas were refuted.
        actions: the names of the actions.
        vacuous: those that can never happen.
        failed: what does not hold.
        assumptions: what `eventually_done` rests on.
        seconds: how long it took.
    """

    obligations: int
    actions: tuple[str, ...]
    vacuous: tuple[str, ...]
    failed: tuple[Failed, ...]
    assumptions: tuple[str, ...]
    seconds: float

    @property
    def proved(self) -> tuple[Invariant, ...]:
        """The invariants that hold for any number of requests, ranks and pages."""
        broken = {each.invariant for each in self.failed}
        return tuple(name for name in PROVED_OF if name not in broken)


PROVED_OF = (
    Invariant.SINGLE_RELEASE,
    Invariant.NO_FREE_IN_FLIGHT,
    Invariant.DRAIN_TO_ZERO,
    Invariant.ABORT_IS_TOTAL,
    Invariant.NO_NEW_WORK_AFTER_DECISION,
    Invariant.STICKY_REASON,
    Invariant.REASON_BY_POLICY,
    Invariant.REPORT_ONCE,
    Invariant.LATE_IS_ABSORBED,
    Invariant.RANK_AGREEMENT,
    Invariant.PEER_TOLD,
    Invariant.CLAIM_COUNT,
    Invariant.EVENTUALLY_DONE,
)


def prove(
    table: Table,
    policy: Policy = DEFAULT_POLICY,
    *,
    faults: frozenset[str] = frozenset(),
    last_wins: bool = False,
) -> Result:
    """Prove the invariants of `table` under `policy`; `faults` and `last_wins` are for mutants."""
    started = time.perf_counter()
    fleet = Fleet(table, policy, faults, last_wins=last_wins)
    work = _Work(fleet)
    work.start()
    actions = list(fleet.actions())
    for action in actions:
        work.keeps(action)
        work.falls(action)
    work.deadlines(actions)
    return Result(
        obligations=work.obligations,
        actions=tuple(action.name for action in actions),
        vacuous=tuple(work.vacuous),
        failed=tuple(work.failed),
        assumptions=ASSUMPTIONS,
        seconds=time.perf_counter() - started,
    )


class _Work:
    """The obligations of one proof."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.obligations = 0
        self.failed: list[Failed] = []
        self.vacuous: list[str] = []
        self.solver = z3.Solver()
        self.solver.set("timeout", TIMEOUT_MS)
        for _, _, formula in fleet.invariants(fleet.world):
            self.solver.add(formula)

    def _refute(
        self, solver: z3.Solver, invariant: Invariant, action: str, what: str, *formulas: Any
    ) -> None:
        self.obligations += 1
        if any(each.invariant is invariant for each in self.failed):
            return  # one way to break it is enough
        solver.push()
        solver.add(*formulas)
        said = solver.check()
        solver.pop()
        if said != z3.unsat:
            self.failed.append(Failed(invariant, action, what, said == z3.unknown))

    def start(self) -> None:
        """The invariant holds where nothing has happened."""
        fleet, w = self.fleet, self.fleet.world
        words, r, k, p = fleet.words, fleet.r, fleet.k, fleet.p
        no = z3.BoolVal(False)  # z3's own literal
        first = attrs.evolve(
            w,
            state=lambda _: words.state[str(words.table.initial.name)],
            reason=lambda _: words.none,
            step=lambda _: no,
            op=lambda _: no,
            net=lambda *_: z3.IntVal(0),
            on=lambda *_: no,
            lease=lambda _: z3.IntVal(NO_LEASE),
            old=lambda _: no,
            old_on=lambda *_: no,
            reports=lambda _: z3.IntVal(0),
            cancelled=lambda _: no,
            pool=lambda _: z3.Not(no),
            cached=lambda _: no,
        )
        del r, k, p
        for invariant, what, formula in fleet.invariants(first):
            self._refute(z3.Solver(), invariant, "the start", what, z3.Not(formula))

    def keeps(self, action: Action) -> None:
        """The action can happen, keeps the invariant, and does nothing that it must not."""
        solver = self.solver
        solver.push()
        solver.add(action.guard)
        if solver.check() == z3.unsat:
            self.vacuous.append(action.name)
        for invariant, what, formula in self.fleet.invariants(action.after):
            self._refute(solver, invariant, action.name, what, z3.Not(formula))
        for invariant, formula in action.never:
            self._refute(solver, invariant, action.name, "what must not happen", formula)
        solver.pop()

    def _measure(self, w: World, r: Any) -> Any:
        words = self.fleet.words
        s = w.state(r)
        return z3.If(words.terminal(s), 0, z3.If(words.draining(s), 1, 2))

    def falls(self, action: Action) -> None:
        """No action takes a request further from its end; its deadline brings it nearer."""
        if action.request is None:
            return
        before = self._measure(self.fleet.world, action.request)
        after = self._measure(action.after, action.request)
        name = Invariant.EVENTUALLY_DONE
        rises = z3.And(action.guard, after > before)
        self._refute(self.solver, name, action.name, "goes back from the end", rises)
        if action.deadline:
            what = "the deadline brings it no nearer to the end"
            stays = z3.And(action.guard, before > 0, after >= before)
            self._refute(self.solver, name, action.name, what, stays)

    def deadlines(self, actions: list[Action]) -> None:
        """Every request that is not done has a deadline that can come."""
        fleet, name = self.fleet, Invariant.EVENTUALLY_DONE
        due = [action for action in actions if action.deadline]
        request = due[0].request
        can = z3.Or([action.guard for action in due])
        waits = z3.And(self._measure(fleet.world, request) > 0, z3.Not(can))
        self._refute(self.solver, name, "any", "a request has no deadline", waits)
        held = fleet.words.policy.on_undrained is OnUndrained.HOLD
        if "unfair_deadlines" in fleet.faults or held:
            what = "deadlines need not come, and nothing else must"
            self._refute(self.solver, name, "any", what, self._measure(fleet.world, request) > 0)
