"""The whole stack on a test bench: every event goes to it and to the independent model, and they are compared.

The stack is a :class:`~lifecycle.RequestTable`, a :class:`~lifecycle.Driver`, a pool, a transfer engine and an
inbox that threads fill. The bench stands at all its borders. It fires the events (first at the model of the
contract, :mod:`lifecycle.testing.oracle`, then at the stack), and it *is* the driver's ports: what the driver does
is told to the model and to a :class:`~lifecycle.testing.ledger.Ledger` of pages before it reaches the pool. After
each event, :meth:`Rig.judge` compares request, effects and counts, and names a difference after the invariant of
contract section 8 that it breaks.

What can be done to a stack is in :mod:`lifecycle.testing.moves`; Hypothesis does it in
:mod:`lifecycle.testing.stack`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import attrs

from .. import consensus
from ..driver import Driver
from ..errors import LifecycleError, UnknownRequest
from ..policy import DEFAULT_POLICY, OnUndrained, Policy
from ..ports import Hold
from ..reasons import Outcome
from ..table import RequestTable, Todo
from ..vocabulary import Event, Invariant
from .differences import difference, is_refused
from .ledger import Holding, Key, Ledger
from .oracle import DRAINING, Life, Oracle, Verdict
from .pools import PlainPool, PoolUnderTest


@attrs.frozen
class Parts:
    """What the stack is built from; give your own to test them.

    Attributes:
        pool: makes the pool.
        table: makes the table of requests; called like :class:`~lifecycle.RequestTable`.
        driver: makes the driver; called like :class:`~lifecycle.Driver`, with the bench as its ports.
        agree, verdict, drained: how ranks come to one answer; see :mod:`lifecycle.consensus`.
        oracle: makes the model that the stack is compared with.
    """

    pool: Callable[[], PoolUnderTest] = PlainPool
    table: Callable[..., RequestTable] = RequestTable
    driver: Callable[..., Driver] = Driver
    agree: Callable[..., consensus.Agreement] = consensus.agree
    verdict: Callable[..., Sequence[int]] = consensus.verdict
    drained: Callable[..., Sequence[bool]] = consensus.drained
    oracle: Callable[..., Oracle] = Oracle


class StackBroken(AssertionError):
    """The stack broke an invariant.

    Attributes:
        invariant: which, by its name in contract section 8.
        what: what happened.
        trace: the events so far, as the lines of a trace.
    """

    def __init__(self, invariant: Invariant, what: str, trace: list[dict[str, Any]]) -> None:
        self.invariant, self.what, self.trace = invariant, what, trace
        lines = "\n".join(f"    {line}" for line in trace)
        super().__init__(f"{invariant} is broken: {what}\n  after these events:\n{lines}")


# A class for each invariant, so that Hypothesis does not shrink one fault into another.
_BROKEN = {
    invariant: type(f"StackBroken_{invariant}", (StackBroken,), {"__doc__": str(invariant)})
    for invariant in Invariant
}


def stack_broken(invariant: Invariant, what: str, trace: list[dict[str, Any]]) -> StackBroken:
    """A finding, of the class that its invariant has."""
    found: StackBroken = _BROKEN[invariant](invariant, what, list(trace))
    return found


_SPECIAL = (Invariant.FREE_AFTER_ALL_OPS, Invariant.ATTEMPT_SCOPED)


class PortFault(Exception):
    """A port fails, as planned."""


@functools.cache
def _clients() -> ThreadPoolExecutor:
    """The clients' thread, one for all: to start one for each post took a tenth of a run."""
    return ThreadPoolExecutor(1, thread_name_prefix="clients")


