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

from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as with_seed
from hypothesis.stateful import run_state_machine_as_test

from .machine import RIDS, machine
from .player import Capabilities, ContractBroken, MakeScheduler, shortened
from .profiles import of_profile
from .world import Scheduler, World

__all__ = [
    "DEFAULT_SETTINGS",
    "Capabilities",
    "ContractBroken",
    "MakeScheduler",
    "SchedulerContract",
    "check_scheduler",
]

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


def stages(examples: int) -> Iterator[tuple[int, int, int]]:
    """What is tried, the smallest first: requests, chunks a request, and how many of the examples.

    Most faults show with one request, and then nothing in the trace is about another one.
    """
    sizes = ((1, 1), (1, 2), (2, 2), (len(RIDS), 2))
    for place, (requests, chunks) in enumerate(sizes):
        share = examples * (place + 1) // len(sizes) - examples * place // len(sizes)
        yield requests, chunks, max(1, share)


def _check(
    make_scheduler: MakeScheduler, capabilities: Capabilities, config: settings, seed: int | None
) -> None:
    if (
        config is DEFAULT_SETTINGS
    ):  # whoever gave settings of their own is not overruled by the environment
        config = of_profile(config)
    for requests, chunks, examples in stages(config.max_examples):
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
