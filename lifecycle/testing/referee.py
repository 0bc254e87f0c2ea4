"""Compares what a scheduler did about memory and clients with what would have been right.

The referee keeps a reference: a table of the library, to which it fires every event of which the scheduler was
told or that it brought about itself. The effects of the reference say what is due: a release, a quarantine, a
report, a cancel. What the scheduler does is held against that, and named after the invariant of contract section 8
that it breaks.

:meth:`lifecycle.testing.oracle.Oracle.observe` judges effects too, and is not used here, for two reasons. It is
told of effects by request and attempt; a foreign scheduler is seen through page numbers, which may be somebody
else's by then, and that is how a second free shows. And it names the general invariant, where a scheduler author
is helped by the special one (a free under a pass is ``stream_order``, one by another rank's end
``rank_agreement``). The two meet in the tests: the reference here is the library's table, which the oracle is
compared with on every event.

Some things are wrong at once (a free while a transfer may still read; a second report), others only once
everything is quiet (pages that never came back; a client who was never told). :meth:`Referee.settled` looks for
the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ..compile import OWN_REASON, Effect
from ..errors import EventError
from ..policy import Policy
from ..request import RequestLifecycle
from ..table import RequestTable
from ..vocabulary import (
    ABORT_REASONS,
    AbortSource,
    EffectKind,
    Event,
    FinishReason,
    Invariant,
)
from .cachebook import CacheBook
from .notice import Notice

ABORTS = frozenset(ABORT_REASONS.values())
_DECIDING = frozenset({*OWN_REASON, Event.TRANSFER_DRAINED})


@attrs.frozen
class Violation:
    """An invariant that broke: by what, for which request, and after how many events of the trace."""

    invariant: Invariant
    rid: str
    what: str
    events: int

    def __str__(self) -> str:
        whose = f" for request {self.rid!r}" if self.rid else ""
        return f"{self.invariant} is broken{whose}: {self.what}"


@attrs.define
class Attempt:
    """One attempt's pages, as they really are."""

    pages: tuple[int, ...]
    completed_ops: int = 0
    away: str = ""  # how the pages went: freed or quarantined
    release: Effect | None = None  # what the reference said of it when it was due


