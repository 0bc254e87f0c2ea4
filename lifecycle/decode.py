"""The declared table of the decode leg: the pages are the destination of the peer's writes (contract section 10).

The same six states, claims, events and reasons as the prefill leg (:mod:`lifecycle.prefill`, which is to be
read first), in another order. Destination pages are allocated first, and at once lent to the peer, which writes
the KV cache into them: ``admit`` leads to ``transferring``, with the op claim ``kv`` taken. When everything has
arrived, the request computes: ``prefilling`` reads as *computing* here.

What differs in spirit: a late write of the peer into pages that were given away is the worst fault that this
leg knows. It is silent, and it lands in another user's answer. So ``kv`` ends by success, by the peer's proof
that it has drained, or in quarantine, and by nothing else.

Where the contract leaves room, this table reads it so: once everything has arrived there is nothing to cancel,
so a request that is cut short while it computes tells the peer nothing, and a failure of the hand-off is late.
An abort while computing is always an abort; the policy ``abort_after_handoff`` speaks of the sending leg. A
``complete`` that is recorded before everything arrived ends the request when it has arrived.
"""

from __future__ import annotations

from .prefill import (
    CANCEL,
    COMPLETIONS,
    COMPUTING_ROWS,
    CUT_SHORT,
    DRAINING_ROWS,
    NEW_WORK,
    NEWS,
    RELEASE,
    REPORT,
    STATES,
)
from .spec import DRAIN, FINISH, ILLEGAL, LATE, STAY, Does, Offers, Row, Table, When
from .vocabulary import Event, State

Q, P, T = State.QUEUED, State.PREFILLING, State.TRANSFERRING
G, A, D = State.GRAMMAR_FAILED, State.ABORTED, State.DONE
E = Event

# fmt: off
QUEUED_ROWS = (
    Row(Q, E.ADMIT, T, claims=(Does.TAKE_PAGES, Does.TAKE_OP_UNLESS_OPEN),
        why="destination pages were allocated; the peer may write into them from now on"),
    Row(Q, (*CUT_SHORT, E.TRANSFER_FAILED), DRAIN, offers=Offers.ITS_OWN, effects=(CANCEL, REPORT),
        why="it has no pages: it ends at once, and the peer does not wait for it"),
    Row(Q, NEWS, STAY,
        why="nothing is decided by this"),
    Row(Q, COMPLETIONS, LATE,
        why="it has no step and no op outstanding"),
    Row(Q, (E.FORWARD_LAUNCHED, E.TRANSFER_POSTED, E.COMPLETE, E.PREEMPT, E.DRAIN_TIMEOUT), ILLEGAL,
        why="it has no pages to work on"),
)

RECEIVING_ROWS = (
    Row(T, E.TRANSFER_SUCCEEDED, STAY, when=When(ops=True), claims=(Does.DROP_OP,),
        why="that part has arrived; others are outstanding"),
    Row(T, E.TRANSFER_SUCCEEDED, P, when=When(ops=False, recorded=False), claims=(Does.DROP_OP,),
        why="length, layers, ranks and metadata have arrived"),
    Row(T, E.TRANSFER_SUCCEEDED, FINISH, when=When(ops=False, recorded=True), claims=(Does.DROP_OP,),
        effects=(RELEASE, REPORT),
        why="everything has arrived, and the answer had ended before"),
    Row(T, E.TRANSFER_DRAINED, DRAIN, claims=(Does.DROP_OP,),
        offers=Offers.TRANSFER_FAILED, effects=(CANCEL, RELEASE, REPORT),
        why="what was not proven delivered was not delivered"),
    Row(T, (*CUT_SHORT, E.TRANSFER_FAILED), DRAIN, offers=Offers.ITS_OWN, effects=(CANCEL, RELEASE, REPORT),
        why="decided; the peer may still write, so the pages wait for its drain"),
    Row(T, E.COMPLETE, STAY, offers=Offers.ITS_OWN,
        why="recorded, and used when everything has arrived"),
    Row(T, NEWS, STAY,
        why="nothing is decided by this"),
    Row(T, E.FORWARD_FINISHED, STAY, claims=(Does.DROP_STEP,),
        why="the pass touches the pages no more"),
    Row(T, (*NEW_WORK, E.DRAIN_TIMEOUT), ILLEGAL,
        why="its pages are still being written by the peer"),
)

ANSWERING_ROWS = (
    *COMPUTING_ROWS,
    Row(P, E.TRANSFER_SUCCEEDED, FINISH, claims=(Does.DROP_OP,), effects=(RELEASE, REPORT),
        why="that op is delivered and drained"),
    Row(P, E.TRANSFER_DRAINED, FINISH, when=When(recorded=True), claims=(Does.DROP_OP,), effects=(RELEASE, REPORT),
        why="the answer is complete; the op only had to end"),
    Row(P, E.TRANSFER_DRAINED, DRAIN, when=When(recorded=False), claims=(Does.DROP_OP,),
        offers=Offers.TRANSFER_FAILED, effects=(RELEASE, REPORT),
        why="what was not proven delivered was not delivered"),
    Row(P, E.TRANSFER_FAILED, DRAIN, when=When(ops=True), offers=Offers.ITS_OWN, effects=(RELEASE, REPORT),
        why="a verdict: it says what is reported, not that the hardware stopped"),
    Row(P, E.TRANSFER_FAILED, LATE, when=When(ops=False),
        why="the hand-off has succeeded already"),
    Row(P, E.COMPLETE, FINISH, offers=Offers.ITS_OWN, effects=(RELEASE, REPORT),
        why="the answer ended; pages go back once nothing touches them"),
    Row(P, CUT_SHORT, DRAIN, offers=Offers.ITS_OWN, effects=(RELEASE, REPORT),
        why="decided; the hand-off has succeeded, so there is nothing to cancel"),
    Row(P, (E.ADMIT, E.DRAIN_TIMEOUT), ILLEGAL,
        why="it has its pages, and is not draining"),
)

OTHER_ROWS = (
    *(row for row in DRAINING_ROWS if E.PREFILL_FINISHED not in row.events and E.SUBMIT not in row.events),
    Row((G, A), NEW_WORK, ILLEGAL,
        why="no new work for a decided request"),
    Row(D, (*COMPLETIONS, *CUT_SHORT, E.TRANSFER_FAILED, E.COMPLETE, *NEWS, E.DRAIN_TIMEOUT), LATE,
        why="the reason is committed and the pages are gone"),
    Row(D, NEW_WORK, ILLEGAL,
        why="no new work for a request that has ended"),
    Row((Q, T, P, G, A, D), E.SUBMIT, ILLEGAL,
        why="a request of that rid is known"),
    Row((Q, T, P, G, A, D), E.PREFILL_FINISHED, ILLEGAL,
        why="this leg computes no prompt"),
)
# fmt: on

DECODE = Table(
    name="decode",
    states=STATES,
    rows=(*QUEUED_ROWS, *RECEIVING_ROWS, *ANSWERING_ROWS, *OTHER_ROWS),
)
