"""Proofs by z3: the shipped tables hold for any size, each mutant fails where it should."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("z3", reason="the extra [prove] is not installed")

from lifecycle import PREFILL, Policy
from lifecycle.cli import main
from lifecycle.decode import DECODE
from lifecycle.prove import prove
from lifecycle.prove.proof import PROVED_OF
from lifecycle.prove.reasons import exceptions, join_is_sound
from lifecycle.verify.mutants import MUTANTS


@pytest.mark.parametrize("table", [PREFILL, DECODE], ids=lambda table: table.name)
def test_the_shipped_tables_hold_for_any_size(table):
    result = prove(table)
    assert (result.failed, result.vacuous) == ((), ())
    assert result.proved == PROVED_OF
    assert result.obligations > 300


# One fault of the table, one of the ranks, one of the pool and one of the join; the others take longer together.
QUICK = ("free_on_abort", "min_consensus", "sharers_ignored", "reason_overwritten")


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=() if mutant.name in QUICK else pytest.mark.slow)
        for mutant in MUTANTS
    ],
    ids=lambda mutant: mutant.name,
)
def test_a_mutant_fails_where_it_should(mutant):
    result = prove(mutant.table, faults=mutant.faults, last_wins=mutant.fault == "last_wins")
    refuted = {each.invariant for each in result.failed if not each.unknown}
    assert mutant.breaks in refuted


@pytest.mark.slow
def test_where_the_order_of_events_decides_is_said():
    assert join_is_sound()
    found = {(each.state, each.op) for each in exceptions(PREFILL, Policy())}
    assert found == {("transferring", False)}
    pairs = {each.second for each in exceptions(PREFILL, Policy(abort_after_handoff="ignore"))}
    assert "peer_lost" in pairs


def test_the_command_line():
    ran = CliRunner().invoke(main, ["prove", "--json"])
    assert ran.exit_code == 0
    told = json.loads(ran.output)
    assert told["failed"] == told["vacuous"] == []
    assert len(told["assumptions"]) == 3
