"""Signals: an event, with the details that decide what it does, as one small number.

Columns cannot be fired at with words. A *signal* stands for an event together with those of its details that a
request looks at: ``abort`` from each source is a signal of its own, ``complete`` by each reason, and each op that
has a name. :func:`code` finds the number; the plain events come first and are the same in every process:

>>> code("transfer_pending"), code("abort"), code("abort", source="timeout")
(9, 15, 17)
>>> str(SIGNALS[17])
'abort(source=timeout)'

Number 0 is :data:`NOTHING`: no event at all, to fill up an array.

Behind the plain signals stand those that :class:`~lifecycle.batch.RequestBatch` works out itself: completions by
their token positions, passes by their step (as a distance from the newest one), ops by name.
"""

from __future__ import annotations

from typing import Any

import attrs

from ..errors import BadDetail
from ..vocabulary import AbortSource, Event, GrammarCause

WIDTH_BITS = 7
WIDTH = 1 << WIDTH_BITS
"""Room for so many signals: a row of the table of shapes (:mod:`lifecycle.batch.shapes`) is so wide."""

STEPS_BACK = 16
"""A pass that is outstanding may be so far behind the newest one; a row with an older one becomes an object."""
STEPS_AHEAD = 8
"""A launch may skip so many numbers while another pass is outstanding; any number of them while none is."""


@attrs.frozen
class Signal:
    """One signal: the event, and what to fire it with.

    Attributes:
        event: the event; empty for :data:`NOTHING`. details: details by name, without those that count from
            something: see the next two. step: the step, counted from the newest one of the row (0, -1, ...);
            None for none. sooner: for ``complete``: whether its token position is before the recorded one; None
            where neither has one.
    """

    event: str
    details: tuple[tuple[str, Any], ...] = ()
    step: int | None = None
    sooner: bool | None = None

    def __str__(self) -> str:
        notes = [f"{name}={value}" for name, value in self.details]
        notes += [] if self.step is None else [f"step=newest{self.step:+d}"]
        notes += [] if self.sooner is None else ["sooner" if self.sooner else "later"]
        return f"{self.event}({', '.join(notes)})" if notes else str(self.event or "nothing")


def _plain() -> list[Signal]:
    signals = [Signal("")]
    for event in Event:
        word = event.value
        if event is Event.ABORT:
            signals += [Signal(word, (("source", source.value),)) for source in AbortSource]
        elif event is Event.COMPLETE:
            signals += [Signal(word, (("reason", reason),)) for reason in ("stop", "length")]
        else:
            signals.append(Signal(word))
    return signals


NO_SUCH_OP = "(no such op)"
"""Stands for every op that no row in columns can have out: a completion of it is late."""

OP_EVENTS = (
    Event.TRANSFER_SUCCEEDED.value,
    Event.TRANSFER_FAILED.value,
    Event.TRANSFER_DRAINED.value,
    Event.TRANSFER_POSTED.value,
)

_plain_signals = _plain()
PLAIN = len(_plain_signals)
"""How many plain signals there are: what a caller may put into an array is below this."""

_by_object = Signal("")  # never learnt: the row itself has to be asked
_completions = [
    Signal("complete", (("reason", reason),), sooner=sooner)
    for reason in ("stop", "length")
    for sooner in (False, True)
]
_finishes = [Signal("forward_finished", step=-back) for back in range(STEPS_BACK)]
_launches = [
    Signal("forward_launched", step=ahead) for ahead in range(1 - STEPS_BACK, STEPS_AHEAD + 1)
]
_lost_step = Signal("forward_finished", step=1)  # never launched, or long over
_lost_ops = [Signal(event, (("op", NO_SUCH_OP),)) for event in OP_EVENTS[:3]]

SIGNALS: list[Signal] = [
    *_plain_signals, _by_object, *_completions, *_finishes, *_launches, _lost_step, *_lost_ops
]  # fmt: skip
"""Every signal but those of named ops, which follow as the names become known to a table of shapes."""

NOTHING = 0
BY_OBJECT = PLAIN
COMPLETIONS = BY_OBJECT + 1  # + 2 * (length) + sooner
FINISH_BACK = COMPLETIONS + len(_completions)  # + how far behind the newest
LAUNCH_AT = FINISH_BACK + len(_finishes) + STEPS_BACK - 1  # + how far ahead; negative: behind
LOST_STEP = FINISH_BACK + len(_finishes) + len(_launches)
LOST_OPS = LOST_STEP + 1  # + index in OP_EVENTS
NAMED_OPS = LOST_OPS + len(_lost_ops)  # + 4 * number of the name + index in OP_EVENTS
MOST_OPS = (WIDTH - NAMED_OPS) // len(OP_EVENTS)
"""So many names of ops are known to columns; a row with another one becomes an object."""

_CODES = {(signal.event, *signal.details): number for number, signal in enumerate(SIGNALS[:PLAIN])}
_CODES["abort",] = _CODES["abort", ("source", AbortSource.CLIENT.value)]
_WHICH = {"abort": "source", "complete": "reason"}
_CHOICES = {"abort": ", ".join(AbortSource), "complete": "stop, length"}
_CAUSES = frozenset(GrammarCause)


def code(event: str, *, source: str | None = None, reason: str | None = None) -> int:
    """The number of the plain signal for `event`.

    Args:
        event: an :class:`~lifecycle.Event`, or its word.
        source: for ``abort`` (default ``client``).
        reason: for ``complete``: ``stop`` or ``length``; it must be given.

    Raises:
        BadDetail: no such event, source or reason.
    """
    which = _WHICH.get(event)
    if which is None:
        found = _CODES.get((event,))
    else:
        value = source if which == "source" else reason
        key = (event,) if value is None else (event, (which, value))
        found = _CODES.get(key)
        if found is None:
            msg = f"{event} takes as {which} one of {_CHOICES[event]}, not {value!r}"
            raise BadDetail(msg, event=event)
    if found is None or not event:
        msg = f"{event!r} is no event; events are {', '.join(Event)}"
        raise BadDetail(msg, event=str(event))
    return found


def check_cause(event: str, cause: str | None) -> None:
    """A grammar fails by one of four causes.

    Raises:
        BadDetail: it is none of them.
    """
    if event == Event.GRAMMAR_FAILED and cause is not None and cause not in _CAUSES:
        msg = f"a grammar fails by one of {', '.join(GrammarCause)}, not {cause!r}"
        raise BadDetail(msg, event=event)
