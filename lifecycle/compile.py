"""A declared table, unfolded into a flat automaton: every configuration times every letter.

A request in the field has sets of steps and ops, a reason, a policy. A table's rows test only little of that.
So the product is finite and small: a *configuration* is a state, the reason recorded so far, whether any step
and any op is outstanding, where the pages are, and whether the client was told. A *letter* is an event
together with what the rows need to know of its details: the reason it offers, and whether it drops the last
claim of its kind. :func:`compile_table` walks all configurations that can be reached and writes down, for each
letter, one :class:`Cell`: where it leads, which effects it has, and its kind (move, stay, late, illegal).

Nothing is decided later: a request (:mod:`lifecycle.request`) holds a reference to its configuration, works out
the letter from its own claims, and follows the cell. Reasons are joined here, by the policy's precedence.

Automata are cached per table and policy, so building one is paid once; the default one is built at import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs

from .policy import LatePolicy, OnUndrained, Policy, PublishAborted, ReportAt
from .reasons import COMPLETIONS
from .spec import DRAIN, FINISH, ILLEGAL, LATE, STAY, Does, Offers, Row, Table
from .vocabulary import (
    ABORT_REASONS,
    KV,
    EffectKind,
    Event,
    FinishReason,
    Kind,
    Word,
)


@attrs.frozen
class Effect:
    """One thing to carry out for a request. The core only names it; a driver or an adapter does it.

    Attributes:
        kind: what to do.
        attempt: whose pages, or whose transfer (0-based; an earlier attempt may end after a later one began).
        publish: for ``release_kv``: whether the prefix cache may keep pages whose KV is proven complete.
    """

    kind: EffectKind
    attempt: int = 0
    publish: bool = False

    def __str__(self) -> str:
        text = str(self.kind)
        return f"{text}@{self.attempt}" if self.attempt else text


class After(Word):
    """What an event finds, or leaves, of its kind of claim."""

    MISS = "not outstanding"  # a completion of nothing
    MORE = "others left"  # a completion; others of its kind stay outstanding
    LAST = "the last"
    AGAIN = "outstanding already"  # a claim that is taken twice


MISS, MORE, LAST, AGAIN = After.MISS, After.MORE, After.LAST, After.AGAIN


class Letter(NamedTuple):
    """An event, and what the rows need to know of its details.

    A NamedTuple, like :class:`Configuration`: both are made and hashed by the thousand while compiling.
    """

    event: Event
    offers: FinishReason | None = None
    earlier: bool = False  # a completion that stands before the recorded one in the text
    after: After | None = None

    def __str__(self) -> str:
        notes = [str(self.offers)] if self.offers else []
        notes += ["earlier"] if self.earlier else []
        notes += [str(self.after)] if self.after else []
        return f"{self.event}({', '.join(notes)})" if notes else str(self.event)


STEP_EVENTS = (Event.FORWARD_LAUNCHED, Event.FORWARD_FINISHED)
COMPLETION_EVENTS = (Event.FORWARD_FINISHED, Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED)
CLAIM_EVENTS = (Event.FORWARD_LAUNCHED, Event.TRANSFER_POSTED)

OWN_REASON = {
    Event.GRAMMAR_FAILED: FinishReason.GRAMMAR_ERROR,
    Event.TRANSFER_FAILED: FinishReason.TRANSFER_FAILED,
    Event.PEER_LOST: FinishReason.PEER_LOST,
    Event.ERROR: FinishReason.INTERNAL_ERROR,
}


def _letters() -> Iterator[Letter]:
    for event in Event:
        if event in COMPLETION_EVENTS:
            yield from (Letter(event, after=after) for after in (MISS, MORE, LAST))
        elif event in CLAIM_EVENTS:
            yield Letter(event)
            yield Letter(event, after=AGAIN)
        elif event is Event.ABORT:
            yield from (Letter(event, offers=reason) for reason in ABORT_REASONS.values())
        elif event is Event.COMPLETE:
            for reason in (FinishReason.STOP, FinishReason.LENGTH):
                yield from (Letter(event, offers=reason, earlier=early) for early in (False, True))
        elif event is Event.TRANSFER_FAILED:
            yield Letter(event, offers=OWN_REASON[event])
            yield Letter(event, after=MISS)
        else:
            yield Letter(event, offers=OWN_REASON.get(event))


LETTERS: tuple[Letter, ...] = tuple(_letters())
"""Every letter, in the order of the events; the same for every table."""

LETTER_INDEX = {letter: index for index, letter in enumerate(LETTERS)}
LETTERS_OF = {event: tuple(a for a in LETTERS if a.event is event) for event in Event}


class Configuration(NamedTuple):
    """What the rows can tell of a request: all that decides what an event does to it."""

    state: str
    reason: FinishReason | None = None
    steps: bool = False
    ops: bool = False
    kv: KV = KV.NONE
    reported: bool = False

    @property
    def busy(self) -> bool:
        """Whether a step or an op is outstanding."""
        return self.steps or self.ops

    def __str__(self) -> str:
        notes = [str(self.reason)] if self.reason else []
        notes += [word for word, on in (("steps", self.steps), ("ops", self.ops)) if on]
        notes += [str(self.kv)] + (["reported"] if self.reported else [])
        return f"{self.state}[{', '.join(notes)}]"


class Cell:
    """What one letter does in one configuration.

    Attributes:
        kind: move, stay, late or illegal.
        to: the :class:`Node` it leads to; None for late and illegal, which lead nowhere.
        effects: to be carried out in this order, for attempt 0.
        wins: whether the reason that the letter offers is the one recorded now.
        row: the row of the table that says so; None for the two rules that hold in every cell.
    """

    __slots__ = ("effects", "kind", "row", "to", "wins")

    def __init__(
        self,
        kind: Kind,
        to: Node | None = None,
        effects: tuple[Effect, ...] = (),
        wins: bool = False,
        row: Row | None = None,
    ) -> None:
        self.kind, self.to, self.effects, self.wins, self.row = kind, to, effects, wins, row

    @property
    def why(self) -> str:
        """Why, in the words of the table."""
        return "" if self.row is None else self.row.why


NOTHING_OUTSTANDING = Cell(Kind.LATE)
OUTSTANDING_ALREADY = Cell(Kind.ILLEGAL)


# A *look* says what a request must look up in its own claims, or in the event's details, to know the letter.
# Plain integers, no enum: they are compared on the hot path, and in a compiled build they are constants of C.
STILL: Final = -1  # nothing, and nothing comes of it
NOTHING: Final = 0
TAKE_STEP: Final = 1
DROP_STEP: Final = 2
TAKE_OP: Final = 3
DROP_OP: Final = 4
OP_VERDICT: Final = 5
SOURCE: Final = 6
COMPLETION: Final = 7
ADMIT: Final = 8
ADMIT_AND_TAKE_OP: Final = 9
TAKE_OP_UNLESS_OPEN: Final = 10
START_OVER: Final = 11
DEADLINE: Final = 12
REFUSE: Final = 13
ABSORB: Final = 14

Lookup = tuple[int, Cell, Cell]
"""How one event is taken in one configuration: a look, and what to follow.

