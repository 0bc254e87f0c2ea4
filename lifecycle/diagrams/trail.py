"""The way that a trace took, drawn into a picture; and where it went wrong.

    drawn = follow(picture(PREFILL), [{"event": "submit", "rid": "r1"}, {"event": "abort", "rid": "r1"}])

A replay runs the trace through the library (:mod:`lifecycle.replay`), and each event of one request is looked
up in the picture: the arrow that it took is marked with the line of the trace. An event that moved the request
by a way that the view leaves out gets an arrow of its own. Late and illegal events, and events that broke an
invariant, get an arrow that says so, at the place where the request stood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from ..compile import Configuration
from ..errors import TraceError
from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..replay import Replay, Seen
from ..spec import Table
from ..trace import TraceEvent, TracePolicy, parse
from ..vocabulary import Event, Kind
from .picture import Edge, Look, Picture, PictureError, View
from .views import LAST_CLAIM, claims_key, full_key, picture

Line = TraceEvent | TracePolicy


@attrs.frozen
class Hop:
    """One event of the request: where it stood before and after, and what was wrong with it."""

    line: int
    event: str
    before: Configuration | None  # None before its submit
    after: Configuration | None
    outcome: str
    wrong: tuple[str, ...] = ()


def trail(
    trace: Iterable[Line | Mapping[str, Any]], *, table: Table = PREFILL, rid: str | None = None
) -> tuple[tuple[Hop, ...], Policy]:
    """What one request of a trace did, event by event, and the policy of the trace.

    Args:
        trace: lines as :func:`lifecycle.trace.read` gives them, or plain objects.
        table: the declared table.
        rid: the request; may be left out where the trace speaks of one alone.

    Raises:
        TraceError: a line is not well formed.
        PictureError: the trace speaks of several requests and none is named, or not of the one that is named.
    """
    lines = list(_checked(trace))
    rids = list(dict.fromkeys(line.rid for line in lines if isinstance(line, TraceEvent)))
    if rid is None:
        if len(rids) != 1:
            some = ", ".join(rids[:8]) + (", ..." if len(rids) > 8 else "")
            msg = f"the trace speaks of {len(rids)} requests ({some}); name the one to follow"
            raise PictureError(msg)
        rid = rids[0]
    elif rid not in rids:
        msg = f"the trace does not speak of request {rid!r}"
        raise PictureError(msg)
    hops: list[Hop] = []
    stood: list[Configuration | None] = [None]

    def watch(seen: Seen) -> None:
        if seen.event.rid != rid:
            return
        before = None if seen.event.event is Event.SUBMIT and seen.outcome == "move" else stood[0]
        request = seen.request
        after = before if request is None else request._node.configuration
        wrong = (f"{seen.outcome}: {seen.event.event}",) if seen.outcome == "illegal" else ()
        hops.append(Hop(seen.event.line, str(seen.event.event), before, after, seen.outcome, wrong))
        if seen.outcome != "illegal":
            stood[0] = after

    run = Replay(table=table, watch=watch)
    for line in lines:
        broken = len(run.violations)
        told = len(hops)
        run.feed(line)
        if len(run.violations) > broken and len(hops) > told:
            names = [each["invariant"] for each in list(run.violations)[broken:]]
            hops[-1] = attrs.evolve(
                hops[-1], wrong=(*hops[-1].wrong, *(f"breaks {n}" for n in names))
            )
    return tuple(hops), run.policy


def follow(
    drawn: Picture,
    trace: Iterable[Line | Mapping[str, Any]],
    *,
    table: Table = PREFILL,
    rid: str | None = None,
) -> Picture:
    """`drawn`, with the way that one request of `trace` took. `table` is what `drawn` is a picture of.

    Raises:
        TraceError: a line is not well formed.
        PictureError: the view has no way to follow (``reasons``), or :func:`trail` refuses.
    """
    if drawn.view not in _KEYS:
        msg = f"a trace cannot be followed through the view {drawn.view}; take {', '.join(_KEYS)}"
        raise PictureError(msg)
    hops, _ = trail(trace, table=table, rid=rid)
    return mark(drawn, hops)


def highlighted(
    table: Table, view: str, trace: Iterable[Line | Mapping[str, Any]], *, rid: str | None = None
) -> Picture:
    """The picture of `table` under `view` and the policy of the trace, with the way that a request took."""
    lines = list(_checked(trace))
    policy = next((line.policy for line in lines if isinstance(line, TracePolicy)), DEFAULT_POLICY)
    return follow(picture(table, view, policy), lines, table=table, rid=rid)


def mark(drawn: Picture, hops: Iterable[Hop]) -> Picture:
    """`drawn` with arrows and boxes marked."""
    key_of = _KEYS[drawn.view]
    edges = list(drawn.edges)
    visited: set[str] = set()
    for hop in hops:
        if hop.after is None:  # nothing was submitted yet
            continue
        there = key_of(hop.after)
        here = there if hop.before is None else key_of(hop.before)
        visited |= {here, there}
        if hop.before is None and not hop.wrong:
            continue  # its submit
        note = f"line {hop.line}"
        if hop.wrong or hop.outcome == Kind.LATE:
            look = Look.WRONG if hop.wrong else Look.LATE
            label = hop.event if hop.outcome != Kind.ILLEGAL else ""
            extra = Edge(here, there, (label,) if label else (), look, marks=(note,), wrong=hop.wrong,
                         aside=here == there)  # fmt: skip
            edges.append(extra)
        elif here != there:
            place = _taken(drawn, edges, here, there, hop.event)
            if place is None:
                look = drawn.node(there).look
                edges.append(Edge(here, there, (hop.event,), look, marks=(note,)))
            else:
                edges[place] = attrs.evolve(edges[place], marks=(*edges[place].marks, note))
    nodes = tuple(attrs.evolve(node, marked=node.key in visited) for node in drawn.nodes)
    return attrs.evolve(drawn, nodes=nodes, edges=tuple(edges))


def _taken(drawn: Picture, edges: list[Edge], here: str, there: str, event: str) -> int | None:
    """The arrow that an event took; frames stand for the boxes in them."""
    group = {node.key: node.group for node in drawn.nodes}
    for place, edge in enumerate(edges):
        if edge.start not in (here, group[here]) or edge.end not in (there, group[there]):
            continue
        words = [label.partition("(")[0] for label in edge.labels]
        if event in words or LAST_CLAIM in words:
            return place
    return None


def _checked(trace: Iterable[Line | Mapping[str, Any]]) -> Iterable[Line]:
    import json

    for number, line in enumerate(trace, 1):
        if isinstance(line, (TraceEvent, TracePolicy)):
            yield line
            continue
        try:
            yield parse(json.dumps(line), number)
        except TraceError as error:
            raise TraceError(error.message, line=number) from None


def _state(at: Configuration) -> str:
    return str(at.state)


_KEYS: dict[View, Callable[[Configuration], str]] = {
    View.STATES: _state,
    View.CLAIMS: claims_key,
    View.FULL: full_key,
}
