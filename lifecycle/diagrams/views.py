"""From a declared table to pictures: what is drawn of it under each view.

``states`` is drawn from the rows, the others from the automaton that the rows unfold into. Nothing is told by
heart, so a table of your own has the same four pictures, and a test compares what is drawn with what a request
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

from ..compile import OWN_REASON, Automaton, Cell, Configuration, Letter, compile_table
from ..compile import Node as Situation
from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..reasons import COMPLETIONS, WIRE
from ..spec import DRAIN, FINISH, ILLEGAL, LATE, STAY, Does, Offers, Row, StateSpec, Table
from ..vocabulary import ABORT_REASONS, KV, EffectKind, Event, FinishReason, GrammarCause, Kind
from .picture import Edge, Group, Look, Node, Picture, PictureError, View

LAST_CLAIM = "last claim dropped"
LATE_EVENTS = "late events"
FREES = (EffectKind.RELEASE_KV, EffectKind.QUARANTINE_KV)
_WORDS = [LAST_CLAIM, *(str(event) for event in Event), LATE_EVENTS]


def picture(
    table: Table = PREFILL, view: str = View.STATES, policy: Policy = DEFAULT_POLICY
) -> Picture:
    """The picture of `table` under `view` and `policy`.

    Raises:
        PictureError: there is no such view, or a name of the table cannot be drawn.
    """
    try:
        wanted = View(view)
    except ValueError:
        msg = f"no view {view!r}; the views are {', '.join(View)}"
        raise PictureError(msg) from None
    return _BUILDERS[wanted](compile_table(table, policy))


# What is shared.


def look_of(table: Table, state: StateSpec) -> Look:
    """How a state looks."""
    if state.terminal:
        return Look.END
    if state.draining:
        return Look.SET_APART if state.drains else Look.CUT_SHORT
    return Look.AGAIN if state is table.initial else Look.WELL


def _look_of_reason(table: Table, reason: FinishReason) -> Look:
    if reason in COMPLETIONS:
        return Look.WELL
    return look_of(table, table.draining_state(reason))


class _Edges:
    """Edges as they are found: labels gathered by where they lead and what they mean."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.place = {key: number for number, key in enumerate(keys)}
        self.found: dict[tuple[str, str, Look, tuple[str, ...]], list[str]] = {}

    def add(
        self, start: str, end: str, label: str, look: Look, effects: tuple[str, ...] = ()
    ) -> None:
        labels = self.found.setdefault((start, end, look, effects), [])
        if label not in labels:
            labels.append(label)

    def sorted(self) -> tuple[Edge, ...]:
        def order(key: tuple[str, str, Look, tuple[str, ...]]) -> tuple[int, int, int, str]:
            start, end, look, effects = key
            return self.place[start], self.place[end], list(Look).index(look), "".join(effects)

        return tuple(
            Edge(
                start,
                end,
                tuple(sorted(self.found[start, end, look, effects], key=_word_order)),
                look,
                effects,
                aside=look is Look.LATE,
            )
            for start, end, look, effects in sorted(self.found, key=order)
        )


def _word_order(label: str) -> tuple[int, str]:
    word = label.partition("(")[0].strip()
    return (_WORDS.index(word) if word in _WORDS else len(_WORDS)), label


def _path(start: str, end: str, edges: Iterable[Edge]) -> tuple[str, ...]:
    """The longest way to a good end that passes no node twice: the line in which the nodes are drawn."""
    ways: dict[str, list[str]] = {}
    for edge in edges:
        if edge.look is Look.WELL and edge.start != edge.end:
            ways.setdefault(edge.start, []).append(edge.end)
    best: tuple[str, ...] = (start,)
    front: list[tuple[str, ...]] = [(start,)]
    while front:
        way = front.pop()
        if way[-1] == end and len(way) > len(best):
            best = way
        front += [(*way, following) for following in ways.get(way[-1], ()) if following not in way]
    return best


# The states.


def _states(automaton: Automaton) -> Picture:
    table = automaton.table
    edges = _Edges(str(state.name) for state in table.states)
    for row in table.rows:
        for start, end, label, look in _drawn(table, row):
            edges.add(start, end, label, look)
    for before, after, event in _renamed(automaton):
        edges.add(before, after, event, look_of(table, table.state(after)))
    end = str(table.terminal.name)
    if any(row.to is LATE and table.terminal.name in row.states for row in table.rows):
        edges.add(end, end, LATE_EVENTS, Look.LATE)
    found = edges.sorted()
    path = _path(str(table.initial.name), end, found)
    nodes = tuple(
        Node(
            key=str(state.name),
            title=str(state.name),
            look=look_of(table, state),
            notes=(_pages(state),),
            lane=1 if state.draining else 0,
            terminal=state.terminal,
        )
        for state in table.states
    )
    return Picture(
        table=table.name,
        view=View.STATES,
        title=f"The life of a request: {table.name}",
        start=str(table.initial.name),
        path=path,
        nodes=nodes,
        edges=found,
        about=(
            (
                "An ending waits until nothing touches the pages any more. An event that leads to a draining "
                f"state leads straight to {end} if no forward pass and no transfer is outstanding."
            ),
            "Events that change no state are not drawn.",
        ),
    )


