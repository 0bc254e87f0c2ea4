"""An explicit-state checker of the standard library alone: breadth first, with properties of three kinds.

- *always*: a property of every state. What breaks it is found by a shortest path.
- *sometimes*: a witness, a state that must be reachable. A model in which nothing good can happen proves nothing.
- *eventually*: a goal that every fair run reaches. A run that never does stays, from some moment on, in one
  strongly connected component of the states that are not there yet. It is fair if no *deadline* that is enabled
  throughout is left out for ever. So a component is refused if, of some state of it, a deadline that is due is not
  enabled, or can be taken without leaving the component; a single state too, since a run may stand still.

A model gives its states up to symmetry: :meth:`Model.successors` returns canonical states. The judgement carries
over to the states behind them: where no component is refused, a run that stayed in one would have a deadline that
is due and enabled all along, and leaves whenever it is met.

Nothing is explored beyond a state that breaks something: what comes of it tells nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Protocol, TypeVar

import attrs

S = TypeVar("S", bound=Hashable)
Told = Callable[[int, float], None]


class Model(Protocol[S]):
    """What can be explored."""

    def initial(self) -> S:
        """Where it begins."""
        ...

    def successors(self, state: S) -> Iterable[S]:
        """Where it can go, each as its canonical state."""
        ...

    def broken(self, state: S) -> Iterable[str]:
        """The names of the *always* properties that this state breaks."""
        ...

    def witnessed(self, state: S) -> Iterable[str]:
        """The names of the *sometimes* properties that this state witnesses."""
        ...

    def there(self, state: S) -> bool:
        """Whether the goal of *eventually* is reached; from there on it stays reached."""
        ...

    def deadlines(self, state: S) -> Iterable[S | None]:
        """For everything that must still end: where its deadline leads, or None if that is not enabled."""
        ...


@attrs.frozen
class Explored:
    """What was found.

    Attributes:
        states, edges: distinct states, and moves between them.
        seconds: how long it took.
        paths: of each *always* property that broke, canonical states from the first to one that breaks it.
        witnesses: the *sometimes* properties that have a witness.
        stuck: a path to a state from which some fair run never reaches the goal; None where there is none.
    """

    states: int
    edges: int
    seconds: float
    paths: dict[str, tuple[object, ...]]
    witnesses: frozenset[str]
    stuck: tuple[object, ...] | None


def explore(
    model: Model[S], *, liveness: bool = True, told: Told | None = None, every: int = 2_000
) -> Explored:
    """Explore all of `model`.

    Args:
        model: what to explore.
        liveness: whether to look for fair runs that never reach the goal, which takes a second pass.
        told: called with the number of states and the seconds so far, every `every` states.
        every: see `told`.
    """
    started = time.perf_counter()
    first = model.initial()
    number: dict[S, int] = {first: 0}
    states: list[S] = [first]
    parent = [-1]
    edges: list[list[int]] = []
    paths: dict[str, tuple[object, ...]] = {}
    witnesses: set[str] = set()
    over: set[int] = set()  # where something is broken already: what comes of that tells nothing
    at = 0
    while at < len(states):
        state = states[at]
        for name in model.broken(state):
            over.add(at)
            if name not in paths:
                paths[name] = _path(states, parent, at)
        witnesses.update(model.witnessed(state))
        out: list[int] = []
        for other in () if at in over else model.successors(state):
            known = number.get(other)
            if known is None:
                known = number[other] = len(states)
                states.append(other)
                parent.append(at)
            out.append(known)
        edges.append(out)
        at += 1
        if told is not None and at % every == 0:
            told(len(states), time.perf_counter() - started)
    stuck = None
    if liveness:
        there = [at in over or model.there(state) for at, state in enumerate(states)]
        for component in _components(edges, there):
            if not _left_in_time(model, states, number, component):
                stuck = _path(states, parent, min(component))
                break
    return Explored(
        states=len(states),
        edges=sum(map(len, edges)),
        seconds=time.perf_counter() - started,
        paths=paths,
        witnesses=frozenset(witnesses),
        stuck=stuck,
    )


def _path(states: list[S], parent: list[int], at: int) -> tuple[object, ...]:
    way = []
    while at >= 0:
        way.append(states[at])
        at = parent[at]
    return tuple(way[::-1])


def _left_in_time(
    model: Model[S], states: list[S], number: dict[S, int], component: list[int]
) -> bool:
    inside = set(component)
    for at in component:
        for target in model.deadlines(states[at]):
            if target is None or number[target] in inside:
                return False
    return True


def _components(edges: list[list[int]], there: list[bool]) -> Iterator[list[int]]:
    """The strongly connected components of the states that are not there yet (Tarjan, without recursion)."""
    order: list[int] = [-1] * len(edges)
    low = [0] * len(edges)
    on_stack = bytearray(len(edges))
    stack: list[int] = []
    count = 0
    for root in range(len(edges)):
        if there[root] or order[root] >= 0:
            continue
        order[root] = low[root] = count
        count += 1
        stack.append(root)
        on_stack[root] = 1
        work = [(root, iter(edges[root]))]
        while work:
            at, out = work[-1]
            for to in out:
                if there[to]:
                    continue
                if order[to] < 0:
                    order[to] = low[to] = count
                    count += 1
                    stack.append(to)
                    on_stack[to] = 1
                    work.append((to, iter(edges[to])))
                    break
                if on_stack[to]:
                    low[at] = min(low[at], order[to])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[at])
                if low[at] == order[at]:
                    component = []
                    while True:
                        to = stack.pop()
                        on_stack[to] = 0
                        component.append(to)
                        if to == at:
                            break
                    yield component
