"""Broken tables and broken schedulers, each with the invariant that it must be found to break.

A checker that accepts one of them proves nothing. All four checkers are shown each: the explicit-state checker
(:mod:`lifecycle.verify.fleet`), z3 (:mod:`lifecycle.prove`), TLC and Spin (``specs/``). docs/verification.md has
the table of what they said, written by ``make specs``.
"""

from __future__ import annotations

from functools import cached_property

import attrs

from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..reasons import Precedence
from ..spec import DRAIN, ILLEGAL, STAY, Offers, Row, Table
from ..vocabulary import EffectKind, Event, FinishReason, Invariant, State

CANCEL, REPORT = EffectKind.CANCEL_TRANSFER, EffectKind.REPORT
RELEASE = EffectKind.RELEASE_KV
T, G, A, D = State.TRANSFERRING, State.GRAMMAR_FAILED, State.ABORTED, State.DONE


class LastWins(Precedence):
    """No precedence at all: whatever comes last is reported."""

    def join(
        self, recorded: FinishReason | None, reason: FinishReason, *, earlier: bool = False
    ) -> FinishReason:
        """The reason that came last."""
        del recorded, earlier
        return reason


@attrs.frozen(slots=False)
class Mutant:
    """One fault: in the rows of the table, in the joining of reasons, or around the request (`fault`).

    Attributes:
        name, what: a word, and a sentence.
        breaks: the invariant that it breaks.
        rows: rows that replace those of the prefill table in the same cells.
        fault: the name of a rule that the scheduler, the pool or the driver breaks.
    """

    name: str
    what: str
    breaks: Invariant
    rows: tuple[Row, ...] = ()
    fault: str = ""

    @cached_property
    def table(self) -> Table:
        """The prefill table with its rows replaced."""
        return changed(PREFILL, self.rows) if self.rows else PREFILL

    @property
    def policy(self) -> Policy:
        """The default policy, but for how reasons are joined."""
        if self.fault != "last_wins":
            return DEFAULT_POLICY
        return Policy(precedence=LastWins(DEFAULT_POLICY.precedence.tiers))

    @property
    def faults(self) -> frozenset[str]:
        """What is broken around the request."""
        return frozenset({self.fault} - {"", "last_wins"})


def changed(table: Table, rows: tuple[Row, ...]) -> Table:
    """`table` with `rows` in the place of all that it says about their cells."""
    cells = {(state, event) for row in rows for state in row.states for event in row.events}
    kept = []
    for row in table.rows:
        for state in row.states:
            events = tuple(event for event in row.events if (state, event) not in cells)
            if events:
                kept.append(attrs.evolve(row, states=(state,), events=events))
    return Table(table.name, table.states, (*kept, *rows))


def _row(states: str | tuple[str, ...], event: Event, to: str, **parts: object) -> Row:
    return Row(states, event, to, why="a mutant", **parts)  # type: ignore[arg-type]  # passed on as given


I = Invariant  # noqa: E741  # a short name for a long list

MUTANTS = (
    Mutant(
        "free_on_abort",
        "An abort during the hand-over frees the pages at once.",
        I.NO_FREE_IN_FLIGHT,
        rows=(_row(T, Event.ABORT, D, offers=Offers.ITS_OWN, effects=(CANCEL, RELEASE, REPORT)),),
    ),
    Mutant(
        "abort_refused",
        "An abort during the hand-over is illegal.",
        I.ABORT_IS_TOTAL,
        rows=(_row(T, Event.ABORT, ILLEGAL),),
    ),
    Mutant(
        "grammar_error_lost",
        "A grammar error that comes while a failure drains is not recorded.",
        I.REASON_BY_POLICY,
        rows=(_row((G, A), Event.GRAMMAR_FAILED, STAY),),
    ),
    Mutant(
        "peer_waits",
        "A failure during the hand-over cancels nothing, so the peer waits.",
        I.PEER_TOLD,
        rows=(
            _row(T, Event.TRANSFER_FAILED, DRAIN, offers=Offers.ITS_OWN, effects=(RELEASE, REPORT)),
        ),
    ),
    Mutant(
        "deadline_forgotten",
        "The drain deadline passes, and nothing comes of it.",
        I.EVENTUALLY_DONE,
        rows=(_row((G, A), Event.DRAIN_TIMEOUT, STAY),),
    ),
    Mutant(
        "unfair_deadlines",
        "Deadlines need not pass, and ranks may freeze.",
        I.EVENTUALLY_DONE,
        fault="unfair_deadlines",
    ),
    Mutant(
        "min_consensus",
        "One rank that went quiet counts as the drain of all.",
        I.NO_FREE_IN_FLIGHT,
        fault="min_consensus",
    ),
    Mutant(
        "first_rank_wins",
        "The first rank that delivers is taken for all.",
        I.RANK_AGREEMENT,
        fault="first_rank_wins",
    ),
    Mutant(
        "sharers_ignored",
        "A release gives every page back, also those that others share.",
        I.CLAIM_COUNT,
        fault="sharers_ignored",
    ),
    Mutant(
        "evicts_held",
        "The cache evicts a page that requests still use.",
        I.CLAIM_COUNT,
        fault="evicts_held",
    ),
    Mutant(
        "drain_forgotten",
        "The release that a drain brings is not carried out.",
        I.DRAIN_TO_ZERO,
        fault="drain_not_released",
    ),
    Mutant(
        "late_poll_frees",
        "A poll of a request that is done, and whose pages are in quarantine, releases them.",
        I.SINGLE_RELEASE,
        fault="late_poll_frees",
    ),
    Mutant(
        "reason_overwritten",
        "The reason that comes last is recorded, whatever stood before.",
        I.STICKY_REASON,
        fault="last_wins",
    ),
    Mutant(
        "reports_twice",
        "The client is told at the decision, and again at the end.",
        I.REPORT_ONCE,
        fault="reports_twice",
    ),
    Mutant(
        "works_on_decided",
        "A pass is launched for a request that is decided.",
        I.NO_NEW_WORK_AFTER_DECISION,
        fault="works_on_decided",
    ),
    Mutant(
        "quarantine_early",
        "A quarantined lease is given back before all is quiet.",
        I.NO_FREE_IN_FLIGHT,
        fault="quarantine_early",
    ),
    Mutant(
        "preempt_frees",
        "A preemption frees the pages although a pass still runs.",
        I.NO_FREE_IN_FLIGHT,
        fault="preempt_frees",
    ),
)
"""In the order of docs/verification.md."""
