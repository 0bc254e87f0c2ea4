"""Watch a scheduler that decides by itself: what it does is compared with the contract, and nothing is touched.

A shadow is told two things, one line each at the call sites of a running scheduler: what *happened* to a
request (:meth:`Shadow.saw`, the events of contract section 4), and what the scheduler *did* about it
(:meth:`Shadow.freed`, :meth:`Shadow.reported`, :meth:`Shadow.cancelled`). It follows every request by the declared
table, and where the scheduler does something else, it notes a :class:`Divergence`.

>>> shadow = Shadow()
>>> shadow.saw("r1", "submit"); shadow.saw("r1", "admit", pages=4); shadow.saw("r1", "prefill_finished")
>>> shadow.saw("r1", "grammar_failed", cause="rejected")
>>> shadow.freed("r1")  # the transfer still reads these pages
>>> shadow.saw("r1", "transfer_succeeded")
>>> shadow.freed("r1")
>>> for divergence in shadow.divergences:
...     print(divergence.kind, divergence.invariant, divergence.claims)
freed_in_flight no_free_in_flight ('op:kv', 'request')
freed_twice single_release ()

Report an event where the scheduler learns of it, before it acts on it: the order of the two is what is compared.

Promises
    No method raises, whatever it is given: what the shadow cannot make sense of is counted in
    :attr:`Shadow.errors`, and the last such error is kept. Memory is bounded: by `max_requests` live requests,
    `keep_done` that have ended, `keep_divergences`. An event costs below a microsecond
    (``benchmarks/bench_watch.py``); of a request that is not sampled, a fraction of that. Like a table, a shadow
    belongs to one thread, the scheduler's loop; other threads may read its attributes.

Sampling
    ``sample=0.1`` follows a tenth of the requests. Whether one is followed depends on its rid alone, so that all
    ranks, and both legs, follow the same ones. An event of somebody unknown is then taken for one of somebody who
    is not followed, and not counted.

Time
    What the scheduler owes (a free, a report, a cancel) it owes at once; it is given `grace` seconds, by `clock`.
    Overdue debts are looked for while events come in, and by :meth:`Shadow.sweep`. :meth:`Shadow.idle` says that
    there is nothing left to do: whatever is still open then diverges.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from .blame import broken_by
from .compile import Effect, compile_table
from .errors import DuplicateRequest, IllegalEvent
from .observe import Observer
from .policy import DEFAULT_POLICY, LatePolicy, Policy
from .prefill import PREFILL
from .reasons import WIRE
from .request import RequestLifecycle
from .spec import Table
from .vocabulary import KV, EffectKind, Event, Invariant, Word

# Local names: looking a member up in an enum costs more than comparing it.
_RELEASE: Final = EffectKind.RELEASE_KV
_REPORT: Final = EffectKind.REPORT
_CANCEL: Final = EffectKind.CANCEL_TRANSFER

_EVERYONE: Final = 1 << 32
"""How many values the checksum of a rid has."""


class DivergenceKind(Word):
    """What the scheduler did that the contract would not have done."""

    FREED_IN_FLIGHT = "freed_in_flight"
    FREED_UNDECIDED = "freed_undecided"
    FREED_IN_QUARANTINE = "freed_in_quarantine"
    FREED_TWICE = "freed_twice"
    NEVER_FREED = "never_freed"
    REASON_DIFFERS = "reason_differs"
    REPORTED_EARLY = "reported_early"
    REPORTED_TWICE = "reported_twice"
    NEVER_REPORTED = "never_reported"
    PEER_NOT_TOLD = "peer_not_told"
    NEVER_ENDED = "never_ended"
    ILLEGAL_EVENT = "illegal_event"


BROKEN: Final = {
    DivergenceKind.FREED_IN_FLIGHT: Invariant.NO_FREE_IN_FLIGHT,
    DivergenceKind.FREED_UNDECIDED: Invariant.CLAIM_COUNT,
    DivergenceKind.FREED_IN_QUARANTINE: Invariant.NO_FREE_IN_FLIGHT,
    DivergenceKind.FREED_TWICE: Invariant.SINGLE_RELEASE,
    DivergenceKind.NEVER_FREED: Invariant.DRAIN_TO_ZERO,
    DivergenceKind.REASON_DIFFERS: Invariant.REASON_BY_POLICY,
    DivergenceKind.REPORTED_EARLY: Invariant.STICKY_REASON,
    DivergenceKind.REPORTED_TWICE: Invariant.REPORT_ONCE,
    DivergenceKind.NEVER_REPORTED: Invariant.EVENTUALLY_DONE,
    DivergenceKind.PEER_NOT_TOLD: Invariant.PEER_TOLD,
    DivergenceKind.NEVER_ENDED: Invariant.EVENTUALLY_DONE,
}
"""The invariant of contract section 8 that each kind breaks; of an illegal event it depends on the cell."""


@attrs.frozen
class Divergence:
    """One thing that the scheduler did differently. The request is described as the contract has it.

    Attributes:
        kind, invariant: what was done, and the promise that it breaks.
        rid, incarnation, attempt: which request, which of its lives, which attempt.
        state, reason, claims: where the contract has it; the reason is None while undecided.
        what: one sentence.
        last: the last events seen, oldest first; empty where no journal is kept.
        at: when it was noted, by the shadow's clock, in seconds.
    """

    kind: DivergenceKind
    invariant: Invariant
    rid: str
    incarnation: int
    attempt: int
    state: str
    reason: str | None
    claims: tuple[str, ...]
    what: str
    last: tuple[str, ...]
    at: float

    def __str__(self) -> str:
        which = f"state: {self.state}" + (f" ({self.reason})" if self.reason else "")
        if self.attempt:
            which += f", attempt {self.attempt}"
        if self.incarnation > 1:
            which += f", life {self.incarnation} of this rid"
        lines = [
            f"{self.kind} ({self.invariant}): request {self.rid!r}: {self.what}",
            which,
            "claims: " + (", ".join(self.claims) or "none"),
        ]
        if self.last:
            lines.append("last events: " + ", ".join(self.last))
        return "\n  ".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Its fields as plain JSON."""
        return {
            "kind": str(self.kind),
            "invariant": str(self.invariant),
            "rid": self.rid,
            "incarnation": self.incarnation,
            "attempt": self.attempt,
            "state": str(self.state),
            "reason": None if self.reason is None else str(self.reason),
            "claims": list(self.claims),
            "what": self.what,
            "last": list(self.last),
            "at": self.at,
        }


