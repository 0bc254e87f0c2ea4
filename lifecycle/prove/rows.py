"""The rows of a table as formulas: what an event does to a request, as an expression over its state.

A second reading of the rows, besides :mod:`lifecycle.compile`: it shares nothing with it but the table.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import attrs
import z3

from ..policy import Policy
from ..spec import DRAIN, FINISH, ILLEGAL, LATE, STAY, TAKES, Does, Offers, Row, Table
from ..vocabulary import EffectKind, Event, FinishReason

NO_REASON = "none"
_COUNTER = count()


@attrs.frozen
class Outcome:
    """What an event does, as expressions."""

    state: Any
    reason: Any
    step: Any
    op: Any
    illegal: Any
    late: Any
    releases: Any
    quarantines: Any
    reports: Any
    cancels: Any
    starts_over: Any
    takes: Any
    ignored: Any  # by the policy abort_after_handoff


class Words:
    """The sorts of states and reasons of a table, and the order of reasons of a policy."""

    def __init__(self, table: Table, policy: Policy) -> None:
        self.table, self.policy = table, policy
        number = next(_COUNTER)  # the names of z3's sorts are never forgotten
        names = [str(state.name) for state in table.states]
        self.heights: dict[str, Any] | None = None  # symbolic, for a proof over every precedence
        made = z3.EnumSort(f"State{number}", [f"{name}_{number}" for name in names])
        self.State, states = made
        self.state = dict(zip(names, states, strict=True))
        names = [NO_REASON, *map(str, FinishReason)]
        made = z3.EnumSort(f"Reason{number}", [f"because_{name}_{number}" for name in names])
        self.Reason, reasons = made
        self.reason = dict(zip(names, reasons, strict=True))
        self.none = self.reason[NO_REASON]

    def one_of(self, state: Any, names: list[str]) -> Any:
        """Whether `state` is one of `names`."""
        return z3.Or([state == self.state[str(name)] for name in names])

    def draining(self, state: Any) -> Any:
        """Whether it is a draining state."""
        return self.one_of(state, [each.name for each in self.table.states if each.draining])

    def terminal(self, state: Any) -> Any:
        """Whether it is the terminal state."""
        return state == self.state[str(self.table.terminal.name)]

    def height(self, reason: Any) -> Any:
        """How high a reason stands; none stands lowest."""
        value: Any = z3.IntVal(-1)
        if self.heights is not None:
            for name, height in self.heights.items():
                value = z3.If(reason == self.reason[name], height, value)
            return value
        tiers = self.policy.precedence.tiers
        for rank, tier in enumerate(tiers):
            for name in tier:
                value = z3.If(reason == self.reason[str(name)], len(tiers) - rank, value)
        return value

    def completion(self, reason: Any) -> Any:
        """Whether it is `stop` or `length`."""
        return z3.Or(reason == self.reason["stop"], reason == self.reason["length"])

    def join(self, was: Any, new: Any, earlier: Any) -> Any:
        """The winner of a recorded reason and a new one (contract section 6)."""
        higher = self.height(new) > self.height(was)
        tie = z3.And(self.height(new) == self.height(was), earlier)
        tie = z3.And(tie, self.completion(new), self.completion(was))
        return z3.If(z3.Or(was == self.none, higher, tie), new, was)

    def draining_state(self, reason: Any) -> Any:
        """Where a request that ends for `reason` waits."""
        value = self.state[str(self.table.draining_state(FinishReason.CLIENT_ABORT).name)]
        for each in FinishReason:
            to = self.state[str(self.table.draining_state(each).name)]
            value = z3.If(reason == self.reason[str(each)], to, value)
        return value


def fire(
    words: Words,
    event: Event,
    *,
    state: Any,
    reason: Any,
    step: Any,
    op: Any,
    offered: Any = None,
    earlier: Any = None,
    last_wins: bool = False,
) -> Outcome:
    """What `event` does to a request in `state`; `step` and `op` are what is outstanding after its own drop."""
    false = z3.BoolVal(False)  # z3's own literal
    values: dict[str, Any] = {
        "state": state, "reason": reason, "step": step, "op": op, "illegal": false, "late": false,
        "releases": false, "quarantines": false, "reports": false, "cancels": false,
        "starts_over": false, "takes": false, "ignored": false,
    }  # fmt: skip
    early = false if earlier is None else earlier
    for spec in words.table.states:
        for row in words.table.rows_of(spec.name, event):
            policy = row.when.policy
            if policy is not None and getattr(words.policy, policy[0]) != policy[1]:
                continue
            guard = [state == words.state[str(spec.name)]]
            if row.when.recorded is not None:
                guard.append((reason != words.none) == row.when.recorded)
            if row.when.ops is not None:
                guard.append(op == row.when.ops)
            done = _row(words, row, spec.name, reason, step, op, offered, early, last_wins)
            holds = z3.And(guard)
            for name, value in done.items():
                values[name] = z3.If(holds, value, values[name])
    return Outcome(**values)


def _row(
    words: Words,
    row: Row,
    here: str,
    reason: Any,
    step: Any,
    op: Any,
    offered: Any,
    early: Any,
    last_wins: bool,
) -> dict[str, Any]:
    true = z3.BoolVal(True)  # z3's own literal
    if row.to is ILLEGAL:
        return {"illegal": true}
    if row.to is LATE:
        return {"late": true}
    done: dict[str, Any] = {}
    before = z3.Or(step, op)
    for does in row.claims:
        if does is Does.TAKE_STEP:
            step = true
        elif does in (Does.TAKE_OP, Does.TAKE_OP_UNLESS_OPEN):
            op = true
        elif does is Does.START_OVER:
            step = op = z3.Not(true)
            done["starts_over"] = true
    if TAKES.intersection(row.claims):
        done["takes"] = true
    new = reason
    brought = offered if row.offers is Offers.ITS_OWN else None
    if isinstance(row.offers.value, FinishReason):
        brought = words.reason[str(row.offers.value)]
    if brought is not None:
        new = brought if last_wins else words.join(reason, brought, early)
    if row.when.policy == ("abort_after_handoff", "ignore"):
        done["ignored"] = true
    busy, recorded = z3.Or(step, op), new != words.none
    terminal = words.state[str(words.table.terminal.name)]
    stays = words.state[str(here)]
    if words.table.state(here).draining:
        stays = z3.If(recorded, words.draining_state(new), stays)
    if row.to == FINISH:
        to = z3.If(z3.And(recorded, z3.Not(busy)), terminal, stays)
    elif row.to == DRAIN:
        to = z3.If(busy, words.draining_state(new), terminal)
    elif row.to == STAY:
        to = stays
    else:
        to = words.state[str(row.to)]
    ends = to == terminal
    starts_over = Does.START_OVER in row.claims
    gives = z3.Or(ends, z3.And(starts_over, z3.Not(before)))
    for effect in row.effects:
        if effect is EffectKind.RELEASE_KV:
            done["releases"] = gives
        elif effect is EffectKind.QUARANTINE_KV:
            done["quarantines"] = ends
        elif effect is EffectKind.REPORT:
            done["reports"] = ends
        else:
            done["cancels"] = true
    done |= {"state": to, "reason": new}
    # What the request believes: a request that is done counts no claims. `step` stays what is so.
    done |= {"step": step, "op": z3.And(op, z3.Not(ends))}
    return done
