"""Shapes: what a request is but for its numbers, and what each signal does to each shape.

The events that a request can take do not depend on how high its step numbers are, on which attempt it is, or on
how many late events it has seen. Take those numbers away and what is left is its *shape*: the node of the
automaton, the passes that are out (as distances from the newest), the names of the ops that are out, and the
same of older attempts that drain. A live fleet knows a few hundred shapes, so a shape fits into two bytes, and
what a signal does to it into four.

:class:`Shapes` keeps that as one table, ``table[shape, signal]``, which is filled as shapes are met: the first
time a signal comes to a shape, a :class:`~lifecycle.RequestLifecycle` of that shape is made, the event is fired
at it, and what became of it is written down. So the columns do what the object does *because they were told by
it*, under every table and policy, for older attempts, named ops and passes out of order alike. From then on it
is one look-up.

What cannot be a shape here (an op beyond the names that there is room for, a pass very far behind) is said so, and
:class:`~lifecycle.batch.RequestBatch` keeps such a row as an object.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..compile import Automaton, Effect
from ..errors import IllegalEvent, LateEvent
from ..reasons import Details
from ..request import Draining, RequestLifecycle
from ..vocabulary import DEFAULT_OP, EffectKind, FinishReason
from . import signals as sig
from .signals import SIGNALS, WIDTH, Signal

# A cell of the table, as 32 bits: the shape that it leads to, and what else there is to do.
NEXT = (1 << 16) - 1
LAUNCHED_BIT, LATE_BIT = 16, 17
LAUNCHED = 1 << LAUNCHED_BIT  # the newest step's number goes up
LATE = 1 << LATE_BIT
WINS = 1 << 18  # the event's details are now the outcome's
REFUSED = 1 << 19  # illegal, or late under the policy `strict`
AGAIN = 1 << 20  # a new attempt
SLOW = 1 << 21  # not learnt yet, or an object must do it
EFFECTS = 22  # the number of the effects stands from this bit on
MOST_EFFECTS = (1 << (32 - EFFECTS)) - 1
HOT = REFUSED  # a cell as high as this asks to be looked at by itself

CODES = 4096
"""Room for so many shapes. They take two bytes a row, and 512 bytes of table each."""
MOVED_BY_PENDING = 3 * CODES // 4
"""Shapes that take a pending poll in place are below this, all others (`done`, mostly) at or above it."""
FREE = CODES - 1
"""The shape of a row that no request has."""
OBJECT = CODES - 2
"""The shape of a row that is kept as an object."""

# Masks of :attr:`Shapes.masks`: what effects ask for, for the newest attempt and for older ones.
CANCEL, RELEASE, QUARANTINE, REPORT = 1, 2, 4, 8
OLD_RELEASE, OLD_QUARANTINE = 16, 32
MASKS = {
    EffectKind.CANCEL_TRANSFER: CANCEL,
    EffectKind.RELEASE_KV: RELEASE,
    EffectKind.QUARANTINE_KV: QUARANTINE,
    EffectKind.REPORT: REPORT,
}

BASE_STEP, BASE_ATTEMPT = 1 << 20, 1 << 10  # what a request is given to learn from; any would do

Old = tuple[int, tuple[int, ...], tuple[str, ...]]


class Shape(NamedTuple):
    """A request without its numbers.

    Attributes:
        node: the index of its node in the automaton.
        steps: its outstanding passes in the order of launch, as distances from the newest one (0, -1, ...).
        ops: its outstanding ops in the order of posting.
        older: attempts that still drain, oldest first: how many attempts ago, steps, ops.
    """

    node: int
    steps: tuple[int, ...] = ()
    ops: tuple[str, ...] = ()
    older: tuple[Old, ...] = ()


class Shapes:
    """The shapes of one automaton, and the table of what signals do to them. Threads may share it.

    Attributes:
        automaton: what it learns from.
        table: uint32, of length ``CODES * WIDTH``: the cell of a shape and a signal is
            ``table[shape * WIDTH + signal]``.
        shapes: by number; None where there is none.
        effects: by number: effects with attempts counted from the newest one before the event (0, or negative for
            older ones). Number 0 is no effects.
        masks: uint8, by number of effects: what they ask for.
        states, reasons: what the indices in `state` and `reason` stand for.
        state, reason: int8 by shape; -1 for no reason.
        steps, ops: uint8 by shape, how many are outstanding in the newest attempt.
        done, over, decided, reported, held, no_pass: bool by shape, as the properties of a request; `held` is
            ``kv == "held"``, `no_pass` that no pass is out, of any attempt.
    """

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        own = np.repeat(np.arange(CODES, dtype=np.uint32), WIDTH)
        self.table: npt.NDArray[np.uint32] = own | np.uint32(SLOW)
        self.table[sig.NOTHING :: WIDTH] &= np.uint32(NEXT)  # no event, no change
        self.table[sig.BY_OBJECT :: WIDTH] = OBJECT | SLOW
        self.shapes: list[Shape | None] = [None] * CODES
        self.effects: list[tuple[Effect, ...]] = [()]
        self.masks: npt.NDArray[np.uint8] = np.zeros(MOST_EFFECTS + 1, np.uint8)
        self.states = tuple(str(state.name) for state in automaton.table.states)
        self.reasons = tuple(FinishReason)
        self.signals = list(SIGNALS)
        self.state: npt.NDArray[np.int8] = np.zeros(CODES, np.int8)
        self.reason: npt.NDArray[np.int8] = np.full(CODES, -1, np.int8)
        self.steps: npt.NDArray[np.uint8] = np.zeros(CODES, np.uint8)
        self.ops: npt.NDArray[np.uint8] = np.zeros(CODES, np.uint8)
        flags = np.zeros((6, CODES), np.bool_)
        self.done, self.over, self.decided, self.reported, self.held, self.no_pass = flags
        self._codes: dict[Shape, int] = {}
        self._effects: dict[tuple[Effect, ...], int] = {(): 0}
        self._ops: dict[str, int] = {}
        self._low, self._high = 0, OBJECT - 1
        self._lock = threading.RLock()
        self.op_signals(DEFAULT_OP)
        start = self.code(Shape(automaton.start.index))
        assert start is not None  # the first one
        self.start = start

    def op_signals(self, name: str) -> int | None:
        """The first of the signals of op `name`, in the order of ``OP_EVENTS``; None if there is no room."""
        number = self._ops.get(name)
        if number is None:
            if name == sig.NO_SUCH_OP:
                return None
            with self._lock:
                number = self._ops.get(name, len(self._ops))
                if number >= sig.MOST_OPS:
                    return None
                if name not in self._ops:
                    self.signals += [Signal(event, (("op", name),)) for event in sig.OP_EVENTS]
                    self._ops[name] = number
        return sig.NAMED_OPS + len(sig.OP_EVENTS) * number

    def known_op(self, name: str) -> bool:
        """Whether op `name` has signals."""
        return name in self._ops

    # Shapes and requests.

    def shape_of(self, request: RequestLifecycle) -> Shape | None:
        """The shape of a request; None if it cannot be one here."""
        last = request._last_step
        ops = (request._ops, *(old.ops for old in request._older))
        if any(name not in self._ops for each in ops for name in each):
            return None
        steps = (request._steps, *(old.steps for old in request._older))
        if any(not 0 <= last - step < sig.STEPS_BACK for each in steps for step in each):
            return None
        older = tuple(
            (request.attempt - old.attempt, tuple(step - last for step in old.steps), old.ops)
            for old in request._older
        )
        now = tuple(step - last for step in request._steps)
        return Shape(request._node.index, now, request._ops, older)

    def code(self, shape: Shape | None) -> int | None:
        """The number of a shape, a new one if it has none; None if there is no room."""
        if shape is None:
            return None
        code = self._codes.get(shape)
        if code is not None:
            return code
        with self._lock:
            if shape in self._codes:
                return self._codes[shape]
            still = self._is_still(shape)
            room = self._low < MOVED_BY_PENDING if still else self._high >= MOVED_BY_PENDING
            if not room:
                return None
            code = self._low if still else self._high
            self._low, self._high = self._low + still, self._high - (not still)
            self._describe(code, self.request(shape, BASE_STEP, BASE_ATTEMPT))
            self.shapes[code] = shape
            self._codes[shape] = code
        return code

    def _is_still(self, shape: Shape) -> bool:
        """Whether a pending poll leaves it as it is, and nothing comes of it."""
        request = self.request(shape, BASE_STEP, BASE_ATTEMPT)
        try:
            effects = request.fire("transfer_pending")
        except (IllegalEvent, LateEvent):
            return False
        return not effects and not request.late and self.shape_of(request) == shape

    def _describe(self, code: int, request: RequestLifecycle) -> None:
        at = request._node.configuration
        self.state[code] = self.states.index(str(at.state))
        self.reason[code] = -1 if at.reason is None else self.reasons.index(at.reason)
        self.steps[code], self.ops[code] = len(request._steps), len(request._ops)
        self.done[code], self.over[code] = request.done, request.over
        self.decided[code], self.reported[code] = request.decided, at.reported
        self.held[code] = at.kv == "held"
        self.no_pass[code] = not request._steps and not any(old.steps for old in request._older)

    def request(
        self,
        shape: Shape,
        last: int,
        attempt: int,
        *,
        rid: str = "",
        incarnation: int = 1,
        journal: bool = False,
    ) -> RequestLifecycle:
        """A request of that shape; `last` is the number of the newest step, `attempt` that of the attempt."""
        request = RequestLifecycle(rid, self.automaton, incarnation, journal)
        request._node = self.automaton.nodes[shape.node]
        request._steps = tuple(last + step for step in shape.steps)
        request._ops = shape.ops
        request._last_step, request.attempt = last, attempt
        request._older = tuple(
            Draining(attempt - ago, tuple(last + step for step in steps), ops)
            for ago, steps, ops in shape.older
        )
        return request

    # Learning.

    def learn(self, cells: npt.NDArray[np.int64]) -> None:
        """Fill these cells of the table (``shape * WIDTH + signal``), those that are not learnt."""
        with self._lock:
            for cell in np.unique(cells).tolist():
                code, signal = divmod(cell, WIDTH)
                if self.table[cell] == code | SLOW:
                    self.table[cell] = self._learn(code, self.signals[signal])

    def _learn(self, code: int, signal: Signal) -> int:
        shape = self.shapes[code]
        if shape is None:  # free, or an object
            return OBJECT | SLOW
        request = self.request(shape, BASE_STEP, BASE_ATTEMPT)
        details: dict[str, Any] = dict(signal.details)
        if signal.step is not None:
            details["step"] = BASE_STEP + signal.step
        before = Details(message="before")  # whatever stands here afterwards has not been replaced
        if signal.sooner is not None:
            before = Details(message="before", position=int(signal.sooner))
            details["position"] = 1 - int(signal.sooner)
        request._details = before
        try:
            effects = request.fire(signal.event, **details)
        except (IllegalEvent, LateEvent):
            return code | REFUSED
        if request.late:
            return code | LATE
        to = self.code(self.shape_of(request))
        number = self._number(effects)
        if to is None or number is None:
            return OBJECT | SLOW
        return (
            to
            | (LAUNCHED if request._last_step != BASE_STEP else 0)
            | (WINS if request._details is not before else 0)
            | (AGAIN if request.attempt != BASE_ATTEMPT else 0)
            | number << EFFECTS
        )

    def _number(self, effects: tuple[Effect, ...]) -> int | None:
        relative = tuple(
            Effect(effect.kind, effect.attempt - BASE_ATTEMPT, effect.publish) for effect in effects
        )
        number = self._effects.get(relative)
        if number is None:
            number = len(self.effects)
            if number > MOST_EFFECTS:
                return None
            self._effects[relative] = number
            self.masks[number] = mask_of(relative, 0)
            self.effects.append(relative)
        return number


def mask_of(effects: tuple[Effect, ...], newest: int) -> int:
    """What these effects ask for, as a mask; `newest` is the number of the newest attempt."""
    mask = 0
    for effect in effects:
        bit = MASKS[effect.kind]
        old = effect.attempt != newest and bit in (RELEASE, QUARANTINE)
        mask |= bit << 3 if old else bit
    return mask


_KNOWN: dict[int, Shapes] = {}
_KEPT = 8


def shapes_of(automaton: Automaton) -> Shapes:
    """The shapes of an automaton: the same object each time, so that what one batch learns all others know."""
    shapes = _KNOWN.get(id(automaton))
    if shapes is None or shapes.automaton is not automaton:
        while len(_KNOWN) >= _KEPT:
            _KNOWN.pop(next(iter(_KNOWN)))
        shapes = _KNOWN[id(automaton)] = Shapes(automaton)
    return shapes