class Referee:
    """See the module's text.

    Attributes:
        reference: the library's own table; what it says is right.
        trace: every event so far, as the lines of a trace.
        violations: what broke, oldest first.
        cache: which pages are the prefix cache's.
    """

    def __init__(self, policy: Policy, ranks: int = 1) -> None:
        self.policy, self.ranks = policy, ranks
        self._shares: dict[
            tuple[str, int, int, str], dict[int, str]
        ] = {}  # of an op: rank -> its end
        self.reference = RequestTable(policy, keep_done=None, abort_memory=None, keep_aborts=0)
        self.trace: list[dict[str, Any]] = []
        if policy != Policy():
            self.trace.append({"policy": policy.to_mapping()})
        self.violations: list[Violation] = []
        self.cache = CacheBook()
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._holder: dict[int, tuple[str, int]] = {}
        self._due: dict[tuple[EffectKind, str, int], Effect] = {}
        self._outcome: dict[str, FinishReason] = {}
        self._reports: dict[str, FinishReason] = {}
        self._cancelled: set[tuple[str, int]] = set()
        self._heard: dict[str, list[FinishReason]] = {}
        self._stale: set[str] = set()  # told of an older attempt's completion in this turn
        self._late = False

    # Events.

    def fire(self, rid: str, event: Event, **details: Any) -> bool:
        """Fire an event at the reference; whether it was legal."""
        if "incarnation" not in details:
            self._hear(rid, event, details)
        line = {"event": str(event), "rid": rid, **details}
        self.trace.append({name: value for name, value in line.items() if value is not None})
        late = self.reference.late.total() + self.reference.unknown.total()
        try:
            effects = self.reference.fire(rid, event, **details)
        except EventError:
            return False
        self._late |= self.reference.late.total() + self.reference.unknown.total() > late
        self._note(rid, effects)
        return True

    def _hear(self, rid: str, event: Event, details: dict[str, Any]) -> None:
        if event is Event.ABORT:
            reason = ABORT_REASONS[AbortSource(details["source"])]
        elif event in OWN_REASON:
            reason = OWN_REASON[event]
        elif event is Event.TRANSFER_DRAINED:
            reason = FinishReason.TRANSFER_FAILED
        else:
            return
        self._heard.setdefault(rid, []).append(reason)

    def _note(self, rid: str, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if effect.kind is EffectKind.REPORT:
                reason = self.reference[rid].reason
                assert reason is not None
                self._outcome[rid] = reason
            else:
                self._due[effect.kind, rid, effect.attempt] = effect

    def submitted(self, rid: str) -> None:
        """A request was submitted; of a rid whose former life is over, a new life."""
        if rid in self.reference:
            self._begin_anew(rid)
        self.trace.append({"event": "submit", "rid": rid})
        self._note(rid, self.reference.submit(rid))

    def _begin_anew(self, rid: str) -> None:
        """Close the books of a life that is over: the next one is judged by itself."""
        for book in (self._outcome, self._reports, self._heard):
            book.pop(rid, None)
        for number in [number for owner, number in self._attempts if owner == rid]:
            del self._attempts[rid, number]
        self._cancelled = {each for each in self._cancelled if each[0] != rid}

    def over(self, rid: str) -> bool:
        """Whether this life has ended, and nothing that was due is left to do."""
        request = self._request(rid)
        due = any(owner == rid for _, owner, _ in self._due)
        out = any(owner == rid for owner, _ in self._holder.values()) or any(
            owner == rid for _, (owner, _) in self.cache.open()
        )
        told = rid in self._reports
        return request is not None and request.over and told and not due and not out

    def incarnation(self, rid: str) -> int:
        """Which life of the rid is the newest."""
        request = self._request(rid)
        return 1 if request is None else request.incarnation

    def told(self, notice: Notice) -> None:
        """The scheduler is told something."""
        combined = (
            self._of_all_ranks(notice) if self.ranks > 1 and notice.op is not None else notice
        )
        if combined is None:
            return
        notice = combined
        details: dict[str, Any] = {}
        newest = self._request(notice.rid)
        if newest is not None and notice.incarnation != newest.incarnation:
            self._told_of_a_former_life(notice)
            return
        if notice.event is Event.FORWARD_FINISHED:
            details["step"] = notice.step
        elif notice.op is not None:
            details["op"] = notice.op
            if notice.event is not Event.TRANSFER_FAILED:
                attempt = self._attempts.get((notice.rid, notice.attempt))
                if attempt is not None:
                    attempt.completed_ops += 1
        if notice.cause is not None:
            details["cause"] = str(notice.cause)
        about = notice.step is not None or notice.op is not None
        if newest is not None and about and notice.attempt != newest.attempt:
            details["attempt"] = notice.attempt
            self._stale.add(notice.rid)
        self.fire(notice.rid, notice.event, **details)

    def _of_all_ranks(self, notice: Notice) -> Notice | None:
        """What all ranks' shares of an op come to: one failure fails it, and it has ended when each share has.

        None where this share changes nothing yet.
        """
        assert notice.op is not None
        key = (notice.rid, notice.incarnation, notice.attempt, notice.op)
        shares = self._shares.setdefault(key, {})
        ended = {"succeeded", "drained"}
        if shares.get(notice.rank) in ended:
            return (
                notice if len(shares) == self.ranks and ended.issuperset(shares.values()) else None
            )
        failed_before = bool({"failed", "drained"} & set(shares.values()))
        shares[notice.rank] = notice.event.removeprefix("transfer_")
        if len(shares) == self.ranks and ended.issuperset(shares.values()):
            delivered = set(shares.values()) == {"succeeded"}
            event = Event.TRANSFER_SUCCEEDED if delivered else Event.TRANSFER_DRAINED
            return attrs.evolve(notice, event=event)
        if notice.event is not Event.TRANSFER_SUCCEEDED and not failed_before:
            return attrs.evolve(notice, event=Event.TRANSFER_FAILED)
        return None

    def _ranks_differ(self, rid: str, attempt: int) -> bool:
        """Whether some rank's share of an op has ended, and another's has not."""
        ended = {"succeeded", "drained"}
        return any(
            owner == rid and number == attempt and ended & set(shares.values())
            and not (len(shares) == self.ranks and ended.issuperset(shares.values()))
            for (owner, _, number, _), shares in self._shares.items()
        )  # fmt: skip

    def _told_of_a_former_life(self, notice: Notice) -> None:
        """It is late for that life, and nothing to the new one."""
        self._stale.add(notice.rid)
        details: dict[str, Any] = {"incarnation": notice.incarnation}
        if notice.cause is not None:
            details["cause"] = str(notice.cause)
        if notice.step is not None or notice.op is not None:
            details |= {"step": notice.step, "op": notice.op, "attempt": notice.attempt}
        details = {name: value for name, value in details.items() if value is not None}
        self.fire(notice.rid, notice.event, **details)

    def turn_begins(self) -> None:
        """The scheduler's loop turns."""
        self._stale.clear()
        self._late = False

    def admitted(self, rid: str, pages: tuple[int, ...], cached: Sequence[int] = ()) -> None:
        """The scheduler took pages for the newest attempt of `rid`, some of them from the prefix cache."""
        request = self._request(rid)
        if not self.fire(rid, Event.ADMIT, pages=len(pages) + len(cached)) or request is None:
            self._new_work(rid, "is given pages")
            return
        for page in cached:
            wrong = self.cache.taken(page, (rid, request.attempt))
            if wrong is not None:
                self._break(Invariant.CLAIM_COUNT, rid, wrong)
        self._attempts[rid, request.attempt] = Attempt(pages)
        for page in pages:
            self._holder[page] = (rid, request.attempt)

    def launched(self, rid: str, step: int) -> int:
        """The scheduler launched a pass; returns its attempt."""
        if not self.fire(rid, Event.FORWARD_LAUNCHED, step=step):
            self._new_work(rid, "takes part in a forward pass")
        return self._attempt(rid)

    def sent(self, rid: str, op: str, *, last: bool) -> int:
        """The scheduler handed a chunk over; returns its attempt."""
        if not self.fire(rid, Event.TRANSFER_POSTED, op=op):
            self._new_work(rid, "sends pages")
        elif last:
            self.fire(rid, Event.PREFILL_FINISHED)
        return self._attempt(rid)

    def preempted(self, rid: str) -> None:
        """The scheduler is asked to preempt `rid`."""
        self.fire(rid, Event.PREEMPT)

    def _new_work(self, rid: str, what: str) -> None:
        self._break(
            Invariant.NO_NEW_WORK_AFTER_DECISION,
            rid,
            f"it {what} although the reference says: {self._where(rid)}",
        )

    # What the scheduler does.

    def freed(self, rid: str, pages: Sequence[int]) -> None:
        """The scheduler gave pages back, as those of `rid`."""
        for page in pages:
            holder = self._holder.pop(page, None)
            if holder is not None:
                self._part(rid, holder)
            elif page in self.cache.claims:
                text = f"page {page} is freed, and the prefix cache has a claim on it"
                self._break(Invariant.CLAIM_COUNT, rid, text)
            else:
                self._break(Invariant.SINGLE_RELEASE, rid, f"page {page} is freed a second time")

    def unlocked(self, rid: str, pages: Sequence[int]) -> None:
        """The scheduler dropped claims of `rid` on pages of the prefix cache."""
        for page in pages:
            holders = self.cache.holders(page, rid)
            if holders:
                # Of two attempts the one whose time has come.
                holder = next((each for each in holders if self._may_go(each)), holders[-1])
                self.cache.dropped(page, holder)
                self._part(rid, holder)
            elif self.cache.is_unproven(page, rid):
                text = f"its drain was never proven, and its claim on the cached page {page} is dropped"
                self._break(Invariant.NO_FREE_IN_FLIGHT, rid, text)
            else:
                text = f"it drops a claim on the cached page {page} that it does not have"
                self._break(Invariant.CLAIM_COUNT, rid, text)

    def evicted(self, pages: Sequence[int]) -> None:
        """The prefix cache gave pages back to the pool."""
        for page in pages:
            holders = self.cache.claims.get(page)
            wrong = self.cache.evicted(page)
            if wrong is not None:
                rid = holders[0][0] if holders else ""
                second = holders is None
                self._break(
                    Invariant.SINGLE_RELEASE if second else Invariant.CLAIM_COUNT, rid, wrong
                )

    def _may_go(self, holder: tuple[str, int]) -> bool:
        """Whether an attempt's release is due, or has begun."""
        attempt = self._attempts[holder]
        return attempt.away == "freed" or (EffectKind.RELEASE_KV, *holder) in self._due

    def _part(self, rid: str, holder: tuple[str, int]) -> None:
        """`rid` parts with pages of an attempt: the first of them is judged, for all."""
        attempt = self._attempts[holder]
        if attempt.away != "freed":
            attempt.away = "freed"
            self._judge_free(rid, holder)

    def _judge_free(self, rid: str, holder: tuple[str, int]) -> None:
        owner, number = holder
        if owner != rid:
            text = f"pages that request {owner!r} holds now are freed a second time"
            self._break(Invariant.SINGLE_RELEASE, rid, text)
            return
        due = self._due.pop((EffectKind.RELEASE_KV, owner, number), None)
        if due is not None:
            self._attempts[holder].release = due
            return
        if (EffectKind.QUARANTINE_KV, owner, number) in self._due:
            text = "its drain was never proven, and its pages are freed instead of quarantined"
            self._break(Invariant.NO_FREE_IN_FLIGHT, owner, text)
            return
        request = self.reference[owner]
        steps, ops = self._outstanding(request, number)
        text = f"its pages are freed, but {self._where(owner)}"
        if owner in self._stale and number == request.attempt:
            self._break(Invariant.ATTEMPT_SCOPED, owner, f"{text}; an older attempt's op ended")
        elif ops and self._ranks_differ(owner, number):
            self._break(Invariant.RANK_AGREEMENT, owner, f"{text}; another rank still sends")
        elif ops and self._attempts[holder].completed_ops:
            self._break(Invariant.FREE_AFTER_ALL_OPS, owner, text)
        elif ops:
            self._break(Invariant.NO_FREE_IN_FLIGHT, owner, text)
        elif steps:
            self._break(Invariant.STREAM_ORDER, owner, text)
        else:
            self._break(Invariant.CLAIM_COUNT, owner, text)

    def quarantined(self, rid: str, pages: Sequence[int]) -> None:
        """The scheduler took pages out of circulation."""
        for page in pages:
            holder = self._holder.pop(page, None)
            if holder is None:
                text = f"page {page}, which is not out, is quarantined"
                self._break(Invariant.SINGLE_RELEASE, rid, text)
                continue
            attempt = self._attempts[holder]
            if attempt.away != "quarantined":
                attempt.away = "quarantined"
                self.cache.quarantined(holder)
                if self._due.pop((EffectKind.QUARANTINE_KV, *holder), None) is None:
                    text = f"its pages are quarantined, but {self._where(holder[0])}"
                    self._break(Invariant.CLAIM_COUNT, holder[0], text)

    def reported(self, rid: str, reason: str) -> None:
        """The scheduler told a client how its request ended."""
        if rid in self._reports:
            text = f"its client is told {reason!r}, after {str(self._reports[rid])!r}"
            self._break(Invariant.REPORT_ONCE, rid, text)
            return
        said = FinishReason(reason)
        self._reports[rid] = said
        right = self._outcome.get(rid)
        if right is said:
            return
        text = f"its client is told {reason!r}, but {self._where(rid)}"
        self._break(self._misreport(rid, said, right), rid, text)

    def _misreport(self, rid: str, said: FinishReason, right: FinishReason | None) -> Invariant:
        """Which invariant a report breaks that is wrong, or comes too early."""
        heard = self._heard.get(rid, [])
        if rid in self._stale and said not in heard:
            return Invariant.ATTEMPT_SCOPED  # it was meant for a former life
        if said in ABORTS and said not in heard:
            return Invariant.EXACT_TARGET  # somebody else was aborted
        if said not in heard and said not in (FinishReason.LENGTH, FinishReason.STOP):
            return Invariant.FAULT_ISOLATED  # somebody else had the fault
        request = self._request(rid)
        stands = right if request is None else request.reason
        if stands is None or stands is said or stands not in heard:
            return Invariant.REASON_BY_POLICY  # too early
        if said in heard and heard.index(said) < heard.index(stands):
            return Invariant.REASON_BY_POLICY  # it ought to have been replaced
        return Invariant.STICKY_REASON  # it replaced what was recorded first, or stands higher

    def cancelled(self, rid: str) -> None:
        """The scheduler told the other leg that a hand-off is off."""
        number = self._attempt(rid)
        if self._due.pop((EffectKind.CANCEL_TRANSFER, rid, number), None) is None:
            again = "a second time" if (rid, number) in self._cancelled else "without a reason"
            text = f"its peer is told of a cancel {again}: {self._where(rid)}"
            self._break(self._meant_for_another(rid) or Invariant.PEER_TOLD, rid, text)
        self._cancelled.add((rid, number))

    def published(self, rid: str, pages: Sequence[int], *, keep: bool = False) -> None:
        """The scheduler gave pages to the prefix cache; with `keep` they are the cache's from then on."""
        for page in pages:
            holder = self._holder.get(page)
            attempt = None if holder is None else self._attempts[holder]
            if holder is None or attempt is None or holder[0] != rid:
                text = f"page {page}, which it does not hold, goes to the prefix cache"
                self._break(
                    Invariant.CLAIM_COUNT if keep else Invariant.NO_TAINTED_PUBLISH, rid, text
                )
                continue
            due = self._due.get((EffectKind.RELEASE_KV, *holder), attempt.release)
            if due is None or not due.publish:
                text = f"its pages go to the prefix cache, but {self._where(rid)}"
                self._break(Invariant.NO_TAINTED_PUBLISH, rid, text)
            elif keep:
                del self._holder[page]
                self._part(rid, holder)
                self.cache.kept(page)

    def crashed(self, doing: str, rid: str, error: Exception) -> None:
        """A call into the scheduler raised."""
        text = f"{doing} raised {type(error).__name__}: {error}"
        if doing == "abort":
            self._break(Invariant.ABORT_IS_TOTAL, rid, text)
        elif self._late:
            self._break(Invariant.LATE_IS_ABSORBED, rid, text)
        else:
            self._break(Invariant.FAULT_ISOLATED, rid, text)

    # When everything is quiet.

    def settled(self, live: Sequence[str] = ()) -> None:
        """Nothing runs and nothing waits: what is due and was not done, never will be.

        `live` are the requests that have not ended by then.
        """
        for rid in live:
            text = f"everything it waited for has come, and it does not end: {self._where(rid)}"
            self._break(Invariant.EVENTUALLY_DONE, rid, text)
        for rid in self._outcome:
            if rid not in self._reports:
                text = f"its client is never told: {self._where(rid)}"
                self._break(Invariant.EVENTUALLY_DONE, rid, text)
        for (kind, rid, number), _ in list(self._due.items()):
            if kind is EffectKind.CANCEL_TRANSFER:
                text = f"its peer is never told: {self._where(rid)}"
                self._break(Invariant.PEER_TOLD, rid, text)
            elif self._attempts[rid, number].away == "":
                text = f"attempt {number} is over, and its pages never went back"
                self._break(Invariant.DRAIN_TO_ZERO, rid, text)
        for page, (rid, number) in self._holder.items():
            text = f"attempt {number} is over, and page {page} of it never went back"
            self._break(Invariant.DRAIN_TO_ZERO, rid, text)
        for page, (rid, number) in self.cache.open():
            text = f"attempt {number} is over, and its claim on the cached page {page} was never dropped"
            self._break(Invariant.DRAIN_TO_ZERO, rid, text)

    def _meant_for_another(self, rid: str) -> Invariant | None:
        """Whether an abort or a fault meant for another ended `rid`, of which nothing was heard."""
        if rid in self._heard:
            return None
        if rid in self._stale:
            return Invariant.ATTEMPT_SCOPED
        for line in reversed(self.trace):
            if line.get("event") == Event.ABORT:
                return Invariant.EXACT_TARGET
            if line.get("event") in _DECIDING:
                return Invariant.FAULT_ISOLATED
        return None

    # Words.

    def _request(self, rid: str) -> RequestLifecycle | None:
        return self.reference[rid] if rid in self.reference else None  # noqa: SIM401  # a table has no get

    def _attempt(self, rid: str) -> int:
        request = self._request(rid)
        return 0 if request is None else request.attempt

    def _outstanding(
        self, request: RequestLifecycle, number: int
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        if number == request.attempt:
            return request.steps, request.ops
        for old in request.draining:
            if old.attempt == number:
                return old.steps, old.ops
        return (), ()

    def _where(self, rid: str) -> str:
        request = self._request(rid)
        return "it was never submitted" if request is None else repr(request)

    def _break(self, invariant: Invariant, rid: str, what: str) -> None:
        self.violations.append(Violation(invariant, rid, what, len(self.trace)))
