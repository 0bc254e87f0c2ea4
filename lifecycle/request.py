"""One request: it counts its own claims, follows the automaton, and returns effects as data.

>>> r = RequestLifecycle("r1")
>>> r.admit(pages=4)
()
>>> r.finish_prefill()  # the last chunk is handed over: op `kv` reads the pages
()
>>> [str(effect) for effect in r.reject_grammar("rejected")]
['cancel_transfer']
>>> r
<request 'r1' grammar_failed (grammar_error), claims: op:kv, request>
>>> [str(effect) for effect in r.poll("succeeded")]
['release_kv', 'report']
>>> r.outcome().status
400

:meth:`RequestLifecycle.fire` is the one way in; the named methods are spelled as a scheduler author thinks and
call it. Effects come back in the order in which they must be carried out; until they are, the request
believes that they will be. An event that raises leaves the request exactly as it was.

This is the hot path of the library, which explains its shape: slots, tuples for the few claims that a request
has at a time, one method with the events that come most often first. What an event *means* is not decided
here: each event is looked up in the node that the request points at (:class:`lifecycle.compile.Node`), which
says what to count and which cell to follow.

Attempts
    ``preempt`` starts a new attempt. If a step or an op of the old one is still outstanding, the old attempt
    drains on its own, with its own claims, and its pages are released by an effect that names it. A completion
    is looked up in the newest attempt first, then in older ones. A request can be done while an older attempt
    still drains. A step that is not named is the oldest that is outstanding in any attempt (passes end in the
    order of their launch); step numbers run through all attempts, from 1.

Where an event names an ``attempt``, it is looked up in that attempt alone. Aborts are about the request, so
they take no notice of it. To an attempt that is over, any other event is what it would be to a request that is
done: late, or illegal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import attrs

from .compile import (
    ABSORB,
    ADMIT,
    ADMIT_AND_TAKE_OP,
    COMPLETION,
    DEADLINE,
    DROP_OP,
    DROP_STEP,
    NOTHING,
    OP_VERDICT,
    SOURCE,
    START_OVER,
    STILL,
    TAKE_OP,
    TAKE_OP_UNLESS_OPEN,
    TAKE_STEP,
    Automaton,
    Cell,
    Effect,
    compile_table,
)
from .errors import BadDetail, EventError, IllegalEvent, LateEvent
from .policy import DEFAULT_POLICY
from .prefill import PREFILL
from .reasons import NO_DETAILS, WIRE, Details, Outcome, Wire, is_earlier, outcome_of
from .vocabulary import (
    DEFAULT_OP,
    KV,
    AbortSource,
    Claim,
    Event,
    FinishReason,
    GrammarCause,
    Kind,
)

DEFAULT_AUTOMATON = compile_table(PREFILL, DEFAULT_POLICY)

JOURNAL_LENGTH: Final = 16
"""How many of the last events a request keeps, if it keeps any."""
_JOURNAL_HIGH: Final = 2 * JOURNAL_LENGTH  # trimmed in one go, so that an event costs one append

# Local names: a global is looked up faster than an attribute of an enum.
_LATE: Final = Kind.LATE
_ILLEGAL: Final = Kind.ILLEGAL

_E = TypeVar("_E", bound=EventError)

_NO_EFFECTS: Final[tuple[Effect, ...]] = ()
_CAUSES = frozenset(GrammarCause)


@attrs.frozen
class Draining:
    """An earlier attempt whose pages wait for their last claim.

    `steps` and `ops` are its outstanding claims, in the order in which they were taken.
    """

    attempt: int
    steps: tuple[int, ...]
    ops: tuple[str, ...]

    @property
    def claims(self) -> tuple[str, ...]:
        """Who may still touch its pages, as text."""
        return _claims(self.steps, self.ops)


def _claims(steps: tuple[int, ...], ops: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *sorted(f"{Claim.OP.value}:{op}" for op in ops),
        *(f"{Claim.STEP.value}:{step}" for step in sorted(steps)),
    )


class RequestLifecycle:
    """The life of one request, under a table and a policy.

    Args:
        rid: the request's id.
        automaton: the table and policy to follow; :func:`lifecycle.compile_table` makes one.
        incarnation: which life of this rid it is, from 1.
        journal: whether to keep the last :data:`JOURNAL_LENGTH` events for error messages. It costs some 100
            bytes an event kept and some 60 ns an event.

    Attributes:
        rid, incarnation: as given.
        attempt: 0, and one more for each ``preempt``.
        late: how many late events were absorbed.
        since: when it entered its state, in seconds, if somebody who knows the time writes it (the table does).
    """

    __slots__ = (
        "_details",
        "_journal",
        "_last_step",
        "_node",
        "_older",
        "_ops",
        "_steps",
        "attempt",
        "automaton",
        "incarnation",
        "late",
        "rid",
        "since",
    )

    def __init__(
        self,
        rid: str,
        automaton: Automaton = DEFAULT_AUTOMATON,
        incarnation: int = 1,
        journal: bool = True,
    ) -> None:
        self.rid = rid
        self.automaton = automaton
        self.incarnation = incarnation
        self.attempt = 0
        self.late = 0
        self.since: float | None = None
        self._node = automaton.start
        self._steps: tuple[int, ...] = ()
        self._ops: tuple[str, ...] = ()
        self._last_step = 0
        self._details = NO_DETAILS
        self._older: tuple[Draining, ...] = ()
        self._journal: list[tuple[str, object]] | None = [] if journal else None

    # What it is.

    @property
    def state(self) -> str:
        """The state's name; a :class:`~lifecycle.State` under the library's own tables."""
        return self._node.state

    @property
    def reason(self) -> FinishReason | None:
        """The reason that stands so far; frozen when the request is done, or was reported."""
        return self._node.reason

    @property
    def claims(self) -> tuple[str, ...]:
        """Who may still touch the newest attempt's pages: ``("op:kv", "request", "step:3")``, sorted."""
        kv = self._node.configuration.kv
        if kv is KV.HELD:
            return tuple(sorted((*_claims(self._steps, self._ops), Claim.REQUEST.value)))
        return (Claim.QUARANTINE.value,) if kv is KV.QUARANTINED else ()

    @property
    def kv(self) -> KV:
        """Where the newest attempt's pages are."""
        return self._node.configuration.kv

    @property
    def busy(self) -> bool:
        """Whether a step or op of the newest attempt is outstanding."""
        return bool(self._steps or self._ops)

    @property
    def steps(self) -> tuple[int, ...]:
        """The newest attempt's outstanding steps, in the order of their launch."""
        return self._steps

    @property
    def ops(self) -> tuple[str, ...]:
        """The newest attempt's outstanding ops, in the order of their posting."""
        return self._ops

    @property
    def done(self) -> bool:
        """Whether the reason is committed. An older attempt may still drain: see :attr:`draining`."""
        return self._node.terminal

    @property
    def decided(self) -> bool:
        """Whether it is done, or waits for its last claim: no new work for it."""
        return self._node.terminal or self.automaton.table.state(self._node.state).draining

    @property
    def over(self) -> bool:
        """Whether it is done and nothing of it drains: no event but a late one can come."""
        return self._node.terminal and not self._older

    @property
    def reported(self) -> bool:
        """Whether the effect ``report`` went out."""
        return self._node.configuration.reported

    @property
    def draining(self) -> tuple[Draining, ...]:
        """Earlier attempts whose pages wait for their last claim, oldest first."""
        return self._older

    @property
    def details(self) -> Details:
        """What came with the event whose reason stands."""
        return self._details

    @property
    def journal(self) -> tuple[str, ...]:
        """The last events, oldest first, as text; late ones are marked. Empty if no journal is kept."""
        if self._journal is None:
            return ()
        return tuple(
            f"{event}({detail})" if detail is not None else str(event)
            for event, detail in self._journal[-JOURNAL_LENGTH:]
        )

    def legal_events(self) -> tuple[str, ...]:
        """The events that would move it now, or that it would take in place."""
        legal = set(self._node.legal())
        for old in self._older:
            legal.add(Event.DRAIN_TIMEOUT.value)
            if old.steps:
                legal.add(Event.FORWARD_FINISHED.value)
            if old.ops:
                legal |= {Event.TRANSFER_SUCCEEDED.value, Event.TRANSFER_DRAINED.value}
        return tuple(event.value for event in Event if event.value in legal)

    def outcome(self, wire: Mapping[FinishReason, Wire] = WIRE) -> Outcome:
        """How it ends, as it is to be reported, by the wire mapping `wire`.

        Raises:
            EventError: nothing is decided yet.
        """
        reason = self._node.reason
        if reason is None:
            raise self._error(EventError, f"request {self.rid!r} has no outcome yet", "report")
        return outcome_of(self.rid, self.incarnation, reason, self._details, wire)

    def __repr__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        claims = ", ".join(self.claims) or "none"
        text = f"<request {self.rid!r} {self.state}{reason}, claims: {claims}"
        if self.attempt:
            text += f", attempt {self.attempt}"
        for old in self._older:
            text += f", attempt {old.attempt} drains: {', '.join(old.claims)}"
        return text + ">"

    # What happens to it, by name. They pass the words: looking a member up in an enum costs more than the call.

    def grammar_ready(self) -> tuple[Effect, ...]:
        """The grammar compiled."""
        return self.fire("grammar_ready")

    def reject_grammar(
        self,
        cause: str = GrammarCause.REJECTED,
        *,
        message: str | None = None,
        status: int | None = None,
    ) -> tuple[Effect, ...]:
        """The grammar failed: ``compile``, ``timeout``, ``rejected`` (a token was refused) or ``dead_end``."""
        return self.fire("grammar_failed", cause=cause, message=message, status=status)

    def admit(self, pages: object = None) -> tuple[Effect, ...]:
        """Pages were allocated. The request only notes a count in its journal; the driver keeps them."""
        return self.fire("admit", pages=pages)

    def launch_forward(self, step: int | None = None) -> tuple[Effect, ...]:
        """A forward pass with this request was launched; `step` is its number, by default the next."""
        return self.fire("forward_launched", step)

    def finish_forward(self, step: int | None = None) -> tuple[Effect, ...]:
        """The host saw the result of a pass; by default of the oldest that is outstanding."""
        return self.fire("forward_finished", step)

    def post_transfer(self, op: str = DEFAULT_OP) -> tuple[Effect, ...]:
        """An op that reads or writes the pages was posted: a chunk, a store, a rank's share."""
        return self.fire("transfer_posted", op=op)

    def finish_prefill(self) -> tuple[Effect, ...]:
        """The prompt is computed and its last chunk handed over; takes op ``kv`` unless an op is open."""
        return self.fire("prefill_finished")

    def poll(
        self,
        verdict: str,
        op: str | None = None,
        *,
        failed_implies_drained: bool = False,
        message: str | None = None,
    ) -> tuple[Effect, ...]:
        """A poll of the transfer: ``"pending"``, ``"succeeded"`` or ``"failed"``.

        Args:
            verdict: what the poll said. A failure is no proof that the hardware stopped.
            op: the op that was polled; by default the hand-off as a whole.
            failed_implies_drained: the backend's failure does prove it, so a failure drains too.
            message: for the client, if this failure is what it is told.
        """
        if verdict == "pending":
            return self.fire("transfer_pending")
        if verdict == "succeeded":
            return self.fire("transfer_succeeded", op=op)
        if verdict != "failed":
            msg = f"a poll says 'pending', 'succeeded' or 'failed', not {verdict!r}"
            raise self._error(BadDetail, msg, "poll")
        effects = self.fire("transfer_failed", op=op, message=message)
        if failed_implies_drained:
            effects += self.fire("transfer_drained", op=op)
        return effects

    def transfer_drained(self, op: str | None = None) -> tuple[Effect, ...]:
        """Proof that `op` will never touch the pages again; by default every op that is outstanding."""
        return self.fire("transfer_drained", op=op)

    def complete(
        self, reason: str = FinishReason.STOP, position: int | None = None
    ) -> tuple[Effect, ...]:
        """The answer ended by ``stop`` or ``length``, at token `position`."""
        return self.fire("complete", reason=reason, position=position)

    def abort(
        self,
        source: str = AbortSource.CLIENT,
        *,
        message: str | None = None,
        status: int | None = None,
    ) -> tuple[Effect, ...]:
        """Abort it, in any state: ``client``, ``server``, ``timeout`` or ``shutdown``."""
        return self.fire("abort", source=source, message=message, status=status)

    def lose_peer(self, *, message: str | None = None) -> tuple[Effect, ...]:
        """The worker at the other end is gone. That proves nothing about its reads and writes."""
        return self.fire("peer_lost", message=message)

    def fail(self, *, message: str | None = None, status: int | None = None) -> tuple[Effect, ...]:
        """The engine failed on this request, and on this one alone."""
        return self.fire("error", message=message, status=status)

    def preempt(self) -> tuple[Effect, ...]:
        """Take the pages back and queue it again, as a new attempt."""
        return self.fire("preempt")

    def drain_timed_out(self) -> tuple[Effect, ...]:
        """The drain deadline passed: the policy ``on_undrained`` decides about everything that still drains."""
        return self.fire("drain_timeout")

    # The one way in.

    def fire(
        self,
        event: str,
        step: int | None = None,
        op: str | None = None,
        pages: object = None,
        source: str | None = None,
        cause: str | None = None,
        reason: str | None = None,
        position: int | None = None,
        attempt: int | None = None,
        message: str | None = None,
        status: int | None = None,
    ) -> tuple[Effect, ...]:
        """Take an event; return the effects to carry out, in order. Empty where there are none.

        Give details by keyword. (They are not keyword-only since Python looks up the defaults of such one by
        one, which would double the cost of an event.)

        Args:
            event: an :class:`~lifecycle.Event`, or its word.
            step: the number of a forward pass; by default the next when launched, the oldest outstanding when
                finished.
            op: the name of a transfer op; by default ``kv`` when posted, else every op that is outstanding.
            pages: for ``admit``: noted in the journal. Who releases them is told the attempt by the effect.
            source: for ``abort`` (default ``client``).
            cause: for ``grammar_failed``, one of the four causes; for others any text.
            reason: for ``complete``: ``stop`` or ``length``.
            position: for ``complete``: at which token, counted from the start of the answer.
            attempt: the attempt that the event is about; by default the newest that has the claim.
            message: for the client, if the reason of this event wins.
            status: an HTTP status for the client, likewise.

        Raises:
            IllegalEvent: the table declares it illegal here. The request is unchanged.
            BadDetail: no such event, source, cause or completion. The request is unchanged.
            LateEvent: it is late, under the policy ``late="strict"``. The request is unchanged.
        """
        try:
            look, cell, last = self._node.on[event]
        except (KeyError, TypeError):
            msg = f"{event!r} is no event for request {self.rid!r}; events are {', '.join(Event)}"
            raise self._error(BadDetail, msg, event) from None
        if attempt is not None and look != SOURCE:
            given = (step, op, pages, source, cause, reason, position, message, status)
            return self._fire_at(attempt, event, look, given)
        detail: object = None

        if look == DROP_STEP:
            steps = self._steps
            if step is None and steps and not self._older:
                step = steps[0]
            if step in steps:
                if len(steps) == 1:
                    cell = last
                    self._steps = ()
                else:
                    self._steps = tuple([s for s in steps if s != step])
                detail = step
            else:
                return self._drop_elsewhere(event, step=step, op=None)
        elif look == TAKE_STEP:
            if step is None:
                step = self._last_step = self._last_step + 1
            else:
                if step in self._steps or (self._older and self._old_with_step(step)):
                    raise self._refusal(event, f"step {step} is outstanding already")
                if step > self._last_step:  # noqa: PLR1730  # max() costs a call, on the hot path
                    self._last_step = step
            self._steps += (step,)
            detail = step
        elif look == STILL:
            journal = self._journal
            if journal is not None:
                journal.append((event, None))
                if len(journal) > _JOURNAL_HIGH:
                    del journal[:-JOURNAL_LENGTH]
            return _NO_EFFECTS
        elif look == NOTHING:
            if cause is not None and event == "grammar_failed" and cause not in _CAUSES:
                raise self._no_such_cause(cause)
            if cell.wins:
                self._details = _details(message, status, cause)
        elif look == DROP_OP:
            ops = self._ops
            if op is None and ops:
                cell = last
                self._ops = ()
            elif op in ops:
                if len(ops) == 1:
                    cell = last
                    self._ops = ()
                else:
                    self._ops = tuple([o for o in ops if o != op])
                detail = op
            else:
                return self._drop_elsewhere(event, step=None, op=op)
            if cell.wins:
                self._details = _details(message, status, cause)
        elif look == TAKE_OP_UNLESS_OPEN:
            self._ops = (DEFAULT_OP,)
        elif look in (ADMIT, ADMIT_AND_TAKE_OP):
            if look == ADMIT_AND_TAKE_OP:
                self._ops = (DEFAULT_OP,)
            detail = pages if isinstance(pages, int) else None  # a journal keeps no lease alive
        elif look == TAKE_OP:
            if op is None:
                op = DEFAULT_OP
            if op in self._ops:
                raise self._refusal(event, f"op {op!r} is outstanding already")
            self._ops += (op,)
            detail = op
        elif look == SOURCE:
            try:
                cell = self._node.aborts["client" if source is None else source]
            except (KeyError, TypeError):
                choices = ", ".join(AbortSource)
                msg = f"request {self.rid!r}: an abort comes from one of {choices}, not {source!r}"
                raise self._error(BadDetail, msg, event) from None
            if cell.kind is _LATE:
                return self._absorb(event, source)
            if cell.kind is _ILLEGAL:
                raise self._refusal(event, cell.why)
            if cell.wins:
                self._details = _details(message, status, cause)
            detail = source
        else:
            return self._fire_rare(
                event, look, cell, step, op, cause, reason, position, message, status
            )

        self._node = cell.to  # type: ignore[assignment]  # late and illegal cells are gone by now
        journal = self._journal
        if journal is not None:
            journal.append((event, detail))
            if len(journal) > _JOURNAL_HIGH:
                del journal[:-JOURNAL_LENGTH]
        effects: tuple[Effect, ...] = cell.effects
        if effects and self.attempt:
            return self._rebased(effects)
        return effects

    def _fire_rare(
        self,
        event: str,
        look: int,
        cell: Cell,
        step: int | None,
        op: str | None,
        cause: str | None,
        reason: str | None,
        position: int | None,
        message: str | None,
        status: int | None,
    ) -> tuple[Effect, ...]:
        """The looks of :meth:`fire` that are not worth a place on its hot path."""
        if look == OP_VERDICT:
            if op is not None and op not in self._ops:
                if any(op in old.ops for old in self._older):
                    self._note(event, op)  # a verdict on an attempt that drains: it changes nothing
                    return _NO_EFFECTS
                return self._absorb(event, op)
            return self._follow(event, op, cell, message, status, cause, None)
        if look == COMPLETION:
            try:
                later, sooner = self._node.completions[reason]  # type: ignore[index]  # None is no key: KeyError
            except (KeyError, TypeError):
                msg = f"request {self.rid!r} completes by 'stop' or 'length', not {reason!r}"
                raise self._error(BadDetail, msg, event) from None
            finish = FinishReason(reason)
            recorded = self._node.reason
            early = recorded is not None and is_earlier(
                finish, position, recorded, self._details.position
            )
            cell = sooner if early else later
            return self._follow(event, reason, cell, message, status, cause, position)
        if look == START_OVER:
            effects: tuple[Effect, ...] = cell.effects
            if self._steps or self._ops:
                old = Draining(self.attempt, self._steps, self._ops)
                self._older = (*self._older, old)
            if self.attempt:
                effects = self._rebased(effects)
            self._steps, self._ops = (), ()
            self._node = cell.to  # type: ignore[assignment]  # a legal cell leads somewhere
            self.attempt += 1
            self._note(event, None)
            return effects
        if look == DEADLINE:
            return self._deadline(event, cell)
        if look == ABSORB:
            return self._absorb(event, step if step is not None else op)
        raise self._refusal(event, cell.why)

    def _follow(
        self,
        event: str,
        detail: object,
        cell: Cell,
        message: str | None,
        status: int | None,
        cause: str | None,
        position: int | None,
    ) -> tuple[Effect, ...]:
        if cell.kind is _LATE:
            return self._absorb(event, detail)
        node = cell.to
        if node is None:
            raise self._refusal(event, cell.why)
        if cell.wins:
            self._details = _details(message, status, cause, position)
        if node.terminal:  # a deadline leaves claims behind
            self._steps, self._ops = (), ()
        self._node = node
        self._note(event, detail)
        return self._rebased(cell.effects) if self.attempt else cell.effects

    def _deadline(self, event: str, cell: Cell) -> tuple[Effect, ...]:
        """Everything of the request that drains: older attempts first, then the newest."""
        if not self._older:
            return self._follow(event, None, cell, None, None, None, None)
        effects = self._give_up(self._older)
        if cell.kind is _LATE or cell.kind is _ILLEGAL:
            self._note(
                event, None
            )  # the newest attempt does not drain; the event was for the older
            return effects
        return effects + self._follow(event, None, cell, None, None, None, None)

    def _give_up(self, olds: tuple[Draining, ...]) -> tuple[Effect, ...]:
        effects = tuple(
            effect for old in olds if (effect := self.automaton.abandon(old.attempt)) is not None
        )
        if effects:
            self._older = tuple(old for old in self._older if old not in olds)
        return effects

    # Older attempts.

    def _drop_elsewhere(
        self, event: str, *, step: int | None, op: str | None
    ) -> tuple[Effect, ...]:
        """A completion that names no claim of the newest attempt, or (a step) no claim at all."""
        if event == "forward_finished":
            if step is None:  # the oldest outstanding one; older attempts were launched before
                old = next((old for old in self._older if old.steps), None)
                if old is not None:
                    return self._drop_from(old, event, old.steps[0], None)
                if self._steps:
                    return self.fire(event, step=self._steps[0])
            else:
                old = self._old_with_step(step)
                if old is not None:
                    return self._drop_from(old, event, step, None)
            return self._absorb(event, step)
        for old in reversed(self._older):
            if old.ops and (op is None or op in old.ops):
                return self._drop_from(old, event, None, op)
        return self._absorb(event, op)

    def _drop_from(
        self, old: Draining, event: str, step: int | None, op: str | None
    ) -> tuple[Effect, ...]:
        """Drop a claim of an attempt that drains: a step, or an op (None: all its ops)."""
        if step is not None:
            left = Draining(old.attempt, tuple(s for s in old.steps if s != step), old.ops)
        else:
            ops = () if op is None else tuple(o for o in old.ops if o != op)
            left = Draining(old.attempt, old.steps, ops)
        self._note(event, f"attempt {old.attempt}: {step if step is not None else op or 'all ops'}")
        if left.steps or left.ops:
            self._older = tuple(left if each is old else each for each in self._older)
            return _NO_EFFECTS
        self._older = tuple(each for each in self._older if each is not old)
        return (self.automaton.release_of_earlier(old.attempt),)

    def _old_with_step(self, step: int) -> Draining | None:
        return next((old for old in reversed(self._older) if step in old.steps), None)

    def _fire_at(
        self, attempt: int, event: str, look: int, given: tuple[Any, ...]
    ) -> tuple[Effect, ...]:
        """An event that names its attempt."""
        step, op, pages, source, cause, reason, position, message, status = given
        drops = look in (DROP_STEP, DROP_OP)
        newest = attempt == self.attempt
        old = next((old for old in self._older if old.attempt == attempt), None)
        if newest and look == DEADLINE:
            _, cell, _ = self._node.on[event]
            return self._follow(event, None, cell, None, None, None, None)
        if newest and look == DROP_STEP:
            if not self._steps or (step is not None and step not in self._steps):
                return self._absorb(event, step)
            step = self._steps[0] if step is None else step
        elif newest and look == DROP_OP:
            if not self._ops or (op is not None and op not in self._ops):
                return self._absorb(event, op)
        elif newest and look == OP_VERDICT and op is not None and op not in self._ops:
            return self._absorb(event, op)
        if newest:
            return self.fire(
                event, step=step, op=op, pages=pages, source=source, cause=cause, reason=reason,
                position=position, message=message, status=status,
            )  # fmt: skip
        if old is not None:
            if look == DROP_STEP and old.steps and (step is None or step in old.steps):
                return self._drop_from(old, event, old.steps[0] if step is None else step, None)
            if look == DROP_OP and old.ops and (op is None or op in old.ops):
                return self._drop_from(old, event, None, op)
            if look == DEADLINE:
                self._note(event, f"attempt {attempt}")
                return self._give_up((old,))
            if look == OP_VERDICT and op in old.ops:
                self._note(event, op)
                return _NO_EFFECTS
        over = self.automaton.over(event)
        if drops or over is _LATE:
            return self._absorb(event, f"attempt {attempt}")
        raise self._refusal(event, f"attempt {attempt} is not the newest, which is {self.attempt}")

    # Bookkeeping and errors.

    def _rebased(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """The effects of a cell, which are written for attempt 0, for the newest attempt."""
        return tuple(Effect(effect.kind, self.attempt, effect.publish) for effect in effects)

    def _note(self, event: str, detail: object) -> None:
        journal = self._journal
        if journal is not None:
            journal.append((event, detail))
            if len(journal) > _JOURNAL_HIGH:
                del journal[:-JOURNAL_LENGTH]

    def _absorb(self, event: str, detail: object) -> tuple[Effect, ...]:
        if self.automaton.strict:
            why = "nothing that it speaks of is outstanding"
            msg = f"{event} is late for request {self.rid!r}: {why}"
            raise self._error(LateEvent, msg, event, why)
        self.late += 1
        self._note(f"{event} [late]", detail)
        return _NO_EFFECTS

    def _refusal(self, event: str, why: str) -> IllegalEvent:
        msg = f"{event} is illegal for request {self.rid!r}: {why}"
        return self._error(IllegalEvent, msg, event, why)

    def _no_such_cause(self, cause: str) -> EventError:
        causes = ", ".join(GrammarCause)
        msg = f"request {self.rid!r}: a grammar fails by one of {causes}, not {cause!r}"
        return self._error(BadDetail, msg, Event.GRAMMAR_FAILED)

    def _error(self, kind: type[_E], message: str, event: str, why: str = "") -> _E:
        draining = [
            f"{claim} (attempt {old.attempt})" for old in self._older for claim in old.claims
        ]
        return kind(
            message,
            rid=self.rid,
            incarnation=self.incarnation,
            attempt=self.attempt,
            state=self.state,
            reason=self.reason,
            claims=(*self.claims, *draining),
            event=event,
            why=why,
            legal=self.legal_events(),
            last=self.journal,
        )


def _details(
    message: str | None, status: int | None, cause: str | None, position: int | None = None
) -> Details:
    if message is None and status is None and cause is None and position is None:
        return NO_DETAILS
    return Details(message, status, cause, position)
