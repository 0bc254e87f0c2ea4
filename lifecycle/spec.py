"""What a declared table is, and the checks that it must pass before anything is built from it.

A :class:`Table` is plain frozen data: states, and rows. A :class:`Row` says what some events do in some
states. Everything else in the library (the automaton, the ``transitions`` machine, diagrams, specs) reads
the same rows; no other place says what an event does.

A row has five parts:

``states``, ``events``
    where it stands; one row may stand for a whole block of cells.

``when``
    what must hold besides, as a :class:`When`: whether a reason is recorded, whether an op is outstanding
    *after the event's own effect on claims*, which policy is chosen. Most rows have none.

``to``
    what becomes of the request: a state's name, or one of

    - :data:`STAY`: the same state;
    - :data:`FINISH`: the terminal state once a reason is recorded and nothing is outstanding; until then
      the same state;
    - :data:`DRAIN`: decided. The terminal state if nothing is outstanding, else the draining state of the
      reason that wins;
    - :data:`LATE`: absorbed and counted; :data:`ILLEGAL`: refused, and the request stays as it was.

``claims``, ``offers``, ``effects``
    the claims that the event takes or drops; the reason that it offers to the precedence; what the caller
    must carry out, in order. ``release_kv``, ``quarantine_kv`` and ``report`` are carried out on arriving in
    the terminal state (``release_kv`` also on a move to a state without pages), ``cancel_transfer`` at once.
    Under the policy ``report="at_decision"`` the report comes when the outcome is decided.

One rule is not spelled out by rows, since it holds in every cell of every table (contract section 5): a
completion whose claim is not outstanding is *late*, and a claim that is outstanding already can not be taken
again (*illegal*).

:class:`Table` refuses, naming the row: a cell that no row or more than one row specifies; a state that cannot
be reached; a terminal state with a way out; new work in a draining state; effects that cannot be carried out
in the order given, pages that would be lost, an ending that nobody reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise, product
from types import MappingProxyType

import attrs

from .errors import TableError
from .policy import AbortAfterHandoff, OnUndrained
from .vocabulary import EffectKind, Event, FinishReason, Word


class Pages(Word):
    """What the request's pages are to it in a state."""

    NONE = "none"
    OWNED = "owned"
    LENT = "lent"  # decided, and waiting for the last step or op

    @property
    def is_held(self) -> bool:
        """Whether there are pages."""
        return self is not Pages.NONE


class To(Word):
    """Where a row leads, other than to a state by name."""

    STAY = "(stay)"
    FINISH = "(finish)"
    DRAIN = "(drain)"
    LATE = "(late)"
    ILLEGAL = "(illegal)"


STAY, FINISH, DRAIN, LATE, ILLEGAL = To.STAY, To.FINISH, To.DRAIN, To.LATE, To.ILLEGAL


class Does(Enum):
    """What an event does to claims (contract section 3)."""

    TAKE_PAGES = "takes the request's claim"
    TAKE_STEP = "takes a step claim"
    DROP_STEP = "drops a step claim"
    TAKE_OP = "takes an op claim"
    TAKE_OP_UNLESS_OPEN = "takes the op claim kv unless an op is open"
    DROP_OP = "drops an op claim"
    START_OVER = "leaves the old attempt's claims to drain on their own"


TAKES = frozenset({Does.TAKE_PAGES, Does.TAKE_STEP, Does.TAKE_OP, Does.TAKE_OP_UNLESS_OPEN})

#: Events whose claim follows from the event itself: a row that has one of them does exactly this.
CLAIM_OF: Mapping[str, Does] = MappingProxyType(
    {
        Event.FORWARD_LAUNCHED: Does.TAKE_STEP,
        Event.FORWARD_FINISHED: Does.DROP_STEP,
        Event.TRANSFER_POSTED: Does.TAKE_OP,
        Event.TRANSFER_SUCCEEDED: Does.DROP_OP,
        Event.TRANSFER_DRAINED: Does.DROP_OP,
    }
)


class Offers(Enum):
    """The reason that an event offers. The precedence decides whether it wins."""

    NOTHING = "nothing"
    ITS_OWN = "the event's own reason"
    TRANSFER_FAILED = FinishReason.TRANSFER_FAILED
    LENGTH = FinishReason.LENGTH


#: Events that bring a reason of their own, named or by a detail (source, cause, reason).
REASONED = frozenset(
    {
        Event.ABORT,
        Event.GRAMMAR_FAILED,
        Event.TRANSFER_FAILED,
        Event.PEER_LOST,
        Event.ERROR,
        Event.COMPLETE,
    }
)

