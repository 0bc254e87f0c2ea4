"""Streams and events: the real ones of CUDA, and fake ones that a test completes by hand.

The pool needs two things only: a stream on which an event can be recorded, and an event that can be
asked whether it was reached. ``torch.cuda.Stream`` and ``torch.cuda.Event`` have these methods as
they are. On CPU torch offers nothing of use (``torch.Event("cpu").record()`` raises, ``torch.cpu``
events are always reached), so :class:`FakeStream` and :class:`FakeEvent` stand in: they run the
very same code of the pool, and the test decides when the "device" gets on.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import attrs


@runtime_checkable
class EventLike(Protocol):
    """A point in a stream's work, as ``torch.cuda.Event`` is."""

    def query(self) -> bool:
        """Whether everything before this point is done. Never waits."""

    def synchronize(self) -> None:
        """Wait on the host until everything before this point is done."""


@runtime_checkable
class StreamLike(Protocol):
    """Work in order, as ``torch.cuda.Stream`` is."""

    def record_event(self) -> EventLike:
        """Mark the point after all work that was queued so far."""


class FakeEvent:
    """An event of a :class:`FakeStream`."""

    def __init__(self, stream: FakeStream, position: int) -> None:
        self.stream = stream
        self.position = position

    def query(self) -> bool:
        """Whether the test has reached it."""
        return self.stream.reached >= self.position

    def synchronize(self) -> None:
        """Nobody completes a fake stream while we wait, so waiting for an event not reached is an
        error.
        """
        if not self.query():
            message = f"{self!r} is not reached: a real program would wait here"
            raise RuntimeError(message)

    def complete(self) -> None:
        """Reach this event, and with it everything earlier on its stream, as hardware does."""
        self.stream.reached = max(self.stream.reached, self.position)

    def __repr__(self) -> str:
        return f"<event {self.position} of {self.stream.name}>"


class FakeStream:
    """A stream whose work is done when the test says so.

    ``record_event`` gives events 1, 2, ...; ``complete()`` reaches all of them, ``complete(n)``
    those up to the n-th. ``FakeEvent.complete`` reaches one and all before it.
    """

    def __init__(self, name: str = "stream") -> None:
        self.name = name
        self.recorded = 0
        self.reached = 0

    def record_event(self) -> FakeEvent:
        """Mark the point after all work so far."""
        self.recorded += 1
        return FakeEvent(self, self.recorded)

    def complete(self, position: int | None = None) -> None:
        """Reach the events up to ``position``, or all that were recorded."""
        self.reached = max(self.reached, self.recorded if position is None else position)

    def __repr__(self) -> str:
        return f"<stream {self.name}: {self.reached} of {self.recorded} events reached>"


@attrs.frozen
class Fence:
    """Several events as one: what a transfer waits for before it may be posted.

    A network card is in no stream. It would read pages whose kernel has not run yet, unless the
    host first waits on the events of every stream that wrote them (contract section 8,
    ``stream_order``).
    """

    events: tuple[EventLike, ...]

    def query(self) -> bool:
        """Whether all events are reached. Never waits; poll this from an event loop."""
        return all(event.query() for event in self.events)

    def synchronize(self) -> None:
        """Wait until all events are reached. Call it on the transfer thread, not on the
        scheduler's.
        """
        for event in self.events:
            event.synchronize()
