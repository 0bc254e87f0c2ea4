"""The contract once more, as a plain, slow, obviously right model with sets of claims.

This module is written from the contract (and the project's readings of it, R1 to R22) alone. It shares no
code with the rest of the package, not even its enums: a mistake in the declared table, or in what is
compiled from it, then shows up as a disagreement between the two. Read it beside the contract; each method
quotes the section or the reading that it follows, and the rows of section 5 stand in the order of that table.

It answers two questions:

1. *What does the contract say?* `Oracle.apply` takes one trace event (section 9) and returns a `Verdict`;
   `Oracle.result` is what ``lifecycle replay --json`` prints for the trace so far.

   >>> oracle = Oracle()
   >>> for event in ("submit", "admit", "prefill_finished", "abort"):
   ...     verdict = oracle.apply({"event": event, "rid": "r"})
   >>> verdict.kind, verdict.state, [effect.name for effect in verdict.effects]
   ('move', 'aborted', ['cancel_transfer'])

2. *Does a scheduler do what it says?* With ``watching=True`` the oracle performs nothing: it is told what
   really happened (`Oracle.observe`), and judges that by the invariants of section 8.

   >>> judge = Oracle(watching=True)
   >>> for event in ("submit", "admit", "prefill_finished", "abort"):
   ...     _ = judge.apply({"event": event, "rid": "r"})
   >>> judge.observe("r", "release_kv")[0].invariant  # op kv is still out
   'no_free_in_flight'

Two books are kept for each attempt. The *contract's* columns (`kv`, `claims`, `cancelled`) say what ought to
be. The *ledger's* columns (`in_use`, `freed`, `fenced`, `cancels`) say what has happened: `in_use` holds every
step and op that has started and has not been proven to have ended, and no policy, verdict or deadline can
take anything out of it. The invariants compare the two.

Trace events are taken to be valid (known events and fields, right types). Choices where the contract and the
readings are both silent: an abort without a source is the client's; lives are counted from 1, attempts from
0; `incarnation` and `attempt` of a `submit` are not looked at; an abort before its submit is remembered until
that submit, since a trace has no clock of its own; an event that names the newest attempt is looked up in
that attempt alone; a late or unknown event under ``late = strict`` is counted nowhere but among the illegal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from attrs import Factory, define, frozen

Event = Mapping[str, Any]  # One line of a trace (section 9).
Claim = tuple[str, Any]  # ("step", number) or ("op", id).

# Section 2. Decided but not drained.
DRAINING = ("grammar_failed", "aborted")

# Section 5, last rows, and R15: what a finished request cannot take; all else is late.
ILLEGAL_WHEN_DONE = ("admit", "forward_launched", "transfer_posted", "prefill_finished", "preempt")
NEW_WORK = ("admit", "forward_launched", "transfer_posted", "preempt")

# Section 6: the tiers, highest first, and what goes on the wire with which HTTP status.
TIERS: tuple[tuple[str, ...], ...] = (
    ("client_abort", "server_abort", "timeout", "shutdown", "grammar_error"),
    ("transfer_failed", "peer_lost", "internal_error"),
    ("stop", "length"),
)
WIRE = {
    "stop": ("stop", 200),
    "length": ("length", 200),
    "client_abort": ("abort", 499),
    "server_abort": ("abort", 503),
    "timeout": ("abort", 503),
    "shutdown": ("abort", 503),
    "grammar_error": ("error", 400),
    "transfer_failed": ("error", 502),
    "peer_lost": ("error", 502),
    "internal_error": ("error", 500),
}
STATUS_BY_GRAMMAR_CAUSE = {"timeout": 503, "dead_end": 500}
ABORT_BY_SOURCE = {
    "client": "client_abort",
    "server": "server_abort",
    "timeout": "timeout",
    "shutdown": "shutdown",
}
REASON_BY_EVENT = {
    "grammar_failed": "grammar_error",
    "transfer_failed": "transfer_failed",
    "transfer_drained": "transfer_failed",  # Where it comes without success.
    "peer_lost": "peer_lost",
    "error": "internal_error",
}
COMPLETION_REASONS = ("stop", "length")

# Section 6, the policies: the choices, the default first. `precedence` has a form of its own (R14).
POLICIES = {
    "abort_after_handoff": ("record", "ignore"),
    "on_undrained": ("quarantine", "hold", "release"),
    "report": ("at_done", "at_decision"),
    "publish_aborted": ("never", "proven"),
    "late": ("absorb", "strict"),
}


@frozen
class Reason:
    """A finish reason with the details of the event that brought it (section 6, R18)."""

    name: str
    position: int | None = None
    status: int | None = None
    message: str | None = None


@frozen
class Effect:
    """`cancel_transfer`, `release_kv`, `quarantine_kv` or `report`; only a report has the last four fields."""

    name: str
    attempt: int
    reason: str | None = None
    wire: str | None = None
    status: int | None = None
    message: str | None = None


@frozen
class Verdict:
    """The contract's answer to one event.

    `kind` is `move` (the state changed), `stay`, `late`, `illegal` or `unknown`. `state` is the one after the
    event, None for an unknown request. `reason` is the finish reason recorded so far, and `why` says in words
    what made the event late, illegal or unknown.
    """

    kind: str
    state: str | None
    effects: tuple[Effect, ...] = ()
    reason: str | None = None
    why: str = ""


@frozen
class Violation:
    """A broken invariant, by its name in section 8; `line` is the event after which it was seen."""

    invariant: str
    rid: str
    line: int
    detail: str


@define(eq=False)
class Attempt:
    """One go at a request: between two preempts. `claims` is a set kept in the order of taking."""

    number: int
    pages: int = 0
    # What ought to be. `kv` is "none", "held", "released" or "quarantined".
    kv: str = "none"
    claims: list[Claim] = Factory(list)
    cancelled: bool = False
    # What has happened.
    in_use: list[Claim] = Factory(list)
    ops_ended: int = 0
    freed: int = 0
    fenced: int = 0
    cancels: int = 0

    @property
    def busy(self) -> bool:
        """Section 5: a step or op claim is outstanding."""
        return bool(self.claims)

    @property
    def ops(self) -> list[Claim]:
        """The op claims alone."""
        return [claim for claim in self.claims if claim[0] == "op"]

    @property
    def overdue(self) -> bool:
        """The contract has given the pages back, and nobody has done so yet."""
        return self.kv in ("released", "quarantined") and not self.freed + self.fenced


@define(eq=False)
class Life:
    """One incarnation of a rid."""

    rid: str
    number: int
    state: str = "queued"
    reason: Reason | None = None
    handed_off: bool = False  # R3: every op of the hand-off succeeded.
    reported: bool = False  # What ought to be; `told` is what has happened.
    attempts: list[Attempt] = Factory(lambda: [Attempt(0)])
    largest_step: int = 0
    effects: list[Effect] = Factory(list)
    late: int = 0
    told: list[str | None] = Factory(list)
    heard: list[str] = Factory(list)  # Every reason that any event brought, in order of arrival.

    @property
    def newest(self) -> Attempt:
        """The attempt that `kv` and `claims` of section 9 speak of."""
        return self.attempts[-1]

    @property
    def decided(self) -> bool:
        """A reason is recorded that ends the request; one that waits for its hand-off does not yet (R5)."""
        if self.state == "transferring":
            return self.handed_off
        return self.reason is not None

    def facts(self) -> tuple[object, ...]:
        """All that an event which is late or illegal must leave as it was."""
        attempts = tuple((a.kv, tuple(a.claims), a.cancelled) for a in self.attempts)
        return self.state, self.reason, self.handed_off, self.reported, attempts, len(self.effects)


class _Refused(Exception):
    """The event is late or illegal. Raised before anything is changed."""

    def __init__(self, why: str, kind: str) -> None:
        super().__init__(why)
        self.kind = kind


def _late(why: str) -> NoReturn:
    raise _Refused(why, "late")


def _illegal(why: str) -> NoReturn:
    raise _Refused(why, "illegal")


class Oracle:
    """The contract's table of requests, and the judge of section 8.

    Args:
        policy: policies by the names and choices of section 6; what is left out has its default.
        watching: the effects are not performed here, but told by `observe`.

    Raises:
        ValueError: a policy that the contract does not know.
    """

    def __init__(
        self, policy: Mapping[str, object] | None = None, *, watching: bool = False
    ) -> None:
        self.policy: dict[str, object] = {name: choices[0] for name, choices in POLICIES.items()}
        self.policy.update(policy or {})
        self.tiers = _tiers(self.policy.pop("precedence", "tiers"))
        for name, choice in self.policy.items():
            if choice not in POLICIES.get(name, ()):
                msg = f"policy {name} = {choice!r} is not in the contract, section 6"
                raise ValueError(msg)
        self.watching = watching
        self.lives: dict[str, list[Life]] = {}
        self.violations: list[Violation] = []
        self.illegal: list[dict[str, object]] = []
        self.unknown = 0
        self._early_aborts: dict[tuple[str, int], Reason] = {}
        self._early_heard: dict[tuple[str, int], list[str]] = {}  # also those that did not win
        self._line = 0
        self._rows: dict[str, Callable[[Life, Event], None]] = {
            "transfer_pending": self._nothing,
            "grammar_ready": self._nothing,
            "admit": self._admit,
            "forward_launched": self._forward_launched,
            "transfer_posted": self._transfer_posted,
            "prefill_finished": self._prefill_finished,
            "forward_finished": self._completion,
            "transfer_succeeded": self._completion,
            "transfer_drained": self._completion,
            "transfer_failed": self._transfer_failed,
            "grammar_failed": self._decision,
            "peer_lost": self._decision,
            "error": self._decision,
            "abort": self._abort,
            "complete": self._complete,
            "preempt": self._preempt,
            "drain_timeout": self._drain_timeout,
        }

    # Section 7: which request an event is for ------------------------------------------------------

    def apply(self, event: Event, line: int | None = None) -> Verdict:
        """Step through one event; `line` is its number in the trace (default: one more than the last)."""
        self._line = self._line + 1 if line is None else line
        rid, name = event["rid"], event["event"]
        if name == "submit":
            return self._submit(rid)

        # Section 9: `incarnation` defaults to the newest.
        lives = self.lives.get(rid, [])
        number = event.get("incarnation", max(len(lives), 1))
        if not 1 <= number <= len(lives):
            return self._unknown(event, number)
        life = lives[number - 1]
        if (brought := self._reason(event)) is not None:
            life.heard.append(brought.name)  # Also where it is refused: see _misreport.

        before, effects_before = life.facts(), len(life.effects)
        state, reported, decided = life.state, life.reported, life.decided
        reason, claims_before = life.reason, len(life.newest.claims)
        kind, why = "stay", ""
        try:
            self._row(life, event)(life, event)
            if life.state != state:
                kind = "move"
        except _Refused as refused:
            kind, why = refused.kind, str(refused)
            self._drop_from_ledger(life, event)
            if kind == "late" and self.policy["late"] == "absorb":
                life.late += 1
            else:  # R16: strict lists the late among the illegal.
                self._list_illegal(rid, name, state)

        # Section 8, after each event.
        if self.watching and kind == "illegal" and name in NEW_WORK and decided:
            self._violated("no_new_work_after_decision", life, f"{name} in {state}")
        if kind in ("late", "illegal") and life.facts() != before:
            self._violated("late_is_absorbed", life, f"{name} is {kind} and changed the request")
        if kind == "illegal" and name == "abort":
            self._violated("abort_is_total", life, f"an abort was refused in {state}")
        if reported and life.reason != reason:
            self._violated("sticky_reason", life, f"{name} replaced a reason that was reported")
        if decided and name in NEW_WORK and len(life.newest.claims) > claims_before:
            self._violated("no_new_work_after_decision", life, f"{name} took a claim")
        self._check_books(life)
        return self._verdict(kind, life, effects_before, why)

    def _submit(self, rid: str) -> Verdict:
        """R7: again once the former life is done, or (at_decision) was reported."""
        lives = self.lives.setdefault(rid, [])
        if lives and lives[-1].state != "done":
            live = lives[-1]
            if not (self.policy["report"] == "at_decision" and live.reported):
                self._list_illegal(rid, "submit", live.state)
                return self._verdict("illegal", live, len(live.effects), f"{rid} lives")
        life = Life(rid, len(lives) + 1)
        lives.append(life)
        life.heard += self._early_heard.pop((rid, life.number), [])
        # R8: an abort that came first is applied now.
        if (early := self._early_aborts.pop((rid, life.number), None)) is not None:
            self._decide(life, early)
        self._check_books(life)
        return self._verdict("move", life, 0)

    def _unknown(self, event: Event, number: int) -> Verdict:
        """R8: absorbed and counted; an abort is remembered for the submit that makes this life."""
        rid = event["rid"]
        if event["event"] == "abort":
            reason = self._reason(event)
            assert reason is not None
            self._early_heard.setdefault((rid, number), []).append(reason.name)
            if self._wins(reason, self._early_aborts.get((rid, number))):
                self._early_aborts[rid, number] = reason
        if self.policy["late"] == "strict":  # R16
            self._list_illegal(rid, event["event"], None)
        else:
            self.unknown += 1
        return Verdict("unknown", None, why=f"no life {number} of {rid} was submitted")

    def _row(self, life: Life, event: Event) -> Callable[[Life, Event], None]:
        """The row of section 5; R12: to an attempt that is over, most events are as in `done`."""
        name = event["event"]
        completion = name in ("forward_finished", "transfer_succeeded", "transfer_drained")
        completion = completion or (name == "transfer_failed" and "op" in event)
        finds_its_attempt = completion or name in ("drain_timeout", "abort")
        over = event.get("attempt", life.newest.number) != life.newest.number
        if life.state == "done" and not completion and name != "drain_timeout":
            return self._in_done
        if over and not finds_its_attempt:
            return self._in_done
        return self._rows[name]

    # Section 5: the rows ---------------------------------------------------------------------------

    def _in_done(self, _life: Life, event: Event) -> None:
        """Done | completions, verdicts, aborts, ... | late; new work | illegal (R15)."""
        refuse = _illegal if event["event"] in ILLEGAL_WHEN_DONE else _late
        refuse("the request, or this attempt of it, is over")

    def _nothing(self, _life: Life, _event: Event) -> None:
        """Any but done | transfer_pending, grammar_ready | same."""

    def _admit(self, life: Life, event: Event) -> None:
        """Queued | admit | prefilling."""
        if life.state != "queued":
            _illegal("admit is for a queued request")
        pages = event.get("pages", 0)
        life.newest.pages = len(pages) if isinstance(pages, list) else pages
        life.newest.kv = "held"
        life.state = "prefilling"

    def _new_work(self, life: Life, claim: Claim, others: Iterable[Attempt]) -> None:
        """Prefilling | forward_launched, transfer_posted | prefilling; illegal for a decided request."""
        if life.state != "prefilling" or life.decided:
            _illegal("new work is for a request that is prefilling and undecided")
        if any(claim in attempt.claims for attempt in others):
            _illegal(f"{claim} is outstanding already")
        self._take(life.newest, claim)

    def _forward_launched(self, life: Life, event: Event) -> None:
        """R10: unnamed steps are numbered through the request. R19: a step id is one pass."""
        step = event.get("step", life.largest_step + 1)
        self._new_work(life, ("step", step), life.attempts)
        life.largest_step = max(life.largest_step, step)

    def _transfer_posted(self, life: Life, event: Event) -> None:
        """R19: attempts reuse the names of ops."""
        self._new_work(life, ("op", event.get("op", "kv")), [life.newest])

    def _prefill_finished(self, life: Life, _event: Event) -> None:
        """Prefilling | prefill_finished | transferring; section 3: op `kv`, unless an op is open already."""
        if life.state in DRAINING:  # R22
            return
        if life.state != "prefilling":
            _illegal("prefill_finished is for a request that is prefilling")
        if not life.newest.ops:
            self._take(life.newest, ("op", "kv"))
        life.state = "transferring"

    def _completion(self, life: Life, event: Event) -> None:
        """forward_finished, transfer_succeeded, transfer_drained, in every state."""
        found = self._find(life, event, lambda attempt: attempt.claims)
        if found is None:
            _late("no such claim is outstanding")
        attempt, claims = found
        self._drop_from_ledger(life, event)
        undecided = not life.decided
        for claim in claims:
            attempt.claims.remove(claim)
        if attempt is not life.newest:  # R10: an older attempt drains on its own.
            if not attempt.busy:
                self._give_back(life, attempt, "released")
            return
        if event["event"] == "transfer_drained" and undecided:
            # Not proven delivered is not delivered.
            self._decide(life, self._reason(event))
            return
        if life.state == "transferring" and not attempt.ops:
            life.handed_off = True
            if life.reason is None:  # Reason `length`, or what `complete` recorded.
                self._record(life, Reason("length"))
        self._settle(life)

    def _transfer_failed(self, life: Life, event: Event) -> None:
        """A verdict: the claim stays. With an op it must find its claim, and it is a completion."""
        if "op" in event:
            found = self._find(life, event, lambda attempt: attempt.claims)
            if found is None:
                _late("no such op is outstanding")
            if found[0] is not life.newest:  # R10
                return
        elif life.state == "transferring" and life.handed_off:  # R3
            _late("the hand-off succeeded")
        self._decide(life, self._reason(event))

    def _decision(self, life: Life, event: Event) -> None:
        """grammar_failed, peer_lost, error."""
        self._decide(life, self._reason(event))

    def _abort(self, life: Life, event: Event) -> None:
        """Section 6, abort after the hand-off succeeded, before commit; R3."""
        after_handoff = life.state == "transferring" and life.handed_off
        if after_handoff and self.policy["abort_after_handoff"] == "ignore":
            return
        self._decide(life, self._reason(event))

    def _complete(self, life: Life, event: Event) -> None:
        """Prefilling: done, or stays until not busy. Transferring: recorded. R6, R9."""
        if life.state == "queued":
            _illegal("nothing was computed yet")
        if life.reported:
            _late("the answer is out")
        self._record(life, self._reason(event))
        self._settle(life)

    def _preempt(self, life: Life, _event: Event) -> None:
        """Prefilling | preempt | queued, attempt + 1 | release if not busy."""
        if life.state != "prefilling" or life.decided:
            _illegal("preempt is for a request that is prefilling and undecided")
        old = life.newest
        if not old.busy:
            self._give_back(life, old, "released")
        life.attempts.append(Attempt(old.number + 1))
        life.state = "queued"

    def _drain_timeout(self, life: Life, event: Event) -> None:
        """By policy: done with `quarantine` or unsafe `release`, or stay (`hold`); R11, R12."""
        draining = [a for a in life.attempts[:-1] if a.busy]
        if life.state in DRAINING:
            draining.append(life.newest)
        named = event.get("attempt")
        if named is not None:
            draining = [a for a in draining if a.number == named]
        if not draining:
            over = life.state == "done" or named not in (None, life.newest.number)
            refuse = _late if over else _illegal
            refuse("nothing drains")
        if self.policy["on_undrained"] == "hold":
            return
        how = "quarantined" if self.policy["on_undrained"] == "quarantine" else "released"
        for attempt in draining:
            if attempt is life.newest:
                self._end(life, how)
            else:
                self._give_back(life, attempt, how)

    # Section 5: what the rows have in common -------------------------------------------------------

    def _find(
        self, life: Life, event: Event, book: Callable[[Attempt], list[Claim]]
    ) -> tuple[Attempt, list[Claim]] | None:
        """Look for the claims of a completion: newest attempt first, then older ones (R10, R12).

        No op means every op of the first attempt that has one; no step the oldest step of all attempts.
        """
        kind = "step" if event["event"] == "forward_finished" else "op"
        attempts = life.attempts[::-1]
        if kind not in event and kind == "step":
            attempts = life.attempts
        if "attempt" in event:
            attempts = [a for a in life.attempts if a.number == event["attempt"]]
        for attempt in attempts:
            claims = [claim for claim in book(attempt) if claim[0] == kind]
            if kind in event:
                claims = [claim for claim in claims if claim[1] == event[kind]]
            elif kind == "step":
                claims = claims[:1]
            if claims:
                return attempt, claims
        return None

    def _take(self, attempt: Attempt, claim: Claim) -> None:
        attempt.claims.append(claim)
        attempt.in_use.append(claim)

    def _drop_from_ledger(self, life: Life, event: Event) -> None:
        """A proof of quiet counts in the ledger, late or not; a verdict proves nothing (section 3)."""
        if event["event"] in ("forward_finished", "transfer_succeeded", "transfer_drained"):
            # What the contract still counts comes first; else what only the ledger still counts.
            found = self._find(life, event, lambda attempt: attempt.claims)
            found = found or self._find(life, event, lambda attempt: attempt.in_use)
            if found is not None:
                attempt, claims = found
                for claim in claims:
                    attempt.in_use.remove(claim)
                    attempt.ops_ended += claim[0] == "op"

    def _decide(self, life: Life, reason: Reason | None) -> None:
        """The rows of grammar_failed, abort, transfer_failed, peer_lost and error, in every live state.

        R13: cancel before the hand-off's success. R9: once reported, the reason is frozen, but what was
        reported and does not drain yet begins to drain.
        """
        draining = life.state in DRAINING
        if draining and life.reported:
            _late("the answer is out")
        if not life.reported:
            self._record(life, reason)
        if not draining and not life.handed_off:
            life.newest.cancelled = True
            self._effect(life, life.newest, "cancel_transfer")
        life.state = "aborted"
        self._settle(life)

    def _settle(self, life: Life) -> None:
        """Whatever is decided ends with its last claim, and is told at once where the policy says so."""
        if life.state in DRAINING and life.reason is not None:
            # R14: only the name of the draining state looks at the reason.
            life.state = "grammar_failed" if life.reason.name == "grammar_error" else "aborted"
        if not life.decided:
            return
        if not life.newest.busy:
            self._end(life, "released")
        elif self.policy["report"] == "at_decision":  # R9
            self._report(life)

    def _end(self, life: Life, how: str) -> None:
        """Become `done`: release or quarantine, then report (R13)."""
        if life.newest.kv == "held":
            self._give_back(life, life.newest, how)
        life.state = "done"
        self._report(life)

    def _give_back(self, life: Life, attempt: Attempt, how: str) -> None:
        attempt.kv = how
        attempt.claims.clear()
        self._effect(life, attempt, "release_kv" if how == "released" else "quarantine_kv")

    def _report(self, life: Life) -> None:
        """Exactly one report a request."""
        if not life.reported:
            life.reported = True
            self._effect(life, life.newest, "report")

    def _effect(self, life: Life, attempt: Attempt, name: str) -> None:
        effect = Effect(name, attempt.number)
        if name == "report" and (reason := life.reason) is not None:
            wire, status = WIRE[reason.name]
            status = status if reason.status is None else reason.status
            effect = Effect(name, attempt.number, reason.name, wire, status, reason.message)
        life.effects.append(effect)
        if not self.watching:
            self._happened(life, attempt, name, effect.reason)

    # Section 6: which finish reason wins -----------------------------------------------------------

    def _reason(self, event: Event) -> Reason | None:
        """The reason that an event brings, if it is of a kind that brings one."""
        name = REASON_BY_EVENT.get(event["event"])
        if event["event"] == "abort":
            name = ABORT_BY_SOURCE[event.get("source", "client")]
        elif event["event"] == "complete":
            name = event["reason"]
        if name is None:
            return None
        status = event.get("status")
        if name == "grammar_error" and status is None:
            status = STATUS_BY_GRAMMAR_CAUSE.get(event.get("cause", ""))
        return Reason(name, event.get("position"), status, event.get("message"))

    def _record(self, life: Life, reason: Reason | None) -> None:
        assert reason is not None
        life.heard.append(reason.name)
        if self._wins(reason, life.reason):
            life.reason = reason

    def _rank(self, name: str) -> int:
        return next(rank for rank, tier in enumerate(self.tiers) if name in tier)

    def _wins(self, new: Reason, old: Reason | None) -> bool:
        """A higher tier wins; within one the first stays, but of completions the earlier position (R6, R14)."""
        if old is None:
            return True
        if self._rank(new.name) != self._rank(old.name):
            return self._rank(new.name) < self._rank(old.name)
        if new.name in COMPLETION_REASONS and old.name in COMPLETION_REASONS:
            return _token_order(new) < _token_order(old)
        return False

    # Section 8: what must always hold --------------------------------------------------------------

    def observe(self, rid: str, effect: str | Mapping[str, Any]) -> list[Violation]:
        """Be told of an effect that a scheduler has performed; returns the invariants that it broke.

        Args:
            rid: the request.
            effect: the name, or an object with `effect` and as far as known `incarnation` (default: the
                newest), `attempt` (default: the oldest that the contract has given back and that was not
                freed yet, else the newest) and, of a report, `reason`. Beside the effects of the contract
                there is `publish`: pages of this request were put into the prefix cache.
        """
        told: Mapping[str, Any] = {"effect": effect} if isinstance(effect, str) else effect
        lives, before = self.lives.get(rid, []), len(self.violations)
        number = told.get("incarnation", len(lives))
        life = lives[number - 1] if 1 <= number <= len(lives) else None
        about = life.attempts if life is not None else []
        if "attempt" in told:
            about = [a for a in about if a.number == told["attempt"]]
        elif told["effect"] in ("release_kv", "quarantine_kv"):
            about = [a for a in about if a.overdue] or about[-1:]
        else:
            about = about[-1:]
        if life is None or not about:
            detail = f"{told['effect']} for a request, life or attempt that never was"
            self.violations.append(Violation("exact_target", rid, self._line, detail))
        else:
            self._happened(life, about[0], told["effect"], told.get("reason"))
        return self.violations[before:]

    def _happened(self, life: Life, attempt: Attempt, name: str, reason: str | None) -> None:
        """Enter an effect in the ledger, and hold it against the contract's columns."""
        judge = {
            "release_kv": self._judge_release,
            "quarantine_kv": self._judge_quarantine,
            "cancel_transfer": self._judge_cancel,
            "report": lambda life, _attempt: self._judge_report(life, reason),
            "publish": self._judge_publish,
        }
        judge[name](life, attempt)

    def _judge_release(self, life: Life, attempt: Attempt) -> None:
        where = f"pages of attempt {attempt.number} of life {life.number} went back"
        if attempt.freed:
            self._violated("single_release", life, f"{where} a second time")
        elif attempt.in_use:
            # Also what the policy `release` asks for (R17).
            self._violated(
                "no_free_in_flight", life, f"{where} while {_names(attempt.in_use)} may use them"
            )
            if attempt.kv == "held" and attempt.ops_ended:
                self._violated(
                    "free_after_all_ops", life, f"{where} after {attempt.ops_ended} op(s) ended"
                )
        elif attempt.kv in ("none", "held"):
            self._violated("claim_count", life, f"{where} while the request is {life.state}")
        if attempt.kv == "held" and any(
            other.overdue for each in self.lives[life.rid] for other in each.attempts
        ):
            self._violated("attempt_scoped", life, f"{where} in place of another attempt's")
        attempt.freed += 1

    def _judge_quarantine(self, life: Life, attempt: Attempt) -> None:
        if attempt.freed:
            self._violated(
                "single_release", life, "pages went to quarantine that had gone back already"
            )
        elif attempt.fenced or attempt.kv != "quarantined":
            self._violated("claim_count", life, "pages went to quarantine unasked")
        attempt.fenced += 1

    def _judge_cancel(self, life: Life, attempt: Attempt) -> None:
        if attempt.cancels:
            self._violated("peer_told", life, "the peer was told of the cancel twice")
        elif not attempt.cancelled:
            self._violated(
                "peer_told", life, f"the peer was told of a cancel, the request is {life.state}"
            )
        attempt.cancels += 1

    def _judge_report(self, life: Life, reason: str | None) -> None:
        expected = life.reason.name if life.reported and life.reason is not None else None
        detail = f"reported as {reason}; the contract says {expected or 'nothing yet'}"
        if life.told:
            self._violated(
                "report_once", life, f"reported as {life.told[0]}, and again as {reason}"
            )
        elif expected is None or reason not in (None, expected):
            self._violated(self._misreport(life, reason, expected), life, detail)
        life.told.append(reason)

    def _misreport(self, life: Life, reason: str | None, expected: str | None) -> str:
        """The name of the invariant that a report with this reason, or at this time, breaks."""
        if reason is not None and reason not in life.heard:
            if reason in ABORT_BY_SOURCE.values():
                return "exact_target"  # Somebody else was aborted.
            if reason not in COMPLETION_REASONS:
                return "fault_isolated"  # Somebody else had the fault.
        if reason is None or expected is None:
            return "reason_by_policy"  # Too early.
        came_first = reason in life.heard and life.heard.index(reason) < life.heard.index(expected)
        if came_first or self._rank(reason) < self._rank(expected):
            return "reason_by_policy"  # It ought to have been replaced, or to be ignored.
        return "sticky_reason"  # It replaced what stands higher, or stood there first.

    def _judge_publish(self, life: Life, attempt: Attempt) -> None:
        """Section 6: pages of an aborted request never, or (`proven`) once their KV is known complete."""
        ended_badly = life.reason is not None and life.reason.name not in COMPLETION_REASONS
        running = any(claim[0] == "step" for claim in attempt.in_use)
        if ended_badly and (self.policy["publish_aborted"] == "never" or running):
            self._violated("no_tainted_publish", life, "pages of an aborted request were published")

    def at_idle(
        self, *, free: int = 0, cached: int = 0, total: int | None = None
    ) -> list[Violation]:
        """Say that the scheduler is idle: what the contract asked for and never happened is a violation.

        With `total`, the pool's own count of pages is checked too: free + cached + quarantined = total.
        """
        before = len(self.violations)
        every = [life for lives in self.lives.values() for life in lives]
        for life in every:
            for attempt in life.attempts:
                if attempt.overdue:
                    detail = f"pages of attempt {attempt.number} never came back"
                    self._violated("drain_to_zero", life, detail)
                if attempt.cancelled and not attempt.cancels:
                    self._violated("peer_told", life, "the peer waits for a dead request")
            if life.reported and not life.told:
                self._violated("report_once", life, "nothing was reported")
            if life.state != "done" or any(a.busy for a in life.attempts):
                self._violated("eventually_done", life, f"idle in {life.state}")
        quarantined = sum(a.pages for life in every for a in life.attempts if a.kv == "quarantined")
        if total is not None and free + cached + quarantined != total:
            detail = f"{free} free + {cached} cached + {quarantined} quarantined pages of {total}"
            self.violations.append(Violation("drain_to_zero", "", self._line, detail))
        return self.violations[before:]

    def _check_books(self, life: Life) -> None:
        """What the contract's own columns must look like after each event."""
        for attempt in life.attempts:
            held = attempt.kv == "held"
            if attempt.claims and attempt.claims != attempt.in_use:
                self._violated(
                    "claim_count", life, f"{attempt.claims} claimed, {attempt.in_use} in use"
                )
            if attempt.claims and not held:
                self._violated(
                    "no_free_in_flight", life, f"{attempt.kv} with {_names(attempt.claims)} out"
                )
            older_done = attempt is not life.newest and not attempt.busy
            if held and (older_done or (life.state == "done" and attempt is life.newest)):
                self._violated(
                    "drain_to_zero", life, f"attempt {attempt.number} keeps pages for nobody"
                )
        if life.state in DRAINING and not life.newest.busy:
            self._violated(
                "eventually_done", life, "nothing is outstanding and the request is not done"
            )
        reports = sum(effect.name == "report" for effect in life.effects)
        if reports > 1 or (life.state == "done" and reports != 1):
            self._violated("report_once", life, f"{reports} reports in {life.state}")

    def _violated(self, invariant: str, life: Life, detail: str) -> None:
        self.violations.append(Violation(invariant, life.rid, self._line, detail))

    # Section 9: what a replay prints ---------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        """The JSON object of ``lifecycle replay --json``."""
        requests = {}
        for rid, lives in self.lives.items():
            for life in lives:
                key = rid if life is lives[-1] else f"{rid}#{life.number}"
                requests[key] = _summary(life)
        return {
            "requests": requests,
            "illegal": list(self.illegal),
            "unknown": self.unknown,
            "violations": [violation.invariant for violation in self.violations],
        }

    def _list_illegal(self, rid: str, event: str, state: str | None) -> None:
        self.illegal.append({"line": self._line, "rid": rid, "event": event, "state": state})

    def _verdict(self, kind: str, life: Life, effects_before: int, why: str = "") -> Verdict:
        reason = None if life.reason is None else life.reason.name
        return Verdict(kind, life.state, tuple(life.effects[effects_before:]), reason, why)


