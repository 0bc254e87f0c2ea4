"""What came of events at many requests: the few that ask for something, and those that were refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import attrs
import numpy as np
import numpy.typing as npt

from ..compile import Effect
from ..errors import EventError
from ..vocabulary import EffectKind
from . import shapes as sh
from .shapes import Shapes, mask_of

OWN = -1
"""In :attr:`Applied.numbers`: effects that an object gave, which have no number."""

Ints = npt.NDArray[np.int64]
NO_ROWS: Ints = np.zeros(0, np.int64)
NO_NUMBERS: npt.NDArray[np.int16] = np.zeros(0, np.int16)


@attrs.frozen(eq=False)
class Refusals:
    """Events that one part of a call was refused: what is needed to say later what was wrong.

    Attributes:
        places: where they stand in the call.
        rows: whose they were.
        codes, last, attempts: the shapes of those rows, their newest steps and attempts, as they were then.
        error: makes the error of one of them; for :class:`Errors` to call.
    """

    places: Ints
    rows: Ints
    codes: npt.NDArray[Any]
    last: npt.NDArray[Any]
    attempts: npt.NDArray[Any]
    error: Callable[[Refusals, int], EventError]


class Errors(Sequence[EventError]):
    """The errors of events that were refused, each made when it is looked at."""

    def __init__(self, parts: Sequence[Refusals] = ()) -> None:
        self._parts = parts
        self._count = sum(len(part.rows) for part in parts)

    @cached_property
    def rows(self) -> Ints:
        """Whose events they were, int64, shape (n,), in the order of the events."""
        rows: Ints = np.concatenate([NO_ROWS, *(part.rows for part in self._parts)])[self._order]
        return rows

    @cached_property
    def _order(self) -> Ints:
        places = np.concatenate([NO_ROWS, *(part.places for part in self._parts)])
        return np.argsort(places, kind="stable")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> EventError: ...
    @overload
    def __getitem__(self, index: slice) -> list[EventError]: ...
    def __getitem__(self, index: int | slice) -> EventError | list[EventError]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        at = int(self._order[index])
        for part in self._parts:
            if at < len(part.rows):
                return part.error(part, at)
            at -= len(part.rows)
        raise IndexError(index)

    def __repr__(self) -> str:
        return f"<{len(self)} errors, rows {self.rows.tolist()}>"


NO_ERRORS = Errors()


@attrs.frozen(eq=False)
class Applied:
    """What :meth:`~lifecycle.batch.RequestBatch.apply` leaves to be done.

    Iterating gives ``(row, effects)`` for each event that has effects, in the order of the events; the effects are
    those that a :class:`~lifecycle.RequestLifecycle` returns, to be carried out in their order. For many rows,
    ask :meth:`rows_with` by kind.

    Attributes:
        rows: int64, shape (n,): the rows of events that have effects; a row stands twice if two of its events do.
        numbers: integers, shape (n,): the number of the effects in :attr:`Shapes.effects`, or :data:`OWN`.
        attempts: integers, shape (n,): the newest attempt before the event, from which those effects are counted.
        errors: what was refused; those rows are unchanged.
        late: how many events were late, and were absorbed.
        unknown: how many events were for a row that no request has, and were absorbed.
    """

    rows: Ints
    numbers: npt.NDArray[Any]
    attempts: npt.NDArray[Any]
    errors: Errors
    late: int
    unknown: int
    _shapes: Shapes = attrs.field(repr=False)
    _own: Mapping[int, tuple[Effect, ...]] = attrs.field(factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[int, tuple[Effect, ...]]]:
        for at, row in enumerate(self.rows.tolist()):
            yield row, self.effects(at)

    def effects(self, at: int) -> tuple[Effect, ...]:
        """The effects of the event at place `at` of :attr:`rows`."""
        if self.numbers[at] == OWN:
            return self._own[at]
        effects = self._shapes.effects[int(self.numbers[at])]
        attempt = int(self.attempts[at])
        if not attempt:
            return effects
        return tuple(Effect(each.kind, each.attempt + attempt, each.publish) for each in effects)

    @property
    def asks(self) -> npt.NDArray[np.uint8]:
        """What is asked for each of :attr:`rows`, uint8, shape (n,).

        A mask of CANCEL, RELEASE, QUARANTINE, REPORT, and for attempts before the newest of OLD_RELEASE and
        OLD_QUARANTINE (:mod:`lifecycle.batch.shapes`).
        """
        masks: npt.NDArray[np.uint8] = self._shapes.masks[self.numbers]
        for at, effects in self._own.items():
            masks[at] = mask_of(effects, int(self.attempts[at]))
        return masks

    def rows_with(self, kind: str) -> Ints:
        """The rows that have an effect of this kind, for whichever attempt, in the order of the events."""
        bits = {
            EffectKind.CANCEL_TRANSFER: sh.CANCEL,
            EffectKind.RELEASE_KV: sh.RELEASE | sh.OLD_RELEASE,
            EffectKind.QUARANTINE_KV: sh.QUARANTINE | sh.OLD_QUARANTINE,
            EffectKind.REPORT: sh.REPORT,
        }[EffectKind(kind)]
        found: Ints = self.rows[(self.asks & bits) != 0]
        return found


class Found:
    """An :class:`Applied` in the making, part by part. Places are those of the events in the call."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.places: list[npt.NDArray[Any]] = []
        self.rows: list[Ints] = []
        self.numbers: list[npt.NDArray[Any]] = []
        self.attempts: list[npt.NDArray[Any]] = []
        self.own: list[tuple[int, int, int, tuple[Effect, ...]]] = []
        self.refused: list[Refusals] = []
        self.late = 0
        self.unknown = 0

    def applied(self, *, ordered: bool) -> Applied:
        """All of it, in the order of the events; `ordered` says that parts were met in that order."""
        errors = Errors(self.refused) if self.refused else NO_ERRORS
        own = self.own
        if not self.rows and not own:
            return Applied(
                NO_ROWS, NO_NUMBERS, NO_ROWS, errors, self.late, self.unknown, self.shapes
            )
        if not own and ordered:
            return Applied(
                _joined(self.rows), _joined(self.numbers), _joined(self.attempts),
                errors, self.late, self.unknown, self.shapes,
            )  # fmt: skip
        rows = np.concatenate([*self.rows, np.array([each[1] for each in own], np.int64)])
        attempts = np.concatenate([*self.attempts, np.array([each[2] for each in own], np.int64)])
        numbers = np.concatenate([*self.numbers, np.full(len(own), OWN)]).astype(np.int16)
        places = np.concatenate([*self.places, np.array([each[0] for each in own], np.int64)])
        order = np.argsort(places, kind="stable")
        rows, attempts, numbers = rows[order], attempts[order], numbers[order]
        own.sort(key=lambda each: each[0])
        at = np.flatnonzero(numbers == OWN).tolist()
        mine = {place: each[3] for place, each in zip(at, own, strict=True)}
        return Applied(rows, numbers, attempts, errors, self.late, self.unknown, self.shapes, mine)


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
