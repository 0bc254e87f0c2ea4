"""Two executors of the same table, through every configuration and every letter, under every policy.

One is the compiled automaton under a request, the other a real ``transitions.Machine`` built from the rows.
"""

from __future__ import annotations

from itertools import product

import pytest

from lifecycle import PREFILL, FinishReason, IllegalEvent, Policy, compile_table
from lifecycle.compile import LETTERS
from lifecycle.decode import DECODE
from lifecycle.diagrams.machine import machine
from lifecycle.reasons import COMPLETIONS
from lifecycle.snapshot import request_to_json
from tests.product import follow, walk

REASONS = [str(reason) for reason in FinishReason]
ORDERS = ["tiers", REASONS, REASONS[::-1], [REASONS[8:], REASONS[3:8], REASONS[:3]]]
CHOICES = list(
    product(("record", "ignore"), ("quarantine", "hold", "release"), ("at_done", "at_decision"))
)
POLICIES = [
    Policy(abort_after_handoff=after, on_undrained=undrained, report=report, precedence=order)
    for number, (after, undrained, report) in enumerate(CHOICES)
    for order in {str(order): order for order in (ORDERS[0], ORDERS[number % len(ORDERS)])}.values()
]


def name(policy):
    order = "total" if policy.precedence.is_total else "tiers"
    return f"{policy.abort_after_handoff}-{policy.on_undrained}-{policy.report}-{order}"


def told(request):
    """What both executors know of a request."""
    claims = {claim for claim in request.claims if claim != "quarantine"}
    return str(request.state), request.reason, claims, request.late


def machine_told(model):
    return model.state, model.reason, model.claims, model.late


def saved(model):
    return saved_again(vars(model))


def saved_again(attributes):
    return {name: set(v) if isinstance(v, set) else v for name, v in attributes.items()}


@pytest.mark.parametrize("table", [PREFILL, DECODE], ids=lambda table: table.name)
@pytest.mark.parametrize("policy", POLICIES, ids=name)
def test_both_executors_agree_in_every_cell(table, policy):
    automaton, model = compile_table(table, policy), machine(table, policy).model
    fresh, visited = saved(model), set()
    for path, tries in walk(automaton):
        vars(model).update(saved_again(fresh))
        for earlier, given in path:
            getattr(model, earlier)(**given)
        there = saved(model)
        for letter, event, details in tries:
            vars(model).update(saved_again(there))
            request = follow(automaton, path)
            before, node = request_to_json(request), request._node
            try:
                effects = [str(effect.kind) for effect in request.fire(event, **details)]
            except IllegalEvent:
                with pytest.raises(IllegalEvent):
                    getattr(model, event)(**details)
                assert request_to_json(request) == before
                kind = "illegal"
            else:
                getattr(model, event)(**details)
                late = request.late > before["late"]
                kind = "late" if late else "stay" if request.state == before["state"] else "move"
                assert (model.kind, model.effects) == (kind, effects), (path, event, details)
            assert machine_told(model) == told(request), (path, event, details)
            assert str(node.cell(letter).kind) == kind
            visited.add((node.index, letter))
    missed = {
        f"{node.configuration} x {letter}"
        for node in automaton.nodes
        for letter, cell in zip(LETTERS, node.cells, strict=True)
        if cell is not None and (node.index, letter) not in visited
        # A completion stands before another one only where another one is recorded.
        if not (letter.earlier and node.reason not in COMPLETIONS)
    }
    assert {cell for cell in missed if not out_of_reach(table, cell)} == set()


def out_of_reach(table, cell):
    """Cells that no sequence of events leads to, since they depend on more than the configuration.

    In the decode leg a request that receives has the one op `kv`.
    """
    return table is DECODE and cell.startswith("transferring") and "others left" in cell
