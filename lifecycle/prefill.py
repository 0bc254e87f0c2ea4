"""The declared table of a request's life in disaggregated prefill. Read this file first.

A scheduler of an LLM server moves a request through queues. In disaggregated prefill the prompt's KV cache is
computed here, in pages of this worker's pool, and read by a remote decode worker while the request waits in an
in-flight queue. Four things may arrive at any time and in any order: a grammar error, an abort, the result of
a forward pass, the result of a transfer. Whoever receives one has two questions to answer: may the pages go
back to the pool, and what is the client told? This table answers both, once, for every place.


The states
==========

``queued``
    The scheduler knows the request. It waits for its grammar to compile, for the hand-shake with the decode
    worker, or for pages. It has no pages, so whatever decides it here ends it here.

``prefilling``
    Pages are allocated and forward passes run. In chunked prefill, chunks that are finished may already be on
    their way, so transfers can be outstanding although the prompt is not computed.

``transferring``
    The whole prompt is computed and the last chunk was handed to the sender. The pages are still the
    request's, and lent to the transfer's ops. The request ends well when every op has succeeded.

``grammar_failed`` and ``aborted``
    *Decided but not drained.* A grammar error, or an abort, deadline or fault, has decided how the request
    ends, but a forward pass or a transfer may still touch its pages. It waits for the last one. With nothing
    outstanding the same event goes straight to ``done``.

``done``
    The reason is committed, the pages are back in the pool or in quarantine, nothing is outstanding. The only
    state without a way out.


Who owns the memory
===================

A state never says who owns memory. Claims do. ``admit`` takes the request's own claim; every launched forward
pass takes a ``step`` claim, every posted transfer an ``op`` claim; each is dropped by its own completion and by
nothing else. Pages go back when the last claim is dropped: exactly once, and never before. When a request is
decided, its own claim turns into the duty to release, and is listed until the release.

The one trap that every engine has fallen into: **a verdict is not a drain.** A poll that says *failed*, an
abort, a timeout say what will be reported. They do not say that the network card has stopped reading.
``transfer_failed`` therefore drops no claim. ``transfer_succeeded(op)`` and ``transfer_drained(op)`` do.


What wins
=========

Events *offer* reasons; the precedence of the policy decides (:mod:`lifecycle.reasons`). The rows below move
the request by the event alone and never look at a reason, except that the *name* of the draining state follows
the reason that wins: ``grammar_failed`` for a grammar error, ``aborted`` for all others. So a fault that drains
and is then outranked by a grammar error reads ``grammar_failed``; nothing else changes.


How to read the rows
====================

Each row is: states, events, where it leads; then what it does. ``DRAIN`` means *decided*: ``done`` if nothing is
outstanding, else the draining state. ``FINISH`` means: ``done`` once a reason is recorded and nothing is
outstanding, until then the same state. ``LATE`` is absorbed and counted, ``ILLEGAL`` is refused. Every pair of
state and event has a row; the library does not import if one is missing.


Where the contract leaves room, this table reads it so
======================================================

- ``forward_finished`` is legal in ``transferring``: the last pass may be seen by the host after the hand-off.
- ``transferring`` with no op outstanding means that the hand-off *has succeeded* and only a forward pass is
  left. ``length`` is recorded at that moment, unless ``complete`` recorded a reason before. From then on the
  peer is told of no cancel (it has everything), a transfer's failure is late (the hand-off is over), and an
  abort follows the policy ``abort_after_handoff``.
- A ``complete`` that is recorded while a transfer runs decides nothing yet: if that transfer drains without
  having succeeded, the hand-off failed, and the fault is what the client sees.
- A ``complete`` in ``prefilling`` needs no hand-off. If the last chunk is handed over all the same
  (``prefill_finished``), the pages are lent again, so the request becomes ``transferring`` and the recorded
  reason is used when the hand-off succeeds.
- ``prefill_finished`` for a decided request is the late result of its last pass. It starts no transfer.
- ``submit`` of a rid that lives is illegal; the table of requests (:mod:`lifecycle.table`) opens a new life for a
  rid whose former life is over.
"""

from __future__ import annotations

from .spec import (
    DRAIN,
    FINISH,
    ILLEGAL,
    LATE,
    STAY,
    Does,
    Offers,
    Pages,
    Row,
    StateSpec,
    Table,
    When,
)
from .vocabulary import EffectKind, Event, FinishReason, State

Q, P, T = State.QUEUED, State.PREFILLING, State.TRANSFERRING
G, A, D = State.GRAMMAR_FAILED, State.ABORTED, State.DONE
E = Event

CANCEL, REPORT = EffectKind.CANCEL_TRANSFER, EffectKind.REPORT
RELEASE, QUARANTINE = EffectKind.RELEASE_KV, EffectKind.QUARANTINE_KV

