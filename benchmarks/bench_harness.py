"""What the harness gets through: events through the whole stack, judged, and through the automaton alone.

Three figures, of three different things:

- *the stack, in a loop*: the machine's own moves, chosen by a random number generator
  (:func:`lifecycle.testing.stack.walk`). Each event goes to the table, the driver and a pool, and to the
  independent model, and all are compared after it.
- *the stack, under Hypothesis*: the same moves as rules. Hypothesis' own choosing is most of the time.
- *the automaton, without the model*: a random walk over the compiled nodes, from request to request.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from bench_core import Section
from hypothesis import Phase, settings
from measure import Rival, compare, plain

from lifecycle.compile import Node
from lifecycle.request import DEFAULT_AUTOMATON
from lifecycle.testing import moves as moves_module
from lifecycle.testing.stack import DEFAULT_SETTINGS, StackMachine, check_stack, walk

STACK_TARGET = 20_000
AUTOMATON_TARGET = 1_000_000
WALKS, LENGTH = 40, 200


def sections(*, quick: bool) -> list[Section]:
    """The harness's section of the report."""
    rounds = 3 if quick else 15
    per = _walks()
    rivals: dict[str, Rival] = {"the stack, in a loop": plain(_walks, per)}
    if (leases := _lease_walks()) is not None:
        rivals["the same, on leases of torch tensors"] = plain(leases, leases())
    rivals["the automaton, without the model"] = _automaton(200_000)
    timings = compare(rivals, rounds=rounds, collect=True)
    rates = {timing.name: 1e9 / timing.median for timing in timings}
    stack, automaton = rates["the stack, in a loop"], rates["the automaton, without the model"]
    hypothesis = _under_hypothesis(20 if quick else 100)
    return [
        Section(
            title="the harness: one event, judged",
            unit="ns",
            timings=timings,
            targets=[
                _target("the stack, in a loop, events a second", stack, STACK_TARGET),
                _target(
                    "the stack, under Hypothesis, whose own choosing counts",
                    hypothesis,
                    STACK_TARGET,
                ),
                _target("the automaton, events a second", automaton, AUTOMATON_TARGET),
            ],
        )
    ]


def _target(text: str, rate: float, least: float) -> tuple[str, str, bool]:
    return f"{text}: at least {least:,}", f"{rate:,.0f}", rate >= least


def _walks() -> int:
    return sum(walk(seed=seed, moves=LENGTH).events for seed in range(WALKS))


def _lease_walks() -> Callable[[], int] | None:
    """The same walks on a real pool; None where torch is not installed."""
    try:
        from kvpool.testing import LeasePool
    except ImportError:
        return None
    from lifecycle.testing.stack import Parts

    parts = Parts(pool=LeasePool)
    return lambda: sum(walk(parts, seed=seed, moves=LENGTH).events for seed in range(WALKS))


def _automaton(steps: int) -> Rival:
    """From node to node by random letters; a request that is done is followed by a new one."""
    start = DEFAULT_AUTOMATON.start
    ways: dict[Node, list[Node]] = {
        node: [node if cell.to is None else cell.to for cell in node.cells if cell is not None]
        for node in DEFAULT_AUTOMATON.nodes
    }
    source = random.Random(1)
    picks = [source.getrandbits(16) for _ in range(steps)]

    def run() -> None:
        node = start
        for pick in picks:
            if node.terminal:
                node = start
            after = ways[node]
            node = after[pick % len(after)]

    return plain(run, steps)


def _under_hypothesis(examples: int) -> float:
    """Events a second, Hypothesis included."""
    counted = 0

    class Counting(moves_module.Moves):
        def close(self) -> None:
            nonlocal counted
            counted += self.events
            super().close()

    class Machine(StackMachine):
        make_moves = Counting

    config = settings(
        DEFAULT_SETTINGS, max_examples=examples, phases=[Phase.generate], database=None
    )
    begun = time.perf_counter()
    check_stack(seed=1, config=config, machine=Machine)
    return counted / (time.perf_counter() - begun)