def replay(lines: Iterable[Event]) -> Oracle:
    """Run a whole trace, with its optional first line of policies; lines count from 1 (section 9)."""
    oracle = Oracle()
    for number, line in enumerate(lines, start=1):
        if number == 1 and "policy" in line:
            oracle = Oracle(line["policy"])
        else:
            oracle.apply(line, number)
    return oracle


def _summary(life: Life) -> dict[str, Any]:
    """R1: `kv` and `claims` speak of the newest attempt; the request's own claim lasts until the release."""
    newest = life.newest
    claims = {f"{kind}:{name}" for kind, name in newest.claims}
    if newest.kv == "held":
        claims.add("request")
    if newest.kv == "quarantined":
        claims.add("quarantine")
    names = [effect.name for effect in life.effects]
    return {
        "state": life.state,
        "reason": None if life.reason is None else life.reason.name,
        "wire": None if life.reason is None else WIRE[life.reason.name][0],
        "kv": newest.kv,
        "releases": names.count("release_kv"),
        "reports": names.count("report"),
        "attempt": newest.number,
        "late": life.late,
        "claims": sorted(claims),
        "effects": names,
    }


def _token_order(reason: Reason) -> tuple[bool, int, bool]:
    """R6: the earlier position; an unknown one is later than any other; at the same position `stop`."""
    return reason.position is None, reason.position or 0, reason.name != "stop"


def _names(claims: Iterable[Claim]) -> str:
    return ", ".join(f"{kind}:{name}" for kind, name in claims)


def _tiers(declared: Any) -> tuple[tuple[str, ...], ...]:
    """R14: "tiers", a list of reasons (a strict order), or a list of lists; each reason exactly once."""
    if declared == "tiers":
        return TIERS
    tiers = tuple((tier,) if isinstance(tier, str) else tuple(tier) for tier in declared)
    if sorted(name for tier in tiers for name in tier) != sorted(WIRE):
        msg = f"precedence must name each of the ten reasons exactly once, not {declared!r}"
        raise ValueError(msg)
    return tiers
