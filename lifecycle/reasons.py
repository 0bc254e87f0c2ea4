"""Which finish reason wins, and what goes on the wire for it (contract section 6).

Reasons stand in tiers, the highest first. A reason of a higher tier replaces one of a lower; within a tier
the first one recorded stays. Two completions are told apart by token position: the earlier one wins, a
position that nobody gave counts as later than any that somebody gave, and at the same position ``stop`` wins.

That rule is the :meth:`Precedence.join`. A *strict total order* is a precedence whose tiers hold one reason
each: then the winner does not depend on the order in which events arrived, not even between ``stop`` and
``length``, and token positions are not looked at.

What the client sees is data, :data:`WIRE`: a word, an HTTP status and a message for each reason. Replace it
as a whole; nothing in the library looks at a reason, or at its wire, to decide about memory or hand-off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from .errors import PolicyError
from .vocabulary import FinishReason, GrammarCause

R = FinishReason

COMPLETIONS = frozenset({R.STOP, R.LENGTH})


@attrs.frozen
class Precedence:
    """An order of reasons: ``tiers`` from the highest to the lowest, each reason in exactly one tier.

    Raises:
        PolicyError: a reason is missing, unknown, or named twice.
    """

    tiers: tuple[tuple[FinishReason, ...], ...] = attrs.field()
    _height: dict[FinishReason, int] = attrs.field(init=False, repr=False, eq=False)

    @tiers.validator
    def _each_reason_once(self, _attribute: object, tiers: tuple[tuple[str, ...], ...]) -> None:
        named = [reason for tier in tiers for reason in tier]
        for reason in named:
            if reason not in R._value2member_map_:
                msg = f"precedence names {reason!r}, which is no finish reason"
                raise PolicyError(msg)
            if named.count(reason) > 1:
                msg = f"precedence names {str(reason)!r} twice"
                raise PolicyError(msg)
        missing = [str(reason) for reason in R if reason not in named]
        if missing:
            msg = f"precedence must place every finish reason; missing: {', '.join(missing)}"
            raise PolicyError(msg)

    def __attrs_post_init__(self) -> None:
        tiers = tuple(tuple(R(reason) for reason in tier) for tier in self.tiers)
        object.__setattr__(self, "tiers", tiers)
        height = {reason: -rank for rank, tier in enumerate(tiers) for reason in tier}
        object.__setattr__(self, "_height", height)

    @property
    def is_total(self) -> bool:
        """Whether it is a strict total order: the winner never depends on the order of arrival."""
        return all(len(tier) == 1 for tier in self.tiers)

    def outranks(self, reason: FinishReason, recorded: FinishReason) -> bool:
        """Whether `reason` stands in a higher tier than `recorded`."""
        return self._height[reason] > self._height[recorded]

    def join(
        self, recorded: FinishReason | None, reason: FinishReason, *, earlier: bool = False
    ) -> FinishReason:
        """The winner of a recorded reason and one that arrives after it.

        `earlier` says that both are completions and that the new one stands before the recorded one in the
        text (see :func:`is_earlier`); it decides only within a tier.
        """
        if recorded is None:
            return reason
        ours, theirs = self._height[recorded], self._height[reason]
        if theirs > ours or (theirs == ours and earlier):
            return reason
        return recorded

    def to_json(self) -> str | list[str] | list[list[str]]:
        """As a policy line of a trace writes it; :func:`as_precedence` reads it back."""
        if self == TIERS:
            return "tiers"
        if self.is_total:
            return [str(tier[0]) for tier in self.tiers]
        return [[str(reason) for reason in tier] for tier in self.tiers]


TIERS = Precedence(
    (
        (R.CLIENT_ABORT, R.SERVER_ABORT, R.TIMEOUT, R.SHUTDOWN, R.GRAMMAR_ERROR),  # decision
        (R.TRANSFER_FAILED, R.PEER_LOST, R.INTERNAL_ERROR),  # fault
        (R.STOP, R.LENGTH),  # completion
    )
)
"""The contract's default: decision over fault over completion."""


