"""Carries effects out, in order, through the ports of a scheduler (:mod:`lifecycle.ports`).

The driver wraps a table: the same events go in, and nothing comes out, since it does what the effects say.

Ports fail. A port that raises loses nothing here: the other effects of the same request still run, no other
request is touched, the fault is kept with the effect that is still owed (:attr:`Driver.faults`) and told once to
`on_fault`. :meth:`Driver.retry` tries what is owed again. Pages are never released twice on the way: the driver
forgets a hold with its first release that did not raise, and asks the pool whether it still holds the pages
before it tries one again that did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .compile import Effect
from .errors import LifecycleError, PolicyError, UnknownRequest
from .ports import Hold, KVPool, PrefixCache, Reporter, TransferEngine
from .reasons import WIRE, Outcome, Wire
from .request import RequestLifecycle
from .table import Inbox, RequestTable, Todo
from .vocabulary import EffectKind, Event, FinishReason


@attrs.frozen(eq=False)
class Fault:
    """An effect that a port refused: what is still owed, to whom, and the error.

    `outcome` is what a report is to say. `published` tells whether the prefix cache has had its turn.
    """

    effect: Effect
    hold: Hold
    error: BaseException
    outcome: Outcome | None = None
    published: bool = False

    def __str__(self) -> str:
        kind = type(self.error).__name__
        return f"{self.effect.kind} of request {self.hold} failed: {kind}: {self.error}"


class Driver:
    """A table of requests whose effects are carried out.

    Raises:
        PolicyError: `wire` leaves out a reason.

    Args:
        table: the requests; the driver's methods wrap it, so fire all events through the driver.
        pool: gives pages back.
        transfer: is told of cancels. None where nothing is ever transferred.
        reporter: tells clients.
        cache: may keep pages that are proven complete, right before their release.
        wire: what goes on the wire for each reason.
        on_fault: called once for each fault of a port, when it happens.
    """

    def __init__(
        self,
        table: RequestTable,
        *,
        pool: KVPool,
        reporter: Reporter,
        transfer: TransferEngine | None = None,
        cache: PrefixCache | None = None,
        wire: Mapping[FinishReason, Wire] = WIRE,
        on_fault: Callable[[Fault], None] | None = None,
    ) -> None:
        missing = [str(reason) for reason in FinishReason if reason not in wire]
        if missing:
            msg = f"the wire mapping must say what goes out for every reason; missing: {', '.join(missing)}"
            raise PolicyError(msg)
        self.table = table
        self.pool, self.transfer, self.reporter, self.cache = pool, transfer, reporter, cache
        self.wire, self.on_fault = wire, on_fault
        self._holds: dict[tuple[str, int, int], Hold] = {}
        self._faults: list[Fault] = []

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What ports refused and nobody has retried with success, oldest first."""
        return tuple(self._faults)

    @property
    def holds(self) -> tuple[Hold, ...]:
        """Every attempt whose pages are out, in the order of admission."""
        return tuple(self._holds.values())

    @property
    def inbox(self) -> Inbox:
        """Where other threads post aborts and completions; :meth:`drain_inbox` takes them in."""
        return self.table.inbox

    def adopt(self, hold: Hold) -> None:
        """Take charge of pages that were admitted elsewhere: those of a table that was restored, say."""
        self._holds[hold.rid, hold.incarnation, hold.attempt] = hold

    # Events, as the table takes them.

    def submit(self, rid: str, *, now: float | None = None) -> RequestLifecycle:
        """A new request, which is returned; see :meth:`RequestTable.submit`."""
        todo = self.table.open(rid, now=now)
        assert todo.request is not None
        self.perform(todo.request, todo.effects)
        return todo.request

    def fire(
        self,
        rid: str,
        event: str,
        *,
        incarnation: int | None = None,
        now: float | None = None,
        pages: object = None,
        **details: Any,
    ) -> RequestLifecycle | None:
        """Fire an event and carry out its effects; see :meth:`RequestTable.fire`.

        Returns the request; None if it is unknown.

        Raises:
            What the table raises. If ``admit`` raises, the pages are still the caller's.
            UnknownRequest: ``admit`` of a request that is unknown, whatever the policy: its pages would be
                nobody's.
        """
        table = self.table
        request = table._newest.get(rid) if incarnation is None else table.life(rid, incarnation)
        if event == Event.ADMIT:
            effects = table.fire(
                rid, event, incarnation=incarnation, now=now, pages=pages, **details
            )
            if request is None:
                msg = f"admit of request {rid!r}, which is not in the table; its pages are still yours"
                raise UnknownRequest(msg, rid=rid, event=event)
            self.adopt(Hold(rid, request.incarnation, request.attempt, pages))
        else:
            effects = table.fire(rid, event, incarnation=incarnation, now=now, **details)
        if effects and request is not None:
            self.perform(request, effects)
        return request

    def abort(self, rid: str, source: str = "client", **details: Any) -> RequestLifecycle | None:
        """Abort exactly this rid."""
        return self.fire(rid, Event.ABORT, source=source, **details)

    # These return what was done, request by request; a todo with an error changed nothing.

    def abort_all(self, source: str = "shutdown", **details: Any) -> list[Todo]:
        """Abort every request that is not done."""
        return self._perform_all(self.table.abort_all(source, **details))

    def abort_prefix(self, prefix: str, source: str = "client", **details: Any) -> list[Todo]:
        """Abort every request that is not done and whose rid begins with `prefix`."""
        return self._perform_all(self.table.abort_prefix(prefix, source, **details))

    def drain_inbox(self, now: float | None = None) -> list[Todo]:
        """Take in what other threads posted, and carry it out."""
        return self._perform_all(self.table.drain_inbox(now))

    def expire(self, now: float) -> list[Todo]:
        """End what is past its deadline; see :meth:`RequestTable.expire`."""
        return self._perform_all(self.table.expire(now))

    def _perform_all(self, todos: list[Todo]) -> list[Todo]:
        for todo in todos:
            if todo.request is not None:
                self.perform(todo.request, todo.effects)
        return todos

    # Effects.

    def perform(self, request: RequestLifecycle, effects: tuple[Effect, ...]) -> None:
        """Carry out `effects` of `request`, in order; for callers who fire events themselves.

        Never raises what a port raised. Something that must stop the process (``KeyboardInterrupt``) passes
        through, and what was not carried out by then is among :attr:`faults`.
        """
        owed = [self._owed(request, effect) for effect in effects]
        while owed:
            fault = owed[0]
            try:
                self._carry_out(fault)
            except Exception as error:  # noqa: BLE001  # a port may raise anything; nothing else must suffer
                self._keep(attrs.evolve(fault, error=error))
            except BaseException as error:
                self._faults += [attrs.evolve(rest, error=error) for rest in owed]
                raise
            del owed[0]

    def retry(self) -> tuple[Fault, ...]:
        """Try again what ports refused. Returns what they refused again."""
        owed, self._faults = self._faults, []
        for fault in owed:
            kind = fault.effect.kind
            frees = kind is EffectKind.RELEASE_KV or kind is EffectKind.QUARANTINE_KV
            try:
                if frees and not self.pool.holds(fault.hold):
                    self._forget(fault.hold)  # the port raised after it had done it
                else:
                    # The cache has had its turn. Since then the request may have been cut short (after a
                    # preempt, say), and its pages are nothing to keep any more.
                    self._carry_out(attrs.evolve(fault, published=True))
            except Exception as error:  # noqa: BLE001  # as in perform
                self._faults.append(attrs.evolve(fault, error=error))
        return self.faults

    def _owed(self, request: RequestLifecycle, effect: Effect) -> Fault:
        key = (request.rid, request.incarnation, effect.attempt)
        hold = self._holds.get(key) or Hold(*key)
        outcome = request.outcome(self.wire) if effect.kind is EffectKind.REPORT else None
        return Fault(effect, hold, _NOT_TRIED, outcome)

    def _carry_out(self, owed: Fault) -> None:
        effect, hold = owed.effect, owed.hold
        if effect.kind is EffectKind.REPORT:
            assert owed.outcome is not None
            self.reporter.report(owed.outcome)
        elif effect.kind is EffectKind.CANCEL_TRANSFER:
            if self.transfer is not None:
                self.transfer.cancel(hold)
        elif effect.kind is EffectKind.QUARANTINE_KV:
            self.pool.quarantine(hold)
            self._forget(hold)
        else:
            if effect.publish and self.cache is not None and not owed.published:
                self._publish(owed)
            self.pool.release(hold)
            self._forget(hold)

    def _publish(self, owed: Fault) -> None:
        """A cache that fails keeps nothing; the pages are released all the same."""
        assert self.cache is not None
        try:
            self.cache.publish(owed.hold)
        except Exception as error:  # noqa: BLE001  # as in perform
            if self.on_fault is not None:
                self.on_fault(attrs.evolve(owed, error=error))

    def _keep(self, fault: Fault) -> None:
        self._faults.append(fault)
        if self.on_fault is not None:
            self.on_fault(fault)

    def _forget(self, hold: Hold) -> None:
        self._holds.pop((hold.rid, hold.incarnation, hold.attempt), None)


_NOT_TRIED = LifecycleError("not tried yet")
