"""The whole automaton in the form that other programs execute: shared by SCXML, XState and ``transitions`` markup.

A request's six states become parents, its configurations their children. An event whose meaning depends on
details becomes one *trigger* a case, with a second word: ``abort.client``, ``complete.stop_earlier``,
``transfer_succeeded.more`` (other ops are left) and ``.last``, ``.miss`` (what it names is not outstanding),
``forward_launched.new`` and ``.again`` (outstanding already). So no guard is left, and every program that reads
the file does the same.
"""

from __future__ import annotations

import re

import attrs

from ..compile import AGAIN, LETTERS, MISS, Letter, Node, compile_table
from ..policy import DEFAULT_POLICY, Policy
from ..spec import Table
from ..vocabulary import ABORT_REASONS, Event, Kind
from .picture import refuse_what_cannot_be_shown

_SOURCE_OF = {reason: str(source) for source, reason in ABORT_REASONS.items()}


@attrs.frozen
class Step:
    """What a trigger does: where it leads (an id; None where nothing changes), its kind, effects and why."""

    trigger: str
    kind: Kind
    to: str | None
    effects: tuple[str, ...]
    why: str


@attrs.frozen
class Leaf:
    """A configuration: `id` is a plain identifier, `title` what a person reads."""

    id: str
    title: str
    terminal: bool
    steps: tuple[Step, ...]


@attrs.frozen
class Parent:
    """A state of the table; `steps` are those that all its leaves have in common and that lead nowhere."""

    id: str
    title: str
    meaning: str
    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]


@attrs.frozen
class Product:
    """A table under a policy. `initial` is the id of a leaf, and its parent comes first."""

    table: str
    initial: str
    parents: tuple[Parent, ...]


def product(table: Table, policy: Policy = DEFAULT_POLICY) -> Product:
    """The whole automaton of `table` under `policy`.

    Raises:
        PictureError: a name of the table holds a control character.
    """
    automaton = compile_table(table, policy)
    ids = _Ids()
    parent_ids = {state.name: ids.fresh(str(state.name)) for state in table.states}
    leaf_ids = {
        node.index: ids.fresh(_leaf_name(parent_ids[node.state], node)) for node in automaton.nodes
    }
    parents = []
    for state in table.states:
        refuse_what_cannot_be_shown(str(state.name))
        refuse_what_cannot_be_shown(state.meaning)
        leaves = [_leaf(node, leaf_ids) for node in automaton.nodes if node.state == state.name]
        common = _common(leaves)
        parents.append(
            Parent(
                id=parent_ids[state.name],
                title=str(state.name),
                meaning=state.meaning,
                leaves=tuple(
                    attrs.evolve(leaf, steps=tuple(s for s in leaf.steps if s not in common))
                    for leaf in leaves
                ),
                steps=common,
            )
        )
    return Product(table.name, leaf_ids[automaton.start.index], tuple(parents))


def trigger(letter: Letter) -> str:
    """The name of a letter: an event, and a second word where it has several cases."""
    event = letter.event
    if event is Event.ABORT:
        assert letter.offers is not None
        return f"{event}.{_SOURCE_OF[letter.offers]}"
    if event is Event.COMPLETE:
        return f"{event}.{letter.offers}" + ("_earlier" if letter.earlier else "")
    if event in (Event.FORWARD_LAUNCHED, Event.TRANSFER_POSTED):
        return f"{event}.{'again' if letter.after is AGAIN else 'new'}"
    if event is Event.TRANSFER_FAILED:
        return f"{event}.{'miss' if letter.after is MISS else 'verdict'}"
    if letter.after is not None:
        return f"{event}.{letter.after.name.lower()}"
    return str(event)


TRIGGERS: tuple[str, ...] = tuple(trigger(letter) for letter in LETTERS)
"""Every trigger, in the order of the letters."""


def _leaf(node: Node, ids: dict[int, str]) -> Leaf:
    steps = []
    for letter, cell in zip(LETTERS, node.cells, strict=True):
        if cell is None:
            continue
        to = None if cell.to is None or cell.to is node else ids[cell.to.index]
        effects = tuple(str(effect.kind) for effect in cell.effects)
        why = cell.why or ("not outstanding" if cell.kind is Kind.LATE else "outstanding already")
        steps.append(Step(trigger(letter), cell.kind, to, effects, why))
    return Leaf(ids[node.index], str(node.configuration), node.terminal, tuple(steps))


def _common(leaves: list[Leaf]) -> tuple[Step, ...]:
    """Steps that change nothing and are the same wherever they can occur."""
    found: dict[str, set[Step]] = {}
    for leaf in leaves:
        for step in leaf.steps:
            found.setdefault(step.trigger, set()).add(step)
    return tuple(
        next(iter(steps))
        for steps in found.values()
        if len(steps) == 1 and all(s.to is None and not s.effects for s in steps)
    )


def _leaf_name(parent: str, node: Node) -> str:
    at = node.configuration
    words = [word for word, on in (("steps", at.steps), ("ops", at.ops)) if on]
    return "__".join(
        [parent, str(at.reason or "undecided"), *words, str(at.kv), *(["reported"] * at.reported)]
    )


class _Ids:
    """Plain identifiers for any names: letters, digits and underscores, each used once."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def fresh(self, name: str) -> str:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not plain[:1].isalpha():
            plain = f"s_{plain}"
        made, number = plain, 2
        while made in self.used:
            made, number = f"{plain}_{number}", number + 1
        self.used.add(made)
        return made