class Rig:
    """See the module's text.

    Args:
        parts: what the stack is built from.
        policy: the contract's open choices.
        deadlines: seconds that a state may last, as the table takes them.
    """

    def __init__(
        self,
        parts: Parts | None = None,
        policy: Policy = DEFAULT_POLICY,
        deadlines: Mapping[str, float] | None = None,
    ) -> None:
        self.parts = parts = Parts() if parts is None else parts
        self.policy, self.deadlines = policy, dict(deadlines or {})
        self.oracle = parts.oracle(policy.to_mapping(), watching=True)
        self.pool = parts.pool()
        self.ledger = Ledger(self.pool)
        self.table = parts.table(
            policy, deadlines=self.deadlines, keep_done=None, abort_memory=None
        )
        self.driver = parts.driver(self.table, pool=self, transfer=self, reporter=self, cache=self)
        self.now = 0
        self.trace: list[dict[str, Any]] = [{"policy": policy.to_mapping()}]
        self.events = 0
        self.planned: dict[str, str] = {}  # port -> whether it fails before or after its work
        self.failed = False  # a port failed in this event
        self.due: set[tuple[str, Key]] = set()
        self.lives: list[Life] = []  # those of which something may still come
        self.clock: dict[tuple[str, int], tuple[str, int]] = {}
        self.older_clock: dict[Key, int] = {}
        self.posted: list[tuple[str, str, dict[str, Any]]] = []
        self.posting: Future[None] | None = None
        self.found: StackBroken | None = None
        self.touched = True  # somebody called the pool in this event
        self.late = False  # among the events of this step there is a late one
        self.about_older = False  # the event names an attempt that is not the newest

    # Events.

    def fire(self, line: dict[str, Any], grant: object = None) -> Verdict:
        """One event, for the model and for the stack; then they are compared.

        Raises:
            StackBroken: they differ.
        """
        life, verdict = self.follow(line, grant)
        rid, event = line["rid"], line["event"]
        details = {name: value for name, value in line.items() if name not in ("rid", "event")}
        if event == "admit":
            details["pages"] = grant
        error: Exception | None = None
        try:
            if event == "submit":
                self.driver.submit(rid, now=self.now)
            else:
                self.driver.fire(rid, event, now=self.now, **details)
        except Exception as raised:  # noqa: BLE001  # whatever comes out is held against the model
            error = raised
        self.answered(line, verdict, error)
        self.judge((life,), line, verdict)
        return verdict

    def follow(self, line: dict[str, Any], grant: object = None) -> tuple[Life | None, Verdict]:
        """An event, for the model alone: what ought to come of it is noted."""
        self.events += 1
        self.trace.append(line)
        number = line.get("incarnation")
        taken = self._claims(self.life(line["rid"], number)) if "launch" in line["event"] else 0
        known = len(self.oracle.violations)
        verdict = self.oracle.apply(line)
        self.late |= verdict.kind in ("late", "unknown")
        if verdict.kind == "illegal":
            # The model blames whoever tries new work for a decided request. Here that is the bench, on purpose.
            self.oracle.violations[known:] = [
                each for each in self.oracle.violations[known:]
                if each.invariant != Invariant.NO_NEW_WORK_AFTER_DECISION
            ]  # fmt: skip
        life = self.life(line["rid"], number)
        if life is None:
            return None, verdict
        if line["event"] == "submit" and verdict.kind == "move":
            self.lives.append(life)
        self.due.update(
            (effect.name, (life.rid, life.number, effect.attempt)) for effect in verdict.effects
        )
        for effect in verdict.effects:
            if effect.name == "release_kv" and self.policy.on_undrained is OnUndrained.RELEASE:
                key = (life.rid, life.number, effect.attempt)
                if life.attempts[effect.attempt].in_use:
                    self.ledger.unsafe.add(key)
        key = (life.rid, life.number, life.newest.number)
        if line["event"] == "admit" and verdict.kind == "move":
            self.touched = True
            broke = self.ledger.granted(key, grant, self.in_use)
            if broke is not None:
                self.broken(*broke)
        elif line["event"] == "forward_launched" and self._claims(life) > taken:
            self.ledger.holdings[key].launched.append(life.newest.claims[-1][1])
        self.about_older = line.get("attempt", life.newest.number) != life.newest.number
        self.tick(life)
        return life, verdict

    @staticmethod
    def _claims(life: Life | None) -> int:
        return 0 if life is None else len(life.newest.claims)

    def life(self, rid: str, number: int | None = None) -> Life | None:
        """The model's life of a rid; the newest by default."""
        lives = self.oracle.lives.get(rid, [])
        number = len(lives) if number is None else number
        return lives[number - 1] if 1 <= number <= len(lives) else None

    def in_use(self, key: Key) -> bool:
        """Whether a pass or an op may still touch the pages of an attempt."""
        life = self.life(key[0], key[1])
        return life is not None and bool(life.attempts[key[2]].in_use)

    def holding(self, life: Life) -> Holding | None:
        """The pages of the newest attempt, if they are out."""
        found = self.ledger.holdings.get((life.rid, life.number, life.newest.number))
        return found if found is not None and found.away == "" else None

    # Time.

    def tick(self, life: Life) -> None:
        """Note when a life entered what it is in; deadlines are worked out from that alone."""
        if not self.deadlines:
            return
        where = "draining" if life.state in DRAINING else life.state
        name = (life.rid, life.number)
        if self.clock.get(name, ("", 0))[0] != where:
            self.clock[name] = (where, self.now)
        for attempt in life.attempts[:-1]:
            key = (*name, attempt.number)
            if attempt.busy:
                self.older_clock.setdefault(key, self.now)
            else:
                self.older_clock.pop(key, None)

    def overdue(self) -> list[dict[str, Any]]:
        """What a deadline does now, as events."""
        lines: list[dict[str, Any]] = []
        for (rid, number), (where, since) in self.clock.items():
            limit = self.deadlines.get(where)
            if limit is None or self.now - since < limit:
                continue
            line: dict[str, Any] = {"event": "abort", "rid": rid, "source": "timeout"}
            if where == "draining":
                life = self.life(rid, number)
                assert life is not None
                line = {"event": "drain_timeout", "rid": rid, "attempt": life.newest.number}
            lines.append({**line, "incarnation": number})
        limit = self.deadlines.get("draining")
        for (rid, number, attempt), since in self.older_clock.items():
            if limit is not None and self.now - since >= limit:
                line = {"event": "drain_timeout", "rid": rid, "attempt": attempt}
                lines.append({**line, "incarnation": number})
        return lines

    def expire(self) -> None:
        """Let deadlines pass, in the model and in the stack."""
        lives: list[Life | None] = []
        refused = 0
        for line in self.overdue():
            name, key = (line["rid"], line["incarnation"]), self.clock
            before = key[name]
            life, verdict = self.follow(line)
            refused += is_refused(verdict, self.policy)
            lives.append(life)
            if key[name] == before and line.get("attempt") in (None, life and life.newest.number):
                key[name] = (before[0], self.now)  # it stays: asked again after as long
            if (older := (*name, line.get("attempt", -1))) in self.older_clock:
                self.older_clock[older] = self.now
        self.many(lambda: self.driver.expire(self.now), lives, refused, {"event": "drain_timeout"})

    # What other threads say.

    def post_in_a_thread(self, entries: list[tuple[str, str, dict[str, Any]]]) -> None:
        """The clients' thread posts entries, after what it was given before, while the loop goes on."""
        inbox = self.driver.inbox

        def run() -> None:
            for verb, rid, details in entries:
                if verb == "abort_all":
                    inbox.abort_all(**details)
                elif verb == "abort_prefix":
                    inbox.abort_prefix(rid, **details)
                elif details.get("event") == "abort":
                    inbox.abort(rid, **{k: v for k, v in details.items() if k != "event"})
                else:
                    inbox.fire(rid, **details)

        self.posted += entries
        self.posting = _clients().submit(run)

    def drain_inbox(self) -> None:
        """The loop's safe point: what was posted reaches the requests, in the order of posting."""
        if self.posting is not None:
            self.posting.result()
            self.posting = None
        entries, self.posted = self.posted, []
        lives: list[Life | None] = []
        refused = 0
        for verb, rid, details in entries:
            if verb == "fire":
                lines = [{"rid": rid, **details}]
            else:
                lines = self.aborts(rid, details)
            for line in lines:
                life, verdict = self.follow(line)
                refused += is_refused(verdict, self.policy)
                lives.append(life)
        self.many(lambda: self.driver.drain_inbox(now=self.now), lives, refused, {"event": "abort"})

    def aborts(self, prefix: str, details: dict[str, Any]) -> list[dict[str, Any]]:
        """An abort by prefix, as one event for each request that is not done."""
        return [
            {"event": "abort", "rid": rid, "incarnation": lives[-1].number, **details}
            for rid, lives in self.oracle.lives.items()
            if rid.startswith(prefix) and lives[-1].state != "done"
        ]

    def many(
        self,
        do: Callable[[], Sequence[object]],
        lives: Sequence[Life | None],
        refused: int,
        line: dict[str, Any],
    ) -> None:
        """A call that acts on several requests: none may keep it from the others."""
        try:
            todos = do()
        except Exception as error:  # noqa: BLE001  # whatever comes out is a finding
            self._what_the_model_saw()
            name = Invariant.LATE_IS_ABSORBED if self.late else Invariant.FAULT_ISOLATED
            self.broken(name, f"{type(error).__name__}: {error}")
        errors = [each.error for each in todos if isinstance(each, Todo) and each.error is not None]
        if len(errors) > refused:
            text = f"{errors[-1]} was refused; the contract takes it"
            self.broken(Invariant.ABORT_IS_TOTAL, text)
        self.judge(lives, line, None)

    # The ports: the driver believes that it talks to an engine.

    def release(self, hold: Hold) -> None:
        """The port: pages go back."""
        self._plan("release", "before")
        self._told(hold, "release_kv")
        self.touched = True
        self.pool.release(hold)
        self._away(hold, "released")
        self._plan("release", "after")

    def quarantine(self, hold: Hold) -> None:
        """The port: pages leave circulation."""
        self._plan("quarantine", "before")
        self._told(hold, "quarantine_kv")
        self.touched = True
        self.pool.quarantine(hold)
        self._away(hold, "quarantined")
        self._plan("quarantine", "after")

    def holds(self, hold: Hold) -> bool:
        """The port: whether pages are still out."""
        self._plan("holds", "before")
        return self.pool.holds(hold)

    def cancel(self, hold: Hold) -> None:
        """The port: the sender is told of a cancel."""
        self._plan("cancel", "before")
        self._told(hold, "cancel_transfer")

    def report(self, outcome: Outcome) -> None:
        """The port: the client is told."""
        self._plan("report", "before")
        life = self.life(outcome.rid, outcome.incarnation)
        number = 0 if life is None else life.newest.number
        hold = Hold(outcome.rid, outcome.incarnation, number)
        self._told(hold, "report", str(outcome.reason))

    def publish(self, hold: Hold) -> None:
        """The port: pages may be kept for others."""
        self._plan("publish", "before")
        self.oracle.observe(
            hold.rid,
            {"effect": "publish", "incarnation": hold.incarnation, "attempt": hold.attempt},
        )
        before, self.touched = set(self.pool.cached()), True
        self.pool.publish(hold)
        broke = self.ledger.published((hold.rid, hold.incarnation, hold.attempt), before)
        if broke is not None:
            self.broken(*broke)
        self._plan("publish", "after")

    def _told(self, hold: Hold, effect: str, reason: str | None = None) -> None:
        told = {"effect": effect, "incarnation": hold.incarnation, "attempt": hold.attempt}
        if reason is not None:
            told["reason"] = reason
        if effect == "report":  # of the request, not of an attempt
            del told["attempt"]
            self.due = {
                each for each in self.due
                if each[0] != "report" or each[1][:2] != (hold.rid, hold.incarnation)
            }  # fmt: skip
        key = (hold.rid, hold.incarnation, hold.attempt)
        self.due.discard((effect, key))
        broken = self.oracle.observe(hold.rid, told)
        if broken and effect == "release_kv" and key in self.ledger.unsafe:
            # The policy asked for it (reading R17), so here it is no fault of the stack.
            del self.oracle.violations[-len(broken) :]

    def _away(self, hold: Hold, how: str) -> None:
        holding = self.ledger.holdings.get((hold.rid, hold.incarnation, hold.attempt))
        if holding is not None:
            holding.away = how

    def _plan(self, port: str, when: str) -> None:
        if self.planned.get(port) == when:
            del self.planned[port]
            self.failed = True
            msg = f"the port {port} fails {when} its work"
            raise PortFault(msg)

    # Judging.

    def answered(self, line: dict[str, Any], verdict: Verdict, error: Exception | None) -> None:
        """Whether an event was taken or refused as the contract says."""
        if error is not None:
            self._what_the_model_saw()
        if error is not None and not isinstance(error, LifecycleError):
            name = Invariant.FAULT_ISOLATED if self.failed else Invariant.LATE_IS_ABSORBED
            if verdict.kind in ("move", "stay") and not self.failed:
                name = (
                    Invariant.ABORT_IS_TOTAL
                    if line["event"] == "abort"
                    else Invariant.FAULT_ISOLATED
                )
            self.broken(name, f"{line} raised {type(error).__name__}: {error}")
        refused = is_refused(verdict, self.policy)
        if verdict.kind == "unknown" and line["event"] == Event.ADMIT:
            refused = isinstance(
                error, UnknownRequest
            )  # under any policy: its pages would be nobody's
        if (error is not None) == refused:
            return
        if error is not None:
            name = Invariant.CLAIM_COUNT
            if line["event"] == Event.ABORT:
                name = Invariant.ABORT_IS_TOTAL
            elif verdict.kind in ("late", "unknown"):
                name = Invariant.LATE_IS_ABSORBED
            self.broken(name, f"{line} was refused ({error}); the contract says: {verdict.kind}")
        if verdict.kind != "illegal":
            self.broken(Invariant.LATE_IS_ABSORBED, f"{line} is {verdict.kind}, and was taken")
        name = Invariant.CLAIM_COUNT
        if line["event"] == Event.SUBMIT:
            name = Invariant.EXACT_TARGET  # two requests of one rid live
        elif line["event"] in ("admit", "forward_launched", "transfer_posted", "preempt"):
            name = Invariant.NO_NEW_WORK_AFTER_DECISION
        self.broken(name, f"{line} was taken in {verdict.state}; the contract refuses it")

    def judge(
        self, about: Collection[Life | None], line: dict[str, Any], verdict: Verdict | None
    ) -> None:
        """Compare everything.

        Args:
            about: the lives that the event was for.
            line: the event, or what stands for several.
            verdict: what the contract said, if it was one event.

        Raises:
            StackBroken: something differs.
        """
        self._what_the_model_saw()
        others = [life for life in self.lives if life not in about]
        for life in (*about, *others):
            if life is not None:
                request = self.table.life(life.rid, life.number)
                broke = difference(self.oracle, life, request, line, verdict, life in about, about)
                if broke is not None:
                    self.broken(*broke)
        if self.due:
            self._nothing_forgotten()
        self.failed = self.late = False
        if self.touched:  # a pool that nobody called is where it was
            self.touched = False
            if (broke := self.ledger.counts()) is not None:
                self.broken(*broke)
        self.lives = [
            life for life in self.lives
            if life.state != "done" or any(attempt.in_use for attempt in life.attempts)
        ]  # fmt: skip

    def _what_the_model_saw(self) -> None:
        """What the driver did through its ports, as the model judged it at once."""
        if self.found is not None:
            raise self.found
        if self.oracle.violations:
            worst = self.oracle.violations[0]
            for (
                each
            ) in self.oracle.violations:  # of what one act breaks, the special name tells more
                if each.line == worst.line and each.invariant in _SPECIAL:
                    worst = each
            if self.about_older and worst.invariant in (
                Invariant.PEER_TOLD,
                Invariant.REASON_BY_POLICY,
            ):  # what ended was of an older attempt, and the newest one was decided
                self.broken(Invariant.ATTEMPT_SCOPED, f"request {worst.rid!r}: {worst.detail}")
            self.broken(Invariant(worst.invariant), f"request {worst.rid!r}: {worst.detail}")

    def _nothing_forgotten(self) -> None:
        """What the contract asks for was done, or is among the driver's faults."""
        owed = {
            (str(f.effect.kind), (f.hold.rid, f.hold.incarnation, f.hold.attempt))
            for f in self.driver.faults
        }
        forgotten = self.due - owed
        if forgotten:
            name, key = min(forgotten)
            invariant = {
                "report": Invariant.REPORT_ONCE,
                "cancel_transfer": Invariant.PEER_TOLD,
            }.get(name, Invariant.DRAIN_TO_ZERO)
            if self.failed:
                invariant = Invariant.FAULT_ISOLATED
            self.broken(invariant, f"{name} of {key} was not carried out")

    def broken(self, invariant: Invariant, what: str) -> NoReturn:
        """Say that an invariant broke."""
        if (
            self.found is None
        ):  # the driver may have swallowed the first one: a port must not break it
            self.found = stack_broken(invariant, what, self.trace)
        raise self.found

    def close(self) -> None:
        """Wait for the clients' thread."""
        if self.posting is not None:
            self.posting.result()
