"""What can happen to a stack: one move for each event, each with the condition that some request can take it.

A move is a method of :class:`Moves` that takes one number, *pick*, and spends it on whatever there is to choose:
which request, which pass, which reason. So a run is a list of pairs (move, pick), the same list does the same
again, and 0 is always the plainest choice. Hypothesis chooses in :mod:`lifecycle.testing.stack`; a loop with a
random number generator does as well, and far faster (:func:`lifecycle.testing.stack.walk`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ..consensus import Verdict
from ..policy import DEFAULT_POLICY, Policy
from ..vocabulary import AbortSource, GrammarCause, Invariant
from .oracle import DRAINING, Attempt, Claim, Life
from .rig import Parts, Rig, StackBroken, stack_broken

_T = TypeVar("_T")

RIDS = ("r1", "r10", "r2")  # one begins like another, on purpose
PREFIXES = ("r1", "r", "r2", "x")
SOURCES = tuple(str(source) for source in AbortSource)
CAUSES = tuple(str(cause) for cause in GrammarCause)
OPS = ("c0", "kv", "c1")
PROMPTS = ((1, 1), (1, 2), (2, 1, 1), (1,))
RANKS = (0, 1)

PORTS = (
    *(
        (port, when)
        for when in ("before", "after")
        for port in ("release", "quarantine", "publish")
    ),
    *((port, "before") for port in ("cancel", "report", "holds")),  # what raises there was not done
)

PROBES: Mapping[str, tuple[str, ...]] = {
    "queued": ("forward_launched", "transfer_posted", "prefill_finished", "complete", "preempt", "submit"),
    "prefilling": ("submit", "admit", "drain_timeout"),
    "transferring": ("forward_launched", "transfer_posted", "preempt", "prefill_finished", "admit", "submit"),
    "draining": ("forward_launched", "transfer_posted", "preempt", "admit"),
    "done": ("forward_launched", "transfer_posted", "preempt", "prefill_finished", "admit"),
}  # fmt: skip
"""What a request must refuse, by its state (contract section 5)."""


class Picker:
    """Spends a number on choices."""

    def __init__(self, pick: int) -> None:
        self.left = pick

    def one(self, choices: Sequence[_T]) -> _T:
        """One of several; the first for 0."""
        self.left, at = divmod(self.left, len(choices))
        return choices[at]


class Moves(Rig):
    """A rig and what can be done to it.

    Args:
        parts, policy, deadlines: see :class:`~lifecycle.testing.rig.Rig`.
        turned: by how many places reasons of one tier are exchanged: what happens to memory must not change
            (``reason_not_control``).
    """

    def __init__(
        self,
        parts: Parts | None = None,
        policy: Policy = DEFAULT_POLICY,
        deadlines: Mapping[str, float] | None = None,
        turned: int = 0,
    ) -> None:
        super().__init__(parts, policy, deadlines)
        self.turned = turned
        self.script: list[tuple[str, int]] = []
        self.told: list[dict[str, Any]] = []  # completions, for telling them twice
        self.answers: dict[str, list[tuple[int, bool]]] = {}
        self.lags: set[int] = set()  # ranks that do not know of the newest op yet

    def do(self, move: str, pick: int = 0) -> None:
        """Do a move.

        Raises:
            StackBroken: an invariant broke by it.
        """
        self.script.append((move, pick))
        try:
            getattr(self, move)(Picker(pick))
        except StackBroken as broken:
            if (
                self.turned == 0
                and broken.invariant in _ABOUT_MEMORY
                and self._other_reasons_help()
            ):
                text = f"{broken.what}; with other reasons of the same tiers it does not happen"
                raise stack_broken(Invariant.REASON_NOT_CONTROL, text, broken.trace) from None
            raise

    def _other_reasons_help(self) -> bool:
        for turned in (1, 2, 3):
            rig = Moves(self.parts, self.policy, self.deadlines, turned)
            try:
                rig.replay(self.script)
            except StackBroken:
                continue
            return True
        return False

    def replay(self, script: Sequence[tuple[str, int]]) -> None:
        """Do a whole script.

        Raises:
            StackBroken: an invariant broke.
        """
        try:
            for move, pick in list(script):
                self.do(move, pick)
        finally:
            self.close()

    def can(self, move: str) -> bool:
        """Whether something can take this move now."""
        condition = getattr(self, f"can_{move}", None)
        return condition is None or bool(condition())

    # Who can take what.

    def newest(self, *states: str, decided: bool | None = None) -> list[Life]:
        """The newest lives in these states (all but done, if none is named)."""
        newest = [lives[-1] for lives in self.oracle.lives.values() if lives]
        return [
            life
            for life in newest
            if (life.state in states if states else life.state != "done")
            and (decided is None or life.decided is decided)
        ]

    def outstanding(self, kind: str) -> list[tuple[Life, Attempt, Claim]]:
        """The passes or ops that the hardware has not ended, of any life and attempt."""
        return [
            (life, attempt, claim)
            for life in self.lives
            for attempt in life.attempts
            for claim in attempt.in_use
            if claim[0] == kind
        ]

    def event(self, name: str, life: Life, **details: Any) -> None:
        """Fire an event at a life."""
        self.fire({"event": name, "rid": life.rid, "incarnation": life.number, **details})

    def source(self, p: Picker) -> str:
        """Who aborts."""
        return SOURCES[(SOURCES.index(p.one(SOURCES)) + self.turned) % len(SOURCES)]

    # Requests come.

    def can_submit(self) -> bool:
        """Whether a rid is unused, or may be used again."""
        return bool(self._rids())

    def _rids(self) -> list[str]:
        lives = self.oracle.lives
        return [
            rid for rid in RIDS if not lives.get(rid) or lives[rid][-1].state == "done" or lives[rid][-1].reported
        ]  # fmt: skip

    def submit(self, p: Picker) -> None:
        """A request; of a rid that was used before, a new life."""
        self.fire({"event": "submit", "rid": p.one(self._rids())})

    def can_admit(self) -> bool:
        """Whether one waits."""
        return bool(self.newest("queued"))

    def admit(self, p: Picker) -> None:
        """Pages for a request, if there are enough."""
        life = p.one(self.newest("queued"))
        grant = self.pool.alloc(life.rid, life.newest.number, p.one(PROMPTS))
        if grant is not None:
            line = {"event": "admit", "rid": life.rid, "incarnation": life.number}
            self.fire({**line, "pages": len(self.pool.pages(grant))}, grant)

    # It computes.

    def can_forward_launched(self) -> bool:
        """Whether one computes."""
        return bool(self.newest("prefilling", decided=False))

    def forward_launched(self, p: Picker) -> None:
        """A pass; now and then with work on the side stream."""
        life = p.one(self.newest("prefilling", decided=False))
        self.event("forward_launched", life)
        holding = self.holding(life)
        if holding is not None and p.one((False, False, True)):
            self.pool.use(holding.grant)
            self.ledger.used(holding.key)

    def can_forward_finished(self) -> bool:
        """Whether a pass runs."""
        return bool(self.outstanding("step"))

    def forward_finished(self, p: Picker) -> None:
        """The result of a pass, in any order."""
        life, attempt, (_, step) = p.one(self.outstanding("step"))
        holding = self.ledger.holdings[life.rid, life.number, attempt.number]
        holding.finished.add(step)
        if holding.away == "":
            self.pool.prove(holding.grant, holding.proven)
        self.completion("forward_finished", life, attempt=attempt.number, step=step)

    def completion(self, name: str, life: Life, **details: Any) -> None:
        """An end that the hardware tells."""
        line = {"event": name, "rid": life.rid, "incarnation": life.number, **details}
        self.told.append(line)
        if len(self.told) > 16:
            del self.told[0]
        if name in ("transfer_succeeded", "transfer_drained"):
            self._quiet(line)
        self.fire(line)

    def _quiet(self, line: dict[str, Any]) -> None:
        """The pool hears of an op's end as well."""
        key = (line["rid"], line["incarnation"], line["attempt"])
        holding = self.ledger.holdings.get(key)
        if holding is not None:
            broke = self.ledger.intact(key) if holding.away == "" else None
            self.pool.drain_op(holding.grant, line["op"])
            if broke is not None:
                self.broken(*broke)

    # It is handed over.

    def can_transfer_posted(self) -> bool:
        """Whether one may send."""
        return bool(self._senders())

    def _senders(self) -> list[tuple[Life, str]]:
        return [
            (life, op)
            for life in self.newest("prefilling", decided=False)
            for op in OPS
            if ("op", op) not in life.newest.claims
        ]

    def transfer_posted(self, p: Picker) -> None:
        """A chunk is handed to the sender."""
        life, op = p.one(self._senders())
        self._opened(life, op)
        self.event("transfer_posted", life, op=op)

    def _opened(self, life: Life, op: str) -> None:
        holding = self.holding(life)
        if holding is not None:
            self.pool.open_op(holding.grant, op)

    def can_prefill_finished(self) -> bool:
        """Whether one computes."""
        return bool(self.newest("prefilling"))

    def prefill_finished(self, p: Picker) -> None:
        """The prompt is computed."""
        life = p.one(self.newest("prefilling"))
        if not life.newest.ops:
            self._opened(life, "kv")
        self.event("prefill_finished", life)

    def can_transfer_succeeded(self) -> bool:
        """Whether an op is out."""
        return bool(self.outstanding("op"))

    can_transfer_failed = can_transfer_drained = can_rank_answers = can_poll = (
        can_transfer_succeeded
    )

    def transfer_succeeded(self, p: Picker) -> None:
        """An op is delivered, in any order."""
        life, attempt, (_, op) = p.one(self.outstanding("op"))
        self.completion("transfer_succeeded", life, attempt=attempt.number, op=op)

    def transfer_failed(self, p: Picker) -> None:
        """A verdict: the op may go on."""
        life, attempt, (_, op) = p.one(self.outstanding("op"))
        self.event("transfer_failed", life, attempt=attempt.number, op=op)

    def transfer_drained(self, p: Picker) -> None:
        """Proof that an op has stopped."""
        life, attempt, (_, op) = p.one(self.outstanding("op"))
        self.completion("transfer_drained", life, attempt=attempt.number, op=op)

    # Ranks: each answers for itself, and one poll makes one answer of it.

    def rank_answers(self, p: Picker) -> None:
        """A rank's share of an op has a result; a rank may also not know of the op yet."""
        life, attempt, (_, op) = p.one(self.outstanding("op"))
        rank = p.one(RANKS)
        key = f"{life.rid}#{life.number}.{attempt.number}:{op}"
        answers = self.answers.setdefault(key, [(Verdict.PENDING, False)] * len(RANKS))
        what = p.one(("succeeded", "failed", "drained", "lags", "catches up"))
        if what == "lags":
            self.lags.add(rank)
        elif what == "catches up":
            self.lags.discard(rank)
        elif what == "succeeded":
            answers[rank] = (Verdict.SUCCEEDED, True)
        else:
            answers[rank] = (Verdict.FAILED, what == "drained")

    def poll(self, p: Picker) -> None:
        """All ranks are asked about the ops that all of them know; what comes of it is fired."""
        del p
        by_key = {
            f"{life.rid}#{life.number}.{attempt.number}:{op}": (life, attempt, op)
            for life, attempt, (_, op) in self.outstanding("op")
        }
        keys = list(by_key)
        queues = {rank: keys[:-1] if rank in self.lags else keys[:: 1 - 2 * rank] for rank in RANKS}
        agreed = self.parts.agree(queues, RANKS).rids
        right = tuple(key for key in queues[0] if all(key in queues[rank] for rank in RANKS))
        if tuple(agreed) != right:
            self.broken(Invariant.RANK_AGREEMENT, f"ranks agree on {agreed}, and all have {right}")
        pending = [(Verdict.PENDING, False)] * len(RANKS)
        answers = [self.answers.get(key, pending) for key in right]
        verdicts = self.parts.verdict({r: [a[r][0] for a in answers] for r in RANKS}, RANKS)
        quiet = self.parts.drained({r: [a[r][1] for a in answers] for r in RANKS}, RANKS)
        for key, answer, verdict, drained in zip(right, answers, verdicts, quiet, strict=True):
            failed = any(said == Verdict.FAILED for said, _ in answer)
            succeeded = all(said == Verdict.SUCCEEDED for said, _ in answer)
            wanted = (
                Verdict.FAILED if failed else Verdict.SUCCEEDED if succeeded else Verdict.PENDING
            )
            stopped = all(done for _, done in answer)
            if verdict != wanted or drained != stopped:
                text = f"{key}: ranks say {answer}; that makes {verdict}, drained: {drained}"
                self.broken(Invariant.RANK_AGREEMENT, text)
            life, attempt, op = by_key[key]
            if succeeded:
                self.completion("transfer_succeeded", life, attempt=attempt.number, op=op)
                continue
            name = "transfer_failed" if failed else "transfer_pending"
            self.event(name, life, attempt=attempt.number, op=op)
            if stopped:
                self.completion("transfer_drained", life, attempt=attempt.number, op=op)

    # It ends, one way or another.

    def can_grammar_ready(self) -> bool:
        """Whether a request lives."""
        return bool(self.newest())

    can_grammar_failed = can_peer_lost = can_error = can_transfer_pending = can_grammar_ready

    def grammar_ready(self, p: Picker) -> None:
        """The grammar compiled."""
        self.event("grammar_ready", p.one(self.newest()))

    def transfer_pending(self, p: Picker) -> None:
        """A poll that decides nothing."""
        self.event("transfer_pending", p.one(self.newest()))

    def grammar_failed(self, p: Picker) -> None:
        """The grammar failed."""
        self.event("grammar_failed", p.one(self.newest()), cause=p.one(CAUSES))

    def peer_lost(self, p: Picker) -> None:
        """The other leg is gone."""
        self.event("peer_lost", p.one(self.newest()))

    def error(self, p: Picker) -> None:
        """The engine failed on one request."""
        self.event("error", p.one(self.newest()))

    def can_complete(self) -> bool:
        """Whether one has an answer."""
        return bool(self._answering())

    def _answering(self) -> list[Life]:
        return self.newest("prefilling", "transferring", *DRAINING)

    def complete(self, p: Picker) -> None:
        """The answer ended without a hand-off."""
        life, at = p.one(self._answering()), p.one((0, 1))
        reasons = ("stop", "length")
        reason = reasons[(at + self.turned) % 2]
        self.event("complete", life, reason=reason, position=p.one((3, 5)))

    def abort(self, p: Picker) -> None:
        """Exactly one rid, whatever its state, also before its submit."""
        self.fire({"event": "abort", "rid": p.one(RIDS), "source": self.source(p)})

    def abort_prefix(self, p: Picker) -> None:
        """Every request whose rid begins so."""
        prefix, source = p.one(PREFIXES), self.source(p)
        self._aborts(prefix, source)

    def abort_all(self, p: Picker) -> None:
        """Every request."""
        self._aborts("", self.source(p))

    def _aborts(self, prefix: str, source: str) -> None:
        followed = [self.follow(line) for line in self.aborts(prefix, {"source": source})]
        refused = sum(verdict.kind in ("late", "illegal") for _, verdict in followed)
        call = (
            (lambda: self.driver.abort_prefix(prefix, source, now=self.now))
            if prefix
            else (lambda: self.driver.abort_all(source, now=self.now))
        )
        self.many(call, [life for life, _ in followed], refused, {"event": "abort"})

    can_preempt = can_forward_launched

    def preempt(self, p: Picker) -> None:
        """Its pages are taken back."""
        self.event("preempt", p.one(self.newest("prefilling", decided=False)))

    def can_drain_timeout(self) -> bool:
        """Whether something drains."""
        return bool(self._draining())

    def _draining(self) -> list[Life]:
        return [
            life for life in self.lives
            if life.state in DRAINING or any(attempt.busy for attempt in life.attempts[:-1])
        ]  # fmt: skip

    def drain_timeout(self, p: Picker) -> None:
        """The drain deadline passed."""
        self.event("drain_timeout", p.one(self._draining()))

    # Threads, time, ports, the device, an operator.

    def post(self, p: Picker) -> None:
        """A thread puts aborts and a completion into the inbox; the loop goes on meanwhile."""
        entries: list[tuple[str, str, dict[str, Any]]] = []
        for _ in range(p.one((1, 2))):
            what, source = (
                p.one(("abort", "abort_prefix", "abort_all", "complete", "unknown")),
                self.source(p),
            )
            rid = p.one(RIDS)
            if what == "abort":
                entries.append(("fire", rid, {"event": "abort", "source": source}))
            elif what == "abort_prefix":
                entries.append((what, p.one(PREFIXES), {"source": source}))
            elif what == "abort_all":
                entries.append((what, "", {"source": source}))
            elif what == "complete" and (ops := self.outstanding("op")):
                life, attempt, (_, op) = p.one(ops)
                named = {"incarnation": life.number, "attempt": attempt.number, "op": op}
                entries.append(("fire", life.rid, {"event": "transfer_succeeded", **named}))
            else:
                entries.append(("fire", "nobody", {"event": "transfer_failed"}))
        self.post_in_a_thread(entries)

    def can_safe_point(self) -> bool:
        """Whether something was posted."""
        return bool(self.posted)

    def safe_point(self, p: Picker) -> None:
        """The loop takes in what was posted."""
        del p
        self.drain_inbox()

    def time_passes(self, p: Picker) -> None:
        """Some seconds pass, and deadlines are looked at."""
        self.now += p.one((1, 3, 10))
        self.expire()

    def can_told_twice(self) -> bool:
        """Whether something was told once."""
        return bool(self.told)

    def told_twice(self, p: Picker) -> None:
        """A completion comes again."""
        self.fire(dict(p.one(self.told)))

    def can_port_will_fail(self) -> bool:
        """One at a time."""
        return not self.planned and not self.driver.faults

    def port_will_fail(self, p: Picker) -> None:
        """The next call of a port raises, before or after its work."""
        port, when = p.one(PORTS)
        self.planned[port] = when

    def can_retry(self) -> bool:
        """Whether something is owed."""
        return bool(self.driver.faults)

    def retry(self, p: Picker) -> None:
        """What ports refused is tried again."""
        del p
        self.many(self.driver.retry, [], 0, {"event": "retry"})

    def stream_gets_on(self, p: Picker) -> None:
        """The device does what is queued on the side stream."""
        del p
        self.pool.stream.complete()
        self.touched = True

    def can_operator_clears(self) -> bool:
        """Whether pages in quarantine are quiet."""
        return any(
            holding.away == "quarantined" and not self.in_use(key)
            for key, holding in self.ledger.holdings.items()
        )

    def operator_clears(self, p: Picker) -> None:
        """What is in quarantine and quiet comes back."""
        del p
        self.touched = True
        for key, holding in self.ledger.holdings.items():
            if holding.away == "quarantined" and not self.in_use(key):
                self.pool.clear_quarantine(holding.grant)
                holding.away = "cleared"

    def can_probe(self) -> bool:
        """Whether there is a request to ask."""
        return bool(self.oracle.lives)

    def probe(self, p: Picker) -> None:
        """An event that the request must refuse: nothing may change."""
        lives = p.one(list(self.oracle.lives.values()))
        life = lives[-1]
        state = "draining" if life.state in DRAINING else life.state
        name = p.one(PROBES[state])
        if name == "submit":
            if not life.reported:
                self.fire({"event": "submit", "rid": life.rid})
            return
        details = {"reason": "stop"} if name == "complete" else {}
        self.event(name, life, **details)

    # The end.

    def settle(self, p: Picker) -> None:
        """Everything ends, and what is left is looked at: nothing may be."""
        del p
        self.planned.clear()
        self.drain_inbox()
        for _ in range(3):
            while self.can_forward_finished():
                self.forward_finished(Picker(0))
            while self.can_transfer_succeeded():
                self.transfer_succeeded(Picker(0))
            for life in self.newest():
                if life.state == "queued":
                    self.event("abort", life, source=SOURCES[self.turned])
                else:
                    self.prefill_finished_of(life)
        self.retry(Picker(0))
        if self.driver.faults:
            self.broken(Invariant.FAULT_ISOLATED, f"still owed: {self.driver.faults[0]}")
        self.pool.stream.complete()
        self._idle()

    def prefill_finished_of(self, life: Life) -> None:
        """Hand a request over."""
        if life.state == "prefilling":
            if not life.newest.ops:
                self._opened(life, "kv")
            self.event("prefill_finished", life)

    def _idle(self) -> None:
        counts = self.pool.counts()
        found = self.oracle.at_idle()
        if found:
            self.broken(Invariant(found[0].invariant), f"{found[0].rid!r}: {found[0].detail}")
        out = [key for key, holding in self.ledger.holdings.items() if holding.away == ""]
        if counts.held or out:
            self.broken(Invariant.DRAIN_TO_ZERO, f"pages of {out} are still out: {counts}")
        self.operator_clears(Picker(0))
        counts = self.pool.counts()
        if counts.free + counts.cached + counts.pending != counts.total or counts.quarantined:
            self.broken(Invariant.DRAIN_TO_ZERO, f"at idle: {counts}")
        if len(self.table):
            self.broken(Invariant.EVENTUALLY_DONE, f"{len(self.table)} requests have not ended")
        if self.table.unknown.total() != self.oracle.unknown:
            text = f"{self.table.unknown} unknown events; the contract counts {self.oracle.unknown}"
            self.broken(Invariant.LATE_IS_ABSORBED, text)


_ABOUT_MEMORY = frozenset(
    {
        Invariant.SINGLE_RELEASE,
        Invariant.NO_FREE_IN_FLIGHT,
        Invariant.FREE_AFTER_ALL_OPS,
        Invariant.DRAIN_TO_ZERO,
        Invariant.PEER_TOLD,
        Invariant.CLAIM_COUNT,
    }
)

MOVES: tuple[str, ...] = (
    "submit", "admit", "forward_launched", "forward_finished", "transfer_posted", "prefill_finished",
    "transfer_succeeded", "transfer_failed", "transfer_drained", "rank_answers", "poll", "grammar_ready",
    "transfer_pending", "grammar_failed", "peer_lost", "error", "complete", "abort", "abort_prefix", "abort_all",
    "preempt", "drain_timeout", "post", "safe_point", "time_passes", "told_twice", "port_will_fail", "retry",
    "stream_gets_on", "operator_clears", "probe",
)  # fmt: skip
"""Every move but :meth:`Moves.settle`, which comes last."""