COMPLETIONS = (E.FORWARD_FINISHED, E.TRANSFER_SUCCEEDED, E.TRANSFER_DRAINED)
CUT_SHORT = (E.GRAMMAR_FAILED, E.ABORT, E.PEER_LOST, E.ERROR)
NEW_WORK = (E.ADMIT, E.FORWARD_LAUNCHED, E.TRANSFER_POSTED, E.PREEMPT)
NEWS = (E.TRANSFER_PENDING, E.GRAMMAR_READY)

STATES = (
    StateSpec(Q, "known; waits for grammar, bootstrap or capacity", pages=Pages.NONE),
    StateSpec(P, "pages allocated; forward passes run", pages=Pages.OWNED),
    StateSpec(T, "the whole prompt is handed to the sender", pages=Pages.OWNED),
    StateSpec(
        G,
        "a grammar error decided it; pages are still lent out",
        pages=Pages.LENT,
        drains=(FinishReason.GRAMMAR_ERROR,),
    ),
    StateSpec(A, "an abort or fault decided it; pages are still lent out", pages=Pages.LENT),
    StateSpec(D, "the reason is committed, the pages are back", pages=Pages.NONE, terminal=True),
)

# fmt: off
QUEUED_ROWS = (
    Row(Q, E.ADMIT, P, claims=(Does.TAKE_PAGES,),
        why="pages were allocated"),
    Row(Q, (*CUT_SHORT, E.TRANSFER_FAILED), DRAIN, offers=Offers.ITS_OWN, effects=(CANCEL, REPORT),
        why="it has no pages: it ends at once, and the peer does not wait for it"),
    Row(Q, NEWS, STAY,
        why="nothing is decided by this"),
    Row(Q, COMPLETIONS, LATE,
        why="it has no step and no op outstanding"),
    Row(Q, (E.FORWARD_LAUNCHED, E.TRANSFER_POSTED, E.PREFILL_FINISHED, E.COMPLETE, E.PREEMPT, E.DRAIN_TIMEOUT,
            E.SUBMIT), ILLEGAL,
        why="it has no pages to work on"),
)

# What a forward pass does to a request that computes; the decode leg has the same rows.
COMPUTING_ROWS = (
    Row(P, E.FORWARD_LAUNCHED, STAY, when=When(recorded=False), claims=(Does.TAKE_STEP,),
        why="the pass will touch the pages until it is finished"),
    Row(P, E.TRANSFER_POSTED, STAY, when=When(recorded=False), claims=(Does.TAKE_OP,),
        why="the op will touch the pages until it succeeded or drained"),
    Row(P, E.PREEMPT, Q, when=When(recorded=False), claims=(Does.START_OVER,), effects=(RELEASE,),
        why="a new attempt; pages go back now, or when the old attempt's passes and ops end"),
    Row(P, (E.FORWARD_LAUNCHED, E.TRANSFER_POSTED, E.PREEMPT), ILLEGAL, when=When(recorded=True),
        why="no new work for a decided request"),
    Row(P, E.FORWARD_FINISHED, FINISH, claims=(Does.DROP_STEP,), effects=(RELEASE, REPORT),
        why="the pass touches the pages no more"),
    Row(P, NEWS, STAY,
        why="nothing is decided by this"),
)

PREFILLING_ROWS = (
    *COMPUTING_ROWS,
    Row(P, E.TRANSFER_SUCCEEDED, FINISH, claims=(Does.DROP_OP,), effects=(RELEASE, REPORT),
        why="that chunk is delivered, and its op is drained"),
    Row(P, E.TRANSFER_DRAINED, FINISH, when=When(recorded=True), claims=(Does.DROP_OP,), effects=(RELEASE, REPORT),
        why="the answer needs no hand-off; the op only had to end"),
    Row(P, E.TRANSFER_DRAINED, DRAIN, when=When(recorded=False), claims=(Does.DROP_OP,),
        offers=Offers.TRANSFER_FAILED, effects=(CANCEL, RELEASE, REPORT),
        why="what was not proven delivered was not delivered"),
    Row(P, E.PREFILL_FINISHED, T, claims=(Does.TAKE_OP_UNLESS_OPEN,),
        why="the prompt is computed and its last chunk handed over"),
    Row(P, E.COMPLETE, FINISH, offers=Offers.ITS_OWN, effects=(RELEASE, REPORT),
        why="it ended without a hand-off; pages go back once nothing touches them"),
    Row(P, (*CUT_SHORT, E.TRANSFER_FAILED), DRAIN, offers=Offers.ITS_OWN, effects=(CANCEL, RELEASE, REPORT),
        why="decided; pages go back once nothing touches them"),
    Row(P, (E.ADMIT, E.DRAIN_TIMEOUT, E.SUBMIT), ILLEGAL,
        why="it has its pages, and is not draining"),
)

