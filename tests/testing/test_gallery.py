"""The harness finds every faulty scheduler, names what it breaks, and tells it in a short trace."""

from __future__ import annotations

import json
import subprocess
import sys

import attrs
import pytest
from hypothesis import settings

from lifecycle.replay import replay
from lifecycle.testing.careful import Careful, CarefulAtDecision
from lifecycle.testing.careful_cache import CarefulWithCache
from lifecycle.testing.contract import (
    DEFAULT_SETTINGS,
    Capabilities,
    ContractBroken,
    SchedulerContract,
    check_scheduler,
)
from lifecycle.testing.faulty import (
    GALLERY,
    AbortsByPrefix,
    EvictsThenClaims,
    FailureReplacesAbort,
    FirstRankSpeaksForAll,
    FormerLifeEndsTheNew,
    FreesAtTheFirstOfTwo,
    FreesUnderThePass,
    LaunchesAfterAbort,
    OneFaultEndsAll,
)
from lifecycle.testing.player import Player, shortened
from lifecycle.testing.world import World
from lifecycle.vocabulary import Event

EVERYTHING = {"preemption": True, "drain_deadline": True}


# These show with several requests only, which are tried last; `make gallery` and the slow tests look for them too.
LATE_FOUND = {
    AbortsByPrefix,
    OneFaultEndsAll,
    LaunchesAfterAbort,
    FailureReplacesAbort,
    EvictsThenClaims,
    FreesAtTheFirstOfTwo,
}


@pytest.mark.parametrize(
    "faulty",
    [pytest.param(each, marks=pytest.mark.slow if each in LATE_FOUND else ()) for each in GALLERY],
    ids=lambda faulty: faulty.__name__,
)
def test_every_fault_is_found_and_named(faulty):
    with pytest.raises(ContractBroken) as found:
        check_scheduler(faulty, seed=1, **dict.fromkeys(faulty.needs, True))
    broken = found.value
    assert broken.violation.invariant == faulty.breaks
    assert len(broken.trace) <= 12
    assert str(broken.violation) in str(broken)
    assert faulty.__doc__
    assert faulty.seen_in
    replay(broken.trace)  # what is told can be replayed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 16))
@pytest.mark.parametrize("faulty", GALLERY, ids=lambda faulty: faulty.__name__)
def test_every_fault_is_found_with_every_seed(faulty, seed):
    with pytest.raises(ContractBroken) as found:
        check_scheduler(faulty, seed=seed, **dict.fromkeys(faulty.needs, True))
    assert found.value.violation.invariant == faulty.breaks
    assert len(found.value.trace) <= 12


def test_a_request_that_waits_for_quarantined_pages_is_no_fault_of_the_scheduler(monkeypatch):
    def play():
        player = Player(Careful, Capabilities(**EVERYTHING))
        for rid in "abcd":  # two pages each: all that there are
            player.play("submit", rid, 2)
            player.play("grammar", rid, None)
        player.play("turn")
        for rid in "abcd":
            player.play("trouble", rid, Event.ERROR)
        player.play("turn")
        for rid in "abcd":
            player.play("deadline", rid)
        player.play("submit", "e", 2)
        player.play("settle")

    play()
    monkeypatch.setattr(World, "release_quarantine", lambda _: None)
    with pytest.raises(ContractBroken, match="eventually_done is broken for request 'e'"):
        play()


class TestCareful(SchedulerContract):
    """A scheduler that is right passes."""

    capabilities = SchedulerContract.capabilities.__class__(**EVERYTHING)
    config = settings(DEFAULT_SETTINGS, max_examples=200)

    def make_scheduler(self, world):
        return Careful(world)


class TestCarefulWithUsedRids(TestCareful):
    """Rids are used again while something of their former life is still to come."""

    capabilities = attrs.evolve(TestCareful.capabilities, rid_reuse=True)


class TestCarefulAtDecision(TestCareful):
    """Clients are told at the decision."""

    capabilities = attrs.evolve(TestCareful.capabilities, at_decision=True, rid_reuse=True)

    def make_scheduler(self, world):
        return CarefulAtDecision(world)


class TestCarefulWithRanks(TestCareful):
    """Two ranks, each with a share of every op."""

    capabilities = attrs.evolve(TestCareful.capabilities, rid_reuse=True, ranks=True)


class TestCarefulWithoutOverlap(TestCareful):
    """A pass has ended when the launch returns."""

    capabilities = attrs.evolve(TestCareful.capabilities, rid_reuse=True, overlap_steps=False)


class TestCarefulWithCache(TestCareful):
    """Pages of answered requests are kept for the next, in a pool in which they must be evicted again."""

    capabilities = attrs.evolve(SchedulerContract.capabilities, prefix_cache=True, preemption=True)

    def make_scheduler(self, world):
        return CarefulWithCache(world)


class TestCarefulWithCacheAndAll(TestCarefulWithCache):
    """The same with ranks, rids that are used again, and attempts in quarantine that keep their claims."""

    capabilities = attrs.evolve(
        TestCareful.capabilities, prefix_cache=True, rid_reuse=True, ranks=True
    )


@pytest.mark.parametrize("faulty", [FormerLifeEndsTheNew, FirstRankSpeaksForAll])
def test_only_the_capability_finds_it(faulty):
    quick = settings(DEFAULT_SETTINGS, max_examples=200)
    check_scheduler(faulty, seed=1, config=quick)


def test_what_frees_under_a_pass_is_not_found_where_passes_do_not_overlap():
    quick = settings(DEFAULT_SETTINGS, max_examples=200)
    check_scheduler(FreesUnderThePass, seed=1, config=quick, overlap_steps=False)


def test_a_finding_sheds_what_only_another_prompt_makes_needless():
    b_is_kept = [
        ("submit", "r1", 1, "b"),
        ("grammar", "r1", None),
        ("turn",),
        ("finish", "r1"),
        ("turn",),
    ]
    b_is_kept += [("transfer", "succeed", "r1", "c0", 0)]
    pressure = [("submit", "r10", 2, "aa"), ("grammar", "r10", None), ("submit", "r2", 2, "ba")]
    script = [*b_is_kept, *pressure, ("grammar", "r2", None), ("turn",)]
    capabilities = Capabilities(prefix_cache=True)
    player = Player(EvictsThenClaims, capabilities)
    for action in script[:-1]:
        player.play(*action)
    with pytest.raises(ContractBroken) as found:
        player.play(*script[-1])
    short = shortened(found.value, EvictsThenClaims, capabilities)
    assert [action[0] for action in short.script].count("submit") == 2
    assert len(short.trace) < len(found.value.trace)
    assert short.violation.invariant is found.value.violation.invariant


def test_whoever_forgets_to_say_how_a_scheduler_is_made_is_told():
    with pytest.raises(NotImplementedError, match="override make_scheduler"):
        SchedulerContract().make_scheduler(None)
    with pytest.raises(TypeError, match="levitation"):
        check_scheduler(Careful, levitation=True)


THIRD_PARTY = """
from lifecycle.testing.contract import SchedulerContract
from lifecycle.testing.faulty import FreesOnAbort

class TestMine(SchedulerContract):
    def make_scheduler(self, world):
        return FreesOnAbort(world)
"""


def test_a_third_party_subclasses_it_in_a_few_lines(tmp_path):
    (tmp_path / "test_mine.py").write_text(THIRD_PARTY, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 1
    assert "no_free_in_flight is broken for request 'r1'" in ran.stdout
    told = [json.loads(line.strip("E ")) for line in ran.stdout.splitlines() if '{"event"' in line]
    assert told[0] == {"event": "submit", "rid": "r1"}