class Life:
    """What a shadow knows of one life: the request by the contract, and what the scheduler did.

    Attributes:
        request: the request, as the contract has it.
        owes_frees: the attempts whose pages the scheduler has yet to free.
        owes_cancels: the attempts whose peer it has yet to tell that the hand-off is off.
        owes_report: whether it has yet to tell the client.
        freed: the attempts whose pages it freed.
        told: what it reported to the client; "" for a report that named no reason, None for no report.
    """

    __slots__ = ("freed", "owes_cancels", "owes_frees", "owes_report", "request", "told")

    def __init__(self, request: RequestLifecycle) -> None:
        self.request = request
        self.owes_frees: tuple[int, ...] = ()
        self.owes_cancels: tuple[int, ...] = ()
        self.owes_report = False
        self.freed: tuple[int, ...] = ()
        self.told: str | None = None

    @property
    def settled(self) -> bool:
        """Whether it is over, and the scheduler owes nothing."""
        return not (self.owes_frees or self.owes_report or self.owes_cancels) and self.request.over


class Shadow:
    """Follows the requests of somebody else's scheduler.

    Args:
        policy: the open choices of contract section 6 that the scheduler means to follow. ``late`` is ``absorb``
            whatever it says: a shadow has nobody to raise at.
        table: the declared table; the prefill leg by default.
        sample: the part of requests that is followed, from 0 to 1.
        grace: seconds that the scheduler is given for what it owes.
        cancels: whether the scheduler says when it cancels a transfer (:meth:`cancelled`); if so, a cancel that is
            owed and never told diverges.
        on_divergence: called with each divergence, in the thread and at the place that it was noted. What it
            raises is counted in :attr:`errors`.
        observers: told of everything that is followed: a recorder, metrics, traces (:mod:`lifecycle.observe`).
        max_requests: how many live requests are followed at most; further ones are counted in :attr:`overflow`.
        keep_done: how many requests that have ended are remembered, so that a second free is known as one.
        keep_divergences: how many divergences are kept; :attr:`counts` counts them all.
        journal: whether requests keep their last events for the messages.
        clock: seconds, never running backwards.

    Attributes:
        divergences: the last ones, oldest first.
        counts: how many of each kind there were.
        late, unknown: how many events of each kind came too late, or for nobody who is known.
        errors: how many calls the shadow could not make sense of; `last_error` is the last one's exception.
        overflow: how many requests there was no room for.

    Raises:
        ValueError: a number that makes no sense here, at construction and never later.
    """

    def __init__(
        self,
        policy: Policy = DEFAULT_POLICY,
        *,
        table: Table = PREFILL,
        sample: float = 1.0,
        grace: float = 5.0,
        cancels: bool = False,
        on_divergence: Callable[[Divergence], object] | None = None,
        observers: tuple[Observer, ...] = (),
        max_requests: int = 100_000,
        keep_done: int = 4096,
        keep_divergences: int = 1000,
        journal: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= sample <= 1:
            msg = f"sample is the part of requests to follow, from 0 to 1; got {sample!r}"
            raise ValueError(msg)
        if not grace >= 0:
            msg = f"grace is a number of seconds; got {grace!r}"
            raise ValueError(msg)
        if min(max_requests, keep_done, keep_divergences) < 1:
            msg = "max_requests, keep_done and keep_divergences are counts from 1"
            raise ValueError(msg)
        self.policy = attrs.evolve(policy, late=LatePolicy.ABSORB)
        self.table, self.grace, self.cancels, self.clock = table, grace, cancels, clock
        self.on_divergence, self.observers = on_divergence, observers
        self.max_requests, self.keep_done, self.keep_journal = max_requests, keep_done, journal
        self.divergences: deque[Divergence] = deque(maxlen=keep_divergences)
        self.counts: Counter[DivergenceKind] = Counter()
        self.late: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.errors = self.overflow = 0
        self.last_error: Exception | None = None
        self._automaton = compile_table(table, self.policy)
        self._below = int(sample * _EVERYONE)
        self._lives: dict[str, Life] = {}
        self._former: dict[tuple[str, int], Life] = {}
        self._ended: deque[Life] = deque()
        self._owed: deque[tuple[float, Life]] = deque()  # who owes something since when
        self._most_owed = 4 * max_requests

    # What happened.

    def saw(self, rid: str, event: str, **details: Any) -> None:
        """The scheduler learned of `event`; details as :meth:`lifecycle.RequestTable.fire` takes them.

        ``submit`` begins a life. Never raises.
        """
        try:
            life = self._lives.get(rid)
            if life is None or event == "submit" or "incarnation" in details:
                if life is not None or event == "submit" or self._below == _EVERYONE:
                    self._saw_rare(rid, event, details)
                return  # of those who are not sampled, nothing more is asked
            request = life.request
            late = request.late
            effects = request.fire(event, **details) if details else request.fire(event)
            if effects:
                self._owe(life, effects)
            elif request.late != late:
                self.late[event] += 1
            if self.observers:
                self._show("saw", request, event, details, effects)
        except IllegalEvent as error:
            self._illegal(error, event, details)
        except Exception as error:  # noqa: BLE001  # a shadow never raises into the scheduler
            self._failed(error)

    def _saw_rare(self, rid: str, event: str, details: dict[str, Any]) -> None:
        """A submit, an event that names its life, or one of somebody who is not followed."""
        if event == Event.SUBMIT:
            self._submit(rid)
            return
        incarnation = details.get("incarnation")
        life = self._find(rid, incarnation)
        if life is None:
            self.unknown[event] += 1
            self._show("unknown", rid, event, details)
            return
        request, late = life.request, life.request.late
        effects = request.fire(event, **{k: v for k, v in details.items() if k != "incarnation"})
        if effects:
            self._owe(life, effects)
        if request.late != late:
            self.late[event] += 1
        self._show("saw", request, event, details, effects)

    def _submit(self, rid: str) -> None:
        if not self._chosen(rid):
            return
        former, incarnation = self._lives.get(rid), 1
        if former is not None:
            request = former.request
            if not request.done and not request.reported:
                msg = f"submit is illegal for request {rid!r}: a request of that rid lives"
                raise request._error(DuplicateRequest, msg, Event.SUBMIT)
            self._former[rid, request.incarnation] = former
            incarnation = request.incarnation + 1
        elif len(self._lives) + len(self._former) - len(self._ended) >= self.max_requests:
            self.overflow += 1
            return
        request = RequestLifecycle(rid, self._automaton, incarnation, self.keep_journal)
        self._lives[rid] = Life(request)
        self._show("saw", request, Event.SUBMIT, {}, ())

    def _chosen(self, rid: str) -> bool:
        return self._below >= _EVERYONE or zlib.crc32(rid.encode("utf-8", "replace")) < self._below

    def _find(self, rid: str, incarnation: int | None) -> Life | None:
        life = self._lives.get(rid)
        if incarnation is None or (life is not None and life.request.incarnation == incarnation):
            return life
        return self._former.get((rid, incarnation))

    def _owe(self, life: Life, effects: tuple[Effect, ...]) -> None:
        """Note what the contract would do now, so that the scheduler has to."""
        for effect in effects:
            kind, attempt = effect.kind, effect.attempt
            if kind is _RELEASE:
                if attempt not in life.freed:  # else it was freed too early, which was noted then
                    life.owes_frees += (attempt,)
            elif kind is _REPORT:
                if life.told is None:
                    life.owes_report = True
                else:  # told too early, which was noted then
                    self._compare(life, life.told, None)
            elif kind is _CANCEL and self.cancels:
                life.owes_cancels += (attempt,)
        if life.owes_frees or life.owes_report or life.owes_cancels:
            now = self.clock()
            self._owed.append((now, life))
            if self._owed[0][0] < now - self.grace or len(self._owed) > self._most_owed:
                self._overdue(now)
        elif life.request.over:
            self._retire(life)

    # What the scheduler did.

    def freed(
        self, rid: str, *, attempt: int | None = None, incarnation: int | None = None
    ) -> None:
        """The scheduler gave the request's pages back to its pool. Never raises.

        Args:
            rid: the request.
            attempt: of which attempt; by default the oldest whose pages are out.
            incarnation: of which life; by default the newest.
        """
        try:
            life = self._find(rid, incarnation)
            if life is None:
                if self._below == _EVERYONE:
                    self.unknown["freed"] += 1
                return
            self._freed(life, attempt)
        except Exception as error:  # noqa: BLE001  # a shadow never raises into the scheduler
            self._failed(error)

    def _freed(self, life: Life, attempt: int | None) -> None:
        request, owed = life.request, life.owes_frees
        if owed and (attempt is None or attempt in owed):
            attempt = owed[0] if attempt is None else attempt
            life.freed += (attempt,)
            life.owes_frees = tuple([other for other in owed if other != attempt])
            if life.settled:
                self._retire(life)
            return
        if attempt is None:
            attempt = next(
                (old.attempt for old in request.draining if old.attempt not in life.freed),
                request.attempt,
            )
        old = next((old for old in request.draining if old.attempt == attempt), None)
        newest = attempt == request.attempt
        if attempt in life.freed:
            what = "its pages are freed a second time; by now they may be somebody else's"
            self._diverge(life, DivergenceKind.FREED_TWICE, what, attempt)
        elif old is not None or (newest and request.busy):
            claims = ", ".join(old.claims if old is not None else request.claims)
            what = f"its pages are freed while claims are open: {claims}"
            self._diverge(life, DivergenceKind.FREED_IN_FLIGHT, what, attempt)
        elif newest and request.kv is KV.HELD:
            what = "its pages are freed, and nothing has decided it"
            self._diverge(life, DivergenceKind.FREED_UNDECIDED, what, attempt)
        elif newest and request.kv is KV.QUARANTINED:
            what = "its pages are freed; nobody has proved that the hardware is quiet"
            self._diverge(life, DivergenceKind.FREED_IN_QUARANTINE, what, attempt)
        else:
            what = "pages are freed for it, and it holds none"
            self._diverge(life, DivergenceKind.FREED_TWICE, what, attempt)
        if attempt not in life.freed:
            life.freed += (attempt,)

    def reported(
        self,
        rid: str,
        reason: str | None = None,
        *,
        status: int | None = None,
        incarnation: int | None = None,
    ) -> None:
        """The scheduler told the client how the request ended. Never raises.

        Args:
            rid: the request.
            reason: what it said: a finish reason (``client_abort``), or the word on the wire (``abort``).
            status: the HTTP status, if that is to be compared too.
            incarnation: which life; by default the newest.
        """
        try:
            life = self._find(rid, incarnation)
            if life is None:
                if self._below == _EVERYONE:
                    self.unknown["reported"] += 1
                return
            self._reported(life, reason, status)
        except Exception as error:  # noqa: BLE001  # a shadow never raises into the scheduler
            self._failed(error)

    def _reported(self, life: Life, reason: str | None, status: int | None) -> None:
        if life.told is not None:
            what = f"the client is told a second time: {reason or 'no reason given'}"
            self._diverge(life, DivergenceKind.REPORTED_TWICE, what)
            return
        life.told = reason or ""
        if not life.request.reported:
            left = ", ".join(life.request.claims) or "nothing"
            what = f"the client is told {reason or 'the end'} before the end; outstanding: {left}"
            self._diverge(life, DivergenceKind.REPORTED_EARLY, what)
            return
        self._compare(life, life.told, status)
        if life.owes_report:
            life.owes_report = False
            if life.settled:
                self._retire(life)

    def _compare(self, life: Life, told: str, status: int | None) -> None:
        """Whether the client heard what the contract would have said."""
        reason = life.request.reason
        assert reason is not None  # a report is owed, or was made
        if told and told != reason and told != WIRE[reason].finish:
            wire = WIRE[reason].finish
            what = (
                f"the client is told {told!r}; by the contract it is {reason}, on the wire {wire}"
            )
            self._diverge(life, DivergenceKind.REASON_DIFFERS, what)
        elif status is not None and status != (due := life.request.outcome(WIRE).status):
            what = f"the client gets the status {status}; by the contract it is {due}"
            self._diverge(life, DivergenceKind.REASON_DIFFERS, what)

    def cancelled(
        self, rid: str, *, attempt: int | None = None, incarnation: int | None = None
    ) -> None:
        """The scheduler told the sender, or the peer, that the hand-off is off. Never raises."""
        try:
            life = self._find(rid, incarnation)
            if life is None:
                return
            owed = life.owes_cancels
            if owed:
                life.owes_cancels = tuple(a for a in owed if attempt not in (None, a))
                if life.settled:
                    self._retire(life)
        except Exception as error:  # noqa: BLE001  # a shadow never raises into the scheduler
            self._failed(error)

    # What is overdue.

    def sweep(self) -> None:
        """Look for what is overdue. Events do that too; call it where a scheduler is idle. Never raises."""
        try:
            self._overdue(self.clock())
        except Exception as error:  # noqa: BLE001  # a shadow never raises into the scheduler
            self._failed(error)

    def idle(self) -> None:
        """The scheduler has nothing left to do: whatever is open now diverges, without grace. Never raises."""
        try:
            self._overdue(float("inf"))
            for life in [*self._former.values(), *self._lives.values()]:
                request = life.request
                if not request.over:
                    what = "the scheduler is idle, and this request has not ended"
                    self._diverge(life, DivergenceKind.NEVER_ENDED, what)
                    self._drop(life)
        except Exception as error:  # noqa: BLE001  # a shadow never raises into the scheduler
            self._failed(error)

    def _overdue(self, now: float) -> None:
        """What was owed before the grace began diverges; it is noted once, and counts as settled then."""
        owed, limit = self._owed, now - self.grace
        while owed and owed[0][0] <= limit:
            _, life = owed.popleft()
            for attempt in life.owes_frees:
                what = "its pages are nobody's, and were not freed"
                self._diverge(life, DivergenceKind.NEVER_FREED, what, attempt)
            for attempt in life.owes_cancels:
                what = "its hand-off is off, and the peer was not told"
                self._diverge(life, DivergenceKind.PEER_NOT_TOLD, what, attempt)
            if life.owes_report:
                what = "it should be done, and the client was not told"
                self._diverge(life, DivergenceKind.NEVER_REPORTED, what)
            if life.owes_frees or life.owes_cancels or life.owes_report:
                life.owes_frees, life.owes_cancels, life.owes_report = (), (), False
                if life.settled:
                    self._retire(life)
        if len(owed) > self._most_owed:  # what was settled long ago is taken out now
            still = [e for e in owed if e[1].owes_frees or e[1].owes_report or e[1].owes_cancels]
            owed.clear()
            owed.extend(still)

    # Keeping order.

    def _retire(self, life: Life) -> None:
        """A life is over and nothing is owed: remember it for what comes late, and forget the oldest."""
        self._ended.append(life)
        if len(self._ended) > self.keep_done:
            self._drop(self._ended.popleft())

    def _drop(self, life: Life) -> None:
        rid = life.request.rid
        if self._lives.get(rid) is life:
            del self._lives[rid]
        else:
            self._former.pop((rid, life.request.incarnation), None)

    def _illegal(self, error: IllegalEvent, event: str, details: dict[str, Any]) -> None:
        try:
            self._show("refused", error.rid, event, details, error)
            life = self._find(error.rid, error.incarnation)
            if life is not None:
                decided = life.request.decided or error.reason is not None
                invariant = broken_by(error.state, event, decided=decided)
                self._diverge(life, DivergenceKind.ILLEGAL_EVENT, error.message, None, invariant)
        except Exception as fault:  # noqa: BLE001  # as above
            self._failed(fault)

    def _diverge(
        self,
        life: Life,
        kind: DivergenceKind,
        what: str,
        attempt: int | None = None,
        invariant: Invariant | None = None,
    ) -> None:
        request = life.request
        divergence = Divergence(
            kind=kind,
            invariant=BROKEN[kind] if invariant is None else invariant,
            rid=request.rid,
            incarnation=request.incarnation,
            attempt=request.attempt if attempt is None else attempt,
            state=request.state,
            reason=request.reason,
            claims=request.claims,
            what=what,
            last=request.journal,
            at=self.clock(),
        )
        self.counts[kind] += 1
        self.divergences.append(divergence)
        self._show("diverged", divergence)
        if self.on_divergence is not None:
            try:
                self.on_divergence(divergence)
            except Exception as error:  # noqa: BLE001  # a callback's fault is not the scheduler's
                self._failed(error)

    def _show(self, method: str, *arguments: Any) -> None:
        """Tell the observers."""
        for observer in self.observers:
            try:
                getattr(observer, method)(*arguments)
            except Exception as error:  # noqa: BLE001  # an observer's fault is not the scheduler's
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Something that the shadow could not make sense of."""
        self.errors += 1
        self.last_error = error

    # Looking at it.

    def __len__(self) -> int:
        """How many requests are followed that have not ended."""
        return len(self._lives) + len(self._former) - len(self._ended)

    def __contains__(self, rid: object) -> bool:
        return rid in self._lives

    def __getitem__(self, rid: str) -> RequestLifecycle:
        """The newest life of `rid` as the contract has it.

        Raises:
            KeyError: it is not followed, or forgotten.
        """
        return self._lives[rid].request

    def lives(self) -> Iterator[RequestLifecycle]:
        """Every life that is kept, as the contract has it; of a copy, so that events may come in meanwhile."""
        kept = [*self._former.values(), *self._lives.values()]
        return (life.request for life in kept)
