"""A counterexample in the words of a trace: events with steps, ops and sources that a replay can take.

>>> from lifecycle import PREFILL, Policy
>>> from lifecycle.verify import verify_one
>>> broken = verify_one(PREFILL, [Policy(on_undrained="release")]).broken[0]
>>> [line["event"] for line in trace_of(broken) if "event" in line]
['submit', 'admit', 'forward_launched', 'grammar_failed', 'drain_timeout']
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..compile import AGAIN, LAST, MISS, STEP_EVENTS
from ..policy import DEFAULT_POLICY, Policy
from ..vocabulary import ABORT_REASONS, DEFAULT_OP, Event
from .one import Broken, Happened

SOURCE_OF = {reason: str(source) for source, reason in ABORT_REASONS.items()}


class _TooFew(Exception):  # it says that a path needs one more claim of a kind
    def __init__(self, kind: str) -> None:
        self.kind = kind


def trace_of(broken: Broken, rid: str = "r1") -> list[dict[str, Any]]:
    """The lines of a trace that breaks it: the policy if it is not the default, then the events."""
    more = {"step": 0, "op": 0}
    while True:
        try:
            events = _events(broken.path, rid, more)
        except _TooFew as few:  # "two or more" has to be three here
            more[few.kind] += 1
            continue
        return [*policy_line(broken.policy), {"event": "submit", "rid": rid}, *events]


def policy_line(policy: Policy) -> list[dict[str, Any]]:
    """The first line of a trace under `policy`: none where it is the default."""
    usual = DEFAULT_POLICY.to_mapping()
    other = {name: choice for name, choice in policy.to_mapping().items() if choice != usual[name]}
    return [{"policy": other}] if other else []


def _events(path: Iterable[Happened], rid: str, more: dict[str, int]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    held: dict[str, list[Any]] = {"step": [], "op": []}
    taken = {"step": 0, "op": 0}
    position = 8

    def take(kind: str, event: Event) -> None:
        taken[kind] += 1
        name = taken[kind] if kind == "step" else f"chunk{taken[kind]}"
        held[kind].append(name)
        lines.append({"event": str(event), "rid": rid, kind: name})

    for happened in path:
        letter = happened.letter
        event, after = letter.event, letter.after
        kind = "step" if event in STEP_EVENTS else "op"
        if event in (Event.FORWARD_LAUNCHED, Event.TRANSFER_POSTED) and after is None:
            extra = 0 if taken[kind] else more[kind]
            for _ in range(1 + extra):
                take(kind, event)
            continue
        line: dict[str, Any] = {"event": str(event), "rid": rid}
        if after is MISS:
            line[kind] = 999 if kind == "step" else "ghost"
        elif after is AGAIN:
            line[kind] = held[kind][-1]
        elif after is not None:
            left = happened.steps if kind == "step" else happened.ops
            if after is LAST and len(held[kind]) > 1 and kind == "op":
                held[kind].clear()  # an op that is not named means all of them
            else:
                if len(held[kind]) - 1 < left:
                    raise _TooFew(kind)
                line[kind] = held[kind].pop(0)
        elif event is Event.ABORT and letter.offers is not None:
            line["source"] = SOURCE_OF[letter.offers]
        elif event is Event.GRAMMAR_FAILED:
            line["cause"] = "rejected"
        elif event is Event.ADMIT:
            line["pages"] = 1
        elif event is Event.COMPLETE:
            position += -1 if letter.earlier else 1
            line |= {"reason": str(letter.offers), "position": position}
        if event is Event.PREEMPT:
            held = {"step": [], "op": []}
        if happened.ops and not held["op"] and event is not Event.PREEMPT:
            held["op"].append(DEFAULT_OP)  # a hand-off takes the op `kv`
        lines.append(line)
    return lines
