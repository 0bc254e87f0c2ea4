"""Who saw what happened, and compares it with what clients were told.

The scheduler's loop tells the witness of every cause when it comes in (an abort, a deadline, a grammar error,
a fault), and reports go through it. What a client *should* be told is worked out here again, from the
contract's one sentence (section 6): a decision beats a fault, a fault beats a completion, and of two of a kind the
first stays. Neither the library nor the hand-written code is asked.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import attrs

from lifecycle import FinishReason, Outcome

R = FinishReason

ABORTS = frozenset({R.CLIENT_ABORT, R.TIMEOUT})
DECISIONS = ABORTS | {R.GRAMMAR_ERROR}
FAULTS = frozenset({R.TRANSFER_FAILED, R.PEER_LOST, R.INTERNAL_ERROR})


@attrs.frozen
class Told:
    """A report that went out, and the turn of the loop in which it did."""

    outcome: Outcome
    at: int


class Witness:
    """Notes causes and reports. It is the driver's ``Reporter`` port.

    Attributes:
        now: the turn of the loop, which the loop sets.
        told: every report, in order.
    """

    def __init__(self) -> None:
        self.now = 0
        self.told: list[Told] = []
        self.outcomes: dict[str, Outcome] = {}
        self._causes: defaultdict[str, list[FinishReason]] = defaultdict(list)

    def saw(self, rid: str, cause: FinishReason) -> None:
        """This came in for this request. After its report it is nobody's business."""
        if rid not in self.outcomes:
            self._causes[rid].append(cause)

    def report(self, outcome: Outcome) -> None:
        """The port: tell the client."""
        self.told.append(Told(outcome, self.now))
        self.outcomes.setdefault(outcome.rid, outcome)

    def due(self, rid: str) -> FinishReason:
        """What the client should have been told."""
        causes = self._causes[rid]
        for kind in (DECISIONS, FAULTS):
            for cause in causes:
                if cause in kind:
                    return cause
        return R.LENGTH

    @property
    def told_twice(self) -> int:
        """Reports too many."""
        return len(self.told) - len(self.outcomes)

    @property
    def aborts_lost(self) -> int:
        """Requests that were aborted, or ran past their deadline, and were told that all went well."""
        return sum(
            self.due(rid) in ABORTS and outcome.reason is R.LENGTH
            for rid, outcome in self.outcomes.items()
        )

    @property
    def reasons_replaced(self) -> int:
        """Other requests whose reason is not the one that should have stayed."""
        wrong = sum(self.due(rid) is not outcome.reason for rid, outcome in self.outcomes.items())
        return wrong - self.aborts_lost

    @property
    def by_reason(self) -> Counter[FinishReason]:
        """How many requests were told each reason."""
        return Counter(outcome.reason for outcome in self.outcomes.values())
