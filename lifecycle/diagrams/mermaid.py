"""A table's states as a Mermaid diagram, small enough for a README.

Drawn from the rows, so it cannot say anything else than the table. What is drawn of a row that decides
(``DRAIN``) is the way through the draining state; with nothing outstanding the same event leads straight to the
end, which the diagram leaves to one sentence of text beside it.
"""

from __future__ import annotations

from ..prefill import PREFILL
from ..spec import DRAIN, FINISH, ILLEGAL, LATE, STAY, Offers, Row, Table
from ..vocabulary import Event, FinishReason

LAST_CLAIM = "last claim dropped"
_WORDS = [LAST_CLAIM, *(str(event) for event in Event)]


def mermaid(table: Table = PREFILL) -> str:
    """The states of `table` as Mermaid text (``stateDiagram-v2``); stable from run to run."""
    edges: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        for start, label, end in _edges(table, row):
            labels = edges.setdefault((start, end), [])
            if label not in labels:
                labels.append(label)
    place = {str(state.name): number for number, state in enumerate(table.states)}
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {table.initial.name}: submit"]
    for (start, end), labels in sorted(edges.items(), key=lambda edge: _order(place, edge[0])):
        lines.append(f"    {start} --> {end}: {', '.join(sorted(labels, key=_WORDS.index))}")
    lines.append(f"    {table.terminal.name} --> [*]")
    return "\n".join(lines) + "\n"


def _order(place: dict[str, int], edge: tuple[str, str]) -> tuple[int, int]:
    return place[edge[0]], place[edge[1]]


def _edges(table: Table, row: Row) -> list[tuple[str, str, str]]:
    """What is drawn of one row: from, label, to."""
    if row.to in (STAY, LATE, ILLEGAL):
        return []
    drawn = []
    for name in row.states:
        draining = table.state(name).draining
        for event in row.events:
            label = LAST_CLAIM if draining and row.to is FINISH else str(event)
            if row.to is DRAIN:
                drawn.append((str(name), label, _decided(table, name, event)))
            elif row.to is FINISH:
                if draining or row.offers is not Offers.NOTHING:
                    drawn.append((str(name), label, str(table.terminal.name)))
            else:
                drawn.append((str(name), label, str(row.to)))
    return drawn


def _decided(table: Table, state: str, event: str) -> str:
    """Where a row that decides leads while something is outstanding; the end, if nothing can be."""
    if not table.state(state).pages.is_held:
        return str(table.terminal.name)
    grammar = event == Event.GRAMMAR_FAILED
    reason = FinishReason.GRAMMAR_ERROR if grammar else FinishReason.INTERNAL_ERROR
    return str(table.draining_state(reason).name)