def _pages(state: StateSpec) -> str:
    if state.terminal:
        return "pages are back"
    return {"none": "no pages", "owned": "owns its pages", "lent": "pages still lent out"}[
        str(state.pages)
    ]


def _drawn(table: Table, row: Row) -> Iterator[tuple[str, str, str, Look]]:
    """What is drawn of one row: from, to, label, look."""
    if row.to in (STAY, LATE, ILLEGAL):
        return
    end = str(table.terminal.name)
    for name in row.states:
        state = table.state(name)
        here = str(name)
        for event in row.events:
            if row.to is DRAIN:
                yield from _decided(table, state, row, Event(event))
            elif row.to is FINISH:
                if state.draining:
                    yield here, end, LAST_CLAIM, look_of(table, state)
                elif row.offers is not Offers.NOTHING:
                    yield here, end, str(event), Look.WELL
            else:
                yield here, str(row.to), str(event), _look_of_move(table, state, row, Event(event))


def _look_of_move(table: Table, state: StateSpec, row: Row, event: Event) -> Look:
    if state.draining:
        return look_of(table, state)
    if not table.state(row.to).terminal and not table.state(row.to).pages.is_held:
        return Look.AGAIN
    reasons = _offered(row, event)
    if reasons and not COMPLETIONS.issuperset(reasons):
        return Look.CUT_SHORT
    return Look.WELL


def _offered(row: Row, event: Event) -> tuple[FinishReason, ...]:
    """The reasons that an event may bring by a row."""
    if row.offers is Offers.NOTHING:
        return ()
    if row.offers is not Offers.ITS_OWN:
        assert isinstance(row.offers.value, FinishReason)
        return (row.offers.value,)
    if event is Event.ABORT:
        return tuple(ABORT_REASONS.values())
    if event is Event.COMPLETE:
        return (FinishReason.STOP, FinishReason.LENGTH)
    return (OWN_REASON[event],)


def _decided(
    table: Table, state: StateSpec, row: Row, event: Event
) -> Iterator[tuple[str, str, str, Look]]:
    """Where a row that decides leads while something is outstanding; the end, if nothing can be."""
    here = str(state.name)
    if not state.pages.is_held:
        yield here, str(table.terminal.name), str(event), Look.CUT_SHORT
        return
    reasons = _offered(row, event)
    places: dict[str, list[str]] = {}
    for reason in reasons:
        places.setdefault(str(table.draining_state(reason).name), []).append(str(reason))
    for place, those in places.items():
        label = str(event) if len(places) == 1 else f"{event}({', '.join(those)})"
        yield here, place, label, look_of(table, table.state(place))


def _renamed(automaton: Automaton) -> Iterator[tuple[str, str, str]]:
    """Moves between draining states: the reason was outranked, and the state bears the winner's name."""
    for situation in automaton.nodes:
        if automaton.table.state(situation.state).draining:
            for event in Event:
                for _, cell in situation.letters(event):
                    if cell.kind is Kind.MOVE and cell.to is not None and not cell.to.terminal:
                        yield str(situation.state), str(cell.to.state), str(event)


# Who may touch, and free, the pages.

_Held = tuple[str, bool, bool, KV]


def _held(at: Configuration) -> _Held:
    return at.state, at.steps, at.ops, at.kv


def claims_key(at: Configuration) -> str:
    """The key of the node for a configuration in the view ``claims``."""
    words = [word for word, on in (("steps", at.steps), ("ops", at.ops)) if on]
    return "/".join([str(at.state), str(at.kv), *words])


def _claims(automaton: Automaton) -> Picture:
    table = automaton.table
    shown = sorted({_held(node.configuration) for node in automaton.nodes}, key=_held_order(table))
    keys = [claims_key(Configuration(s, None, steps, ops, kv)) for s, steps, ops, kv in shown]
    nodes = tuple(
        Node(
            key=key,
            title=_who(table.state(state), steps, ops, kv),
            look=look_of(table, table.state(state)),
            notes=(_may_free(table.state(state), steps, ops, kv),),
            group=str(state),
            terminal=table.state(state).terminal,
        )
        for key, (state, steps, ops, kv) in zip(keys, shown, strict=True)
    )
    edges = _Edges([*keys, *(str(state.name) for state in table.states)])
    for start, end, label, look, frees in _claim_steps(automaton, nodes):
        edges.add(start, end, label, look, frees)
    return Picture(
        table=table.name,
        view=View.CLAIMS,
        title=f"Who may touch the pages, and who may free them: {table.name}",
        start=claims_key(automaton.start.configuration),
        path=(),
        nodes=nodes,
        edges=_of_whole_groups(edges.sorted(), nodes),
        groups=tuple(
            Group(str(state.name), str(state.name), str(state.meaning), look_of(table, state))
            for state in table.states
        ),
        about=(
            (
                "Each box is a set of claims on the pages of the newest attempt. While a step or op is out "
                "nobody may free them; the arrows that do free them say so."
            ),
            "An arrow that starts at a frame holds for the boxes in it.",
        ),
    )


