"""Reasons under every precedence at once: heights are unknown numbers, and z3 looks for the worst of them.

For the join (contract section 6) two things are proved: what is recorded is replaced by nothing lower
(`sticky_reason`), and under a strict total order the winner does not depend on the order of arrival.

For a *table* the second is not quite so, and :func:`exceptions` says where: two events that both bring a reason
are played in both orders in every situation, under every strict total order. The order matters where one of the
two is late or ignored if it comes first, and counts if the request was decided by the other before: an abort after
the hand-off succeeded under ``abort_after_handoff="ignore"``, and a failure of a hand-off that is over. Both need
a request that still waits for a pass. Pairs of which one is a completion are not among them.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import attrs
import z3

from ..compile import OWN_REASON
from ..policy import Policy
from ..spec import Table
from ..vocabulary import ABORT_REASONS, Event, FinishReason
from .rows import Words, fire


@attrs.frozen
class Depends:
    """Two events whose order decides what is reported: in `state`, with or without an op outstanding."""

    state: str
    op: bool
    first: str
    second: str

    def __str__(self) -> str:
        op = "an op" if self.op else "no op"
        return f"{self.state} with {op} outstanding: {self.first} and {self.second}"


def join_is_sound() -> bool:
    """Whether the join is sticky under every precedence, and under total ones free of the order."""
    heights = z3.Function("height", z3.IntSort(), z3.IntSort())

    def join(was: Any, new: Any) -> Any:
        return z3.If(heights(new) > heights(was), new, was)

    a, b, c, x, y = z3.Ints("a b c x y")
    total = z3.ForAll([x, y], z3.Implies(x != y, heights(x) != heights(y)))
    lower = z3.And(join(a, b) != a, heights(join(a, b)) <= heights(a))
    swapped = z3.And(total, join(a, b) != join(b, a))
    grouped = z3.And(total, join(join(c, a), b) != join(join(c, b), a))
    for wrong in (lower, swapped, grouped):
        solver = z3.Solver()
        solver.add(wrong)
        if solver.check() != z3.unsat:
            return False
    return True


def exceptions(table: Table, policy: Policy) -> tuple[Depends, ...]:
    """Where, under some strict total order, the order of two events decides the reason; see the module's text."""
    words = Words(table, policy)
    words.heights = {str(reason): z3.Int(f"height_{reason}") for reason in FinishReason}
    order = z3.And(
        z3.Distinct(*words.heights.values()), *[height >= 0 for height in words.heights.values()]
    )
    # Two aborts, each from any source.
    aborts = [z3.Const(f"abort{number}", words.Reason) for number in (1, 2)]
    sources = [words.reason[str(reason)] for reason in ABORT_REASONS.values()]
    any_source = [z3.Or([abort == reason for reason in sources]) for abort in aborts]
    brings: list[tuple[str, Event, Any]] = [
        (name, Event.ABORT, abort)
        for name, abort in zip(("abort", "another abort"), aborts, strict=True)
    ]
    brings += [(str(event), event, words.reason[str(own)]) for event, own in OWN_REASON.items()]
    pairs = [two for two in combinations(brings, 2) if two[0][0] != "another abort"]
    found = []
    reason, step = z3.Const("recorded", words.Reason), z3.Bool("step")
    for spec in table.states:
        if spec.terminal:
            continue
        state = words.state[str(spec.name)]
        for op in (False, True):
            busy = z3.Or(
                step, z3.BoolVal(op)
            )  # at rest the first event ends it, and the second is late
            open_ = z3.Or(reason == words.none, words.completion(reason))
            if spec.draining:
                open_ = reason != words.none
            solver = z3.Solver()
            solver.add(order, busy, open_, *any_source)
            for one, two in pairs:
                ends = []
                for sequence in ((one, two), (two, one)):
                    now = {"state": state, "reason": reason, "op": z3.BoolVal(op), "step": step}
                    for _, event, offered in sequence:
                        out = fire(words, event, offered=offered, **now)
                        lost = z3.Or(out.late, out.illegal)
                        now = {name: z3.If(lost, now[name], getattr(out, name)) for name in now}
                    ends.append(now["reason"])
                solver.push()
                solver.add(ends[0] != ends[1])
                if solver.check() != z3.unsat:
                    found.append(Depends(str(spec.name), op, one[0], two[0]))
                solver.pop()
    return tuple(found)
