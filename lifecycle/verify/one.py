"""One request, in every situation that a table allows: is each invariant that one request can break kept?

>>> from lifecycle import PREFILL
>>> proof = verify_one(PREFILL)
>>> proof.broken, proof.situations > 100
((), True)

A *situation* is a configuration of the automaton (:mod:`lifecycle.compile`) together with the truth about the
request, which is kept here and owes nothing to the automaton: how many passes and ops may touch its pages (none,
one, or *two or more*), where the pages are, how often the client was told, whether the peer was told, whether the
hand-off succeeded. Every letter that can happen in a situation is tried, breadth first, so what breaks is found
by the fewest events. "Two or more" leads to "one" and to "two or more" when one of them ends, so what holds here
holds for any number of passes and ops.

What is *not* here, since one request cannot break it: `exact_target`, `rank_agreement`, `fault_isolated`,
`stream_order`; fleets (:mod:`lifecycle.verify.fleet`) and the other suites have them. An attempt that was
preempted while busy drains on its own by code (:mod:`lifecycle.request`), not by rows, so `attempt_scoped` is
left to the tests of that module.

The policy ``on_undrained="release"`` is unsafe and named so: under it `no_free_in_flight` breaks, by the user's
own choice, and is reported. :func:`safe_policies` leaves it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

import attrs

from ..compile import (
    LETTERS,
    MORE,
    After,
    Automaton,
    Cell,
    Letter,
    Node,
)
from ..policy import DEFAULT_POLICY, AbortAfterHandoff, OnUndrained, Policy, ReportAt
from ..spec import Does, Table
from ..vocabulary import Event, Invariant
from .rules import ONE, Step, across_reasons, judge

NONE, HELD, GONE = 0, 1, 2  # where the pages of the attempt are
NOT_YET, HANDING, DELIVERED = 0, 1, 2  # how far the hand-off is
TWO_OR_MORE = 2


class Truth(NamedTuple):
    """What is so, whatever the automaton believes."""

    steps: int = 0
    ops: int = 0
    pages: int = NONE
    reports: int = 0
    cancelled: bool = False
    handoff: int = NOT_YET


Situation = tuple[int, Truth]  # the number of the node, and the truth


@attrs.frozen
class Happened:
    """One event of a path: the letter, and how many of its kind of claim are outstanding afterwards."""

    letter: Letter
    steps: int
    ops: int


@attrs.frozen
class Broken:
    """An invariant that does not hold.

    Attributes:
        invariant: its name.
        what: what happened, in a sentence.
        path: the events that lead there from ``submit``, the fewest that do; the last one breaks it.
        policy: the policy under which it happened.
    """

    invariant: Invariant
    what: str
    path: tuple[Happened, ...]
    policy: Policy

    def __str__(self) -> str:
        return f"{self.invariant} is broken: {self.what}"


@attrs.frozen
class Proof:
    """What was explored, and what broke; of each invariant the shortest way to break it.

    Attributes:
        table: the name of the table.
        policies: under how many policies it was explored.
        situations, events: how many situations there are, and how many events were tried in them.
        proved: the invariants that hold in all of them.
        broken: those that do not.
    """

    table: str
    policies: int
    situations: int
    events: int
    proved: tuple[Invariant, ...]
    broken: tuple[Broken, ...]


def safe_policies(base: Policy = DEFAULT_POLICY) -> tuple[Policy, ...]:
    """`base` with every choice of the policies that rows and reports depend on, but for the unsafe one."""
    undrained = [choice for choice in OnUndrained if choice is not OnUndrained.RELEASE]
    return tuple(
        attrs.evolve(base, abort_after_handoff=after, on_undrained=choice, report=report)
        for after, choice, report in product(AbortAfterHandoff, undrained, ReportAt)
    )


def verify_one(table: Table, policies: Iterable[Policy] | None = None) -> Proof:
    """Explore one request under `table`, with each of `policies` (:func:`safe_policies` by default)."""
    chosen = safe_policies() if policies is None else tuple(policies)
    shortest: dict[Invariant, Broken] = {}
    situations = events = 0
    for policy in chosen:
        search = _Search(Automaton(table, policy))
        for broken in search.run():
            known = shortest.get(broken.invariant)
            if known is None or len(broken.path) < len(known.path):
                shortest[broken.invariant] = broken
        situations += len(search.came)
        events += search.events
    return Proof(
        table=table.name,
        policies=len(chosen),
        situations=situations,
        events=events,
        proved=tuple(invariant for invariant in ONE if invariant not in shortest),
        broken=tuple(shortest[invariant] for invariant in ONE if invariant in shortest),
    )


_START: Final = Truth()


class _Search:
    """A breadth-first walk of one automaton."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.events = 0
        #: How each situation was first reached: from which, by what.
        self.came: dict[Situation, tuple[Situation, Happened] | None] = {(0, _START): None}
        self._found: set[Invariant] = set()

    def run(self) -> Iterator[Broken]:
        """Whatever breaks, each invariant once."""
        yield from self._first(across_reasons(self.automaton), (0, _START), None)
        front = deque(self.came)
        live: dict[int, list[tuple[Letter, Cell]]] = {}  # of each node, what does something there
        while front:
            here = front.popleft()
            node, truth = self.automaton.nodes[here[0]], here[1]
            if node.index not in live:
                live[node.index] = []
                for letter, cell in zip(LETTERS, node.cells, strict=True):
                    if cell is None:
                        continue
                    if _does_something(node, cell):
                        live[node.index].append((letter, cell))
                        continue
                    # Nothing comes of it, whatever the truth is: to judge it once is enough.
                    self.events += 1
                    step = Step(self.automaton, node, letter, cell, truth, truth)
                    yield from self._first(judge(step), here, Happened(letter, *truth[:2]))
            for letter, cell in live[node.index]:
                for steps, ops in _counts(letter, cell, truth):
                    after = _after(letter, cell, truth, steps, ops)
                    self.events += 1
                    step = Step(self.automaton, node, letter, cell, truth, after)
                    happened = Happened(letter, steps, ops)
                    yield from self._first(judge(step), here, happened)
                    assert cell.to is not None
                    there = (cell.to.index, after)
                    if there not in self.came:
                        self.came[there] = (here, happened)
                        front.append(there)

    def _first(
        self, complaints: Iterable[tuple[Invariant, str]], here: Situation, last: Happened | None
    ) -> Iterator[Broken]:
        for invariant, what in complaints:
            if invariant not in self._found:
                self._found.add(invariant)
                path = (*self._way(here), *(() if last is None else (last,)))
                yield Broken(invariant, what, path, self.automaton.policy)

    def _way(self, situation: Situation) -> list[Happened]:
        way: list[Happened] = []
        came = self.came[situation]
        while came is not None:
            before, happened = came
            way.append(happened)
            came = self.came[before]
        return way[::-1]