TRANSFERRING_ROWS = (
    Row(T, E.TRANSFER_SUCCEEDED, STAY, when=When(ops=True), claims=(Does.DROP_OP,),
        why="that op is delivered; others are outstanding"),
    Row(T, E.TRANSFER_SUCCEEDED, FINISH, when=When(ops=False, recorded=False), claims=(Does.DROP_OP,),
        offers=Offers.LENGTH, effects=(RELEASE, REPORT),
        why="the hand-off succeeded"),
    Row(T, E.TRANSFER_SUCCEEDED, FINISH, when=When(ops=False, recorded=True), claims=(Does.DROP_OP,),
        effects=(RELEASE, REPORT),
        why="the hand-off succeeded; the completion that was recorded is its reason"),
    Row(T, E.FORWARD_FINISHED, STAY, when=When(ops=True), claims=(Does.DROP_STEP,),
        why="the pass touches the pages no more; the hand-off goes on"),
    Row(T, E.FORWARD_FINISHED, FINISH, when=When(ops=False), claims=(Does.DROP_STEP,), effects=(RELEASE, REPORT),
        why="the hand-off has succeeded; the last pass ends it"),
    Row(T, E.TRANSFER_DRAINED, DRAIN, claims=(Does.DROP_OP,),
        offers=Offers.TRANSFER_FAILED, effects=(CANCEL, RELEASE, REPORT),
        why="what was not proven delivered was not delivered"),
    Row(T, E.TRANSFER_FAILED, DRAIN, when=When(ops=True), offers=Offers.ITS_OWN, effects=(CANCEL, RELEASE, REPORT),
        why="a verdict: it says what is reported, not that the hardware stopped"),
    Row(T, E.TRANSFER_FAILED, LATE, when=When(ops=False),
        why="the hand-off has succeeded already"),
    Row(T, E.COMPLETE, STAY, offers=Offers.ITS_OWN,
        why="recorded, and used when the hand-off succeeds"),
    Row(T, CUT_SHORT, DRAIN, when=When(ops=True), offers=Offers.ITS_OWN, effects=(CANCEL, RELEASE, REPORT),
        why="decided; pages go back once nothing touches them"),
    Row(T, (E.GRAMMAR_FAILED, E.PEER_LOST, E.ERROR), DRAIN, when=When(ops=False), offers=Offers.ITS_OWN,
        effects=(RELEASE, REPORT),
        why="decided; the hand-off has succeeded, so there is nothing to cancel"),
    Row(T, E.ABORT, DRAIN, when=When(ops=False, policy=("abort_after_handoff", "record")), offers=Offers.ITS_OWN,
        effects=(RELEASE, REPORT),
        why="the hand-off has succeeded, but the client is told of its abort"),
    Row(T, E.ABORT, STAY, when=When(ops=False, policy=("abort_after_handoff", "ignore")),
        why="the hand-off has succeeded and the reader may use the pages: the finish stands"),
    Row(T, NEWS, STAY,
        why="nothing is decided by this"),
    Row(T, (*NEW_WORK, E.PREFILL_FINISHED, E.DRAIN_TIMEOUT, E.SUBMIT), ILLEGAL,
        why="the whole prompt is computed and handed over"),
)

DRAINING_ROWS = (
    Row((G, A), E.FORWARD_FINISHED, FINISH, claims=(Does.DROP_STEP,), effects=(RELEASE, REPORT),
        why="pages go back with the last claim"),
    Row((G, A), (E.TRANSFER_SUCCEEDED, E.TRANSFER_DRAINED), FINISH, claims=(Does.DROP_OP,),
        effects=(RELEASE, REPORT),
        why="pages go back with the last claim"),
    Row((G, A), (*CUT_SHORT, E.TRANSFER_FAILED, E.COMPLETE), STAY, offers=Offers.ITS_OWN,
        why="decided already; only the reason may change, by precedence"),
    Row((G, A), NEWS, STAY,
        why="it drains; nothing is decided by this"),
    Row((G, A), E.PREFILL_FINISHED, STAY,
        why="the late result of the last pass; no transfer starts for a decided request"),
    Row((G, A), E.DRAIN_TIMEOUT, D, when=When(policy=("on_undrained", "quarantine")), effects=(QUARANTINE, REPORT),
        why="no proof of quiet came: the pages leave circulation"),
    Row((G, A), E.DRAIN_TIMEOUT, D, when=When(policy=("on_undrained", "release")), effects=(RELEASE, REPORT),
        why="unsafe, by policy: the pages go back although something may still touch them"),
    Row((G, A), E.DRAIN_TIMEOUT, STAY, when=When(policy=("on_undrained", "hold")),
        why="by policy it waits on"),
    Row((G, A), (*NEW_WORK, E.SUBMIT), ILLEGAL,
        why="no new work for a decided request"),
)

DONE_ROWS = (
    Row(D, (*COMPLETIONS, *CUT_SHORT, E.TRANSFER_FAILED, E.COMPLETE, *NEWS, E.DRAIN_TIMEOUT), LATE,
        why="the reason is committed and the pages are gone"),
    Row(D, (*NEW_WORK, E.PREFILL_FINISHED, E.SUBMIT), ILLEGAL,
        why="no new work for a request that has ended"),
)
# fmt: on

PREFILL = Table(
    name="prefill",
    states=STATES,
    rows=(*QUEUED_ROWS, *PREFILLING_ROWS, *TRANSFERRING_ROWS, *DRAINING_ROWS, *DONE_ROWS),
)