#: Policies that a row may depend on, with their choices.
POLICY_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"abort_after_handoff": tuple(AbortAfterHandoff), "on_undrained": tuple(OnUndrained)}
)


@attrs.frozen
class When:
    """A condition on a row; a field that is None asks nothing.

    Attributes:
        recorded: whether a reason is recorded before the event.
        ops: whether an op claim is outstanding after the event's own effect on claims.
        policy: the name of a policy and the choice that the row is for.
    """

    recorded: bool | None = None
    ops: bool | None = None
    policy: tuple[str, str] | None = None

    def holds(self, *, recorded: bool, ops: bool, choices: Mapping[str, str]) -> bool:
        """Whether the condition holds; `choices` maps policy names to choices."""
        return (
            (self.recorded is None or self.recorded == recorded)
            and (self.ops is None or self.ops == ops)
            and (self.policy is None or choices[self.policy[0]] == self.policy[1])
        )

    def __str__(self) -> str:
        parts = []
        if self.recorded is not None:
            parts.append("a reason is recorded" if self.recorded else "undecided")
        if self.ops is not None:
            parts.append("an op is outstanding" if self.ops else "no op is outstanding")
        if self.policy is not None:
            parts.append(f"policy {self.policy[0]}={str(self.policy[1])!r}")
        return " and ".join(parts)


ALWAYS = When()


