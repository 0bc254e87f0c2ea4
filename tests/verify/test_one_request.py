"""Every situation of one request: the shipped tables hold, and each broken table breaks what it should."""

from __future__ import annotations

import json

import attrs
import pytest
from click.testing import CliRunner

from lifecycle import PREFILL, Policy
from lifecycle.cli import main
from lifecycle.compile import Automaton
from lifecycle.decode import DECODE
from lifecycle.reasons import Precedence
from lifecycle.replay import replay
from lifecycle.spec import DRAIN, ILLEGAL, STAY, Offers, Row, Table
from lifecycle.verify import verify_one
from lifecycle.verify.counterexample import trace_of
from lifecycle.verify.rules import ONE
from lifecycle.vocabulary import EffectKind, Event, Invariant, State

CANCEL, REPORT = EffectKind.CANCEL_TRANSFER, EffectKind.REPORT
RELEASE = EffectKind.RELEASE_KV
P, T, G, A, D = (
    State.PREFILLING,
    State.TRANSFERRING,
    State.GRAMMAR_FAILED,
    State.ABORTED,
    State.DONE,
)


@pytest.mark.parametrize("table", [PREFILL, DECODE], ids=lambda table: table.name)
def test_the_shipped_tables_hold(table):
    proof = verify_one(table)
    assert proof.broken == ()
    assert proof.proved == ONE
    assert proof.situations > 1_000


def changed(*rows, cells):
    """The prefill table with the events of `cells` taken out of their rows, and `rows` put in their place."""
    kept = []
    for row in PREFILL.rows:
        for state in row.states:
            events = tuple(event for event in row.events if (state, event) not in cells)
            if events:
                kept.append(attrs.evolve(row, states=(state,), events=events))
    return Table("broken", PREFILL.states, (*kept, *rows))


def row(states, events, to, **parts):
    return Row(states, events, to, why="a mutant", **parts)


MUTANTS = {
    "free on abort": (
        changed(
            row(T, Event.ABORT, D, offers=Offers.ITS_OWN, effects=(CANCEL, RELEASE, REPORT)),
            cells={(T, Event.ABORT)},
        ),
        {Invariant.NO_FREE_IN_FLIGHT, Invariant.NO_TAINTED_PUBLISH},
    ),
    "the first op frees": (
        changed(
            row((G, A), Event.TRANSFER_SUCCEEDED, D, claims=PREFILL.rows_of(A, "transfer_drained")[0].claims,
                effects=(RELEASE, REPORT)),
            cells={(G, Event.TRANSFER_SUCCEEDED), (A, Event.TRANSFER_SUCCEEDED)},
        ),
        {Invariant.NO_FREE_IN_FLIGHT, Invariant.FREE_AFTER_ALL_OPS},
    ),
    "the drain is forgotten": (
        changed(
            row((G, A), Event.TRANSFER_DRAINED, STAY, claims=PREFILL.rows_of(A, "transfer_drained")[0].claims),
            cells={(G, Event.TRANSFER_DRAINED), (A, Event.TRANSFER_DRAINED)},
        ),
        {Invariant.DRAIN_TO_ZERO, Invariant.EVENTUALLY_DONE},
    ),
    "an abort is refused": (
        changed(row(T, Event.ABORT, ILLEGAL), cells={(T, Event.ABORT)}),
        {Invariant.ABORT_IS_TOTAL},
    ),
    "an abort is lost": (
        changed(
            row((G, A), Event.ABORT, STAY), cells={(G, Event.ABORT), (A, Event.ABORT)}
        ),
        {Invariant.REASON_BY_POLICY},
    ),
    "the peer waits": (
        changed(
            row(T, Event.ABORT, DRAIN, offers=Offers.ITS_OWN, effects=(RELEASE, REPORT)),
            cells={(T, Event.ABORT)},
        ),
        {Invariant.PEER_TOLD},
    ),
    "new work when decided": (
        changed(
            row(P, Event.FORWARD_LAUNCHED, STAY, claims=PREFILL.rows_of(P, "forward_launched")[0].claims),
            cells={(P, Event.FORWARD_LAUNCHED)},
        ),
        {Invariant.NO_NEW_WORK_AFTER_DECISION},
    ),
    "a late abort is refused": (
        changed(row(D, Event.ABORT, ILLEGAL), cells={(D, Event.ABORT)}),
        {Invariant.ABORT_IS_TOTAL, Invariant.LATE_IS_ABSORBED},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_table_breaks_what_it_should(name):
    table, expected = MUTANTS[name]
    broken = {each.invariant: each for each in verify_one(table).broken}
    assert set(broken) == expected


def test_the_shortest_path_is_a_trace_that_the_library_replays_to_the_same_fault():
    broken = verify_one(MUTANTS["free on abort"][0]).broken[0]
    assert [str(happened.letter.event) for happened in broken.path] == [
        "admit",
        "prefill_finished",
        "abort",
    ]
    result = replay(trace_of(broken), table=MUTANTS["free on abort"][0])
    assert [each["invariant"] for each in result["violations"]] == ["no_free_in_flight"]


def test_two_ops_in_a_path_are_two_ops_in_its_trace():
    table, _ = MUTANTS["the first op frees"]
    broken = next(
        each for each in verify_one(table).broken if each.invariant is Invariant.FREE_AFTER_ALL_OPS
    )
    result = replay(trace_of(broken), table=table)
    assert result["illegal"] == []
    assert "no_free_in_flight" in {each["invariant"] for each in result["violations"]}


class LastWins(Precedence):
    """A join that is none: whatever comes last is reported."""

    def join(self, recorded, reason, *, earlier=False):
        return reason


def test_a_reason_that_is_overwritten_is_found():
    policy = Policy(precedence=LastWins(Policy().precedence.tiers))
    assert Invariant.STICKY_REASON in {
        each.invariant for each in verify_one(PREFILL, [policy]).broken
    }


def test_a_second_report_and_a_published_abort_are_found(monkeypatch):
    honest = Automaton._may_publish
    monkeypatch.setattr(Automaton, "_may_publish", lambda *_: True)
    assert [each.invariant for each in verify_one(PREFILL).broken] == [Invariant.NO_TAINTED_PUBLISH]
    monkeypatch.setattr(Automaton, "_may_publish", honest)
    assert verify_one(PREFILL).broken == ()


def test_the_command_line(tmp_path):
    ran = CliRunner().invoke(main, ["verify", "--requests", "0", "--json"])
    result = json.loads(ran.output)
    assert ran.exit_code == 0
    assert result["one_request"]["broken"] == []
    unsafe = [
        "verify",
        "--requests",
        "0",
        "--policy",
        "on_undrained=release",
        "--out",
        str(tmp_path),
    ]
    ran = CliRunner().invoke(main, unsafe)
    assert ran.exit_code == 1
    assert "no_free_in_flight is broken: drain_timeout releases the pages" in ran.output
    assert (tmp_path / "no_free_in_flight.mmd").read_text().startswith("sequenceDiagram")
    ran = CliRunner().invoke(main, ["replay", str(tmp_path / "no_free_in_flight.jsonl")])
    assert ran.exit_code == 1
    for wrong in (["--policy", "nonsense"], ["--policy", "report=never"], ["--table", "none"]):
        assert CliRunner().invoke(main, ["verify", *wrong]).exit_code == 2
