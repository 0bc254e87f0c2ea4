"""One call of :meth:`RequestBatch.apply`: what is fired at each place, as signals and as words.

Columns need a signal for each row; an object that must answer, and an error, need the event and its details. A
call has both. Where a signal depends on the row (how far a named step is from the newest one, whether a token
position is before the recorded one), it is worked out for a whole chunk at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadDetail
from ..vocabulary import Event
from . import signals as sig
from .applied import Ints
from .columns import NO_POSITION, Chunk
from .shapes import Shapes

_LAUNCH = sig.code("forward_launched")
_STOP, _LENGTH = sig.code("complete", reason="stop"), sig.code("complete", reason="length")
_STEPPED = (Event.FORWARD_LAUNCHED, Event.FORWARD_FINISHED)


class Call:
    """What one call fires.

    Attributes:
        event: the event that is fired at all; None where each place has its own.
        codes: the signal of all, or one for each place, uint8, shape (n,).
        steps, positions: the step and the token position for each place, int64, shape (n,); None for none.
            A position may be `NO_POSITION`.
        launches: whether a pass may be launched by it.
        said: message, status and cause, if there are any.
        to_all: whether it is an event for every request, rather than for rows that the caller names.
    """

    __slots__ = (
        "codes", "details", "event", "has_completions", "launches", "positions", "said", "steps", "to_all"
    )  # fmt: skip

    def __init__(
        self,
        event: str | None,
        codes: int | npt.NDArray[np.uint8],
        details: Mapping[str, Any],
        *,
        steps: Ints | None = None,
        positions: Ints | None = None,
        to_all: bool = False,
    ) -> None:
        self.event, self.codes, self.details = event, codes, details
        self.steps, self.positions, self.to_all = steps, positions, to_all
        self.launches = event is None or event == Event.FORWARD_LAUNCHED
        self.has_completions = event is None or event == Event.COMPLETE
        said = {name: details.get(name) for name in ("message", "status", "cause")}
        self.said = said if any(value is not None for value in said.values()) else None

    def only(self, keep: npt.NDArray[np.bool_]) -> Call:
        """The same for some of its places."""
        codes = self.codes[keep] if isinstance(self.codes, np.ndarray) else self.codes
        steps = None if self.steps is None else self.steps[keep]
        positions = None if self.positions is None else self.positions[keep]
        return Call(self.event, codes, self.details, steps=steps, positions=positions)

    def fired(self, place: int) -> tuple[str, dict[str, Any]]:
        """The event and its details at one place."""
        if self.event is None:
            assert isinstance(self.codes, np.ndarray)
            signal = sig.SIGNALS[self.codes[place]]
            return signal.event, dict(signal.details)
        details = dict(self.details)
        if self.steps is not None:
            details["step"] = int(self.steps[place])
        if self.positions is not None and self.positions[place] != NO_POSITION:
            details["position"] = int(self.positions[place])
        return self.event, details

    def signals(
        self,
        shapes: Shapes,
        chunk: Chunk,
        local: npt.NDArray[Any] | None,
        where: Any,
        codes: npt.NDArray[Any],
        *,
        positioned: bool,
    ) -> Any:
        """The signal of all, or one for each row of a part, where `codes` are the shapes of its rows."""
        mine: Any = self.codes[where] if isinstance(self.codes, np.ndarray) else self.codes
        if self.steps is not None:
            last = chunk.last[: len(codes)] if local is None else chunk.last[local]
            return self._by_step(shapes, mine, self.steps[where] - last, codes)
        if self.has_completions and positioned:
            at = chunk.position[: len(codes)] if local is None else chunk.position[local]
            return self._by_position(mine, at, where)
        return mine

    def _by_step(
        self, shapes: Shapes, mine: Any, ahead: Ints, codes: npt.NDArray[Any]
    ) -> npt.NDArray[np.uint8]:
        if self.event == Event.FORWARD_FINISHED:
            near = (ahead <= 0) & (ahead > -sig.STEPS_BACK)
            return np.where(near, sig.FINISH_BACK - ahead, sig.LOST_STEP).astype(np.uint8)
        near = (ahead > -sig.STEPS_BACK) & (ahead <= sig.STEPS_AHEAD)
        signals = np.where(near, sig.LAUNCH_AT + ahead, sig.BY_OBJECT)
        # With no pass out, there is none whose distance would grow by the numbers that are skipped.
        next_one = (ahead == 1) | (shapes.no_pass[codes] & (ahead > 0))
        return np.where(next_one, mine, signals).astype(np.uint8)

    def _by_position(self, mine: Any, at: Ints, where: Any) -> npt.NDArray[np.uint8]:
        """Completions, by whether they stand before the recorded one in the text (:func:`reasons.is_earlier`)."""
        given = NO_POSITION if self.positions is None else self.positions[where]
        sooner = (given != NO_POSITION) & ((at == NO_POSITION) | (given < at))
        is_length = mine == _LENGTH
        known = sig.COMPLETIONS + 2 * is_length + sooner
        completes = is_length | (mine == _STOP)
        signals: npt.NDArray[np.uint8]
        signals = np.where(completes & (given != at), known, mine).astype(np.uint8)
        return signals


def call_of(
    events: str | npt.ArrayLike, count: int, shapes: Shapes, given: dict[str, Any], *, to_all: bool
) -> Call:
    """The call that fires `events` at `count` places, with the details that were given.

    Raises:
        BadDetail: as :meth:`RequestBatch.apply` says.
    """
    details = {name: value for name, value in given.items() if value is not None}
    if not isinstance(events, str):
        if details:
            msg = f"signals bring their details along; {', '.join(details)} can go with an event's word only"
            raise BadDetail(msg)
        return Call(None, _signals(events, count), details)
    code = sig.code(events, source=given["source"], reason=given["reason"])
    sig.check_cause(events, given["cause"])
    steps = _numbers("step", details.pop("step", None), count) if events in _STEPPED else None
    details.pop("step", None)
    positions = None
    if events == Event.COMPLETE:
        positions = _numbers("position", details.pop("position", None), count)
    if "attempt" in details and events != Event.ABORT:
        code = sig.BY_OBJECT
    elif "op" in details and events in sig.OP_EVENTS:
        code = _op_signal(events, details["op"], shapes)
    if steps is not None and code == sig.BY_OBJECT:
        return Call(events, np.full(count, code, np.uint8), details, steps=steps, to_all=to_all)
    return Call(events, code, details, steps=steps, positions=positions, to_all=to_all)


def _signals(events: npt.ArrayLike, count: int) -> npt.NDArray[np.uint8]:
    signals = np.asarray(events)
    if signals.shape != (count,):
        msg = f"{count} rows take as many signals, not an array of shape {signals.shape}"
        raise BadDetail(msg)
    if not count:
        return np.zeros(0, np.uint8)
    if signals.dtype.kind not in "iu" or signals.min() < 0 or signals.max() >= sig.PLAIN:
        msg = f"signals are integers from 0 to {sig.PLAIN - 1}, as lifecycle.batch.code gives them"
        raise BadDetail(msg)
    return signals.astype(np.uint8, copy=False)


def _numbers(name: str, value: Any, count: int) -> Ints | None:
    """One number for all places or one for each, as int64."""
    if value is None:
        return None
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu" or numbers.shape not in ((), (count,)):
        msg = (
            f"a {name} is an integer of 64 bits, one for all or an array of {count}; got {value!r}"
        )
        raise BadDetail(msg)
    return np.broadcast_to(numbers.astype(np.int64), (count,))


def _op_signal(event: str, op: str, shapes: Shapes) -> int:
    which = sig.OP_EVENTS.index(event)
    if event == Event.TRANSFER_POSTED or shapes.known_op(op):
        first = shapes.op_signals(op)
        return sig.BY_OBJECT if first is None else first + which
    return sig.LOST_OPS + which
