"""Which invariant an illegal event breaks: what a log is grouped by, and what a divergence is called.

An illegal event is a cell of the table, (state, event); the invariant is the promise of contract section 8 that
the scheduler broke by sending it. Several cells break one promise, so both are shown.
"""

from __future__ import annotations

from typing import Final

from .vocabulary import Event, Invariant, State

NEW_WORK: Final = frozenset(
    {Event.ADMIT, Event.FORWARD_LAUNCHED, Event.TRANSFER_POSTED, Event.PREEMPT}
)
"""The events that no decided request may see (contract section 5)."""

_ENDED: Final = frozenset({State.GRAMMAR_FAILED, State.ABORTED, State.DONE})


def broken_by(state: str | None, event: str, *, decided: bool | None = None) -> Invariant:
    """The invariant that an illegal `event` breaks for a request in `state`.

    Args:
        state: the state's name; None for a request that nobody submitted.
        event: the event's word.
        decided: whether a reason was recorded; by default what the state says of it.

    >>> str(broken_by("done", "forward_launched"))
    'no_new_work_after_decision'
    >>> str(broken_by("prefilling", "admit"))  # pages on top of pages
    'claim_count'
    """
    if event == Event.SUBMIT:
        return Invariant.EXACT_TARGET  # two requests answer to one name
    ended = state in _ENDED if decided is None else decided
    if event in NEW_WORK and ended:
        return Invariant.NO_NEW_WORK_AFTER_DECISION
    if event == Event.PREFILL_FINISHED and state == State.DONE:
        return Invariant.NO_NEW_WORK_AFTER_DECISION
    return Invariant.CLAIM_COUNT
