"""A table as JSON for XState 5: ``createMachine(JSON.parse(text))`` in JavaScript, and its visual editors.

See :mod:`lifecycle.diagrams.product` for states and triggers. Effects are actions by name (``release_kv``),
which your machine's ``actions`` implement; a late event runs the action ``late``, an illegal one ``illegal``,
so that nothing is swallowed.
"""

from __future__ import annotations

import json
from typing import Any

from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..spec import Table
from ..vocabulary import Kind
from .product import Leaf, Parent, Step, product


def xstate(table: Table = PREFILL, policy: Policy = DEFAULT_POLICY) -> str:
    """XState JSON of `table` under `policy`; stable from run to run.

    Raises:
        PictureError: a name of the table holds a control character.
    """
    made = product(table, policy)
    machine = {
        "id": "request",
        "description": f"The life of a request: {made.table}",
        "initial": made.parents[0].id,
        "states": {parent.id: _parent(parent, made.initial) for parent in made.parents},
    }
    return json.dumps(machine, indent=1, ensure_ascii=False) + "\n"


def _parent(parent: Parent, initial: str) -> dict[str, Any]:
    first = next((leaf.id for leaf in parent.leaves if leaf.id == initial), parent.leaves[0].id)
    return {
        "description": f"{parent.title}: {parent.meaning}",
        "initial": first,
        "on": {step.trigger: _transition(step) for step in parent.steps},
        "states": {leaf.id: _leaf(leaf) for leaf in parent.leaves},
    }


def _leaf(leaf: Leaf) -> dict[str, Any]:
    made: dict[str, Any] = {"id": leaf.id, "description": leaf.title}
    if leaf.terminal:
        made["type"] = "final"
    if leaf.steps:
        made["on"] = {step.trigger: _transition(step) for step in leaf.steps}
    return made


def _transition(step: Step) -> dict[str, Any]:
    actions = list(step.effects)
    if step.kind in (Kind.LATE, Kind.ILLEGAL):
        actions.append(str(step.kind))
    made: dict[str, Any] = {"target": f"#{step.to}"} if step.to else {}
    if actions:
        made["actions"] = actions
    return made
