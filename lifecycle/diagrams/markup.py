"""A table as markup for ``transitions``.

::

    m = MarkupMachine(markup=json.loads(text))  # it takes no notice of `model` beside `markup`
    m.add_model(yours)

The whole automaton, one state a configuration; see :mod:`lifecycle.diagrams.product`. Triggers have an
underscore for the dot (``abort_client``), so that they are methods of your model. Effects are callbacks by
name, before the move: your model has the methods ``cancel_transfer``, ``release_kv``, ``quarantine_kv``,
``report`` and ``late``. An event that is illegal in a configuration is not listed there, and
``transitions`` raises its MachineError; one that is illegal in all of them (``submit``) is no trigger at all.

For a machine with the table's own six states, and claims and reasons that it keeps itself, see
:func:`lifecycle.diagrams.machine.machine`.
"""

from __future__ import annotations

import json
from typing import Any

from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..spec import Table
from ..vocabulary import Kind
from .product import Step, product


def markup(table: Table = PREFILL, policy: Policy = DEFAULT_POLICY) -> str:
    """Markup of `table` under `policy`, as JSON; stable from run to run.

    Raises:
        PictureError: a name of the table holds a control character.
    """
    made = product(table, policy)
    states: list[Any] = []
    transitions = []
    for parent in made.parents:
        for leaf in parent.leaves:
            states.append({"name": leaf.id, "final": True} if leaf.terminal else {"name": leaf.id})
            # What all leaves of a parent have in common is listed at each: here there are no parents.
            transitions += [
                _transition(step, leaf.id)
                for step in (*leaf.steps, *parent.steps)
                if step.kind is not Kind.ILLEGAL
            ]
    return (
        json.dumps(
            {
                "name": made.table,
                "states": states,
                "transitions": transitions,
                "initial": made.initial,
                "auto_transitions": False,
                "send_event": False,
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def _transition(step: Step, here: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "trigger": step.trigger.replace(".", "_"),
        "source": here,
        "dest": step.to,
    }
    callbacks = [*step.effects, *(["late"] if step.kind is Kind.LATE else [])]
    if callbacks:
        made["before"] = callbacks
    return made
