"""Tables with names that formats read as their own."""

from __future__ import annotations

import attrs

from lifecycle import PREFILL, State

ODD = {
    State.QUEUED: "end",
    State.PREFILLING: 'say "hi" & <b>bold</b>',
    State.TRANSFERRING: "état → naïve 状態",
    State.GRAMMAR_FAILED: "1. class; state: [x](y) {z} | #1 %% //it// **b** __u__",
    State.ABORTED: "back\\slash `tick` 'single' $x$ @startuml",
    State.DONE: "graph",
}


def renamed(table, names, name=None):
    """`table` with other names for its states."""

    def word(state):
        return names.get(state, state)

    return attrs.evolve(
        table,
        name=name or table.name,
        states=tuple(attrs.evolve(s, name=word(s.name)) for s in table.states),
        rows=tuple(
            attrs.evolve(r, states=tuple(word(s) for s in r.states), to=word(r.to))
            for r in table.rows
        ),
    )


ODD_TABLE = renamed(PREFILL, ODD, name='odd "names" & <co>')