For a completion the two cells are "others left" and "the last"; for any other event they are the same cell. For
an abort and for ``complete`` they are not meant: see ``aborts`` and ``completions`` of :class:`Node`. A plain
tuple, since unpacking one is what every event begins with.
"""


class Node:
    """A configuration with its cells: what a request points at.

    ``cells`` has one entry a letter of :data:`LETTERS`; None where the letter cannot occur (a completion of an
    op where no op is outstanding). ``on`` is the same by event, in the form that the hot path wants.
    """

    __slots__ = (
        "aborts",
        "cells",
        "completions",
        "configuration",
        "index",
        "on",
        "reason",
        "state",
        "terminal",
    )

    def __init__(self, index: int, configuration: Configuration, *, terminal: bool) -> None:
        self.index, self.configuration = index, configuration
        self.state, self.reason = configuration.state, configuration.reason
        self.terminal = terminal
        self.cells: tuple[Cell | None, ...] = ()
        self.on: dict[str, Lookup] = {}
        self.aborts: dict[str, Cell] = {}
        self.completions: dict[str, tuple[Cell, Cell]] = {}

    def cell(self, letter: Letter) -> Cell | None:
        """The cell of one letter; None where the letter cannot occur here."""
        return self.cells[LETTER_INDEX[letter]]

    def letters(self, event: str) -> list[tuple[Letter, Cell]]:
        """The letters of `event` that can occur here, each with its cell."""
        return [
            (letter, cell)
            for letter, cell in zip(LETTERS, self.cells, strict=True)
            if letter.event == event and cell is not None
        ]

    def legal(self) -> tuple[str, ...]:
        """The events that can move a request here, or that it takes in place, in the order of the enum."""
        live = {Kind.MOVE, Kind.STAY}
        return tuple(
            str(event)
            for event in Event
            if any(cell.kind in live for _, cell in self.letters(event))
        )


class Automaton:
    """A table under a policy, unfolded.

    Attributes:
        table, policy: what it was built from.
        nodes: one for each configuration that can be reached, in breadth-first order; ``nodes[0]`` is where
            ``submit`` puts a request.
        start: ``nodes[0]``.
        strict: whether late events raise.
    """

    __slots__ = (
        "_effects",
        "_ended",
        "_refusals",
        "by_configuration",
        "nodes",
        "policy",
        "start",
        "strict",
        "table",
    )

    def __init__(self, table: Table, policy: Policy) -> None:
        self.table, self.policy = table, policy
        self.strict = policy.late is LatePolicy.STRICT
        self.nodes: list[Node] = []
        self.by_configuration: dict[Configuration, Node] = {}
        self._effects: dict[tuple[EffectKind, bool], Effect] = {}
        self._refusals: dict[int, Cell] = {}
        self._ended: Node | None = None
        self.start = self._node(Configuration(table.initial.name))
        for node in self.nodes:  # grows while it is walked
            self._unfold(node)

    def _unfold(self, node: Node) -> None:
        if node.terminal and self._ended is not None:
            # Every event is late or illegal in each of them alike.
            node.cells, node.on = self._ended.cells, self._ended.on
            node.aborts, node.completions = self._ended.aborts, self._ended.completions
            return
        cells: list[Cell | None] = []
        for event, letters in LETTERS_OF.items():
            rows = self.table.rows_of(node.state, event)
            mine: list[Cell | None]
            if len(rows) == 1 and (rows[0].to is LATE or rows[0].to is ILLEGAL):
                refused = self._refused(rows[0])
                mine = [refused if _occurs(node, letter) else None for letter in letters]
            else:
                mine = [self._cell(node, letter, rows) for letter in letters]
            # Plain words are found faster than enum members by the words that callers pass.
            node.on[event.value] = _lookup(node, event, mine)
            cells += mine
        node.cells = tuple(cells)
        if node.terminal:
            self._ended = node

    def _refused(self, row: Row) -> Cell:
        """The cell of a row that is late or illegal: the same in every configuration."""
        cell = self._refusals.get(id(row))
        if cell is None:
            kind = Kind.LATE if row.to is LATE else Kind.ILLEGAL
            cell = self._refusals[id(row)] = Cell(kind, row=row)
        return cell

    def _node(self, configuration: Configuration) -> Node:
        node = self.by_configuration.get(configuration)
        if node is None:
            terminal = self.table.state(configuration.state).terminal
            node = Node(len(self.nodes), configuration, terminal=terminal)
            self.nodes.append(node)
            self.by_configuration[configuration] = node
        return node

    def _cell(self, node: Node, letter: Letter, rows: tuple[Row, ...]) -> Cell | None:
        here, after = node.configuration, letter.after
        steps, ops = here.steps, here.ops
        if after is not None:
            held = steps if letter.event in STEP_EVENTS else ops
            if after is MISS:
                return NOTHING_OUTSTANDING
            if not held:
                return None
            if after is AGAIN:
                return OUTSTANDING_ALREADY
            if letter.event in STEP_EVENTS:
                steps = after is MORE
            else:
                ops = after is MORE
        if letter.earlier and here.reason not in COMPLETIONS:
            return None
        row = rows[0] if len(rows) == 1 else self._applicable(rows, here, ops)
        if row.to is LATE or row.to is ILLEGAL:
            return self._refused(row)
        return self._follow(node, letter, row, steps, ops)

    def _applicable(self, rows: tuple[Row, ...], here: Configuration, ops: bool) -> Row:
        choices = {
            "abort_after_handoff": self.policy.abort_after_handoff,
            "on_undrained": self.policy.on_undrained,
        }
        recorded = here.reason is not None
        return next(
            row for row in rows if row.when.holds(recorded=recorded, ops=ops, choices=choices)
        )

    def _effect(self, kind: EffectKind, *, publish: bool = False) -> Effect:
        key = (kind, publish)
        effect = self._effects.get(key)
        if effect is None:
            effect = self._effects[key] = Effect(kind, publish=publish)
        return effect

    def _follow(self, node: Node, letter: Letter, row: Row, steps: bool, ops: bool) -> Cell:
        here, table = node.configuration, self.table
        kv = here.kv
        for does in row.claims:
            if does is Does.TAKE_STEP:
                steps = True
            elif does is Does.TAKE_OP or does is Does.TAKE_OP_UNLESS_OPEN:
                ops = True
            elif does is Does.TAKE_PAGES:
                kv = KV.HELD
            elif does is Does.START_OVER:
                steps = ops = False

        offered = letter.offers if row.offers is Offers.ITS_OWN else row.offers.value
        reason, wins = here.reason, False
        if isinstance(offered, FinishReason) and not here.reported:
            reason = self.policy.precedence.join(here.reason, offered, earlier=letter.earlier)
            wins = here.reason is None or letter.earlier or reason is not here.reason
            wins = wins and reason is offered

        state = self._state_after(row, here, reason, busy=steps or ops)
        arrived = table.state(state)
        if (
            here.reported
            and row.offers is not Offers.NOTHING
            and state == here.state
            and not row.claims
        ):
            return Cell(Kind.LATE, row=row)  # told already: later reasons are late

        effects: list[Effect] = []
        reported = here.reported
        for effect in row.effects:
            if effect is EffectKind.CANCEL_TRANSFER:
                effects.append(self._effect(effect))
            elif effect is EffectKind.REPORT:
                early = self.policy.report is ReportAt.DECISION and reason is not None
                if not reported and (arrived.terminal or early):
                    effects.append(self._effect(effect))
                    reported = True
            elif arrived.terminal or (Does.START_OVER in row.claims and not here.busy):
                publish = self._may_publish(here, row, effect)
                effects.append(self._effect(effect, publish=publish))
                kv = KV.RELEASED if effect is EffectKind.RELEASE_KV else KV.QUARANTINED
        if arrived.terminal:
            steps = ops = False
        elif Does.START_OVER in row.claims:
            kv = KV.NONE
        to = self._node(Configuration(state, reason, steps, ops, kv, reported))
        kind = Kind.STAY if state == here.state else Kind.MOVE
        return Cell(kind, to, tuple(effects), wins, row)

    def _state_after(
        self, row: Row, here: Configuration, reason: FinishReason | None, *, busy: bool
    ) -> str:
        table = self.table
        if row.to == FINISH and reason is not None and not busy:
            return table.terminal.name
        if row.to == DRAIN and reason is not None:
            return table.draining_state(reason).name if busy else table.terminal.name
        if row.to in (FINISH, STAY):
            if table.state(here.state).draining and reason is not None:
                return table.draining_state(reason).name
            return here.state
        return row.to

    def _may_publish(self, here: Configuration, row: Row, effect: EffectKind) -> bool:
        """A request that was cut short is told by its way, not by its reason (`reason_not_control`)."""
        if effect is not EffectKind.RELEASE_KV or row.when.policy is not None:
            return False
        cut_short = row.to == DRAIN or self.table.state(here.state).draining
        return not cut_short or self.policy.publish_aborted is PublishAborted.PROVEN

    def abandon(self, attempt: int) -> Effect | None:
        """What the policy does to an earlier attempt's pages when their drain deadline passed.

        None under the policy ``hold``.
        """
        if self.policy.on_undrained is OnUndrained.HOLD:
            return None
        if self.policy.on_undrained is OnUndrained.RELEASE:
            return Effect(EffectKind.RELEASE_KV, attempt)
        return Effect(EffectKind.QUARANTINE_KV, attempt)

    def release_of_earlier(self, attempt: int) -> Effect:
        """The release of an earlier attempt's pages, when its last claim was dropped."""
        publish = self.policy.publish_aborted is PublishAborted.PROVEN
        return Effect(EffectKind.RELEASE_KV, attempt, publish)

    def over(self, event: str) -> Kind:
        """What `event` is to a request, or to an attempt, that is over: late or illegal."""
        row = self.table.rows_of(self.table.terminal.name, event)[0]
        return Kind.LATE if row.to is LATE else Kind.ILLEGAL


