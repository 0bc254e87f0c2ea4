"""The harness on the example scheduler: clean where the library decides, and not where clean-up is by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import settings

from lifecycle.testing.contract import (
    DEFAULT_SETTINGS,
    Capabilities,
    ContractBroken,
    SchedulerContract,
    check_scheduler,
)

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from prefill.on_world import by_hand_after, by_hand_before, on_lifecycle

ALL = Capabilities(preemption=True, drain_deadline=True, rid_reuse=True)


class TestOnLifecycle(SchedulerContract):
    """The library decides."""

    capabilities = ALL
    config = settings(DEFAULT_SETTINGS, max_examples=200)

    def make_scheduler(self, world):
        return on_lifecycle(world)


class TestOnLifecycleWithoutOverlap(TestOnLifecycle):
    """A pass has ended when its launch returns."""

    capabilities = attrs.evolve(ALL, overlap_steps=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_found_in_20000_examples():
    nightly = settings(DEFAULT_SETTINGS, max_examples=20_000)
    check_scheduler(
        on_lifecycle,
        seed=20_000,
        config=nightly,
        preemption=True,
        drain_deadline=True,
        rid_reuse=True,
    )


@pytest.mark.parametrize("by_hand", [by_hand_before, by_hand_after])
def test_clean_up_by_hand_is_found(by_hand):
    with pytest.raises(ContractBroken) as found:
        check_scheduler(by_hand, seed=1)
    assert len(found.value.trace) <= 12