def _claim_steps(
    automaton: Automaton, nodes: tuple[Node, ...]
) -> Iterator[tuple[str, str, str, Look, tuple[str, ...]]]:
    """Every change of state or claims: from, to, event, look, how pages are freed.

    What frees nothing and moves to another state is told from frame to frame, where it concerns several boxes.
    """
    table = automaton.table
    several = {node.group for node in nodes if sum(n.group == node.group for n in nodes) > 1}
    between: dict[tuple[str, str, str, Look], list[tuple[str, str]]] = {}
    for node in automaton.nodes:
        for letter, cell in _cells(node):
            if cell.to is None or node.terminal:
                continue
            here, there = claims_key(node.configuration), claims_key(cell.to.configuration)
            if here == there:
                continue
            event, look = str(letter.event), _look_of_cell(table, node, cell)
            frees = tuple(str(e.kind) for e in cell.effects if e.kind in FREES)
            if frees or cell.kind is not Kind.MOVE or cell.to.terminal:
                yield here, there, event, look, frees
            else:
                frames = (str(node.state), str(cell.to.state), event, look)
                between.setdefault(frames, []).append((here, there))
    for (state, becomes, event, look), pairs in between.items():
        starts, ends = {here for here, _ in pairs}, {there for _, there in pairs}
        here = state if state in several and len(starts) > 1 else pairs[0][0]
        there = becomes if becomes in several and len(ends) > 1 else pairs[0][1]
        yield here, there, event, look, ()


def _of_whole_groups(edges: tuple[Edge, ...], nodes: tuple[Node, ...]) -> tuple[Edge, ...]:
    """Where every box of a frame has the same arrow, the frame has it once."""
    members: dict[str, list[str]] = {}
    for node in nodes:
        members.setdefault(node.group or "", []).append(node.key)
    kept = list(edges)
    for group, keys in members.items():
        for edge in edges:
            same = [each for each in kept if each.start in keys and _alike(each, edge)]
            if len(keys) > 1 and len(same) == len(keys):
                kept[kept.index(same[0])] = attrs.evolve(edge, start=group)
                kept = [each for each in kept if each not in same]
    return tuple(kept)


def _alike(one: Edge, other: Edge) -> bool:
    return attrs.evolve(one, start=other.start) == other


def _held_order(table: Table) -> Callable[[_Held], tuple[int, int, bool, bool]]:
    order = [state.name for state in table.states]

    def key(held: _Held) -> tuple[int, int, bool, bool]:
        state, steps, ops, kv = held
        return order.index(state), list(KV).index(kv), ops, steps

    return key


def _who(state: StateSpec, steps: bool, ops: bool, kv: KV) -> str:
    if kv is KV.HELD:
        return ", ".join(["request", *(["step"] * steps), *(["op"] * ops)])
    if state.terminal:
        return {KV.NONE: "never had pages", KV.RELEASED: "released", KV.QUARANTINED: "quarantine"}[
            kv
        ]
    return "no claims"


def _may_free(state: StateSpec, steps: bool, ops: bool, kv: KV) -> str:
    if kv is not KV.HELD:
        if kv is KV.QUARANTINED:
            return "free: an operator, or proof of quiet"
        return "nothing to free"
    if not (steps or ops):
        return "may free: the request"
    return "may free: nobody yet" if not state.draining else "freed with the last claim"


def _cells(node: Situation) -> Iterator[tuple[Letter, Cell]]:
    for event in Event:
        yield from node.letters(event)


def _look_of_cell(table: Table, node: Situation, cell: Cell) -> Look:
    """What a step of the automaton means."""
    assert cell.to is not None
    here, there = table.state(node.state), table.state(cell.to.state)
    if cell.row is not None and Does.START_OVER in cell.row.claims:
        return Look.AGAIN
    if there.draining:
        return Look.PLAIN if there is here else look_of(table, there)
    if there.terminal:
        assert cell.to.reason is not None
        if here.draining:
            return look_of(table, here)
        return _look_of_reason(table, cell.to.reason)
    return Look.PLAIN if there is here else Look.WELL


# The reasons.


