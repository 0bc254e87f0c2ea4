"""Frees that wait: pages that were released while streams or transfers may still touch them.

A release leaves a :class:`Waiting` behind with the events that have to be reached and the ops that
have to drain. Events of one stream are reached in the order in which they were recorded, so the
queue asks only the first event of each stream: a poll costs as much as there are streams, plus what
it settles, however many releases wait. Events that were handed over without their stream are asked
one by one.

An op is drained by a call (:meth:`kvpool.lease.Lease.drain_op`), so it needs no poll at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kvpool.lease import Lease, LeaseState
from kvpool.slabs import Pages
from kvpool.streams import EventLike, StreamLike


class Waiting:
    """The pages of one ended lease, and what they wait for.

    ``own`` are pages that nobody else has a claim on; ``shared`` have other claims (see
    :mod:`kvpool.claims`). A quarantined one is not settled by events and ops: only by an explicit
    proof.
    """

    __slots__ = ("by", "events_left", "fault", "lease", "ops", "own", "quarantine", "shared")

    def __init__(self, lease: Lease, own: Pages, shared: Pages, ops: set[str]) -> None:
        self.lease = lease
        self.own = own
        self.shared = shared
        self.ops = ops
        self.events_left = 0
        # The reason why the pages are in quarantine; None if they are not.
        self.quarantine: str | None = None
        # What went wrong when an event was asked; the pages then go to quarantine.
        self.fault: str | None = None

    @property
    def state(self) -> LeaseState:
        """Pending, or quarantined."""
        return LeaseState.PENDING if self.quarantine is None else LeaseState.QUARANTINED

    @property
    def settled(self) -> bool:
        """Whether nothing can touch the pages any more."""
        return not self.events_left and not self.ops and self.quarantine is None

    def waits_for(self) -> str:
        """In words, for messages and tables."""
        parts = [f"op {op}" for op in sorted(self.ops)]
        if self.events_left:
            parts.append(f"{self.events_left} stream events")
        return ", ".join(parts) or "nothing"


class EventQueue:
    """The events that releases wait for."""

    def __init__(self) -> None:
        self._streams: dict[StreamLike, deque[tuple[EventLike, Waiting]]] = {}
        self._loose: list[tuple[EventLike, Waiting]] = []

    def add(
        self,
        waiting: Waiting,
        stream_events: Iterable[tuple[StreamLike, EventLike]],
        events: Iterable[EventLike],
    ) -> None:
        """Let ``waiting`` wait for these events."""
        for stream, event in stream_events:
            self._streams.setdefault(stream, deque()).append((event, waiting))
            waiting.events_left += 1
        for event in events:
            self._loose.append((event, waiting))
            waiting.events_left += 1

    def poll(self) -> list[Waiting]:
        """Ask the events, never waiting. Returns those whose last event was reached, or whose event
        failed.

        An event that raises when it is asked proves nothing, ever: ``fault`` is set, its pages have
        to be quarantined, and the other releases are not held up by it.
        """
        through: list[Waiting] = []
        for stream in list(self._streams):
            queue = self._streams[stream]
            while queue and self._ask(queue[0], through):
                queue.popleft()
            if not queue:
                del self._streams[stream]
        self._loose = [pair for pair in self._loose if not self._ask(pair, through)]
        return through

    @staticmethod
    def _ask(pair: tuple[EventLike, Waiting], through: list[Waiting]) -> bool:
        """Whether this event is over and done with."""
        event, waiting = pair
        try:
            reached = event.query()
        except Exception as error:  # noqa: BLE001 - a broken device must not leak or free anyone's pages
            waiting.fault = f"asking {event!r} raised {type(error).__name__}: {error}"
            reached = True
        if reached:
            waiting.events_left -= 1
            if not waiting.events_left or waiting.fault is not None:
                through.append(waiting)
        return reached

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._streams.values()) + len(self._loose)
