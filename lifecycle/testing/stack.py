"""A Hypothesis machine over the whole stack: table, driver, pool, transfer engine, and an inbox filled by threads.

To test parts of your own (a pool behind the driver's ports, a subclass of the table), name them::

    class TestMyPool(StackContract):
        parts = Parts(pool=MyPool)

or call :func:`check_stack`. The machine has one rule for each event, with the condition that some request can take
it, and a rule that probes what a request must refuse. Policies, precedences and deadlines are drawn. After each
step everything is compared with the independent model (:mod:`lifecycle.testing.rig`); at the end all must be back.

Threads are real: each posts while the loop goes on. They post one after the other and are joined at the loop's
safe point, so that a finding happens again when Hypothesis shrinks it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import HealthCheck, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ..policy import DEFAULT_POLICY, Policy
from .moves import MOVES, Moves
from .rig import Parts, StackBroken
from .strategies import policies

__all__ = ["Parts", "StackBroken", "StackContract", "StackMachine", "check_stack", "walk"]

DEADLINES: tuple[Mapping[str, float], ...] = (
    {},
    {"draining": 4.0},
    {"queued": 9.0, "prefilling": 12.0, "transferring": 9.0, "draining": 4.0},
)

DEFAULT_SETTINGS = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

PICKS = st.integers(0, 2**20)

# What goes on comes more often than what ends everything, or few requests would get far.
_GOES_ON = (
    "submit", "admit", "admit", "forward_launched", "forward_finished", "transfer_posted", "transfer_succeeded",
    "prefill_finished", "preempt",
)  # fmt: skip
_OFTEN = (*MOVES, *4 * _GOES_ON)
_ENDS = (
    "grammar_failed",
    "peer_lost",
    "error",
    "complete",
    "abort",
    "abort_prefix",
    "abort_all",
    "transfer_failed",
)
ENDS_A_RUN = 5
"""How often in one run something ends a request before its time."""


class StackMachine(RuleBasedStateMachine):
    """The machine; rules are made from :data:`lifecycle.testing.moves.MOVES`. Set ``parts`` to test your own."""

    parts = Parts()
    make_moves = Moves
    moves: Moves | None = None
    ends = ENDS_A_RUN

    @initialize(
        policy=st.one_of(st.just(DEFAULT_POLICY), policies()), deadlines=st.sampled_from(DEADLINES)
    )
    def start(self, policy: Policy, deadlines: Mapping[str, float]) -> None:
        """The policies under which it runs."""
        self.moves = self.make_moves(type(self).parts, policy, deadlines)

    def can(self, move: str) -> bool:
        """The condition of a rule."""
        if self.moves is None or (move in _ENDS and self.ends <= 0):
            return False
        return self.moves.can(move)

    @rule(going=st.lists(st.tuples(st.sampled_from(_GOES_ON), PICKS), min_size=1, max_size=4))
    def go_on(self, going: list[tuple[str, int]]) -> None:
        """Several things go well, one after the other."""
        for move, pick in going:
            if self.can(move):
                self.do(move, pick)

    def do(self, move: str, pick: int) -> None:
        """One move."""
        assert self.moves is not None
        self.ends -= move in _ENDS
        self.moves.do(move, pick)

    def teardown(self) -> None:
        """Let everything end, unless something broke."""
        if self.moves is None:
            return
        try:
            if self.moves.found is None:
                self.moves.do("settle")
        finally:
            self.moves.close()


def _rule(move: str) -> object:
    def run(self: StackMachine, pick: int) -> None:
        self.do(move, pick)

    run.__name__ = run.__qualname__ = move
    run.__doc__ = getattr(Moves, move).__doc__

    def can(self: StackMachine) -> bool:
        return self.can(move)

    return precondition(can)(rule(pick=PICKS)(run))


for _move in MOVES:
    setattr(StackMachine, f"do_{_move}", _rule(_move))


def check_stack(
    parts: Parts | None = None,
    *,
    seed: int | None = None,
    config: settings = DEFAULT_SETTINGS,
    machine: type[StackMachine] = StackMachine,
) -> None:
    """Test a stack; returns if nothing was found.

    Args:
        parts: what it is built from; the library's own by default.
        seed: for a run that can be repeated.
        config: how many examples and steps.
        machine: the machine, or your own subclass of it.

    Raises:
        StackBroken: an invariant broke.
    """
    machine = type("Stack", (machine,), {} if parts is None else {"parts": parts})
    run_state_machine_as_test(
        with_seed(seed)(machine) if seed is not None else machine, settings=config
    )


def walk(
    parts: Parts | None = None,
    policy: Policy = DEFAULT_POLICY,
    deadlines: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    moves: int = 60,
) -> Moves:
    """The machine's own moves, chosen by a plain random number generator: a run without Hypothesis.

    Returns what was run; ``events`` of it says how many events the stack took.

    Raises:
        StackBroken: an invariant broke.
    """
    source = random.Random(seed)  # noqa: S311  # a repeatable walk, no secret
    rig = Moves(parts, policy, deadlines)
    try:
        for _ in range(moves):
            move = _OFTEN[int(source.random() * len(_OFTEN))]
            if rig.can(move):
                rig.do(move, int(source.random() * 2**20))
        rig.do("settle")
    finally:
        rig.close()
    return rig


class StackContract:
    """For pytest: subclass it and name your parts."""

    parts = Parts()
    config = DEFAULT_SETTINGS

    def test_stack(self) -> None:
        """No interleaving of events breaks an invariant of the contract."""
        check_stack(self.parts, config=self.config)