def _tuple_of_words(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _target(value: str) -> str:
    return To(value) if value in To._value2member_map_ else value


@attrs.frozen
class Row:
    """One row: what `events` do in `states`. See the module's text for the parts.

    `why` is one sentence for the reader; ``lifecycle explain`` prints it.
    """

    states: tuple[str, ...] = attrs.field(converter=_tuple_of_words)
    events: tuple[str, ...] = attrs.field(converter=_tuple_of_words)
    to: str = attrs.field(converter=_target)
    when: When = attrs.field(default=ALWAYS, kw_only=True)
    claims: tuple[Does, ...] = attrs.field(default=(), kw_only=True)
    offers: Offers = attrs.field(default=Offers.NOTHING, kw_only=True)
    effects: tuple[EffectKind, ...] = attrs.field(default=(), kw_only=True)
    why: str = attrs.field(kw_only=True)

    def __str__(self) -> str:
        text = f"{', '.join(self.states)} x {', '.join(self.events)} -> {self.to}"
        return f"{text} when {self.when}" if self.when != ALWAYS else text


@attrs.frozen
class StateSpec:
    """A state of a table: its name, what the pages are to the request in it, and its meaning in a sentence.

    A state with `Pages.LENT` is a *draining* state: decided but not drained. `drains` lists the reasons that
    it is for; one draining state of a table lists none and takes the rest.
    """

    name: str
    meaning: str
    pages: Pages = attrs.field(kw_only=True)
    terminal: bool = attrs.field(default=False, kw_only=True)
    drains: tuple[FinishReason, ...] = attrs.field(default=(), kw_only=True)

    @property
    def draining(self) -> bool:
        """Whether the request is decided and waits for its last claim here."""
        return self.pages is Pages.LENT


@attrs.frozen
class Table:
    """A declared table. Building one checks it.

    The first state is where ``submit`` puts a request.

    Raises:
        TableError: the table is not well formed; the message names the row or state.
    """

    name: str
    states: tuple[StateSpec, ...]
    rows: tuple[Row, ...]
    _state: Mapping[str, StateSpec] = attrs.field(init=False, repr=False, eq=False)
    _rows_of: Mapping[tuple[str, str], tuple[Row, ...]] = attrs.field(
        init=False, repr=False, eq=False
    )

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_state", {state.name: state for state in self.states})
        cells: dict[tuple[str, str], tuple[Row, ...]] = {}
        for row in self.rows:
            for cell in product(row.states, row.events):
                cells[cell] = (*cells.get(cell, ()), row)
        object.__setattr__(self, "_rows_of", cells)
        check(self)

    @property
    def initial(self) -> StateSpec:
        """The state of a request that was just submitted."""
        return self.states[0]

    @property
    def terminal(self) -> StateSpec:
        """The only state without a way out."""
        return next(state for state in self.states if state.terminal)

    def state(self, name: str) -> StateSpec:
        """The state of that name.

        Raises:
            KeyError: there is none.
        """
        return self._state[name]

    def draining_state(self, reason: FinishReason) -> StateSpec:
        """Where a request that ends for `reason` waits for its last claim."""
        rest = None
        for state in self.states:
            if state.draining:
                if reason in state.drains:
                    return state
                if not state.drains:
                    rest = state
        if rest is None:  # the checks refuse such a table
            msg = f"table {self.name!r} has no draining state for {reason}"
            raise TableError(msg)
        return rest

    def rows_of(self, state: str, event: str) -> tuple[Row, ...]:
        """The rows of one cell, in the order of the table; more than one where they have conditions."""
        return self._rows_of.get((state, event), ())


# The checks. Each yields its complaints; the first one is raised.


def check(table: Table) -> None:
    """Refuse a table that is not well formed.

    Raises:
        TableError: naming the row or state, and what is wrong with it.
    """
    for complaint in _complaints(table):
        msg = f"table {table.name!r}: {complaint}"
        raise TableError(msg)


def _complaints(table: Table) -> Iterator[str]:
    for part in (_bad_names, _bad_states, _bad_cells, _bad_rows, _unreachable):
        yield from part(table)


def _bad_names(table: Table) -> Iterator[str]:
    names = [state.name for state in table.states]
    for name in names:
        if names.count(name) > 1:
            yield f"state {str(name)!r} is declared twice"
        if name in To._value2member_map_:
            yield f"state {str(name)!r} has the name of a row's outcome"
    for number, row in enumerate(table.rows, 1):
        where = f"row {number} ({row})"
        for name in row.states:
            if name not in names:
                yield f"{where}: no state is named {str(name)!r}"
        for event in row.events:
            if event not in Event._value2member_map_:
                yield f"{where}: no event is named {str(event)!r}"
        if row.to not in To._value2member_map_ and row.to not in names:
            yield f"{where}: leads to {str(row.to)!r}, which is no state"
        policy = row.when.policy
        if policy is not None and policy[1] not in POLICY_CHOICES.get(policy[0], ()):
            yield f"{where}: no policy {policy[0]!r} has the choice {str(policy[1])!r}"


def _bad_states(table: Table) -> Iterator[str]:
    ends = [state for state in table.states if state.terminal]
    if len(ends) != 1:
        yield f"needs exactly one terminal state; it has {len(ends)}"
    for state in table.states:
        if state.terminal and state.pages is not Pages.NONE:
            yield f"terminal state {str(state.name)!r} still has pages"
        if state.drains and not state.draining:
            yield f"state {str(state.name)!r} lists reasons to drain for, but lends no pages"
    if table.states and table.initial.pages is not Pages.NONE:
        yield f"initial state {str(table.initial.name)!r} has pages that nobody admitted"
    draining = [state for state in table.states if state.draining]
    rest = [state for state in draining if not state.drains]
    if len(rest) != 1:
        yield f"needs exactly one draining state that lists no reasons; it has {len(rest)}"
    for reason in FinishReason:
        if sum(reason in state.drains for state in draining) > 1:
            yield f"two draining states are for {reason}"


def _bad_cells(table: Table) -> Iterator[str]:
    combinations = [
        dict(zip(POLICY_CHOICES, picks, strict=True)) for picks in product(*POLICY_CHOICES.values())
    ]
    for state, event in product(table.states, Event):
        rows = table.rows_of(state.name, event)
        if len(rows) == 1 and rows[0].when is ALWAYS:
            continue
        cell = f"{state.name} x {event}"
        if not rows:
            yield f"{cell} is not specified by any row"
            continue
        for recorded, ops, choices in product((False, True), (False, True), combinations):
            at = [
                row for row in rows if row.when.holds(recorded=recorded, ops=ops, choices=choices)
            ]
            if len(at) == 1:
                continue
            case = When(recorded=recorded, ops=ops)
            if not at:
                yield f"{cell} is not specified when {case} and {choices}: {rows[0]} does not hold"
            else:
                yield f"{cell} is specified twice when {case}: by ({at[0]}) and by ({at[1]})"
            break


_ORDER = {
    EffectKind.CANCEL_TRANSFER: 0,
    EffectKind.RELEASE_KV: 1,
    EffectKind.QUARANTINE_KV: 1,
    EffectKind.REPORT: 2,
}


def _bad_rows(table: Table) -> Iterator[str]:
    for number, row in enumerate(table.rows, 1):
        for complaint in _bad_row(table, row):
            yield f"row {number} ({row}): {complaint}"


def _bad_row(table: Table, row: Row) -> Iterator[str]:
    if row.to in (LATE, ILLEGAL):
        if row.claims or row.effects or row.offers is not Offers.NOTHING:
            yield "a late or illegal event changes nothing: no claims, offers or effects"
        for event, name in product(row.events, row.states):
            drops = CLAIM_OF.get(event) in (Does.DROP_STEP, Does.DROP_OP)
            if drops and table.state(name).pages is not Pages.NONE:
                yield f"{event} in {str(name)!r} would lose a claim for ever: it must drop it"
        return
    yield from _bad_claims(row)
    ranks = [_ORDER[effect] for effect in row.effects]
    if any(later <= sooner for sooner, later in pairwise(ranks)):
        order = ", ".join(row.effects)
        yield (
            f"effects cannot be carried out in the order {order}: the transfer is cancelled first, "
            "then pages go back once, and the report is last"
        )
    if row.offers is Offers.ITS_OWN and not REASONED.issuperset(row.events):
        yield "offers the event's own reason, but such an event has none"
    if row.to == DRAIN and row.offers is Offers.NOTHING:
        yield "decides the request, but offers no reason"
    for name in row.states:
        yield from _bad_move(table, row, table.state(name))


def _bad_claims(row: Row) -> Iterator[str]:
    for event in row.events:
        own = CLAIM_OF.get(event)
        if own is not None and row.claims != (own,):
            yield f"{event} {own.value}, and nothing else"
        if own is None and set(CLAIM_OF.values()).intersection(row.claims):
            yield f"{event} is about no single step or op, so it takes and drops none"


def _bad_move(table: Table, row: Row, state: StateSpec) -> Iterator[str]:
    if state.terminal:
        yield f"leads out of the terminal state {str(state.name)!r}"
        return
    if state.draining and TAKES.intersection(row.claims):
        yield f"takes a claim in {str(state.name)!r}: no new work for a decided request"
    if state.pages is Pages.NONE:
        if Does.TAKE_PAGES not in row.claims and row.claims:
            yield f"takes or drops claims in {str(state.name)!r}, where the request has no pages"
    elif Does.TAKE_PAGES in row.claims:
        yield f"takes pages in {str(state.name)!r}, where the request has some already"
    named = None if row.to in To._value2member_map_ else table.state(row.to)
    frees = EffectKind.RELEASE_KV in row.effects or EffectKind.QUARANTINE_KV in row.effects
    ends = row.to in (FINISH, DRAIN) or (named is not None and named.terminal)
    leaves = ends or (named is not None and named.pages is Pages.NONE)
    held = state.pages is not Pages.NONE
    if frees and not held:
        yield f"gives pages back in {str(state.name)!r}, where the request has none"
    if frees and not leaves:
        yield "gives pages back although the request keeps them"
    if held and leaves and not frees:
        yield f"loses the pages that {str(state.name)!r} holds: it neither releases nor quarantines"
    if ends and EffectKind.REPORT not in row.effects:
        yield "can end the request without a report"
    if EffectKind.REPORT in row.effects and not ends:
        yield "reports a request that it does not end"
    if named is not None and named.draining and not state.draining:
        yield f"names the draining state {str(row.to)!r}; DRAIN picks it by the reason that wins"
    enters = named is not None and named.pages is Pages.OWNED and not held
    if enters and Does.TAKE_PAGES not in row.claims:
        yield f"moves to {str(row.to)!r}, which owns pages, without taking any"


def _unreachable(table: Table) -> Iterator[str]:
    seen, front = {table.initial.name}, [table.initial.name]
    while front:
        here = front.pop()
        for row in table.rows:
            if here in row.states:
                for name in _leads_to(table, row):
                    if name not in seen:
                        seen.add(name)
                        front.append(name)
    for state in table.states:
        if state.name not in seen:
            yield f"state {str(state.name)!r} cannot be reached from {str(table.initial.name)!r}"


def _leads_to(table: Table, row: Row) -> Iterator[str]:
    if row.to in (STAY, LATE, ILLEGAL):
        return
    if row.to in (FINISH, DRAIN):
        yield table.terminal.name
        # A draining request may change its state by precedence, so every one of them is in reach.
        if row.to == DRAIN and any(
            table.state(name).pages is not Pages.NONE for name in row.states
        ):
            yield from (state.name for state in table.states if state.draining)
        return
    yield row.to
