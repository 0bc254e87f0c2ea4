"""asyncio: a coroutine waits for a request, and cancelling it aborts the request.

:class:`AsyncTable` is a :class:`lifecycle.Driver` with one more method. An HTTP handler submits, and waits::

    table.submit(rid)
    outcome = await table.finished(rid)  # returns what the client is told
    return web.json_response({"finish_reason": outcome.wire}, status=outcome.status)

When the client hangs up, the server cancels the handler, and the request is aborted with source ``client``: its
peer is told, its pages drain and go back, whether or not anyone still waits. There is no thread and nothing polls:
a waiter is one future, resolved by the report.

Where the scheduler lives, there are two ways:

In the event loop
    The scheduler is a task, or call-backs, of the same loop. Cancelling aborts at once, and the table's deadlines
    are kept by one timer of the event loop (:meth:`AsyncTable.expire` need not be called). What a thread finds out
    comes in by ``loop.call_soon_threadsafe(table.fire, rid, event)``.

In a thread of its own (``threaded=True``)
    All methods but ``finished`` belong to that thread. Cancelling posts the abort to the inbox, which the thread
    drains at its safe point; the thread calls ``expire`` itself. Since the handler cannot know whether the thread
    has submitted its request yet, ``finished`` may wait for a rid that is still unknown, and be cancelled: the
    abort is then remembered until the submit (contract section 7).

``finished`` waits for the *report* (contract section 6): under ``report="at_decision"`` pages may still drain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from lifecycle import (
    AbortSource,
    Driver,
    Event,
    Outcome,
    Reporter,
    RequestLifecycle,
    RequestTable,
    Todo,
    UnknownRequest,
)

_Life = tuple[str, int]


class AsyncTable(Driver):
    """A driver whose requests can be awaited.

    Args:
        table: the requests; fire all events through this object.
        threaded: whether a thread of its own fires the events (see the head of this module).
        clock: seconds, for events that are fired without ``now``; where events are given ``now``, the same clock.
        reporter: told of each outcome too, if given, after the waiters.
        ports: ``pool`` and the rest of :class:`lifecycle.Driver`'s arguments.

    Raises:
        PolicyError: as Driver raises it.
    """

    def __init__(
        self,
        table: RequestTable,
        *,
        threaded: bool = False,
        clock: Callable[[], float] = time.monotonic,
        reporter: Reporter | None = None,
        **ports: Any,
    ) -> None:
        self._waiters = _Waiters(reporter)
        super().__init__(table, reporter=self._waiters, **ports)
        self.threaded = threaded
        self.clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when it rings, by the clock

    async def finished(
        self,
        rid: str,
        *,
        incarnation: int | None = None,
        abort_on_cancel: bool = True,
        source: str = AbortSource.CLIENT,
    ) -> Outcome:
        """Wait until `rid` is reported; return its outcome, at once if it was reported before.

        If the waiting task is cancelled, the request is aborted with `source` and the cancellation goes on.
        Several tasks may wait for one request, and the first that is cancelled aborts it; one that only looks on
        says ``abort_on_cancel=False``.

        Args:
            rid: the request.
            incarnation: which of its lives; the newest by default.
            abort_on_cancel: whether cancelling this wait aborts the request.
            source: ``client``, ``server``, ``timeout`` or ``shutdown``.

        Raises:
            UnknownRequest: no such request was submitted, or it is forgotten. With ``threaded`` it waits instead.
        """
        life = self._life(rid, incarnation)
        future = self._waiters.add(life)
        # After the waiter is there: a report in another thread either sees it, or was seen here.
        request = self.table.life(*life)
        if request is not None and request.reported:
            self._waiters.discard(life, future)
            return request.outcome(self.wire)
        try:
            return await future
        except asyncio.CancelledError:
            # With a result that this task has not seen yet, there is nothing left to abort.
            if abort_on_cancel and (future.cancelled() or not future.done()):
                self._abort(life, source)
            raise
        finally:
            self._waiters.discard(life, future)

    @property
    def waiting(self) -> int:
        """How many tasks wait in :meth:`finished`."""
        return len(self._waiters)

    def _life(self, rid: str, incarnation: int | None) -> _Life:
        if incarnation is None:
            request = self.table[rid] if rid in self.table else None  # noqa: SIM401  # it is no dictionary
        else:
            request = self.table.life(rid, incarnation)
        if request is not None:
            return rid, request.incarnation
        if self.threaded:
            return rid, incarnation or 1
        life = "" if incarnation is None else f" (life {incarnation})"
        msg = f"request {rid!r}{life} is not in the table: submit it before waiting for it"
        raise UnknownRequest(msg, rid=rid)

    def _abort(self, life: _Life, source: str) -> None:
        rid, incarnation = life
        if self.threaded:
            self.inbox.abort(rid, source, incarnation=incarnation)
        else:
            self.fire(rid, Event.ABORT, incarnation=incarnation, source=source)

    # As the driver has them; time is taken from the clock where it is not given, and the timer is set.

    def submit(self, rid: str, *, now: float | None = None) -> RequestLifecycle:
        """A new request; see :meth:`lifecycle.Driver.submit`."""
        try:
            return super().submit(rid, now=self._now(now))
        finally:
            self._arm()

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
        """Fire an event and carry out its effects; see :meth:`lifecycle.Driver.fire`."""
        try:
            return super().fire(
                rid, event, incarnation=incarnation, now=self._now(now), pages=pages, **details
            )
        finally:
            self._arm()

    def abort_all(self, source: str = AbortSource.SHUTDOWN, **details: Any) -> list[Todo]:
        """Abort every request that is not done."""
        try:
            return super().abort_all(source, now=self._now(details.pop("now", None)), **details)
        finally:
            self._arm()

    def abort_prefix(
        self, prefix: str, source: str = AbortSource.CLIENT, **details: Any
    ) -> list[Todo]:
        """Abort every request that is not done and whose rid begins with `prefix`."""
        try:
            now = self._now(details.pop("now", None))
            return super().abort_prefix(prefix, source, now=now, **details)
        finally:
            self._arm()

    def drain_inbox(self, now: float | None = None) -> list[Todo]:
        """Take in what other threads posted, and carry it out."""
        try:
            return super().drain_inbox(self._now(now))
        finally:
            self._arm()

    def expire(self, now: float) -> list[Todo]:
        """End what is past its deadline. Without ``threaded``, the event loop calls this when one passes."""
        try:
            return super().expire(now)
        finally:
            self._arm()

    def _now(self, now: float | None) -> float:
        return self.clock() if now is None else now

    def _arm(self) -> None:
        """One timer, for the deadline that passes first; none where the event loop does not run."""
        if self.threaded or not self.table.deadlines:
            return
        due, loop = self.table.next_deadline(), _running_loop()
        if due is None or loop is None:
            return
        if self._timer is not None:
            if self._due <= due:
                return  # it rings before that, and is then set anew
            self._timer.cancel()
        self._due = due
        self._timer = loop.call_later(max(0.0, due - self.clock()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.expire(self.clock())


class _Waiters:
    """The futures of those who wait, by life; and, as a reporter, what resolves them.

    `add` and `discard` run in the event loop, `report` in whatever thread fires the events.
    """

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter
        self._futures: dict[_Life, list[asyncio.Future[Outcome]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._futures.values()))

    def add(self, life: _Life) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(life, []).append(future)
        return future

    def discard(self, life: _Life, future: asyncio.Future[Outcome]) -> None:
        futures = self._futures.get(life, [])
        if future in futures:
            futures.remove(future)
            if not futures:
                self._futures.pop(life, None)

    def report(self, outcome: Outcome) -> None:
        """Resolve who waits, then pass it on: a reporter that fails is tried again, and keeps nobody waiting."""
        here = _running_loop()
        for future in self._futures.pop((outcome.rid, outcome.incarnation), ()):
            loop = future.get_loop()
            if loop is here:
                _resolve(future, outcome)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future, outcome)
        if self._reporter is not None:
            self._reporter.report(outcome)


def _resolve(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():  # its task may have been cancelled meanwhile
        future.set_result(outcome)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
