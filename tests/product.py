"""Concrete events for every configuration and letter, found by walking real requests breadth first."""

from __future__ import annotations

import contextlib
from collections import deque

from lifecycle import IllegalEvent, RequestLifecycle
from lifecycle.compile import AGAIN, LAST, LETTERS, MISS, MORE
from lifecycle.reasons import is_earlier
from lifecycle.vocabulary import ABORT_REASONS, Event

SOURCE_OF = {reason: str(source) for source, reason in ABORT_REASONS.items()}


def concrete(letter, request):
    """(event, details) that are `letter` to `request` as it stands; None if they cannot be."""
    event, details = letter.event, {}
    if event in (Event.FORWARD_LAUNCHED, Event.FORWARD_FINISHED):
        held, name, ghost = request.steps, "step", 999
    else:
        held, name, ghost = request.ops, "op", "ghost"
    if letter.after is MISS:
        details[name] = ghost
    elif letter.after is AGAIN:
        if not held:
            return None
        details[name] = held[-1]
    elif letter.after is MORE:
        if len(held) < 2:
            return None
        details[name] = held[0]
    elif letter.after is LAST:
        if len(held) != 1:
            return None
        details[name] = held[0]
    elif event is Event.TRANSFER_POSTED:
        details["op"] = next(op for op in ("a", "b", "c") if op not in held)
    elif event is Event.ABORT:
        details["source"] = SOURCE_OF[letter.offers]
    elif event is Event.COMPLETE:
        details["reason"] = str(letter.offers)
        recorded, at = request.reason, request.details.position
        position = 8 if at is None and not letter.earlier else (5 if at is None else at)
        position += 0 if at is None else -1 if letter.earlier else 1
        if recorded is not None and at is None and not letter.earlier:
            position = None
        elif position < 0:
            return None
        if position is not None:
            details["position"] = position
        early = recorded is not None and is_earlier(letter.offers, position, recorded, at)
        if early != letter.earlier:
            return None
    return event, details


def walk(automaton):
    """Every situation that a request can be in: its configuration, with one or several claims of a kind.

    Yields the events that lead there, shortest first, and what can be tried: (letter, event, details).
    """
    seen, front = set(), deque([()])
    while front:
        path = front.popleft()
        request = follow(automaton, path)
        situation = (
            request._node.index,
            min(len(request.steps), 2),
            min(len(request.ops), 2),
            request.details.position,
        )
        if situation in seen or request.attempt > 1:
            continue
        seen.add(situation)
        tries = [
            (letter, *step) for letter in LETTERS if (step := concrete(letter, request)) is not None
        ]
        yield path, tries
        for _, event, details in tries:
            probe = follow(automaton, path)
            with contextlib.suppress(IllegalEvent):
                probe.fire(event, **details)
                if (probe.details.position or 5) in (
                    4,
                    5,
                    8,
                    9,
                ):  # enough to tell earlier from later
                    front.append((*path, (event, details)))


def follow(automaton, path):
    request = RequestLifecycle("r", automaton)
    for event, details in path:
        request.fire(event, **details)
    return request
