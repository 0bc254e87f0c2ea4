"""Small fleets: the shipped tables hold, each mutant is found, and counterexamples are the shortest."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lifecycle.cli import main
from lifecycle.decode import DECODE
from lifecycle.trace import parse
from lifecycle.verify import verify_fleet
from lifecycle.verify.explore import explore
from lifecycle.verify.fleet import Fleet
from lifecycle.verify.mutants import MUTANTS
from lifecycle.vocabulary import Invariant


def test_a_fleet_holds_what_must_always_hold():
    proof = verify_fleet(3, 2, 2)
    assert proof.lost == ()
    assert proof.missing == ()
    assert proof.states > 40_000
    assert Invariant.EVENTUALLY_DONE in proof.proved


def test_the_decode_leg_holds_too():
    proof = verify_fleet(2, 2, 2, table=DECODE)
    assert (proof.lost, proof.missing) == ((), ())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_breaks_what_it_should(mutant):
    table, policy = mutant.table, mutant.policy
    proof = verify_fleet(2, 2, 2, table=table, policy=policy, faults=mutant.faults)
    found = {lost.invariant: lost for lost in proof.lost}
    assert mutant.breaks in found
    for line in found[mutant.breaks].trace:
        parse(json.dumps(line), 1)


def test_a_counterexample_is_told_in_words_and_is_the_shortest():
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "min_consensus")
    proof = verify_fleet(2, 2, 2, faults=mutant.faults)
    assert [line.split(" ", 2)[2] for line in proof.lost[0].story] == [
        "is admitted",
        "hands its KV cache over",
        "has a grammar error",
        "rank 0 goes quiet",
    ] or [line.split(" ", 2)[2] for line in proof.lost[0].story] == [
        "is admitted",
        "hands its KV cache over",
        "rank 0 goes quiet",
    ]


class Counter:
    """A model whose answers are known: 0, 1, 2, 3, with a loop at 2 that a deadline may leave."""

    def __init__(self, *, due):
        self.due = due

    def initial(self):
        return 0

    def successors(self, state):
        return {0: [1], 1: [2], 2: [1, 2, 3], 3: []}[state]

    def broken(self, state):
        return ["three"] if state == 3 else []

    def witnessed(self, state):
        return ["two"] if state == 2 else []

    def there(self, state):
        return state == 3

    def deadlines(self, state):
        return [{0: 3, 1: 3, 2: self.due}[state]]


def test_the_checker_finds_paths_witnesses_and_fair_loops():
    fair = explore(Counter(due=3))
    assert (fair.states, fair.edges) == (4, 5)
    assert fair.paths == {"three": (0, 1, 2, 3)}
    assert fair.witnesses == {"two"}
    assert fair.stuck is None
    assert explore(Counter(due=2)).stuck == (0, 1)  # the deadline stays in the loop
    assert explore(Counter(due=None)).stuck == (0, 1)


def test_symmetry_leaves_out_states_and_finds_the_same():
    whole = explore(Fleet(2, 2, 2, symmetry=False))
    part = explore(Fleet(2, 2, 2))
    assert part.states < whole.states / 3
    assert (part.paths, part.stuck) == (whole.paths, whole.stuck) == ({}, None)
    three = explore(Fleet(1, 1, 3)).states
    assert three < explore(Fleet(1, 1, 3, symmetry=False)).states


def test_the_command_line_shows_a_fleet(tmp_path):
    size = ("--requests", "2", "--ranks", "1", "--pages", "2")
    ran = CliRunner().invoke(main, ["verify", *size, "--json"])
    assert ran.exit_code == 0
    assert json.loads(ran.output)["fleet"]["broken"] == []
    frozen = ["verify", *size, "--policy", "on_undrained=hold", "--out", str(tmp_path)]
    ran = CliRunner().invoke(main, frozen)
    assert ran.exit_code == 1  # ranks may freeze, and nobody waits no longer
    assert "eventually_done may never hold" in ran.output
    assert (tmp_path / "fleet_eventually_done.jsonl").exists()
