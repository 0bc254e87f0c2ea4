"""Hypothesis strategies for requests, events, policies and whole traces.

:func:`legal_traces` follows the table: each event is one that its request can take at that point. :func:`traces`
strays from it as often as not: late, duplicate, early and illegal events, unknown requests, lives and attempts by
number. Both shrink towards few lines, the first request and no details.

A trace that strays at random seldom gets anywhere; that is why both draw from what is legal, and why what a
request can take next is asked of the library's table while a trace is drawn.
"""

from __future__ import annotations

import contextlib
from itertools import count, pairwise
from typing import Any

from hypothesis import strategies as st

from ..consensus import Verdict
from ..errors import EventError
from ..policy import (
    AbortAfterHandoff,
    LatePolicy,
    OnUndrained,
    Policy,
    PublishAborted,
    ReportAt,
)
from ..reasons import TIERS, Precedence
from ..table import RequestTable
from ..vocabulary import AbortSource, Event, FinishReason, GrammarCause

Line = dict[str, Any]

RIDS = ("a", "b")
OPS = ("kv", "x", "y")


def precedences() -> st.SearchStrategy[Precedence]:
    """The contract's tiers, strict total orders, and orders of a few tiers."""
    orders = st.permutations(list(FinishReason))
    total = orders.map(lambda order: Precedence(tuple((reason,) for reason in order)))
    return st.one_of(
        st.just(TIERS), total, st.builds(_cut, orders, st.sets(st.integers(1, 9), max_size=3))
    )


def _cut(order: list[FinishReason], cuts: set[int]) -> Precedence:
    edges = [0, *sorted(cuts), len(order)]
    return Precedence(tuple(tuple(order[start:stop]) for start, stop in pairwise(edges)))