def _reasons(automaton: Automaton) -> Picture:
    table, precedence = automaton.table, automaton.policy.precedence
    offers: dict[tuple[str, FinishReason], list[str]] = {}
    for row in table.rows:
        for event in row.events:
            for reason in _offered(row, Event(event)):
                detail = _detail(row, Event(event), reason)
                details = offers.setdefault((str(event), reason), [])
                if detail and detail not in details:
                    details.append(detail)
    # From the highest tier down, so that arrows run side by side.
    rank = {reason: place for place, reason in enumerate(r for t in precedence.tiers for r in t)}
    first: dict[str, int] = {}
    for name, reason in offers:
        first[name] = min(first.get(name, len(rank)), rank[reason])
    events = sorted(first, key=lambda name: (first[name], _word_order(name)))
    nodes = [Node(key=f"event/{event}", title=event, look=Look.PLAIN) for event in events]
    groups = []
    for number, tier in enumerate(precedence.tiers):
        group = f"tier {number + 1}"
        note = {0: "wins over all below"}.get(number, "")
        if number == len(precedence.tiers) - 1:
            note = "used if nothing above arrives"
        groups.append(Group(group, group, note))
        for reason in tier:
            wire = WIRE[reason]
            nodes.append(
                Node(
                    key=f"reason/{reason}",
                    title=str(reason),
                    look=_look_of_reason(table, reason),
                    notes=(f"{wire.finish}/{wire.status}",),
                    group=group,
                    lane=number,
                )
            )
    edges = [
        Edge(
            f"event/{event}",
            f"reason/{reason}",
            tuple(details),
            _look_of_reason(table, reason),
        )
        for (event, reason), details in sorted(
            offers.items(), key=lambda item: (events.index(item[0][0]), rank[item[0][1]])
        )
    ]
    return Picture(
        table=table.name,
        view=View.REASONS,
        title=f"Which finish reason wins: {table.name}",
        start=None,
        path=(),
        nodes=tuple(nodes),
        edges=tuple(edges),
        groups=tuple(groups),
        about=(
            (
                "A reason of a higher tier replaces one of a lower until the request is done; within a tier the "
                "first one recorded stays. Of two completions the earlier token position wins."
            ),
            "Under each reason: what goes on the wire, and the HTTP status.",
        ),
    )


def _detail(row: Row, event: Event, reason: FinishReason) -> str:
    if row.offers is not Offers.ITS_OWN:
        return "undecided" if reason is FinishReason.TRANSFER_FAILED else "hand-off done"
    if event is Event.ABORT:
        return next(str(source) for source, brings in ABORT_REASONS.items() if brings is reason)
    if event is Event.GRAMMAR_FAILED:
        return ", ".join(GrammarCause)
    return ""


# Everything.


def full_key(at: Configuration) -> str:
    """The key of the node for a configuration in the view ``full``."""
    return "/".join(
        [
            str(at.state),
            str(at.reason or "-"),
            *(word for word, on in (("steps", at.steps), ("ops", at.ops)) if on),
            str(at.kv),
            *(["reported"] if at.reported else []),
        ]
    )


def _full(automaton: Automaton) -> Picture:
    table = automaton.table
    order = [state.name for state in table.states]
    situations = sorted(automaton.nodes, key=lambda node: (order.index(node.state), node.index))
    edges = _Edges(full_key(node.configuration) for node in situations)
    for node in situations:
        for letter, cell in _cells(node):
            if cell.to is None or cell.to is node:
                continue
            effects = tuple(str(effect.kind) for effect in cell.effects)
            edges.add(
                full_key(node.configuration),
                full_key(cell.to.configuration),
                str(letter),
                _look_of_cell(table, node, cell),
                effects,
            )
    nodes = tuple(
        Node(
            key=full_key(node.configuration),
            title=str(node.reason or "undecided"),
            look=look_of(table, table.state(node.state)),
            notes=(_small_print(node.configuration),),
            group=str(node.state),
            terminal=node.terminal,
        )
        for node in situations
    )
    return Picture(
        table=table.name,
        view=View.FULL,
        title=f"Every configuration: {table.name}",
        start=full_key(automaton.start.configuration),
        path=(),
        nodes=nodes,
        edges=edges.sorted(),
        groups=tuple(
            Group(str(state.name), str(state.name), str(state.meaning), look_of(table, state))
            for state in table.states
        ),
        about=(
            "Events that leave the configuration as it is, late and illegal ones are not drawn.",
        ),
    )


def _small_print(at: Configuration) -> str:
    words = [word for word, on in (("steps out", at.steps), ("ops out", at.ops)) if on]
    words.append(f"kv {at.kv}")
    return ", ".join(words + (["reported"] if at.reported else []))


_BUILDERS = {
    View.STATES: _states,
    View.CLAIMS: _claims,
    View.REASONS: _reasons,
    View.FULL: _full,
}
