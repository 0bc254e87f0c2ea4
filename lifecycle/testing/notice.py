"""What a scheduler under test is told."""

from __future__ import annotations

import attrs

from ..vocabulary import Event, GrammarCause


@attrs.frozen
class Notice:
    """Something that the scheduler is told, once, at the beginning of a turn.

    Attributes:
        event: ``grammar_ready``, ``grammar_failed``, ``forward_finished``, ``transfer_succeeded``,
            ``transfer_failed``, ``transfer_drained``, ``peer_lost`` or ``error``.
        rid: which request.
        attempt: which attempt of it the pass or op belonged to.
        step: the pass, for ``forward_finished``.
        op: the op, for transfers.
        cause: for ``grammar_failed``.
        rank: whose share of a transfer op it is about; more than 0 only where ``ranks`` is claimed.
        incarnation: which life of the rid it is about; more than 1 only where ``rid_reuse`` is claimed.
    """

    event: Event
    rid: str
    attempt: int = 0
    step: int | None = None
    op: str | None = None
    cause: GrammarCause | None = None
    incarnation: int = 1
    rank: int = 0