def _does_something(node: Node, cell: Cell) -> bool:
    if cell.to is None:  # late, illegal
        return False
    return cell.to is not node or bool(cell.effects or (cell.row and cell.row.claims))


def _counts(letter: Letter, cell: Cell, truth: Truth) -> Iterator[tuple[int, int]]:
    """How many passes and ops can be outstanding after the letter; nothing where it cannot happen."""
    steps, ops = truth.steps, truth.ops
    claims = () if cell.row is None else cell.row.claims
    if Does.DROP_STEP in claims:
        for left in _left(letter.after, steps, one_by_one=True):
            yield left, ops
    elif Does.DROP_OP in claims:
        for left in _left(letter.after, ops, one_by_one=False):
            yield steps, left
    elif Does.TAKE_STEP in claims:
        yield min(steps + 1, TWO_OR_MORE), ops
    elif Does.TAKE_OP in claims:
        yield steps, min(ops + 1, TWO_OR_MORE)
    elif Does.TAKE_OP_UNLESS_OPEN in claims:
        yield steps, ops or 1
    elif Does.START_OVER in claims:
        yield 0, 0  # an attempt that is busy drains on its own
    else:
        yield steps, ops


def _left(after: After | None, held: int, *, one_by_one: bool) -> tuple[int, ...]:
    """What may be left of `held`: passes end one by one, and an op that is not named means all ops."""
    if after is MORE:
        return (1, TWO_OR_MORE) if held == TWO_OR_MORE else ()
    if held == 1 or (held and not one_by_one):
        return (0,)
    return ()


def _after(letter: Letter, cell: Cell, truth: Truth, steps: int, ops: int) -> Truth:
    claims = () if cell.row is None else cell.row.claims
    pages, reports, handoff = truth.pages, truth.reports, truth.handoff
    cancelled = truth.cancelled
    if Does.TAKE_PAGES in claims:
        pages = HELD
    if Does.TAKE_OP_UNLESS_OPEN in claims:
        handoff = HANDING
    elif handoff == HANDING and letter.event is Event.TRANSFER_SUCCEEDED and not ops:
        handoff = DELIVERED
    for effect in cell.effects:
        word = effect.kind.value
        if word in ("release_kv", "quarantine_kv"):
            pages = GONE
        elif word == "report":
            reports = min(reports + 1, 2)
        else:
            cancelled = True
    if Does.START_OVER in claims:
        pages, cancelled, handoff = NONE, False, NOT_YET
    return Truth(steps, ops, pages, reports, cancelled, handoff)
