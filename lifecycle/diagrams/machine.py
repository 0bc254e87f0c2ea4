"""A real ``transitions.Machine`` of a declared table: a second executor of the same rows (extra ``[diagrams]``).

    m = machine()
    m.model.admit(pages=4)
    m.model.prefill_finished()
    m.model.abort(source="client")
    m.model.state, m.model.claims, m.model.effects   # 'aborted', {'op:kv', 'request'}, ['cancel_transfer']

It shares the table, the policy and the precedence with the rest of the library, and nothing of the automaton: each
row becomes ``transitions``' own conditional transitions, and claims are sets that callbacks fill and empty. A test
drives both through every configuration and every letter. It is some sixty times slower than
:class:`lifecycle.RequestLifecycle`, follows one request, and forgets an attempt that is preempted; for a scheduler
that embeds ``transitions`` already it is a drop-in, and it can be drawn by ``GraphMachine``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import IllegalEvent, LifecycleError
from ..policy import DEFAULT_POLICY, Policy, ReportAt
from ..prefill import PREFILL
from ..reasons import is_earlier
from ..spec import (
    CLAIM_OF,
    DRAIN,
    FINISH,
    ILLEGAL,
    LATE,
    STAY,
    Does,
    Offers,
    Row,
    StateSpec,
    Table,
    To,
)
from ..vocabulary import (
    ABORT_REASONS,
    DEFAULT_OP,
    AbortSource,
    EffectKind,
    Event,
    FinishReason,
)

Condition = Callable[[Any], bool]

_REASON_OF = {
    Event.GRAMMAR_FAILED: FinishReason.GRAMMAR_ERROR,
    Event.TRANSFER_FAILED: FinishReason.TRANSFER_FAILED,
    Event.PEER_LOST: FinishReason.PEER_LOST,
    Event.ERROR: FinishReason.INTERNAL_ERROR,
}


class RequestModel:
    """The model that the machine moves. Triggers are named after events; details are keywords.

    Attributes:
        state: kept by the machine.
        reason, position: the reason that stands, and the token it came with.
        steps, ops: what is outstanding.
        held: whether it has pages.
        reported: whether the client was told.
        late: how many events came late.
        effects: of the last event, in order.
        kind: of the last event: move, stay or late.
    """

    state: str

    def __init__(self, table: Table, policy: Policy) -> None:
        self.table, self.policy = table, policy
        self.reason: FinishReason | None = None
        self.position: int | None = None
        self.steps: set[int] = set()
        self.ops: set[str] = set()
        self.last_step = 0
        self.held = self.reported = False
        self.late = 0
        self.effects: list[str] = []
        self.kind = ""

    @property
    def claims(self) -> set[str]:
        """Who may still touch the pages."""
        named = {f"step:{step}" for step in self.steps} | {f"op:{op}" for op in self.ops}
        return named | {"request"} if self.held else named

    # What an event is about. Asked by conditions, so nothing is changed here.

    def look(self, data: Any) -> None:
        """Before each event: what it names, and what would be left of the claims."""
        self.effects, self.kind = [], ""
        event, given = data.event.name, data.kwargs
        self._steps, self._ops = set(self.steps), set(self.ops)
        self._missing = self._again = False
        if event == Event.FORWARD_LAUNCHED:
            step = given.get("step", self.last_step + 1)
            self._again = step in self.steps
            self._steps.add(step)
        elif event == Event.FORWARD_FINISHED:
            step = given.get("step", min(self.steps, default=None))
            self._missing = step not in self.steps
            self._steps.discard(step)
        elif event == Event.TRANSFER_POSTED:
            op = given.get("op", DEFAULT_OP)
            self._again = op in self.ops
            self._ops.add(op)
        elif event in (Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED):
            gone = {given["op"]} if "op" in given else set(self.ops)
            self._missing = not gone & self.ops
            self._ops -= gone
        elif event == Event.TRANSFER_FAILED:
            self._missing = "op" in given and given["op"] not in self.ops
        self._offer(event, given)

    def _offer(self, event: str, given: dict[str, Any]) -> None:
        self._own: FinishReason | None = _REASON_OF.get(Event(event))
        self._own_position: int | None = None
        if event == Event.ABORT:
            self._own = ABORT_REASONS[AbortSource(given.get("source", "client"))]
        elif event == Event.COMPLETE:
            self._own = FinishReason(given["reason"])
            self._own_position = given.get("position")

    def winner(self, row: Row) -> FinishReason | None:
        """The reason that would stand after `row`."""
        offered = self._own if row.offers is Offers.ITS_OWN else row.offers.value
        if not isinstance(offered, FinishReason) or self.reported:
            return self.reason
        if self.reason is None:
            return offered
        earlier = is_earlier(offered, self._own_position, self.reason, self.position)
        return self.policy.precedence.join(self.reason, offered, earlier=earlier)

    def busy_after(self, row: Row) -> bool:
        """Whether a step or op would be outstanding after `row`."""
        ops = Does.TAKE_OP_UNLESS_OPEN in row.claims or bool(self._ops)
        return Does.START_OVER not in row.claims and (ops or bool(self._steps))

    # What a row does.

    def follow(self, row: Row, arrived: StateSpec) -> None:
        """Carry a row out: claims, reason, effects."""
        was = self.state
        busy_before = bool(self.steps or self.ops)
        winner = self.winner(row)
        offered = self._own if row.offers is Offers.ITS_OWN else row.offers.value
        again = winner is offered and not self.reported
        if winner is not self.reason or (
            again
            and winner is not None
            and is_earlier(winner, self._own_position, winner, self.position)
        ):
            self.position = self._own_position
        self.reason = winner
        self._take_and_drop(row)
        for effect in row.effects:
            if effect is EffectKind.CANCEL_TRANSFER:
                self.effects.append(str(effect))
            elif effect is EffectKind.REPORT:
                now = self.policy.report is ReportAt.DECISION and self.reason is not None
                if not self.reported and (arrived.terminal or now):
                    self.effects.append(str(effect))
                    self.reported = True
            elif arrived.terminal or (Does.START_OVER in row.claims and not busy_before):
                self.effects.append(str(effect))
        if arrived.terminal:
            self.steps, self.ops, self.held = set(), set(), False
        self.kind = "stay" if arrived.name == was else "move"

    def _take_and_drop(self, row: Row) -> None:
        for does in row.claims:
            if does is Does.TAKE_PAGES:
                self.held = True
            elif does in (Does.TAKE_STEP, Does.DROP_STEP):
                self.last_step = max([self.last_step, *self._steps])
                self.steps = self._steps
            elif does in (Does.TAKE_OP, Does.DROP_OP):
                self.ops = self._ops
            elif does is Does.TAKE_OP_UNLESS_OPEN:
                self.ops = self.ops or {DEFAULT_OP}
            else:
                self.steps, self.ops, self.held = set(), set(), False

    def absorb(self, _data: Any = None) -> None:
        """A late event."""
        self.late += 1
        self.kind = "late"

    def refuse(self, data: Any) -> None:
        """An illegal event."""
        msg = f"{data.event.name} is illegal in {self.state}"
        raise IllegalEvent(msg, state=self.state, event=data.event.name)


def machine(table: Table = PREFILL, policy: Policy = DEFAULT_POLICY, *, graph: bool = False) -> Any:
    """A ``transitions.Machine`` of `table` under `policy`; its ``model`` is a fresh :class:`RequestModel`.

    Args:
        table: any declared table.
        policy: the contract's open choices.
        graph: make it a ``GraphMachine``, which can draw itself.

    Raises:
        LifecycleError: ``transitions`` is not installed.
    """
    try:
        from transitions import Machine
        from transitions.extensions import GraphMachine
    except ImportError:
        msg = 'this needs transitions; install it with: pip install "request-lifecycle[diagrams]"'
        raise LifecycleError(msg) from None
    model = RequestModel(table, policy)
    made = (GraphMachine if graph else Machine)(
        model=model,
        states=[str(state.name) for state in table.states],
        initial=str(table.initial.name),
        auto_transitions=False,
        send_event=True,
        prepare_event=model.look,
    )
    for state in table.states:
        for event in Event:
            for edge in _edges(model, state, event):
                made.add_transition(str(event), str(state.name), **edge)
    return made


def _edges(model: RequestModel, state: StateSpec, event: Event) -> Iterator[dict[str, Any]]:
    """The transitions of one cell, in the order in which they are tried."""
    if CLAIM_OF.get(event) in (Does.DROP_STEP, Does.DROP_OP) or event is Event.TRANSFER_FAILED:
        yield {"dest": None, "conditions": lambda _data: model._missing, "after": model.absorb}
    elif event in CLAIM_OF:
        yield {"dest": None, "conditions": lambda _data: model._again, "before": model.refuse}
    for row in model.table.rows_of(state.name, event):
        holds = _holds(model, row)
        if row.to is LATE:
            yield {"dest": None, "conditions": holds, "after": model.absorb}
        elif row.to is ILLEGAL:
            yield {"dest": None, "conditions": holds, "before": model.refuse}
        else:
            yield from _ways(model, state, row, holds)


def _holds(model: RequestModel, row: Row) -> Condition:
    choices = {
        "abort_after_handoff": model.policy.abort_after_handoff,
        "on_undrained": model.policy.on_undrained,
    }

    def holds(_data: Any) -> bool:
        recorded = model.reason is not None
        return row.when.holds(recorded=recorded, ops=bool(model._ops), choices=choices)

    return holds


def _ways(
    model: RequestModel, state: StateSpec, row: Row, holds: Condition
) -> Iterator[dict[str, Any]]:
    """A row that is taken: where it leads depends on what is outstanding, and on the reason that wins."""
    table, end = model.table, model.table.terminal

    def way(arrived: StateSpec, *conditions: Condition) -> dict[str, Any]:
        return {
            "dest": None if arrived is state else str(arrived.name),
            "conditions": [holds, *conditions],
            "before": lambda _data: model.follow(row, arrived),
        }

    def ends(_data: Any) -> bool:
        return model.winner(row) is not None and not model.busy_after(row)

    def drains_in(place: StateSpec) -> Condition:
        def there(_data: Any) -> bool:
            winner = model.winner(row)
            return winner is not None and table.draining_state(winner) is place

        return there

    if row.to not in To._value2member_map_:
        yield way(table.state(row.to))
        return
    if row.to in (FINISH, DRAIN):
        yield way(end, ends)
    if (
        row.offers is not Offers.NOTHING
        and not row.claims
        and (row.to is not DRAIN or state.draining)
    ):
        told = {"dest": None, "conditions": [holds, lambda _data: model.reported]}
        yield {**told, "after": model.absorb}  # later reasons are late
    if row.to is DRAIN or state.draining:
        for place in table.states:
            if place.draining:
                yield way(place, drains_in(place))
    else:
        assert row.to in (STAY, FINISH)
        yield way(state)