def _occurs(node: Node, letter: Letter) -> bool:
    """Whether the claim that a letter speaks of can be as it says."""
    if letter.after is None or letter.after is MISS:
        return True
    here = node.configuration
    return here.steps if letter.event in STEP_EVENTS else here.ops


def _lookup(node: Node, event: Event, cells: list[Cell | None]) -> Lookup:
    """How `event` is taken in `node`; `cells` are those of ``LETTERS_OF[event]``.

    Where a letter cannot occur, nothing follows its cell: the first that can occur stands in for it.
    """
    first = next(cell for cell in cells if cell is not None)
    filled = [first if cell is None else cell for cell in cells]
    if event in COMPLETION_EVENTS:
        _, more, last = filled
        return (DROP_STEP if event in STEP_EVENTS else DROP_OP, more, last)
    if event is Event.ABORT:
        node.aborts = {
            source.value: cell for source, cell in zip(ABORT_REASONS, filled, strict=True)
        }
        return (SOURCE, first, first)
    if event is Event.COMPLETE:
        stop, stop_earlier, length, length_earlier = filled
        node.completions = {"stop": (stop, stop_earlier), "length": (length, length_earlier)}
        return (COMPLETION, first, first)
    if event is Event.TRANSFER_FAILED:
        return (OP_VERDICT, first, first)
    if event is Event.DRAIN_TIMEOUT:
        return (DEADLINE, first, first)
    return (_look(node, first), first, first)


