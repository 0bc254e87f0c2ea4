"""Who looks on: observers of a table's events, which see everything and change nothing.

A :class:`Recorder <lifecycle.recorder.Recorder>`, metrics (:mod:`lifecycle.metrics`) and traces
(:mod:`lifecycle.tracing`) are observers. A :class:`lifecycle.shadow.Shadow` tells them what it is told; a
scheduler that runs on this library uses an :class:`ObservedTable` in place of its table.

>>> class Printer(Observer):
...     def saw(self, request, event, details, effects):
...         print(event, request.state, [str(effect) for effect in effects])
>>> table = ObservedTable([Printer()])
>>> effects = table.submit("r1")
submit queued []
>>> effects = table.abort("r1")
abort done ['cancel_transfer', 'report']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .compile import Effect
from .errors import EventError
from .request import RequestLifecycle
from .table import RequestTable
from .vocabulary import Event

if TYPE_CHECKING:
    from .shadow import Divergence


class Observer:
    """Sees what happens. Each method does nothing until it is overridden.

    They are called in the scheduler's own thread, right after the event: be quick, and keep no request.
    """

    def saw(
        self,
        request: RequestLifecycle,
        event: str,
        details: Mapping[str, Any],
        effects: tuple[Effect, ...],
    ) -> None:
        """`request` took `event`, with `details`, and these `effects`; it is as it stands after the event."""

    def refused(self, rid: str, event: str, details: Mapping[str, Any], error: EventError) -> None:
        """An event was illegal, or a detail of it made no sense; nothing has changed."""

    def unknown(self, rid: str, event: str, details: Mapping[str, Any]) -> None:
        """An event for a request that nobody knows."""

    def diverged(self, divergence: Divergence) -> None:
        """A shadow found that the scheduler did something else."""


class ObservedTable(RequestTable):
    """A table of requests whose observers see every event.

    Args:
        observers: told in turn. What one raises is counted in :attr:`failures` by its class, and never reaches
            the scheduler.
        options: as :class:`RequestTable` takes them.
    """

    def __init__(self, observers: Iterable[Observer], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.observers = tuple(observers)
        self.failures: Counter[str] = Counter()

    def fire(
        self,
        rid: str,
        event: str,
        *,
        incarnation: int | None = None,
        now: float | None = None,
        **details: Any,
    ) -> tuple[Effect, ...]:
        """As :meth:`RequestTable.fire`; the observers see it."""
        newest = self._newest.get(rid)
        request = newest if incarnation is None else self.life(rid, incarnation)
        try:
            effects = super().fire(rid, event, incarnation=incarnation, now=now, **details)
        except EventError as error:
            self._show("refused", rid, event, details, error)
            raise
        if incarnation is not None and request is not newest:
            details["incarnation"] = (
                incarnation  # a former life: whoever writes it down has to say so
            )
        if request is None:
            self._show("unknown", rid, event, details)
        else:
            self._show("saw", request, event, details, effects)
        return effects

    def _open(self, rid: str, now: float | None) -> RequestLifecycle:
        try:
            request = super()._open(rid, now)
        except EventError as error:
            self._show("refused", rid, Event.SUBMIT, {}, error)
            raise
        self._show("saw", request, Event.SUBMIT, {}, ())
        return request

    def _show(self, method: str, *arguments: Any) -> None:
        for observer in self.observers:
            try:
                getattr(observer, method)(*arguments)
            except Exception:  # noqa: BLE001  # an observer's fault is not the scheduler's
                self.failures[type(observer).__name__] += 1
