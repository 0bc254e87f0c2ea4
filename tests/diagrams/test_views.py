"""What is drawn is what requests do: pictures are compared with the automaton, cell by cell."""

from __future__ import annotations

import attrs
import pytest

from lifecycle import PREFILL, Policy, compile_table
from lifecycle.decode import DECODE
from lifecycle.diagrams import Look, PictureError, View, picture
from lifecycle.diagrams.views import LAST_CLAIM, claims_key, full_key
from lifecycle.spec import DRAIN, FINISH, Offers
from lifecycle.vocabulary import Event, Kind
from tests.diagrams.odd import ODD_TABLE, renamed

TABLES = pytest.mark.parametrize(
    "table", [PREFILL, DECODE, ODD_TABLE], ids=["prefill", "decode", "odd"]
)
POLICIES = [Policy(), Policy(report="at_decision", on_undrained="hold")]


def moves(automaton):
    for node in automaton.nodes:
        for event in Event:
            for letter, cell in node.letters(event):
                if cell.to is not None and cell.to is not node:
                    yield node, letter, cell


def words(edge):
    return {label.partition("(")[0] for label in edge.labels}


def states_gaps(drawn, table, policy=Policy()):  # noqa: B008  # frozen
    """Moves between states that the picture does not show, and labels that no move bears out."""
    shown = {(edge.start, edge.end, word) for edge in drawn.edges for word in words(edge)}
    borne_out, missing = set(), set()
    for node, letter, cell in moves(compile_table(table, policy)):
        if cell.kind is not Kind.MOVE:
            continue
        start, end, event = str(node.state), str(cell.to.state), str(letter.event)
        ways = {(start, end, event)}
        if cell.row.to is FINISH and table.state(node.state).draining:
            ways = {(start, end, LAST_CLAIM)}
        if ways & shown:
            borne_out |= ways & shown
        elif not told_in_words(table, node, cell):
            missing |= ways
    told = {way for way in shown if way[2] != "late events"}
    return missing, told - borne_out


def told_in_words(table, node, cell):
    """Straight to the end, with nothing outstanding; or the last completion after a recorded ending."""
    held = table.state(node.state).pages.is_held
    if cell.row.to is DRAIN:
        return cell.to.terminal and held
    return cell.row.to is FINISH and cell.row.offers is Offers.NOTHING


@TABLES
def test_states_shows_every_move_and_nothing_else(table):
    assert states_gaps(picture(table), table) == (set(), set())


@pytest.mark.parametrize("at", range(13))
def test_an_arrow_that_is_missing_or_too_much_is_noticed(at):
    drawn = picture(PREFILL)
    less = attrs.evolve(drawn, edges=drawn.edges[:at] + drawn.edges[at + 1 :])
    missing, _ = states_gaps(less, PREFILL)
    assert missing
    turned = attrs.evolve(drawn.edges[at], start=drawn.edges[at].end, end=drawn.edges[at].start)
    more = attrs.evolve(drawn, edges=(*drawn.edges, turned))
    _, invented = states_gaps(more, PREFILL)
    assert invented


@TABLES
def test_the_path_to_a_good_end_is_the_longest(table):
    drawn = picture(table)
    assert drawn.path[0] == drawn.start
    assert drawn.path[-1] == drawn.ends[0].key
    assert len(drawn.path) == 4
    assert [node.title for node in drawn.ends] == [table.terminal.name]


@TABLES
@pytest.mark.parametrize("policy", POLICIES, ids=["default", "early"])
def test_full_has_every_configuration_and_every_step(table, policy):
    automaton = compile_table(table, policy)
    drawn = picture(table, "full", policy)
    assert {n.key for n in drawn.nodes} == {full_key(n.configuration) for n in automaton.nodes}
    shown = {
        (edge.start, edge.end, label, edge.effects) for edge in drawn.edges for label in edge.labels
    }
    real = {
        (
            full_key(node.configuration),
            full_key(cell.to.configuration),
            str(letter),
            tuple(str(effect.kind) for effect in cell.effects),
        )
        for node, letter, cell in moves(automaton)
    }
    assert shown == real


@TABLES
@pytest.mark.parametrize("policy", POLICIES, ids=["default", "early"])
def test_claims_shows_who_frees_and_no_other(table, policy):
    drawn = picture(table, "claims", policy)
    members = {}
    for node in drawn.nodes:
        members.setdefault(node.group, []).append(node.key)
        members[node.key] = [node.key]
    shown = {
        (start, end, label, edge.effects)
        for edge in drawn.edges
        for start in members[edge.start]
        for end in members[edge.end]
        for label in edge.labels
    }
    frees = set()
    for node, letter, cell in moves(compile_table(table, policy)):
        start, end = claims_key(node.configuration), claims_key(cell.to.configuration)
        if start == end:
            continue
        freed = tuple(str(e.kind) for e in cell.effects if str(e.kind).endswith("_kv"))
        assert (start, end, str(letter.event), freed) in shown
        if freed:
            frees.add((start, end, str(letter.event), freed))
    assert {way for way in shown if way[3]} == frees
    for node in drawn.nodes:  # where something is out, no event of the request itself frees
        if "step" in node.title and "op" in node.title:
            assert not any(way[0] == node.key and "release_kv" in way[3] for way in frees)


def test_reasons_shows_the_tiers_of_the_policy_and_who_offers_what():
    drawn = picture(PREFILL, "reasons")
    tiers = [[n.title for n in drawn.nodes if n.group == group.key] for group in drawn.groups]
    assert [tuple(tier) for tier in tiers] == [
        tuple(str(reason) for reason in tier) for tier in Policy().precedence.tiers
    ]
    offers = {(edge.start, edge.end) for edge in drawn.edges}
    assert ("event/transfer_drained", "reason/transfer_failed") in offers
    assert ("event/transfer_succeeded", "reason/length") in offers
    reached = set()
    for _, letter, cell in moves(compile_table(PREFILL, Policy())):
        if cell.wins:
            reached.add((f"event/{letter.event}", f"reason/{cell.to.reason}"))
    assert offers == reached
    order = [
        [str(r)]
        for r in ["length", "stop", *(str(r) for t in Policy().precedence.tiers[:2] for r in t)]
    ]
    total = picture(PREFILL, "reasons", Policy(precedence=order))
    assert len(total.groups) == 10
    assert total.nodes[-1].title == "internal_error"


def test_decided_states_and_their_ways_have_their_own_look():
    drawn = picture(PREFILL)
    looks = {node.title: node.look for node in drawn.nodes}
    assert looks["grammar_failed"] is Look.SET_APART
    assert looks["aborted"] is Look.CUT_SHORT
    assert looks["done"] is Look.END
    (late,) = [edge for edge in drawn.edges if edge.look is Look.LATE]
    assert (late.start, late.end) == ("done", "done")


def test_pictures_are_the_same_every_time():
    for view in View:
        assert picture(PREFILL, view) == picture(PREFILL, view)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(PictureError, match="no view 'sideways'; the views are states, claims"):
        picture(PREFILL, "sideways")
    for bad, said in (("a\nb", "U\\+000A"), ("a\x00b", "U\\+0000"), ("a\ud800", "U\\+D800")):
        with pytest.raises(PictureError, match=said):
            picture(renamed(PREFILL, {"queued": bad}))