def as_precedence(value: object) -> Precedence:
    """A precedence from ``"tiers"``, a list of reasons, a list of tiers, or a :class:`Precedence`.

    Raises:
        PolicyError: anything else, or a list that does not name each reason exactly once.
    """
    if isinstance(value, Precedence):
        return value
    if value == "tiers":
        return TIERS
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        tiers: list[Any] = [[tier] if isinstance(tier, str) else tier for tier in value]
        if all(
            isinstance(tier, (list, tuple)) and all(isinstance(reason, str) for reason in tier)
            for tier in tiers
        ):
            return Precedence(tuple(tuple(tier) for tier in tiers))  # checks the words itself
    msg = (
        'policy precedence is "tiers", a list of the ten finish reasons from the highest to the lowest, '
        f"or a list of such lists; got {value!r}"
    )
    raise PolicyError(msg)


def is_earlier(
    reason: FinishReason, position: int | None, recorded: FinishReason, at: int | None
) -> bool:
    """Whether the completion (`reason`, `position`) stands before the completion (`recorded`, `at`).

    Positions count tokens; None is later than any number. False unless both reasons are completions.
    """
    if reason not in COMPLETIONS or recorded not in COMPLETIONS:
        return False
    if position == at:
        return reason == R.STOP and recorded == R.LENGTH
    return position is not None and (at is None or position < at)


@attrs.frozen
class Wire:
    """What a client sees: `finish` is the word in the answer, `status` an HTTP status, `message` a sentence."""

    finish: str
    status: int
    message: str


WIRE: Mapping[FinishReason, Wire] = {
    R.STOP: Wire("stop", 200, ""),
    R.LENGTH: Wire("length", 200, ""),
    R.CLIENT_ABORT: Wire("abort", 499, "The client aborted the request."),
    R.SERVER_ABORT: Wire("abort", 503, "The server aborted the request."),
    R.TIMEOUT: Wire("abort", 503, "The request ran past its deadline."),
    R.SHUTDOWN: Wire("abort", 503, "The server is shutting down."),
    R.GRAMMAR_ERROR: Wire("error", 400, "The grammar of the request failed."),
    R.TRANSFER_FAILED: Wire("error", 502, "The KV cache could not be transferred."),
    R.PEER_LOST: Wire("error", 502, "The worker at the other end was lost."),
    R.INTERNAL_ERROR: Wire("error", 500, "The engine failed on this request."),
}
"""The contract's defaults. A status or message that came with the event that won is used instead."""

GRAMMAR_STATUS: Mapping[str, int] = {GrammarCause.TIMEOUT: 503, GrammarCause.DEAD_END: 500}
"""Grammar causes that are not the client's fault have a status of their own."""


@attrs.frozen
class Outcome:
    """How a request ended, as it is reported: once.

    `reason` is the library's, `wire` the word that goes out, `status` an HTTP status. `position` counts
    tokens and `cause` refines the reason where the event that won gave them.
    """

    rid: str
    incarnation: int
    reason: FinishReason
    wire: str
    status: int
    message: str
    cause: str | None = None
    position: int | None = None


@attrs.frozen
class Details:
    """What came with the event that won."""

    message: str | None = None
    status: int | None = None
    cause: str | None = None
    position: int | None = None


NO_DETAILS = Details()


def outcome_of(
    rid: str,
    incarnation: int,
    reason: FinishReason,
    details: Details,
    wire: Mapping[FinishReason, Wire] = WIRE,
) -> Outcome:
    """The report for `reason`, with the details of the event that won, else the wire's defaults."""
    default = wire[reason]
    status = default.status
    if reason is R.GRAMMAR_ERROR and details.cause is not None:
        status = GRAMMAR_STATUS.get(details.cause, status)
    return Outcome(
        rid=rid,
        incarnation=incarnation,
        reason=reason,
        wire=default.finish,
        status=status if details.status is None else details.status,
        message=default.message if details.message is None else details.message,
        cause=details.cause,
        position=details.position,
    )