def policies(late: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[Policy]:
    """Every combination of choices, with any precedence. `late` narrows that choice."""
    return st.builds(
        Policy,
        precedence=precedences(),
        abort_after_handoff=st.sampled_from(AbortAfterHandoff),
        on_undrained=st.sampled_from(OnUndrained),
        report=st.sampled_from(ReportAt),
        publish_aborted=st.sampled_from(PublishAborted),
        late=st.sampled_from(LatePolicy) if late is None else late,
    )


Answer = tuple[str, Verdict, bool]
"""What a rank says of one request: its rid, the verdict, and whether this rank's share has drained."""


def rank_schedules(
    ranks: tuple[int, ...] = (0, 1, 2), rids: tuple[str, ...] = RIDS, *, max_rounds: int = 6
) -> st.SearchStrategy[list[dict[int, list[Answer]]]]:
    """Rounds of polls: for each rank its queue, in its own order, with an answer for each request.

    A rank may lag (a request is not in its queue), and may disagree. They shrink to one round of empty queues.
    """
    answer = st.tuples(
        st.sampled_from([Verdict.PENDING, Verdict.FAILED, Verdict.SUCCEEDED]), st.booleans()
    )
    queue = st.lists(st.sampled_from(rids), unique=True, max_size=len(rids)).flatmap(
        lambda order: st.tuples(*(st.tuples(st.just(rid), answer) for rid in order))
    )
    said = queue.map(lambda each: [(rid, verdict, drained) for rid, (verdict, drained) in each])
    rounds = st.fixed_dictionaries(dict.fromkeys(ranks, said))
    return st.lists(rounds, min_size=1, max_size=max_rounds)


def events(rids: tuple[str, ...] = RIDS) -> st.SearchStrategy[Line]:
    """One line of a trace: any event, with whatever details it can have."""
    return st.one_of(*(_event(event, rids) for event in Event))


def legal_traces(
    rids: tuple[str, ...] = RIDS,
    *,
    policy: st.SearchStrategy[Policy] | None = None,
    max_size: int = 40,
) -> st.SearchStrategy[list[Line]]:
    """A policy line, then events each of which its request can take when it comes."""
    return _traces(_followed(rids), policy, max_size)


def traces(
    rids: tuple[str, ...] = RIDS,
    *,
    policy: st.SearchStrategy[Policy] | None = None,
    max_size: int = 40,
) -> st.SearchStrategy[list[Line]]:
    """A policy line, then events of which some are late, duplicate, early, illegal or for nobody."""
    followed = _followed(rids)
    return _traces(st.one_of(followed, followed, events(rids)), policy, max_size)


def _traces(
    steps: st.SearchStrategy[Line], policy: st.SearchStrategy[Policy] | None, max_size: int
) -> st.SearchStrategy[list[Line]]:
    chosen = policies() if policy is None else policy
    # Lists in a list: Hypothesis' own lists are short, and these shrink as well as they do.
    parts = st.lists(st.lists(steps, min_size=1, max_size=10), min_size=1, max_size=max_size // 4)
    flat = parts.map(lambda each: [step for part in each for step in part][:max_size])
    return st.builds(_told, chosen, flat)


def _followed(rids: tuple[str, ...]) -> st.SearchStrategy[Line]:
    """A line to be: which of the events that the request can take, and details for whichever it is."""
    details = {name: values for each in _NEEDED.values() for name, values in each.items()}
    optional = {name: values for each in _OPTIONAL.values() for name, values in each.items()}
    bag = st.fixed_dictionaries(details, optional=optional)
    return st.fixed_dictionaries(
        {"rid": st.sampled_from(rids), "pick": st.integers(0, 17), "details": bag}
    )


def _told(policy: Policy, steps: list[Line]) -> list[Line]:
    """The trace: what is to be followed is asked of a table as the trace grows."""
    table = RequestTable(policy, keep_done=None)
    lines: list[Line] = [{"policy": policy.to_mapping()}]
    for step in steps:
        line = _resolved(table, step) if "pick" in step else step
        lines.append(line)
        details = {name: value for name, value in line.items() if name not in ("event", "rid")}
        with contextlib.suppress(EventError):
            if line["event"] == "submit":
                table.submit(line["rid"])
            else:
                table.fire(line["rid"], line["event"], **details)
    return lines


def _resolved(table: RequestTable, step: Line) -> Line:
    rid = step["rid"]
    if rid not in table or table[rid].over:
        return {"event": "submit", "rid": rid}
    legal = table[rid].legal_events()
    event = Event(legal[step["pick"] % len(legal)])
    takes = {**_NEEDED.get(event, {}), **_OPTIONAL.get(event, {})}
    details = {name: value for name, value in step["details"].items() if name in takes}
    line = {"event": str(event), "rid": rid, **details}
    _aim(table, line, step["pick"])
    return line


def _aim(table: RequestTable, line: Line, pick: int) -> None:
    """Let a completion name what is outstanding, and new work what is not."""
    request, event = table[line["rid"]], line["event"]
    steps = [*request.steps, *(step for old in request.draining for step in old.steps)]
    ops = [*request.ops, *(op for old in request.draining for op in old.ops)]
    if "step" in line:
        if event == Event.FORWARD_FINISHED:
            line["step"] = steps[pick % len(steps)]
        elif line["step"] in steps:
            del line["step"]
    if event == Event.TRANSFER_POSTED:
        if line.get("op", "kv") in request.ops:
            line["op"] = next(
                name for number in count() if (name := f"c{number}") not in request.ops
            )
    elif "op" in line:
        if ops:
            line["op"] = ops[pick % len(ops)]
        else:
            del line["op"]


# The details that events take.

_STEPS: dict[str, st.SearchStrategy[Any]] = {"step": st.integers(1, 4)}
_OP: dict[str, st.SearchStrategy[Any]] = {"op": st.sampled_from(OPS)}
_SAID: dict[str, st.SearchStrategy[Any]] = {
    "message": st.sampled_from(["", "because"]),
    "status": st.sampled_from([418, 503]),
}
_NEEDED: dict[Event, dict[str, st.SearchStrategy[Any]]] = {
    Event.ADMIT: {"pages": st.integers(0, 4)},
    Event.COMPLETE: {"reason": st.sampled_from(["stop", "length"])},
    Event.ABORT: {"source": st.sampled_from([str(source) for source in AbortSource])},
    Event.GRAMMAR_FAILED: {"cause": st.sampled_from([str(cause) for cause in GrammarCause])},
}
_OPTIONAL: dict[Event, dict[str, st.SearchStrategy[Any]]] = {
    Event.FORWARD_LAUNCHED: _STEPS,
    Event.FORWARD_FINISHED: _STEPS,
    Event.TRANSFER_POSTED: _OP,
    Event.TRANSFER_SUCCEEDED: _OP,
    Event.TRANSFER_FAILED: {**_OP, **_SAID},
    Event.TRANSFER_DRAINED: _OP,
    Event.COMPLETE: {"position": st.integers(0, 3)},
    Event.ABORT: _SAID,
    Event.GRAMMAR_FAILED: _SAID,
    Event.PEER_LOST: _SAID,
    Event.ERROR: _SAID,
}


def _event(event: Event, rids: tuple[str, ...]) -> st.SearchStrategy[Line]:
    addressed: st.SearchStrategy[Line] = st.just({})
    if event is not Event.SUBMIT:
        named = {"attempt": st.integers(0, 2), "incarnation": st.integers(1, 2)}
        addressed = st.one_of(addressed, st.fixed_dictionaries({}, optional=named))
    return st.builds(
        lambda rid, details, where: {"event": str(event), "rid": rid, **details, **where},
        st.sampled_from(rids),
        st.fixed_dictionaries(_NEEDED.get(event, {}), optional=_OPTIONAL.get(event, {})),
        addressed,
    )