def _look(node: Node, cell: Cell) -> int:
    """The look of an event whose cell depends on nothing but the node."""
    if cell.row is None or cell.kind is Kind.ILLEGAL:
        return REFUSE
    if cell.kind is Kind.LATE:
        return ABSORB
    claims = cell.row.claims
    opens = Does.TAKE_OP_UNLESS_OPEN in claims and not node.configuration.ops
    if Does.TAKE_PAGES in claims:
        return ADMIT_AND_TAKE_OP if opens else ADMIT
    if opens:
        return TAKE_OP_UNLESS_OPEN
    if Does.TAKE_STEP in claims:
        return TAKE_STEP
    if Does.TAKE_OP in claims:
        return TAKE_OP
    if Does.START_OVER in claims:
        return START_OVER
    # A grammar that failed has a cause to be checked, also where nothing comes of it.
    asked = Event.GRAMMAR_FAILED in cell.row.events
    if cell.to is node and not cell.effects and not cell.wins and not asked:
        return STILL
    return NOTHING


_CACHE: dict[tuple[int, Policy], Automaton] = {}
_CACHE_SIZE = 256


def compile_table(table: Table, policy: Policy) -> Automaton:
    """The automaton of `table` under `policy`. The same table and an equal policy give the same object."""
    key = (id(table), policy)
    automaton = _CACHE.get(key)
    if automaton is None:
        if len(_CACHE) >= _CACHE_SIZE:
            _CACHE.pop(next(iter(_CACHE)))
        automaton = _CACHE[key] = Automaton(table, policy)  # keeps the table, and so its id, alive
    return automaton
