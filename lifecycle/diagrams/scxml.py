"""A table as SCXML, the W3C's language for statecharts: the whole automaton, executable.

See :mod:`lifecycle.diagrams.product` for states and triggers. Effects are raised as internal events
``effect.release_kv``; a late event raises ``late``, an illegal one ``error.illegal``, so that nothing is
swallowed. ``done`` is a state whose children are final: it still answers, since a request that has ended still
hears late events. The names of the table, which may be any text, stand in ``name`` of the namespace
``urn:request-lifecycle``.
"""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..spec import Table
from ..vocabulary import Kind
from .product import Leaf, Parent, Step, product

NAMESPACE = "http://www.w3.org/2005/07/scxml"
OURS = "urn:request-lifecycle"


def scxml(table: Table = PREFILL, policy: Policy = DEFAULT_POLICY) -> str:
    """SCXML of `table` under `policy`; stable from run to run.

    Raises:
        PictureError: a name of the table holds a control character.
    """
    made = product(table, policy)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        (
            f'<scxml xmlns="{NAMESPACE}" xmlns:lc="{OURS}" version="1.0" datamodel="null"'
            f" initial={quoteattr(made.initial)} lc:name={quoteattr(made.table)}>"
        ),
    ]
    for parent in made.parents:
        lines += _parent(parent)
    lines.append("</scxml>")
    return "\n".join(lines) + "\n"


def _parent(parent: Parent) -> list[str]:
    return [
        (
            f"  <state id={quoteattr(parent.id)} initial={quoteattr(parent.leaves[0].id)}"
            f" lc:name={quoteattr(parent.title)} lc:meaning={quoteattr(parent.meaning)}>"
        ),
        *(f"    {_transition(step)}" for step in parent.steps),
        *(line for leaf in parent.leaves for line in _leaf(leaf)),
        "  </state>",
    ]


def _leaf(leaf: Leaf) -> list[str]:
    # A final state may have no transitions; what it answers stands at its parent.
    tag = "final" if leaf.terminal else "state"
    head = f"    <{tag} id={quoteattr(leaf.id)} lc:name={quoteattr(leaf.title)}"
    if not leaf.steps:
        return [head + "/>"]
    return [head + ">", *(f"      {_transition(step)}" for step in leaf.steps), f"    </{tag}>"]


def _transition(step: Step) -> str:
    target = f" target={quoteattr(step.to)}" if step.to else ""
    raised = [f"effect.{effect}" for effect in step.effects]
    if step.kind is Kind.LATE:
        raised.append("late")
    if step.kind is Kind.ILLEGAL:
        raised.append("error.illegal")
    head = f"<transition event={quoteattr(step.trigger)}{target}"
    if not raised:
        return head + "/>"
    return (
        head
        + ">"
        + "".join(f"<raise event={quoteattr(each)}/>" for each in raised)
        + "</transition>"
    )
